//! A memory cgroup for a process and its children, whose limit a test can lower.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::skip::skip;

/// A memory cgroup, of version 1 or 2. Dropping it removes it, once no process is in it.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    files: &'static CgroupFiles,
    /// The OOM kill count when the limit was last lifted.
    oom_kills_before: AtomicU64,
}

/// File names of one cgroup version.
#[derive(Debug)]
struct CgroupFiles {
    limit: &'static str,
    no_limit: &'static str,
    usage: &'static str,
    /// The file with the count of OOM kills.
    events: &'static str,
}

const VERSION_1: CgroupFiles = CgroupFiles {
    limit: "memory.limit_in_bytes",
    no_limit: "-1",
    usage: "memory.usage_in_bytes",
    events: "memory.oom_control",
};
const VERSION_2: CgroupFiles =
    CgroupFiles { limit: "memory.max", no_limit: "max", usage: "memory.current", events: "memory.events" };

impl MemoryCgroup {
    /// An empty cgroup. `None`, with a message on standard error, without the permission for it: `test` is then skipped.
    ///
    /// # Panics
    /// When the kernel's mounts can't be read.
    #[must_use]
    pub fn new(test: &str, name: &str) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts can be read");
        let name = format!("mdgw-test-{}-{}-{name}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let cgroup = mounts.lines().find_map(|mount| {
            let fields: Vec<&str> = mount.split(' ').collect();
            let (point, kind, options) = (fields.get(1)?, *fields.get(2)?, fields.get(3)?);
            let files = match kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => &VERSION_1,
                "cgroup2" => &VERSION_2,
                _ => return None,
            };
            let path = Path::new(point).join(&name);
            fs::create_dir(&path).ok()?;
            // A cgroup without a memory limit is dropped, and so removed.
            Some(Self { path, files, oom_kills_before: AtomicU64::new(0) })
                .filter(|cgroup| cgroup.path.join(files.limit).exists())
        });
        if cgroup.is_none() {
            skip(test, "counting memory takes a cgroup of that kind, and root");
        }
        cgroup
    }

    /// The file through which a process joins the cgroup.
    #[must_use]
    pub fn procs_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Limits the processes of the cgroup to their present memory. The kernel kills one of them when they need more.
    pub fn limit_to_current_usage(&self) {
        let usage = fs::read_to_string(self.path.join(self.files.usage)).unwrap_or_default();
        // Fails if the usage has grown meanwhile; then the limit is set again.
        let _limited = self.set_limit(usage.trim());
    }

    /// Whether the kernel has killed a process of the cgroup since the limit was last lifted.
    #[must_use]
    pub fn has_oom_killed(&self) -> bool {
        self.oom_kill_count() > self.oom_kills_before.load(Ordering::Relaxed)
    }

    fn oom_kill_count(&self) -> u64 {
        let events = fs::read_to_string(self.path.join(self.files.events)).unwrap_or_default();
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Lifts the limit.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn lift_limit(&self) {
        self.oom_kills_before.store(self.oom_kill_count(), Ordering::Relaxed);
        self.set_limit(self.files.no_limit).expect("a limit can be lifted");
    }

    fn set_limit(&self, bytes: &str) -> io::Result<()> {
        fs::write(self.path.join(self.files.limit), bytes)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Fails while a process is still in it; an empty cgroup does no harm.
        let _removed = fs::remove_dir(&self.path);
    }
}
