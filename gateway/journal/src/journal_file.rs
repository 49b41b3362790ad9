//! One open journal: a DBN file and its names file, written batch by batch.
//!
//! The space of the DBN metadata is reserved in front of the records, since the symbols are complete only at the end: the file is a valid
//! DBN file from its first batch on, without symbols until it is closed, and closing it copies nothing.
//!
//! A batch is written in this order: records, then names, a checkpoint last. So a checkpoint that can be read stands for records that were
//! written before it. [`JournalFile::reopen`] cuts both files to the last checkpoint whose records are intact.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use mdgw_captures::dbn_file::{DbnFileOptions, MetadataCollector};
use mdgw_feeds::channel::SchemaSet;
use mdgw_wire::identity::{ChannelId, InstrumentId, Session};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{
    JournalError,
    names::{ChannelPosition, Checkpoint, Content, ENTRY_BYTES, Missing, NameEntry, Run, symbol_entries},
    names_file::{Limits, NamesFile, NamesReader, NamesState, NamesTail, VERIFIED_BYTES},
    paths::{JournalPaths, sync_folder},
};

/// An open journal.
#[derive(Debug)]
pub(crate) struct JournalFile {
    paths: JournalPaths,
    content: Content,
    data: File,
    names: File,
    /// Bytes in front of the first record.
    header_bytes: u64,
    metadata: MetadataCollector,
    /// What both files hold.
    written: Written,
    /// The batch in progress.
    batch: Batch,
    positions: BTreeMap<ChannelId, ChannelPosition>,
    hole_count: u64,
    /// It was closed but for its final names.
    is_closing: bool,
    /// Bytes of records written since the last sync; above 0 also where only names may be unsynced.
    unsynced_bytes: u64,
}

/// Lengths of both files at the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    entry_count: u64,
    data_bytes: u64,
    record_count: u64,
}

/// What is not written yet.
#[derive(Debug, Default)]
struct Batch {
    records: Vec<u8>,
    record_count: u64,
    entries: Vec<NameEntry>,
    run: Option<Run>,
    /// Channels that moved.
    moved: Vec<ChannelId>,
}

/// A journal that was opened again.
#[derive(Debug)]
pub(crate) enum Reopened {
    /// It goes on behind its last checkpoint.
    Open(Box<JournalFile>, Cut),
    /// It was damaged by something else than a crash. What its intact part says of the channels.
    Damaged(NamesState, String),
    /// A crash left it before its first batch: nothing is in it.
    Empty,
}

/// What was removed behind the last checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) data_bytes: u64,
    pub(crate) names_bytes: u64,
}

/// The names of one frame's records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameName {
    pub(crate) channel: ChannelId,
    pub(crate) session: Session,
    pub(crate) sequence: u64,
    pub(crate) part: u16,
}

/// A closed journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) path: PathBuf,
    pub(crate) record_count: u64,
    pub(crate) bytes: u64,
    pub(crate) hole_count: u64,
}

impl JournalFile {
    /// Begins a journal. `instruments_max` is the number of symbols that its metadata has space for.
    pub(crate) fn create(paths: JournalPaths, content: Content, instruments_max: u64) -> Result<Self, JournalError> {
        let (data_path, names_path) = (paths.open_data(), paths.open_names());
        let create = |path: &Path| {
            let options = File::options().read(true).write(true).create_new(true).open(path);
            options.map_err(JournalError::io("create", path))
        };
        // Names first: records alone would be records without names.
        let names = create(&names_path)?;
        let header_bytes = (METADATA_BYTES + instruments_max * BYTES_PER_SYMBOL).next_multiple_of(BLOCK_BYTES);
        let begin = || {
            let data = create(&data_path)?;
            names.write_all_at(&content.header(), 0).map_err(JournalError::io("write", &names_path))?;
            // The space for the metadata must be there when the journal is closed, on a full disk too.
            match fallocate(&data, FallocateFlags::empty(), 0, header_bytes) {
                Err(error) if error != rustix::io::Errno::OPNOTSUPP => {
                    return Err(JournalError::io("reserve space in", &data_path)(error.into()));
                }
                _ => {}
            }
            Ok(data)
        };
        let data = begin().inspect_err(|_| {
            let _nothing_in_it = (fs::remove_file(&data_path), fs::remove_file(&names_path));
        })?;
        let file = Self {
            metadata: collector(content),
            paths,
            content,
            data,
            names,
            header_bytes,
            written: Written::default(),
            batch: Batch::default(),
            positions: BTreeMap::new(),
            hole_count: 0,
            is_closing: false,
            unsynced_bytes: 1,
        };
        file.write_metadata()?;
        sync_folder(file.paths.folder())?;
        Ok(file)
    }

