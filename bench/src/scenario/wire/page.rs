//! The project's own report page: each round's latencies as an interval log, compared by `mdgw report`.
//!
//! A case is a "channel" of the logs, a round is a log, and the groups are bare loop and gateways. So the page compares
//! each case by percentile, and its spread is that of the rounds.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use mdgw_feeds::{identity::ChannelId, time::UnixNs};
use mdgw_status::{
    disclosure::Disclosure,
    interval_log::{IntervalLogWriter, IntervalTag},
};
use mdgw_sys::clock::unix_now;
use mdgw_telemetry::stages::Stage;

use super::statistics::CaseRounds;

/// Writes the logs of all cases below `directory`, one folder for each subject, and the page that compares them.
pub(super) fn write(
    program: &Path,
    cases: &[CaseRounds],
    names: &[String],
    seconds: f64,
    directory: &Path,
    page: &Path,
) -> Result<()> {
    let mut report = Command::new(program);
    report.arg("report");
    for (subject, name) in names.iter().enumerate() {
        let of_subject = directory.join(name.replace('/', "_"));
        fs::create_dir_all(&of_subject)?;
        let rounds = cases.iter().map(|case| case.outcomes[subject].len()).max().unwrap_or(0);
        for round in 0..rounds {
            let log = of_subject.join(format!("round-{round}.hlog"));
            write_log(cases, subject, round, seconds, &log).with_context(|| format!("write {}", log.display()))?;
        }
        report.arg(format!("{name}={}", of_subject.display()));
    }
    report.arg("--html").arg(page).stdout(Stdio::null());
    let status = report.status().with_context(|| format!("run {} report", program.display()))?;
    ensure!(status.success(), "mdgw report failed");
    Ok(())
}

fn write_log(cases: &[CaseRounds], subject: usize, round: usize, seconds: f64, path: &Path) -> Result<()> {
    let mut disclosure = Disclosure::of_this_host("kernel software, at the receiver of the bench");
    for (id, case) in (1_u16..).zip(cases) {
        disclosure.push(&format!("config.channel.{}.id", case.case), &id.to_string());
    }
    let length_ns = std::time::Duration::from_secs_f64(seconds).as_nanos();
    let length_ns = u64::try_from(length_ns)?;
    let base = unix_now();
    let mut log = IntervalLogWriter::begin(BufWriter::new(File::create(path)?), base, &disclosure)?;
    for (id, case) in (1_u16..).zip(cases) {
        let Some(outcome) = case.outcomes[subject].get(round) else { continue };
        let tag = IntervalTag { channel: ChannelId(id), stage: Stage::WireToWire, thread: "outside".to_owned() };
        let start = UnixNs(base.0 + u64::from(id) * length_ns);
        log.write(&tag, start, length_ns, &outcome.from_intended)?;
    }
    log.flush()?;
    Ok(())
}
