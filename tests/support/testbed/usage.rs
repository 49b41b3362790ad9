//! Memory, threads, descriptors and processor time of a process, from `/proc`.

use std::{collections::BTreeMap, fs};

/// Resources that a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUse {
    /// Resident memory (`VmRSS`), bytes.
    pub resident_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl ResourceUse {
    /// What that process holds now; `None` if it has ended.
    #[must_use]
    pub fn of(process_id: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process_id}/status")).ok()?;
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        Some(Self {
            resident_bytes: number("VmRSS:")? * 1_024,
            threads: number("Threads:")?,
            descriptors: fs::read_dir(format!("/proc/{process_id}/fd")).ok()?.count() as u64,
        })
    }

    /// The larger value of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            resident_bytes: self.resident_bytes.max(other.resident_bytes),
            threads: self.threads.max(other.threads),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }
}

/// Processor time of each thread so far, ns, by name; threads of one name are added. Threads that have ended are missing.
///
/// The scheduler's own sum (`schedstat`) is exact; `utime` and `stime` of `stat` are that sum in ticks of 10 ms.
#[must_use]
pub fn thread_times_ns(process_id: u32) -> BTreeMap<String, u64> {
    let mut times = BTreeMap::new();
    let threads = fs::read_dir(format!("/proc/{process_id}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).ok();
        if let (Some(name), Some(schedstat)) = (read("comm"), read("schedstat"))
            && let Some(ns) = schedstat.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok())
        {
            *times.entry(name.trim_end().to_owned()).or_default() += ns;
        }
    }
    times
}

/// Datagrams that the sockets of that local port have dropped, in the caller's network namespace.
#[must_use]
pub fn socket_drops(port: u16) -> u64 {
    let sockets = fs::read_to_string("/proc/thread-self/net/udp").unwrap_or_default();
    let local = format!(":{port:04X}");
    let lines = sockets.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let drops = lines.filter(|fields| fields.get(1).is_some_and(|address| address.ends_with(&local)));
    drops.filter_map(|fields| fields.last()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, process};

    use super::*;

    #[test]
    fn this_process_is_read() {
        let used = ResourceUse::of(process::id()).expect("this process runs");
        assert!(used.resident_bytes > 1 << 20 && used.threads > 0 && used.descriptors > 0, "{used:?}");
        assert_eq!(ResourceUse::of(u32::MAX), None);
        // Each reading uses processor time, so the sum grows.
        let before: u64 = thread_times_ns(process::id()).values().sum();
        while thread_times_ns(process::id()).values().sum::<u64>() <= before {}
    }

    #[test]
    fn drops_of_a_full_socket_are_read_by_its_port() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket opens");
        let to = socket.local_addr().expect("it has an address");
        assert_eq!(socket_drops(to.port()), 0);
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket opens");
        while socket_drops(to.port()) == 0 {
            sender.send_to(&[0; 1_000], to).expect("loopback takes a datagram");
        }
    }
}
