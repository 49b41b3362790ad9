//! The catch-up: entries that the previous leader had not sent, and the place they are read from.

use mdgw_feeds::{
    identity::{Sequence, Session},
    published::position::StreamPosition,
    time::MonoNs,
};
use mdgw_publog::{Entry, Position, Reader, Writer};

/// Log entries to be sent by a takeover's catch-up.
#[derive(Debug)]
pub(super) struct CatchUp {
    source: CatchUpSource,
    /// End of the log when the fence opened.
    pub(super) log_end: Position,
    /// When the next portion may be sent.
    pub(super) due: MonoNs,
    /// Position that the previous leader had reached and this gateway has not: nothing new is published before it.
    pub(super) predecessor_through: Option<StreamPosition>,
}

/// Where the next entry is read.
#[derive(Debug)]
pub(super) enum CatchUpSource {
    /// The writer's own memory: no system call, no page fault.
    Memory(Position),
    /// The log's files, for entries older than those in memory.
    Files(Reader),
}

impl CatchUpSource {
    /// The first entry in memory that reaches beyond the watermark; `None` if that entry may be older than the memory.
    pub(super) fn from_memory(writer: &Writer, published_through: StreamPosition) -> Option<Self> {
        // The first part of a message may lie in an entry that covers only the messages before it.
        let before = writer
            .pending_before(published_through.session.to_bytes(), published_through.sequence.0.saturating_sub(1))?;
        let mut at = before;
        for entry in writer.pending(before)?.take_while(|entry| is_covered_by(entry, published_through)) {
            at = entry.end;
        }
        Some(Self::Memory(at))
    }

    pub(super) fn position(&self) -> Position {
        match self {
            Self::Memory(at) => *at,
            Self::Files(reader) => reader.position(),
        }
    }
}

impl CatchUp {
    pub(super) fn new(
        source: CatchUpSource,
        log_end: Position,
        due: MonoNs,
        predecessor_through: Option<StreamPosition>,
    ) -> Self {
        Self { source, log_end, due, predecessor_through }
    }

    /// Position of the next entry.
    pub(super) fn position(&self) -> Position {
        self.source.position()
    }

    /// Whether the next entry is no longer in memory. Then only the files may have it.
    pub(super) fn is_evicted(&self, writer: &Writer) -> bool {
        matches!(self.source, CatchUpSource::Memory(at) if writer.pending(at).is_none())
    }

    pub(super) fn continue_from(&mut self, reader: Reader) {
        self.source = CatchUpSource::Files(reader);
    }

    /// The next entry, without advancing.
    pub(super) fn peek<'a>(&'a mut self, writer: &'a Writer) -> Option<Entry<'a>> {
        match &mut self.source {
            CatchUpSource::Memory(at) => writer.pending(*at)?.next(),
            CatchUpSource::Files(reader) => reader.peek(),
        }
    }

    /// The next entries, as far as they are loaded after [`Self::peek`].
    pub(super) fn entries_ahead<'a>(&'a self, writer: &'a Writer) -> impl Iterator<Item = Entry<'a>> {
        let (memory, files) = match &self.source {
            CatchUpSource::Memory(at) => (writer.pending(*at), None),
            CatchUpSource::Files(reader) => (None, Some(reader.entries_ahead())),
        };
        memory.into_iter().flatten().chain(files.into_iter().flatten())
    }

    /// Advances behind the first `count` of [`Self::entries_ahead`].
    pub(super) fn skip(&mut self, count: usize, writer: &Writer) {
        let last = count.checked_sub(1).and_then(|index| self.entries_ahead(writer).nth(index));
        let Some(end) = last.map(|entry| entry.end) else { return };
        match &mut self.source {
            CatchUpSource::Memory(at) => *at = end,
            CatchUpSource::Files(reader) => reader.skip_to(end),
        }
    }

    /// Skips entries up to the watermark. Returns how many were skipped.
    pub(super) fn skip_published(&mut self, writer: &Writer) -> u64 {
        let mut count = 0;
        while let Some(published_through) = self.predecessor_through
            && let Some(entry) = self.peek(writer)
        {
            if is_covered_by(&entry, published_through) {
                self.skip(1, writer);
                count += 1;
            } else {
                self.predecessor_through = None;
            }
        }
        count
    }
}

/// Whether an entry holds nothing beyond `published_through`.
pub fn is_covered_by(entry: &Entry<'_>, published_through: StreamPosition) -> bool {
    // An entry that covers no sequence (a heartbeat) still counts at its position.
    covered_span(entry)
        .is_some_and(|(from, until)| until < published_through || (until == published_through && from < until))
}

/// The range of the stream that an entry covers.
pub(super) fn covered_span(entry: &Entry<'_>) -> Option<(StreamPosition, StreamPosition)> {
    let range = (Sequence(entry.first), Sequence(entry.next));
    let session = Session::from_bytes(entry.session)?;
    Some(StreamPosition::range_of_body(session, range, entry.payload))
}
