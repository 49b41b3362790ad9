//! Memory, threads and descriptors of the gateways, sampled while they run.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};

/// One sample of one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceSample {
    /// When, ns since 1970 UTC.
    pub time_ns: u64,
    /// Node number of the gateway.
    pub node: u8,
    /// Number of the process; another one after a restart.
    pub process_id: u32,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl ResourceSample {
    pub(super) fn to_json(self) -> Value {
        json!({
            "time_ns": self.time_ns, "node": self.node, "process_id": self.process_id,
            "resident_bytes": self.resident_bytes, "threads": self.threads, "descriptors": self.descriptors,
        })
    }

    /// Reads that process; `None` if it has ended.
    fn of(node: u8, process_id: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process_id}/status")).ok()?;
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        Some(Self {
            time_ns: mdgw_sys::clock::unix_now().0,
            node,
            process_id,
            resident_bytes: number("VmRSS:")? * 1_024,
            threads: number("Threads:")?,
            descriptors: fs::read_dir(format!("/proc/{process_id}/fd")).ok()?.count() as u64,
        })
    }
}

/// A thread that samples the processes that run with certain configuration files.
#[derive(Debug)]
pub(super) struct ResourceSampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<ResourceSample>>,
}

impl ResourceSampler {
    /// Starts it for the gateways with these configuration files: node 1 first.
    pub(super) fn start(configs: Vec<PathBuf>, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !is_stopped.load(Ordering::Relaxed) {
                for (node, config) in (1..).zip(&configs) {
                    samples.extend(process_with(config).and_then(|process_id| ResourceSample::of(node, process_id)));
                }
                std::thread::sleep(every);
            }
            samples
        });
        Self { stop, thread }
    }

    pub(super) fn finish(self) -> Vec<ResourceSample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sampler ends")
    }
}

/// The process whose command line is `mdgw run CONFIG …`. Processes are found by it, since faults restart them.
fn process_with(config: &Path) -> Option<u32> {
    let is_gateway = |process_id: u32| {
        let command_line = fs::read(format!("/proc/{process_id}/cmdline")).unwrap_or_default();
        let mut arguments = command_line.split(|byte| *byte == 0).skip(1);
        arguments.next() == Some(b"run") && arguments.next() == Some(config.as_os_str().as_encoded_bytes())
    };
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.into_iter().find(|process_id| is_gateway(*process_id))
}

/// The highest value of a resource in the second and in the last third of a run. The first third is the warm-up: books and
/// buffers take their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Node number of the gateway.
    pub node: u8,
    /// The resource and its unit.
    pub resource: &'static str,
    /// Maximum in the second third.
    pub middle_max: u64,
    /// Maximum in the last third.
    pub end_max: u64,
    /// Growth up to this is not a leak.
    allowed: u64,
}

impl Growth {
    /// Whether the resource grew by more than an eighth and more than it may vary.
    #[must_use]
    pub fn is_leak(&self) -> bool {
        self.end_max > self.middle_max + (self.middle_max / 8).max(self.allowed)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, resource, middle_max, end_max, .. } = self;
        let verdict = if self.is_leak() { "GROWS" } else { "flat" };
        write!(
            f,
            "gateway {node}, {resource}: at most {middle_max} in the second third, {end_max} in the last: {verdict}"
        )
    }
}

/// A resource: name with unit, how much it may vary, and its value in a sample.
type Resource = (&'static str, u64, fn(&ResourceSample) -> u64);

/// The development of each resource of each gateway.
pub(super) fn growth(samples: &[ResourceSample]) -> Vec<Growth> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Vec::new() };
    let third_ns = (last.time_ns - first.time_ns) / 3;
    let begins = [first.time_ns + third_ns, first.time_ns + 2 * third_ns, u64::MAX];
    let resources: [Resource; 3] = [
        ("resident MiB", 32, |sample| sample.resident_bytes >> 20),
        ("threads", 4, |sample| sample.threads),
        ("descriptors", 16, |sample| sample.descriptors),
    ];
    let mut nodes: Vec<u8> = samples.iter().map(|sample| sample.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let growth_of = |node: u8, (resource, allowed, value): Resource| {
        let max_in = |third: usize| {
            let within = samples.iter().filter(|sample| (begins[third]..begins[third + 1]).contains(&sample.time_ns));
            within.filter(|sample| sample.node == node).map(value).max().unwrap_or_default()
        };
        Growth { node, resource, middle_max: max_in(0), end_max: max_in(1), allowed }
    };
    nodes.into_iter().flat_map(|node| resources.map(|resource| growth_of(node, resource))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_ns: u64, resident_bytes: u64, descriptors: u64) -> ResourceSample {
        ResourceSample { time_ns, node: 1, process_id: 7, resident_bytes, threads: 9, descriptors }
    }

    fn leaks(samples: &[ResourceSample]) -> Vec<&'static str> {
        growth(samples).into_iter().filter(Growth::is_leak).map(|growth| growth.resource).collect()
    }

    #[test]
    fn a_warm_up_is_no_leak_and_a_slope_is_one() {
        let flat: Vec<_> = (0..90).map(|time| sample(time, (time.min(20) + 100) << 20, 50 + time % 7)).collect();
        assert_eq!(growth(&flat).len(), 3);
        assert_eq!(leaks(&flat), Vec::<&str>::new());
        let slope: Vec<_> = (0..90).map(|time| sample(time, (100 + 4 * time) << 20, 50 + time)).collect();
        assert_eq!(leaks(&slope), ["resident MiB", "descriptors"]);
    }

    #[test]
    fn the_own_process_can_be_sampled() {
        let sample = ResourceSample::of(1, std::process::id()).expect("this process runs");
        assert!(sample.resident_bytes > 1 << 20 && sample.threads > 0 && sample.descriptors > 2, "{sample:?}");
        assert_eq!(ResourceSample::of(1, u32::MAX), None);
        assert_eq!(process_with(Path::new("/no/such/gateway.toml")), None);
    }
}
