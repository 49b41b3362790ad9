//! Merges captures of a channel's lines into one capture without gaps, by the venue's sequences.
//!
//! ```text
//! files ── heads ── routes ── channel: session, arbiter ── one packet for each message ── capture
//!                               └─ losses of each line, leads of each pair of lines ── summary
//! ```
//! The lines may come from several machines whose clocks disagree. Captures are read side by side by their own times,
//! but no reader is ahead of another by more than a bounded number of messages. Where clocks disagree, the venue's
//! sequences decide which file is read next. Gaps are decided by sequence too: a gap is declared when no line can
//! deliver the missing messages any more. A line that lags far behind another line of its own capture gets a reader of
//! its own. So memory is bounded whatever the sizes of the files and the distance between lines.
//!
//! The output consists of the packets as captured, with the timestamp of the earliest copy. Packets are split only
//! where lines packed the same messages into different packets. The output is written to its final path directly, so
//! that after a failure the part written so far remains.

mod clock;
mod leads;
mod losses;
mod merged_channel;
mod output;
mod sources;
mod summary;

use std::{io, net::SocketAddr, ops::ControlFlow, path::PathBuf, time::Instant};

use mdgw_captures::{
    capture_file::{CaptureError, OpenOptions},
    output_file::FailedAtByte,
};
use mdgw_feeds::{identity::Feed, time::TradingDate};

pub use self::summary::{
    ClockSummary, GapSummary, LeadSummary, LineSummary, MergeSummary, MergedChannelSummary, OutputSummary,
};
use self::{merged_channel::MergedChannel, output::Output, sources::Sources};
use crate::replay::{offline::refer_to_same_file, routes::RoutingLimit};

/// Options of a merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// Captures and day files, each of one line or several.
    pub files: Vec<PathBuf>,
    /// Output path; `-` is standard output, a name that ends in `.zst` is compressed.
    pub output: PathBuf,
    /// Merge this feed only.
    pub feed: Option<Feed>,
    /// Trading date, for input without one.
    pub date: Option<TradingDate>,
    /// Number of gaps, and of gaps of each line, that the summary lists individually.
    pub listed_max: usize,
}

/// Errors of a merge. Damage inside a capture is not an error: the summary reports it.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A capture could not be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The output can't be written any further.
    #[error("write {path}{at}")]
    Output {
        /// Output path.
        path: PathBuf,
        /// Length of the output at the failure.
        at: FailedAtByte,
        /// Error of the write.
        source: io::Error,
    },
    /// The output would overwrite an input.
    #[error("merge: {output} is one of the input files: choose another output file")]
    OutputIsInput {
        /// Output path.
        output: PathBuf,
    },
    /// More lines of a channel, or more channels, than the limits allow.
    #[error("merge: {0}")]
    RoutingLimit(#[from] RoutingLimit),
    /// The captures contain no packets.
    #[error("merge: no UDP datagrams in {0}")]
    NoPackets(String),
    /// No packet belongs to a known feed, or to the requested one.
    #[error("merge: no {wanted} in {datagrams} datagrams; set the feed with --feed")]
    NothingRecognised {
        /// Feed or feeds searched for.
        wanted: String,
        /// UDP datagrams examined.
        datagrams: u64,
    },
    /// The caller interrupted the merge.
    #[error("merge: interrupted; everything merged so far is in {output}")]
    Interrupted {
        /// Output path.
        output: PathBuf,
    },
}

/// Merges captures into one. `on_progress` gets the number of bytes of the files read so far, and may break off.
///
/// # Errors
/// See [`MergeError`]. Output written before the error stays.
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
    for channel_index in 0..merger.channel_count() {
        merger.finish_channel(channel_index, &mut output);
    }
    let written = output.finish()?;
    if merger.channels.is_empty() && merger.damages().is_empty() {
        return Err(merger.empty_input_error(options));
    }
    Ok(MergeSummary::of(&merger.sources, &merger.channels, written, &options.output, started.elapsed()))
}

