//! Prepares the sentinel's process: prompt scheduling, locked memory, protection from the out-of-memory killer, as far
//! as permitted.

use mdgw_sys::scheduler::{request_short_slice, set_fifo};
use rustix::mm::{MlockAllFlags, mlockall};

/// Locks the process's memory and protects it from the out-of-memory killer. This thread and the threads that it starts
/// wake promptly, with a real-time priority if requested. Returns each step that was not permitted, with its reason.
pub fn prepare_process(priority: u8) -> Vec<String> {
    let mut refused = Vec::new();
    let mut record = |act: &str, outcome: Result<(), String>| {
        if let Err(error) = outcome {
            refused.push(format!("{act}: {error}"));
        }
    };
    // Done before memory is locked, since locking may push other processes out.
    record(
        "oom_score_adj -1000",
        std::fs::write("/proc/self/oom_score_adj", "-1000").map_err(|error| error.to_string()),
    );
    let lock = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    record("lock memory (mlockall)", lock.map_err(|error| error.to_string()));
    request_short_slice();
    if priority > 0 {
        let fifo = set_fifo(priority).map_err(|error| error.to_string());
        record(&format!("SCHED_FIFO priority {priority}"), fifo);
    }
    refused
}
