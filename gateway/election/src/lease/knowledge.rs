//! What a gateway knows of its group's record, since when, and how firmly.

use mdgw_feeds::{identity::Epoch, time::MonoNs};

use crate::{
    record::Record,
    register::{Version, Versioned},
};

/// The newest record known.
///
/// Two times matter. `learned`: when its last change became known, from where a candidate waits. `settled_from`: since
/// when it has been followed without a break. What was learned before a break counts no more, even if the same is read
/// after it: a store may have been restored in between to the very version that was known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Knowledge {
    /// `None`: not read since the last break; `Some(None)`: there is no record.
    known: Option<Option<Versioned>>,
    learned: MonoNs,
    /// When its heir's stamp became known.
    heir_learned: MonoNs,
    settled_from: MonoNs,
    /// The highest ever seen, over all breaks.
    highest: Rank,
}

/// Where a sight of the record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The watch, which may lag behind answers.
    Watch,
    /// A read that was asked for at that moment: what it shows was in force later.
    Read { sent: MonoNs },
    /// A swap of our own.
    Swap,
}

/// What a sight of the record was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// Nothing new.
    Same,
    /// A newer record, or the first since a break.
    Newer,
    /// The record went back: the store was restored, or its record created anew.
    Back { seen: Epoch },
    /// It contradicts what is known, and may only be late: to be read again.
    Doubt,
}

/// Orders records by what they say, whatever their versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Rank {
    epoch: Epoch,
    renewal: u64,
}

impl Knowledge {
    /// Takes in what the record was seen to be.
    pub(super) fn learn(&mut self, now: MonoNs, seen: Option<Versioned>, source: Source) -> Learned {
        let rank = Rank::of(seen.as_ref());
        let went_back = rank < self.highest;
        let epoch = self.highest.epoch;
        match &self.known {
            None => {
                // The first word after a break must be one that was asked for after it.
                let Source::Read { .. } = source else { return Learned::Doubt };
                self.settled_from = now;
                self.accept(now, seen, rank);
                return if went_back { Learned::Back { seen: epoch } } else { Learned::Newer };
            }
            Some(known) if *known == seen => return Learned::Same,
            Some(_) => {}
        }
        let version = seen.as_ref().map_or(Version::NONE, |seen| seen.version);
        if version > self.version() && !went_back {
            self.accept(now, seen, rank);
            return Learned::Newer;
        }
        match source {
            Source::Read { sent } if sent >= self.learned => {
                self.settled_from = now;
                self.accept(now, seen, rank);
                Learned::Back { seen: epoch }
            }
            Source::Read { .. } | Source::Watch | Source::Swap => Learned::Doubt,
        }
    }

    fn accept(&mut self, now: MonoNs, seen: Option<Versioned>, rank: Rank) {
        let heir = |known: &Option<Versioned>| known.as_ref().and_then(|known| known.record.heir);
        if self.known.as_ref().is_none_or(|known| heir(known) != heir(&seen)) {
            self.heir_learned = now;
        }
        self.known = Some(seen);
        self.learned = now;
        self.highest = self.highest.max(rank);
    }

    /// The connection broke: nothing is known until it is read again.
    pub(super) fn forget(&mut self) {
        self.known = None;
    }

    /// The wait begins again.
    pub(super) fn wait_again(&mut self, now: MonoNs) {
        self.learned = now;
    }

    /// The wait for its heir begins again.
    pub(super) fn wait_for_heir_again(&mut self, now: MonoNs) {
        self.heir_learned = now;
    }

    /// Whether the record, or that there is none, is known.
    pub(super) fn is_read(&self) -> bool {
        self.known.is_some()
    }

    /// The record, if one is known.
    pub(super) fn record(&self) -> Option<&Record> {
        self.known.as_ref()?.as_ref().map(|known| &known.record)
    }

    /// Its version.
    pub(super) fn version(&self) -> Version {
        self.known.as_ref().and_then(Option::as_ref).map_or(Version::NONE, |known| known.version)
    }

