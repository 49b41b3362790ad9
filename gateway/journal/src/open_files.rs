//! The open journals of a group of channels, by trading date.

use std::{collections::BTreeMap, fs, path::PathBuf};

use mdgw_feeds::channel::SchemaSet;
use mdgw_wire::{identity::Feed, time::TradingDate};

use crate::{
    JournalError,
    journal_file::{Closed, Durability, JournalFile},
    names::Content,
    paths::{JournalName, schemas_text},
};

/// Journals of one dataset and one set of schemas.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    /// `DIRECTORY/DATASET`.
    pub(crate) folder: PathBuf,
    pub(crate) feed: Feed,
    pub(crate) schemas: SchemaSet,
    /// Instruments of all channels.
    pub(crate) instruments_max: u64,
    files: BTreeMap<TradingDate, JournalFile>,
}

impl OpenFiles {
    pub(crate) fn new(folder: PathBuf, feed: Feed, schemas: SchemaSet) -> Self {
        Self { folder, feed, schemas, instruments_max: 0, files: BTreeMap::new() }
    }

    /// What a journal of that date holds.
    pub(crate) fn content(&self, date: TradingDate) -> Content {
        Content { feed: self.feed, schemas: self.schemas, date }
    }

    /// The journal of that date, if it is open.
    pub(crate) fn opened(&mut self, date: TradingDate) -> Option<&mut JournalFile> {
        self.files.get_mut(&date)
    }

    /// The journal of that date; begins one if there is none.
    pub(crate) fn of(&mut self, date: TradingDate) -> Result<&mut JournalFile, JournalError> {
        if !self.files.contains_key(&date) {
            let file = self.begin(date)?;
            self.files.insert(date, file);
        }
        self.files.get_mut(&date).ok_or_else(|| JournalError::unusable(&self.folder, "no journal could be begun"))
    }

    /// Begins a journal of that date, with the first number that no file has.
    pub(crate) fn begin(&self, date: TradingDate) -> Result<JournalFile, JournalError> {
        fs::create_dir_all(&self.folder).map_err(JournalError::io("create", &self.folder))?;
        let mut name = JournalName { date, schemas: schemas_text(self.schemas), number: 1 };
        while name.paths(&self.folder).exist() {
            name.number += 1;
        }
        let file = JournalFile::create(name.paths(&self.folder), self.content(date), self.instruments_max)?;
        tracing::info!(path = %file.path().display(), "journal: begun");
        Ok(file)
    }

    /// Takes over a journal of an earlier run.
    pub(crate) fn insert(&mut self, file: JournalFile) {
        self.files.insert(file.content().date, file);
    }

    /// Writes what is not written.
    pub(crate) fn write(&mut self, durability: Durability) -> Result<(), JournalError> {
        self.files.values_mut().try_for_each(|file| file.write(durability))
    }

    /// Whether any journal has more to write than one batch should have.
    pub(crate) fn has_full_batch(&self) -> bool {
        self.files.values().any(|file| file.unwritten_bytes() >= BATCH_BYTES)
    }

    /// Closes the journals that are complete, in their order.
    pub(crate) fn close_if(&mut self, is_complete: impl Fn(TradingDate) -> bool) -> Result<Vec<Closed>, JournalError> {
        let complete: Vec<TradingDate> = self.files.keys().copied().filter(|date| is_complete(*date)).collect();
        let files = complete.iter().filter_map(|date| self.files.remove(date));
        files.map(JournalFile::close).collect()
    }
}

/// Records and names that one batch should have at most: memory, and what a crash has to read again.
const BATCH_BYTES: usize = 4 << 20;
