//! How many connections or sessions are open, by address or key.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Counts what is open: in all, and for each owner.
#[derive(Debug)]
pub(crate) struct Admissions<K: Eq + Hash> {
    max: usize,
    /// Owners without an admission are absent.
    open: Mutex<HashMap<K, usize>>,
}

/// One that is open. Dropping it makes room.
#[derive(Debug)]
pub(crate) struct Admission<K: Eq + Hash> {
    admissions: Arc<Admissions<K>>,
    owner: K,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// This owner has the most: that many.
    OfOwner(usize),
    /// All together have the most.
    InAll,
}

impl<K: Clone + Eq + Hash> Admissions<K> {
    /// Admits at most `max` in all.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// Counts one more, of which its owner may have `of_owner_max`.
    pub(crate) fn admit(self: &Arc<Self>, owner: K, of_owner_max: usize) -> Result<Admission<K>, NoRoom> {
        let mut open = self.open();
        let of_owner = open.get(&owner).copied().unwrap_or_default();
        if of_owner >= of_owner_max {
            return Err(NoRoom::OfOwner(of_owner));
        }
        if open.values().sum::<usize>() >= self.max {
            return Err(NoRoom::InAll);
        }
        open.insert(owner.clone(), of_owner + 1);
        Ok(Admission { admissions: Arc::clone(self), owner })
    }

    /// Number of all that are open.
    pub(crate) fn count(&self) -> usize {
        self.open().values().sum()
    }
}

impl<K: Eq + Hash> Admissions<K> {
    fn open(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Admission<K> {
    pub(crate) fn owner(&self) -> &K {
        &self.owner
    }
}

impl<K: Eq + Hash> Drop for Admission<K> {
    fn drop(&mut self) {
        let mut open = self.admissions.open();
        if let Some(of_owner) = open.get_mut(&self.owner) {
            *of_owner -= 1;
            if *of_owner == 0 {
                open.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_takes_no_room_from_others_and_a_dropped_admission_makes_room() {
        let admissions = Admissions::new(3);
        let of_a: Vec<_> = (0..2).map(|_| admissions.admit("a", 2).unwrap()).collect();
        assert_eq!(admissions.admit("a", 2).unwrap_err(), NoRoom::OfOwner(2));
        let of_b = admissions.admit("b", 2).unwrap();
        assert_eq!(admissions.admit("b", 2).unwrap_err(), NoRoom::InAll);
        assert_eq!(admissions.admit("a", 2).unwrap_err(), NoRoom::OfOwner(2), "its own limit comes first");
        drop(of_a);
        assert_eq!(admissions.count(), 1);
        let again = [admissions.admit("a", 2).unwrap(), admissions.admit("a", 2).unwrap()];
        drop((of_b, again));
        assert_eq!(admissions.count(), 0);
        assert!(admissions.open().is_empty(), "no owner is kept");
    }
}
