//! The junk: what an outsider can write who has seen the protocols and the traffic, but holds no key.

use mdgw_captures::random::Random;
use mdgw_feeds::{
    identity::{ChannelId, Epoch, GroupId, Sequence, Session},
    published::{
        packet::{PacketFlags, PacketMeta, write_packet},
        request::{RequestKind, ServiceRequest},
        tag::TAG_BYTES,
    },
    transport::moldudp64::{MoldSession, PacketWriter},
};
use zerocopy::IntoBytes as _;

use super::FloodTarget;
use crate::{
    pair::{CHANNEL, GROUP},
    testbed::Testbed,
};

/// A datagram.
#[derive(Clone, Debug)]
pub(super) struct Junk {
    pub(super) bytes: Vec<u8>,
    pub(super) source: Source,
    /// Reasons for which it may be refused. None: it is counted as normal.
    pub(super) reasons: &'static [&'static str],
}

/// The address that a datagram comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The flooder's own.
    Own,
    /// A gateway that is a peer of the recipient.
    Peer,
    /// That host of the network, by the last byte of its address.
    Other(u8),
}

/// What an outsider on the network has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knowledge {
    /// The venue's session.
    venue_session: MoldSession,
    /// The session and the last sequence that were published, and under which epoch.
    published: (Session, u64),
    epoch: Epoch,
    /// Whether published packets have tags.
    has_tags: bool,
}

impl Knowledge {
    pub(super) fn of(testbed: &Testbed) -> Self {
        let mut venue_session = MoldSession::default();
        venue_session.copy_from_slice(testbed.venue_session().as_bytes());
        let published = testbed.receivers[0].last_message_id().expect("something has been delivered");
        Self { venue_session, published, epoch: testbed.epoch(), has_tags: testbed.plan.has_packet_tags }
    }
}

/// Makes the junk of one target.
#[derive(Clone, Copy, Debug)]
pub(super) struct JunkMaker {
    target: FloodTarget,
    knowledge: Knowledge,
    forges_addresses: bool,
}

impl JunkMaker {
    pub(super) fn new(target: FloodTarget, knowledge: Knowledge, forges_addresses: bool) -> Self {
        Self { target, knowledge, forges_addresses }
    }

    /// The next datagram. Kinds take turns.
    pub(super) fn make(&mut self, turn: u64, random: &mut Random) -> Junk {
        match self.target {
            FloodTarget::FeedGroups => self.feed(turn, random),
            FloodTarget::OutputGroups => self.output(turn, random),
            FloodTarget::Retransmission => self.request(turn, random),
            FloodTarget::PairLink => self.link(turn, random),
            FloodTarget::Votes => self.vote(turn, random),
        }
    }

