//! `mdgw replay`: replays captures and day files, to the network or directly into the pipeline.

mod monitor;
mod rehearsal;

use std::{
    io::{self, IsTerminal as _},
    net::SocketAddrV4,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use mdgw_captures::{capture_file::OpenOptions, pacer::Pace};
use mdgw_feeds::{channel::SchemaSet, consumer_edge::TsRecvMode, identity::Feed, time::TradingDate};
use mdgw_sys::sockets::Interface;
use mdgw_tools::diff::{
    DiffOptions,
    journal::{self, JournalDiffOptions},
};
use mdgw_tools::replay::{
    capture_merge::{CaptureMerge, Moment, Window},
    feed_guess::GuessBasis,
    offline::{self, Event, OfflineOptions},
    until_loss,
    wire::{self, AddressMap, AddressRewrite, WireOptions},
};

use self::{monitor::ReplayMonitor, rehearsal::RehearsalArgs};
use super::{Outcome, print, warn};

/// What to replay, and where to.
///
/// Several files are merged by capture time: give one file per line.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 1: with --until-loss, the first rate already lost packets; with --journal, a record differs or is missing. 2: a capture could not be read to its end, or the \
output could not be written; everything before that point is kept.

Examples:
  mdgw replay --offline A.pcap.gz B.pcap.gz --schema mbo -o day.dbn.zst
  mdgw replay --offline A.pcap.gz B.pcap.gz --journal XNAS.ITCH/2026-11-27.mbo.dbn.zst
  mdgw replay A.pcap B.pcap --to 239.1.1.1:26477 --to 239.1.1.2:26477 --interface lo --speed 10
  mdgw replay day.pcap --lines 239.1.1.1:26477,239.1.1.2:26477 --loss 0.01,0.02 --skew-us 0,30
  mdgw replay day.pcap --lines 239.1.1.1:26477,239.1.1.2:26477 --until-loss --rate 10000 --loop 0")]
pub(super) struct Args {
    /// Captures (pcap, pcapng) or Nasdaq day files; plain, gzip or zstd, detected from the content.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Feed the pipeline directly, with the capture's clock, at full speed.
    #[arg(long)]
    offline: bool,
    /// Trading date, for input without one (day files), or to override the input's date.
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<TradingDate>,
    /// Start at: +SECONDS after the first packet, HH:MM:SS UTC of its day, or YYYY-MM-DDTHH:MM:SSZ.
    #[arg(long, value_name = "MOMENT")]
    from: Option<Moment>,
    /// Stop at this time.
    #[arg(long, value_name = "MOMENT")]
    until: Option<Moment>,
    /// Print the summary as one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    offline_args: OfflineArgs,
    #[command(flatten)]
    wire_args: WireArgs,
    #[command(flatten)]
    rehearsal_args: RehearsalArgs,
}

/// Offline options.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Offline")]
struct OfflineArgs {
    /// Schemas to produce: mbo, mbp-1, mbp-10, trades, status, definition, imbalance, statistics; repeat it or separate
    /// with commas. Default: what the gateway publishes for the feed.
    #[arg(long, value_name = "SCHEMA", value_delimiter = ',', value_parser = parse_schema, requires = "offline")]
    schema: Vec<SchemaSet>,
    /// DBN file to write, compressed if it ends in .zst; - is standard output. Without it only the summary is printed.
    #[arg(short, long, value_name = "OUT.dbn[.zst]", requires = "offline")]
    out: Option<PathBuf>,
    /// Feed, where the packets do not identify it (Nasdaq, BX and PSX look alike); other feeds are skipped.
    #[arg(long, value_name = "FEED", value_parser = parse_feed, requires = "offline")]
    feed: Option<Feed>,
    /// Receive time of the records: the capture's, or none (then the output depends on the messages only).
    #[arg(long, value_enum, default_value_t = TsRecvArg::Capture, requires = "offline")]
    ts_recv: TsRecvArg,
    /// Compare the records with those of a journal, by session and sequence; repeat it for several files of one day. Feed,
    /// schemas and date are the journal's.
    #[arg(
        long,
        value_name = "JOURNAL.dbn[.zst]",
        requires = "offline",
        conflicts_with_all = ["schema", "out", "feed", "control"]
    )]
    journal: Vec<PathBuf>,
    /// Channel of the journal that the captures carry, where it holds several.
    #[arg(long, value_name = "ID", requires = "journal")]
    channel: Option<u16>,
    /// Serve `mdgw top --socket SOCKET` on this socket.
    #[arg(long, value_name = "SOCKET", requires = "offline")]
    control: Option<PathBuf>,
}

