//! Publish intervals of epochs: intervals of one group must not overlap.

use std::collections::BTreeMap;

use mdgw_feeds::identity::{Epoch, GroupId};

use super::finding::{Findings, Location, OutputCheck};

/// Publish intervals by clock, group and epoch.
#[derive(Debug, Default)]
pub(super) struct Intervals(pub(super) BTreeMap<(usize, GroupId), BTreeMap<Epoch, Interval>>);

/// First and last packet of an epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) packets: u64,
    first_place: Location,
    last_place: Location,
}

type EpochInterval = (Epoch, Interval);

impl Intervals {
    /// Records a packet of that epoch.
    pub(super) fn published(&mut self, clock: usize, group: GroupId, epoch: Epoch, time_ns: u64, location: Location) {
        let new =
            Interval { first_ns: time_ns, last_ns: time_ns, packets: 0, first_place: location, last_place: location };
        let interval = self.0.entry((clock, group)).or_default().entry(epoch).or_insert(new);
        interval.packets += 1;
        if time_ns < interval.first_ns {
            (interval.first_ns, interval.first_place) = (time_ns, location);
        }
        if time_ns > interval.last_ns {
            (interval.last_ns, interval.last_place) = (time_ns, location);
        }
    }

    /// Finds counts used by two nodes, epochs published at the same time, and epochs published after a higher one had
    /// begun.
    pub(super) fn report_overlaps(&self, clock_error_ns: u64, findings: &mut Findings) {
        for ((_, group), epochs) in &self.0 {
            let by_epoch: Vec<EpochInterval> = epochs.iter().map(|(epoch, interval)| (*epoch, *interval)).collect();
            for ((below, _), (epoch, interval)) in by_epoch.iter().zip(by_epoch.iter().skip(1)) {
                if below.count() == epoch.count() {
                    findings.record(OutputCheck::SinglePublisher, interval.first_place, || {
                        format!("group {}: two nodes published with epoch count {}", group.0, epoch.count())
                    });
                }
            }
            let mut by_time = by_epoch.clone();
            by_time.sort_by_key(|(_, interval)| interval.first_ns);
            for ((before, longest), (epoch, interval), overlap_ns) in overruns(&by_time, clock_error_ns) {
                findings.record(OutputCheck::SinglePublisher, interval.first_place, || {
                    format!(
                        "group {}: {} started {} us before {} ended (frame {})",
                        group.0,
                        epoch_text(epoch),
                        overlap_ns / 1_000,
                        epoch_text(before),
                        longest.last_place.number
                    )
                });
            }
            for ((lower, longest), (epoch, interval), back_ns) in overruns(&by_epoch, clock_error_ns) {
                findings.record(OutputCheck::MonotonicEpochs, longest.last_place, || {
                    format!(
                        "group {}: {} was still published {} us after {} started (frame {})",
                        group.0,
                        epoch_text(lower),
                        back_ns / 1_000,
                        epoch_text(epoch),
                        interval.first_place.number
                    )
                });
            }
        }
    }
}

/// Overlaps in order of begin: for each interval that begins before the longest earlier one has ended, that earlier
/// interval, the interval itself, and the overlap.
fn overruns(
    in_order: &[EpochInterval],
    clock_error_ns: u64,
) -> impl Iterator<Item = (EpochInterval, EpochInterval, u64)> {
    let mut longest: Option<EpochInterval> = None;
    in_order.iter().filter_map(move |&(epoch, interval)| {
        let before = longest;
        if before.is_none_or(|(_, before)| interval.last_ns >= before.last_ns) {
            longest = Some((epoch, interval));
        }
        let before = before?;
        let by_ns = before.1.last_ns.saturating_sub(interval.first_ns);
        (by_ns > clock_error_ns).then_some((before, (epoch, interval), by_ns))
    })
}

/// Epoch as shown in the table.
pub(super) fn epoch_text(epoch: Epoch) -> String {
    format!("epoch {} (node {})", epoch.count(), epoch.node())
}
