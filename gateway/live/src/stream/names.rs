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
    identity::{ChannelId, GroupId, Sequence, Session},
    published::{
        packet::{PacketFlags, parse_packet},
        request::{RequestKind, ServiceRequest},
    },
};
use zerocopy::IntoBytes as _;

/// The service that keeps the names of one channel's instruments.
#[derive(Debug)]
pub struct NamesService {
    address: SocketAddrV4,
    group: GroupId,
    channel: ChannelId,
    /// What the service has answered: replays ask again and again.
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    session: SessionBytes,
    names: Arc<Names>,
    /// The service did not answer, or named nothing: it is asked again then.
    ask_again: Option<Instant>,
}

/// Symbols by instrument, in the order in which the venue named them.
pub(crate) type Names = Vec<(u32, String)>;

impl NamesService {
    /// The service at that address. One that listens on all addresses is asked by loopback.
    #[must_use]
    pub fn new(address: SocketAddrV4, group: GroupId, channel: ChannelId) -> Self {
        let host = if address.ip().is_unspecified() { Ipv4Addr::LOCALHOST } else { *address.ip() };
        Self { address: SocketAddrV4::new(host, address.port()), group, channel, known: Mutex::default() }
    }

    /// The names of a session so far; none if the service does not answer.
    pub(crate) fn of_session(&self, session: SessionBytes) -> Arc<Names> {
        // Held during the question, so that one reader asks for all.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |known: &&Known| {
            known.session == session && known.ask_again.is_none_or(|ask_again| Instant::now() < ask_again)
        };
        if let Some(known) = known.as_ref().filter(is_current) {
            return Arc::clone(&known.names);
        }
        let asked = Session::from_bytes(session).map_or_else(|| Ok(Names::new()), |session| self.ask(session));
        let error = match &asked {
            Ok(names) if names.is_empty() => Some("it has none, as after a restart of the gateway".to_owned()),
            Ok(_) => None,
            Err(error) => Some(format!("{error}: does retransmission.allowed have this host?")),
        };
        if let Some(error) = &error {
            tracing::warn!(
                channel_id = self.channel.0,
                address = %self.address,
                error,
                "live: the retransmission service names no instrument of a session whose beginning the log no longer has"
            );
        }
        let names = Arc::new(asked.unwrap_or_default());
        let ask_again = error.map(|_| Instant::now() + ASK_AGAIN_AFTER);
        *known = Some(Known { session, names: Arc::clone(&names), ask_again });
        names
    }

    fn ask(&self, session: Session) -> io::Result<Names> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(self.address)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let (mut names, mut next, mut attempts) = (Names::new(), 0, 0);
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
            if self.receive(&socket, session, &mut next, &mut names)? {
                return Ok(names);
            }
            if next > before {
                attempts = 0;
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Takes the packets of one answer. Returns whether the service has no more.
    fn receive(&self, socket: &UdpSocket, session: Session, next: &mut u64, names: &mut Names) -> io::Result<bool> {
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
                        names.push((id.0, symbol.to_owned()));
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
/// How long a service that named nothing is not asked again.
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
        let service = NamesService::new(address, GroupId(1), ChannelId(1));
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
        service.known.lock().unwrap().as_mut().unwrap().ask_again = Some(Instant::now());
        assert!(service.of_session(session).is_empty());
        assert_eq!(requests(), 2);
        let closed = SocketAddrV4::new(Ipv4Addr::LOCALHOST, address.port());
        drop(silent);
        assert!(NamesService::new(closed, GroupId(1), ChannelId(1)).of_session(session).is_empty());
    }
}
