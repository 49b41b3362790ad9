//! Replays captures through the channels that the gateway runs, on the capture's own clock and as fast as possible. The
//! output is the records that a consumer would have received.
//!
//! ```text
//! files ── merge ── routes ── channel ── edge ── DBN file
//!          by time   to channels         per channel
//! ```
//! No clock is read here (except for the rate in the summary): the channels' deadlines fire between
//! datagrams at their time, so the same input always gives the same output.

mod driver;
mod recorder;
mod snapshot;
mod stop_point;

use std::{
    collections::BTreeMap,
    fs, io,
    ops::ControlFlow,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mdgw_captures::{
    capture_file::{CaptureError, OpenOptions},
    dbn_file::{DbnFileError, DbnFileOptions, DbnFileWriter},
};
use mdgw_feeds::{
    channel::{ChannelConfig, SchemaSet},
    consumer_edge::TsRecvMode,
    drop_reason::DropReason,
    identity::{Feed, Sequence, Session},
    time::TradingDate,
};

pub use self::driver::{ReplayDriver, ReplayedChannel};
pub(crate) use self::driver::{ReplayDriverOptions, ReplayEnd};
use self::recorder::{ChannelRecords, Recorder};
pub use self::stop_point::{InvalidSession, SessionSelector, StopPoint};
use super::{
    capture_merge::{CaptureMerge, Window},
    feed_guess::GuessBasis,
    routes::RoutingLimit,
    summary::{ChannelSummary, FileSummary, LineSummary, OutputSummary, Summary, Totals},
};

/// Options of an offline replay.
#[derive(Clone, Debug, Default)]
pub struct OfflineOptions {
    /// Captures and day files; each adds lines.
    pub files: Vec<PathBuf>,
    /// Process this feed only.
    pub feed: Option<Feed>,
    /// Trading date, for input without one, or to override it.
    pub date: Option<TradingDate>,
    /// Schemas to record; `None`: the default of the feed's channels.
    pub schemas: Option<SchemaSet>,
    /// Source of the records' receive time.
    pub ts_recv: TsRecvMode,
    /// DBN file to write, compressed if its name ends in `.zst`; `-` is standard output. `None`: summary only.
    pub output: Option<PathBuf>,
    /// Time window to replay.
    pub window: Window,
}

/// Progress events.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes of the files were read.
    Progress {
        /// Bytes as on disk.
        file_bytes: u64,
        /// State of the channels.
        driver: &'a ReplayDriver,
    },
    /// A channel was found.
    Found {
        /// The channel with the captures that carry its lines.
        channel: ReplayedChannel<'a>,
        /// How its feed was determined; `None` if the caller requested it.
        by: Option<GuessBasis>,
    },
}

/// Errors of a replay. Damage inside a capture is not an error: the summary reports it, and everything before it was
/// replayed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A capture could not be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The output could not be created.
    #[error("replay: cannot write {path}")]
    Output {
        /// Path of the output.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The output could not be written to its end.
    #[error(transparent)]
    Dbn(#[from] DbnFileError),
    /// No packet belongs to a known feed, or to the requested one.
    #[error("no {wanted} in {datagrams} datagrams; set the feed with --feed")]
    NothingRecognised {
        /// Feed or feeds searched for.
        wanted: String,
        /// UDP datagrams examined.
        datagrams: u64,
    },
    /// All datagrams are truncated by the capture's snap length.
    #[error(
        "all {truncated} datagrams are truncated by the capture's snap length; capture whole frames (tcpdump -s 0)"
    )]
    AllTruncated {
        /// Number of datagrams.
        truncated: u64,
    },
    /// The captures contain no packets.
    #[error("no packets in {}", list(.files))]
    NoPackets {
        /// Paths of the captures.
        files: Vec<PathBuf>,
    },
    /// There are packets, but none in the requested time window.
    #[error("replay: no packets between --from and --until in {}", list(.files))]
    NothingInWindow {
        /// Paths of the captures.
        files: Vec<PathBuf>,
    },
    /// The feed's messages lack data that a schema needs.
    #[error("replay: schema {unsupported} is not available from {feed}; available: {}", SchemaSet::of_feed(*.feed))]
    SchemaNotOfFeed {
        /// Feed of the channel for which the schema was requested.
        feed: Feed,
        /// The schema that is not available.
        unsupported: SchemaSet,
    },
    /// A DBN file holds one dataset.
    #[error("replay: the captures contain {first} and {second}, but a DBN file holds one dataset: choose with --feed")]
    SeveralDatasets {
        /// First feed found.
        first: Feed,
        /// Second feed found.
        second: Feed,
    },
    /// More lines of a channel, or more channels, than the limits allow.
    #[error("replay: {0}")]
    RoutingLimit(#[from] RoutingLimit),
    /// The caller interrupted the replay.
    #[error("replay: interrupted")]
    Interrupted,
}

