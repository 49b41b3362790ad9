//! Threads to cores.

use core_affinity::CoreId;

/// Pins the calling thread to one core.
///
/// # Errors
/// When the core does not exist, is offline, or lies outside what this process may use. A thread that runs elsewhere
/// than configured would falsify every latency figure, so there is no fallback.
pub fn pin_to(core: usize) -> Result<(), PinError> {
    // The crate's set of cores has a fixed size and must not be asked for a core beyond it.
    let allowed = core < CORE_COUNT_MAX && core_affinity::set_for_current(CoreId { id: core });
    if allowed { Ok(()) } else { Err(PinError { core, usable: usable_cores() }) }
}

/// The cores that the calling thread may use; empty when the kernel doesn't say.
#[must_use]
pub fn usable_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// A refused pin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot pin a thread to core {core}: cores available to this process: {usable:?}")]
pub struct PinError {
    /// What was asked for.
    pub core: usize,
    /// What could have been had.
    pub usable: Vec<usize>,
}

/// `CPU_SETSIZE` of the C library.
const CORE_COUNT_MAX: usize = 1_024;

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
        for core in [CORE_COUNT_MAX - 1, CORE_COUNT_MAX, usize::MAX] {
            let refused = pin_to(core).unwrap_err();
            assert_eq!(refused.core, core);
            assert!(!refused.usable.is_empty());
        }
    }
}
