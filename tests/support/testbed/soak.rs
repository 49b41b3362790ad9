//! A soak: a pair under load for a long time, a random fault every few seconds, receivers that come and leave, sessions that end
//! and begin. Checks every message at every receiver, and that memory, threads and descriptors do not grow.
//!
//! The seed decides which fault comes when. It does not decide the timing of the processes, so two runs of one seed differ.

mod page;
mod resources;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use mdgw_captures::random::Random;
use serde_json::json;

pub use self::resources::{Growth, ResourceSample};
use self::resources::{ResourceSampler, growth};
use super::{
    SummaryResult, Testbed,
    faults::{FaultCase, InjectedFault, case_named},
    plan::{ElectionBackend, Plan},
    receiver::{ReceivedSummary, Receiver},
};
use crate::{captures::print_to_stderr, failover::ms};

/// Length and density of a soak.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// Decides the faults, their order, and the pauses between them.
    pub seed: u64,
    /// No fault begins after this time.
    pub duration: Duration,
    /// Mean pause between the end of one fault and the next.
    pub mean_pause: Duration,
    /// A session of the venue ends after this time, when the current fault is over.
    pub session: Duration,
    /// Interval of the samples of memory, threads and descriptors.
    pub sample_every: Duration,
}

/// A fault of a soak.
#[derive(Clone, Debug)]
pub struct SoakFault {
    /// Name of its case.
    pub case: &'static str,
    /// When the fault was injected, and under which epoch.
    pub injected: InjectedFault,
    /// When everything was as before it, ns since 1970 UTC.
    pub over_ns: u64,
}

/// What a soak has shown.
#[derive(Debug)]
pub struct SoakReport {
    /// The seed of the faults.
    pub seed: u64,
    /// The kind of election that the pair ran.
    pub backend: ElectionBackend,
    /// Faults, in order.
    pub faults: Vec<SoakFault>,
    /// Sessions of the venue.
    pub sessions: usize,
    /// Memory, threads and descriptors of the gateways, in order of time.
    pub samples: Vec<ResourceSample>,
    /// What receivers got.
    pub result: SummaryResult,
}

/// Faults that both gateways survive, and after which the pair is complete again.
fn fault_cases(backend: ElectionBackend) -> Vec<FaultCase> {
    let common =
        ["kill", "abort", "pause", "hand-over", "leader-line-a-loss", "leader-output-loss", "standby-loss-pause"];
    let of_backend: &[&str] = match backend {
        ElectionBackend::Quorum => &[
            "leader-isolated",
            "leader-outbound-loss",
            "leader-inbound-loss",
            "partition-standby",
            "partition-to-standby",
            "partition-to-leader",
            "partition-witness",
            "standby-partition-witness",
            "witness-down",
        ],
        ElectionBackend::Store(_) => &[
            "standby-partition-store",
            "partition-store",
            "partition-to-store",
            "partition-from-store",
            "store-no-quorum",
            "store-node-down",
            "store-paused",
        ],
        ElectionBackend::File | ElectionBackend::Emergent => &[],
    };
    common.iter().chain(of_backend).map(|name| case_named(name).expect("a case of that name")).collect()
}

/// Runs a soak to its end. `None`, with a message on standard error, without the permissions for it.
///
/// # Panics
/// When the pair does not recover from a fault.
#[must_use]
pub fn run(test: &str, mut plan: Plan, options: &SoakOptions) -> Option<SoakReport> {
    plan.keeps_summaries = true;
    // Without it, a leader that was paused between the check of its fence and a send sends one packet too late. Receivers drop
    // that packet, but the verdict would count it as a second publisher.
    plan.has_kernel_fence = true;
    let backend = plan.backend;
    let cases = fault_cases(backend);
    let mut random = Random::new(options.seed);
    let mut testbed = Testbed::start(test, plan)?;
    let sampler = ResourceSampler::start(testbed.config_paths(), options.sample_every);
    testbed.start_session();
    testbed.wait_for_more_deliveries(1_000);
    let (begun, mut session_begun) = (Instant::now(), Instant::now());
    let (mut faults, mut sessions, mut visitors) = (Vec::new(), 1, Visitors::default());
    while begun.elapsed() < options.duration {
        let mean_ms = u64::try_from(options.mean_pause.as_millis()).unwrap_or(u64::MAX);
        std::thread::sleep(Duration::from_millis(random.exponential(mean_ms).min(4 * mean_ms)));
        visitors.come_or_leave(&testbed, &mut random);
        let index = usize::try_from(random.below(cases.len() as u64)).expect("few cases");
        let case = cases[index];
        let trial = faults.len() as u64;
        print_to_stderr(&format!(
            "soak, seed {}: {:.0} s, fault {}: {}",
            options.seed,
            begun.elapsed().as_secs_f64(),
            trial + 1,
            case.name
        ));
        let injected = (case.inject)(&mut testbed, trial);
        faults.push(SoakFault { case: case.name, injected, over_ns: mdgw_sys::clock::unix_now().0 });
        if session_begun.elapsed() > options.session {
            testbed.end_session_everywhere();
            testbed.start_session();
            testbed.wait_for_more_deliveries(1_000);
            (session_begun, sessions) = (Instant::now(), sessions + 1);
        }
    }
    let samples = sampler.finish();
    let result = testbed.finish_summaries(visitors.finish());
    Some(SoakReport { seed: options.seed, backend, faults, sessions, samples, result })
}

