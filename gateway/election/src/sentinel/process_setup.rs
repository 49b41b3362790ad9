//! How a sentinel makes itself quick and hard to take along, as far as it may.

use mdgw_sys::scheduler::{request_short_slice, set_fifo};
use rustix::mm::{MlockAllFlags, mlockall};

/// Locks the process's memory and keeps it from being chosen when memory runs out; this thread and those that it starts
/// wake promptly, with a real-time priority if they are to have one. What it may not do, each with its reason.
pub fn prepare_process(priority: u8) -> Vec<String> {
    let mut refused = Vec::new();
    let mut record = |act: &str, outcome: Result<(), String>| {
        if let Err(error) = outcome {
            refused.push(format!("{act}: {error}"));
        }
    };
    // Before memory is locked, which may push others out.
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
