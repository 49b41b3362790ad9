//! Requested hand-overs, until each has ended: with another leader, with a report that it failed, or with the gateway's process,
//! whose operator then gets no answer.

use std::collections::BTreeMap;

/// Counts the hand-overs that were requested of each gateway and have not ended.
#[derive(Debug)]
pub(crate) struct RequestedHandOvers<G>(BTreeMap<G, u32>);

impl<G: Ord + Copy> RequestedHandOvers<G> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn request(&mut self, gateway: G) {
        *self.0.entry(gateway).or_default() += 1;
    }

    /// A gateway reports that one of its hand-overs failed. It may be an automatic one, which nobody requested.
    pub(crate) fn report_failed(&mut self, gateway: G) {
        if let Some(pending) = self.0.get_mut(&gateway) {
            *pending = pending.saturating_sub(1);
        }
    }

    /// A gateway has opened its fence.
    pub(crate) fn open(&mut self, leader: G) {
        self.0.retain(|gateway, _| *gateway == leader);
    }

    /// The process of a gateway has ended.
    pub(crate) fn end_process(&mut self, gateway: G) {
        self.0.remove(&gateway);
    }

    /// A gateway that has not reported the end of a hand-over.
    pub(crate) fn unreported(&self) -> Option<G> {
        self.0.iter().find(|(_, pending)| **pending > 0).map(|(gateway, _)| *gateway)
    }
}
