//! The symbols of a session whose beginning the log no longer has. The gateway's retransmission service keeps them for the whole session.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mdgw_publog::SessionBytes;
use mdgw_wire::{
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    identity::{ChannelId, GroupId, InstrumentId, Sequence, Session},
    published::{
        packet::{PacketFlags, parse_packet},
        request::{RequestKind, ServiceRequest},
    },
};
use zerocopy::IntoBytes as _;

/// The service that keeps the symbols of one channel's instruments.
#[derive(Debug)]
pub struct SymbolsService {
    address: SocketAddrV4,
    group: GroupId,
    channel: ChannelId,
    /// What the service has answered: replays ask again and again.
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    session: SessionBytes,
    symbols: Arc<Symbols>,
    ask_again: Instant,
}

/// Symbols by instrument, in the order in which the venue named them.
pub type Symbols = Vec<(InstrumentId, String)>;

impl SymbolsService {
    /// The service at that address. One that listens on all addresses is asked by loopback.
    #[must_use]
    pub fn new(address: SocketAddrV4, group: GroupId, channel: ChannelId) -> Self {
        let host = if address.ip().is_unspecified() { Ipv4Addr::LOCALHOST } else { *address.ip() };
        Self { address: SocketAddrV4::new(host, address.port()), group, channel, known: Mutex::default() }
    }

    /// The symbols of a session so far; none if the service does not answer, which is logged. Waits for the answer.
    pub fn of_session(&self, session: SessionBytes) -> Arc<Symbols> {
        // Held during the question, so that one reader asks for all.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let former = known.take().filter(|known| known.session == session);
        let known = match former {
            Some(former) if Instant::now() < former.ask_again => known.insert(former),
            former => known.insert(Known {
                session,
                symbols: self.ask_and_log(session, former.map(|former| former.symbols).unwrap_or_default()),
                ask_again: Instant::now() + ASK_AGAIN_AFTER,
            }),
        };
        Arc::clone(&known.symbols)
    }

    /// Asks the service. `former`, what it has answered before, is used if it has nothing now.
    fn ask_and_log(&self, session: SessionBytes, former: Arc<Symbols>) -> Arc<Symbols> {
        let asked = Session::from_bytes(session).map_or_else(|| Ok(Symbols::new()), |session| self.ask(session));
        let error = match asked {
            Ok(symbols) if !symbols.is_empty() => return Arc::new(symbols),
            _ if !former.is_empty() => return former,
            Ok(_) => "it has none, as after a restart of the gateway".to_owned(),
            Err(error) => format!("{error}: does retransmission.allowed have this host?"),
        };
        tracing::warn!(
            channel_id = self.channel.0,
            address = %self.address,
            error,
            "the retransmission service names no instrument of a session whose beginning the log no longer has"
        );
        former
    }

    fn ask(&self, session: Session) -> io::Result<Symbols> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(self.address)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let (mut symbols, mut next, mut attempts) = (Symbols::new(), 0, 0);
        while attempts < ATTEMPTS_MAX {
            attempts += 1;
            let request = ServiceRequest {
                kind: RequestKind::Definitions,
                group: self.group,
                channel: self.channel,
                session: Some(session),
                first: Sequence(next),
                next: Sequence(next),
                nonce: next,
            };
            socket.send(request.to_packet().as_bytes())?;
            let before = next;
            if self.receive(&socket, session, &mut next, &mut symbols)? {
                return Ok(symbols);
            }
            if next > before {
                attempts = 0;
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Takes the packets of one answer. Returns whether the service has no more.
    fn receive(&self, socket: &UdpSocket, session: Session, next: &mut u64, symbols: &mut Symbols) -> io::Result<bool> {
        let mut edge = ConsumerEdge::new(TsRecvMode::Capture);
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        loop {
            let length = match socket.recv(&mut datagram) {
                Ok(length) => length,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            };
            let Ok(packet) = parse_packet(datagram.get(..length).unwrap_or_default()) else { continue };
            let meta = packet.meta;
            let is_answer = meta.flags.contains(PacketFlags::RETRANSMISSION.with(PacketFlags::SNAPSHOT));
            if !is_answer || (meta.group, meta.channel, meta.session) != (self.group, self.channel, session) {
                continue;
            }
            if meta.flags.contains(PacketFlags::HEARTBEAT) {
                // Those that were not sent, and those that were lost, are asked for again.
                return Ok(meta.first == meta.next && meta.next.0 <= *next);
            }
            if meta.first.0 != *next {
                continue;
            }
            for (header, body) in packet.frames() {
                edge.deliver(header, body, |item| {
                    if let EdgeOutput::Mapping { id, symbol } = item
                        && let Ok(symbol) = std::str::from_utf8(symbol)
                    {
                        symbols.push((id, symbol.to_owned()));
                    }
                });
            }
            *next = meta.next.0;
        }
    }
}

/// How long an answer may pause, and how often the service is asked without an answer. It is on the same host.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
const ATTEMPTS_MAX: u32 = 2;
/// How long an answer is used. A venue names few instruments in mid-session.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// The largest packet that a gateway can be configured to publish, and more.
const DATAGRAM_BYTES_MAX: usize = 9_216;

#[cfg(test)]
mod tests {
    use mdgw_wire::{identity::Feed, time::TradingDate};

    use super::*;

    #[test]
    fn a_service_that_does_not_answer_names_nothing_and_is_asked_again_later() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let Ok(std::net::SocketAddr::V4(address)) = silent.local_addr() else { panic!("IPv4") };
        let service = SymbolsService::new(address, GroupId(1), ChannelId(1));
        let date = TradingDate::from_yyyymmdd(20_190_130).unwrap();
        let session = Session { feed: Feed::NasdaqItch, date, restart: 0 }.to_bytes();
        assert!(service.of_session(session).is_empty());
        let requests = || {
            silent.set_nonblocking(true).unwrap();
            std::iter::from_fn(|| silent.recv(&mut [0; 256]).ok()).count()
        };
        assert_eq!(requests(), 2);
        assert!(service.of_session(session).is_empty());
        assert_eq!(requests(), 0);
        service.known.lock().unwrap().as_mut().unwrap().ask_again = Instant::now();
        assert!(service.of_session(session).is_empty());
        assert_eq!(requests(), 2);
        let closed = SocketAddrV4::new(Ipv4Addr::LOCALHOST, address.port());
        drop(silent);
        assert!(SymbolsService::new(closed, GroupId(1), ChannelId(1)).of_session(session).is_empty());
    }
}
