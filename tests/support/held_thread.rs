//! Threads of another process that are held at a system call, or refused it, by strace(1).

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use crate::process::wait_until;

/// Whether strace is installed.
#[must_use]
pub fn has_strace() -> bool {
    Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok()
}

/// Holds threads until it is dropped or [released](Self::release).
#[derive(Debug)]
pub struct HeldThreads(Child);

impl HeldThreads {
    /// Holds each thread of the process at its next entry into `system_call`.
    ///
    /// # Panics
    /// When strace can't be started.
    #[must_use]
    pub fn all(process: u32, system_call: &str) -> Self {
        Self::start(&["-f"], process, system_call, HOLD)
    }

    /// Refuses all threads of the process the system call, with that error. Returns when all are traced.
    ///
    /// # Panics
    /// When strace can't be started.
    #[must_use]
    pub fn refused(process: u32, system_call: &str, error: &str) -> Self {
        let refused = Self::start(&["-f"], process, system_call, &format!("error={error}"));
        wait_until("all threads are traced", || {
            let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
            let is_traced = |task: fs::DirEntry| {
                fs::read_to_string(task.path().join("status")).is_ok_and(|status| !status.contains("TracerPid:\t0"))
            };
            tasks.flatten().all(is_traced)
        });
        refused
    }

    /// Holds the thread with that name at its next entry into `system_call`.
    ///
    /// # Panics
    /// When there is no such thread, or strace can't be started.
    #[must_use]
    pub fn named(process: u32, name: &str, system_call: &str) -> Self {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
        let has_name = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim_end() == name)
        };
        let task = tasks.flatten().find(has_name).unwrap_or_else(|| panic!("no thread {name}"));
        let thread = task.file_name().to_string_lossy().parse().expect("tasks are numbers");
        Self::numbered(thread, system_call)
    }

    /// Holds the thread with that number at its next entry into `system_call`. The main thread has its process's number.
    ///
    /// # Panics
    /// When strace can't be started.
    #[must_use]
    pub fn numbered(thread: u32, system_call: &str) -> Self {
        Self::start(&[], thread, system_call, HOLD)
    }

    fn start(options: &[&str], thread: u32, system_call: &str, fault: &str) -> Self {
        let mut command = Command::new("strace");
        command.args(options).args(["-q", "-e", &format!("trace={system_call}"), "-e"]);
        command.arg(format!("inject={system_call}:{fault}")).arg("-p").arg(thread.to_string());
        Self(command.stderr(Stdio::null()).spawn().expect("strace starts"))
    }

    /// Lets the threads go on.
    ///
    /// # Panics
    /// When strace has ended before.
    pub fn release(mut self) {
        self.0.kill().expect("the tracer is a child of the test");
        let _ended = self.0.wait();
    }
}

/// For longer than any test takes.
const HOLD: &str = "delay_enter=600000000:when=1";

impl Drop for HeldThreads {
    fn drop(&mut self) {
        // After a release it has ended.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}