    /// Opens a journal that was not closed, and removes what follows its last intact checkpoint.
    pub(crate) fn reopen(paths: JournalPaths) -> Result<Reopened, JournalError> {
        let (data_path, names_path) = (paths.open_data(), paths.open_names());
        if !names_path.exists() {
            return Ok(Reopened::Damaged(NamesState::default(), format!("{} is missing", names_path.display())));
        }
        // A crash while the records were copied.
        let _may_be_missing = fs::remove_file(paths.moving());
        // A crash while it was closed: the last step renames the names.
        if !data_path.exists() && paths.data().exists() {
            fs::rename(paths.data(), &data_path).map_err(JournalError::io("rename", &data_path))?;
        }
        let open =
            |path: &Path| File::options().read(true).write(true).open(path).map_err(JournalError::io("open", path));
        let names = open(&names_path)?;
        let data = match File::options().read(true).write(true).open(&data_path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            data => Some(data.map_err(JournalError::io("open", &data_path))?),
        };
        let length = |file: &File, path: &Path| {
            file.metadata().map(|metadata| metadata.len()).map_err(JournalError::io("examine", path))
        };
        let names_bytes = length(&names, &names_path)?;
        if names_bytes <= ENTRY_BYTES as u64 && data.as_ref().is_none_or(holds_no_record) {
            for path in [&data_path, &names_path] {
                let _may_be_missing = fs::remove_file(path);
            }
            return Ok(Reopened::Empty);
        }
        let Some(data) = data else {
            return Ok(Reopened::Damaged(NamesState::default(), format!("{} is missing", data_path.display())));
        };
        let file_bytes = length(&data, &data_path)?;
        let header_bytes = match header_bytes(&data) {
            Ok(bytes) if bytes <= file_bytes => bytes,
            Ok(_) => return Ok(Reopened::Damaged(NamesState::default(), "the DBN metadata is truncated".to_owned())),
            Err(error) => return Ok(Reopened::Damaged(NamesState::default(), format!("the DBN metadata: {error}"))),
        };
        let read = |entries_max| {
            let mut names = &names;
            names.seek(SeekFrom::Start(0)).map_err(JournalError::io("read", &names_path))?;
            let reader = NamesReader::new(io::BufReader::new(names), &names_path)?;
            NamesFile::read(reader, &names_path, Limits { entries_max, data_bytes_max: file_bytes - header_bytes })
        };
        let mut state = match read(u64::MAX) {
            // A later version of this program wrote it: not for this one to decide.
            Err(JournalError::Header { path, fault: fault @ crate::names::HeaderFault::Version(_) }) => {
                return Err(JournalError::Header { path, fault });
            }
            Err(JournalError::Header { fault, .. }) => {
                return Ok(Reopened::Damaged(NamesState::default(), format!("{}: {fault}", names_path.display())));
            }
            state => state?,
        };
        if let NamesTail::Damaged(number) = state.tail {
            let reason = format!("entry {number} of {} is damaged", names_path.display());
            return Ok(Reopened::Damaged(state.state, reason));
        }
        // A crash of the machine may have left a checkpoint whose records did not reach the disk.
        let is_intact = |batch: &crate::names_file::Batch| {
            checksum(&data, header_bytes + batch.offset, batch.end - batch.offset).is_ok_and(|crc| crc == batch.crc)
        };
        if let Some(torn) = state.batches.iter().position(|batch| !is_intact(batch)) {
            let (torn, later) = (state.batches[torn], state.batches.range(torn + 1..));
            let is_followed = later.into_iter().any(is_intact);
            state = read(torn.entries_before)?;
            if is_followed {
                let offset = header_bytes + torn.offset;
                let reason = format!("records behind byte {offset} were changed, and intact ones follow");
                return Ok(Reopened::Damaged(state.state, reason));
            }
        }
        let NamesFile { content, state, .. } = state;
        let written = Written {
            entry_count: state.entry_count,
            data_bytes: state.checkpoint.data_bytes,
            record_count: state.checkpoint.record_count,
        };
        let (data_end, names_end) = (header_bytes + written.data_bytes, names_bytes_of(written.entry_count));
        data.set_len(data_end).map_err(JournalError::io("cut", &data_path))?;
        names.set_len(names_end).map_err(JournalError::io("cut", &names_path))?;
        let mut metadata = collector(content);
        metadata.set_time_range(state.checkpoint.time_range);
        for (session, instrument, symbol) in &state.symbols {
            metadata.mapping(symbol, *instrument, session.date);
        }
        let cut = Cut { data_bytes: file_bytes - data_end, names_bytes: names_bytes.saturating_sub(names_end) };
        let file = Self {
            paths,
            content,
            data,
            names,
            header_bytes,
            metadata,
            written,
            batch: Batch::default(),
            positions: state.positions,
            hole_count: state.hole_count,
            is_closing: state.checkpoint.is_closed,
            unsynced_bytes: 1,
        };
        Ok(Reopened::Open(Box::new(file), cut))
    }

