//! Letters as signed datagrams: one socket for a group. Deaths that sentinels announce come by the same socket.
//!
//! ```text
//!   | letter: JSON | HMAC-SHA256 over group and letter |
//! ```

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::Duration,
};

use mdgw_feeds::identity::GroupId;

use super::{Post, message::Letter};
use crate::{
    election::{
        auth::{Purpose, SharedKey, TAG_BYTES},
        core::Input,
        driver::{Backend, Inbox},
        peer::DeathNotice,
    },
    sentinel::announcement::Announcement,
};

/// The socket of one group's membership.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    key: SharedKey,
    group: GroupId,
    refused: AtomicU64,
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A letter.
    Letter(Box<Letter>),
    /// A sentinel's notice for this group.
    Died(DeathNotice),
}

impl Datagrams {
    /// Opens the socket.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn open(listen: SocketAddr, key: SharedKey, group: GroupId) -> io::Result<Self> {
        Ok(Self { socket: UdpSocket::bind(listen)?, key, group, refused: AtomicU64::new(0) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a letter. A refusal of the network is none of ours: the next heartbeat may get through.
    ///
    /// # Errors
    /// As sendto(2).
    pub fn send(&self, post: &Post) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(&post.letter).map_err(io::Error::other)?;
        let tag = self.key.tag(Purpose::Membership, &[&self.group.0.to_le_bytes(), &bytes]);
        bytes.extend_from_slice(&tag);
        self.socket.send_to(&bytes, post.to).map(drop)
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

    /// Datagrams that were not signed with the key for this group, or are no letters.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn read(&self, bytes: &[u8]) -> Option<Received> {
        if Announcement::is_one(bytes) {
            let announcement = Announcement::open(bytes, &self.key)?;
            return (announcement.group == self.group).then_some(Received::Died(announcement.notice));
        }
        let (text, tag) = bytes.split_last_chunk::<TAG_BYTES>()?;
        if !self.key.is_tag(Purpose::Membership, &[&self.group.0.to_le_bytes(), text], tag) {
            return None;
        }
        serde_json::from_slice(text).ok().map(|letter| Received::Letter(Box::new(letter)))
    }
}

/// The backend of [`Emergent`](super::Emergent) as the election thread sees it: sends at once, and receives on a thread
/// of its own.
#[derive(Debug)]
pub struct MembershipBackend {
    datagrams: Arc<Datagrams>,
    inbox: Inbox<Letter>,
    stop: Arc<AtomicBool>,
}

impl MembershipBackend {
    /// Over that socket, telling that election.
    #[must_use]
    pub fn new(datagrams: Arc<Datagrams>, inbox: Inbox<Letter>) -> Self {
        Self { datagrams, inbox, stop: Arc::default() }
    }
}

impl Backend<Post> for MembershipBackend {
    fn begin(&mut self) {
        tracing::warn!(
            "election: the backend `emergent` prefers availability: across a split of the network two gateways can lead \
             for a while, and receivers take the higher epoch (allow_split = true)"
        );
        let (datagrams, inbox, stop) = (Arc::clone(&self.datagrams), self.inbox.clone(), Arc::clone(&self.stop));
        let receiving = thread::Builder::new().name("mdgw-members".to_owned()).spawn(move || {
            while !stop.load(Acquire) {
                match datagrams.receive(STOP_INTERVAL) {
                    Ok(Some(Received::Letter(letter))) => inbox.tell(Input::Backend(*letter)),
                    Ok(Some(Received::Died(notice))) => inbox.tell(Input::Died(notice)),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(%error, "election: members are not heard");
                        thread::sleep(STOP_INTERVAL);
                    }
                }
            }
        });
        if let Err(error) = receiving {
            tracing::error!(%error, "election: no thread to hear other members");
        }
    }

    fn ask(&mut self, post: Post) {
        if let Err(error) = self.datagrams.send(&post) {
            tracing::debug!(%error, to = %post.to, "election: a letter was not sent");
        }
    }
}

impl Drop for MembershipBackend {
    fn drop(&mut self) {
        self.stop.store(true, Release);
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
    use crate::election::{
        auth::KEY_BYTES,
        emergent::message::Message,
        identity::{Incarnation, NodeId},
        record::tests::member,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn socket(key: u8, group: u16) -> Datagrams {
        Datagrams::open((Ipv4Addr::LOCALHOST, 0).into(), SharedKey::new(&[key; KEY_BYTES]), GroupId(group)).unwrap()
    }

    fn letter(address: SocketAddr) -> Box<Letter> {
        let message = Message::Join { nonce: 7 };
        Box::new(Letter { from: member(1, 2), address, to: None, number: 3, message })
    }

    #[test]
    fn letters_are_taken_with_the_groups_key_alone() {
        let reader = socket(1, 5);
        let to = reader.address().unwrap();
        for (key, group, taken) in [(1, 5, true), (2, 5, false), (1, 6, false)] {
            let writer = socket(key, group);
            let letter = letter(writer.address().unwrap());
            writer.send(&Post { to, letter: letter.clone() }).unwrap();
            let expected = taken.then_some(Received::Letter(letter));
            assert_eq!(reader.receive(PATIENCE).unwrap(), expected, "key {key}, group {group}");
        }
        assert_eq!(reader.refused(), 2);
    }

    #[test]
    fn a_sentinels_notice_is_taken_for_its_group() {
        let reader = socket(1, 5);
        let notice = DeathNotice { holder: NodeId(2), incarnation: Incarnation(3), epoch: Epoch::new(4, 2) };
        let writer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for (group, expected) in [(5, Some(Received::Died(notice))), (6, None)] {
            let sealed = Announcement { group: GroupId(group), notice }.sealed(&SharedKey::new(&[1; KEY_BYTES]));
            writer.send_to(&sealed, reader.address().unwrap()).unwrap();
            assert_eq!(reader.receive(PATIENCE).unwrap(), expected);
        }
    }

    #[test]
    fn rubbish_is_counted() {
        let reader = socket(1, 5);
        let writer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for bytes in [&b""[..], b"{}", &[0; 200]] {
            writer.send_to(bytes, reader.address().unwrap()).unwrap();
            assert_eq!(reader.receive(PATIENCE).unwrap(), None);
        }
        assert_eq!(reader.refused(), 3);
    }
}
