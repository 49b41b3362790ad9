//! `mdgw merge`: merges captures of a channel's lines into one capture.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::bail;
use mdgw_feeds::{identity::Feed, time::TradingDate};
use mdgw_tools::merge::{self, MergeOptions};

use super::{
    Outcome, print,
    replay::{catch_signals, continue_unless, parse_feed, progress_bar},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Packets are written as captured, each message once, with the timestamp of its earliest copy. Clocks of different \
machines need not agree: the summary estimates their offset from common messages. If two captures contain the same \
line, the leads between their other lines are corrected by that offset. A clock offset cannot be distinguished from a \
longer network path.

Exit code 1: some messages are in no capture. 2: a capture could not be read to its end, or the output could not be \
written; everything merged before that point is kept.

Examples:
  mdgw merge A.pcap.gz B.pcap.gz -o day.pcap
  mdgw merge ny4-a.pcapng ny4-b.pcapng nj2-a.pcapng -o day.pcap.zst --json
  mdgw merge A.pcap B.pcap -o - | tshark -r - -q -z io,stat,1")]
pub(super) struct Args {
    /// Captures (pcap, pcapng) or Nasdaq day files, with one line or several; plain, gzip or zstd, detected from the
    /// content.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Capture to write, compressed if it ends in .zst; - is standard output.
    #[arg(short, long, value_name = "OUT.pcap[.zst]")]
    out: PathBuf,
    /// Feed, where the packets do not identify it (Nasdaq, BX and PSX look alike); other feeds are skipped.
    #[arg(long, value_name = "FEED", value_parser = parse_feed)]
    feed: Option<Feed>,
    /// Trading date, for input without one.
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<TradingDate>,
    /// Gaps, and losses of each line, that the JSON lists individually.
    #[arg(long, value_name = "N", default_value_t = 100)]
    gaps: usize,
    /// Print the summary as one line of JSON instead of tables.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let stop = catch_signals()?;
    let options = MergeOptions {
        files: args.files.clone(),
        output: args.out.clone(),
        feed: args.feed,
        date: args.date,
        listed_max: args.gaps,
    };
    let bar = progress_bar(&args.files);
    let merged = merge::run(&options, &mut |file_bytes| {
        bar.set_position(file_bytes);
        continue_unless(&stop)
    });
    bar.finish_and_clear();
    let summary = merged?;
    let text = if args.json { format!("{}\n", summary.to_json()) } else { summary.to_table() };
    // If packets go to standard output, the summary goes to standard error.
    if args.out == Path::new("-") {
        io::stderr().write_all(text.as_bytes())?
    } else {
        print(&text)?
    }
    let damages: Vec<&str> = summary.files.iter().filter_map(|file| file.damage.as_deref()).collect();
    if !damages.is_empty() {
        bail!("{} (everything before this point was merged)", damages.join("; "));
    }
    let is_whole = summary.channels.iter().all(|channel| channel.gap_count == 0);
    Ok(if is_whole { Outcome::Done } else { Outcome::No })
}
