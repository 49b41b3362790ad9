//! A gateway's knowledge of its group's record: since when, and how certain.

use mdgw_wire::{identity::Epoch, time::MonoNs};

use crate::{
    record::Record,
    register::{Version, Versioned},
};

/// The newest record known.
///
/// Two times matter. `learned_at`: when the gateway learned of the last change; a candidate's wait counts from there.
/// `followed_since`: since when the gateway has followed the record without a break. Knowledge from before a break is
/// void, even if the same version is read afterwards: the store may have been restored to the known version in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KnownRecord {
    /// `None`: not read since the last break; `Some(None)`: there is no record.
    known: Option<Option<Versioned>>,
    learned_at: MonoNs,
    /// When the gateway learned of the successor's stamp.
    successor_learned_at: MonoNs,
    followed_since: MonoNs,
    /// The highest record ever seen, over all breaks.
    highest: RecordOrder,
}

/// Source of an observation of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObservedBy {
    /// The watch, which may lag behind answers.
    Watch,
    /// A read that was sent at that moment: the record it shows was in force later.
    Read { sent: MonoNs },
    /// A swap of our own.
    Swap,
}

/// Result of an observation of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observed {
    /// Nothing new.
    Unchanged,
    /// A newer record, or the first since a break.
    Newer,
    /// The record was rolled back: the store was restored, or its record created anew.
    RolledBack { highest_seen: Epoch },
    /// The observation contradicts the known record, and may merely be late: read again.
    Inconclusive,
}

/// Orders records by their content, whatever their versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct RecordOrder {
    epoch: Epoch,
    renewal: u64,
}

impl KnownRecord {
    /// Processes an observation of the record.
    pub(super) fn observe(&mut self, now: MonoNs, found: Option<Versioned>, source: ObservedBy) -> Observed {
        let rank = RecordOrder::of(found.as_ref());
        let went_back = rank < self.highest;
        let epoch = self.highest.epoch;
        match &self.known {
            None => {
                // The first observation after a break must be a read that was sent after the break.
                let ObservedBy::Read { .. } = source else { return Observed::Inconclusive };
                self.followed_since = now;
                self.accept(now, found, rank);
                return if went_back { Observed::RolledBack { highest_seen: epoch } } else { Observed::Newer };
            }
            Some(known) if *known == found => return Observed::Unchanged,
            Some(_) => {}
        }
        let version = found.as_ref().map_or(Version::NONE, |found| found.version);
        if version > self.version() && !went_back {
            self.accept(now, found, rank);
            return Observed::Newer;
        }
        match source {
            ObservedBy::Read { sent } if sent >= self.learned_at => {
                self.followed_since = now;
                self.accept(now, found, rank);
                Observed::RolledBack { highest_seen: epoch }
            }
            ObservedBy::Read { .. } | ObservedBy::Watch | ObservedBy::Swap => Observed::Inconclusive,
        }
    }

    fn accept(&mut self, now: MonoNs, found: Option<Versioned>, rank: RecordOrder) {
        let successor = |known: &Option<Versioned>| known.as_ref().and_then(|known| known.record.successor);
        if self.known.as_ref().is_none_or(|known| successor(known) != successor(&found)) {
            self.successor_learned_at = now;
        }
        self.known = Some(found);
        self.learned_at = now;
        self.highest = self.highest.max(rank);
    }

    /// The connection broke: nothing is known until the next read.
    pub(super) fn invalidate(&mut self) {
        self.known = None;
    }

    /// Restarts the wait for the lease.
    pub(super) fn restart_wait(&mut self, now: MonoNs) {
        self.learned_at = now;
    }

    /// Restarts the wait for the successor.
    pub(super) fn restart_successor_wait(&mut self, now: MonoNs) {
        self.successor_learned_at = now;
    }

    /// Whether it is known which record exists, or that none does.
    pub(super) fn is_read(&self) -> bool {
        self.known.is_some()
    }

    /// The record, if one is known.
    pub(super) fn record(&self) -> Option<&Record> {
        self.known.as_ref()?.as_ref().map(|known| &known.record)
    }

