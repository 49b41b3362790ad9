//! The reader's side of replays. Sessions that want the same records of the same place are a group: one reader makes each chunk, and
//! each session gets it, in order, over a queue of its own.
//!
//! A session that does not keep up, or that wants other records than the rest from now on, leaves the group. It waits for a place once
//! more, and another reader goes on where it left.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::mpsc::{self, error::TrySendError},
    time,
};

use super::{
    super::{
        channel::{ChannelStream, Passed},
        chunk::Chunk,
        dataset::Dataset,
        place::LogPlace,
        reader::DatasetReader,
        ring::RingPosition,
    },
    CHUNKS_MAX, ReplayItem, ReplayState,
};
use crate::schema::Schemas;

/// How long a replay waits for the feeder when it has read further.
pub(super) const FEEDER_INTERVAL: Duration = Duration::from_millis(1);
/// How long a replay waits for its sessions to take a chunk before it makes room for replays that wait.
pub(super) const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(5) };
/// How long the others of a group do without records, at each chunk, for the sake of a session that does not take any.
pub(super) const GROUP_PATIENCE: Duration = Duration::from_millis(20);
/// How long a chunk waits for slow sessions at most, while the others of the group are hardly held up.
const GROUP_PATIENCE_MAX: Duration = Duration::from_secs(1);
/// How often a group looks whether the wait for a session holds up the others.
const GROUP_INTERVAL: Duration = Duration::from_millis(1);

/// A session, for the reader of its replay.
#[derive(Debug)]
pub(crate) struct Member {
    sender: mpsc::Sender<ReplayItem>,
    state: Arc<ReplayState>,
    live_from: Vec<LogPlace>,
    is_past_start: bool,
    /// Where it left a group.
    resume: Option<Resume>,
}

/// A place behind which a session has had nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Resume {
    places: Vec<LogPlace>,
    channels: Vec<Passed>,
}

impl Resume {
    fn at(reader: &DatasetReader) -> Self {
        Self { places: reader.next_places(), channels: reader.channels().iter().map(ChannelStream::passed).collect() }
    }
}

impl Member {
    pub(super) fn new(sender: mpsc::Sender<ReplayItem>, state: Arc<ReplayState>, live_from: RingPosition) -> Self {
        Self { sender, state, live_from: live_from.first_places, is_past_start: false, resume: None }
    }

    /// Whether the session has ended.
    pub(crate) fn has_left(&self) -> bool {
        self.sender.is_closed() || self.state.stop.load(Relaxed)
    }

    /// Whether the two get the same records from here on.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        self.wanted() == other.wanted() && self.resume == other.resume
    }

    fn wanted(&self) -> Schemas {
        Schemas(self.state.wanted.load(Relaxed))
    }

    /// Whether it has taken all that was handed over.
    fn has_taken_all(&self) -> bool {
        self.sender.capacity() == self.sender.max_capacity()
    }

    fn item(&self, kind: &Handed) -> ReplayItem {
        match kind {
            Handed::Chunk(chunk) => ReplayItem::Chunk { chunk: Arc::clone(chunk), is_past_start: self.is_past_start },
            Handed::LostJournal => ReplayItem::LostJournal,
            Handed::Joined { position, has_hole } => {
                ReplayItem::Joined { position: position.clone(), has_hole: *has_hole }
            }
        }
    }
}

/// A [`ReplayItem`] for all members.
enum Handed {
    Chunk(Arc<Chunk>),
    LostJournal,
    Joined { position: RingPosition, has_hole: bool },
}

/// Sessions of one reader.
struct Group<'a> {
    dataset: &'a Arc<Dataset>,
    members: Vec<Member>,
    /// Schemas that all of them want.
    schemas: Schemas,
    /// The latest chunks. Most members have sent the oldest of them.
    handed: VecDeque<Arc<Chunk>>,
}

