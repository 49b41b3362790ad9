//! Letters as signed datagrams: one socket for all groups of a gateway. Deaths that sentinels announce come by the same
//! socket.
//!
//! ```text
//!   | group: u16, little-endian | letter: JSON | HMAC-SHA256 over all before |
//! ```

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::Duration,
};

use mdgw_feeds::identity::GroupId;
use mdgw_sys::scheduler::spawn_prompt;
use socket2::SockRef;

use super::{Post, message::Letter};
use crate::{
    announcement::Announcement,
    auth::{Purpose, SharedKey, TAG_BYTES},
    core::Input,
    driver::{Backend, Inbox},
    identity::DeathNotice,
};

/// A gateway's socket for letters.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    key: SharedKey,
    refused: AtomicU64,
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A letter about that group.
    Letter(GroupId, Box<Letter>),
    /// A sentinel's notice for that group.
    Died(GroupId, DeathNotice),
}

impl Datagrams {
    /// Opens the socket.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn open(listen: SocketAddr, key: SharedKey) -> io::Result<Self> {
        Ok(Self { socket: UdpSocket::bind(listen)?, key, refused: AtomicU64::new(0) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a letter about that group, without waiting. A refusal of the network is none of ours: the next heartbeat may get
    /// through.
    ///
    /// # Errors
    /// As sendto(2).
    pub fn send(&self, group: GroupId, post: &Post) -> io::Result<()> {
        let mut bytes = group.0.to_le_bytes().to_vec();
        serde_json::to_writer(&mut bytes, &post.letter).map_err(io::Error::other)?;
        let tag = self.key.tag(Purpose::Membership, &[&bytes]);
        bytes.extend_from_slice(&tag);
        SockRef::from(&self.socket).send_to_with_flags(&bytes, &post.to.into(), libc::MSG_DONTWAIT).map(drop)
    }

    /// Waits for the next that is worth anything, at most `limit`; `None`: nothing came, or nothing worth anything.
    ///
    /// # Errors
    /// As recvfrom(2).
    pub fn receive(&self, limit: Duration) -> io::Result<Option<Received>> {
        // 0 would be for ever.
        self.socket.set_read_timeout(Some(limit.max(LIMIT_MIN)))?;
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        let length = match self.socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => return Ok(None),
                // An earlier send of ours met nobody: it says nothing about this socket.
                io::ErrorKind::ConnectionRefused => return Ok(None),
                _ => return Err(error),
            },
        };
        let received = self.read(&bytes[..length]);
        self.refused.fetch_add(u64::from(received.is_none()), Relaxed);
        Ok(received)
    }

    /// Datagrams that were not signed with the key, or are no letters.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn read(&self, bytes: &[u8]) -> Option<Received> {
        if Announcement::is_one(bytes) {
            let Announcement { group, notice } = Announcement::open(bytes, &self.key)?;
            return Some(Received::Died(group, notice));
        }
        let (signed, tag) = bytes.split_last_chunk::<TAG_BYTES>()?;
        if !self.key.is_tag(Purpose::Membership, &[signed], tag) {
            return None;
        }
        let (group, text) = signed.split_first_chunk()?;
        let letter = serde_json::from_slice(text).ok()?;
        Some(Received::Letter(GroupId(u16::from_le_bytes(*group)), Box::new(letter)))
    }
}

/// A gateway's socket for letters and the thread that hands on what comes.
#[derive(Debug)]
pub struct Memberships {
    datagrams: Arc<Datagrams>,
    inboxes: Arc<Inboxes>,
    stop: Arc<AtomicBool>,
}

type Inboxes = Mutex<BTreeMap<GroupId, Inbox<Letter>>>;

impl Memberships {
    /// Begins to receive.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(datagrams: Datagrams) -> io::Result<Self> {
        let (datagrams, inboxes, stop) = (Arc::new(datagrams), Arc::<Inboxes>::default(), Arc::<AtomicBool>::default());
        let (from, to, stopped) = (Arc::clone(&datagrams), Arc::clone(&inboxes), Arc::clone(&stop));
        spawn_prompt("mdgw-members", move || hand_on(&from, &to, &stopped))?;
        Ok(Self { datagrams, inboxes, stop })
    }

    /// The backend of one group's election, which `inbox` belongs to.
    #[must_use]
    pub fn backend(self: &Arc<Self>, group: GroupId, inbox: &Inbox<Letter>) -> MembershipBackend {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(group, inbox.clone());
        MembershipBackend { all: Arc::clone(self), group }
    }
}

impl Drop for Memberships {
    fn drop(&mut self) {
        self.stop.store(true, Release);
    }
}