    /// When its last change became known.
    pub(super) fn learned(&self) -> MonoNs {
        self.learned
    }

    /// When its heir's stamp became known: it was taken before.
    pub(super) fn heir_learned(&self) -> MonoNs {
        self.heir_learned
    }

    /// Since when it has been followed without a break.
    pub(super) fn settled_from(&self) -> MonoNs {
        self.settled_from
    }

    /// The highest epoch ever seen in it.
    pub(super) fn highest_epoch(&self) -> Epoch {
        self.highest.epoch
    }
}

impl Rank {
    fn of(seen: Option<&Versioned>) -> Self {
        seen.map_or_else(Self::default, |seen| Self { epoch: seen.record.epoch, renewal: seen.record.renewal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{member, record};

    fn at(version: u64, count: u64, renewal: u64) -> Option<Versioned> {
        Some(Versioned { version: Version(version), record: Record { renewal, ..record(count, &member(1, 1)) } })
    }

    fn read(sent: u64) -> Source {
        Source::Read { sent: MonoNs(sent) }
    }

    fn knowing(version: u64, count: u64, renewal: u64) -> Knowledge {
        let mut knowledge = Knowledge::default();
        assert_eq!(knowledge.learn(MonoNs(10), at(version, count, renewal), read(9)), Learned::Newer);
        knowledge
    }

    #[test]
    fn only_a_change_moves_the_moment_of_learning() {
        let mut knowledge = knowing(5, 1, 1);
        assert_eq!(knowledge.learn(MonoNs(20), at(5, 1, 1), Source::Watch), Learned::Same);
        assert_eq!(knowledge.learned(), MonoNs(10));
        assert_eq!(knowledge.learn(MonoNs(30), at(6, 1, 2), Source::Watch), Learned::Newer);
        assert_eq!((knowledge.learned(), knowledge.settled_from()), (MonoNs(30), MonoNs(10)));
    }

    #[test]
    fn what_is_merely_late_raises_doubt_and_changes_nothing() {
        let mut knowledge = knowing(5, 1, 5);
        let before = knowledge.clone();
        assert_eq!(knowledge.learn(MonoNs(20), at(4, 1, 4), Source::Watch), Learned::Doubt);
        assert_eq!(knowledge.learn(MonoNs(20), at(4, 1, 4), read(8)), Learned::Doubt, "asked before it was known");
        assert_eq!(knowledge.learn(MonoNs(20), None, Source::Watch), Learned::Doubt);
        assert_eq!(knowledge, before);
    }

    #[test]
    fn a_record_that_went_back_begins_the_wait_again() {
        for (seen, what) in [
            (at(4, 1, 4), "an older version"),
            (at(9, 1, 4), "an older content under a newer version"),
            (at(5, 1, 4), "another content under the same version"),
            (None, "removed"),
        ] {
            let mut knowledge = knowing(5, 1, 5);
            let learned = knowledge.learn(MonoNs(20), seen, read(11));
            assert_eq!(learned, Learned::Back { seen: Epoch::new(1, 1) }, "{what}");
            assert_eq!((knowledge.learned(), knowledge.settled_from()), (MonoNs(20), MonoNs(20)), "{what}");
            assert_eq!(knowledge.highest_epoch(), Epoch::new(1, 1), "{what}");
        }
    }

    #[test]
    fn after_a_break_the_same_record_is_news() {
        let mut knowledge = knowing(5, 1, 5);
        knowledge.forget();
        assert!(!knowledge.is_read());
        assert_eq!(knowledge.learn(MonoNs(20), at(5, 1, 5), Source::Watch), Learned::Doubt);
        assert_eq!(knowledge.learn(MonoNs(20), at(5, 1, 5), read(15)), Learned::Newer);
        assert_eq!((knowledge.learned(), knowledge.settled_from()), (MonoNs(20), MonoNs(20)));
    }
}
