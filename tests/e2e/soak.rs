//! A short soak: a pair by votes under random faults, with receivers that come and leave. `--bin soak` is the long one.

use std::time::Duration;

use mdgw_tests::{
    captures::print_to_stderr,
    testbed::{
        plan::{ElectionBackend, Plan, VenueBursts},
        soak::{self, SoakOptions},
    },
};

#[test]
fn under_random_faults_every_receiver_gets_each_message_once() {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED is a number"));
    print_to_stderr(&format!("soak: SEED={seed}"));
    let options = SoakOptions {
        seed,
        duration: Duration::from_secs(25),
        mean_pause: Duration::from_millis(300),
        session: Duration::from_secs(12),
        sample_every: Duration::from_millis(500),
    };
    let bursts = Some(VenueBursts { messages_per_second: 15_000.0, burst_ms: 10, every_ms: 500 });
    let plan = Plan { messages: 400_000, bursts, ..Plan::relaxed(ElectionBackend::Quorum) };
    let Some(report) = soak::run("soak", plan, &options) else { return };
    let text = report.to_text();
    print_to_stderr(&text);
    // Half a minute is too short to tell warm-up from growth.
    let failures: Vec<_> = report.failures().into_iter().filter(|failure| !failure.contains("GROWS")).collect();
    assert!(failures.is_empty(), "SEED={seed}\n{text}");
    assert!(report.faults.len() >= 3 && report.sessions >= 2, "{text}");
}
