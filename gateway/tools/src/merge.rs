//! Captures of a channel's lines into one capture without gaps, by the venue's numbers.
//!
//! ```text
//! files ── heads ── routes ── lane: session, arbiter ── one packet for each message ── capture
//!                               └─ losses of each line, leads of each pair of lines ── summary
//! ```
//! The lines may come from several machines, whose clocks need not agree. Captures are read side by side by their own
//! times, but none runs ahead of another by more than a bounded number of messages: where clocks disagree, the venue's
//! numbers decide which file is read on. What is waited for is waited for by number too: a gap is declared when no line
//! can bring it any more. A line that lags far behind another one of its own capture is read apart from it. So memory is bounded
//! whatever the files' sizes and however far lines are apart.
//!
//! What comes out are the packets as they were captured, with the stamp of the earliest copy. Only where lines cut the
//! same messages into different packets are packets cut again. The output goes where it is to be at once, so that what
//! was done stays when something fails.

mod clock;
mod lane;
mod leads;
mod losses;
mod output;
mod sources;
mod summary;

use std::{io, net::SocketAddr, ops::ControlFlow, path::PathBuf, time::Instant};

use mdgw_captures::{
    capture_file::{CaptureError, OpenOptions},
    output_file::FailedAtByte,
};
use mdgw_feeds::{identity::Feed, time::TradingDate};

pub use self::summary::{ClockSummary, GapSummary, LaneSummary, LeadSummary, LineSummary, MergeSummary, OutputSummary};
use self::{lane::Lane, output::Output, sources::Sources};
use crate::replay::{offline::refer_to_same_file, routes::RoutingLimit};

/// What to merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// Captures and day files, each of one line or several.
    pub files: Vec<PathBuf>,
    /// Where to; `-` is standard output, a name that ends in `.zst` is compressed.
    pub output: PathBuf,
    /// Take this feed and leave out all others.
    pub feed: Option<Feed>,
    /// Trading date, where the input doesn't tell it.
    pub date: Option<TradingDate>,
    /// Gaps, and holes of each line, that the summary names one by one.
    pub listed_max: usize,
}

/// Why captures could not be merged. Damage inside a capture is none of these: it stands in the summary.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A capture could not be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The output could not be written any further.
    #[error("write {path}{at}")]
    Output {
        /// Where to.
        path: PathBuf,
        /// Where that ended.
        at: FailedAtByte,
        /// Why not.
        source: io::Error,
    },
    /// The output would overwrite what is read.
    #[error("merge: {output} is one of the input files: choose another output file")]
    OutputIsInput {
        /// The output.
        output: PathBuf,
    },
    /// More lines of a channel, or more channels, than are kept at once.
    #[error("merge: {0}")]
    RoutingLimit(#[from] RoutingLimit),
    /// There was nothing to merge.
    #[error("merge: no UDP datagrams in {0}")]
    NoPackets(String),
    /// No packet was of a feed that is known, or of the one that was asked for.
    #[error("merge: no {wanted} in {datagrams} datagrams; set the feed with --feed")]
    NothingRecognised {
        /// What was looked for.
        wanted: String,
        /// UDP datagrams that were looked at.
        datagrams: u64,
    },
    /// The caller broke off.
    #[error("merge: interrupted; everything merged so far is in {output}")]
    Interrupted {
        /// The output.
        output: PathBuf,
    },
}

