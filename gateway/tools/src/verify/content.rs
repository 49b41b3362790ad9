//! One content for each item, whichever gateway published it and however often; or none, if a gateway covered it
//! without content.

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
    finding::{Findings, Location, OutputCheck},
};

/// Contents of one channel.
#[derive(Debug, Default)]
pub(super) struct Contents {
    sessions: BTreeMap<Session, SessionContents>,
    /// Distinct items.
    pub(super) names: u64,
    /// Items republished with the same content.
    pub(super) republished: u64,
    /// Times that an item was published with other content, of suspect books on one side at least. Gateways may differ there.
    pub(super) suspect_differences: u64,
    /// Items whose content was evicted.
    pub(super) evicted: u64,
}

/// Contents of one session.
#[derive(Debug, Default)]
struct SessionContents {
    published: BTreeMap<PartPosition, FirstPublished>,
    /// Sequences covered without content, keyed by the first of them: disjoint, not touching.
    empty_ranges: BTreeMap<u64, EmptyRange>,
}

/// A range without content: its end, and the epoch and position of the first packet that covered it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EmptyRange {
    pub(super) next: u64,
    pub(super) epoch: Epoch,
    pub(super) location: Location,
}

/// Hash of an item's content, and the epoch and position of the first packet with it. Content of sound books takes the place of
/// suspect content.
#[derive(Clone, Copy, Debug)]
struct FirstPublished {
    hash: u64,
    is_suspect: bool,
    epoch: Epoch,
    location: Location,
}

impl Contents {
    /// Compares each message of the packet with the earlier content of its item.
    pub(super) fn compare(
        &mut self,
        packet: &Packet<'_>,
        location: Location,
        names_max: usize,
        findings: &mut Findings,
    ) {
        let meta = &packet.meta;
        let SessionContents { published: names, empty_ranges } = self.sessions.entry(meta.session).or_default();
        for_each_empty_range(packet, |first, next| {
            let of_range = position(Sequence(first))..position(Sequence(next));
            let mut published = names.range(of_range).peekable();
            if published.peek().is_none() {
                return add_empty_range(empty_ranges, first, EmptyRange { next, epoch: meta.epoch, location });
            }
            match published.find(|(_, published)| !published.is_suspect) {
                None => self.suspect_differences += 1,
                Some((name, published)) => {
                    findings.record(OutputCheck::ConsistentContent, location, || {
                        Self::contradiction(
                            packet,
                            *name,
                            ["nothing", "records"],
                            (published.epoch, published.location),
                        )
                    });
                }
            }
        });
        for (header, body) in packet.frames().filter(|(header, _)| has_records(header)) {
            let name = position(Sequence(header.sequence.get())) + u64::from(header.part.get());
            let is_suspect = FrameFlags(header.flags).contains(FrameFlags::SUSPECT);
            let empty_range = empty_ranges.range(..=header.sequence.get()).next_back();
            match empty_range.filter(|(_, empty)| empty.next > header.sequence.get()) {
                Some(_) if is_suspect => self.suspect_differences += 1,
                Some((_, empty)) => findings.record(OutputCheck::ConsistentContent, location, || {
                    Self::contradiction(packet, name, ["records", "nothing"], (empty.epoch, empty.location))
                }),
                None => {}
            }
            let published =
                FirstPublished { hash: content_hash(header, body), is_suspect, epoch: meta.epoch, location };
            match names.entry(name) {
                Entry::Vacant(vacant) => {
                    vacant.insert(published);
                    self.names += 1;
                }
                Entry::Occupied(mut known) => {
                    let first = *known.get();
                    if first.hash == published.hash {
                        self.republished += 1;
                    } else if first.is_suspect || is_suspect {
                        self.suspect_differences += 1;
                    } else {
                        findings.record(OutputCheck::ConsistentContent, location, || {
                            let before = (first.epoch, first.location);
                            Self::contradiction(packet, name, ["other records", "records"], before)
                        });
                    }
                    if first.is_suspect && !is_suspect {
                        known.insert(published);
                    }
                }
            }
        }
        while names.len() > names_max {
            names.pop_first();
            self.evicted += 1;
        }
        while empty_ranges.len() > names_max {
            empty_ranges.pop_first();
        }
    }

    /// Describes content that differs from the earlier content of the same item. `before`: epoch and position of the
    /// earlier packet.
    fn contradiction(packet: &Packet<'_>, name: PartPosition, what: [&str; 2], before: (Epoch, Location)) -> String {
        let [published, published_before] = what;
        let meta = &packet.meta;
        format!(
            "channel {} {}, sequence {} part {}: {} published {published}, but {} published {published_before} (frame {})",
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

/// A suspect flag without records counts as no content: a gateway whose books are sound may publish nothing there.
fn has_records(header: &FrameHeader) -> bool {
    let is_suspect_mark_only = header.record_count.get() == 0 && FrameFlags(header.flags).contains(FrameFlags::SUSPECT);
    header.kind == FrameKind::Message as u8 && !is_suspect_mark_only
}

/// Sequences that the packet covers without a frame: `[first, next)`.
fn for_each_empty_range(packet: &Packet<'_>, mut is_silent: impl FnMut(u64, u64)) {
    let meta = &packet.meta;
    let has = |flag| meta.flags.contains(flag);
    // The ranges of definitions and of the end of a reply contain no messages.
    if has(PacketFlags::SNAPSHOT) || has(PacketFlags::RETRANSMISSION) && has(PacketFlags::HEARTBEAT) {
        return;
    }
    let mut covered_through = meta.first.0;
    for (header, body) in packet.frames() {
        let first = header.sequence.get();
        let next = match FrameKind::from_number(header.kind) {
            Some(FrameKind::Message) => first.saturating_add(1),
            Some(FrameKind::Gap) => GapBody::ref_from_bytes(body).map_or(first, |gap| gap.next.get()),
            _ => continue,
        };
        let behind = first.min(meta.next.0);
        if behind > covered_through {
            is_silent(covered_through, behind);
        }
        covered_through = covered_through.max(next);
    }
    if meta.next.0 > covered_through {
        is_silent(covered_through, meta.next.0);
    }
}

/// Adds a range without content to the known ones.
pub(super) fn add_empty_range(empty_ranges: &mut BTreeMap<u64, EmptyRange>, first: u64, silence: EmptyRange) {
    let (mut first, mut silence) = (first, silence);
    while let Some((other, known)) =
        empty_ranges.range(..=silence.next).next_back().map(|(other, known)| (*other, *known))
    {
        if known.next < first {
            break;
        }
        empty_ranges.remove(&other);
        first = first.min(other);
        silence = EmptyRange { next: silence.next.max(known.next), ..known };
    }
    empty_ranges.insert(first, silence);
}

/// Hash of records and part flags. Receive times are local, and the suspect flag may differ between gateways.
fn content_hash(header: &FrameHeader, body: &[u8]) -> u64 {
    let part_flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    let mut hasher = DefaultHasher::new();
    (header.record_count.get(), header.flags & part_flags.0, body).hash(&mut hasher);
    hasher.finish()
}
