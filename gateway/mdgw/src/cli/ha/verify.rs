//! `mdgw ha verify`: whether the pair's promises were kept.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use mdgw_captures::capture_file::OpenOptions;
use mdgw_feeds::identity::GroupId;
use mdgw_tools::{
    replay::capture_merge::{CaptureMerge, Window},
    verify::{CapturedPacket, Location, PublishClock, RowsVerifier, Verdict, Verifier, VerifyOptions},
};

use crate::cli::{Outcome, print, warn};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each capture is taken as one receiver's view. Receivers' outputs are what `mdgw tail --json` prints; they do not tell
who published, so what concerns epochs is not judged by them. What one of them lacks before its first record or after
its last is told and breaks no promise: it may have run at another time.
Exit code 1: a promise was broken; the first differences are named. 2: a file could not be read to its end.

Examples:
  mdgw ha verify receiver-1.pcap.gz receiver-2.pcap.gz
  mdgw ha verify --by capture wire.pcapng --json
  mdgw ha verify receiver-1.jsonl receiver-2.jsonl")]
pub(crate) struct Args {
    /// Captures (pcap, pcapng; plain, gzip or zstd) and receivers' outputs (JSON lines), told by content.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only this group. For captures: receivers' outputs carry none.
    #[arg(long, value_name = "N")]
    group: Option<u16>,
    /// Whose clock tells when an epoch was published: the publishers' own, or the capture's, which also shows what a
    /// stopped process sent late.
    #[arg(long, value_enum, default_value_t = ClockArg::Send)]
    by: ClockArg,
    /// ClockArg how much the clocks of two publishers may differ.
    #[arg(long, value_name = "US", default_value_t = 0)]
    clock_error_us: u64,
    /// Names remembered of each channel's session; older ones are not compared any more.
    #[arg(long, value_name = "N", default_value_t = VerifyOptions::default().names_max)]
    names: usize,
    /// Differences that are told one by one.
    #[arg(long, value_name = "N", default_value_t = VerifyOptions::default().findings_max)]
    differences: usize,
    /// One line of JSON instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ClockArg {
    Send,
    Capture,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let options = VerifyOptions {
        group: args.group.map(GroupId),
        clock: match args.by {
            ClockArg::Send => PublishClock::Sender,
            ClockArg::Capture => PublishClock::Capture,
        },
        clock_error_ns: args.clock_error_us.saturating_mul(1_000),
        names_max: args.names,
        findings_max: args.differences,
        ..VerifyOptions::default()
    };
    let mut captures = Vec::new();
    let mut outputs = Vec::new();
    for path in &args.files {
        let is_output = looks_like_rows(path).with_context(|| format!("read {}", path.display()))?;
        if is_output { &mut outputs } else { &mut captures }.push(path.clone());
    }
    if let Some(output) = outputs.first().filter(|_| args.group.is_some()) {
        bail!("--group is for captures: the rows of {} carry no group", output.display());
    }
    let mut damages = Vec::new();
    let mut verdict = judge_captures(&captures, &options, &mut damages)?;
    // Findings name files by number: captures first.
    let of_outputs = judge_outputs(&outputs, captures.len(), &options, &mut damages)?;
    verdict = verdict.with(of_outputs);
    let names: Vec<String> = captures.iter().chain(&outputs).map(|path| path.display().to_string()).collect();
    print(&if args.json { format!("{}\n", verdict.to_json(&names)) } else { verdict.to_table(&names) })?;
    if !damages.is_empty() {
        bail!("{} (everything before was judged)", damages.join("; "));
    }
    if verdict.is_empty() {
        bail!("verify: nothing that a gateway published in {}", names.join(", "));
    }
    Ok(if verdict.is_kept() { Outcome::Done } else { Outcome::No })
}

fn judge_captures(paths: &[PathBuf], options: &VerifyOptions, damages: &mut Vec<String>) -> anyhow::Result<Verdict> {
    let mut verifier = Verifier::new(options.clone());
    let mut merge = CaptureMerge::open(paths, &OpenOptions::default(), Window::default())?;
    while merge.advance() {
        let Some((file, datagram)) = merge.current() else { break };
        let location = Location { file, number: datagram.frame };
        verifier.accept(&CapturedPacket {
            location,
            time_ns: datagram.time_ns,
            dst: datagram.dst,
            payload: datagram.payload,
        });
    }
    if merge.truncated() > 0 {
        warn(&format!("{} packets are cut by the captures' snap length and were not judged", merge.truncated()));
    }
    damages.extend(merge.damages().iter().map(|damage| format!("{damage}: {}", damage.fault)));
    Ok(verifier.finish())
}

fn judge_outputs(
    paths: &[PathBuf],
    first_number: usize,
    options: &VerifyOptions,
    damages: &mut Vec<String>,
) -> anyhow::Result<Verdict> {
    let mut verifier = RowsVerifier::new(options.clone());
    for (number, path) in (first_number..).zip(paths) {
        let file = File::open(path).with_context(|| format!("read {}", path.display()))?;
        if let Err(error) = verifier.read(number, BufReader::new(file)) {
            damages.push(format!("{}: {error}", path.display()));
        }
    }
    Ok(verifier.finish())
}

/// Receivers' outputs are objects; no capture begins with a brace.
fn looks_like_rows(path: &Path) -> std::io::Result<bool> {
    Ok(BufReader::new(File::open(path)?).fill_buf()?.first() == Some(&b'{'))
}
