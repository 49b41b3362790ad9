//! What the gateway before had not sent, and where it is read from.

use mdgw_feeds::{
    identity::{Sequence, Session},
    published::position::StreamPosition,
    time::MonoNs,
};
use mdgw_publog::{Entry, Position, Reader, Writer};

/// Entries of the log that go out as a takeover's tail.
#[derive(Debug)]
pub(super) struct Tail {
    source: Source,
    /// Where the log ended when the fence opened.
    pub(super) until: Position,
    /// When the next portion may go.
    pub(super) due: MonoNs,
    /// The gateway before had come so far, which this one hasn't yet: nothing new is said until it has.
    pub(super) behind: Option<StreamPosition>,
}

/// Where the next entry stands.
#[derive(Debug)]
pub(super) enum Source {
    /// In the writer's own memory: no system call, no page fault.
    Memory(Position),
    /// In the log's files: older than what memory keeps.
    Files(Reader),
}

impl Source {
    /// The first entry in memory that says more than was heard; `None` when it may be older than what memory keeps.
    pub(super) fn in_memory(writer: &Writer, heard: StreamPosition) -> Option<Self> {
        // The first part of a message may stand in an entry that settles only what came before it.
        let before = writer.pending_before(heard.session.to_bytes(), heard.sequence.0.saturating_sub(1))?;
        let mut at = before;
        for entry in writer.pending(before)?.take_while(|entry| ends_by(entry, heard)) {
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

impl Tail {
    pub(super) fn new(source: Source, until: Position, due: MonoNs, behind: Option<StreamPosition>) -> Self {
        Self { source, until, due, behind }
    }

    /// Where the next entry stands.
    pub(super) fn position(&self) -> Position {
        self.source.position()
    }

    /// Memory has been given to newer entries: the files have the place, if anything does.
    pub(super) fn is_forgotten(&self, writer: &Writer) -> bool {
        matches!(self.source, Source::Memory(at) if writer.pending(at).is_none())
    }

    pub(super) fn go_on_in(&mut self, reader: Reader) {
        self.source = Source::Files(reader);
    }

    /// The next entry.
    pub(super) fn peek<'a>(&'a mut self, writer: &'a Writer) -> Option<Entry<'a>> {
        match &mut self.source {
            Source::Memory(at) => writer.pending(*at)?.next(),
            Source::Files(reader) => reader.peek(),
        }
    }

    /// The next entries, as far as they are at hand after [`Self::peek`].
    pub(super) fn ahead<'a>(&'a self, writer: &'a Writer) -> impl Iterator<Item = Entry<'a>> {
        let (memory, files) = match &self.source {
            Source::Memory(at) => (writer.pending(*at), None),
            Source::Files(reader) => (None, Some(reader.ahead())),
        };
        memory.into_iter().flatten().chain(files.into_iter().flatten())
    }

    /// Goes behind the first `count` entries ahead.
    pub(super) fn skip(&mut self, count: usize, writer: &Writer) {
        let last = count.checked_sub(1).and_then(|index| self.ahead(writer).nth(index));
        let Some(end) = last.map(|entry| entry.end) else { return };
        match &mut self.source {
            Source::Memory(at) => *at = end,
            Source::Files(reader) => reader.skip_to(end),
        }
    }

    /// Goes on to the first entry that says more than was heard. How many were passed over.
    pub(super) fn pass_over(&mut self, writer: &Writer) -> u64 {
        let mut count = 0;
        while let Some(heard) = self.behind
            && let Some(entry) = self.peek(writer)
        {
            if ends_by(&entry, heard) {
                self.skip(1, writer);
                count += 1;
            } else {
                self.behind = None;
            }
        }
        count
    }
}

/// Whether an entry says nothing beyond `heard`.
pub fn ends_by(entry: &Entry<'_>, heard: StreamPosition) -> bool {
    // An entry that settles nothing has something to say where it stands.
    span_of(entry).is_some_and(|(from, until)| until < heard || (until == heard && from < until))
}

/// From where to where an entry says something.
pub(super) fn span_of(entry: &Entry<'_>) -> Option<(StreamPosition, StreamPosition)> {
    let range = (Sequence(entry.first), Sequence(entry.next));
    let session = Session::from_bytes(entry.session)?;
    Some(StreamPosition::span_of_body(session, range, entry.payload))
}
