//! Locks the process's memory, and keeps it out of core dumps.

use std::{fs, io};

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior},
};

/// Locks the present memory of the process, its program included, and all memory that it touches later. Locked memory
/// is not swapped out or dropped when memory runs short, so no thread waits for a disk to read its program again.
/// Reserved memory is locked only when the process touches it.
///
/// # Errors
/// If the process may not lock all memory, see [`check_lockable`].
pub fn lock_all() -> io::Result<()> {
    check_lockable()?;
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?;
    Ok(())
}

/// Whether this process may lock all of its memory.
///
/// # Errors
/// If locked memory is limited and the process has no right to exceed the limit: every later mapping beyond the limit
/// would fail.
pub fn check_lockable() -> io::Result<()> {
    let Some(limit_bytes) = getrlimit(Resource::Memlock).current else { return Ok(()) };
    let status = fs::read_to_string("/proc/self/status")?;
    if has_capability(&status, CAP_IPC_LOCK) {
        return Ok(());
    }
    let why = format!("at most {limit_bytes} bytes may be locked (RLIMIT_MEMLOCK), and CAP_IPC_LOCK is missing");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// From now on this process leaves no core dump when it dies, whatever the limits and the system's core pattern are. Only root
/// can attach to it, or read its memory.
///
/// # Errors
/// As prctl(2).
pub fn forbid_core_dumps() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Whether a process with that `/proc/PID/status` has a capability in effect.
fn has_capability(status: &str, number: u32) -> bool {
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    set.is_some_and(|set| set >> number & 1 == 1)
}

/// `linux/capability.h`.
const CAP_IPC_LOCK: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let status = "Name:\tmdgw\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000004000\nCapBnd:\t0000000000000000\n";
        assert!(has_capability(status, CAP_IPC_LOCK));
        assert!(!has_capability(status, CAP_IPC_LOCK - 1) && !has_capability(status, CAP_IPC_LOCK + 1));
        assert!(!has_capability("Name:\tmdgw\n", CAP_IPC_LOCK));
        assert!(!has_capability("CapEff:\tnone\n", CAP_IPC_LOCK));
    }
}
