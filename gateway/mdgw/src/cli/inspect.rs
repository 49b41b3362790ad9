//! `mdgw inspect`: decodes captures, packet by packet and field by field.

use std::{
    env,
    io::{self, BufWriter, IsTerminal as _, StdoutLock, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use mdgw_captures::capture_file::{
    CaptureError, CaptureFault, CaptureFile, CaptureKind, CapturedDatagram, OpenOptions,
};
use mdgw_feeds::{identity::Feed, time::TradingDate, transport::DetectedProtocol};
use mdgw_tools::{
    inspect::{
        dissect::{Dissector, Framing, PacketView},
        filter::{Destination, Filter, FilterMatch, Range},
        stats::{FileStatistics, Statistics},
        text::Text,
    },
    replay::{
        capture_merge::{Moment, Window},
        feed_guess::{GuessBasis, guess},
    },
};

use super::{Outcome, WRITE_STDOUT, replay, warn};

/// What to decode, and which parts to show.
///
/// Files are read one after the other. A packet is shown with only those messages that match the filters. Of a gateway's own
/// output, the messages are DBN records, gaps and states; requests and answers are shown too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 1: nothing matches the filters (as with grep). 2: a capture could not be read to its end; everything before \
that point was shown.

Examples:
  mdgw inspect deep.pcap.gz
  mdgw inspect A.pcap --sequence 14764496
  mdgw inspect A.pcap --symbol AAPL,MSFT --type OrderExecuted,P --from 14:30 --until 14:31
  mdgw inspect A.pcap B.pcap --stats
  mdgw inspect live.pcap --follow --type TradeReport
  mdgw inspect A.pcap --frame 100-120 --json | jq .messages[].fields
  mdgw inspect output.pcap --symbol AAPL --type mbo        # what a gateway published")]
pub(super) struct Args {
    /// Captures (pcap, pcapng) or Nasdaq day files; plain, gzip or zstd, detected from the content.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// One JSON object per packet and line: raw numbers, field names and order as in the specification.
    #[arg(long)]
    json: bool,
    /// Print statistics per line instead of packets: message mix, rates, busiest 1 ms, 10 ms and 1 s, sessions, gaps.
    #[arg(long)]
    stats: bool,
    /// At the end of the file wait for more data until interrupted (for a capture that is still being written).
    #[arg(long)]
    follow: bool,
    /// Decode only this feed, including packets that do not identify their feed. Default: detected from the packets.
    #[arg(long, value_name = "FEED", value_parser = replay::parse_feed)]
    feed: Option<Feed>,
    /// Trading date of a day file without a date in its name.
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<TradingDate>,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Filters for packets and messages.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filters (repeat, or separate with commas; all must match)")]
struct FilterArgs {
    /// Frames: N, N-M, N- or -M, counted from 1 in each file.
    #[arg(long, value_name = "RANGE", value_delimiter = ',', allow_hyphen_values = true)]
    frame: Vec<Range>,
    /// Packets sent to this address.
    #[arg(long, value_name = "ADDR[:PORT]", value_delimiter = ',')]
    channel: Vec<Destination>,
    /// Packets of this session, by the venue's name: text of MoldUDP64, number of IEX-TP; of a gateway's output as shown.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    session: Vec<String>,
    /// Messages of this instrument. In ITCH this includes messages with only the stock locate, once the locate is
    /// known.
    #[arg(long, value_name = "SYMBOL", value_delimiter = ',')]
    symbol: Vec<String>,
    /// Messages of this type, by code or name: A, AddOrder; of a gateway's output by schema or kind: mbo, gap.
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Messages with these numbers: N, N-M, N- or -M.
    #[arg(long, value_name = "RANGE", value_delimiter = ',', allow_hyphen_values = true)]
    sequence: Vec<Range>,
    /// Captured at or after: +SECONDS after the first packet, HH:MM:SS UTC of its day, or YYYY-MM-DDTHH:MM:SSZ.
    #[arg(long, value_name = "MOMENT")]
    from: Option<Moment>,
    /// Captured before this time.
    #[arg(long, value_name = "MOMENT")]
    until: Option<Moment>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    if args.follow {
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
        }
    }
    let mut inspection = Inspection {
        args,
        stop,
        printer: PacketPrinter::new(args),
        out: BufWriter::with_capacity(OUT_BYTES, io::stdout().lock()),
        bar: if args.stats { replay::progress_bar(&args.files) } else { ProgressBar::hidden() },
        bytes_before: 0,
        datagrams: 0,
        recognised: 0,
        matched: 0,
        stopped_early: false,
    };
    let mut damages = Vec::new();
    for path in &args.files {
        if let Some(damage) = inspection.file(path)? {
            damages.push(damage);
        }
    }
    inspection.bar.finish_and_clear();
    inspection.out.flush().context(WRITE_STDOUT)?;
    if !damages.is_empty() {
        let kept = if inspection.datagrams > 0 { " (everything before this point was shown)" } else { "" };
        bail!("{}{kept}", damages.join("; "));
    }
    inspection.check_totals()?;
    // Without any datagram, the filters are not the reason for empty output.
    if inspection.matched > 0 || inspection.datagrams == 0 {
        return Ok(Outcome::Done);
    }
    warn("inspect: nothing matches the filters");
    Ok(Outcome::No)
}

/// State across all input files.
struct Inspection<'a> {
    args: &'a Args,
    stop: Arc<AtomicBool>,
    printer: PacketPrinter,
    out: BufWriter<StdoutLock<'static>>,
    bar: ProgressBar,
    /// Size of the files that are done, for the progress bar.
    bytes_before: u64,
    datagrams: u64,
    recognised: u64,
    /// Packets that match the filters.
    matched: u64,
    /// Reading of a file stopped early, since no later packet can match.
    stopped_early: bool,
}

impl Inspection<'_> {
    /// Reads one file to its end. Returns the damage that ended it earlier.
    fn file(&mut self, path: &Path) -> anyhow::Result<Option<String>> {
        let options = OpenOptions { date: self.args.date, ..OpenOptions::default() };
        let opened = if self.args.follow {
            CaptureFile::follow(path, &options, Arc::clone(&self.stop))
        } else {
            CaptureFile::open(path, &options)
        };
        let mut file = match opened {
            Ok(file) => file,
            Err(error) => return Ok(self.damage(error)),
        };
        let mut dissector = Dissector::new(file.kind(), self.args.feed.map(protocol));
        let mut filter = self.args.filter();
        let feed = self.args.feed.or_else(|| feed_in_name(path));
        let mut statistics = self.args.stats.then(|| Statistics::new(feed));
        let mut reported = 0;
        let damage = loop {
            let datagram = match file.next_datagram() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => break None,
                Err(error) => break self.damage(error),
            };
            self.datagrams += 1;
            let check = filter.check(&datagram);
            if check == FilterMatch::PastEnd {
                self.stopped_early = true;
                break None;
            }
            let is_recognised = match &mut statistics {
                Some(statistics) if check == FilterMatch::Match => {
                    let (is_recognised, is_wanted) = count(statistics, &mut dissector, &filter, datagram);
                    self.matched += u64::from(is_wanted);
                    is_recognised
                }
                // Decoded even without a match: later messages may need the symbols that this packet defines.
                _ => {
                    let mut packet = dissector.packet(datagram);
                    if check == FilterMatch::Match && filter.retain_matching(&mut packet) && statistics.is_none() {
                        self.printer.packet(&packet, &mut self.out).context(WRITE_STDOUT)?;
                        self.matched += 1;
                        if self.args.follow {
                            self.out.flush().context(WRITE_STDOUT)?;
                        }
                    }
                    !matches!(packet.framing, Framing::Unrecognised)
                }
            };
            self.recognised += u64::from(is_recognised);
            if let (None, Some((dst, protocol))) = (self.args.feed, dissector.protocols().get(reported)) {
                reported += 1;
                let path = path.display();
                let line = match file.kind() {
                    CaptureKind::Packets => format!("{path}: {dst} detected as {protocol}"),
                    CaptureKind::DayFile => format!("{path}: ITCH 5.0 day file; packet boundaries are synthetic"),
                };
                self.bar.suspend(|| warn(&line));
            }
            if self.datagrams.is_multiple_of(DATAGRAMS_PER_UPDATE) {
                self.bar.set_position(self.bytes_before + file.file_bytes_read());
            }
        };
        self.bytes_before += file.file_bytes_read();
        if let Some(statistics) = statistics {
            let summary = statistics.summary(&path.display().to_string(), file.counts());
            self.printer.statistics(&summary, &mut self.out).context(WRITE_STDOUT)?;
        }
        Ok(damage)
    }

    /// The error text; `None` if `--follow` was interrupted in the middle of a packet, which is no damage.
    fn damage(&self, error: CaptureError) -> Option<String> {
        let is_end = self.stop.load(Relaxed)
            && matches!(error.fault, CaptureFault::Truncated { .. } | CaptureFault::Empty | CaptureFault::NotACapture);
        (!is_end).then(|| super::error_chain(&anyhow::Error::from(error)))
    }

    /// Fails if the files contain no datagram or no known feed.
    fn check_totals(&self) -> anyhow::Result<()> {
        let files = || self.args.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        match (self.datagrams, self.recognised) {
            // Unread data may contain a known feed.
            _ if self.args.follow || self.stopped_early => Ok(()),
            (0, _) => bail!("inspect: no UDP datagrams in {}", files()),
            (datagrams, 0) => {
                bail!("inspect: no known feed in {} ({datagrams} datagrams); set it with --feed", files())
            }
            _ => Ok(()),
        }
    }
}