fn hand_on(datagrams: &Datagrams, inboxes: &Inboxes, stop: &AtomicBool) {
    while !stop.load(Acquire) {
        let (group, input) = match datagrams.receive(STOP_INTERVAL) {
            Ok(Some(Received::Letter(group, letter))) => (group, Input::Backend(*letter)),
            Ok(Some(Received::Died(group, notice))) => (group, Input::Died(notice)),
            Ok(None) => continue,
            Err(error) => {
                tracing::error!(%error, "election: members are not heard");
                thread::sleep(STOP_INTERVAL);
                continue;
            }
        };
        let inbox = inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&group).cloned();
        if let Some(inbox) = inbox {
            inbox.tell(input);
        }
    }
}

/// The backend of [`Emergent`](super::Emergent) as the election thread sees it. The socket stays open as long as one of
/// them is there.
#[derive(Debug)]
pub struct MembershipBackend {
    all: Arc<Memberships>,
    group: GroupId,
}

impl Backend<Post> for MembershipBackend {
    fn begin(&mut self) {
        tracing::warn!(
            group = self.group.0,
            "election: the backend `emergent` prefers availability: across a split of the network two gateways can lead \
             for a while, and receivers take the higher epoch (allow_split = true)"
        );
    }

    fn ask(&mut self, post: Post) {
        if let Err(error) = self.all.datagrams.send(self.group, &post) {
            tracing::debug!(%error, to = %post.to, "election: a letter was not sent");
        }
    }
}

/// How soon its thread sees that it is to end.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// The longest that UDP carries over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;
const LIMIT_MIN: Duration = Duration::from_micros(1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use mdgw_feeds::identity::Epoch;

    use super::*;
    use crate::{
        auth::KEY_BYTES,
        emergent::message::Message,
        formats::check,
        identity::{Incarnation, NodeId},
        record::tests::member,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn socket(key: u8) -> Datagrams {
        Datagrams::open((Ipv4Addr::LOCALHOST, 0).into(), SharedKey::new(&[key; KEY_BYTES])).unwrap()
    }

    fn letter(address: SocketAddr) -> Box<Letter> {
        let message = Message::Join { nonce: 7 };
        Box::new(Letter { from: member(1, 2), address, to: None, number: 3, message })
    }

    #[test]
    fn letters_are_taken_with_the_key_alone_and_for_their_group() {
        let reader = socket(1);
        let to = reader.address().unwrap();
        for (key, group, taken) in [(1, 5, true), (2, 5, false), (1, 6, true)] {
            let writer = socket(key);
            let letter = letter(writer.address().unwrap());
            writer.send(GroupId(group), &Post { to, letter: letter.clone() }).unwrap();
            let expected = taken.then_some(Received::Letter(GroupId(group), letter));
            assert_eq!(reader.receive(PATIENCE).unwrap(), expected, "key {key}, group {group}");
        }
        assert_eq!(reader.refused(), 1);
    }

    #[test]
    fn a_letter_moved_to_another_group_is_refused() {
        let (reader, writer) = (socket(1), socket(1));
        let forger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = forger.local_addr().unwrap();
        writer.send(GroupId(5), &Post { to, letter: letter(to) }).unwrap();
        let mut bytes = [0; 2_000];
        let length = forger.recv(&mut bytes).unwrap();
        bytes[0] = 6;
        forger.send_to(&bytes[..length], reader.address().unwrap()).unwrap();
        assert_eq!(reader.receive(PATIENCE).unwrap(), None);
        assert_eq!(reader.refused(), 1);
    }

    #[test]
    fn a_sentinels_notice_is_taken_for_its_group() {
        let reader = socket(1);
        let notice = DeathNotice { holder: NodeId(2), incarnation: Incarnation(3), epoch: Epoch::new(4, 2) };
        let writer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sealed = Announcement { group: GroupId(5), notice }.sealed(&SharedKey::new(&[1; KEY_BYTES]));
        writer.send_to(&sealed, reader.address().unwrap()).unwrap();
        assert_eq!(reader.receive(PATIENCE).unwrap(), Some(Received::Died(GroupId(5), notice)));
    }

    #[test]
    fn rubbish_is_counted() {
        let reader = socket(1);
        let writer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for bytes in [&b""[..], b"{}", &[0; 200]] {
            writer.send_to(bytes, reader.address().unwrap()).unwrap();
            assert_eq!(reader.receive(PATIENCE).unwrap(), None);
        }
        assert_eq!(reader.refused(), 3);
    }

    #[test]
    fn a_datagram_written_by_0_1_0_is_read() {
        let reader = socket(1);
        check(
            include_str!("../../../../tests/data/formats/emergent_datagram.hex"),
            &[Received::Letter(GroupId(700), letter((Ipv4Addr::new(192, 0, 2, 1), 7_000).into()))],
            |bytes| reader.read(bytes).unwrap(),
            |received| {
                let Received::Letter(group, letter) = received else { unreachable!() };
                let to = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                reader.send(*group, &Post { to: to.local_addr().unwrap(), letter: letter.clone() }).unwrap();
                let mut bytes = vec![0; 2_000];
                let length = to.recv(&mut bytes).unwrap();
                bytes.truncate(length);
                bytes
            },
        );
    }
}
