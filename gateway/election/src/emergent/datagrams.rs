//! Membership messages as signed datagrams: one socket for all groups of a gateway. Death notices of sentinels come
//! through the same socket.
//!
//! ```text
//!   | group: u16, little-endian | message: JSON | HMAC-SHA256 over all before |
//! ```

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread,
    time::Duration,
};

use mdgw_sys::{
    listener_counters::{ListenerCounters, Refusal},
    scheduler::spawn_short_slice,
};
use mdgw_wire::identity::GroupId;
use socket2::SockRef;

use super::{OutgoingMessage, message::Envelope};
use crate::{
    announcement::Announcement,
    auth::{Purpose, SharedKey, TAG_BYTES},
    core::Input,
    driver::{Backend, Inbox},
    identity::DeathNotice,
};

/// A gateway's socket for membership messages.
#[derive(Debug)]
pub struct MemberSocket {
    socket: UdpSocket,
    key: SharedKey,
    counters: Arc<ListenerCounters>,
}

/// A received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message about that group.
    Envelope(GroupId, Box<Envelope>),
    /// A sentinel's notice for that group.
    Death(GroupId, DeathNotice),
}

impl MemberSocket {
    /// Opens the socket.
    ///
    /// # Errors
    /// When the address is not available.
    pub fn open(listen: SocketAddr, key: SharedKey) -> io::Result<Self> {
        Ok(Self { socket: UdpSocket::bind(listen)?, key, counters: Arc::default() })
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a message about that group, without waiting. A network error of an earlier send is no error here: the next
    /// heartbeat may get through.
    ///
    /// # Errors
    /// As sendto(2).
    pub(crate) fn send(&self, group: GroupId, outgoing: &OutgoingMessage) -> io::Result<()> {
        let mut bytes = group.0.to_le_bytes().to_vec();
        serde_json::to_writer(&mut bytes, &outgoing.envelope).map_err(io::Error::other)?;
        let tag = self.key.tag(Purpose::Membership, &[&bytes]);
        bytes.extend_from_slice(&tag);
        SockRef::from(&self.socket).send_to_with_flags(&bytes, &outgoing.to.into(), libc::MSG_DONTWAIT).map(drop)
    }

    /// Waits for the next valid datagram, at most for `limit`; `None`: none came.
    ///
    /// # Errors
    /// As recvfrom(2).
    pub(crate) fn receive(&self, limit: Duration) -> io::Result<Option<Received>> {
        // 0 would wait without limit.
        self.socket.set_read_timeout(Some(limit.max(LIMIT_MIN)))?;
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        let length = match self.socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => return Ok(None),
                // The recipient of an earlier send was not there: no error of this socket.
                io::ErrorKind::ConnectionRefused => return Ok(None),
                _ => return Err(error),
            },
        };
        self.counters.count_received();
        match self.read(&bytes[..length]) {
            Ok(received) => Ok(Some(received)),
            Err((refusal, what)) => {
                self.counters.count(refusal);
                let count = self.counters.refused_total();
                if count.is_power_of_two() {
                    tracing::warn!(count, "members: dropped {what}");
                }
                Ok(None)
            }
        }
    }

    /// What the socket has received and refused.
    #[must_use]
    pub(crate) fn counters(&self) -> &Arc<ListenerCounters> {
        &self.counters
    }

    /// The message of a datagram, or why it is refused and what it is instead.
    fn read(&self, bytes: &[u8]) -> Result<Received, (Refusal, &'static str)> {
        if Announcement::has_magic(bytes) {
            let announcement = Announcement::open(bytes, &self.key);
            let Announcement { group, notice } =
                announcement.ok_or((Refusal::Forged, "a death notice that failed authentication"))?;
            return Ok(Received::Death(group, notice));
        }
        let (signed, tag) =
            bytes.split_last_chunk::<TAG_BYTES>().ok_or((Refusal::Malformed, "a datagram without a tag"))?;
        if !self.key.is_tag(Purpose::Membership, &[signed], tag) {
            return Err((Refusal::Forged, "a message that failed authentication"));
        }
        let unknown =
            (Refusal::Version, "an authentic message that this version does not know; is a member of another version?");
        let (group, text) = signed.split_first_chunk().ok_or(unknown)?;
        let envelope = serde_json::from_slice(text).map_err(|_| unknown)?;
        Ok(Received::Envelope(GroupId(u16::from_le_bytes(*group)), Box::new(envelope)))
    }
}

/// A gateway's socket for membership messages, and the thread that dispatches them.
#[derive(Debug)]
pub struct MembershipTransport {
    datagrams: Arc<MemberSocket>,
    inboxes: Arc<Inboxes>,
    stop: Arc<AtomicBool>,
}