    pub(crate) fn content(&self) -> Content {
        self.content
    }

    /// Whether a crash interrupted [`Self::close`]: nothing may be appended.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.paths.open_data()
    }

    pub(crate) fn positions(&self) -> &BTreeMap<ChannelId, ChannelPosition> {
        &self.positions
    }

    /// Bytes that are not written yet.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.batch.records.len() + self.batch.entries.len() * ENTRY_BYTES
    }

    /// Appends a record of the frame that [`Self::frame`] names next.
    pub(crate) fn record(&mut self, bytes: &[u8]) {
        self.metadata.record(bytes);
        self.batch.records.extend_from_slice(bytes);
        self.batch.record_count += 1;
    }

    /// Names the last `record_count` records, which have that many bytes.
    pub(crate) fn frame(&mut self, name: FrameName, record_count: u16, bytes: usize) {
        if record_count == 0 {
            return;
        }
        let FrameName { channel, session, sequence, part } = name;
        if let Some(run) = &mut self.batch.run {
            let is_next = (run.channel, run.session, run.records_per_frame) == (channel, session, record_count)
                && (run.part, part) == (0, 0)
                && run.first.checked_add(run.frame_count) == Some(sequence);
            if is_next {
                run.frame_count += 1;
                run.bytes += bytes as u64;
                return;
            }
        }
        self.end_run();
        self.batch.run = Some(Run {
            channel,
            session,
            first: sequence,
            part,
            frame_count: 1,
            records_per_frame: record_count,
            offset: self.written.data_bytes + (self.batch.records.len() - bytes) as u64,
            bytes: bytes as u64,
        });
    }

    /// Names an instrument.
    pub(crate) fn symbol(&mut self, session: Session, instrument: InstrumentId, symbol: &[u8]) {
        if self.metadata.mapping(symbol, instrument, session.date) {
            self.batch.entries.extend(symbol_entries(session, instrument, symbol));
        }
    }

    /// Notes a gap that the gateway declared.
    pub(crate) fn gap(&mut self, missing: Missing) {
        self.end_run();
        self.batch.entries.push(NameEntry::Gap(missing));
    }

    /// Notes messages that this journal lacks.
    pub(crate) fn hole(&mut self, missing: Missing) {
        self.end_run();
        self.hole_count += 1;
        self.batch.entries.push(NameEntry::Hole(missing));
    }

    /// The channel has come that far.
    pub(crate) fn set_position(&mut self, channel: ChannelId, position: ChannelPosition) {
        if self.positions.insert(channel, position) != Some(position) && !self.batch.moved.contains(&channel) {
            self.batch.moved.push(channel);
        }
    }

    /// Writes the batch. After an error the journal must be opened again: [`Self::reopen`] finds what was written.
    pub(crate) fn write(&mut self, durability: Durability) -> Result<(), JournalError> {
        self.end_run();
        let batch = &mut self.batch;
        if batch.entries.is_empty() && batch.moved.is_empty() {
            return if durability == Durability::Synced { self.sync() } else { Ok(()) };
        }
        let moved = std::mem::take(&mut batch.moved);
        let positions = moved.iter().filter_map(|channel| self.positions.get_key_value(channel));
        batch.entries.extend(positions.map(|(channel, position)| NameEntry::Position(*channel, *position)));
        let batch_bytes = batch.records.len() as u64;
        // A start checks the records of the last `VERIFIED_BYTES`: what lies before has to be on the disk.
        let is_much = self.unsynced_bytes + batch_bytes >= UNSYNCED_BYTES_MAX;
        let durability = if is_much { Durability::Synced } else { durability };
        let data_bytes = self.written.data_bytes + batch_bytes;
        let checkpoint = Checkpoint {
            data_bytes,
            record_count: self.written.record_count + batch.record_count,
            time_range: self.metadata.time_range(),
            batch_crc: crc32c::crc32c(&batch.records),
            is_closed: false,
        };
        batch.entries.push(NameEntry::Checkpoint(checkpoint));
        let at = self.header_bytes + self.written.data_bytes;
        self.data.write_all_at(&batch.records, at).map_err(JournalError::io("write", &self.paths.open_data()))?;
        if durability == Durability::Synced {
            self.data.sync_data().map_err(JournalError::io("sync", &self.paths.open_data()))?;
        }
        self.write_entries()?;
        if durability == Durability::Synced {
            self.names.sync_data().map_err(JournalError::io("sync", &self.paths.open_names()))?;
        }
        self.unsynced_bytes = match durability {
            Durability::Synced => 0,
            Durability::Later => self.unsynced_bytes + batch_bytes.max(1),
        };
        self.written.data_bytes = data_bytes;
        self.written.record_count = checkpoint.record_count;
        self.batch.records.clear();
        self.batch.record_count = 0;
        Ok(())
    }

    /// Closes the journal: the DBN metadata is completed, and both files get their final names.
    pub(crate) fn close(mut self) -> Result<Closed, JournalError> {
        self.write(Durability::Synced)?;
        let Written { data_bytes, record_count, .. } = self.written;
        let encoded = self.metadata.encode().map_err(JournalError::io("encode the metadata of", &self.path()))?;
        if encoded.len() as u64 > self.header_bytes {
            self.move_records(encoded.len() as u64)?;
        }
        self.write_metadata()?;
        self.data.sync_all().map_err(JournalError::io("sync", &self.path()))?;
        // All positions once more, so that the end of the file has them.
        self.batch.entries.extend(self.positions.iter().map(|(channel, at)| NameEntry::Position(*channel, *at)));
        self.batch.entries.push(NameEntry::Checkpoint(Checkpoint {
            data_bytes,
            record_count,
            time_range: self.metadata.time_range(),
            batch_crc: crc32c::crc32c(&[]),
            is_closed: true,
        }));
        self.write_entries()?;
        self.names.sync_all().map_err(JournalError::io("sync", &self.paths.open_names()))?;
        let rename = |from: PathBuf, to: PathBuf| fs::rename(&from, to).map_err(JournalError::io("rename", &from));
        rename(self.paths.open_data(), self.paths.data())?;
        rename(self.paths.open_names(), self.paths.names())?;
        sync_folder(self.paths.folder())?;
        Ok(Closed {
            path: self.paths.data(),
            record_count,
            bytes: self.header_bytes + data_bytes,
            hole_count: self.hole_count,
        })
    }

    fn end_run(&mut self) {
        self.batch.entries.extend(self.batch.run.take().map(NameEntry::Run));
    }

    fn write_entries(&mut self) -> Result<(), JournalError> {
        let first = self.written.entry_count;
        let entries = (first..).zip(&self.batch.entries);
        let bytes: Vec<u8> = entries.flat_map(|(number, entry)| entry.to_bytes(number)).collect();
        let path = self.paths.open_names();
        self.names.write_all_at(&bytes, names_bytes_of(first)).map_err(JournalError::io("write", &path))?;
        self.written.entry_count += self.batch.entries.len() as u64;
        self.batch.entries.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        if std::mem::take(&mut self.unsynced_bytes) == 0 {
            return Ok(());
        }
        self.data.sync_data().map_err(JournalError::io("sync", &self.paths.open_data()))?;
        self.names.sync_data().map_err(JournalError::io("sync", &self.paths.open_names()))
    }

    /// Writes the metadata, extended with zeros to the reserved length: a decoder skips what follows the last field.
    fn write_metadata(&self) -> Result<(), JournalError> {
        let path = self.paths.open_data();
        let mut encoded = self.metadata.encode().map_err(JournalError::io("encode the metadata of", &path))?;
        let length = usize::try_from(self.header_bytes).ok().filter(|length| *length >= encoded.len());
        let declared = u32::try_from(self.header_bytes.saturating_sub(PRELUDE_BYTES)).ok();
        let (Some(length), Some(declared)) = (length, declared) else {
            return Err(JournalError::unusable(&path, "its metadata is longer than DBN allows"));
        };
        encoded.resize(length, 0);
        if let Some(field) = encoded.get_mut(4..8) {
            field.copy_from_slice(&declared.to_le_bytes());
        }
        self.data.write_all_at(&encoded, 0).map_err(JournalError::io("write", &path))
    }

    /// Copies the records into a file with more space in front: there are more symbols than the configuration allows for.
    fn move_records(&mut self, metadata_bytes: u64) -> Result<(), JournalError> {
        let (path, copy_path) = (self.paths.open_data(), self.paths.moving());
        let header_bytes = metadata_bytes.next_multiple_of(BLOCK_BYTES);
        let options = File::options().read(true).write(true).create(true).truncate(true).open(&copy_path);
        let mut copy = options.map_err(JournalError::io("create", &copy_path))?;
        let mut from = &self.data;
        let copied = from
            .seek(SeekFrom::Start(self.header_bytes))
            .and_then(|_| copy.seek(SeekFrom::Start(header_bytes)))
            .and_then(|_| io::copy(&mut from, &mut copy));
        copied.map_err(JournalError::io("copy", &path))?;
        (self.data, self.header_bytes) = (copy, header_bytes);
        // The open file must be valid whenever it has its name.
        self.write_metadata()?;
        self.data.sync_all().map_err(JournalError::io("sync", &copy_path))?;
        fs::rename(&copy_path, &path).map_err(JournalError::io("rename", &copy_path))
    }
}

