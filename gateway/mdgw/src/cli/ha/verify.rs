//! `mdgw ha verify`: checks that the published output has no loss, no duplicates and one publisher at a time.

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

use crate::cli::{Outcome, print, tag_policy, warn};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each capture is the view of one receiver. A receiver's output is the output of `mdgw tail --json`; it does not name \
the publisher, so the epoch checks need captures. Records missing before a receiver's first record or after its last \
one are reported but are not a violation: the receiver may have run at another time. Exit code 1: a check failed; the \
first violations are listed. 2: a file could not be read to its end.

Examples:
  mdgw ha verify receiver-1.pcap.gz receiver-2.pcap.gz
  mdgw ha verify --by capture wire.pcapng --json
  mdgw ha verify receiver-1.jsonl receiver-2.jsonl")]
pub(crate) struct Args {
    /// Captures (pcap, pcapng; plain, gzip or zstd) and receivers' outputs (JSON lines), detected from the content.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only this group. For captures only: receivers' outputs carry no group.
    #[arg(long, value_name = "N")]
    group: Option<u16>,
    /// Clock for the publish interval of an epoch: the publisher's send times, or the capture's times, which also show
    /// what a stopped process sent late.
    #[arg(long, value_enum, default_value_t = ClockArg::Send)]
    by: ClockArg,
    /// Key file of packet tags; repeat for each key that receivers accept. Packets without a valid tag are counted and left
    /// out, as receivers drop them.
    #[arg(long = "tag-key", value_name = "FILE")]
    tag_keys: Vec<PathBuf>,
    /// Allowed clock difference between two publishers, microseconds.
    #[arg(long, value_name = "US", default_value_t = 0)]
    clock_error_us: u64,
    /// Items remembered for each session of a channel; older items are no longer compared.
    #[arg(long, alias = "names", value_name = "N", default_value_t = VerifyOptions::default().names_max)]
    remember: usize,
    /// Violations to list individually.
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
        tags: tag_policy(&args.tag_keys)?,
        group: args.group.map(GroupId),
        clock: match args.by {
            ClockArg::Send => PublishClock::Sender,
            ClockArg::Capture => PublishClock::Capture,
        },
        clock_error_ns: args.clock_error_us.saturating_mul(1_000),
        names_max: args.remember,
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
        bail!("--group applies to captures only: the rows of {} carry no group", output.display());
    }
    let mut damages = Vec::new();
    let mut verdict = verify_captures(&captures, &options, &mut damages)?;
    // Findings refer to files by index: captures first, then outputs.
    let of_outputs = verify_outputs(&outputs, captures.len(), &options, &mut damages)?;
    verdict = verdict.with(of_outputs);
    let names: Vec<String> = captures.iter().chain(&outputs).map(|path| path.display().to_string()).collect();
    print(&if args.json { format!("{}\n", verdict.to_json(&names)) } else { verdict.to_table(&names) })?;
    if !damages.is_empty() {
        bail!("{} (everything before this point was verified)", damages.join("; "));
    }
    if verdict.is_empty() {
        bail!("verify: no published packets or rows in {}", names.join(", "));
    }
    Ok(if verdict.is_kept() { Outcome::Done } else { Outcome::No })
}

fn verify_captures(paths: &[PathBuf], options: &VerifyOptions, damages: &mut Vec<String>) -> anyhow::Result<Verdict> {
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
        warn(&format!(
            "{} packets are truncated by the captures' snap length and were not verified",
            merge.truncated()
        ));
    }
    damages.extend(merge.damages().iter().map(|damage| format!("{damage}: {}", damage.fault)));
    Ok(verifier.finish())
}

fn verify_outputs(
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

/// Whether the file is a receiver's output: JSON lines begin with a brace, captures never do.
fn looks_like_rows(path: &Path) -> std::io::Result<bool> {
    Ok(BufReader::new(File::open(path)?).fill_buf()?.first() == Some(&b'{'))
}
