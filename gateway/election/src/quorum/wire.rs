//! A message as a datagram. Little-endian.
//!
//! ```text
//!   0 magic "MDGV" u32 │ 4 version u8 │ 5 kind u8 │ 6 from u8 │ 7 to u8 │ 8 group u16
//!  10 body, by kind
//!  -32 tag: HMAC-SHA256 over all before it
//! ```
//! The tag covers sender, recipient and group, so that a message is not valid elsewhere. Body of a request: request id
//! (nonce, number), incarnation, session, lease, fitness, eligibility, then the operation's own fields. Body of a
//! reply: request id, session, highest epoch, promise, verdict. All fields are checked; a datagram that does not fit is
//! refused.

use mdgw_wire::identity::{Epoch, GroupId};

use super::message::{
    ActivePromise, Body, HandOver, Message, Operation, Refusal, Reply, Request, Verdict, VoteRequestId, VoterSession,
};
use crate::{
    auth::{Purpose, SharedKey, TAG_BYTES, Tag},
    fitness::{Eligibility, Fitness},
    identity::{DeathNotice, Incarnation, NodeId},
    record::PeerTimestamp,
};

/// The datagram, with its tag.
#[must_use]
pub(crate) fn encode(message: &Message, key: &SharedKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(192);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, kind_of(&message.body), message.from.0, message.to.0]);
    bytes.extend(message.group.0.to_le_bytes());
    match &message.body {
        Body::Request(request) => write_request(&mut bytes, request),
        Body::Reply(reply) => write_reply(&mut bytes, reply),
    }
    let tag = key.tag(Purpose::Vote, &[&bytes]);
    bytes.extend(tag);
    bytes
}

/// Verifies a datagram's tag first, then everything else.
///
/// # Errors
/// Why the datagram is dropped.
pub(crate) fn decode(datagram: &[u8], key: &SharedKey) -> Result<Message, DecodeError> {
    let (bytes, tag) = datagram.split_last_chunk::<TAG_BYTES>().ok_or(DecodeError::Malformed)?;
    let tag: &Tag = tag;
    if !bytes.starts_with(&MAGIC) {
        return Err(DecodeError::Malformed);
    }
    if !key.is_tag(Purpose::Vote, &[bytes], tag) {
        return Err(DecodeError::Forged);
    }
    let mut reader = Reader(bytes);
    reader.take::<4>().ok_or(DecodeError::Malformed)?;
    if reader.u8().ok_or(DecodeError::Malformed)? != VERSION {
        return Err(DecodeError::Version);
    }
    let message = read(&mut reader).ok_or(DecodeError::Malformed)?;
    if reader.0.is_empty() { Ok(message) } else { Err(DecodeError::Malformed) }
}

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// Not a message of this protocol.
    #[error("not a message of this protocol")]
    Malformed,
    /// Its tag is not valid under our key.
    #[error("authentication failed")]
    Forged,
    /// Of another protocol version.
    #[error("different protocol version")]
    Version,
}

const MAGIC: [u8; 4] = *b"MDGV";
/// 2: a hand-over carries no positions. A node of another version is refused in whole: if it polled and voted here, and
/// refused hand-overs alone, a leader would close its fence for a hand-over that no majority grants.
const VERSION: u8 = 2;

/// Longest datagram that is authenticated: over three times the longest message, so that a longer message of another version
/// is still recognised. Longer datagrams are refused before any work is spent on them.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 512;
/// Room for a datagram of any accepted length, and one byte that shows that a datagram is longer.
pub(crate) type DatagramBuffer = [u8; DATAGRAM_BYTES_MAX + 1];

const POLL: u8 = 1;
const VOTE: u8 = 2;
const RENEW: u8 = 3;
const RELEASE: u8 = 4;
const PREPARE: u8 = 5;
const HAND_OVER: u8 = 6;
const DIED: u8 = 7;
const REPLY: u8 = 16;

const GRANTED: u8 = 0;
const PREPARED: u8 = 1;
/// Refusals follow, in the order of [`REFUSALS`].
const REFUSED: u8 = 2;
const REFUSALS: [Refusal; 8] = [
    Refusal::Session,
    Refusal::PromisedToOther,
    Refusal::OldGeneration,
    Refusal::StartupWait,
    Refusal::Ended,
    Refusal::FitterCandidate,
    Refusal::OldIncarnation,
    Refusal::NotEligible,
];

