//! Reads a journal: its records, each with its name.

use std::{
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use mdgw_captures::dbn_input::{DbnFault, DbnInput, DbnInputError};
use mdgw_wire::identity::{ChannelId, InstrumentId, Session};

use crate::{
    JournalError,
    names::{ChannelPosition, Checkpoint, Content, Missing, NameEntry, Run},
    names_file::{NamesReader, NextEntry},
};

/// The records of a journal with their names.
#[derive(Debug)]
pub struct JournalRecords {
    input: DbnInput,
    names: NamesReader<BufReader<File>>,
    path: PathBuf,
    names_path: PathBuf,
    /// The run of the next record, and the records of it so far.
    run: Option<(Run, u64)>,
    /// Bytes of records in front of the next named one that nobody wants.
    skip_bytes: u64,
    /// Behind the last checkpoint.
    place: JournalPlace,
    /// Pieces of a symbol so far.
    symbol: Vec<u8>,
    is_closed: bool,
}

/// A place in a journal at which another reader can go on: behind a checkpoint, since what follows the last checkpoint is written again
/// after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPlace {
    /// Number of the next entry of the names file.
    entry: u64,
    /// Bytes of the records in front of that entry.
    data_bytes: u64,
    /// Whether the checkpoint closes the journal.
    is_closed: bool,
}

/// What [`JournalRecords::step`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalStep {
    /// What the journal holds next.
    Item(NamedRecord),
    /// Records that are not wanted, or a part of them.
    Skipped,
    /// The end. An open journal may have more later: open it again at [`JournalRecords::place`].
    End,
}

/// What a journal holds next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedRecord {
    /// A record.
    Record {
        /// Number of the channel that published it.
        channel: ChannelId,
        /// Session that numbers the message.
        session: Session,
        /// Sequence of its message.
        sequence: u64,
        /// Part of the message.
        part: u16,
        /// Its number among the records of the message's part.
        index: u16,
        /// Header and body.
        bytes: Vec<u8>,
    },
    /// A gap that the gateway declared.
    Gap(Missing),
    /// Messages that the journal lacks.
    Hole(Missing),
    /// An instrument's symbol, before the first record of the instrument.
    Symbol(InstrumentId, Vec<u8>),
    /// How far a channel has come with all that was read so far.
    Position(ChannelId, ChannelPosition),
}