/// Replays captures through channels and writes their records. `on_event` gets progress events and may break off.
///
/// # Errors
/// See [`OfflineError`]. After an error, only the output described in [`OfflineError::Dbn`] is left.
pub fn run(
    options: &OfflineOptions,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Summary, OfflineError> {
    if let Some(output) = &options.output
        && let Some(input) = options.files.iter().find(|input| refer_to_same_file(input, output))
    {
        let source = io::Error::other(format!("it is also the input {}", input.display()));
        return Err(OfflineError::Output { path: output.clone(), source });
    }
    let open = OpenOptions { date: options.date, ..OpenOptions::default() };
    let mut merge = CaptureMerge::open(&options.files, &open, options.window)?;
    let output_error = |source| OfflineError::Output { path: options.output.clone().unwrap_or_default(), source };
    let writer = options
        .output
        .as_deref()
        .map(|path| {
            DbnFileWriter::create(
                path,
                DbnFileOptions { dataset: String::new(), schema: single_schema(options.schemas) },
            )
        })
        .transpose()
        .map_err(output_error)?;
    let mut recorder = Recorder::new(options.ts_recv, options.schemas, writer);
    let drive_options = ReplayDriverOptions {
        feed: options.feed,
        date: options.date,
        schemas: options.schemas,
        end: ReplayEnd::Finished,
    };

    let started = Instant::now();
    let mut driver = ReplayDriver::new(drive_options);
    driver.run(&mut merge, &mut recorder, on_event)?;
    let elapsed = started.elapsed();

    if driver.channels().len() == 0 && merge.damages().is_empty() {
        if merge.files().all(|file| file.counts().frames == 0) {
            return Err(OfflineError::NoPackets { files: options.files.clone() });
        }
        if driver.counts().datagrams == 0 && merge.truncated() > 0 {
            return Err(OfflineError::AllTruncated { truncated: merge.truncated() });
        }
        if driver.counts().datagrams == 0 && options.window != Window::default() {
            return Err(OfflineError::NothingInWindow { files: options.files.clone() });
        }
        return Err(OfflineError::NothingRecognised {
            wanted: options.feed.map_or_else(|| "known feed".to_owned(), |feed| feed.to_string()),
            datagrams: driver.counts().datagrams,
        });
    }
    Ok(summarise(&driver, &merge, recorder, elapsed, options.output.as_deref())?)
}

fn list(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    names.join(", ")
}

/// Whether both paths lead to the same file, through any symbolic links.
pub(crate) fn refer_to_same_file(left: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(left).is_some_and(|left| Some(left) == identity(other))
}

/// Receives the frames of all channels.
pub(crate) trait ReplaySink {
    /// Begins a channel: later calls with this index belong to it.
    ///
    /// # Errors
    /// The sink cannot accept this channel.
    fn channel(&mut self, channel_index: usize, config: &ChannelConfig) -> Result<(), OfflineError>;

    /// See [`FrameSink::frame`](mdgw_feeds::frame::FrameSink::frame).
    fn frame(&mut self, channel_index: usize, meta: &mdgw_feeds::frame::FrameMeta, record_count: u16, body: &[u8]);

    /// See [`FrameSink::covered_through`](mdgw_feeds::frame::FrameSink::covered_through).
    fn covered_through(&mut self, channel_index: usize, next: Sequence);

    /// See [`FrameSink::session`](mdgw_feeds::frame::FrameSink::session).
    fn session(&mut self, channel_index: usize, session: Session, next: Sequence);

    /// See [`FrameSink::end_of_session`](mdgw_feeds::frame::FrameSink::end_of_session).
    fn end_of_session(&mut self, channel_index: usize);

    /// Checks for errors; called now and then.
    ///
    /// # Errors
    /// Errors since the last check; the replay ends with them.
    fn check(&mut self) -> Result<(), OfflineError> {
        Ok(())
    }
}

/// The schema for the metadata, if a single one was requested.
fn single_schema(schemas: Option<SchemaSet>) -> Option<dbn::Schema> {
    let schemas = schemas?;
    let (_, name) = SchemaSet::NAMES.into_iter().find(|(schema, _)| *schema == schemas)?;
    name.parse().ok()
}

fn summarise(
    driver: &ReplayDriver,
    merge: &CaptureMerge,
    recorder: Recorder,
    elapsed: Duration,
    output: Option<&Path>,
) -> Result<Summary, DbnFileError> {
    let (channel_records, writer) = recorder.into_parts();
    let counts = driver.counts();
    let channels: Vec<ChannelSummary> =
        driver.channels().zip(&channel_records).map(|(channel, records)| summarise_channel(channel, records)).collect();
    let mut total = Totals::default();
    for channel in &channels {
        total.add(&channel.counts);
    }
    let written = writer.map(DbnFileWriter::finish).transpose()?;
    Ok(Summary {
        files: merge.files().map(|file| FileSummary::of(file, merge.damages())).collect(),
        unrecognised_datagrams: counts.unrecognised,
        other_feed_datagrams: counts.other_feed,
        capture_seconds: counts.span_ns.map_or(0.0, |(first, last)| Duration::from_nanos(last - first).as_secs_f64()),
        elapsed_seconds: elapsed.as_secs_f64(),
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        messages_per_second: total.messages as f64 / elapsed.as_secs_f64().max(1e-9),
        output: output.zip(written).map(|(path, written)| OutputSummary {
            path: path.display().to_string(),
            records: written.record_count,
            symbols: written.symbol_count,
            bytes: written.bytes,
        }),
        channels,
        total,
    })
}

fn summarise_channel(replayed: ReplayedChannel<'_>, records: &ChannelRecords) -> ChannelSummary {
    let channel = replayed.channel();
    let counters = channel.counters();
    let mut drops = BTreeMap::new();
    let mut duplicates = 0;
    for (reason, count) in channel.drops().iter().chain(channel.arbiter_drops().iter()) {
        match reason {
            DropReason::Duplicate => duplicates += count,
            _ => *drops.entry(reason.name()).or_default() += count,
        }
    }
    ChannelSummary {
        feed: channel.config().feed.name(),
        session: channel.position().map(|(session, _)| session.to_string()),
        state: format!("{:?}", channel.state()).to_lowercase(),
        lines: replayed
            .lines()
            .iter()
            .map(|(line, source)| LineSummary {
                line: line.to_string(),
                source: format!("{} to {}", source.path.display(), source.dst),
            })
            .collect(),
        counts: Totals {
            packets: counters.datagrams,
            heartbeats: counters.heartbeats,
            messages: counters.messages,
            messages_refused: counters.messages_refused,
            unsequenced: counters.unsequenced,
            records: records.by_schema().collect(),
            suspect_records: records.suspect,
            gaps: counters.gaps,
            lost_messages: counters.gap_messages,
            duplicates,
            drops,
            book_faults: channel.book_faults().iter().map(|(fault, count)| (fault.name(), count)).collect(),
            sessions: counters.sessions,
            trades_broken: counters.trades_broken,
        },
        late_starts: counters.late_starts,
        late_messages: records.late_messages,
        memory_bytes: channel.memory_bytes() as u64,
    }
}

#[cfg(test)]
mod tests;
