//! The channels of one dataset and one set of schemas: their logs, read in the order of commit times, and their journals.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mdgw_sys::alarm::Alarm;
use mdgw_wire::identity::ChannelId;

use crate::{
    JournalError,
    channel::{ChannelTail, JournalChannel},
    journal_file::{Closed, Cut, Durability, JournalFile, Reopened},
    names::ChannelPosition,
    names_file::NamesState,
    open_files::OpenFiles,
    paths::{self, JournalName, JournalPaths, NAMES, OPEN_DATA, OPEN_NAMES, dataset_folders, schemas_text},
    trailer,
};

/// Open journals of an earlier run, and what was cut. They are opened at each attempt to write, so of several attempts the most.
pub(crate) type Cuts = BTreeMap<PathBuf, Cut>;

/// Channels that share journals.
#[derive(Debug)]
pub(crate) struct Group {
    files: OpenFiles,
    channels: Vec<JournalChannel>,
    tails: Vec<ChannelTail>,
    /// When the logs were looked at last.
    checked_at: Instant,
}

impl Group {
    /// The groups of these channels, each continued where its journals end.
    /// The journals that were opened for that are added to `cuts`.
    pub(crate) fn open_all(
        directory: &Path,
        channels: &[JournalChannel],
        cuts: &mut Cuts,
    ) -> Result<Vec<Self>, JournalError> {
        let mut grouped: BTreeMap<(u16, u16), Vec<&JournalChannel>> = BTreeMap::new();
        for channel in channels {
            grouped.entry((channel.feed as u16, channel.schemas.0)).or_default().push(channel);
        }
        close_others(directory, channels)?;
        grouped.into_values().filter_map(|channels| Self::open(directory, &channels, cuts).transpose()).collect()
    }

    fn open(directory: &Path, channels: &[&JournalChannel], cuts: &mut Cuts) -> Result<Option<Self>, JournalError> {
        let Some(first) = channels.first() else { return Ok(None) };
        let mut files = OpenFiles::new(directory.join(first.feed.dataset()), first.feed, first.schemas);
        files.instruments_max = channels.iter().map(|channel| u64::from(channel.instruments_max)).sum();
        let positions = recover(&mut files, cuts)?;
        let open = |channel: &&JournalChannel| ChannelTail::open(channel, positions.get(&channel.id).copied());
        let tails = channels.iter().map(open).collect::<Result<_, _>>()?;
        let channels = channels.iter().map(|channel| (*channel).clone()).collect();
        Ok(Some(Self { files, channels, tails, checked_at: Instant::now() }))
    }

    /// Reads some entries. Returns their number, and the journals that were closed.
    pub(crate) fn advance(&mut self) -> Result<(usize, Vec<Closed>), JournalError> {
        let mut closed = self.close_complete()?;
        let mut entries = 0;
        while entries < ENTRIES_MAX && !self.files.has_full_batch() {
            let next = self.tails.iter_mut().enumerate().filter_map(|(index, tail)| Some((tail.peek()?, index)));
            let Some((_, index)) = next.min() else { break };
            let Some(tail) = self.tails.get_mut(index) else { break };
            let before = tail.position();
            if !tail.read(&mut self.files)? {
                break;
            }
            entries += 1;
            let is_same_session = |at: ChannelPosition| (at.session, at.has_ended);
            if tail.position().map(is_same_session) != before.map(is_same_session) {
                closed.extend(self.close_complete()?);
            }
        }
        if entries == 0 && self.checked_at.elapsed() >= CHECK_INTERVAL {
            self.checked_at = Instant::now();
            for (tail, channel) in self.tails.iter_mut().zip(&self.channels) {
                // A log that is not there at the moment is no error in writing: the next look follows.
                let _not_there = tail.reopen_if_replaced(channel);
            }
        }
        Ok((entries, closed))
    }

    /// Writes what was read.
    pub(crate) fn write(&mut self, durability: Durability) -> Result<(), JournalError> {
        self.files.write(durability)
    }

    /// Whether so much was read that it should be written now.
    pub(crate) fn has_full_batch(&self) -> bool {
        self.files.has_full_batch()
    }

    /// Closes the journals of dates on which no channel goes on. A channel that has no session of that date is not waited for.
    fn close_complete(&mut self) -> Result<Vec<Closed>, JournalError> {
        let Self { files, tails, .. } = self;
        let positions: Vec<_> = tails.iter().filter_map(ChannelTail::position).collect();
        files.close_if(|date| {
            let goes_on = |at: &ChannelPosition| at.session.date == date && !at.has_ended;
            let is_done = |at: &ChannelPosition| at.session.date >= date && !goes_on(at);
            positions.iter().any(is_done) && !positions.iter().any(goes_on)
        })
    }
}

