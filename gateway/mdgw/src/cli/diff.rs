//! `mdgw diff`: compares two recordings of the same stream.

use std::path::PathBuf;

use anyhow::bail;
use mdgw_feeds::{identity::Feed, time::TradingDate};
use mdgw_tools::diff::{self, DiffOptions};

use super::{
    Outcome, print,
    replay::{catch_signals, continue_unless, parse_feed, progress_bar},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The kind of both inputs is detected from their content and must be the same:
  published output (captures of it, or directories of publication logs), by channel, session, sequence and part
  DBN files (plain or zstd), by publisher, instrument, type, sequence and order
  captures of a feed, by message, after merging their lines as `mdgw merge` does

These are not differences: local receive times (only counted), losses that another line fills, packet boundaries, and \
the order between channels or instruments.

Exit code 0: equal. 1: different; the first differences are listed. 2: the comparison could not be completed.

Examples:
  mdgw diff yesterday.dbn.zst today.dbn.zst
  mdgw diff /dev/shm/mdgw/1 published.pcap
  mdgw diff lineA.pcap.gz merged.pcap --limit 50 --json")]
pub(super) struct Args {
    /// One recording: a file, or the directory of a publication log.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Second recording.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Differences to list individually.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Items that one side may be ahead of the other; also the number of items remembered to detect duplicates.
    #[arg(long, alias = "names", value_name = "N", default_value_t = 1 << 20)]
    remember: usize,
    /// Feed, where the packets do not identify it (Nasdaq, BX and PSX look alike).
    #[arg(long, value_name = "FEED", value_parser = parse_feed)]
    feed: Option<Feed>,
    /// Trading date, for input without one.
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<TradingDate>,
    /// One line of JSON instead of the text.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let stop = catch_signals()?;
    let options =
        DiffOptions { listed_max: args.limit, names_max: args.remember.max(1), feed: args.feed, date: args.date };
    let bar = progress_bar(&[args.a.clone(), args.b.clone()]);
    let compared = diff::run([&args.a, &args.b], &options, &mut |file_bytes| {
        bar.set_position(file_bytes);
        continue_unless(&stop)
    });
    bar.finish_and_clear();
    let difference = compared?;
    print(&if args.json { format!("{}\n", difference.to_json()) } else { difference.to_text() })?;
    if !difference.damages.is_empty() {
        bail!("{} (everything before this point was compared)", difference.damages.join("; "));
    }
    Ok(if difference.same { Outcome::Done } else { Outcome::No })
}
