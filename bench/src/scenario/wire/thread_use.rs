//! What the threads of a process had of the cores, from `/proc`.

use std::{fs, io};

/// Times of a process's threads, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadUse {
    /// Time in which the pool's threads were ready to run and waited for their core.
    pub(super) pool_wait_ns: u64,
    /// Time on a core of all other threads.
    pub(super) cold_cpu_ns: u64,
    /// Of these, the time of the admin listener.
    pub(super) admin_cpu_ns: u64,
}

impl ThreadUse {
    /// Since the process started. The pool's threads are those whose name begins with `pool_prefix`.
    pub(super) fn of(process: u32, pool_prefix: &str) -> io::Result<Self> {
        let mut all = Self::default();
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let thread = thread?.path();
            // A thread that has ended meanwhile has no files.
            let Ok(name) = fs::read_to_string(thread.join("comm")) else { continue };
            let Ok(times) = fs::read_to_string(thread.join("schedstat")) else { continue };
            all.add(name.starts_with(pool_prefix), name.trim_end() == ADMIN_THREAD, &times);
        }
        Ok(all)
    }

    fn add(&mut self, is_pool: bool, is_admin: bool, schedstat: &str) {
        let mut fields = schedstat.split_whitespace().map_while(|field| field.parse::<u64>().ok());
        let (cpu_ns, wait_ns) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
        if is_pool {
            self.pool_wait_ns += wait_ns;
        } else {
            self.cold_cpu_ns += cpu_ns;
            self.admin_cpu_ns += if is_admin { cpu_ns } else { 0 };
        }
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            pool_wait_ns: self.pool_wait_ns.saturating_sub(before.pool_wait_ns),
            cold_cpu_ns: self.cold_cpu_ns.saturating_sub(before.cold_cpu_ns),
            admin_cpu_ns: self.admin_cpu_ns.saturating_sub(before.admin_cpu_ns),
        }
    }
}

const ADMIN_THREAD: &str = "mdgw-admin";

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn pool_threads_count_by_their_waits_and_others_by_their_work() {
        let mut all = ThreadUse::default();
        all.add(true, false, "1000 200 7\n");
        all.add(false, false, "30 4 1\n");
        all.add(false, true, "5 0 1\n");
        assert_eq!(all, ThreadUse { pool_wait_ns: 200, cold_cpu_ns: 35, admin_cpu_ns: 5 });
    }

    #[test]
    fn the_work_of_another_process_is_seen() {
        let mut process = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let before = ThreadUse::of(process.id(), "no such name").unwrap();
        // Only a process that never runs never passes this.
        while ThreadUse::of(process.id(), "no such name").unwrap().since(before).cold_cpu_ns < 1_000_000 {
            std::thread::yield_now();
        }
        assert_eq!(ThreadUse::of(process.id(), "sh").unwrap().cold_cpu_ns, 0, "its only thread is of the pool");
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(ThreadUse::of(process.id(), "sh").is_err(), "there is no such process any more");
    }
}