/// Closes what an earlier run left open for a dataset or schemas that no channel has any longer.
fn close_others(directory: &Path, channels: &[JournalChannel]) -> Result<(), JournalError> {
    let is_of = |channel: &JournalChannel, folder: &Path, name: &JournalName| {
        folder.ends_with(channel.feed.dataset()) && schemas_text(channel.schemas) == name.schemas
    };
    for folder in dataset_folders(directory)? {
        for name in paths::list(&folder, &[OPEN_NAMES])? {
            if channels.iter().any(|channel| is_of(channel, &folder, &name)) {
                continue;
            }
            match JournalFile::reopen(name.paths(&folder))? {
                Reopened::Open(file, _) => log_closed(&file.close()?),
                Reopened::Empty => {}
                Reopened::Damaged(state, reason) => {
                    log_damaged(&name.paths(&folder), &state, &reason);
                    name.paths(&folder).set_aside()?;
                }
            }
        }
    }
    Ok(())
}

/// Opens what an earlier run left open, and finds out where each channel goes on.
fn recover(files: &mut OpenFiles, cuts: &mut Cuts) -> Result<BTreeMap<ChannelId, ChannelPosition>, JournalError> {
    let schemas = schemas_text(files.schemas);
    let is_ours = |name: &JournalName| name.schemas == schemas;
    let mut positions = BTreeMap::new();
    // The last closed journals, which may be the reason that there is no open one.
    let closed: Vec<_> = paths::list(&files.folder, &[NAMES])?.into_iter().filter(is_ours).collect();
    for name in closed.iter().rev().take(CLOSED_READ_MAX) {
        let path = name.paths(&files.folder).names();
        match trailer::read(&path) {
            Ok(at) => at.into_iter().for_each(|(channel, at)| advance_to(&mut positions, channel, at)),
            Err(error) => tracing::error!(
                alarm = Alarm::JournalDamaged.name(),
                %error,
                "journal: the end of a closed names file cannot be read; what it holds may be journaled again"
            ),
        }
    }
    let opened = paths::list(&files.folder, &[OPEN_NAMES, OPEN_DATA])?;
    let mut is_closing = Vec::new();
    for name in opened.into_iter().filter(is_ours) {
        match JournalFile::reopen(name.paths(&files.folder))? {
            Reopened::Empty => {}
            Reopened::Open(file, _) if file.content() != files.content(name.date) => {
                let reason = "its names are those of another dataset, of other schemas or of another date";
                replace_damaged(files, &name, &NamesState::default(), reason)?;
            }
            Reopened::Open(file, cut) => {
                let largest = cuts.entry(file.path()).or_default();
                largest.data_bytes = largest.data_bytes.max(cut.data_bytes);
                largest.names_bytes = largest.names_bytes.max(cut.names_bytes);
                file.positions().iter().for_each(|(channel, at)| advance_to(&mut positions, *channel, *at));
                // A second open journal of one date is left by a crash while a damaged one was replaced.
                if file.is_closing() || files.opened(name.date).is_some() {
                    is_closing.push(*file);
                } else {
                    files.insert(*file);
                }
            }
            Reopened::Damaged(state, reason) => {
                replace_damaged(files, &name, &state, &reason)?;
                state.positions.iter().for_each(|(channel, at)| advance_to(&mut positions, *channel, *at));
            }
        }
    }
    for file in is_closing {
        log_closed(&file.close()?);
    }
    Ok(positions)
}

/// Sets a damaged journal aside. Another one goes on where its intact part ends.
fn replace_damaged(
    files: &mut OpenFiles,
    name: &JournalName,
    state: &NamesState,
    reason: &str,
) -> Result<(), JournalError> {
    let paths = name.paths(&files.folder);
    log_damaged(&paths, state, reason);
    if !state.positions.is_empty() && files.opened(name.date).is_none() {
        let mut file = files.begin(name.date)?;
        state.positions.iter().for_each(|(channel, at)| file.set_position(*channel, *at));
        file.write(Durability::Synced)?;
        files.insert(file);
    }
    paths.set_aside()
}

fn log_damaged(paths: &JournalPaths, state: &NamesState, reason: &str) {
    tracing::error!(
        alarm = Alarm::JournalDamaged.name(),
        path = %paths.open_data().display(),
        reason,
        records = state.checkpoint.record_count,
        "journal: damaged, set aside as it is; another file goes on behind the records that have names"
    );
}

fn advance_to(positions: &mut BTreeMap<ChannelId, ChannelPosition>, channel: ChannelId, at: ChannelPosition) {
    let order = |at: &ChannelPosition| (at.session, at.next, at.next_part, at.has_ended);
    let known = positions.entry(channel).or_insert(at);
    if order(&at) > order(known) {
        *known = at;
    }
}

/// Logs which journals go on, and empties the list.
pub(crate) fn log_reopened(cuts: &mut Cuts) {
    for (path, cut) in std::mem::take(cuts) {
        tracing::info!(
            path = %path.display(),
            cut_data_bytes = cut.data_bytes,
            cut_names_bytes = cut.names_bytes,
            "journal: goes on behind its last complete batch; what was cut is read from the publication log again"
        );
    }
}

pub(crate) fn log_closed(closed: &Closed) {
    tracing::info!(
        path = %closed.path.display(),
        records = closed.record_count,
        bytes = closed.bytes,
        holes = closed.hole_count,
        "journal: closed"
    );
}

/// Closed journals whose ends are read at a start: more than the dates that a log holds.
const CLOSED_READ_MAX: usize = 64;
/// How often a log without news is looked at, for one that was replaced.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Entries between two looks at stop signals and times.
const ENTRIES_MAX: usize = 4_096;
