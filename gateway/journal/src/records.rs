//! Reads a journal: its records, each with its name.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use mdgw_captures::dbn_input::{DbnInput, DbnInputError};
use mdgw_wire::identity::{ChannelId, InstrumentId, Session};

use crate::{
    JournalError,
    names::{ChannelPosition, Content, Missing, NameEntry, Run},
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
    /// Pieces of a symbol so far.
    symbol: Vec<u8>,
    is_closed: bool,
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

impl JournalRecords {
    /// Opens a journal by its DBN file, open or closed, compressed or not. Its names lie beside it.
    ///
    /// # Errors
    /// One of the files cannot be read, or is not what a journal has.
    pub fn open(path: &Path) -> Result<Self, RecordsError> {
        let names_path = names_path(path)?;
        let names = NamesReader::open(&names_path)?;
        Ok(Self {
            input: DbnInput::open(path)?,
            names,
            path: path.to_owned(),
            names_path,
            run: None,
            symbol: Vec::new(),
            is_closed: false,
        })
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

    /// Whether the journal has the name of one that is being written.
    fn is_open(&self) -> bool {
        self.names_path.extension().is_some_and(|end| end == "part")
    }

    /// The next record, gap or hole; `None` at the end.
    ///
    /// # Errors
    /// A file is damaged, or the two do not belong together.
    #[allow(clippy::should_implement_trait, reason = "it may fail")]
    pub fn next(&mut self) -> Result<Option<NamedRecord>, RecordsError> {
        loop {
            if let Some((run, taken)) = &mut self.run {
                let per_frame = u64::from(run.records_per_frame.max(1));
                if *taken < run.frame_count.saturating_mul(per_frame) {
                    let record = self.input.next_record()?;
                    let bytes = record.map(|record| record.as_ref().to_vec());
                    let Some(bytes) = bytes else {
                        let reason = format!("truncated: fewer records than {} names", self.names_path.display());
                        return Err(JournalError::unusable(&self.path, reason).into());
                    };
                    let (frame, index) = (*taken / per_frame, *taken % per_frame);
                    *taken += 1;
                    return Ok(Some(NamedRecord::Record {
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
                NextEntry::Entry(NameEntry::Run(run)) => self.run = Some((run, 0)),
                NextEntry::Entry(NameEntry::Gap(missing)) => return Ok(Some(NamedRecord::Gap(missing))),
                NextEntry::Entry(NameEntry::Hole(missing)) => return Ok(Some(NamedRecord::Hole(missing))),
                NextEntry::Entry(NameEntry::Checkpoint(checkpoint)) => self.is_closed = checkpoint.is_closed,
                NextEntry::Entry(NameEntry::Position(channel, at)) => {
                    return Ok(Some(NamedRecord::Position(channel, at)));
                }
                NextEntry::Entry(NameEntry::Symbol { instrument, piece, symbol_bytes, bytes, .. }) => {
                    if piece == 0 {
                        self.symbol.clear();
                    }
                    let missing = usize::from(symbol_bytes).saturating_sub(self.symbol.len());
                    self.symbol.extend(bytes.iter().take(missing));
                    if self.symbol.len() >= usize::from(symbol_bytes) {
                        return Ok(Some(NamedRecord::Symbol(instrument, std::mem::take(&mut self.symbol))));
                    }
                }
                NextEntry::Invalid(number) => {
                    return Err(JournalError::unusable(&self.names_path, format!("entry {number} is damaged")).into());
                }
                // The journal is being written, or a crash cut its last batch.
                NextEntry::Truncated(_) if self.is_open() => return Ok(None),
                NextEntry::Truncated(bytes) => {
                    let reason = format!("truncated {bytes} bytes inside an entry");
                    return Err(JournalError::unusable(&self.names_path, reason).into());
                }
                NextEntry::End if !self.is_closed && !self.is_open() => {
                    let reason = "truncated: the entry that closes the journal is missing";
                    return Err(JournalError::unusable(&self.names_path, reason).into());
                }
                NextEntry::End => {
                    if self.is_closed && self.input.next_record()?.is_some() {
                        return Err(JournalError::unusable(&self.names_path, "records without names follow").into());
                    }
                    return Ok(None);
                }
            }
        }
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
