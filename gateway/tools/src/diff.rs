//! Compares two recordings of the same output or feed by item and content, whatever their receive times.
//!
//! ```text
//! recording A ── items in order ─┐
//!                                ├─ compare: item by item ── first differences, counts
//! recording B ── items in order ─┘
//! ```
//! An **item** is the smallest unit that is compared: a published frame (channel, session, sequence, part), a DBN
//! record (publisher, instrument, type, `sequence`, and its index among records of that sequence), or a message of a
//! feed (feed, session, sequence). Both sides are read step by step. An item that only one side has delivered is
//! remembered, within a bound, until the other side delivers it. Not compared: lines, losses that other lines fill,
//! packet boundaries, and the order between channels. Order within a channel or an instrument is compared.

mod compare;
mod dbn_records;
mod feed_messages;
pub mod journal;
mod published;

use std::{
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use mdgw_captures::{
    capture_file::{CaptureError, CaptureFile, OpenOptions},
    dbn_input::{self, DbnInputError},
};
use mdgw_feeds::{identity::Feed, time::TradingDate};
use mdgw_publog::LogError;
use mdgw_status::quantity::Count;
use serde::Serialize;

use self::{
    compare::{Comparison, Side},
    dbn_records::DbnRecords,
    feed_messages::FeedMessages,
    published::{PublishedCapture, PublishedLog},
};
use crate::{merge::MergeError, replay::offline::OfflineError, summary_table::SummaryTable};

/// Options of a comparison.
#[derive(Clone, Debug)]
pub struct DiffOptions {
    /// Number of differences listed individually.
    pub listed_max: usize,
    /// Items that one side may be ahead of the other; also the number of items remembered to detect duplicates.
    pub names_max: usize,
    /// Feed, for captures whose packets don't identify it.
    pub feed: Option<Feed>,
    /// Trading date, for input without one.
    pub date: Option<TradingDate>,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DiffReport {
    /// Whether there is no difference.
    pub same: bool,
    /// Kind of item: `published frames`, `DBN records` or `messages`.
    pub item_kind: &'static str,
    /// The compared recordings, A and B, as given.
    pub paths: [String; 2],
    /// Items of each recording, without duplicates.
    pub items: [u64; 2],
    /// Items in both recordings.
    pub common: u64,
    /// Of these, items with different content.
    pub content_differs: u64,
    /// Items in one recording only.
    pub only_in: [u64; 2],
    /// Streams (channels' sessions, instruments) with the same items in another order.
    pub order_differs: u64,
    /// Common items with the same content and different receive times: not a difference.
    pub receive_times_differ: u64,
    /// Items that a side delivered before: copies on other lines, retransmissions.
    pub duplicates: [u64; 2],
    /// The differences that were found first, as many as the report lists.
    pub differences: Vec<FoundDifference>,
    /// Errors that ended a side early.
    pub damages: Vec<String>,
}

/// One difference.
#[derive(Clone, Debug, Serialize)]
pub struct FoundDifference {
    /// `content`, `only in A`, `only in B`, `order`.
    pub kind: &'static str,
    /// Name of the item or of the stream.
    pub name: String,
    /// Position in A.
    pub at_a: Option<String>,
    /// Position in B.
    pub at_b: Option<String>,
    /// How the content differs; `None` for an item that one side lacks.
    pub detail: Option<String>,
}

/// Errors of a comparison.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// A file can't be opened.
    #[error("read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A capture can't be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A DBN file can't be read.
    #[error(transparent)]
    Dbn(#[from] DbnInputError),
    /// A publication log can't be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Captures of a feed can't be merged.
    #[error(transparent)]
    CaptureMerge(#[from] MergeError),
    /// A folder without a publication log.
    #[error("diff: no publication log in {}", path.display())]
    NoLog {
        /// Path of the folder.
        path: PathBuf,
    },
    /// Two recordings of different kinds.
    #[error("diff: {a} contains {kind_a}, {b} contains {kind_b}: cannot be compared")]
    DifferentKinds {
        /// First recording.
        a: String,
        /// What the first recording contains: capture or records.
        kind_a: &'static str,
        /// Second recording.
        b: String,
        /// What the second recording contains.
        kind_b: &'static str,
    },
    /// A journal can't be read.
    #[error(transparent)]
    Journal(#[from] mdgw_journal::RecordsError),
    /// The captures of the lines can't be replayed.
    #[error(transparent)]
    Offline(Box<OfflineError>),
    /// The records of a capture have no channel number.
    #[error("the journal holds several channels, among them {} and {}: choose one with --channel", .channels[0], .channels[1])]
    SeveralChannels {
        /// Two of them.
        channels: [u16; 2],
    },
    /// One side is too far ahead of the other.
    #[error("diff: the inputs are more than {names_max} items apart; raise --remember")]
    TooFarApart {
        /// The bound, in items.
        names_max: usize,
    },
    /// Neither side contains items.
    #[error("diff: {a} and {b} contain nothing to compare")]
    NothingToCompare {
        /// First recording.
        a: String,
        /// Second recording.
        b: String,
    },
    /// The caller interrupted the comparison.
    #[error("diff: interrupted")]
    Interrupted,
}

/// Compares two recordings. `on_progress` gets the number of bytes of the files read so far, and may break off.
///
/// # Errors
/// See [`DiffError`]. Damage inside a file is not an error: the result lists it, and is then never "same".
pub fn run(
    paths: [&Path; 2],
    options: &DiffOptions,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<DiffReport, DiffError> {
    let [a, b] = paths;
    let (kind_a, kind_b) = (RecordingKind::of(a)?, RecordingKind::of(b)?);
    if kind_a.name() != kind_b.name() {
        let (a, b) = (a.display().to_string(), b.display().to_string());
        return Err(DiffError::DifferentKinds { a, kind_a: kind_a.name(), b, kind_b: kind_b.name() });
    }
    let mut sides = [kind_a.open(a, options)?, kind_b.open(b, options)?];
    let mut comparison = Comparison::new(options.listed_max, options.names_max);
    comparison.run(&mut sides, on_progress)?;
    let mut report = comparison.finish(&sides);
    report.item_kind = kind_a.name();
    report.paths = paths.map(|path| path.display().to_string());
    if report.items == [0, 0] && report.damages.is_empty() {
        let [a, b] = report.paths;
        return Err(DiffError::NothingToCompare { a, b });
    }
    Ok(report)
}

/// Kind of a recording.
#[derive(Clone, Copy, Debug)]
enum RecordingKind {
    Log,
    Published,
    Feed,
    Dbn,
}

impl RecordingKind {
    /// Determines the kind from the content.
    fn of(path: &Path) -> Result<Self, DiffError> {
        let read = |source| DiffError::Read { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(read)?;
        if metadata.is_dir() {
            return Ok(Self::Log);
        }
        if !metadata.is_file() {
            let why = "is a pipe or device, but must be read twice: write it to a file first";
            return Err(read(io::Error::other(why)));
        }
        if dbn_input::is_dbn(path).map_err(read)? {
            return Ok(Self::Dbn);
        }
        // Only day files need the date, and these never contain published packets.
        let options = OpenOptions { date: TradingDate::from_yyyymmdd(19_700_101), ..OpenOptions::default() };
        let mut file = CaptureFile::open(path, &options)?;
        for _ in 0..DATAGRAMS_EXAMINED_MAX {
            match file.next_datagram() {
                Ok(Some(datagram)) if published::is_published(datagram.payload) => return Ok(Self::Published),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        Ok(Self::Feed)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Log | Self::Published => "published frames",
            Self::Feed => "messages",
            Self::Dbn => "DBN records",
        }
    }

    fn open(self, path: &Path, options: &DiffOptions) -> Result<Box<dyn Side>, DiffError> {
        Ok(match self {
            Self::Log => Box::new(PublishedLog::open(path)?),
            Self::Published => Box::new(PublishedCapture::open(path)?),
            Self::Feed => Box::new(FeedMessages::open(path, options)?),
            Self::Dbn => Box::new(DbnRecords::open(path)?),
        })
    }
}

/// Datagrams examined to determine the content of a capture.
const DATAGRAMS_EXAMINED_MAX: usize = 1_000;

impl DiffReport {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Text for the terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        use std::fmt::Write as _;

        let mut table = SummaryTable::default();
        let text = &mut table.text;
        let [a, b] = &self.paths;
        // Writing to a string cannot fail.
        for difference in &self.differences {
            let position = |at: &Option<String>| at.clone().unwrap_or_else(|| "-".to_owned());
            let _ = writeln!(text, "{:<10} {}", difference.kind, difference.name);
            let _ = writeln!(text, "           A {}, B {}", position(&difference.at_a), position(&difference.at_b));
            if let Some(detail) = &difference.detail {
                let _ = writeln!(text, "           {detail}");
            }
        }
        if !self.differences.is_empty() {
            text.push('\n');
        }
        let [items_a, items_b] = self.items;
        let [only_a, only_b] = self.only_in;
        let verdict = if self.same { "same" } else { "different" };
        table.row("result", verdict);
        table.row("A", format!("{a}: {} {}", Count(items_a), self.item_kind));
        table.row("B", format!("{b}: {} {}", Count(items_b), self.item_kind));
        for (name, count) in [
            ("in both", self.common),
            ("content differs", self.content_differs),
            ("only in A", only_a),
            ("only in B", only_b),
            ("order differs", self.order_differs),
        ] {
            table.row(name, Count(count));
        }
        let [repeated_a, repeated_b] = self.duplicates;
        for (name, count) in [
            ("receive times differ", self.receive_times_differ),
            ("duplicates in A", repeated_a),
            ("duplicates in B", repeated_b),
        ] {
            if count > 0 {
                table.row(name, format!("{} (not a difference)", Count(count)));
            }
        }
        table.text
    }
}
