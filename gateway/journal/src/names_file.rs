//! Reads a names file from its beginning: entries, and the state that they leave at a checkpoint.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{self, BufReader, Read, Seek as _, SeekFrom},
    path::Path,
};

use mdgw_wire::identity::{ChannelId, InstrumentId, Session};

use crate::{
    JournalError,
    names::{ChannelPosition, Checkpoint, Content, ENTRY_BYTES, InvalidEntry, NameEntry},
};

/// The entries of a names file, in order.
#[derive(Debug)]
pub struct NamesReader<R> {
    content: Content,
    reader: R,
    next_number: u64,
}

/// The next entry of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextEntry {
    /// An entry.
    Entry(NameEntry),
    /// The entry with that number is damaged. Others may follow.
    Invalid(u64),
    /// The file ends inside an entry, after that many bytes of it.
    Truncated(usize),
    /// The end of the file.
    End,
}

impl NamesReader<BufReader<File>> {
    /// Opens a names file.
    ///
    /// # Errors
    /// The file cannot be read, or its header is not one of this version.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let file = File::open(path).map_err(JournalError::io("open", path))?;
        Self::new(BufReader::with_capacity(READ_BYTES, file), path)
    }

    /// Goes on with the entry of that number.
    pub(crate) fn seek(&mut self, number: u64) -> io::Result<()> {
        let offset = number.checked_add(1).and_then(|place| place.checked_mul(ENTRY_BYTES as u64));
        self.reader.seek(SeekFrom::Start(offset.ok_or(io::ErrorKind::InvalidInput)?))?;
        self.next_number = number;
        Ok(())
    }
}

impl<R: Read> NamesReader<R> {
    /// Reads the header. `path` is for messages.
    ///
    /// # Errors
    /// As [`NamesReader::open`].
    pub fn new(mut reader: R, path: &Path) -> Result<Self, JournalError> {
        let mut header = [0; ENTRY_BYTES];
        let bytes = read_up_to(&mut reader, &mut header).map_err(JournalError::io("read", path))?;
        let content = Content::read(header.get(..bytes).unwrap_or_default())
            .map_err(|fault| JournalError::Header { path: path.to_owned(), fault })?;
        Ok(Self { content, reader, next_number: 0 })
    }

    /// What the journal holds.
    #[must_use]
    pub fn content(&self) -> Content {
        self.content
    }

    /// Number of the next entry.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Reads the next entry.
    ///
    /// # Errors
    /// The file cannot be read.
    #[allow(clippy::should_implement_trait, reason = "it may fail")]
    pub fn next(&mut self) -> io::Result<NextEntry> {
        let mut bytes = [0; ENTRY_BYTES];
        match read_up_to(&mut self.reader, &mut bytes)? {
            0 => Ok(NextEntry::End),
            ENTRY_BYTES => {
                let number = self.next_number;
                self.next_number += 1;
                Ok(NameEntry::read(&bytes, number)
                    .map_or_else(|InvalidEntry| NextEntry::Invalid(number), NextEntry::Entry))
            }
            count => Ok(NextEntry::Truncated(count)),
        }
    }
}

/// What a names file says at one of its checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesState {
    /// Entries up to the checkpoint, the checkpoint included.
    pub entry_count: u64,
    /// What it says of both files.
    pub checkpoint: Checkpoint,
    /// Where the channels are.
    pub positions: BTreeMap<ChannelId, ChannelPosition>,
    /// Symbols of the instruments.
    pub symbols: Vec<(Session, InstrumentId, Vec<u8>)>,
    /// Holes so far.
    pub hole_count: u64,
}

/// How the part of a names file behind its last usable checkpoint looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesTail {
    /// Nothing follows.
    Clean,
    /// A batch that was not completed, as a crash leaves it.
    Unfinished,
    /// The entry with that number is damaged, and intact ones follow: no crash of ours leaves that.
    Damaged(u64),
}

/// A names file as it was read.
#[derive(Clone, Debug)]
pub struct NamesFile {
    /// What the journal holds.
    pub content: Content,
    /// State at the last usable checkpoint.
    pub state: NamesState,
    /// What follows it.
    pub tail: NamesTail,
    /// The last batches, for a check of their data.
    pub batches: VecDeque<Batch>,
}

/// Records between two checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Entries before the batch.
    pub entries_before: u64,
    /// Where its records begin, from the first record of the file.
    pub offset: u64,
    /// Where they end.
    pub end: u64,
    /// CRC-32C of the records.
    pub crc: u32,
}

/// Which checkpoints count.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Those within that many entries.
    pub entries_max: u64,
    /// Those of at most that many bytes of records: the data file has no more.
    pub data_bytes_max: u64,
}

