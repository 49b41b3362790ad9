//! One content for each name, whoever said it and however often; or none, whoever said that there is none.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use mdgw_feeds::{
    frame::{FrameFlags, FrameHeader, FrameKind, GapBody},
    identity::{Epoch, Sequence, Session},
    published::packet::{Packet, PacketFlags},
};
use zerocopy::FromBytes as _;

use super::{
    coverage::{PartPosition, position, sequence},
    epochs::epoch_text,
    finding::{Findings, Place, Promise},
};

/// Contents of one channel.
#[derive(Debug, Default)]
pub(super) struct Contents {
    sessions: BTreeMap<Session, Names>,
    /// Different names.
    pub(super) names: u64,
    /// Names said again with the same content.
    pub(super) said_again: u64,
    /// Names whose content is forgotten.
    pub(super) forgotten: u64,
}

/// Of one session.
#[derive(Debug, Default)]
struct Names {
    said: BTreeMap<PartPosition, Said>,
    /// Sequences that were passed over without a word, by the first of them: disjoint, not touching.
    silent: BTreeMap<u64, Silence>,
}

/// Up to where nothing was said, and who said nothing first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    pub(super) next: u64,
    pub(super) epoch: Epoch,
    pub(super) place: Place,
}

/// What was said under a name, and who said it first.
#[derive(Clone, Copy, Debug)]
struct Said {
    hash: u64,
    epoch: Epoch,
    place: Place,
}

impl Contents {
    /// Compares each message of the packet with what was said under its name before.
    pub(super) fn compare(&mut self, packet: &Packet<'_>, place: Place, names_max: usize, findings: &mut Findings) {
        let meta = &packet.meta;
        let Names { said: names, silent } = self.sessions.entry(meta.session).or_default();
        for_each_silence(packet, |first, next| {
            let of_range = position(Sequence(first))..position(Sequence(next));
            match names.range(of_range).next() {
                None => pass_over(silent, first, Silence { next, epoch: meta.epoch, place }),
                Some((name, said)) => {
                    findings.note(Promise::OneContent, place, || {
                        Self::contradiction(packet, *name, ["nothing", "records"], (said.epoch, said.place))
                    });
                }
            }
        });
        for (header, body) in packet.frames().filter(|(header, _)| says_something(header)) {
            let name = position(Sequence(header.sequence.get())) + u64::from(header.part.get());
            let passed_over = silent.range(..=header.sequence.get()).next_back();
            if let Some((_, silence)) = passed_over.filter(|(_, silence)| silence.next > header.sequence.get()) {
                findings.note(Promise::OneContent, place, || {
                    Self::contradiction(packet, name, ["records", "nothing"], (silence.epoch, silence.place))
                });
            }
            let said = Said { hash: content_hash(header, body), epoch: meta.epoch, place };
            match names.entry(name) {
                Entry::Vacant(vacant) => {
                    vacant.insert(said);
                    self.names += 1;
                }
                Entry::Occupied(first) if first.get().hash == said.hash => self.said_again += 1,
                Entry::Occupied(first) => {
                    let first = *first.get();
                    findings.note(Promise::OneContent, place, || {
                        Self::contradiction(packet, name, ["other records", "records"], (first.epoch, first.place))
                    });
                }
            }
        }
        while names.len() > names_max {
            names.pop_first();
            self.forgotten += 1;
        }
        while silent.len() > names_max {
            silent.pop_first();
        }
    }

    /// A packet says something else of a name than was said before, in that epoch at that place.
    fn contradiction(packet: &Packet<'_>, name: PartPosition, what: [&str; 2], before: (Epoch, Place)) -> String {
        let [says, said] = what;
        let meta = &packet.meta;
        format!(
            "channel {} {}, sequence {} part {}: {} says {says}, {} said {said} at {}",
            meta.channel.0,
            meta.session,
            sequence(name),
            name - position(Sequence(sequence(name))),
            epoch_text(meta.epoch),
            epoch_text(before.0),
            before.1.number
        )
    }
}

/// A doubt without records says no more than silence does: whose books are sound may have nothing to tell there.
fn says_something(header: &FrameHeader) -> bool {
    let is_doubt_alone = header.record_count.get() == 0 && FrameFlags(header.flags).contains(FrameFlags::SUSPECT);
    header.kind == FrameKind::Message as u8 && !is_doubt_alone
}

/// Sequences that the packet settles without a frame: `[first, next)`.
fn for_each_silence(packet: &Packet<'_>, mut is_silent: impl FnMut(u64, u64)) {
    let meta = &packet.meta;
    let has = |flag| meta.flags.contains(flag);
    // The range of definitions, and of an answer's end, is none of messages.
    if has(PacketFlags::SNAPSHOT) || has(PacketFlags::RETRANSMISSION) && has(PacketFlags::HEARTBEAT) {
        return;
    }
    let mut settled = meta.first.0;
    for (header, body) in packet.frames() {
        let first = header.sequence.get();
        let next = match FrameKind::from_number(header.kind) {
            Some(FrameKind::Message) => first.saturating_add(1),
            Some(FrameKind::Gap) => GapBody::ref_from_bytes(body).map_or(first, |gap| gap.next.get()),
            _ => continue,
        };
        let behind = first.min(meta.next.0);
        if behind > settled {
            is_silent(settled, behind);
        }
        settled = settled.max(next);
    }
    if meta.next.0 > settled {
        is_silent(settled, meta.next.0);
    }
}

/// Adds a silence to what is known of them.
pub(super) fn pass_over(silent: &mut BTreeMap<u64, Silence>, first: u64, silence: Silence) {
    let (mut first, mut silence) = (first, silence);
    while let Some((other, known)) = silent.range(..=silence.next).next_back().map(|(other, known)| (*other, *known)) {
        if known.next < first {
            break;
        }
        silent.remove(&other);
        first = first.min(other);
        silence = Silence { next: silence.next.max(known.next), ..known };
    }
    silent.insert(first, silence);
}

/// Of records and cut. Times of receipt are local, and whether the book is in doubt may differ between gateways.
fn content_hash(header: &FrameHeader, body: &[u8]) -> u64 {
    let cut = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    let mut hasher = DefaultHasher::new();
    (header.record_count.get(), header.flags & cut.0, body).hash(&mut hasher);
    hasher.finish()
}