fn kind_of(body: &Body) -> u8 {
    match body {
        Body::Reply(_) => REPLY,
        Body::Request(request) => match &request.operation {
            Operation::Poll => POLL,
            Operation::Vote(_) => VOTE,
            Operation::Renew(_) => RENEW,
            Operation::Release(_) => RELEASE,
            Operation::Prepare { .. } => PREPARE,
            Operation::HandOver(_) => HAND_OVER,
            Operation::Died(_) => DIED,
        },
    }
}

fn write_request(bytes: &mut Vec<u8>, request: &Request) {
    let Request { request_id, incarnation, session, lease_ns, fitness, eligibility, operation } = request;
    write_numbers(bytes, &[request_id.nonce, request_id.number, incarnation.0, session.0, *lease_ns]);
    let flags =
        [fitness.output_not_received, fitness.log_failing, fitness.stalled, *eligibility == Eligibility::Eligible];
    bytes.push(flags.iter().enumerate().map(|(bit, flag)| u8::from(*flag) << bit).sum());
    bytes.extend(fitness.channels_failed.to_le_bytes());
    bytes.extend(fitness.channels_behind.to_le_bytes());
    match operation {
        Operation::Poll => {}
        Operation::Vote(epoch) | Operation::Renew(epoch) | Operation::Release(epoch) => {
            write_numbers(bytes, &[epoch.0])
        }
        Operation::Prepare { from, to, moves } => write_numbers(bytes, &[from.0, to.0, u64::from(*moves)]),
        Operation::Died(DeathNotice { holder, incarnation, epoch }) => {
            write_numbers(bytes, &[u64::from(holder.0), incarnation.0, epoch.0]);
        }
        Operation::HandOver(hand_over) => write_hand_over(bytes, hand_over),
    }
}

fn write_hand_over(bytes: &mut Vec<u8>, hand_over: &HandOver) {
    let HandOver { from, to, incarnation, lease_ns, request_id, stamp } = hand_over;
    write_numbers(bytes, &[from.0, to.0, incarnation.0, *lease_ns, request_id.nonce, request_id.number, stamp.0]);
}

fn write_reply(bytes: &mut Vec<u8>, reply: &Reply) {
    let Reply { request_id, session, highest_epoch, promise, verdict } = reply;
    write_numbers(bytes, &[request_id.nonce, request_id.number, session.0, highest_epoch.0]);
    // No epoch that was ever voted for is 0.
    let (epoch, incarnation, remaining_ns) = promise.map_or((0, 0, 0), |active_promise| {
        (active_promise.epoch.0, active_promise.incarnation.0, active_promise.remaining_ns)
    });
    write_numbers(bytes, &[epoch, incarnation, remaining_ns]);
    match verdict {
        Verdict::Granted => bytes.push(GRANTED),
        Verdict::Prepared { incarnation, request_id, stamp, lease_ns } => {
            bytes.push(PREPARED);
            write_numbers(bytes, &[incarnation.0, request_id.nonce, request_id.number, stamp.0, *lease_ns]);
        }
        Verdict::Refused(refusal) => {
            let index = REFUSALS.iter().position(|known| known == refusal).and_then(|index| u8::try_from(index).ok());
            bytes.push(REFUSED + index.unwrap_or_else(|| unreachable!("the table has all of them")));
        }
    }
}

fn write_numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn read(reader: &mut Reader<'_>) -> Option<Message> {
    let kind = reader.u8()?;
    let (from, to) = (NodeId(reader.u8()?), NodeId(reader.u8()?));
    let group = GroupId(reader.u16()?);
    let body =
        if kind == REPLY { Body::Reply(read_reply(reader)?) } else { Body::Request(read_request(kind, reader)?) };
    Some(Message { group, from, to, body })
}