impl NamesFile {
    /// Reads a file up to its last checkpoint within `limits`.
    ///
    /// # Errors
    /// As [`NamesReader::open`].
    pub fn read<R: Read>(mut reader: NamesReader<R>, path: &Path, limits: Limits) -> Result<Self, JournalError> {
        let mut file = Self {
            content: reader.content(),
            state: NamesState::default(),
            tail: NamesTail::Clean,
            batches: VecDeque::new(),
        };
        let mut batch = PendingBatch::default();
        loop {
            match reader.next().map_err(JournalError::io("read", path))? {
                NextEntry::End => {
                    if batch.entries > 0 {
                        file.tail = NamesTail::Unfinished;
                    }
                    return Ok(file);
                }
                NextEntry::Truncated(_) => {
                    file.tail = NamesTail::Unfinished;
                    return Ok(file);
                }
                NextEntry::Invalid(number) => {
                    file.tail = Self::tail_from(number, &mut reader).map_err(JournalError::io("read", path))?;
                    return Ok(file);
                }
                NextEntry::Entry(NameEntry::Checkpoint(checkpoint)) => {
                    if checkpoint.data_bytes > limits.data_bytes_max || reader.next_number() > limits.entries_max {
                        file.tail = NamesTail::Unfinished;
                        return Ok(file);
                    }
                    let end = file.state.checkpoint.data_bytes.checked_add(batch.bytes);
                    if !batch.is_consistent || Some(checkpoint.data_bytes) != end {
                        file.tail = NamesTail::Damaged(reader.next_number() - 1);
                        return Ok(file);
                    }
                    file.complete(&mut batch, checkpoint, reader.next_number());
                }
                NextEntry::Entry(entry) => batch.add(entry, file.state.checkpoint.data_bytes),
            }
        }
    }

    /// Takes over a batch at its checkpoint.
    fn complete(&mut self, batch: &mut PendingBatch, checkpoint: Checkpoint, entry_count: u64) {
        let state = &mut self.state;
        self.batches.push_back(Batch {
            entries_before: state.entry_count,
            offset: state.checkpoint.data_bytes,
            end: checkpoint.data_bytes,
            crc: checkpoint.batch_crc,
        });
        while self.batches.front().is_some_and(|batch| batch.end.saturating_add(VERIFIED_BYTES) < checkpoint.data_bytes)
        {
            self.batches.pop_front();
        }
        let done = std::mem::take(batch);
        (state.entry_count, state.checkpoint) = (entry_count, checkpoint);
        state.positions.extend(done.positions);
        state.symbols.extend(done.symbols);
        state.hole_count += done.hole_count;
    }

    /// Whether an intact entry follows an invalid one.
    fn tail_from<R: Read>(invalid: u64, reader: &mut NamesReader<R>) -> io::Result<NamesTail> {
        loop {
            match reader.next()? {
                NextEntry::Entry(_) => return Ok(NamesTail::Damaged(invalid)),
                NextEntry::Invalid(_) => {}
                NextEntry::Truncated(_) | NextEntry::End => return Ok(NamesTail::Unfinished),
            }
        }
    }
}

/// Entries behind the last checkpoint.
#[derive(Debug)]
struct PendingBatch {
    entries: u64,
    bytes: u64,
    is_consistent: bool,
    positions: Vec<(ChannelId, ChannelPosition)>,
    symbols: Vec<(Session, InstrumentId, Vec<u8>)>,
    symbol: Vec<u8>,
    hole_count: u64,
}

impl Default for PendingBatch {
    fn default() -> Self {
        Self {
            entries: 0,
            bytes: 0,
            is_consistent: true,
            positions: Vec::new(),
            symbols: Vec::new(),
            symbol: Vec::new(),
            hole_count: 0,
        }
    }
}

impl PendingBatch {
    fn add(&mut self, entry: NameEntry, data_bytes: u64) {
        self.entries += 1;
        match entry {
            NameEntry::Run(run) => {
                self.is_consistent &= Some(run.offset) == data_bytes.checked_add(self.bytes);
                self.bytes = self.bytes.saturating_add(run.bytes);
            }
            NameEntry::Position(channel, position) => self.positions.push((channel, position)),
            NameEntry::Symbol { session, instrument, piece, symbol_bytes, bytes } => {
                if piece == 0 {
                    self.symbol.clear();
                }
                let missing = usize::from(symbol_bytes).saturating_sub(self.symbol.len());
                self.symbol.extend(bytes.iter().take(missing));
                if self.symbol.len() >= usize::from(symbol_bytes) {
                    self.symbols.push((session, instrument, std::mem::take(&mut self.symbol)));
                }
            }
            NameEntry::Hole(_) => self.hole_count += 1,
            NameEntry::Gap(_) | NameEntry::Checkpoint(_) => {}
        }
    }
}

/// Reads until the buffer is full or the input ends.
fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

const READ_BYTES: usize = 256 * 1024;
/// Records at the end of a journal whose content is checked when it is opened again. More than what is written between two syncs: what
/// was synced earlier is on the disk.
pub(crate) const VERIFIED_BYTES: u64 = 64 << 20;
