//! How many connections or sessions are open, by address or key.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
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

/// Connections of one second. An address may have half of them: the others are left to other addresses.
#[derive(Debug)]
pub(crate) struct ConnectionRate {
    max: u32,
    began: Instant,
    admitted: u32,
    refused: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl ConnectionRate {
    /// Admits that many in a second.
    pub(crate) fn new(max: u32) -> Self {
        Self { max, began: Instant::now(), admitted: 0, refused: 0, by_address: HashMap::new() }
    }

    /// Begins another second if this one is over. Returns how many connections were refused in it, if any.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<u32> {
        if now.saturating_duration_since(self.began) < Duration::from_secs(1) {
            return None;
        }
        (self.began, self.admitted) = (now, 0);
        self.by_address.clear();
        Some(std::mem::take(&mut self.refused)).filter(|refused| *refused > 0)
    }

    /// Counts a connection of that address. Returns whether it is admitted.
    pub(crate) fn admit(&mut self, address: IpAddr) -> bool {
        let of_address = self.by_address.entry(address).or_default();
        let is_admitted = self.admitted < self.max && *of_address < self.max.div_ceil(2);
        let count = if is_admitted { &mut self.admitted } else { &mut self.refused };
        *count = count.saturating_add(1);
        *of_address += u32::from(is_admitted);
        is_admitted
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

    /// An address that connects and leaves at once, as often as it can, needs no permit for long.
    #[test]
    fn one_address_leaves_half_of_the_connections_of_a_second_to_others() {
        let mut rate = ConnectionRate::new(10);
        let [one, other] = [1, 2].map(|host| IpAddr::from([127, 0, 0, host]));
        let began = rate.began;
        let mut admitted = |address, count| (0..count).filter(|_| rate.admit(address)).count();
        assert_eq!(admitted(one, 1_000), 5);
        assert_eq!(admitted(other, 3), 3);
        assert_eq!(admitted(one, 1), 0);
        assert_eq!(admitted(IpAddr::from([127, 0, 0, 3]), 9), 2, "ten in all");
        assert_eq!(rate.advance(began + Duration::from_millis(999)), None);
        assert_eq!(rate.advance(began + Duration::from_secs(1)), Some(995 + 1 + 7));
        assert!(rate.admit(one));
        assert_eq!(rate.advance(began + Duration::from_secs(2)), None, "nothing was refused");
    }
}