/// A merge in progress, datagram by datagram.
#[derive(Debug)]
pub(crate) struct Merger {
    sources: Sources,
    channels: Vec<MergedChannel>,
    date: Option<TradingDate>,
    listed_max: usize,
}

/// Receives the merged packets: each message of a channel once, in order.
pub(crate) trait PacketSink {
    /// Receives a packet with the time of the copy that was delivered.
    fn datagram(&mut self, time_ns: u64, addresses: &PacketAddresses, payload: &[u8]);
}

/// Sender and receiver address of a channel's packets: the same for all packets, as if there were one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketAddresses {
    /// Address of the sender.
    pub src: SocketAddr,
    /// Address of the receiver.
    pub dst: SocketAddr,
}

impl Merger {
    /// Opens captures and reads each up to its first datagram of a known feed. The first `listed_max` gaps are listed.
    ///
    /// # Errors
    /// A capture can't be opened, or the captures have too many lines or channels.
    pub(crate) fn open(
        files: &[PathBuf],
        feed: Option<Feed>,
        date: Option<TradingDate>,
        listed_max: usize,
    ) -> Result<Self, MergeError> {
        let open = OpenOptions { date, ..OpenOptions::default() };
        let mut sources = Sources::open(files, &open, feed)?;
        sources.begin()?;
        Ok(Self { sources, channels: Vec::new(), date, listed_max })
    }

    /// Accepts the next datagram and returns its channel; `None` at the end of all captures. Packets delivered during
    /// the call belong to that channel.
    ///
    /// # Errors
    /// The captures have too many lines or channels.
    #[inline]
    pub(crate) fn step(&mut self, sink: &mut impl PacketSink) -> Result<Option<usize>, MergeError> {
        let Self { sources, channels, date, listed_max } = self;
        let Some(file) = sources.choose(channels) else { return Ok(None) };
        for routes in sources.routes().channels().iter().skip(channels.len()) {
            channels.push(MergedChannel::new(routes.feed, *date, *listed_max));
        }
        let Some((taken, heads)) = sources.current(file) else { return Ok(None) };
        let channel_index = taken.channel_index;
        if let (Some(channel), Some(routes)) =
            (channels.get_mut(channel_index), sources.routes().channels().get(channel_index))
        {
            channel.add_lines(&routes.lines);
            channel.accept(&taken, &heads, sink);
            for line in channel.lagging(file) {
                if let Some(reader) = sources.add_reader(file, channel_index, line)? {
                    channel.assign_reader(line, reader);
                }
            }
        }
        sources.advance(file)?;
        Ok(Some(channel_index))
    }

    /// Ends a channel: delivers the held packets and declares the missing messages.
    pub(crate) fn finish_channel(&mut self, channel_index: usize, sink: &mut impl PacketSink) {
        if let Some(channel) = self.channels.get_mut(channel_index) {
            channel.finish(sink);
        }
    }

    /// Error for an empty output.
    fn empty_input_error(&self, options: &MergeOptions) -> MergeError {
        match self.sources.files().map(|file| file.counts().datagrams).sum() {
            0 => {
                let files: Vec<String> = options.files.iter().map(|file| file.display().to_string()).collect();
                MergeError::NoPackets(files.join(", "))
            }
            datagrams => MergeError::NothingRecognised {
                wanted: options.feed.map_or_else(|| "known feed".to_owned(), |feed| feed.to_string()),
                datagrams,
            },
        }
    }

    /// Channels found so far.
    #[must_use]
    pub(crate) fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// The feed of a channel.
    #[must_use]
    pub(crate) fn feed(&self, channel_index: usize) -> Option<Feed> {
        self.channels.get(channel_index).map(MergedChannel::feed)
    }

    /// Errors that ended captures early.
    #[must_use]
    pub(crate) fn damages(&self) -> &[CaptureError] {
        self.sources.damages()
    }

    /// Bytes of the files on disk read so far.
    #[must_use]
    pub(crate) fn file_bytes_read(&self) -> u64 {
        self.sources.file_bytes_read()
    }
}

/// Datagrams between two progress calls: some milliseconds.
const DATAGRAMS_PER_CHECK: u64 = 8_192;
