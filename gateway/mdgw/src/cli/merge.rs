//! `mdgw merge`: captures of a channel's lines into one.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::bail;
use mdgw_feeds::{identity::Feed, time::TradingDate};
use mdgw_tools::merge::{self, MergeOptions};

use super::{
    Outcome, print,
    replay::{bar, catch_signals, continue_unless, parse_feed},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Packets go out as they were captured, each message once, with the stamp of its earliest copy. Clocks of \
different machines need not agree; what the common messages tell of them is in the summary. Where two captures \
have the same line, leads between their other lines are corrected by it. Packets go one way, so a clock that is \
ahead can't be told from a way that is longer.

Exit code 1: some messages nobody has. 2: a capture could not be read to its end, or the output not be written; \
what was merged before is kept.

Examples:
  mdgw merge A.pcap.gz B.pcap.gz -o day.pcap
  mdgw merge ny4-a.pcapng ny4-b.pcapng nj2-a.pcapng -o day.pcap.zst --json
  mdgw merge A.pcap B.pcap -o - | tshark -r - -q -z io,stat,1")]
pub(super) struct Args {
    /// Captures (pcap, pcapng) or Nasdaq day files, of one line or several; plain, gzip or zstd, told by content.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Capture to write, compressed if it ends in .zst; - is standard output.
    #[arg(short, long, value_name = "OUT.pcap[.zst]")]
    out: PathBuf,
    /// The feed, where packets don't tell it (Nasdaq, BX and PSX look alike), or to leave out others.
    #[arg(long, value_name = "FEED", value_parser = parse_feed)]
    feed: Option<Feed>,
    /// Trading date, where the input doesn't tell it.
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<TradingDate>,
    /// Gaps, and holes of each line, that the JSON names one by one.
    #[arg(long, value_name = "N", default_value_t = 100)]
    gaps: usize,
    /// End with one line of JSON instead of tables.
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
    let bar = bar(&args.files);
    let merged = merge::run(&options, &mut |file_bytes| {
        bar.set_position(file_bytes);
        continue_unless(&stop)
    });
    bar.finish_and_clear();
    let summary = merged?;
    let text = if args.json { format!("{}\n", summary.to_json()) } else { summary.to_table() };
    // Where the packets go to standard output, the summary must not.
    if args.out == Path::new("-") {
        io::stderr().write_all(text.as_bytes())?
    } else {
        print(&text)?
    }
    let damages: Vec<&str> = summary.files.iter().filter_map(|file| file.damage.as_deref()).collect();
    if !damages.is_empty() {
        bail!("{} (everything before was merged)", damages.join("; "));
    }
    let is_whole = summary.channels.iter().all(|channel| channel.gap_count == 0);
    Ok(if is_whole { Outcome::Done } else { Outcome::No })
}
