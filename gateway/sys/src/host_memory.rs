//! How much memory a process may use: that of the host, or less where a cgroup limits the process.

use std::{fs, path::Path};

/// The memory of the host or, where its limit is lower, of a cgroup (v2) around the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// Bytes that could be taken without pushing out anything but the page cache.
    pub available_bytes: u64,
    /// The cgroup whose `memory.max` is `total_bytes`; `None`: no limit is below the host's memory.
    pub cgroup: Option<String>,
}

impl HostMemory {
    /// For the present process; `None` if the kernel does not show it.
    #[must_use]
    pub fn read() -> Option<Self> {
        Self::of_process("self", |path| fs::read_to_string(path).ok())
    }

    /// For a process below `/proc`. `text` reads a file.
    #[must_use]
    pub fn of_process(process: &str, text: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let meminfo = text("/proc/meminfo")?;
        let mut memory = Self {
            total_bytes: meminfo_bytes(&meminfo, "MemTotal:")?,
            available_bytes: meminfo_bytes(&meminfo, "MemAvailable:")?,
            cgroup: None,
        };
        let own = text(&format!("/proc/{process}/cgroup")).unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        // The last one is "/". In a container with a cgroup namespace of its own (Docker's and Kubernetes' default) that is the cgroup
        // of the container. The root of the host has no `memory.max`.
        for cgroup in Path::new(own).ancestors().filter_map(Path::to_str) {
            let directory = format!("/sys/fs/cgroup{}", cgroup.trim_end_matches('/'));
            let number = |file: &str| text(&format!("{directory}/{file}"))?.trim().parse::<u64>().ok();
            // Without a limit the file says "max".
            let Some(max) = number("memory.max") else { continue };
            if max < memory.total_bytes {
                (memory.total_bytes, memory.cgroup) = (max, Some(cgroup.to_owned()));
            }
            let stat = text(&format!("{directory}/memory.stat")).unwrap_or_default();
            let page_cache = stat_bytes(&stat, "inactive_file ").saturating_add(stat_bytes(&stat, "active_file "));
            let used = number("memory.current").unwrap_or(0).saturating_sub(page_cache);
            memory.available_bytes = memory.available_bytes.min(max.saturating_sub(used));
        }
        Some(memory)
    }
}

/// A line of `/proc/meminfo`, which counts in KiB.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

fn stat_bytes(stat: &str, name: &str) -> u64 {
    stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24684092 kB\nMemFree:          397496 kB\nMemAvailable:   22349808 kB\n";

    fn read(files: &[(&str, &str)]) -> Option<HostMemory> {
        HostMemory::of_process("7", |path| {
            files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_memory_is_the_hosts_without_a_limit() {
        let host = HostMemory { total_bytes: 24_684_092 << 10, available_bytes: 22_349_808 << 10, cgroup: None };
        assert_eq!(read(&[("/proc/meminfo", MEMINFO)]), Some(host.clone()));
        let unlimited = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/7/cgroup", "4:memory:/old\n0::/system.slice/mdgw.service\n"),
            ("/sys/fs/cgroup/system.slice/mdgw.service/memory.max", "max\n"),
        ];
        assert_eq!(read(&unlimited), Some(host));
    }

    #[test]
    fn the_lowest_limit_of_the_cgroups_around_a_process_counts() {
        let files = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/7/cgroup", "0::/system.slice/mdgw.service\n"),
            ("/sys/fs/cgroup/system.slice/mdgw.service/memory.max", "8589934592\n"),
            ("/sys/fs/cgroup/system.slice/mdgw.service/memory.current", "1000000000\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "4294967296\n"),
            ("/sys/fs/cgroup/system.slice/memory.current", "3000000000\n"),
            ("/sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file 400000000\nactive_file 100000000\n"),
        ];
        let available_bytes = (4 << 30) - 2_500_000_000;
        let cgroup = Some("/system.slice".to_owned());
        assert_eq!(read(&files), Some(HostMemory { total_bytes: 4 << 30, available_bytes, cgroup }));
    }

    #[test]
    fn in_a_container_the_limit_at_the_root_of_its_cgroup_namespace_counts() {
        let root = [
            ("/sys/fs/cgroup/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/memory.current", "1000000000\n"),
            ("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 200000000\nactive_file 100000000\n"),
        ];
        let limited =
            HostMemory { total_bytes: 2 << 30, available_bytes: (2 << 30) - 700_000_000, cgroup: Some("/".to_owned()) };
        // The process that began the container, and one in a cgroup below, as an init system there makes them.
        for own in ["0::/\n", "0::/mdgw.service\n"] {
            let files = [&[("/proc/meminfo", MEMINFO), ("/proc/7/cgroup", own)], &root[..]].concat();
            assert_eq!(read(&files), Some(limited.clone()), "{own}");
        }
        // The root of the host has a `memory.stat`, and neither a limit nor a count.
        let host = [("/proc/meminfo", MEMINFO), ("/proc/7/cgroup", "0::/\n"), root[2]];
        let total_bytes = 24_684_092 << 10;
        assert_eq!(read(&host).map(|host| (host.total_bytes, host.cgroup)), Some((total_bytes, None)));
    }

    #[test]
    fn what_the_kernel_does_not_show_is_unknown() {
        assert_eq!(read(&[]), None);
        for text in
            ["", "MemTotal: 1 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n", "MemTotal: 99999999999999999999 kB\n"]
        {
            assert_eq!(read(&[("/proc/meminfo", text)]), None, "{text}");
        }
    }
}