fn read_request(kind: u8, reader: &mut Reader<'_>) -> Option<Request> {
    let request_id = VoteRequestId { nonce: reader.u64()?, number: reader.u64()? };
    let incarnation = Incarnation(reader.u64()?);
    let session = VoterSession(reader.u64()?);
    let lease_ns = reader.u64()?;
    let flags = reader.u8().filter(|flags| *flags < 1 << 4)?;
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let fitness = Fitness {
        output_not_received: flag(0),
        log_failing: flag(1),
        stalled: flag(2),
        channels_failed: reader.u16()?,
        channels_behind: reader.u16()?,
    };
    let eligibility = if flag(3) { Eligibility::Eligible } else { Eligibility::Joining };
    let operation = match kind {
        POLL => Operation::Poll,
        VOTE => Operation::Vote(reader.epoch()?),
        RENEW => Operation::Renew(reader.epoch()?),
        RELEASE => Operation::Release(reader.epoch()?),
        PREPARE => {
            Operation::Prepare { from: reader.epoch()?, to: reader.epoch()?, moves: u32::try_from(reader.u64()?).ok()? }
        }
        HAND_OVER => Operation::HandOver(read_hand_over(reader)?),
        DIED => Operation::Died(DeathNotice {
            holder: NodeId(u8::try_from(reader.u64()?).ok()?),
            incarnation: Incarnation(reader.u64()?),
            epoch: Epoch(reader.u64()?),
        }),
        _ => return None,
    };
    Some(Request { request_id, incarnation, session, lease_ns, fitness, eligibility, operation })
}

fn read_hand_over(reader: &mut Reader<'_>) -> Option<HandOver> {
    let (from, to) = (reader.epoch()?, reader.epoch()?);
    let incarnation = Incarnation(reader.u64()?);
    let lease_ns = reader.u64()?;
    let request_id = VoteRequestId { nonce: reader.u64()?, number: reader.u64()? };
    let stamp = PeerTimestamp(reader.u64()?);
    Some(HandOver { from, to, incarnation, lease_ns, request_id, stamp })
}

fn read_reply(reader: &mut Reader<'_>) -> Option<Reply> {
    let request_id = VoteRequestId { nonce: reader.u64()?, number: reader.u64()? };
    let session = VoterSession(reader.u64()?);
    let highest_epoch = Epoch(reader.u64()?);
    let active_promise = ActivePromise {
        epoch: Epoch(reader.u64()?),
        incarnation: Incarnation(reader.u64()?),
        remaining_ns: reader.u64()?,
    };
    let none = ActivePromise { epoch: Epoch(0), incarnation: Incarnation(0), remaining_ns: 0 };
    let promise = (active_promise != none).then_some(active_promise);
    let verdict = match reader.u8()? {
        GRANTED => Verdict::Granted,
        PREPARED => Verdict::Prepared {
            incarnation: Incarnation(reader.u64()?),
            request_id: VoteRequestId { nonce: reader.u64()?, number: reader.u64()? },
            stamp: PeerTimestamp(reader.u64()?),
            lease_ns: reader.u64()?,
        },
        code => Verdict::Refused(*REFUSALS.get(usize::from(code.checked_sub(REFUSED)?))?),
    };
    Some(Reply { request_id, session, highest_epoch, promise, verdict })
}

