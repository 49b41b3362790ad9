//! Which cores a thread may run on.

use std::io;

use core_affinity::CoreId;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to one core.
///
/// # Errors
/// If the core does not exist, is offline, or is not available to this process. A thread on another core than
/// configured would falsify every measured latency, so there is no fallback.
pub fn pin_to(core: usize) -> Result<(), PinError> {
    // The `core_affinity` crate has a core set of fixed size and must not be given a core beyond it.
    let is_pinned = core < CpuSet::MAX_CPU && core_affinity::set_for_current(CoreId { id: core });
    if is_pinned { Ok(()) } else { Err(PinError { core, usable: pinnable_cores() }) }
}

/// Confines the calling thread, and all threads and processes that it starts from now on, to these cores. A thread leaves
/// them again by [`pin_to`].
///
/// # Errors
/// If none of the cores exists, is online, and is available to this process; nothing is changed then.
pub fn confine_to(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}

/// The calling thread runs on other cores until this is dropped, by the same thread. What it touches first meanwhile lies in
/// the memory of those cores' node.
#[derive(Debug)]
pub struct TemporaryAffinity {
    before: CpuSet,
}

impl TemporaryAffinity {
    /// Moves the calling thread to these cores.
    ///
    /// # Errors
    /// As [`confine_to`].
    pub fn to(cores: &[usize]) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        confine_to(cores).map(|()| Self { before })
    }
}

impl Drop for TemporaryAffinity {
    fn drop(&mut self) {
        // The cores were granted before, so the kernel grants them again.
        let _granted_again = sched_setaffinity(None, &self.before);
    }
}

/// The cores on which the calling thread may run; empty if the kernel does not report them.
#[must_use]
pub fn usable_cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// The cores to which a thread of this process can be pinned: those that the kernel grants to a thread that asks for all.
/// They include isolated cores (`isolcpus`), on which no thread runs unless it asks. The calling thread is confined as
/// before on return.
#[must_use]
pub fn pinnable_cores() -> Vec<usize> {
    let Ok(before) = sched_getaffinity(None) else { return Vec::new() };
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).collect();
    let granted = confine_to(&all).map(|()| usable_cores());
    // The cores were granted before, so the kernel grants them again.
    let _granted_again = sched_setaffinity(None, &before);
    granted.unwrap_or_default()
}

/// A thread could not be pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot pin a thread to core {core}: cores available to this process: {usable:?}")]
pub struct PinError {
    /// Number of the core that the configuration names, as in `/proc/cpuinfo`.
    pub core: usize,
    /// The cores available to this process.
    pub usable: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_its_core_only() {
        let core = *usable_cores().last().unwrap();
        std::thread::spawn(move || {
            pin_to(core).unwrap();
            assert_eq!(usable_cores(), [core]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused_and_named() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            let refused = pin_to(core).unwrap_err();
            assert_eq!(refused.core, core);
            assert!(!refused.usable.is_empty());
        }
    }

    #[test]
    fn a_confined_thread_passes_its_cores_on_and_can_be_pinned_to_any_other() {
        let cores = usable_cores();
        let [first, .., last] = *cores else { return };
        std::thread::spawn(move || {
            confine_to(&[first]).unwrap();
            let of_child = std::thread::spawn(move || {
                let inherited = usable_cores();
                let refused = pin_to(CpuSet::MAX_CPU).unwrap_err();
                assert!(refused.usable.contains(&last), "{refused}");
                assert_eq!(usable_cores(), inherited, "a refusal changes nothing");
                pin_to(last).unwrap();
                (inherited, usable_cores())
            });
            assert_eq!(of_child.join().unwrap(), (vec![first], vec![last]));
            assert_eq!(usable_cores(), [first]);
            assert!(confine_to(&[]).is_err() && confine_to(&[usize::MAX]).is_err());
            assert_eq!(usable_cores(), [first]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_has_its_own_cores_again_after_a_temporary_affinity() {
        let cores = usable_cores();
        let [first, .., last] = *cores else { return };
        std::thread::spawn(move || {
            confine_to(&[first]).unwrap();
            let temporary = TemporaryAffinity::to(&[last]).unwrap();
            assert_eq!(usable_cores(), [last]);
            drop(temporary);
            assert_eq!(usable_cores(), [first]);
            TemporaryAffinity::to(&[usize::MAX]).unwrap_err();
            assert_eq!(usable_cores(), [first]);
        })
        .join()
        .unwrap();
    }
}