/// Adds replays that wait for a place, and starts a thread for them if one is free.
pub(super) fn enter(dataset: &Arc<Dataset>, members: Vec<Member>) {
    if !dataset.replays.enter(members) {
        return;
    }
    let dataset = Arc::clone(dataset);
    tokio::task::spawn_blocking(move || {
        while let Some(members) = dataset.replays.next_group(may_share(&dataset)) {
            // A panic ends the replays of this group and no other one.
            let _ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&dataset, members)));
        }
    });
}

/// Whether a session that leaves a group can have another reader: journals would have to be read again, and may be gone by then.
fn may_share(dataset: &Dataset) -> bool {
    dataset.sources.iter().all(|source| source.journals.is_none())
}

/// Reads for a group until all of its members have joined the ring or left.
pub(super) fn run(dataset: &Arc<Dataset>, members: Vec<Member>) {
    let Some(first) = members.first() else { return };
    let (schemas, resume) = (first.wanted(), first.resume.clone());
    // Only a reader of journals looks at it, and such a reader has one session.
    let stop = Arc::clone(&first.state.stop);
    let Ok(mut reader) = DatasetReader::open(&dataset.sources, &stop) else { return };
    let mut has_books = needs_books(dataset, schemas);
    if !has_books {
        reader.keep_no_books();
    }
    let mut group = Group { dataset, members, schemas, handed: VecDeque::new() };
    if let Some(resume) = resume {
        let is_there = group.read_up_to(&mut reader, &resume);
        let has_lost_beginning = |(now, before): (Passed, &Passed)| now.began_incomplete && !before.began_incomplete;
        let mut channels = reader.channels().iter().map(ChannelStream::passed).zip(&resume.channels);
        // Without the beginning, books would be others than those of the former reader.
        if !is_there || has_books && channels.any(has_lost_beginning) {
            return;
        }
    }
    while group.keep_alike(&reader) {
        // In this order: a chunk that the feeder made before it produced the schemas must not come after the target.
        let schemas = group.schemas;
        let is_produced = dataset.is_produced(schemas);
        let target = dataset.ring.end();
        if !is_produced || !has_reached(&target.first_places, &reader.next_places()) {
            // The feeder has not taken up the schemas yet, or is behind this replay.
            thread::sleep(FEEDER_INTERVAL);
            continue;
        }
        while !has_reached(&reader.next_places(), &target.first_places) {
            if !group.keep_alike(&reader) {
                return;
            }
            if !has_books && needs_books(dataset, group.schemas) {
                let Some(with_books) = group.reader_with_books(&reader) else { return };
                (reader, has_books) = (with_books, true);
            }
            if !group.read_chunk(&mut reader, &target) {
                break;
            }
        }
        // The ring's end was taken before the feeder produced what was added since.
        if group.members.iter().any(|member| member.wanted() != schemas) {
            continue;
        }
        // Otherwise the session would count as a slow reader from the start: the replay goes on to a newer position.
        if dataset.ring.is_close(target.chunk) {
            return group.join(reader, target, schemas);
        }
    }
}