/// When written bytes have to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// When the call returns.
    Synced,
    /// When the system writes them. They survive a crash of this process.
    Later,
}

fn collector(content: Content) -> MetadataCollector {
    let named = SchemaSet::NAMES.into_iter().find(|(schema, _)| *schema == content.schemas);
    let schema = named.and_then(|(_, name)| name.parse().ok());
    MetadataCollector::new(DbnFileOptions { dataset: content.feed.dataset().to_owned(), schema })
}

fn names_bytes_of(entry_count: u64) -> u64 {
    (entry_count + 1) * ENTRY_BYTES as u64
}

/// Length of the DBN metadata at the beginning of the file.
fn header_bytes(data: &File) -> io::Result<u64> {
    let mut prelude = [0; 8];
    data.read_exact_at(&mut prelude, 0)?;
    match prelude {
        [b'D', b'B', b'N', _, length @ ..] => Ok(PRELUDE_BYTES + u64::from(u32::from_le_bytes(length))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "this is no DBN file")),
    }
}

/// Whether nothing follows the space for the metadata.
fn holds_no_record(data: &File) -> bool {
    let Ok(bytes) = data.metadata().map(|metadata| metadata.len()) else { return false };
    // A crash between the reservation and the first metadata leaves zeros.
    header_bytes(data).map_or_else(|_| bytes == 0 || is_zero(data), |header_bytes| bytes <= header_bytes)
}

fn is_zero(data: &File) -> bool {
    let mut prelude = [1; 8];
    data.read_exact_at(&mut prelude, 0).is_ok() && prelude == [0; 8]
}

fn checksum(data: &File, offset: u64, bytes: u64) -> io::Result<u32> {
    let (mut at, end) = (offset, offset + bytes);
    let (mut crc, mut buffer) = (0, vec![0; CHECK_BYTES]);
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHECK_BYTES);
        let Some(part) = buffer.get_mut(..wanted) else { break };
        data.read_exact_at(part, at)?;
        crc = crc32c::crc32c_append(crc, part);
        at += wanted as u64;
    }
    Ok(crc)
}

/// Records that may be unsynced at a time.
const UNSYNCED_BYTES_MAX: u64 = VERIFIED_BYTES / 2;
/// Bytes of magic, version and length of the DBN metadata.
const PRELUDE_BYTES: u64 = 8;
/// DBN metadata without symbols is shorter.
const METADATA_BYTES: u64 = 1_024;
/// A symbol with one mapping: its name twice (71 bytes each), a count, two dates and the id as text (71 bytes), rounded up.
const BYTES_PER_SYMBOL: u64 = 240;
const BLOCK_BYTES: u64 = 4_096;
const CHECK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests;
