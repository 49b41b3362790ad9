//! Extents of the retransmission services' logs in one session.

use crate::identity::Sequence;

use super::{SERVICES_MAX, positions::FIRST_SEQUENCE};

/// The last reported extent of each service: `[first, next)`.
///
/// Each service speaks only for its own log: a log may have begun later, lag behind, or have lost entries. Absence
/// from one log therefore proves nothing about the others.
#[derive(Clone, Debug)]
pub(super) struct LogExtents {
    service_count: u8,
    reported: [Option<(Sequence, Sequence)>; SERVICES_MAX],
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
    pub(super) fn report(&mut self, service: u8, first: Sequence, next: Sequence) -> bool {
        let reported = self.reported.iter_mut().take(self.service_count.into()).nth(service.into());
        reported.is_some_and(|reported| reported.replace((first, next)).is_none())
    }

    /// Discards the extents of the services that have reported: they hold nothing of the session in question.
    pub(super) fn mark_empty(&mut self) {
        self.reported.iter_mut().flatten().for_each(|reported| *reported = (Sequence(0), Sequence(0)));
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
        self.reported.iter().flatten().copied().filter(|(_, next)| *next >= FIRST_SEQUENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_complete_only_when_every_service_reported() {
        let mut log_extents = LogExtents::new(2);
        let range = |first, next| Some((Sequence(first), Sequence(next)));
        assert!(log_extents.report(0, Sequence(20), Sequence(50)));
        assert_eq!(
            (log_extents.all_reported(), log_extents.any_reported(), log_extents.unavailable_before()),
            (false, true, None)
        );
        assert!(log_extents.report(1, Sequence(5), Sequence(40)));
        assert_eq!((log_extents.all_reported(), log_extents.range()), (true, range(5, 50)));
        assert_eq!(log_extents.unavailable_before(), Some(Sequence(5)));
        assert!(!log_extents.report(1, Sequence(0), Sequence(0)), "the service has reported before");
        assert_eq!(
            (log_extents.all_reported(), log_extents.range(), log_extents.unavailable_before()),
            (true, range(20, 50), None)
        );
        assert!(!log_extents.report(2, Sequence(1), Sequence(90)));
        assert_eq!(log_extents.range(), range(20, 50), "there is no third");
        log_extents.mark_empty();
        assert_eq!((log_extents.all_reported(), log_extents.range()), (true, None));
        log_extents.clear();
        assert!(!log_extents.any_reported());
    }
}