type Inboxes = Mutex<BTreeMap<GroupId, Inbox<Envelope>>>;

impl MembershipTransport {
    /// Starts to receive.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(datagrams: MemberSocket) -> io::Result<Self> {
        let (datagrams, inboxes, stop) = (Arc::new(datagrams), Arc::<Inboxes>::default(), Arc::<AtomicBool>::default());
        let (from, to, stopped) = (Arc::clone(&datagrams), Arc::clone(&inboxes), Arc::clone(&stop));
        spawn_short_slice("mdgw-members", move || dispatch(&from, &to, &stopped))?;
        Ok(Self { datagrams, inboxes, stop })
    }

    /// What the socket has received and refused.
    #[must_use]
    pub fn counters(&self) -> &Arc<ListenerCounters> {
        self.datagrams.counters()
    }

    /// The backend of the group's election that `inbox` belongs to.
    #[must_use]
    pub fn backend(self: &Arc<Self>, group: GroupId, inbox: &Inbox<Envelope>) -> MembershipBackend {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(group, inbox.clone());
        MembershipBackend { transport: Arc::clone(self), group }
    }
}

impl Drop for MembershipTransport {
    fn drop(&mut self) {
        self.stop.store(true, Release);
    }
}

fn dispatch(datagrams: &MemberSocket, inboxes: &Inboxes, stop: &AtomicBool) {
    while !stop.load(Acquire) {
        let (group, input) = match datagrams.receive(STOP_INTERVAL) {
            Ok(Some(Received::Envelope(group, envelope))) => (group, Input::Backend(*envelope)),
            Ok(Some(Received::Death(group, notice))) => (group, Input::Died(notice)),
            Ok(None) => continue,
            Err(error) => {
                tracing::error!(%error, "election: cannot receive from the other members");
                thread::sleep(STOP_INTERVAL);
                continue;
            }
        };
        let inbox = inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&group).cloned();
        let refusal = match inbox {
            Some(inbox) if inbox.send_received(input) => continue,
            Some(_) => Refusal::QueueFull,
            None => Refusal::UnknownGroup,
        };
        datagrams.counters().count(refusal);
    }
}

/// The backend of one group's [`Emergent`](super::Emergent). The socket stays open while any backend exists.
#[derive(Debug)]
pub struct MembershipBackend {
    transport: Arc<MembershipTransport>,
    group: GroupId,
}

impl Backend<OutgoingMessage> for MembershipBackend {
    fn begin(&mut self) {
        tracing::warn!(
            group = self.group.0,
            "election: backend `emergent` (allow_split = true): during a network partition two gateways can lead, and \
             receivers accept the higher epoch"
        );
    }

    fn ask(&mut self, outgoing: OutgoingMessage) {
        if let Err(error) = self.transport.datagrams.send(self.group, &outgoing) {
            tracing::debug!(%error, to = %outgoing.to, "election: message not sent");
        }
    }
}

