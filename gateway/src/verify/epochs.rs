//! When each epoch was published: intervals of one group must not overlap.

use std::collections::BTreeMap;

use mdgw_feeds::identity::{Epoch, GroupId};

use super::finding::{Findings, Place, Promise};

/// Publish intervals by clock, group and epoch.
#[derive(Debug, Default)]
pub(super) struct Intervals(pub(super) BTreeMap<(usize, GroupId), BTreeMap<Epoch, Interval>>);

/// From the first to the last packet of an epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) packets: u64,
    first_place: Place,
    last_place: Place,
}

impl Intervals {
    /// A packet of that epoch was published.
    pub(super) fn published(&mut self, clock: usize, group: GroupId, epoch: Epoch, time_ns: u64, place: Place) {
        let new = Interval { first_ns: time_ns, last_ns: time_ns, packets: 0, first_place: place, last_place: place };
        let interval = self.0.entry((clock, group)).or_default().entry(epoch).or_insert(new);
        interval.packets += 1;
        if time_ns < interval.first_ns {
            (interval.first_ns, interval.first_place) = (time_ns, place);
        }
        if time_ns > interval.last_ns {
            (interval.last_ns, interval.last_place) = (time_ns, place);
        }
    }

    /// Epochs that went on after a higher one had begun, and counts that two nodes used.
    pub(super) fn tell_overlaps(&self, clock_error_ns: u64, findings: &mut Findings) {
        for ((_, group), epochs) in &self.0 {
            // The one of all lower epochs that went on longest.
            let mut lower: Option<(Epoch, Interval)> = None;
            for (&epoch, &interval) in epochs {
                let Some((lower_epoch, lower_interval)) = lower else {
                    lower = Some((epoch, interval));
                    continue;
                };
                if epochs.range(..epoch).next_back().is_some_and(|(below, _)| below.count() == epoch.count()) {
                    findings.note(Promise::OnePublisher, interval.first_place, || {
                        format!("group {}: two nodes published under count {}", group.0, epoch.count())
                    });
                }
                let overlap_ns = lower_interval.last_ns.saturating_sub(interval.first_ns);
                if overlap_ns > clock_error_ns {
                    findings.note(Promise::OnePublisher, lower_interval.last_place, || {
                        format!(
                            "group {}: epoch {} was published until {} us after epoch {} had begun (frame {})",
                            group.0,
                            lower_epoch.0,
                            overlap_ns / 1_000,
                            epoch.0,
                            interval.first_place.number
                        )
                    });
                }
                if interval.last_ns >= lower_interval.last_ns {
                    lower = Some((epoch, interval));
                }
            }
        }
    }
}
