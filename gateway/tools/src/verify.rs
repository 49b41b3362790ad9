//! Verifies from captures whether the published packets, or the records that receivers delivered, keep the promises of
//! a gateway pair. It uses the packets only, no information from the gateways.
//!
//! ```text
//! captures ── merge by time ── packets ─┬─ contents    each item has one content, whichever gateway published it
//!                                       ├─ epochs      epoch that receivers accept; publish interval of each epoch
//!                                       └─ receiver    order, completeness and blackout under the epoch rule
//! receivers' outputs ── rows ── items once, in order, the same for all receivers
//! ```
//! An **item** is identified by channel, session, sequence and part (of a record: its index). Each capture is the view
//! of one receiver. Packets that this receiver drops by its epoch rule are checked for consistent content only.
//!
//! Deliberately independent of the product's own receiver: a checker must not share the faults of the code it checks.

mod content;
mod coverage;
mod epochs;
mod finding;
mod receiver;
mod rows;
mod verdict;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::SocketAddr};

use mdgw_feeds::{
    drop_reason::DropReason,
    identity::{ChannelId, GroupId},
    published::{
        packet::{PacketFlags, parse_packet},
        tag::{TagPolicy, TagUse},
    },
};

pub use self::finding::{Finding, Location, OutputCheck};
pub use self::rows::{RowError, RowsVerifier};
pub use self::verdict::{Bucket, ChannelVerdict, DurationSummary, EpochVerdict, Shortfall, ShortfallKind, Verdict};
use self::{content::Contents, epochs::Intervals, finding::Findings, receiver::ReceiverView};

/// Options of a verification.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Verify this group only.
    pub group: Option<GroupId>,
    /// Clock for the publish intervals of epochs.
    pub clock: PublishClock,
    /// Allowed clock difference between two publishers, ns: overlaps up to this are ignored.
    pub clock_error_ns: u64,
    /// Largest epoch jump that is accepted, as configured at the receivers.
    pub epoch_jump_max: u64,
    /// Which tags packets must have, as configured at the receivers.
    pub tags: TagPolicy,
    /// Items of each channel's session whose content is remembered. Older items are no longer compared.
    pub names_max: usize,
    /// Number of violations listed individually; all are counted.
    pub findings_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            group: None,
            clock: PublishClock::default(),
            clock_error_ns: 0,
            epoch_jump_max: 1_000,
            tags: TagPolicy::default(),
            names_max: 8 << 20,
            findings_max: 20,
        }
    }
}

/// Clock for the publish intervals of epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishClock {
    /// The publishers' own send times, taken when they handed over a packet. For one host, or synchronised clocks.
    #[default]
    Sender,
    /// The capture's times, which include late packets of a stopped process.
    Capture,
}

/// One datagram of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// Position in the files.
    pub location: Location,
    /// Capture time, ns since 1970 UTC.
    pub time_ns: u64,
    /// Destination address.
    pub dst: SocketAddr,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// Counts of the packets read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyCounts {
    /// Published packets.
    pub packets: u64,
    /// Unicast replies to single receivers, of these packets.
    pub unicast_replies: u64,
    /// Packets captured more than once.
    pub duplicate_captures: u64,
    /// Packets of an epoch older than the accepted one; receivers drop them.
    pub stale_epoch_packets: u64,
    /// Packets of an epoch too far above the highest to be accepted.
    pub epoch_jumps: u64,
    /// Published packets without a tag under a key of the receivers; receivers drop them.
    pub tags_refused: u64,
    /// Packets of groups that were not requested.
    pub other_groups: u64,
    /// Datagrams that are not published packets.
    pub unrecognised: u64,
    /// Published packets that are damaged, by reason.
    pub damaged: BTreeMap<&'static str, u64>,
}

/// Verifies captures. Pass all datagrams in time order, then call for the verdict.
#[derive(Debug)]
pub struct Verifier {
    options: VerifyOptions,
    counts: VerifyCounts,
    contents: BTreeMap<(GroupId, ChannelId), Contents>,
    intervals: Intervals,
    receivers: BTreeMap<usize, ReceiverView>,
    findings: Findings,
}

impl Verifier {
    /// Starts without packets.
    #[must_use]
    pub fn new(options: VerifyOptions) -> Self {
        Self {
            findings: Findings::new(options.findings_max),
            options,
            counts: VerifyCounts::default(),
            contents: BTreeMap::new(),
            intervals: Intervals::default(),
            receivers: BTreeMap::new(),
        }
    }

    /// Accepts the next datagram of any kind.
    pub fn accept(&mut self, seen: &CapturedPacket<'_>) {
        let packet = match parse_packet(seen.payload) {
            Ok(packet) => packet,
            // Requests to the retransmission service and other traffic have another magic.
            Err(DropReason::HeaderTruncated | DropReason::ProtocolMismatch) => return self.counts.unrecognised += 1,
            Err(reason) => return *self.counts.damaged.entry(reason.name()).or_default() += 1,
        };
        let meta = &packet.meta;
        if self.options.group.is_some_and(|group| group != meta.group) {
            return self.counts.other_groups += 1;
        }
        let is_published = seen.dst.ip().is_multicast();
        // The tag of an answer covers the nonce of its request, which may not be in the capture.
        if is_published && self.options.tags.check(TagUse::Published, seen.payload).is_err() {
            return self.counts.tags_refused += 1;
        }
        self.counts.packets += 1;
        let receiver = self.receivers.entry(seen.location.file).or_default();
        if !is_published {
            // Any gateway may answer a request at any time, under the highest epoch that it has observed.
            self.counts.unicast_replies += 1;
            let is_end = meta.flags.contains(PacketFlags::HEARTBEAT);
            if !is_end {
                receiver.accept_reply(&packet);
            }
        } else {
            match receiver.accept_epoch(meta.group, meta.epoch, self.options.epoch_jump_max) {
                Err(DropReason::EpochJump) => return self.counts.epoch_jumps += 1,
                Err(_) => self.counts.stale_epoch_packets += 1,
                Ok(()) => {
                    let is_new = receiver.accept(seen, &packet, &mut self.findings);
                    self.counts.duplicate_captures += u64::from(!is_new);
                }
            }
            let (domain, time_ns) = match self.options.clock {
                PublishClock::Sender => (0, meta.send_time_ns),
                PublishClock::Capture => (seen.location.file, seen.time_ns),
            };
            self.intervals.published(domain, meta.group, meta.epoch, time_ns, seen.location);
        }
        let contents = self.contents.entry((meta.group, meta.channel)).or_default();
        contents.compare(&packet, seen.location, self.options.names_max, &mut self.findings);
    }

    /// Returns the verdict. Missing items are only known at the end.
    #[must_use]
    pub fn finish(mut self) -> Verdict {
        for (file, receiver) in &self.receivers {
            receiver.report_missing(*file, &mut self.findings);
        }
        self.intervals.report_overlaps(self.options.clock_error_ns, &mut self.findings);
        Verdict::of_captures(self.counts, &self.contents, &self.intervals, &self.receivers, self.findings)
    }
}
