//! The sentinel's announcement of a gateway's death, to every voter and candidate: one datagram for each of the
//! gateway's groups, signed with the key of the deployment, sent three times.
//!
//! ```text
//!  0      4        5                16        24       32      40
//!  | MDGD | version | node | 0 | group | incarnation | epoch | HMAC-SHA256 over all before |     little-endian
//! ```
//! A replayed notice is harmless: an incarnation that has ended stays ended.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use mdgw_wire::identity::{Epoch, GroupId};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U64},
};

use crate::{
    auth::{Purpose, SharedKey, TAG_BYTES},
    identity::{DeathNotice, Incarnation, NodeId},
};

/// A death, as announced to one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The group to whose voters and candidates the death is announced.
    pub group: GroupId,
    /// The gateway that died. The notice's epoch is that of the last opening that the sentinel saw, 0 if there was
    /// none.
    pub notice: DeathNotice,
}

/// Bytes of an announcement on the wire.
pub(crate) const ANNOUNCEMENT_BYTES: usize = size_of::<WireAnnouncement>() + TAG_BYTES;

impl Announcement {
    /// Makes the signed datagram.
    #[must_use]
    pub(crate) fn to_datagram(self, key: &SharedKey) -> [u8; ANNOUNCEMENT_BYTES] {
        let DeathNotice { holder, incarnation, epoch } = self.notice;
        let wire = WireAnnouncement {
            magic: MAGIC,
            version: VERSION,
            node: holder.0,
            group: self.group.0.into(),
            incarnation: incarnation.0.into(),
            epoch: epoch.0.into(),
        };
        let mut bytes = [0; ANNOUNCEMENT_BYTES];
        let (body, tag) = bytes.split_at_mut(size_of::<WireAnnouncement>());
        body.copy_from_slice(wire.as_bytes());
        tag.copy_from_slice(&key.tag(Purpose::DeathNotice, &[body]));
        bytes
    }

    /// Parses a datagram; `None` if it is not an announcement, or not signed with that key.
    #[must_use]
    pub fn open(bytes: &[u8], key: &SharedKey) -> Option<Self> {
        let bytes: &[u8; ANNOUNCEMENT_BYTES] = bytes.try_into().ok()?;
        let (body, tag) = bytes.split_last_chunk::<TAG_BYTES>()?;
        let wire = WireAnnouncement::ref_from_bytes(body).ok()?;
        if wire.magic != MAGIC || wire.version != VERSION || !key.is_tag(Purpose::DeathNotice, &[body], tag) {
            return None;
        }
        let notice = DeathNotice {
            holder: NodeId(wire.node),
            incarnation: Incarnation(wire.incarnation.get()),
            epoch: Epoch(wire.epoch.get()),
        };
        Some(Self { group: GroupId(wire.group.get()), notice })
    }

    /// Whether a datagram has an announcement's magic number, so that one socket can serve several kinds.
    #[must_use]
    pub fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireAnnouncement {
    magic: [u8; 4],
    version: u8,
    node: u8,
    group: U16,
    incarnation: U64,
    epoch: U64,
}

const MAGIC: [u8; 4] = *b"MDGD";
const VERSION: u8 = 1;

/// Sends announcements. Sockets and key are prepared before any death.
#[derive(Debug)]
pub(crate) struct Announcer {
    key: SharedKey,
    recipients: Vec<SocketAddr>,
    v4: UdpSocket,
    /// Socket for IPv6 recipients; `None` if all recipients have IPv4 addresses.
    v6: Option<UdpSocket>,
}

impl Announcer {
    /// Opens the sockets that reach `recipients`.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub(crate) fn new(key: SharedKey, recipients: Vec<SocketAddr>) -> io::Result<Self> {
        let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        v4.set_nonblocking(true)?;
        let v6 = if recipients.iter().any(SocketAddr::is_ipv6) {
            let v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            v6.set_nonblocking(true)?;
            Some(v6)
        } else {
            None
        };
        Ok(Self { key, recipients, v4, v6 })
    }

    /// Sends each announcement once to each recipient. Returns how many sends the system refused; a repetition may
    /// succeed.
    pub(crate) fn announce(&self, announcements: impl IntoIterator<Item = Announcement>) -> usize {
        let mut refused = 0;
        for announcement in announcements {
            let bytes = announcement.to_datagram(&self.key);
            for address in &self.recipients {
                let socket = if address.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() };
                let is_sent = socket.is_some_and(|socket| socket.send_to(&bytes, address).is_ok());
                refused += usize::from(!is_sent);
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use mdgw_keys::KEY_BYTES;
    use proptest::prelude::*;

    use super::*;
    use crate::formats::check;

    fn announcement() -> Announcement {
        let notice = DeathNotice { holder: NodeId(2), incarnation: Incarnation(9), epoch: Epoch::new(5, 2) };
        Announcement { group: GroupId(700), notice }
    }

    fn key(byte: u8) -> SharedKey {
        SharedKey::new(&[byte; KEY_BYTES])
    }

    #[test]
    fn an_announcement_is_accepted_only_with_its_key() {
        let bytes = announcement().to_datagram(&key(1));
        assert!(Announcement::has_magic(&bytes));
        assert_eq!(Announcement::open(&bytes, &key(1)), Some(announcement()));
        assert_eq!(Announcement::open(&bytes, &key(2)), None);
        assert_eq!(Announcement::open(&bytes[1..], &key(1)), None);
    }

    #[test]
    fn a_tag_of_another_purpose_is_refused() {
        let mut bytes = announcement().to_datagram(&key(1));
        let (body, tag) = bytes.split_at_mut(size_of::<WireAnnouncement>());
        tag.copy_from_slice(&key(1).tag(Purpose::Vote, &[body]));
        assert_eq!(Announcement::open(&bytes, &key(1)), None);
    }

    #[test]
    fn an_announcement_reaches_every_recipient() {
        let listeners = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let recipients = listeners.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let announcer = Announcer::new(key(1), recipients).unwrap();
        assert_eq!(announcer.announce([announcement()]), 0);
        for listener in listeners {
            let mut bytes = [0; 100];
            let length = listener.recv(&mut bytes).unwrap();
            assert_eq!(Announcement::open(&bytes[..length], &key(1)), Some(announcement()));
        }
    }

    #[test]
    fn an_announcement_written_by_0_1_0_is_read() {
        let notice = DeathNotice { epoch: Epoch(0), ..announcement().notice };
        check(
            include_str!("../../../tests/data/formats/announcement.hex"),
            &[announcement(), Announcement { notice, ..announcement() }],
            |bytes| Announcement::open(bytes, &key(1)).unwrap(),
            |announcement| announcement.to_datagram(&key(1)).to_vec(),
        );
    }

    proptest! {
        #[test]
        fn a_damaged_announcement_is_refused(index in 0..ANNOUNCEMENT_BYTES, bit in 0_u8..8) {
            let mut bytes = announcement().to_datagram(&key(1));
            bytes[index] ^= 1_u8 << bit;
            prop_assert_eq!(Announcement::open(&bytes, &key(1)), None);
        }
    }
}