/// How soon the thread notices that it is to end.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// The longest UDP payload over IPv4. No smaller bound would hold: a list of the most members, with the longest names, takes
/// most of it.
const DATAGRAM_BYTES_MAX: usize = 65_507;
const LIMIT_MIN: Duration = Duration::from_micros(1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use mdgw_keys::KEY_BYTES;
    use mdgw_wire::identity::Epoch;

    use super::*;
    use crate::{
        emergent::{
            member_list::{ListVersion, ListedMember, MemberList, MemberState},
            message::Message,
        },
        formats::check,
        identity::{Incarnation, Member, NodeId, NodeName},
        record::tests::member,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn socket(key: u8) -> MemberSocket {
        MemberSocket::open((Ipv4Addr::LOCALHOST, 0).into(), SharedKey::new(&[key; KEY_BYTES])).unwrap()
    }

    fn envelope(address: SocketAddr) -> Box<Envelope> {
        let message = Message::Join { nonce: 7 };
        Box::new(Envelope { from: member(1, 2), address, to: None, number: 3, message })
    }

    #[test]
    fn messages_are_accepted_only_with_the_key_and_for_their_group() {
        let reader = socket(1);
        let to = reader.address().unwrap();
        for (key, group, taken) in [(1, 5, true), (2, 5, false), (1, 6, true)] {
            let writer = socket(key);
            let envelope = envelope(writer.address().unwrap());
            writer.send(GroupId(group), &OutgoingMessage { to, envelope: envelope.clone() }).unwrap();
            let expected = taken.then_some(Received::Envelope(GroupId(group), envelope));
            assert_eq!(reader.receive(PATIENCE).unwrap(), expected, "key {key}, group {group}");
        }
        assert_eq!(reader.counters().refused(Refusal::Forged), 1);
    }

    #[test]
    fn a_message_moved_to_another_group_is_refused() {
        let (reader, writer) = (socket(1), socket(1));
        let forger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = forger.local_addr().unwrap();
        writer.send(GroupId(5), &OutgoingMessage { to, envelope: envelope(to) }).unwrap();
        let mut bytes = [0; 2_000];
        let length = forger.recv(&mut bytes).unwrap();
        bytes[0] = 6;
        forger.send_to(&bytes[..length], reader.address().unwrap()).unwrap();
        assert_eq!(reader.receive(PATIENCE).unwrap(), None);
        assert_eq!(reader.counters().refused(Refusal::Forged), 1);
    }

    #[test]
    fn a_death_notice_is_accepted_for_its_group() {
        let reader = socket(1);
        let notice = DeathNotice { holder: NodeId(2), incarnation: Incarnation(3), epoch: Epoch::new(4, 2) };
        let writer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to_datagram = Announcement { group: GroupId(5), notice }.to_datagram(&SharedKey::new(&[1; KEY_BYTES]));
        writer.send_to(&to_datagram, reader.address().unwrap()).unwrap();
        assert_eq!(reader.receive(PATIENCE).unwrap(), Some(Received::Death(GroupId(5), notice)));
    }

    /// An earlier version reported the end of a leadership with positions.
    #[test]
    fn an_authentic_message_of_another_version_is_counted_and_ignored() {
        let reader = socket(1);
        let fixture = include_str!("../../../../tests/data/formats/emergent_messages.jsonl");
        let read = |line: &str| {
            let signed = [&5_u16.to_le_bytes(), line.as_bytes()].concat();
            let tag = reader.key.tag(Purpose::Membership, &[&signed]);
            reader.read(&[&signed[..], &tag].concat())
        };
        let (ended, others): (Vec<_>, Vec<_>) = fixture.lines().partition(|line| line.contains("positions"));
        assert_eq!((ended.len(), others.len()), (1, 9));
        assert!(read(ended[0]).unwrap_err().0 == Refusal::Version);
        assert!(others.into_iter().all(|line| read(line).is_ok()));
    }

    #[test]
    fn the_longest_list_fits_a_datagram_and_takes_most_of_it() {
        let address = SocketAddr::from(([0xffff; 8], 65_535));
        let listed = |node: u8| ListedMember {
            member: Member {
                node: NodeId(node),
                name: NodeName::new(&"n".repeat(64)).unwrap(),
                incarnation: Incarnation(u64::MAX),
            },
            address,
            age: u64::MAX,
            state: MemberState::Failed,
        };
        let list = MemberList {
            version: ListVersion { count: u64::MAX, by: NodeId(255) },
            next_age: u64::MAX,
            members: (0..=u8::MAX).map(listed).collect(),
        };
        let message = Message::JoinAccepted { nonce: u64::MAX, list, epoch: Epoch::new(1 << 50, 255) };
        let from = listed(255).member;
        let envelope = Envelope { from, address, to: Some(Incarnation(u64::MAX)), number: u64::MAX, message };
        let length = 2 + serde_json::to_vec(&envelope).unwrap().len() + TAG_BYTES;
        assert!((DATAGRAM_BYTES_MAX / 10 * 9..=DATAGRAM_BYTES_MAX).contains(&length), "{length}");
    }

    #[test]
    fn malformed_datagrams_are_counted() {
        let reader = socket(1);
        let writer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for bytes in [&b""[..], b"{}", &[0; 200]] {
            writer.send_to(bytes, reader.address().unwrap()).unwrap();
            assert_eq!(reader.receive(PATIENCE).unwrap(), None);
        }
        assert_eq!([Refusal::Malformed, Refusal::Forged].map(|refusal| reader.counters().refused(refusal)), [2, 1]);
    }

    #[test]
    fn a_datagram_written_by_0_1_0_is_read() {
        let reader = socket(1);
        check(
            include_str!("../../../../tests/data/formats/emergent_datagram.hex"),
            &[Received::Envelope(GroupId(700), envelope((Ipv4Addr::new(192, 0, 2, 1), 7_000).into()))],
            |bytes| reader.read(bytes).unwrap(),
            |received| {
                let Received::Envelope(group, envelope) = received else { unreachable!() };
                let to = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                reader
                    .send(*group, &OutgoingMessage { to: to.local_addr().unwrap(), envelope: envelope.clone() })
                    .unwrap();
                let mut bytes = vec![0; 2_000];
                let length = to.recv(&mut bytes).unwrap();
                bytes.truncate(length);
                bytes
            },
        );
    }
}