/// Why the records of a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The names file is at fault.
    #[error(transparent)]
    Names(#[from] JournalError),
    /// The DBN file is at fault.
    #[error(transparent)]
    Records(#[from] DbnInputError),
}

impl RecordsError {
    /// Whether there is no such file.
    pub(crate) fn is_not_found(&self) -> bool {
        let source = match self {
            Self::Names(JournalError::Io { source, .. }) => source,
            Self::Records(DbnInputError { fault: DbnFault::Io(source), .. }) => source,
            _ => return false,
        };
        source.kind() == io::ErrorKind::NotFound
    }
}

impl JournalRecords {
    /// Opens a journal by its DBN file, open or closed, compressed or not. Its names lie beside it.
    ///
    /// # Errors
    /// One of the files cannot be read, or is not what a journal has.
    pub fn open(path: &Path) -> Result<Self, RecordsError> {
        Self::open_files(path, names_path(path)?, JournalPlace::default())
    }

    /// Opens a DBN file and its names file at a place. The records in front of it are skipped by the first steps.
    pub(crate) fn open_files(path: &Path, names_path: PathBuf, place: JournalPlace) -> Result<Self, RecordsError> {
        let mut names = NamesReader::open(&names_path)?;
        names.seek(place.entry).map_err(JournalError::io("read", &names_path))?;
        Ok(Self {
            input: DbnInput::open(path)?,
            names,
            path: path.to_owned(),
            names_path,
            run: None,
            skip_bytes: place.data_bytes,
            place,
            symbol: Vec::new(),
            is_closed: place.is_closed,
        })
    }

    /// Where another reader goes on that has got all items so far. It may get some of them again.
    #[must_use]
    pub fn place(&self) -> JournalPlace {
        self.place
    }

    /// Name of the record that comes next, or that could not be read: channel, session, sequence, part, number in the part.
    #[must_use]
    pub fn next_name(&self) -> Option<(ChannelId, Session, u64, u16, u16)> {
        let (run, taken) = self.run.as_ref()?;
        let per_frame = u64::from(run.records_per_frame.max(1));
        let index = u16::try_from(taken % per_frame).unwrap_or(u16::MAX);
        Some((run.channel, run.session, run.first.saturating_add(taken / per_frame), run.part, index))
    }

    /// What the journal holds.
    #[must_use]
    pub fn content(&self) -> Content {
        self.names.content()
    }

    /// Bytes of the (compressed) DBN file read so far, for a progress bar.
    #[must_use]
    pub fn file_bytes_read(&self) -> u64 {
        self.input.file_bytes_read()
    }

    /// Whether the names read so far end as those of a closed journal do.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the journal had the name of one that is being written when it was opened.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.names_path.extension().is_some_and(|end| end == "part")
    }

    /// The next record, gap or hole; `None` at the end.
    ///
    /// # Errors
    /// A file is damaged, or the two do not belong together.
    #[allow(clippy::should_implement_trait, reason = "it may fail")]
    pub fn next(&mut self) -> Result<Option<NamedRecord>, RecordsError> {
        loop {
            match self.step(|_| true)? {
                JournalStep::Item(item) => return Ok(Some(item)),
                JournalStep::Skipped => {}
                JournalStep::End => return Ok(None),
            }
        }
    }

    /// The next item; records of runs that are not wanted are skipped, without reading them where the file is not compressed. A step
    /// takes bounded time, so that a caller can stop in between.
    ///
    /// # Errors
    /// A file is damaged, or the two do not belong together.
    pub fn step(&mut self, is_wanted: impl Fn(&Run) -> bool) -> Result<JournalStep, RecordsError> {
        loop {
            if let Some((run, taken)) = &mut self.run {
                let per_frame = u64::from(run.records_per_frame.max(1));
                if *taken < run.frame_count.saturating_mul(per_frame) {
                    if self.skip_bytes > 0 {
                        return self.skip();
                    }
                    let record = self.input.next_record()?;
                    let bytes = record.map(|record| record.as_ref().to_vec());
                    let Some(bytes) = bytes else { return Err(self.truncated()) };
                    let (frame, index) = (*taken / per_frame, *taken % per_frame);
                    *taken += 1;
                    return Ok(JournalStep::Item(NamedRecord::Record {
                        channel: run.channel,
                        session: run.session,
                        sequence: run.first.saturating_add(frame),
                        part: run.part,
                        index: u16::try_from(index).unwrap_or(u16::MAX),
                        bytes,
                    }));
                }
                self.run = None;
            }
            match self.names.next().map_err(JournalError::io("read", &self.names_path))? {
                NextEntry::Entry(NameEntry::Run(run)) => {
                    if is_wanted(&run) {
                        self.run = Some((run, 0));
                    } else {
                        self.skip_bytes = self.skip_bytes.saturating_add(run.bytes);
                        return Ok(JournalStep::Skipped);
                    }
                }
                NextEntry::Entry(NameEntry::Gap(missing)) => return Ok(JournalStep::Item(NamedRecord::Gap(missing))),
                NextEntry::Entry(NameEntry::Hole(missing)) => return Ok(JournalStep::Item(NamedRecord::Hole(missing))),
                NextEntry::Entry(NameEntry::Checkpoint(checkpoint)) => {
                    let Checkpoint { data_bytes, is_closed, .. } = checkpoint;
                    self.place = JournalPlace { entry: self.names.next_number(), data_bytes, is_closed };
                    self.is_closed = is_closed;
                }
                NextEntry::Entry(NameEntry::Position(channel, at)) => {
                    return Ok(JournalStep::Item(NamedRecord::Position(channel, at)));
                }
                NextEntry::Entry(NameEntry::Symbol { instrument, piece, symbol_bytes, bytes, .. }) => {
                    if piece == 0 {
                        self.symbol.clear();
                    }
                    let missing = usize::from(symbol_bytes).saturating_sub(self.symbol.len());
                    self.symbol.extend(bytes.iter().take(missing));
                    if self.symbol.len() >= usize::from(symbol_bytes) {
                        let symbol = std::mem::take(&mut self.symbol);
                        return Ok(JournalStep::Item(NamedRecord::Symbol(instrument, symbol)));
                    }
                }
                NextEntry::Invalid(number) => {
                    return Err(JournalError::unusable(&self.names_path, format!("entry {number} is damaged")).into());
                }
                // The journal is being written, or a crash cut its last batch.
                NextEntry::Truncated(_) if self.is_open() => return Ok(JournalStep::End),
                NextEntry::Truncated(bytes) => {
                    let reason = format!("truncated {bytes} bytes inside an entry");
                    return Err(JournalError::unusable(&self.names_path, reason).into());
                }
                NextEntry::End if !self.is_closed && !self.is_open() => {
                    let reason = "truncated: the entry that closes the journal is missing";
                    return Err(JournalError::unusable(&self.names_path, reason).into());
                }
                NextEntry::End => {
                    if self.skip_bytes > 0 && self.is_closed {
                        return self.skip();
                    }
                    if self.is_closed && self.input.next_record()?.is_some() {
                        return Err(JournalError::unusable(&self.names_path, "records without names follow").into());
                    }
                    return Ok(JournalStep::End);
                }
            }
        }
    }

    /// Skips some of the records that nobody wants.
    fn skip(&mut self) -> Result<JournalStep, RecordsError> {
        let skipped = self.input.skip(self.skip_bytes)?;
        if skipped == 0 {
            return Err(self.truncated());
        }
        self.skip_bytes = self.skip_bytes.checked_sub(skipped).ok_or_else(|| {
            JournalError::unusable(&self.path, format!("its records are not those of {}", self.names_path.display()))
        })?;
        Ok(JournalStep::Skipped)
    }

    fn truncated(&self) -> RecordsError {
        let reason = format!("truncated: fewer records than {} names", self.names_path.display());
        JournalError::unusable(&self.path, reason).into()
    }
}

/// The names beside a DBN file.
fn names_path(path: &Path) -> Result<PathBuf, JournalError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let ends = [(".dbn.part", ".names.part"), (".dbn.zst", ".names"), (".dbn", ".names")];
    let names = ends.iter().find_map(|(end, names)| Some(format!("{}{names}", name.strip_suffix(end)?)));
    let names =
        names.ok_or_else(|| JournalError::unusable(path, "not named as a journal: .dbn, .dbn.zst or .dbn.part"))?;
    Ok(path.with_file_name(names))
}