/// Network options.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Network")]
struct WireArgs {
    /// Send to this address instead of the captured ones; if given once per file, the n-th address is for the n-th
    /// file.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "offline")]
    to: Vec<SocketAddrV4>,
    /// Rewrite destination OLD to NEW (each ADDR or ADDR:PORT).
    #[arg(long, value_name = "OLD=NEW", conflicts_with = "offline")]
    map: Vec<AddressRewrite>,
    /// Speed factor relative to the capture.
    #[arg(long, value_name = "FACTOR", value_parser = parse_positive, conflicts_with_all = ["offline", "rate", "max"])]
    speed: Option<f64>,
    /// Packets per second, evenly spaced.
    #[arg(long, value_name = "PPS", value_parser = parse_positive, conflicts_with_all = ["offline", "max"])]
    rate: Option<f64>,
    /// Send as fast as possible.
    #[arg(long, conflicts_with = "offline")]
    max: bool,
    /// Interface (name or address) for outgoing multicast.
    #[arg(long, value_name = "INTERFACE", conflicts_with = "offline")]
    interface: Option<Interface>,
    /// Multicast TTL.
    #[arg(long, default_value_t = 1, conflicts_with = "offline")]
    ttl: u8,
    /// Number of rounds; 0: until interrupted.
    #[arg(long = "loop", value_name = "N", default_value_t = 1, conflicts_with = "offline")]
    rounds: u64,
    /// MoldUDP64 session of a day file, up to ten letters and digits. Default: its date.
    #[arg(long, value_name = "NAME", value_parser = parse_session, conflicts_with = "offline")]
    session: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum TsRecvArg {
    Capture,
    None,
}

/// Runs `mdgw replay`.
pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let stop = catch_signals()?;
    if !args.offline_args.journal.is_empty() {
        return compare_with_journal(args, &stop);
    }
    if args.offline { run_offline(args, &stop) } else { run_to_wire(args, &stop) }
}

fn run_offline(args: &Args, stop: &AtomicBool) -> anyhow::Result<Outcome> {
    let offline_args = &args.offline_args;
    let options = OfflineOptions {
        files: args.files.clone(),
        feed: offline_args.feed,
        date: args.date,
        schemas: offline_args.schema.iter().copied().reduce(SchemaSet::with),
        ts_recv: match offline_args.ts_recv {
            TsRecvArg::Capture => TsRecvMode::Capture,
            TsRecvArg::None => TsRecvMode::None,
        },
        output: offline_args.out.clone(),
        window: args.window(),
    };
    let mut watched =
        offline_args.control.as_deref().map(|socket| ReplayMonitor::start(socket, &args.files)).transpose()?;
    let bar = progress_bar(&args.files);
    let summary = offline::run(&options, &mut |event| {
        match event {
            Event::Progress { file_bytes, driver } => {
                bar.set_position(file_bytes);
                if let Some(watched) = &mut watched {
                    watched.show(driver, file_bytes);
                }
            }
            Event::Found { channel: replayed, by: Some(GuessBasis::Path | GuessBasis::Default) } => {
                let feed = replayed.channel().config().feed;
                let source = replayed.lines().first().map(|(_, source)| source.path.display().to_string());
                let path = source.unwrap_or_default();
                bar.suspend(|| warn(&format!("{path}: ITCH 5.0, assumed to be {feed} (override with --feed)")));
            }
            Event::Found { .. } => {}
        }
        continue_unless(stop)
    });
    bar.finish_and_clear();
    let summary = summary?;
    // If records go to standard output, the summary goes to standard error.
    let text = if args.json { format!("{}\n", summary.to_json()) } else { summary.to_table() };
    match &offline_args.out {
        Some(path) if path.as_path() == Path::new("-") => io::Write::write_all(&mut io::stderr(), text.as_bytes())?,
        _ => print(&text)?,
    }
    for file in summary.files.iter().filter(|file| file.frames_without_timestamp > 0) {
        warn(&format!(
            "{}: {} packets have no timestamp (pcapng simple packet blocks); the timestamp of the previous packet is \
             used",
            file.path, file.frames_without_timestamp
        ));
    }
    let damages: Vec<&str> = summary.files.iter().filter_map(|file| file.damage.as_deref()).collect();
    if !damages.is_empty() {
        bail!("{} (everything before this point was replayed)", damages.join("; "));
    }
    Ok(Outcome::Done)
}

