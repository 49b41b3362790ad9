//! What the gateway before had not sent, and where it is read from.

use mdgw_feeds::{
    identity::{Sequence, Session},
    published::position::StreamPosition,
    time::MonoNs,
};
use mdgw_publog::{Entry, Position, Reader, Writer};

/// Entries of the log that go out as a takeover's tail.
#[derive(Debug)]
pub(super) struct CatchUp {
    source: CatchUpSource,
    /// Where the log ended when the fence opened.
    pub(super) log_end: Position,
    /// When the next portion may go.
    pub(super) due: MonoNs,
    /// The gateway before had come so far, which this one hasn't yet: nothing new is said until it has.
    pub(super) predecessor_through: Option<StreamPosition>,
}

/// Where the next entry stands.
#[derive(Debug)]
pub(super) enum CatchUpSource {
    /// In the writer's own memory: no system call, no page fault.
    Memory(Position),
    /// In the log's files: older than what memory keeps.
    Files(Reader),
}

impl CatchUpSource {
    /// The first entry in memory that says more than was heard; `None` when it may be older than what memory keeps.
    pub(super) fn from_memory(writer: &Writer, published_through: StreamPosition) -> Option<Self> {
        // The first part of a message may stand in an entry that settles only what came before it.
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

    /// Where the next entry stands.
    pub(super) fn position(&self) -> Position {
        self.source.position()
    }

    /// Memory has been given to newer entries: the files have the place, if anything does.
    pub(super) fn is_evicted(&self, writer: &Writer) -> bool {
        matches!(self.source, CatchUpSource::Memory(at) if writer.pending(at).is_none())
    }

    pub(super) fn continue_from(&mut self, reader: Reader) {
        self.source = CatchUpSource::Files(reader);
    }

    /// The next entry.
    pub(super) fn peek<'a>(&'a mut self, writer: &'a Writer) -> Option<Entry<'a>> {
        match &mut self.source {
            CatchUpSource::Memory(at) => writer.pending(*at)?.next(),
            CatchUpSource::Files(reader) => reader.peek(),
        }
    }

    /// The next entries, as far as they are at hand after [`Self::peek`].
    pub(super) fn entries_ahead<'a>(&'a self, writer: &'a Writer) -> impl Iterator<Item = Entry<'a>> {
        let (memory, files) = match &self.source {
            CatchUpSource::Memory(at) => (writer.pending(*at), None),
            CatchUpSource::Files(reader) => (None, Some(reader.entries_ahead())),
        };
        memory.into_iter().flatten().chain(files.into_iter().flatten())
    }

    /// Goes behind the first `count` entries ahead.
    pub(super) fn skip(&mut self, count: usize, writer: &Writer) {
        let last = count.checked_sub(1).and_then(|index| self.entries_ahead(writer).nth(index));
        let Some(end) = last.map(|entry| entry.end) else { return };
        match &mut self.source {
            CatchUpSource::Memory(at) => *at = end,
            CatchUpSource::Files(reader) => reader.skip_to(end),
        }
    }

    /// Goes on to the first entry that says more than was heard. How many were passed over.
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

/// Whether an entry says nothing beyond `published_through`.
pub fn is_covered_by(entry: &Entry<'_>, published_through: StreamPosition) -> bool {
    // An entry that settles nothing has something to say where it stands.
    covered_span(entry)
        .is_some_and(|(from, log_end)| log_end < published_through || (log_end == published_through && from < log_end))
}

/// From where to where an entry says something.
pub(super) fn covered_span(entry: &Entry<'_>) -> Option<(StreamPosition, StreamPosition)> {
    let range = (Sequence(entry.first), Sequence(entry.next));
    let session = Session::from_bytes(entry.session)?;
    Some(StreamPosition::range_of_body(session, range, entry.payload))
}