impl Group<'_> {
    /// Lets members go whose session has ended, or that no longer want what the others want. Returns whether anybody is left.
    fn keep_alike(&mut self, reader: &DatasetReader) -> bool {
        self.members.retain(|member| !member.has_left());
        if let [member] = self.members.as_slice() {
            self.schemas = member.wanted();
        } else if self.members.iter().any(|member| member.wanted() != self.schemas) {
            let schemas = self.schemas;
            self.let_go(&Resume::at(reader), |_, member| member.wanted() != schemas);
        }
        !self.members.is_empty()
    }

    /// Reads a chunk towards the target, and hands it over. Returns whether the target is still ahead: no, if the log has lost what is left
    /// up to there.
    fn read_chunk(&mut self, reader: &mut DatasetReader, target: &RingPosition) -> bool {
        let resume = Resume::at(reader);
        let (until, is_start) = self.next_cut(&resume.places, target);
        let mut chunk = self.new_chunk();
        let entries = reader.read(self.schemas, Some(&until), &mut chunk);
        if reader.take_lost_journal() {
            self.hand_over(&Handed::LostJournal, &resume);
        }
        if !chunk.is_empty() {
            let chunk = Arc::new(chunk);
            self.handed.push_back(Arc::clone(&chunk));
            self.hand_over(&Handed::Chunk(chunk), &resume);
        }
        if entries == 0 && is_start {
            self.pass_start(&until);
        }
        entries > 0 || is_start
    }

    /// The members go on with the ring. If the day is over there, they get what follows from its end first.
    fn join(mut self, mut reader: DatasetReader, target: RingPosition, schemas: Schemas) {
        if target.is_ended {
            let resume = Resume::at(&reader);
            let mut chunk = Chunk::default();
            reader.end_sessions(Duration::ZERO, schemas, &mut chunk);
            self.pass_start(&target.first_places);
            if !chunk.is_empty() {
                self.hand_over(&Handed::Chunk(Arc::new(chunk)), &resume);
            }
        }
        let has_hole = reader.channels().iter().any(ChannelStream::has_hole);
        self.hand_over(&Handed::Joined { position: target, has_hole }, &Resume::at(&reader));
    }

    /// An empty chunk. Its memory is that of the oldest one, if all have sent it: the kernel clears each page of new memory.
    fn new_chunk(&mut self) -> Chunk {
        let oldest = if self.handed.len() > CHUNKS_MAX + 1 { self.handed.pop_front() } else { None };
        oldest.and_then(|chunk| Arc::try_unwrap(chunk).ok()).map_or_else(Chunk::with_room, Chunk::emptied)
    }

    /// Those members wait for a place of their own.
    fn let_go(&mut self, resume: &Resume, leaves: impl Fn(usize, &Member) -> bool) {
        let (mut leaving, mut staying) = (Vec::new(), Vec::new());
        for (index, mut member) in std::mem::take(&mut self.members).into_iter().enumerate() {
            if leaves(index, &member) {
                member.resume = Some(resume.clone());
                leaving.push(member);
            } else {
                staying.push(member);
            }
        }
        self.members = staying;
        enter(self.dataset, leaving);
    }

    /// Up to where the next chunk may reach: to the start of the next session, or to the target. No chunk has records of both sides of a
    /// session's start, since subscriptions without a replay begin there. Returns whether it is a start.
    fn next_cut(&mut self, places: &[LogPlace], target: &RingPosition) -> (Vec<LogPlace>, bool) {
        self.pass_start(places);
        let starts = self.members.iter().filter(|member| !member.is_past_start).map(|member| &member.live_from);
        // Starts are ends of the ring at some moments, so one of two lies behind the other in no channel.
        match starts.reduce(|first, other| if has_reached(first, other) { other } else { first }) {
            Some(start) => (start.clone(), true),
            None => (target.first_places.clone(), false),
        }
    }

    /// All that lies in front of these places has been read.
    fn pass_start(&mut self, places: &[LogPlace]) {
        for member in &mut self.members {
            member.is_past_start |= has_reached(places, &member.live_from);
        }
    }

    /// Hands an item to all members. Those that do not take it are let go, at `resume`: the place in front of the item.
    fn hand_over(&mut self, item: &Handed, resume: &Resume) {
        self.members.retain(|member| !member.has_left());
        let is_blocked =
            |member: &Member| matches!(member.sender.try_send(member.item(item)), Err(TrySendError::Full(_)));
        let mut blocked: Vec<usize> =
            (0..self.members.len()).filter(|index| is_blocked(&self.members[*index])).collect();
        let interval = if self.members.len() == 1 { PATIENCE } else { GROUP_INTERVAL };
        let mut wait = Wait::begin(Instant::now());
        while let Some(index) = blocked.last() {
            let member = &self.members[*index];
            let room = async { time::timeout(interval, member.sender.reserve()).await };
            if let Ok(permit) = Handle::current().block_on(room) {
                // Without a permit the session has ended.
                permit.into_iter().for_each(|permit| permit.send(member.item(item)));
                blocked.pop();
            }
            let now = Instant::now();
            if !wait.is_due(now) {
                continue;
            }
            // Others may have room while that one has none.
            blocked.retain(|index| is_blocked(&self.members[*index]));
            match wait.step(now, &self.members, blocked.len()) {
                Waiting::Goes => {}
                Waiting::IsTooLong => return self.let_go(resume, |index, _| blocked.contains(&index)),
                Waiting::HoldsUpOthersOfDataset if self.dataset.replays.has_waiting() => {
                    self.members.iter().for_each(|member| member.state.is_displaced.store(true, Relaxed));
                    return self.members.clear();
                }
                Waiting::HoldsUpOthersOfDataset => wait = Wait::begin(now),
            }
        }
    }

    /// Reads up to there without output. Returns whether the place was reached: the logs may no longer have it.
    fn read_up_to(&self, reader: &mut DatasetReader, resume: &Resume) -> bool {
        while !self.members.iter().all(Member::has_left) {
            // The sessions have had these records.
            let mut passed = Chunk::default();
            if reader.read(Schemas::default(), Some(&resume.places), &mut passed) == 0 {
                reader.inherit(&resume.channels);
                return has_reached(&reader.next_places(), &resume.places);
            }
        }
        false
    }

    /// A reader at the same place that has kept books since the beginning of the logs: a schema that follows from them was subscribed to
    /// during the replay. `None` if the logs no longer reach up to that place, or the session has left.
    fn reader_with_books(&self, without: &DatasetReader) -> Option<DatasetReader> {
        let stop = Arc::clone(&self.members.first()?.state.stop);
        let mut reader = DatasetReader::open(&self.dataset.sources, &stop).ok()?;
        self.read_up_to(&mut reader, &Resume::at(without)).then_some(reader)
    }
}