/// [`Outcome::No`] if a record differs, or only one side has it.
fn compare_with_journal(args: &Args, stop: &AtomicBool) -> anyhow::Result<Outcome> {
    let options = JournalDiffOptions {
        journals: args.offline_args.journal.clone(),
        captures: args.files.clone(),
        channel: args.offline_args.channel,
        date: args.date,
        window: args.window(),
        diff: DiffOptions { listed_max: DIFFERENCES_LISTED, names_max: NAMES_REMEMBERED, feed: None, date: None },
    };
    let bar = progress_bar(&options.journals);
    let compared = journal::run(&options, &mut |file_bytes| {
        bar.set_position(file_bytes);
        continue_unless(stop)
    });
    bar.finish_and_clear();
    let difference = compared?;
    print(&if args.json { format!("{}\n", difference.to_json()) } else { difference.to_text() })?;
    if !difference.damages.is_empty() {
        bail!("{} (everything before this point was compared)", difference.damages.join("; "));
    }
    Ok(if difference.same { Outcome::Done } else { Outcome::No })
}

/// Differences that are listed one by one.
const DIFFERENCES_LISTED: usize = 20;
/// Records that journal or captures may be ahead of the other.
const NAMES_REMEMBERED: usize = 1 << 20;

fn run_to_wire(args: &Args, stop: &AtomicBool) -> anyhow::Result<Outcome> {
    let wire_args = &args.wire_args;
    let open = OpenOptions { date: args.date, session_name: wire_args.session.clone().unwrap_or_default() };
    let options = WireOptions {
        pace: match (wire_args.speed, wire_args.rate, wire_args.max) {
            (_, _, true) => Pace::Max,
            (_, Some(rate), _) => Pace::Rate(rate),
            (speed, _, _) => Pace::Original(speed.unwrap_or(1.0)),
        },
        addresses: AddressMap { to: wire_args.to.clone(), map: wire_args.map.clone() },
        interface: wire_args.interface.clone(),
        ttl: wire_args.ttl,
        rounds: wire_args.rounds,
        rehearsal: args.rehearsal_args.rehearsal(args.files.len())?,
    };
    if wire_args.to.len() > 1 && wire_args.to.len() != args.files.len() {
        bail!(
            "replay: {} destinations for {} files: give one destination, or one per file",
            wire_args.to.len(),
            args.files.len()
        );
    }
    if args.rehearsal_args.until_loss {
        return run_until_loss(args, &options, &open, stop);
    }
    let bar = progress_bar(&args.files);
    let sent = wire::run(|| CaptureMerge::open(&args.files, &open, args.window()), &options, &mut |progress| {
        bar.set_position(progress.file_bytes);
        continue_unless(stop)
    });
    bar.finish_and_clear();
    let summary = sent?;
    print(&if args.json { format!("{}\n", summary.to_json()) } else { summary.to_table() })?;
    if !summary.damages.is_empty() {
        bail!("{} (everything before this point was sent)", summary.damages.join("; "));
    }
    Ok(Outcome::Done)
}

/// Raises the rate until a packet is lost. [`Outcome::No`] if the first rate already lost packets.
fn run_until_loss(
    args: &Args,
    options: &WireOptions,
    open: &OpenOptions,
    stop: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let (wire_args, rehearsal) = (&args.wire_args, &args.rehearsal_args);
    let (receiver, destinations) = rehearsal.receiver(&wire_args.to, wire_args.interface.as_ref())?;
    let found = until_loss::run(
        || CaptureMerge::open(&args.files, open, args.window()),
        options,
        rehearsal.ramp(wire_args.rate),
        &receiver,
        &destinations,
        &mut || stop.load(Relaxed),
    )?;
    print(&if args.json { format!("{}\n", found.to_json()) } else { found.to_table() })?;
    Ok(if found.highest_rate_without_loss.is_some() { Outcome::Done } else { Outcome::No })
}

impl Args {
    fn window(&self) -> Window {
        Window { from: self.from, until: self.until }
    }
}

/// A flag that SIGINT and SIGTERM set.
pub(super) fn catch_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
    }
    Ok(stop)
}

pub(super) fn continue_unless(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// A progress bar over the bytes of all files; hidden if standard error is not a terminal.
pub(super) fn progress_bar(files: &[PathBuf]) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bytes = bytes_of(files);
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Total size of the files on disk.
fn bytes_of(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn parse_schema(text: &str) -> Result<SchemaSet, String> {
    SchemaSet::from_name(text.trim()).ok_or_else(|| {
        let known: Vec<&str> = SchemaSet::NAMES.iter().map(|(_, name)| *name).collect();
        format!("expected one of {}", known.join(", "))
    })
}

pub(super) fn parse_feed(text: &str) -> Result<Feed, String> {
    Feed::from_name(text).ok_or_else(|| {
        let known: Vec<&str> = Feed::ALL.iter().map(|feed| feed.name()).collect();
        format!("expected one of {}", known.join(", "))
    })
}

fn parse_positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0).ok_or_else(|| "not above 0".to_owned())
}

fn parse_session(text: &str) -> Result<String, String> {
    let fits = (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    fits.then(|| text.to_owned()).ok_or_else(|| "expected 1 to 10 letters and digits".to_owned())
}
