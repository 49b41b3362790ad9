//! Which thread runs on which core.

use anyhow::{Result, ensure};
use mdgw_sys::affinity::usable_cores;

/// The cores of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    /// Of the pool, or of the bare loop: one for each thread.
    pub(super) pool: Vec<usize>,
    pub(super) sender: usize,
    pub(super) receiver: usize,
}

impl Cores {
    /// Those that the user chose, and otherwise spread over the usable cores: the pool's threads on the last ones, the
    /// sender on the first and the receiver on the second, if there is one for each.
    pub(super) fn choose(
        threads: usize,
        pool: &[usize],
        sender: Option<usize>,
        receiver: Option<usize>,
    ) -> Result<Self> {
        Self::of(&usable_cores(), threads, pool, sender, receiver)
    }

    fn of(
        usable: &[usize],
        threads: usize,
        pool: &[usize],
        sender: Option<usize>,
        receiver: Option<usize>,
    ) -> Result<Self> {
        ensure!(pool.is_empty() || pool.len() >= threads, "--pool-cores: {threads} threads need a core each");
        ensure!(usable.len() >= threads, "{threads} threads need a core each, and {} cores are usable", usable.len());
        let pool = match pool {
            [] => usable[usable.len() - threads..].to_vec(),
            chosen => chosen[..threads].to_vec(),
        };
        let mut free = usable.iter().copied().filter(|core| !pool.contains(core));
        let sender = sender.or_else(|| free.next()).unwrap_or(usable[0]);
        let receiver = receiver.or_else(|| free.find(|core| *core != sender)).unwrap_or(sender);
        Ok(Self { pool, sender, receiver })
    }

    /// Whether one thread both sends and receives.
    pub(super) fn is_shared(&self) -> bool {
        self.sender == self.receiver
    }

    /// For the reader of a result.
    pub(super) fn description(&self) -> String {
        let pool: Vec<String> = self.pool.iter().map(ToString::to_string).collect();
        let outside = if self.is_shared() {
            format!("sender and receiver share core {}", self.sender)
        } else {
            format!("sender on core {}, receiver on core {}", self.sender, self.receiver)
        };
        let warning = if self.pool.contains(&self.sender) || self.pool.contains(&self.receiver) {
            "; WARNING: the pool has no cores of its own"
        } else {
            ""
        };
        format!("pool on {} {}, {outside}{warning}", if pool.len() == 1 { "core" } else { "cores" }, pool.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(usable: &[usize], threads: usize, pool: &[usize]) -> Cores {
        Cores::of(usable, threads, pool, None, None).unwrap()
    }

    #[test]
    fn sender_and_receiver_share_a_core_only_where_cores_are_few() {
        assert_eq!(choose(&[0, 1], 1, &[]), Cores { pool: vec![1], sender: 0, receiver: 0 });
        assert_eq!(choose(&[0, 1, 2, 3], 1, &[]), Cores { pool: vec![3], sender: 0, receiver: 1 });
        assert_eq!(choose(&[0, 1, 2, 3], 2, &[1, 2]), Cores { pool: vec![1, 2], sender: 0, receiver: 3 });
        assert!(choose(&[0, 1, 2, 3], 1, &[]).description().contains("receiver on core 1"));
    }

    #[test]
    fn a_pool_without_cores_of_its_own_is_named() {
        let cores = choose(&[0, 1], 2, &[]);
        assert_eq!(cores, Cores { pool: vec![0, 1], sender: 0, receiver: 0 });
        assert!(cores.description().contains("WARNING"), "{}", cores.description());
        assert!(Cores::of(&[0], 2, &[], None, None).is_err());
        assert!(Cores::of(&[0, 1], 2, &[1], None, None).is_err());
    }
}
