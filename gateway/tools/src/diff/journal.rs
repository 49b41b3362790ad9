//! A journal against an offline replay of the venue's lines: record by record, by session, sequence and index.
//!
//! ```text
//!  journal: records and names ─────────────────────────────┐
//!                                                          ├─ compare
//!  captures ─► thread: channels that the gateway runs ─────┘
//! ```
//! Feed, schemas and date of the replay are the journal's own.

use std::{
    collections::VecDeque,
    mem::offset_of,
    ops::ControlFlow,
    path::PathBuf,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

use dbn::enums::rtype;
use mdgw_captures::capture_file::OpenOptions;
use mdgw_feeds::{
    channel::{ChannelConfig, SchemaSet},
    consumer_edge::{ConsumerEdge, EdgeOutput, TsRecvMode},
    frame::{FrameFlags, FrameKind, FrameMeta},
    identity::{Feed, Sequence, Session},
    time::TradingDate,
};
use mdgw_journal::{JournalRecords, NamedRecord};

use super::{
    DiffError, DiffOptions, DiffReport,
    compare::{Comparison, Item, ItemName, Side},
    dbn_records::{explain_records, without_local_times},
};
use crate::replay::{
    capture_merge::{CaptureMerge, Window},
    offline::{OfflineError, ReplayDriver, ReplayDriverOptions, ReplayEnd, ReplaySink},
};

/// What to compare.
#[derive(Clone, Debug)]
pub struct JournalDiffOptions {
    /// Files of a journal, in their order: several where a day has several.
    pub journals: Vec<PathBuf>,
    /// Captures of the venue's lines.
    pub captures: Vec<PathBuf>,
    /// The journal's channel that the captures carry; `None`: it has one only.
    pub channel: Option<u16>,
    /// Trading date of the captures; `None`: the journal's.
    pub date: Option<TradingDate>,
    /// Part of the captures.
    pub window: Window,
    /// How differences are listed; `feed` and `date` of it are not used.
    pub diff: DiffOptions,
}

/// Compares a journal (A) with the captures of the lines (B).
///
/// # Errors
/// See [`DiffError`]. Damage inside a file is not an error: the result lists it, and is then never "same".
pub fn run(
    options: &JournalDiffOptions,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<DiffReport, DiffError> {
    let journal = JournalSide::open(&options.journals, options.channel)?;
    let content = journal.records.content();
    let replay = Replay {
        captures: options.captures.clone(),
        window: options.window,
        feed: content.feed,
        schemas: content.schemas,
        date: options.date.unwrap_or(content.date),
    };
    let mut sides: [Box<dyn Side>; 2] = [Box::new(journal), Box::new(ReplaySide::start(replay))];
    let mut comparison = Comparison::new(options.diff.listed_max, options.diff.names_max);
    comparison.run(&mut sides, on_progress)?;
    let mut report = comparison.finish(&sides);
    report.item_kind = "DBN records";
    report.paths = [&options.journals, &options.captures].map(|paths| list(paths));
    if report.items == [0, 0] && report.damages.is_empty() {
        let [a, b] = report.paths;
        return Err(DiffError::NothingToCompare { a, b });
    }
    Ok(report)
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// The records of a journal.
#[derive(Debug)]
struct JournalSide {
    records: JournalRecords,
    further: VecDeque<PathBuf>,
    channel: Option<u16>,
    /// Whether the channel was named by the caller.
    is_chosen: bool,
    indices: Indices,
    record_number: u64,
    damages: Vec<String>,
}

/// Number of a record among those of its message, whatever parts the message was cut into.
#[derive(Clone, Copy, Debug, Default)]
struct Indices {
    message: Option<(Session, u64)>,
    count: u64,
}

impl Indices {
    fn next(&mut self, session: Session, sequence: u64) -> u64 {
        if self.message != Some((session, sequence)) {
            *self = Self { message: Some((session, sequence)), count: 0 };
        }
        self.count += 1;
        self.count - 1
    }
}

impl JournalSide {
    fn open(paths: &[PathBuf], channel: Option<u16>) -> Result<Self, DiffError> {
        let mut further: VecDeque<PathBuf> = paths.iter().cloned().collect();
        let first = further.pop_front().unwrap_or_default();
        Ok(Self {
            records: JournalRecords::open(&first)?,
            further,
            channel,
            is_chosen: channel.is_some(),
            indices: Indices::default(),
            record_number: 0,
            damages: Vec::new(),
        })
    }
}

impl Side for JournalSide {
    fn next(&mut self) -> Result<Option<Item>, DiffError> {
        loop {
            let record = match self.records.next() {
                Ok(Some(NamedRecord::Record { channel, session, sequence, bytes, .. })) => {
                    (channel.0, session, sequence, bytes)
                }
                Ok(Some(_)) => continue,
                Ok(None) => match self.further.pop_front() {
                    Some(path) => {
                        self.records = JournalRecords::open(&path)?;
                        continue;
                    }
                    None => return Ok(None),
                },
                Err(error) => {
                    self.damages.push(error.to_string());
                    return Ok(None);
                }
            };
            let (channel, session, sequence, bytes) = record;
            self.record_number += 1;
            match self.channel {
                Some(known) if known != channel && self.is_chosen => continue,
                Some(known) if known != channel => {
                    return Err(DiffError::SeveralChannels { channels: [known, channel] });
                }
                _ => self.channel = Some(channel),
            }
            let index = self.indices.next(session, sequence);
            return Ok(Some(item(session, sequence, index, &bytes, self.record_number)));
        }
    }

    fn name(&self, name: &ItemName) -> String {
        name_of(name)
    }

    fn stream(&self, name: &ItemName) -> String {
        stream_of(name)
    }

    fn place(&self, place: u64) -> String {
        format!("record {place}")
    }

    fn may_repeat(&self) -> bool {
        false
    }

    fn explain(&self, a: &[u8], b: &[u8]) -> Option<String> {
        explain_records(a, b)
    }

    fn damages(&self) -> Vec<String> {
        self.damages.clone()
    }

    fn file_bytes_read(&self) -> u64 {
        self.records.file_bytes_read()
    }
}

/// What to replay.
#[derive(Clone, Debug)]
struct Replay {
    captures: Vec<PathBuf>,
    window: Window,
    feed: Feed,
    schemas: SchemaSet,
    date: TradingDate,
}

/// The records of a replay that runs in a thread of its own.
#[derive(Debug)]
struct ReplaySide {
    batches: Receiver<Batch>,
    waiting: VecDeque<Item>,
    damages: Vec<String>,
}

#[derive(Debug)]
enum Batch {
    Items(Vec<Item>),
    Damages(Vec<String>),
    Failed(Box<OfflineError>),
}

impl ReplaySide {
    fn start(replay: Replay) -> Self {
        let (batch, batches) = sync_channel(BATCHES_MAX);
        // Ends when the replay does, or when nobody takes its records any longer.
        thread::spawn(move || {
            let mut sink = ItemSink { batch, items: Vec::new(), channels: Vec::new(), schemas: replay.schemas };
            let end = match run_replay(&replay, &mut sink) {
                Ok(damages) => Batch::Damages(damages),
                Err(error) => Batch::Failed(Box::new(error)),
            };
            let _ = sink.batch.send(Batch::Items(sink.items));
            let _ = sink.batch.send(end);
        });
        Self { batches, waiting: VecDeque::new(), damages: Vec::new() }
    }
}

/// Returns the damages of the captures.
fn run_replay(replay: &Replay, sink: &mut ItemSink) -> Result<Vec<String>, OfflineError> {
    let open = OpenOptions { date: Some(replay.date), ..OpenOptions::default() };
    let mut merge = CaptureMerge::open(&replay.captures, &open, replay.window)?;
    let mut driver = ReplayDriver::new(ReplayDriverOptions {
        feed: Some(replay.feed),
        date: Some(replay.date),
        schemas: Some(replay.schemas),
        end: ReplayEnd::Finished,
    });
    driver.run(&mut merge, sink, &mut |_| ControlFlow::Continue(()))?;
    Ok(merge.damages().iter().map(ToString::to_string).collect())
}

impl Side for ReplaySide {
    fn next(&mut self) -> Result<Option<Item>, DiffError> {
        loop {
            if let Some(item) = self.waiting.pop_front() {
                return Ok(Some(item));
            }
            match self.batches.recv() {
                Ok(Batch::Items(items)) => self.waiting.extend(items),
                Ok(Batch::Damages(damages)) => self.damages = damages,
                Ok(Batch::Failed(error)) => return Err(DiffError::Offline(error)),
                Err(_) => return Ok(None),
            }
        }
    }

    fn name(&self, name: &ItemName) -> String {
        name_of(name)
    }

    fn stream(&self, name: &ItemName) -> String {
        stream_of(name)
    }

    fn place(&self, place: u64) -> String {
        format!("record {place}")
    }

    fn may_repeat(&self) -> bool {
        false
    }

    fn explain(&self, a: &[u8], b: &[u8]) -> Option<String> {
        explain_records(a, b)
    }

    fn damages(&self) -> Vec<String> {
        self.damages.clone()
    }

    fn file_bytes_read(&self) -> u64 {
        0
    }
}

/// Makes items of a replay's frames.
struct ItemSink {
    batch: SyncSender<Batch>,
    items: Vec<Item>,
    channels: Vec<ReplayedRecords>,
    schemas: SchemaSet,
}

struct ReplayedRecords {
    edge: ConsumerEdge,
    session: Option<Session>,
    indices: Indices,
    record_number: u64,
}

impl ReplaySink for ItemSink {
    fn channel(&mut self, _channel_index: usize, _config: &ChannelConfig) -> Result<(), OfflineError> {
        self.channels.push(ReplayedRecords {
            edge: ConsumerEdge::new(TsRecvMode::Capture),
            session: None,
            indices: Indices::default(),
            record_number: 0,
        });
        Ok(())
    }

    fn frame(&mut self, channel_index: usize, meta: &FrameMeta, record_count: u16, body: &[u8]) {
        let Some(channel) = self.channels.get_mut(channel_index) else { return };
        if meta.kind != FrameKind::Message || meta.flags.contains(FrameFlags::LATE_FILL) {
            return;
        }
        let ReplayedRecords { edge, session: Some(session), indices, record_number } = channel else { return };
        edge.deliver(&meta.header(record_count, body), body, |output| {
            if let EdgeOutput::Record { rtype, bytes } = output
                && SchemaSet::of_rtype(rtype).is_some_and(|schema| self.schemas.contains(schema))
            {
                *record_number += 1;
                let index = indices.next(*session, meta.sequence.0);
                self.items.push(item(*session, meta.sequence.0, index, bytes, *record_number));
            }
        });
        if self.items.len() >= ITEMS_PER_BATCH {
            // Fails if the comparison has ended: `check` ends the replay.
            let _ended = self.batch.send(Batch::Items(std::mem::take(&mut self.items)));
        }
    }

    fn covered_through(&mut self, _channel_index: usize, _next: Sequence) {}

    fn session(&mut self, channel_index: usize, session: Session, _next: Sequence) {
        if let Some(channel) = self.channels.get_mut(channel_index) {
            channel.session = Some(session);
        }
    }

    fn end_of_session(&mut self, _channel_index: usize) {}

    fn check(&mut self) -> Result<(), OfflineError> {
        let batch = Batch::Items(std::mem::take(&mut self.items));
        self.batch.send(batch).map_err(|_| OfflineError::Interrupted)
    }
}

fn item(session: Session, sequence: u64, index: u64, record: &[u8], place: u64) -> Item {
    let stream = (0, u128::from_le_bytes(session.to_bytes()));
    let (mut content, local) = without_local_times(record);
    // What a gateway knows of its own receive times and of the state of its books.
    let flags = match content.get(1).copied() {
        Some(rtype::MBO) => Some(offset_of!(dbn::MboMsg, flags)),
        Some(rtype::MBP_0 | rtype::MBP_1 | rtype::MBP_10) => Some(offset_of!(dbn::TradeMsg, flags)),
        _ => None,
    };
    if let Some(flags) = flags.and_then(|at| content.get_mut(at)) {
        *flags &= !(dbn::flags::BAD_TS_RECV | dbn::flags::MAYBE_BAD_BOOK);
    }
    Item { name: ItemName { stream, sequence, index }, content, local, place }
}

fn name_of(name: &ItemName) -> String {
    let record = if name.index > 0 { format!(", record {}", name.index + 1) } else { String::new() };
    format!("{}, sequence {}{record}", stream_of(name), name.sequence)
}

fn stream_of(name: &ItemName) -> String {
    let session = Session::from_bytes(name.stream.1.to_le_bytes());
    session.map_or_else(|| "invalid session".to_owned(), |session| session.to_string())
}

const ITEMS_PER_BATCH: usize = 4_096;
/// Batches that wait for the comparison.
const BATCHES_MAX: usize = 4;
