//! Keeping the process's memory from being taken away.

use std::{fs, io};

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{Resource, getrlimit},
};

/// Locks what the process has, its program included, and whatever else it comes to touch: nothing of it is written out
/// or dropped when memory runs short, so no thread waits for a disk to read its own program again. Memory that is only
/// reserved stays so.
///
/// # Errors
/// When it may not, as [`check_lockable`] says.
pub fn lock_all() -> io::Result<()> {
    check_lockable()?;
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?;
    Ok(())
}

/// Whether a process may lock all of its memory.
///
/// # Errors
/// With a limit on locked memory and no right to pass it: there a lock for good would have every later mapping that goes
/// beyond the limit fail.
pub fn check_lockable() -> io::Result<()> {
    let Some(limit_bytes) = getrlimit(Resource::Memlock).current else { return Ok(()) };
    let status = fs::read_to_string("/proc/self/status")?;
    if has_capability(&status, CAP_IPC_LOCK) {
        return Ok(());
    }
    let why = format!("at most {limit_bytes} bytes may be locked (RLIMIT_MEMLOCK), and CAP_IPC_LOCK is missing");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Whether a process with that `/proc/PID/status` has a capability in force.
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
