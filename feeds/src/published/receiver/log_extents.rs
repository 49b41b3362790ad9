//! Extents of the retransmission services' logs in one session.

use crate::identity::Sequence;

use super::{SERVICES_MAX, positions::FIRST_SEQUENCE};

/// The last reported extent of each service: `[first, next)`.
///
/// Each service speaks only for its own log: a log may have begun later, lag behind, or have lost entries. Absence
/// from one log therefore proves nothing about the others.
#[derive(Clone, Debug)]
pub(super) struct LogExtents {
    services: u8,
    said: [Option<(Sequence, Sequence)>; SERVICES_MAX],
}

impl LogExtents {
    /// For that many services, none of which has reported yet.
    pub(super) fn new(services: u8) -> Self {
        Self { services, said: [None; SERVICES_MAX] }
    }

    /// A new query: discards all reports.
    pub(super) fn clear(&mut self) {
        self.said = [None; SERVICES_MAX];
    }

    /// Records a service's extent. Returns whether it is the service's first report.
    pub(super) fn say(&mut self, service: u8, first: Sequence, next: Sequence) -> bool {
        let said = self.said.iter_mut().take(self.services.into()).nth(service.into());
        said.is_some_and(|said| said.replace((first, next)).is_none())
    }

    /// Discards the extents of the services that have reported: they hold nothing of the session in question.
    pub(super) fn mark_empty(&mut self) {
        self.said.iter_mut().flatten().for_each(|said| *said = (Sequence(0), Sequence(0)));
    }

    /// Whether all services have reported.
    pub(super) fn all_reported(&self) -> bool {
        self.said.iter().take(self.services.into()).all(Option::is_some)
    }

    /// Whether at least one service has reported.
    pub(super) fn any_reported(&self) -> bool {
        self.said.iter().any(Option::is_some)
    }

    /// From the first to the last sequence in any log.
    pub(super) fn range(&self) -> Option<(Sequence, Sequence)> {
        self.held().reduce(|(first, next), (of_first, of_next)| (first.min(of_first), next.max(of_next)))
    }

    /// The start of the oldest log: no service can deliver an earlier sequence. `None` while a log is empty, since it
    /// may still receive entries.
    pub(super) fn unavailable_before(&self) -> Option<Sequence> {
        let is_known = self.held().count() == usize::from(self.services);
        self.range().filter(|_| is_known).map(|(first, _)| first)
    }

    fn held(&self) -> impl Iterator<Item = (Sequence, Sequence)> {
        self.said.iter().flatten().copied().filter(|(_, next)| *next >= FIRST_SEQUENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_complete_only_when_every_service_reported() {
        let mut holdings = LogExtents::new(2);
        let range = |first, next| Some((Sequence(first), Sequence(next)));
        assert!(holdings.say(0, Sequence(20), Sequence(50)));
        assert_eq!(
            (holdings.all_reported(), holdings.any_reported(), holdings.unavailable_before()),
            (false, true, None)
        );
        assert!(holdings.say(1, Sequence(5), Sequence(40)));
        assert_eq!((holdings.all_reported(), holdings.range()), (true, range(5, 50)));
        assert_eq!(holdings.unavailable_before(), Some(Sequence(5)));
        assert!(!holdings.say(1, Sequence(0), Sequence(0)), "it has spoken before");
        assert_eq!(
            (holdings.all_reported(), holdings.range(), holdings.unavailable_before()),
            (true, range(20, 50), None)
        );
        assert!(!holdings.say(2, Sequence(1), Sequence(90)));
        assert_eq!(holdings.range(), range(20, 50), "there is no third");
        holdings.mark_empty();
        assert_eq!((holdings.all_reported(), holdings.range()), (true, None));
        holdings.clear();
        assert!(!holdings.any_reported());
    }
}
