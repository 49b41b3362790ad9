//! Tag of a published packet: proof that a holder of the key sent the packet as it is.
//!
//! ```text
//!  0        64       64 + payload_bytes    80 + payload_bytes
//!  | header | frames … | tag                |
//! ```
//! A packet with a tag has [`PacketFlags::TAGGED`]. The tag is a trailer, so that the header's fields stay where the
//! kernel fence reads them. It is the first half of an HMAC-SHA-256 over a label, the header and the frames. A code with a
//! nonce would be quicker, but two heartbeats of one position would repeat the nonce.
//!
//! Published packets and answers of a retransmission service have different labels, and the tag of an answer also covers the
//! request's nonce. Without the label, a requester could get a tag for a position of its choice, and publish it. Without the nonce,
//! an answer to one receiver could be sent to another.
//!
//! The tag does not prove when a packet was sent: a recorded packet stays valid. What a repeated packet can do is limited by what a
//! receiver does with any packet: a lower epoch is stale, and a position below the watermark is a duplicate. Every holder of
//! a key can make tags, so a consumer that holds the key could publish.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::packet::{PACKET_HEADER_BYTES, PACKET_MAGIC, PACKET_VERSION, PacketFlags, PacketHeader};
use crate::drop_reason::DropReason;

use zerocopy::FromBytes as _;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Bytes of a key.
const TAG_KEY_BYTES: usize = 32;

/// Key of packet tags. `Debug` does not print it.
#[derive(Clone)]
pub struct TagKey {
    /// Keyed, with the label already in it: for published packets, and for answers.
    published: Hmac<Sha256>,
    answer: Hmac<Sha256>,
}

/// What a packet is for. A tag for one use is not valid for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagUse {
    /// Sent on the output lines.
    Published,
    /// Sent by a retransmission service to the requester whose request had this nonce.
    Answer {
        /// See [`RequestPacket::nonce`](super::request::RequestPacket::nonce).
        nonce: u64,
    },
}

impl TagKey {
    /// Makes the key from its raw bytes.
    #[must_use]
    pub fn new(bytes: &[u8; TAG_KEY_BYTES]) -> Self {
        let labelled = |label: &[u8; 16]| -> Hmac<Sha256> {
            let mut mac: Hmac<Sha256> =
                Hmac::new_from_slice(bytes).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
            mac.update(label);
            mac
        };
        Self { published: labelled(PUBLISHED_LABEL), answer: labelled(ANSWER_LABEL) }
    }

    fn labelled(&self, tag_use: TagUse) -> Hmac<Sha256> {
        match tag_use {
            TagUse::Published => self.published.clone(),
            TagUse::Answer { nonce } => {
                let mut mac = self.answer.clone();
                mac.update(&nonce.to_le_bytes());
                mac
            }
        }
    }

    /// The tag of a packet with this header and these frames. The header must have [`PacketFlags::TAGGED`].
    #[must_use]
    pub fn tag(&self, tag_use: TagUse, header: &[u8; PACKET_HEADER_BYTES], frames: &[u8]) -> [u8; TAG_BYTES] {
        let mut mac = self.labelled(tag_use);
        mac.update(header);
        mac.update(frames);
        let whole: [u8; 2 * TAG_BYTES] = mac.finalize().into_bytes().into();
        *whole.first_chunk().unwrap_or_else(|| unreachable!("it is twice as long"))
    }

    /// Whether `tag` is the tag of a packet with this header and these frames. Takes the same time for every tag.
    fn is_tag(&self, tag_use: TagUse, packet: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        let mut mac = self.labelled(tag_use);
        mac.update(packet);
        mac.verify_truncated_left(tag).is_ok()
    }
}

impl std::fmt::Debug for TagKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TagKey")
    }
}

/// Which packets a receiver accepts.
#[derive(Clone, Debug, Default)]
pub struct TagPolicy {
    /// A packet must have a tag under one of these keys. Without a key every packet is accepted.
    pub keys: Vec<TagKey>,
    /// Whether packets without a tag are accepted although there are keys: while a deployment changes to tags.
    pub accepts_untagged: bool,
}

impl TagPolicy {
    /// Checks a datagram before anything of it is believed.
    ///
    /// # Errors
    /// With keys:
    /// - [`DropReason::HeaderTruncated`], [`DropReason::ProtocolMismatch`]: no published packet.
    /// - [`DropReason::TagMissing`]: no tag.
    /// - [`DropReason::TagInvalid`]: the tag is not of these bytes and this use under any of the keys.
    pub fn check(&self, tag_use: TagUse, datagram: &[u8]) -> Result<(), DropReason> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let (header, rest) = PacketHeader::ref_from_prefix(datagram).map_err(|_| DropReason::HeaderTruncated)?;
        if header.magic.get() != PACKET_MAGIC || header.version != PACKET_VERSION {
            return Err(DropReason::ProtocolMismatch);
        }
        if !PacketFlags(header.flags).contains(PacketFlags::TAGGED) {
            return if self.accepts_untagged { Ok(()) } else { Err(DropReason::TagMissing) };
        }
        let Some((packet, tag)) = datagram.split_last_chunk().filter(|_| rest.len() >= TAG_BYTES) else {
            return Err(DropReason::TagInvalid);
        };
        let is_valid = self.keys.iter().any(|key| key.is_tag(tag_use, packet, tag));
        if is_valid { Ok(()) } else { Err(DropReason::TagInvalid) }
    }
}