    fn own(bytes: Vec<u8>, reasons: &'static [&'static str]) -> Junk {
        Junk { bytes, source: Source::Own, reasons }
    }

    /// Nothing here is a packet that the venue could have sent next: a forger who sends that is believed, since the feed has no
    /// authentication.
    fn feed(self, turn: u64, random: &mut Random) -> Junk {
        let venue = self.knowledge.venue_session;
        match turn % 6 {
            0 => Self::own(bytes(random, 1, 19), &["header_truncated"]),
            1 => Self::own(bytes(random, 40, 1_400), ANY_FRAMING),
            // The header announces more messages than there are.
            2 => {
                let mut packet = feed_packet(venue, 1 + random.below(1 << 20), random);
                packet[18..20].copy_from_slice(&9_u16.to_be_bytes());
                Self::own(packet, &["message_truncated", "count_mismatch"])
            }
            3 => {
                let mut session = MoldSession::default();
                session.fill_with(|| b'A' + u8::try_from(random.below(26)).unwrap_or_default());
                Self::own(feed_packet(session, 2 + random.below(1 << 20), random), &["session_unconfirmed"])
            }
            4 => Self::own(feed_packet(venue, FAR_AHEAD + random.below(1 << 40), random), &["sequence_jump"]),
            // Copies of what has been delivered are normal: the other line sends them too.
            _ => Self::own(feed_packet(venue, 1, random), &[]),
        }
    }

    fn output(self, turn: u64, random: &mut Random) -> Junk {
        let kinds = if self.knowledge.has_tags { 5 } else { 3 };
        match turn % kinds {
            0 => Self::own(bytes(random, 1, 63), &["header_truncated"]),
            1 => Self::own(bytes(random, 80, 1_400), &["protocol_mismatch"]),
            2 => Self::own(self.published_packet(GroupId(999), ChannelId(9), random), &["channel_unknown"]),
            3 => Self::own(self.published_packet(GROUP, CHANNEL, random), &["tag_missing"]),
            _ => {
                let mut packet = self.published_packet(GROUP, CHANNEL, random);
                packet[FLAGS_OFFSET] |= PacketFlags::TAGGED.0;
                packet.extend(bytes(random, TAG_BYTES, TAG_BYTES));
                Self::own(packet, &["tag_invalid"])
            }
        }
    }

    /// A heartbeat of the present leader, somewhat ahead of what was published.
    fn published_packet(self, group: GroupId, channel: ChannelId, random: &mut Random) -> Vec<u8> {
        let Knowledge { published: (session, last), epoch, .. } = self.knowledge;
        let next = Sequence(last + random.below(1_000));
        let (first, flags) = (next, PacketFlags::HEARTBEAT);
        let meta = PacketMeta { flags, group, channel, epoch, session, first, next, send_time_ns: 1 };
        let mut packet = vec![0; 256];
        let length = write_packet(&meta, &[], &mut packet).expect("a heartbeat fits");
        packet.truncate(length);
        packet
    }

    fn request(self, turn: u64, random: &mut Random) -> Junk {
        let request = |channel, next| {
            let kind = RequestKind::Range;
            let (first, next) = (Sequence(1), Sequence(next));
            let request = ServiceRequest { kind, group: GROUP, channel, session: None, first, next, nonce: 7 };
            request.to_packet().as_bytes().to_vec()
        };
        match turn % 50 {
            // Everything that there is, from the first message on.
            0 => Self::own(request(CHANNEL, u64::MAX >> 1), &[]),
            turn if turn % 4 == 0 => Self::own(request(ChannelId(99), 2), &["unknown_channel"]),
            turn if turn % 4 == 1 && self.forges_addresses => {
                let last = FORGED_HOST_MIN + u8::try_from(random.below(FORGED_HOSTS)).unwrap_or_default();
                Junk { source: Source::Other(last), ..Self::own(bytes(random, 1, 300), &["malformed"]) }
            }
            _ => Self::own(bytes(random, 1, 300), &["malformed"]),
        }
    }

    fn link(self, turn: u64, random: &mut Random) -> Junk {
        let kinds = if self.forges_addresses { 4 } else { 1 };
        let of_peer = |bytes, reasons| Junk { source: Source::Peer, ..Self::own(bytes, reasons) };
        match turn % kinds {
            0 => Self::own(bytes(random, 1, 1_400), &["unknown_source"]),
            1 => of_peer(bytes(random, 60, 1_400), &["forged", "no_connection"]),
            2 => of_peer(notice(random), &["forged"]),
            _ => of_peer(bytes(random, 5_000, 5_000), &["too_long"]),
        }
    }

    fn vote(self, turn: u64, random: &mut Random) -> Junk {
        let kinds = if self.forges_addresses { 5 } else { 4 };
        match turn % kinds {
            0 => Self::own(bytes(random, 1, 400), &["malformed"]),
            1 => Self::own([&b"MDGV"[..], &bytes(random, 1_400, 1_400)].concat(), &["too_long"]),
            2 => Self::own(vote(random), &["forged"]),
            3 => Self::own(notice(random), &["forged"]),
            _ => Junk { source: Source::Peer, ..Self::own(vote(random), &["forged"]) },
        }
    }
}

/// Random bytes, with a length between `min` and `max`.
fn bytes(random: &mut Random, min: usize, max: usize) -> Vec<u8> {
    let length = min + usize::try_from(random.below((max - min + 1) as u64)).unwrap_or_default();
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// A packet of a line with one message of random bytes.
fn feed_packet(session: MoldSession, first: u64, random: &mut Random) -> Vec<u8> {
    let mut packet = Vec::new();
    let mut writer = PacketWriter::begin(&mut packet, session, Sequence(first), 1_400);
    assert!(writer.push(&bytes(random, 20, 1_000)), "a message fits");
    let _one = writer.finish();
    packet
}

/// A vote with everything but a valid tag.
fn vote(random: &mut Random) -> Vec<u8> {
    [&b"MDGV\x02\x02\x01\x02"[..], &bytes(random, 120, 120)].concat()
}

/// A sentinel's notice with everything but a valid tag.
fn notice(random: &mut Random) -> Vec<u8> {
    [&b"MDGD\x01\x01\x01\x00"[..], &bytes(random, 48, 48)].concat()
}

/// Why random bytes are no packet of a line; by chance they are a heartbeat of an unknown session.
const ANY_FRAMING: &[&str] = &[
    "count_mismatch",
    "message_truncated",
    "trailing_bytes",
    "sequence_invalid",
    "length_mismatch",
    "session_unconfirmed",
];
/// Further ahead than a packet may be without others that it continues.
const FAR_AHEAD: u64 = 1 << 40;
/// Where the flags are in a published packet's header.
const FLAGS_OFFSET: usize = 5;
const FORGED_HOST_MIN: u8 = 100;
const FORGED_HOSTS: u64 = 100;