/// The bytes that are not parsed yet.
struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// An epoch that a candidate can have requested.
    fn epoch(&mut self) -> Option<Epoch> {
        self.u64().map(Epoch).filter(|epoch| epoch.count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::formats::check;

    fn key() -> SharedKey {
        SharedKey::new(&[7; 32])
    }

    fn demands() -> Vec<Operation> {
        let (from, to) = (Epoch::new(4, 1), Epoch::new(5, 2));
        let hand_over = HandOver {
            from,
            to,
            incarnation: Incarnation(6),
            lease_ns: 7,
            request_id: VoteRequestId { nonce: 8, number: 9 },
            stamp: PeerTimestamp(10),
        };
        vec![
            Operation::Poll,
            Operation::Vote(from),
            Operation::Renew(from),
            Operation::Release(from),
            Operation::Prepare { from, to, moves: 3 },
            Operation::HandOver(hand_over),
            Operation::Died(DeathNotice { holder: NodeId(1), incarnation: Incarnation(2), epoch: from }),
        ]
    }

    fn messages() -> Vec<Message> {
        let request_id = VoteRequestId { nonce: 1, number: 2 };
        let request = |operation| {
            Body::Request(Request {
                request_id,
                incarnation: Incarnation(3),
                session: VoterSession(4),
                lease_ns: 5,
                fitness: Fitness { log_failing: true, channels_behind: 300, ..Fitness::default() },
                eligibility: Eligibility::Eligible,
                operation,
            })
        };
        let active_promise = ActivePromise { epoch: Epoch::new(3, 2), incarnation: Incarnation(1), remaining_ns: 9 };
        let reply = |promise, verdict| {
            Body::Reply(Reply {
                request_id,
                session: VoterSession(4),
                highest_epoch: Epoch::new(3, 2),
                promise,
                verdict,
            })
        };
        let prepared =
            Verdict::Prepared { incarnation: Incarnation(1), request_id, stamp: PeerTimestamp(8), lease_ns: 9 };
        let mut bodies: Vec<Body> = demands().into_iter().map(request).collect();
        bodies.extend([reply(None, Verdict::Granted), reply(Some(active_promise), prepared)]);
        bodies.extend(REFUSALS.map(|refusal| reply(Some(active_promise), Verdict::Refused(refusal))));
        let (group, from, to) = (GroupId(300), NodeId(1), NodeId(3));
        bodies.into_iter().map(|body| Message { group, from, to, body }).collect()
    }

    #[test]
    fn messages_round_trip_through_datagrams_that_are_far_below_the_longest_accepted_one() {
        for message in messages() {
            let datagram = encode(&message, &key());
            assert_eq!(decode(&datagram, &key()), Ok(message.clone()), "{message:?}");
            assert!(3 * datagram.len() < DATAGRAM_BYTES_MAX, "{message:?}");
        }
    }

    #[test]
    fn messages_under_another_key_are_refused() {
        for message in messages() {
            assert_eq!(decode(&encode(&message, &SharedKey::new(&[8; 32])), &key()), Err(DecodeError::Forged));
        }
    }

    #[test]
    fn messages_of_version_2_are_read_and_those_of_version_1_are_refused() {
        let mut messages = messages();
        let Message { group, from, to, body: Body::Request(poll) } = messages[0].clone() else { unreachable!() };
        let fit = Fitness::default();
        let fitness = [
            Fitness { output_not_received: true, ..fit },
            Fitness { stalled: true, ..fit },
            Fitness { channels_failed: 400, ..fit },
        ];
        messages.extend(fitness.map(|fitness| {
            let body = Body::Request(Request { fitness, eligibility: Eligibility::Joining, ..poll.clone() });
            Message { group, from, to, body }
        }));
        check(
            include_str!("../../../../tests/data/formats/quorum_messages_2.hex"),
            &messages,
            |bytes| decode(bytes, &key()).unwrap(),
            |message| encode(message, &key()),
        );
        let before = include_str!("../../../../tests/data/formats/quorum_messages.hex");
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        for line in before.lines().filter(|line| !line.starts_with('#')) {
            let datagram: Vec<u8> = line.as_bytes().chunks(2).map(byte).collect();
            assert_eq!(decode(&datagram, &key()), Err(DecodeError::Version));
        }
    }

    proptest! {
        #[test]
        fn a_damaged_datagram_is_refused(which in 0_usize..17, bit in 0_usize..8_000, cut in 0_usize..300) {
            let datagram = encode(&messages()[which], &key());
            let mut damaged = datagram.clone();
            let bit = bit % (8 * damaged.len());
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&damaged, &key()).is_err());
            if cut < datagram.len() {
                prop_assert!(decode(&datagram[..cut], &key()).is_err());
            }
        }

        /// Even a holder of the key causes no panic, and an accepted datagram has one encoding.
        #[test]
        fn a_signed_datagram_is_refused_or_has_one_encoding(which in 0_usize..17, index in 4_usize..400, byte: u8) {
            let datagram = encode(&messages()[which], &key());
            let mut bytes = datagram[..datagram.len() - TAG_BYTES].to_vec();
            let index = index.min(bytes.len() - 1);
            bytes[index] = byte;
            let tag = key().tag(Purpose::Vote, &[&bytes]);
            bytes.extend(tag);
            if let Ok(message) = decode(&bytes, &key()) {
                prop_assert_eq!(encode(&message, &key()), bytes);
            }
        }
    }
}
