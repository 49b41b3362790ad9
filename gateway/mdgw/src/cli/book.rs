//! `mdgw book`: the order books of a capture at a moment.

use std::{
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    path::PathBuf,
};

use anyhow::{Context as _, bail};
use mdgw_feeds::{
    identity::{Feed, Sequence},
    time::TradingDate,
};
use mdgw_tools::{
    book_view::{self, BookOptions, BookSnapshot, BookTime, InstrumentBook},
    replay::{
        capture_merge::Moment,
        feed_guess::GuessBasis,
        offline::{Event, SessionSelector, StopPoint},
    },
};

use super::{Outcome, WRITE_STDOUT, replay, warn};

/// Which books to show, and at which point in time.
///
/// Several files are lines of the same channels, merged by their times. The books are built by the same code as in the
/// gateway. Without --symbol or --all: the instruments with at least one order or trade.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw book A.pcap B.pcap --symbol AAPL
  mdgw book A.pcap --symbol AAPL,MSFT --at 14:30:00.25 --depth 5
  mdgw book A.pcap --symbol AAPL --session 2019-01-30#0 --sequence 14764496 --by order
  mdgw book deep.pcap.gz --all --json | jq 'select(.suspect)'
  mdgw book deep.pcap.gz --symbol ZIEXT --top")]
pub(super) struct Args {
    /// Captures (pcap, pcapng) or Nasdaq day files; plain, gzip or zstd, detected from the content.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Books of these instruments; repeat it or separate with commas.
    #[arg(long, value_name = "SYMBOL", value_delimiter = ',')]
    symbol: Vec<String>,
    /// Books of all instruments, empty ones too.
    #[arg(long, conflicts_with = "symbol")]
    all: bool,
    /// Print every change of the best bid and offer instead of the book.
    #[arg(long, conflicts_with_all = ["depth", "by", "all"])]
    top: bool,
    /// Book at this time of the capture: +SECONDS after the first packet, HH:MM:SS UTC of its day, or
    /// YYYY-MM-DDTHH:MM:SSZ. Default: at its end.
    #[arg(long, value_name = "MOMENT", conflicts_with_all = ["session", "sequence"])]
    at: Option<Moment>,
    /// Book after the message with this sequence number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    sequence: Option<u64>,
    /// Session of --sequence: N or YYYY-MM-DD#N, where N is the restart count of the day. Default: the first session
    /// that reaches the sequence.
    #[arg(long, value_name = "SESSION", requires = "sequence")]
    session: Option<SessionSelector>,
    /// Levels of each side.
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Price levels, or every order.
    #[arg(long, value_enum, default_value_t = GroupBy::Price)]
    by: GroupBy,
    /// One JSON object for each instrument, or for each change, on a line of its own.
    #[arg(long)]
    json: bool,
    /// Feed, where the packets do not identify it (Nasdaq, BX and PSX look alike); other feeds are skipped.
    #[arg(long, value_name = "FEED", value_parser = replay::parse_feed)]
    feed: Option<Feed>,
    /// Trading date, for input without one (day files), or to override the input's date.
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<TradingDate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GroupBy {
    Price,
    Order,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let options = args.options();
    let bar = replay::progress_bar(&args.files);
    let mut watch = |event: Event<'_>| {
        match event {
            Event::Progress { file_bytes, .. } => bar.set_position(file_bytes),
            Event::Found { channel: replayed, by: Some(by) } => {
                let feed = replayed.channel().config().feed;
                let guessed = if by == GuessBasis::Packets { "" } else { " (override with --feed)" };
                let source = replayed.lines().first().map(|(_, source)| source.path.display().to_string());
                bar.suspend(|| warn(&format!("{}: {feed}{guessed}", source.unwrap_or_default())));
            }
            Event::Found { .. } => {}
        }
        ControlFlow::Continue(())
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut is_complete = true;
    let damages = if args.top {
        book_view::follow(
            &options,
            &mut |change| {
                if args.json { write_json(&mut out, change) } else { write!(out, "{change}") }
            },
            &mut watch,
        )?
    } else {
        let snapshot = book_view::snapshot(&options, &mut watch)?;
        bar.finish_and_clear();
        show(&snapshot, args, &mut out).context(WRITE_STDOUT)?;
        if snapshot.books.is_empty() && args.symbol.is_empty() && snapshot.damages.is_empty() {
            warn("book: no instrument up to that point");
            is_complete = false;
        }
        for symbol in &args.symbol {
            if !snapshot.books.iter().any(|book| book.symbol == *symbol) {
                warn(&format!("book: no instrument {symbol} up to that point"));
                is_complete = false;
            }
        }
        snapshot.damages
    };
    bar.finish_and_clear();
    out.flush().context(WRITE_STDOUT)?;
    if !damages.is_empty() {
        bail!("{} (the books include everything before this point)", damages.join("; "));
    }
    Ok(if is_complete { Outcome::Done } else { Outcome::No })
}

/// Writes the books. Most instruments of a market can be inactive, so without `--symbol` or `--all` only instruments
/// with an order or a trade are shown.
fn show(snapshot: &BookSnapshot, args: &Args, out: &mut impl Write) -> io::Result<()> {
    let show_all = args.all || !args.symbol.is_empty();
    let has_content = |book: &InstrumentBook| !book.bids.is_empty() || !book.asks.is_empty() || book.trades > 0;
    let mut separator = "";
    let mut empty_count = 0_u64;
    for book in &snapshot.books {
        if !show_all && !has_content(book) {
            empty_count += 1;
        } else if args.json {
            write_json(out, book)?;
        } else {
            write!(out, "{separator}{book}")?;
            separator = "\n";
        }
    }
    if empty_count > 0 && !args.json {
        writeln!(
            out,
            "{separator}{empty_count} more instruments have an empty book and no trades (list them with \
             --all)"
        )?;
    }
    Ok(())
}

fn write_json(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

impl Args {
    fn options(&self) -> BookOptions {
        let when = match (self.at, self.sequence) {
            (Some(moment), _) => BookTime::At(moment),
            (None, Some(sequence)) => {
                BookTime::AfterMessage(StopPoint { session: self.session, sequence: Sequence(sequence) })
            }
            (None, None) => BookTime::End,
        };
        BookOptions {
            files: self.files.clone(),
            feed: self.feed,
            date: self.date,
            symbols: self.symbol.clone(),
            when,
            depth: self.depth,
            by_order: self.by == GroupBy::Order,
        }
    }
}
