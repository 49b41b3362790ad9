//! Captures straight into the pipeline: the channels that the gateway runs, on the capture's own clock, as fast as the
//! machine goes; out come the records that a consumer would have got.
//!
//! ```text
//! files ── merge ── routes ── channel ── edge ── DBN file
//!          by time   to lanes            per lane
//! ```
//! A **lane** is one channel with its lines. Nothing here reads a clock (but for the rate in the summary): deadlines
//! of the channels are fired at their time between datagrams, so the same input always gives the same output.

mod lanes;
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

use self::recorder::{LaneRecords, Recorder};
pub use self::{
    lanes::{Lane, ReplayDriver, ReplayDriverOptions, ReplayEnd, RouteCounts},
    stop_point::{InvalidSession, SessionSelector, StopPoint},
};
use super::{
    capture_merge::{CaptureMerge, Window},
    feed_guess::GuessBasis,
    routes::RoutingLimit,
    summary::{ChannelSummary, FileSummary, LineSummary, OutputSummary, Summary, Totals},
};

/// What to replay into the pipeline.
#[derive(Clone, Debug, Default)]
pub struct OfflineOptions {
    /// Captures and day files; each brings further lines.
    pub files: Vec<PathBuf>,
    /// Take this feed and leave out all others.
    pub feed: Option<Feed>,
    /// Trading date, where the input doesn't tell it or is not to be asked.
    pub date: Option<TradingDate>,
    /// Which records; `None`: what channels of the feed publish by default.
    pub schemas: Option<SchemaSet>,
    /// Which receive time the records get.
    pub ts_recv: TsRecvMode,
    /// DBN file to write, compressed if it ends in `.zst`; `-` is standard output. `None`: only the summary.
    pub output: Option<PathBuf>,
    /// Part of the time.
    pub window: Window,
}

/// What happens while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// So many bytes of the files were read.
    Progress {
        /// Bytes as they are on disk.
        file_bytes: u64,
        /// The channels as they stand.
        driver: &'a ReplayDriver,
    },
    /// A channel was found.
    Found {
        /// Its lane.
        lane: Lane<'a>,
        /// How its feed was told; `None` where it was asked for.
        by: Option<GuessBasis>,
    },
}

/// Why a replay could not be done. Damage inside a capture is none of these: it stands in the summary, with everything
/// before it replayed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A capture could not be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The output could not be begun.
    #[error("write {path}")]
    Output {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The output could not be written to its end.
    #[error(transparent)]
    Dbn(#[from] DbnFileError),
    /// No packet was of a feed that is known, or of the one that was asked for.
    #[error("no {wanted} in {datagrams} datagrams; set the feed with --feed")]
    NothingRecognised {
        /// What was looked for.
        wanted: String,
        /// UDP datagrams that were looked at.
        datagrams: u64,
    },
    /// None was captured whole.
    #[error("all of {truncated} datagrams are cut by the capture's snap length; capture whole frames (tcpdump -s 0)")]
    AllTruncated {
        /// How many there were.
        truncated: u64,
    },
    /// There were no packets at all.
    #[error("no packets in {}", list(.files))]
    NoPackets {
        /// Where they were looked for.
        files: Vec<PathBuf>,
    },
    /// There were packets, but none in the part of the time that was asked for.
    #[error("replay: no packets between --from and --until in {}", list(.files))]
    NothingInWindow {
        /// Where they were looked for.
        files: Vec<PathBuf>,
    },
    /// A feed's messages don't tell enough for a schema.
    #[error("replay: {feed} does not carry what schema {unsupported} needs; it gives: {}", SchemaSet::of_feed(*.feed))]
    SchemaNotOfFeed {
        /// The feed.
        feed: Feed,
        /// What it was asked for in vain.
        unsupported: SchemaSet,
    },
    /// A DBN file is of one dataset.
    #[error("replay: the captures contain {first} and {second}, but a DBN file holds one dataset: choose with --feed")]
    SeveralDatasets {
        /// The first that was found.
        first: Feed,
        /// The other one.
        second: Feed,
    },
    /// More lines of a channel, or more channels, than are kept at once.
    #[error("replay: {0}")]
    RoutingLimit(#[from] RoutingLimit),
    /// The caller broke off.
    #[error("replay: interrupted")]
    Interrupted,
}

/// Replays captures through channels and writes what they make. `watch` is told how it goes and may break off.
///
/// # Errors
/// See [`OfflineError`]. Of the output only what [`OfflineError::Dbn`] tells is left then.
pub fn run(
    options: &OfflineOptions,
    watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
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
            DbnFileWriter::create(path, DbnFileOptions { dataset: String::new(), schema: only(options.schemas) })
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
    driver.run(&mut merge, &mut recorder, watch)?;
    let elapsed = started.elapsed();

    if driver.lanes().len() == 0 && merge.damages().is_empty() {
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
            wanted: options.feed.map_or_else(|| "a known feed".to_owned(), |feed| feed.to_string()),
            datagrams: driver.counts().datagrams,
        });
    }
    Ok(summarise(&driver, &merge, recorder, elapsed, options.output.as_deref())?)
}

fn list(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    names.join(", ")
}

/// Whether both names lead to one file, through whatever links.
pub(crate) fn refer_to_same_file(left: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(left).is_some_and(|left| Some(left) == identity(other))
}

/// What takes the frames of all lanes.
pub trait ReplaySink {
    /// A lane begins: frames under this number are its.
    ///
    /// # Errors
    /// A lane that this outlet cannot take.
    fn lane(&mut self, lane: usize, config: &ChannelConfig) -> Result<(), OfflineError>;

    /// See [`FrameSink::frame`](mdgw_feeds::frame::FrameSink::frame).
    fn frame(&mut self, lane: usize, meta: &mdgw_feeds::frame::FrameMeta, record_count: u16, body: &[u8]);

    /// See [`FrameSink::covered_through`](mdgw_feeds::frame::FrameSink::covered_through).
    fn covered_through(&mut self, lane: usize, next: Sequence);

    /// See [`FrameSink::session`](mdgw_feeds::frame::FrameSink::session).
    fn session(&mut self, lane: usize, session: Session, next: Sequence);

    /// See [`FrameSink::end_of_session`](mdgw_feeds::frame::FrameSink::end_of_session).
    fn end_of_session(&mut self, lane: usize);

    /// Looked at now and then.
    ///
    /// # Errors
    /// What went wrong since it was last asked; the replay ends with it.
    fn check(&mut self) -> Result<(), OfflineError> {
        Ok(())
    }
}

/// The one schema that was asked for, as metadata has it.
fn only(schemas: Option<SchemaSet>) -> Option<dbn::Schema> {
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
    let (lane_records, writer) = recorder.into_parts();
    let counts = driver.counts();
    let channels: Vec<ChannelSummary> =
        driver.lanes().zip(&lane_records).map(|(lane, records)| summarise_lane(lane, records)).collect();
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

fn summarise_lane(lane: Lane<'_>, records: &LaneRecords) -> ChannelSummary {
    let channel = lane.channel();
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
        lines: lane
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
        late_fills: records.late_fills,
        memory_bytes: channel.memory_bytes() as u64,
    }
}

#[cfg(test)]
mod tests;
