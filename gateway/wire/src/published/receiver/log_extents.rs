//! Extents of the retransmission services' logs in one session.

use crate::identity::Sequence;

use super::{SERVICES_MAX, positions::FIRST_SEQUENCE};

/// The last reported extent of each service.
///
/// Each service speaks only for its own log: a log may have begun later, lag behind, or have lost entries. Absence
/// from one log therefore proves nothing about the others.
#[derive(Clone, Debug)]
pub(super) struct LogExtents {
    service_count: u8,
    reported: [Option<LogExtent>; SERVICES_MAX],
}

/// What a service reports about one session: its log has `[first, next)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogExtent {
    pub(super) first: Sequence,
    pub(super) next: Sequence,
    /// The service knows that the session ended at `next`.
    pub(super) is_final: bool,
}

impl LogExtent {
    /// The log has nothing of the session.
    pub(super) const EMPTY: Self = Self { first: Sequence(0), next: Sequence(0), is_final: false };
}

impl LogExtents {
    /// For that many services, none of which has reported yet.
    pub(super) fn new(service_count: u8) -> Self {
        Self { service_count, reported: [None; SERVICES_MAX] }
    }

    /// A new query: discards all reports.
    pub(super) fn clear(&mut self) {
        self.reported = [None; SERVICES_MAX];
    }

    /// Records a service's extent. Returns whether it is the service's first report.
    pub(super) fn report(&mut self, service: u8, extent: LogExtent) -> bool {
        let reported = self.reported.iter_mut().take(self.service_count.into()).nth(service.into());
        reported.is_some_and(|reported| reported.replace(extent).is_none())
    }

    /// Discards the extents of the services that have reported: they hold nothing of the session in question.
    pub(super) fn mark_empty(&mut self) {
        self.reported.iter_mut().flatten().for_each(|reported| *reported = LogExtent::EMPTY);
    }

    /// Whether a service knows where the session ended.
    pub(super) fn any_final(&self) -> bool {
        self.reported.iter().flatten().any(|reported| reported.is_final)
    }

    /// Whether that service has reported.
    pub(super) fn has_reported(&self, service: u8) -> bool {
        self.reported.get(usize::from(service)).is_some_and(Option::is_some)
    }

    /// Whether all services have reported.
    pub(super) fn all_reported(&self) -> bool {
        self.reported.iter().take(self.service_count.into()).all(Option::is_some)
    }

    /// Whether at least one service has reported.
    pub(super) fn any_reported(&self) -> bool {
        self.reported.iter().any(Option::is_some)
    }

    /// From the first to the last sequence in any log.
    pub(super) fn range(&self) -> Option<(Sequence, Sequence)> {
        self.non_empty().reduce(|(first, next), (of_first, of_next)| (first.min(of_first), next.max(of_next)))
    }

    /// The start of the oldest log: no service can deliver an earlier sequence. `None` while a log is empty, since it
    /// may still receive entries.
    pub(super) fn unavailable_before(&self) -> Option<Sequence> {
        let is_known = self.non_empty().count() == usize::from(self.service_count);
        self.range().filter(|_| is_known).map(|(first, _)| first)
    }

    fn non_empty(&self) -> impl Iterator<Item = (Sequence, Sequence)> {
        let extents = self.reported.iter().flatten().map(|reported| (reported.first, reported.next));
        extents.filter(|(_, next)| *next >= FIRST_SEQUENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_complete_only_when_every_service_reported() {
        let mut log_extents = LogExtents::new(2);
        let range = |first, next| Some((Sequence(first), Sequence(next)));
        let extent = |first, next| LogExtent { first: Sequence(first), next: Sequence(next), is_final: false };
        assert!(log_extents.report(0, extent(20, 50)));
        assert_eq!(
            (log_extents.all_reported(), log_extents.any_reported(), log_extents.unavailable_before()),
            (false, true, None)
        );
        assert!(log_extents.report(1, extent(5, 40)));
        assert_eq!((log_extents.all_reported(), log_extents.range()), (true, range(5, 50)));
        assert_eq!(log_extents.unavailable_before(), Some(Sequence(5)));
        assert!(!log_extents.report(1, extent(0, 0)), "the service has reported before");
        assert_eq!(
            (log_extents.all_reported(), log_extents.range(), log_extents.unavailable_before()),
            (true, range(20, 50), None)
        );
        assert!(!log_extents.report(2, extent(1, 90)));
        assert_eq!(log_extents.range(), range(20, 50), "there is no third");
        assert!(!log_extents.any_final());
        log_extents.report(0, LogExtent { is_final: true, ..extent(20, 50) });
        assert!(log_extents.any_final());
        log_extents.mark_empty();
        assert_eq!((log_extents.all_reported(), log_extents.range(), log_extents.any_final()), (true, None, false));
        log_extents.clear();
        assert!(!log_extents.any_reported());
    }
}