/// Merges captures into one. `on_progress` hears how many bytes of the files were read, and may break off.
///
/// # Errors
/// See [`MergeError`]. What was written before stays.
pub fn run(
    options: &MergeOptions,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<MergeSummary, MergeError> {
    if options.files.iter().any(|input| refer_to_same_file(input, &options.output)) {
        return Err(MergeError::OutputIsInput { output: options.output.clone() });
    }
    let started = Instant::now();
    let mut merger = Merger::open(&options.files, options.feed, options.date, options.listed_max)?;
    let mut output = Output::create(&options.output)?;
    let mut datagrams = 0_u64;
    while merger.step(&mut output)?.is_some() {
        output.check()?;
        datagrams += 1;
        if datagrams.is_multiple_of(DATAGRAMS_PER_CHECK) && on_progress(merger.file_bytes_read()).is_break() {
            output.finish()?;
            return Err(MergeError::Interrupted { output: options.output.clone() });
        }
    }
    for lane in 0..merger.lane_count() {
        merger.finish_lane(lane, &mut output);
    }
    let written = output.finish()?;
    if merger.lanes.is_empty() && merger.damages().is_empty() {
        return Err(merger.empty_input_error(options));
    }
    Ok(MergeSummary::of(&merger.sources, &merger.lanes, written, &options.output, started.elapsed()))
}

/// Captures that are being merged, datagram by datagram.
#[derive(Debug)]
pub struct Merger {
    sources: Sources,
    lanes: Vec<Lane>,
    date: Option<TradingDate>,
    listed_max: usize,
}

/// Takes what comes out: packets with each message of a channel once, in order.
pub trait PacketSink {
    /// A packet, with the stamp of the copy that it is.
    fn datagram(&mut self, time_ns: u64, addresses: &PacketAddresses, payload: &[u8]);
}

/// Who says a channel's packets, and where to: the same for all of them, as for one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAddresses {
    /// Sender.
    pub src: SocketAddr,
    /// Receiver.
    pub dst: SocketAddr,
}

impl Merger {
    /// Opens captures, each standing at its first datagram of a known feed. The first `listed_max` gaps will be named.
    ///
    /// # Errors
    /// One can't be opened, or they have too many lines or channels.
    pub fn open(
        files: &[PathBuf],
        feed: Option<Feed>,
        date: Option<TradingDate>,
        listed_max: usize,
    ) -> Result<Self, MergeError> {
        let open = OpenOptions { date, ..OpenOptions::default() };
        let mut sources = Sources::open(files, &open, feed)?;
        sources.begin()?;
        Ok(Self { sources, lanes: Vec::new(), date, listed_max })
    }

    /// Takes the next datagram; of which lane it was, `None` at the end of all captures. What comes out of it is of that
    /// lane.
    ///
    /// # Errors
    /// There are too many lines or channels.
    #[inline]
    pub fn step(&mut self, sink: &mut impl PacketSink) -> Result<Option<usize>, MergeError> {
        let Self { sources, lanes, date, listed_max } = self;
        let Some(file) = sources.choose(lanes) else { return Ok(None) };
        for routes in sources.routes().lanes().iter().skip(lanes.len()) {
            lanes.push(Lane::new(routes.feed, *date, *listed_max));
        }
        let Some((taken, heads)) = sources.current(file) else { return Ok(None) };
        let lane_index = taken.lane;
        if let (Some(lane), Some(routes)) = (lanes.get_mut(lane_index), sources.routes().lanes().get(lane_index)) {
            lane.add_lines(&routes.lines);
            lane.accept(&taken, &heads, sink);
            for line in lane.lagging(file) {
                if let Some(reader) = sources.part(file, lane_index, line)? {
                    lane.assign_reader(line, reader);
                }
            }
        }
        sources.advance(file)?;
        Ok(Some(lane_index))
    }

    /// No datagram follows: what the lane holds comes out, what it lacks is declared.
    pub fn finish_lane(&mut self, lane: usize, sink: &mut impl PacketSink) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.finish(sink);
        }
    }

    /// Why nothing came out.
    fn empty_input_error(&self, options: &MergeOptions) -> MergeError {
        match self.sources.files().map(|file| file.counts().datagrams).sum() {
            0 => {
                let files: Vec<String> = options.files.iter().map(|file| file.display().to_string()).collect();
                MergeError::NoPackets(files.join(", "))
            }
            datagrams => MergeError::NothingRecognised {
                wanted: options.feed.map_or_else(|| "a known feed".to_owned(), |feed| feed.to_string()),
                datagrams,
            },
        }
    }

    /// Channels found so far.
    #[must_use]
    pub fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// The feed of a lane.
    #[must_use]
    pub fn feed(&self, lane: usize) -> Option<Feed> {
        self.lanes.get(lane).map(Lane::feed)
    }

    /// What ended captures before their end.
    #[must_use]
    pub fn damages(&self) -> &[CaptureError] {
        self.sources.damages()
    }

    /// Bytes of the files as they are on disk that were read so far.
    #[must_use]
    pub fn file_bytes_read(&self) -> u64 {
        self.sources.file_bytes_read()
    }
}

/// Datagrams between two looks at the caller's wish to stop: some milliseconds.
const DATAGRAMS_PER_CHECK: u64 = 8_192;