/// Counts a datagram. Returns whether it belongs to a known feed, and whether it matches the filters.
#[inline]
fn count(
    statistics: &mut Statistics,
    dissector: &mut Dissector,
    filter: &Filter,
    datagram: CapturedDatagram<'_>,
) -> (bool, bool) {
    if !filter.needs_contents() {
        let framing = dissector.framing(&datagram);
        statistics.datagram(&datagram, framing);
        return (!matches!(framing, Framing::Unrecognised), true);
    }
    let mut packet = dissector.packet(datagram);
    let is_wanted = filter.retain_matching(&mut packet);
    statistics.count_filtered(&packet, is_wanted);
    (!matches!(packet.framing, Framing::Unrecognised), is_wanted)
}

/// Output format of packets.
enum PacketPrinter {
    Json,
    Text { text: Text, buffer: String },
}

impl PacketPrinter {
    fn new(args: &Args) -> Self {
        if args.json {
            return Self::Json;
        }
        let is_coloured = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
        Self::Text { text: Text::new(is_coloured), buffer: String::new() }
    }

    fn packet(&mut self, packet: &PacketView<'_>, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Json => {
                serde_json::to_writer(&mut *out, packet)?;
                out.write_all(b"\n")
            }
            Self::Text { text, buffer } => {
                buffer.clear();
                text.packet(packet, buffer).map_err(io::Error::other)?;
                out.write_all(buffer.as_bytes())
            }
        }
    }

    fn statistics(&self, summary: &FileStatistics, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Json => {
                serde_json::to_writer(&mut *out, summary)?;
                out.write_all(b"\n")
            }
            Self::Text { .. } => write!(out, "{summary}"),
        }
    }
}

impl Args {
    fn filter(&self) -> Filter {
        let args = &self.filter;
        let mut filter = Filter::default();
        filter.frames.clone_from(&args.frame);
        filter.channels.clone_from(&args.channel);
        filter.sessions.clone_from(&args.session);
        filter.symbols.clone_from(&args.symbol);
        filter.types.clone_from(&args.types);
        filter.sequences.clone_from(&args.sequence);
        filter.window = Window { from: args.from, until: args.until };
        filter
    }
}

fn protocol(feed: Feed) -> DetectedProtocol {
    match feed {
        Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => DetectedProtocol::Itch50,
        Feed::IexTops => DetectedProtocol::IexTops,
        Feed::IexDeep => DetectedProtocol::IexDeep,
    }
}

/// The ITCH feed that the path suggests; statistics use it in session names.
fn feed_in_name(path: &Path) -> Option<Feed> {
    let guess = guess(DetectedProtocol::Itch50, path);
    (guess.by == GuessBasis::Path).then_some(guess.feed)
}

const OUT_BYTES: usize = 256 * 1024;
/// Datagrams between two updates of the progress bar.
const DATAGRAMS_PER_UPDATE: u64 = 65_536;
