//! Pins threads to cores.

use core_affinity::CoreId;

/// Pins the calling thread to one core.
///
/// # Errors
/// If the core does not exist, is offline, or is not available to this process. A thread on another core than
/// configured would falsify every measured latency, so there is no fallback.
pub fn pin_to(core: usize) -> Result<(), PinError> {
    // The `core_affinity` crate has a core set of fixed size and must not be given a core beyond it.
    let allowed = core < CORE_COUNT_MAX && core_affinity::set_for_current(CoreId { id: core });
    if allowed { Ok(()) } else { Err(PinError { core, usable: usable_cores() }) }
}

/// The cores available to the calling thread; empty if the kernel does not report them.
#[must_use]
pub fn usable_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// A thread could not be pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot pin a thread to core {core}: cores available to this process: {usable:?}")]
pub struct PinError {
    /// The requested core.
    pub core: usize,
    /// The cores available to this process.
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