/// The wait for members whose queues are full.
struct Wait {
    began: Instant,
    looked: Instant,
    /// For how long others had nothing to do.
    held_up: Duration,
    /// Room in all queues at the last look.
    room: usize,
}

/// What a look at it says.
#[derive(Debug, PartialEq, Eq)]
enum Waiting {
    Goes,
    /// The others of the group are held up.
    IsTooLong,
    /// Nobody in the group takes anything: other replays may want the place.
    HoldsUpOthersOfDataset,
}

impl Wait {
    fn begin(now: Instant) -> Self {
        Self { began: now, looked: now, held_up: Duration::ZERO, room: 0 }
    }

    fn is_due(&self, now: Instant) -> bool {
        now - self.looked >= GROUP_INTERVAL
    }

    fn step(&mut self, now: Instant, members: &[Member], blocked: usize) -> Waiting {
        let since = now - std::mem::replace(&mut self.looked, now);
        if blocked == 0 {
            return Waiting::Goes;
        }
        if blocked == members.len() {
            return if now - self.began >= PATIENCE { Waiting::HoldsUpOthersOfDataset } else { Waiting::Goes };
        }
        // Where the machine is what is slow, others take something meanwhile, and most still have something to take.
        let room = members.iter().map(|member| member.sender.capacity()).sum();
        let is_still = std::mem::replace(&mut self.room, room) == room;
        let idle = members.iter().filter(|member| member.has_taken_all()).count();
        if idle * 2 >= members.len() || (idle > 0 && is_still) {
            self.held_up += since;
        }
        let is_too_long = self.held_up >= GROUP_PATIENCE || now - self.began >= GROUP_PATIENCE_MAX;
        if is_too_long { Waiting::IsTooLong } else { Waiting::Goes }
    }
}

/// Whether books are to be kept for these schemas. They cost more than all else that a replay does, and most replays want what is published.
/// A replay that may read journals keeps them in any case: beginning again would read the journals again.
fn needs_books(dataset: &Dataset, schemas: Schemas) -> bool {
    dataset.sources.iter().any(|source| source.journals.is_some() || !source.native().contains(schemas))
}

pub(super) fn has_reached(places: &[LogPlace], target: &[LogPlace]) -> bool {
    places.iter().zip(target).all(|(place, target)| place.entry >= target.entry)
}

#[cfg(test)]
pub(super) mod tests;