/// Receivers that come late and leave again: at most one at a time.
#[derive(Debug, Default)]
struct Visitors {
    present: Option<Receiver>,
    left: Vec<ReceivedSummary>,
}

impl Visitors {
    fn come_or_leave(&mut self, testbed: &Testbed, random: &mut Random) {
        match self.present.take() {
            None => self.present = Some(testbed.start_visitor()),
            Some(receiver) if random.chance(0.5) => self.left.push(receiver.finish_summary()),
            present => self.present = present,
        }
    }

    fn finish(mut self) -> Vec<ReceivedSummary> {
        self.left.extend(self.present.take().map(Receiver::finish_summary));
        self.left
    }
}

impl SoakReport {
    /// Why the soak has failed: one line each, empty if it has passed.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let SummaryResult { expected, receivers, visitors } = &self.result;
        let mut failures = Vec::new();
        for (kind, receiver, is_permanent) in self.named_receivers() {
            let stream = &receiver.stream;
            let counts = [
                ("delivered out of order or twice", stream.out_of_order),
                ("in gaps that a gateway declared", stream.declared_gaps),
                ("given up by the receiver", stream.receiver_gaps),
                ("with suspect books", stream.suspect),
            ];
            let bad = counts.into_iter().filter(|(_, count)| *count > 0);
            failures.extend(bad.map(|(what, count)| format!("{kind}: {count} messages {what}")));
            let differences = stream.blocks.differences(expected, is_permanent);
            if let Some(first) = differences.first() {
                failures
                    .push(format!("{kind}: {} blocks differ from the venue's, the first {first:?}", differences.len()));
            }
            if !receiver.verdict.is_kept() {
                failures.push(format!("{kind}: {}", receiver.verdict.to_table(std::slice::from_ref(&kind))));
            }
        }
        if receivers.is_empty() || expected.complete().is_empty() {
            failures.push("nothing was received".to_owned());
        }
        if visitors.is_empty() {
            failures.push("no receiver came late".to_owned());
        }
        failures.extend(self.growths().into_iter().filter(Growth::is_leak).map(|growth| growth.to_string()));
        failures
    }

    fn named_receivers(&self) -> impl Iterator<Item = (String, &ReceivedSummary, bool)> {
        let permanent = (0..)
            .zip(&self.result.receivers)
            .map(|(number, one): (usize, _)| (format!("receiver {number}"), one, true));
        let visitors =
            (0..).zip(&self.result.visitors).map(|(number, one): (usize, _)| (format!("visitor {number}"), one, false));
        permanent.chain(visitors)
    }

    /// How memory, threads and descriptors of each gateway developed.
    #[must_use]
    pub fn growths(&self) -> Vec<Growth> {
        growth(&self.samples)
    }

    /// Longest silence at a receiver from that fault until everything was as before, ns.
    #[must_use]
    pub fn silence_ns(&self, fault: &SoakFault) -> u64 {
        let during = fault.injected.injected_ns..=fault.over_ns;
        let silences = self.result.receivers.iter().flat_map(|receiver| &receiver.stream.silences);
        let overlapping = silences.filter(|silence| {
            silence.from_ns <= *during.end() && silence.from_ns + silence.length_ns >= *during.start()
        });
        overlapping.map(|silence| silence.length_ns).max().unwrap_or_default()
    }

    /// Latencies from a gateway's input to the receivers' kernels, ns, by minute since 1970 UTC.
    #[must_use]
    pub fn latency_by_minute(&self) -> Vec<(u64, Histogram<u64>)> {
        let mut minutes = std::collections::BTreeMap::<u64, Histogram<u64>>::new();
        for (minute, histogram) in self.result.receivers.iter().flat_map(|receiver| &receiver.stream.latency_by_minute)
        {
            match minutes.get_mut(minute) {
                Some(sum) => sum.add(histogram).expect("all have the same bounds"),
                None => drop(minutes.insert(*minute, histogram.clone())),
            }
        }
        minutes.into_iter().collect()
    }

    /// The report as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let messages: u64 = self.result.receivers.iter().map(|receiver| receiver.stream.messages).sum();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "soak over {}, seed {}: {} faults, {} sessions, {messages} messages at {} receivers, {} came and left",
            self.backend.name(),
            self.seed,
            self.faults.len(),
            self.sessions,
            self.result.receivers.len(),
            self.result.visitors.len(),
        );
        let _ = writeln!(text, "\n{:<30} {:>6} {:>16} {:>15}", "fault", "times", "median silence", "worst silence");
        let mut names: Vec<_> = self.faults.iter().map(|fault| fault.case).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let mut silences: Vec<u64> =
                self.faults.iter().filter(|fault| fault.case == name).map(|fault| self.silence_ns(fault)).collect();
            silences.sort_unstable();
            let shown =
                |silence_ns: u64| if silence_ns == 0 { "< 50 ms".to_owned() } else { format!("{} ms", ms(silence_ns)) };
            let (median, worst) = (silences[silences.len() / 2], silences[silences.len() - 1]);
            let _ = writeln!(text, "{name:<30} {:>6} {:>16} {:>15}", silences.len(), shown(median), shown(worst));
        }
        let _ = writeln!(text);
        for growth in self.growths() {
            let _ = writeln!(text, "{growth}");
        }
        let _ = writeln!(
            text,
            "\n{:<8} {:>12} {:>10} {:>10} {:>10}  gateway's input to receivers",
            "minute", "messages", "p50 us", "p99 us", "max ms"
        );
        let minutes = self.latency_by_minute();
        for (minute, histogram) in &minutes {
            let us = |quantile| histogram.value_at_quantile(quantile) / 1_000;
            let (number, max_ms) = (minute - minutes[0].0, histogram.max() / 1_000_000);
            let _ = writeln!(text, "{number:<8} {:>12} {:>10} {:>10} {max_ms:>10}", histogram.len(), us(0.5), us(0.99));
        }
        for (kind, receiver, _) in self.named_receivers().filter(|(_, receiver, _)| receiver.socket_drops > 0) {
            let _ = writeln!(
                text,
                "{kind}: {} datagrams dropped at its own socket, retransmitted since",
                receiver.socket_drops
            );
        }
        let failures = self.failures();
        let verdict =
            if failures.is_empty() { "passed: 0 lost, 0 doubled, 0 overlaps, nothing grew" } else { "FAILED" };
        let _ = writeln!(text, "\n{verdict}");
        for failure in failures {
            let _ = writeln!(text, "  {failure}");
        }
        text
    }

    /// Writes `soak-BACKEND-SEED.json` and `.html` into that directory, and returns the path of the page.
    ///
    /// # Errors
    /// When a file can't be written.
    pub fn write(&self, directory: &Path) -> std::io::Result<PathBuf> {
        let path = |extension| directory.join(format!("soak-{}-{}.{extension}", self.backend.name(), self.seed));
        let faults: Vec<_> = self.faults.iter().map(|fault| {
            json!({ "case": fault.case, "injected_ns": fault.injected.injected_ns, "over_ns": fault.over_ns, "silence_ns": self.silence_ns(fault) })
        }).collect();
        let samples: Vec<_> = self.samples.iter().copied().map(ResourceSample::to_json).collect();
        let value = json!({
            "backend": self.backend.name(), "seed": self.seed, "sessions": self.sessions, "faults": faults, "samples": samples,
            "failures": self.failures(),
        });
        std::fs::create_dir_all(directory)?;
        std::fs::write(path("json"), format!("{value}\n"))?;
        let page = path("html");
        std::fs::write(&page, page::html(self))?;
        Ok(page)
    }
}