/// Sixteen bytes, like the labels of the gateways' other messages, so that no message has a valid tag under two labels.
const PUBLISHED_LABEL: &[u8; 16] = b"mdgw packet    1";
const ANSWER_LABEL: &[u8; 16] = b"mdgw answer    1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
        published::packet::{PacketMeta, parse_packet},
        time::TradingDate,
    };
    use zerocopy::IntoBytes as _;

    fn header(frame_count: u16, payload_bytes: u16) -> [u8; PACKET_HEADER_BYTES] {
        let date = TradingDate::from_yyyymmdd(20_240_102).unwrap();
        let meta = PacketMeta {
            flags: PacketFlags::TAGGED,
            group: GroupId(1),
            channel: ChannelId(2),
            epoch: Epoch::new(3, 4),
            session: Session { feed: Feed::NasdaqItch, date, restart: 5 },
            first: Sequence(6),
            next: Sequence(7),
            send_time_ns: 8,
        };
        PacketHeader::new(&meta, frame_count, payload_bytes).as_bytes().try_into().unwrap()
    }

    fn key(byte: u8) -> TagKey {
        TagKey::new(&[byte; TAG_KEY_BYTES])
    }

    fn check(keys: &[u8], accepts_untagged: bool, datagram: &[u8]) -> Result<(), DropReason> {
        let keys = keys.iter().map(|byte| key(*byte)).collect();
        TagPolicy { keys, accepts_untagged }.check(TagUse::Published, datagram)
    }

    /// A state frame: 8 bytes after a frame's header of 32.
    fn state_frame() -> Vec<u8> {
        let mut frame = vec![0; 40];
        frame[..8].copy_from_slice(&7_u64.to_le_bytes());
        frame[20] = 8;
        frame[24] = crate::frame::FrameKind::State as u8;
        frame
    }

    fn tagged(key: &TagKey, frames: &[u8]) -> Vec<u8> {
        let header = header(u16::from(!frames.is_empty()), u16::try_from(frames.len()).unwrap());
        [&header[..], frames, &key.tag(TagUse::Published, &header, frames)].concat()
    }

    #[test]
    fn tags_match_the_published_algorithm() {
        // Label (and "00000000" for the nonce), 64 bytes of 0x2a and "abc", by: openssl dgst -sha256 -mac HMAC -macopt hexkey:0b…0b
        for (tag_use, vector) in
            [(TagUse::Published, PUBLISHED_VECTOR), (TagUse::Answer { nonce: 0x3030_3030_3030_3030 }, ANSWER_VECTOR)]
        {
            let tag = key(0x0b).tag(tag_use, &[0x2a; PACKET_HEADER_BYTES], b"abc");
            let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, vector);
        }
    }

    #[test]
    fn a_tagged_packet_is_read_as_the_same_packet_without_a_tag() {
        for frames in [Vec::new(), state_frame()] {
            let datagram = tagged(&key(1), &frames);
            let packet = parse_packet(&datagram).unwrap();
            assert!(packet.is_tagged && packet.body == frames && packet.meta.flags == PacketFlags::default());
            let mut untagged = datagram[..datagram.len() - TAG_BYTES].to_vec();
            untagged[5] = 0;
            let same = parse_packet(&untagged).unwrap();
            assert_eq!((same.is_tagged, same.meta, same.body), (false, packet.meta, packet.body));
        }
    }

    #[test]
    fn a_changed_bit_or_length_or_another_key_is_refused() {
        let datagram = tagged(&key(1), &state_frame());
        assert_eq!(check(&[1], false, &datagram), Ok(()));
        assert_eq!(check(&[2], false, &datagram), Err(DropReason::TagInvalid));
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let reason = check(&[1], false, &changed).unwrap_err();
            let expected = match bit / 8 {
                0..=4 => DropReason::ProtocolMismatch,
                5 if bit % 8 == 4 => DropReason::TagMissing,
                _ => DropReason::TagInvalid,
            };
            assert_eq!(reason, expected, "bit {bit}");
        }
        for length in 0..datagram.len() {
            let reason = check(&[1], false, &datagram[..length]).unwrap_err();
            let expected =
                if length < PACKET_HEADER_BYTES { DropReason::HeaderTruncated } else { DropReason::TagInvalid };
            assert_eq!(reason, expected, "{length} bytes");
        }
    }

    #[test]
    fn a_packet_without_a_tag_needs_permission() {
        let mut datagram = header(0, 0).to_vec();
        datagram[5] = 0;
        assert_eq!(check(&[], false, &datagram), Ok(()));
        assert_eq!(check(&[1], false, &datagram), Err(DropReason::TagMissing));
        assert_eq!(check(&[1], true, &datagram), Ok(()));
        datagram[5] = PacketFlags::TAGGED.0;
        assert_eq!(check(&[1], true, &datagram), Err(DropReason::TagInvalid), "it claims a tag");
    }

    #[test]
    fn a_tag_is_valid_for_one_use_and_one_request() {
        let header = header(0, 0);
        let policy = TagPolicy { keys: vec![key(1)], accepts_untagged: false };
        let uses = [TagUse::Published, TagUse::Answer { nonce: 0 }, TagUse::Answer { nonce: 1 }];
        for made in uses {
            let datagram = [&header[..], &key(1).tag(made, &header, &[])].concat();
            for used in uses {
                let expected = if used == made { Ok(()) } else { Err(DropReason::TagInvalid) };
                assert_eq!(policy.check(used, &datagram), expected, "{made:?} {used:?}");
            }
        }
    }

    #[test]
    fn every_key_of_a_receiver_is_accepted() {
        for sender in [1, 2] {
            assert_eq!(check(&[1, 2], false, &tagged(&key(sender), &[])), Ok(()));
        }
        assert_eq!(check(&[1, 2], false, &tagged(&key(3), &[])), Err(DropReason::TagInvalid));
    }

    const PUBLISHED_VECTOR: &str = "0287b88359757508cef7e3b119c8704f";
    const ANSWER_VECTOR: &str = "f7d3ad001ad8e73100fdd299290bd003";
}