    /// Version of the record in its store, to be replaced by the next swap; [`Version::NONE`] if no record exists.
    pub(super) fn version(&self) -> Version {
        self.known.as_ref().and_then(Option::as_ref).map_or(Version::NONE, |known| known.version)
    }

    /// When the last change became known.
    pub(super) fn learned_at(&self) -> MonoNs {
        self.learned_at
    }

    /// When the successor's stamp became known. The stamp was taken earlier.
    pub(super) fn successor_learned_at(&self) -> MonoNs {
        self.successor_learned_at
    }

    /// Since when the record has been followed without a break.
    pub(super) fn followed_since(&self) -> MonoNs {
        self.followed_since
    }

    /// The highest epoch ever seen in the record.
    pub(super) fn highest_epoch(&self) -> Epoch {
        self.highest.epoch
    }
}

impl RecordOrder {
    fn of(found: Option<&Versioned>) -> Self {
        found.map_or_else(Self::default, |found| Self { epoch: found.record.epoch, renewal: found.record.renewal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{member, record};

    fn at(version: u64, count: u64, renewal: u64) -> Option<Versioned> {
        Some(Versioned { version: Version(version), record: Record { renewal, ..record(count, &member(1, 1)) } })
    }

    fn read(sent: u64) -> ObservedBy {
        ObservedBy::Read { sent: MonoNs(sent) }
    }

    fn known_at(version: u64, count: u64, renewal: u64) -> KnownRecord {
        let mut known_record = KnownRecord::default();
        assert_eq!(known_record.observe(MonoNs(10), at(version, count, renewal), read(9)), Observed::Newer);
        known_record
    }

    #[test]
    fn only_a_changed_record_restarts_the_wait() {
        let mut known_record = known_at(5, 1, 1);
        assert_eq!(known_record.observe(MonoNs(20), at(5, 1, 1), ObservedBy::Watch), Observed::Unchanged);
        assert_eq!(known_record.learned_at(), MonoNs(10));
        assert_eq!(known_record.observe(MonoNs(30), at(6, 1, 2), ObservedBy::Watch), Observed::Newer);
        assert_eq!((known_record.learned_at(), known_record.followed_since()), (MonoNs(30), MonoNs(10)));
    }

    #[test]
    fn a_late_sight_of_the_record_is_inconclusive() {
        let mut known_record = known_at(5, 1, 5);
        let before = known_record.clone();
        assert_eq!(known_record.observe(MonoNs(20), at(4, 1, 4), ObservedBy::Watch), Observed::Inconclusive);
        assert_eq!(
            known_record.observe(MonoNs(20), at(4, 1, 4), read(8)),
            Observed::Inconclusive,
            "asked before it was known"
        );
        assert_eq!(known_record.observe(MonoNs(20), None, ObservedBy::Watch), Observed::Inconclusive);
        assert_eq!(known_record, before);
    }

    #[test]
    fn a_rolled_back_record_restarts_the_wait() {
        for (found, what) in [
            (at(4, 1, 4), "an older version"),
            (at(9, 1, 4), "an older content under a newer version"),
            (at(5, 1, 4), "another content under the same version"),
            (None, "removed"),
        ] {
            let mut known_record = known_at(5, 1, 5);
            let learned_at = known_record.observe(MonoNs(20), found, read(11));
            assert_eq!(learned_at, Observed::RolledBack { highest_seen: Epoch::new(1, 1) }, "{what}");
            assert_eq!((known_record.learned_at(), known_record.followed_since()), (MonoNs(20), MonoNs(20)), "{what}");
            assert_eq!(known_record.highest_epoch(), Epoch::new(1, 1), "{what}");
        }
    }

    #[test]
    fn after_a_reconnect_the_same_record_restarts_the_wait() {
        let mut known_record = known_at(5, 1, 5);
        known_record.invalidate();
        assert!(!known_record.is_read());
        assert_eq!(known_record.observe(MonoNs(20), at(5, 1, 5), ObservedBy::Watch), Observed::Inconclusive);
        assert_eq!(known_record.observe(MonoNs(20), at(5, 1, 5), read(15)), Observed::Newer);
        assert_eq!((known_record.learned_at(), known_record.followed_since()), (MonoNs(20), MonoNs(20)));
    }
}
