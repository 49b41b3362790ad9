//! Books by a replay from the venue. A gateway that restarts in mid-session and gets no state from a peer has the
//! venue's server replay the session, if the server still holds its first message.
//!
//! The local log stays. The channel receives all messages before the log's end again, for its books only, and
//! continues after it. So the books are as good as before. If both gateways of a pair were down, both get the same
//! books. Without such a server their books begin empty and suspect, at two different positions.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use mdgw_feeds::{
    channel::KnownSession,
    identity::Sequence,
    transport::{
        Packet, Transport as _,
        moldudp64::{MoldUdp64, Request, session_name},
    },
};

use crate::config::resolved::{ChannelSetup, RecoveryConfig};

/// Whether a channel's session can be replayed. The server is asked only when the answer is needed.
#[derive(Debug)]
pub(super) struct VenueReplay<'c> {
    setup: &'c ChannelSetup,
    /// The session to replay; `None` if no session is known, or no replay is wanted.
    session: Option<KnownSession>,
    is_available: Option<bool>,
}

impl<'c> VenueReplay<'c> {
    /// Sends no request yet.
    pub(super) fn new(setup: &'c ChannelSetup, session: Option<KnownSession>) -> Self {
        Self { setup, session, is_available: None }
    }

    /// Whether the venue's server holds the session from its first message on. The first call waits for the answer, no
    /// longer than for a gap request.
    pub(super) fn is_available(&mut self) -> bool {
        *self.is_available.get_or_insert_with(|| {
            let (Some(recovery), Some(session)) = (&self.setup.recovery, &self.session) else { return false };
            let answer = first_message(recovery, session);
            if !matches!(answer, Ok(true)) {
                let (server, channel) = (recovery.server, &self.setup.name);
                tracing::warn!(%server, channel, ?answer, "the venue's server does not hold the start of the session");
            }
            answer.unwrap_or(false)
        })
    }
}

/// Whether the server answers with the first message. Only MoldUDP64 has such servers.
fn first_message(recovery: &RecoveryConfig, session: &KnownSession) -> io::Result<bool> {
    let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(recovery.server)?;
    socket.set_read_timeout(Some(Duration::from_nanos(recovery.timeout_ns.max(1))))?;
    let request = Request { session: session_name(session.venue), first: Sequence(1), count: 1 }.to_bytes();
    let mut bytes = [0; DATAGRAM_BYTES_MAX];
    for _ in 0..recovery.attempts_max {
        socket.send(&request)?;
        match socket.recv(&mut bytes) {
            Ok(length) => {
                let answer = MoldUdp64::parse(bytes.get(..length).unwrap_or_default());
                if answer.is_ok_and(|answer| is_first_message(&answer, session)) {
                    return Ok(true);
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn is_first_message(answer: &Packet<'_>, session: &KnownSession) -> bool {
    (answer.session, answer.first) == (session.venue, Sequence(1)) && answer.count > 0
}

/// Receive buffer for an answer. A longer datagram is not a valid answer.
const DATAGRAM_BYTES_MAX: usize = 2_048;

#[cfg(test)]
pub(super) mod tests {
    use mdgw_feeds::{
        identity::{Feed, Session},
        time::UnixNs,
        transport::moldudp64::{PacketWriter, venue_session},
    };

    use super::*;

    pub(in crate::gateway) const NAME: [u8; 10] = *b"SESSION001";

    pub(in crate::gateway) fn known_session() -> KnownSession {
        let session = Session { feed: Feed::NasdaqItch, date: "2019-01-30".parse().unwrap(), restart: 0 };
        let (started, latest) = (UnixNs(0), UnixNs(0));
        KnownSession { session, venue: venue_session(NAME), started, latest, has_messages: true }
    }

    /// Starts a server that answers each request with the next of `answers`. After the last answer, its socket stays
    /// open for a while without answering.
    pub(in crate::gateway) fn server(answers: Vec<Vec<u8>>) -> RecoveryConfig {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(server) = socket.local_addr().unwrap() else { unreachable!("bound to one") };
        std::thread::spawn(move || {
            for answer in answers {
                let (length, client) = socket.recv_from(&mut [0; 64]).unwrap();
                assert_eq!(length, 20, "a request");
                socket.send_to(&answer, client).unwrap();
            }
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            while socket.recv_from(&mut [0; 64]).is_ok() {}
        });
        RecoveryConfig {
            server,
            timeout_ns: 5_000_000_000,
            attempts_max: 3,
            messages_per_request_max: 100,
            requests_in_flight_max: 1,
        }
    }

    pub(in crate::gateway) fn packet(name: [u8; 10], first: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = PacketWriter::begin(&mut bytes, name, Sequence(first), 1_400);
        assert!(writer.push(b"message"));
        let _count = writer.finish();
        bytes
    }

    #[test]
    fn a_server_that_answers_with_the_first_message_can_replay_the_session() {
        assert!(first_message(&server(vec![packet(NAME, 1)]), &known_session()).unwrap());
        let late = vec![b"damaged".to_vec(), packet(NAME, 2), packet(NAME, 1)];
        assert!(first_message(&server(late), &known_session()).unwrap());
    }

    #[test]
    fn another_session_a_later_message_or_a_damaged_packet_is_rejected() {
        let wrong = vec![packet(*b"SESSION002", 1), packet(NAME, 7), b"damaged".to_vec()];
        assert!(!first_message(&server(wrong), &known_session()).unwrap());
    }

    #[test]
    fn a_silent_or_absent_server_cannot_replay() {
        let silent = RecoveryConfig { timeout_ns: 1_000_000, ..server(Vec::new()) };
        assert!(!first_message(&silent, &known_session()).unwrap());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(gone) = socket.local_addr().unwrap() else { unreachable!("bound to one") };
        drop(socket);
        assert!(!first_message(&RecoveryConfig { server: gone, ..silent }, &known_session()).unwrap_or(false));
    }
}
