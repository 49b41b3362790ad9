//! Snapshots of the channels' state for subscribers that start late.
//!
//! ```text
//!  snapshot thread                           retransmission thread
//!  log ─► ChannelState ─► image ─► [store] ─► chunks on request
//!              │           ▲ wanted ◄───────── a request for any image
//!              └─► image ─► chunks to the snapshot group, unasked
//! ```
//! A thread of its own follows the logs and keeps each channel's state, so neither the data path nor the answers about gaps wait
//! while a snapshot is taken. The store keeps an image unchanged as long as somebody requests chunks of it, within bounds: two
//! images per channel, and [`IMAGE_IDLE_NS`] after the last request for the image.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mdgw_feeds::{
    identity::{ChannelId, Sequence},
    published::snapshot::{CHUNK_OVERHEAD_BYTES, SnapshotImage, checksum, chunk_frames},
    time::MonoNs,
};
use mdgw_log_books::state::{ChannelState, InitialState, StateSnapshot};
use mdgw_publog::{LogError, SessionBytes};
use mdgw_sys::clock::{mono_now, unix_now};
use mdgw_telemetry::{
    counter_block,
    counters::{CounterWriter, Registry},
};

use super::{
    ServedChannel,
    snapshot_group::{SENDING_INTERVAL, SnapshotGroup, Taken},
};

counter_block! {
    /// Snapshots taken of one channel; the snapshot thread counts.
    pub(crate) struct SnapshotsTaken, key SnapshotTaken {
        snapshots_taken: Counter, None, "snapshots taken";
        snapshots_suspect: Counter, None, "snapshots taken of suspect books";
        snapshot_duration_last_ns: Gauge, Nanoseconds, "time that taking the last snapshot took";
        snapshot_record_bytes: Gauge, Bytes, "bytes of the records of the last snapshot";
        snapshot_orders: Gauge, None, "resting orders of the last snapshot";
    }
}

counter_block! {
    /// Answers about the snapshots of one channel; the retransmission thread counts.
    pub(crate) struct SnapshotAnswers, key SnapshotAnswer {
        snapshots_served: Counter, None, "answers with the last chunk of a snapshot";
        snapshot_requests: Counter, None, "requests for a snapshot that were answered with chunks";
        snapshot_requests_early: Counter, None, "requests refused since the snapshot was being taken";
        snapshot_requests_gone: Counter, None, "requests refused since there is no such image, or none of that session";
        snapshot_chunks: Counter, Packets, "chunks of snapshots sent";
        snapshot_bytes: Counter, Bytes, "bytes of answers about snapshots, headers included";
    }
}

/// The images that are served now. Shared by the snapshot thread and the service's.
#[derive(Debug, Default)]
pub struct SnapshotStore {
    channels: Mutex<BTreeMap<ChannelId, ChannelImages>>,
}

#[derive(Debug, Default)]
struct ChannelImages {
    /// Oldest first.
    images: Vec<KeptImage>,
    /// A request waits for a newer image.
    is_wanted: bool,
    /// Session of the state that the next image would have.
    session: Option<SessionBytes>,
}

#[derive(Debug)]
struct KeptImage {
    image: Arc<Image>,
    taken: MonoNs,
    used: MonoNs,
}

/// What the store has for a request.
#[derive(Debug)]
pub(super) enum Offer {
    /// Chunks can be sent.
    Image(Arc<Image>),
    /// The image will be there soon.
    Preparing,
    /// There is no such image, and none of that session.
    Nothing,
}

/// A snapshot, cut into chunks.
#[derive(Debug)]
pub(super) struct Image {
    session: SessionBytes,
    totals: SnapshotImage,
    ts_recv: u64,
    records: Vec<u8>,
    chunks: Vec<ImageChunk>,
}

#[derive(Clone, Copy, Debug)]
struct ImageChunk {
    begin: usize,
    end: usize,
    record_count: u16,
}

impl SnapshotStore {
    /// What there is for a request. `image` 0: any image of the session.
    pub(super) fn offer(&self, channel: ChannelId, session: SessionBytes, image: u32, now: MonoNs) -> Offer {
        let mut channels = self.lock();
        let Some(of_channel) = channels.get_mut(&channel) else { return Offer::Nothing };
        if image != 0 {
            let kept = of_channel.images.iter_mut().find(|kept| kept.image.totals.image == image);
            return kept.filter(|kept| kept.image.session == session).map_or(Offer::Nothing, |kept| kept.offer(now));
        }
        if of_channel.session != Some(session) {
            return Offer::Nothing;
        }
        let can_take = of_channel.has_room(now);
        match of_channel.images.last_mut().filter(|kept| kept.image.session == session) {
            Some(newest) if now.since(newest.taken) <= IMAGE_FRESH_NS || !can_take => newest.offer(now),
            _ => {
                of_channel.is_wanted = true;
                Offer::Preparing
            }
        }
    }

    /// A poisoned lock has whole images all the same: they are made before it is taken.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ChannelId, ChannelImages>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptImage {
    fn offer(&mut self, now: MonoNs) -> Offer {
        self.used = now;
        Offer::Image(Arc::clone(&self.image))
    }
}

impl ChannelImages {
    /// Whether another image may be taken without discarding one that somebody requests.
    fn has_room(&self, now: MonoNs) -> bool {
        self.images.len() < IMAGES_MAX
            || self.images.first().is_some_and(|oldest| now.since(oldest.used) > IMAGE_IN_USE_NS)
    }

    fn push(&mut self, image: Image, now: MonoNs) {
        if self.images.len() >= IMAGES_MAX {
            self.images.remove(0);
        }
        self.images.push(KeptImage { image: Arc::new(image), taken: now, used: now });
    }
}

impl Image {
    /// Cuts a snapshot into chunks of up to `record_bytes_max`.
    fn new(image: u32, (session, next): (SessionBytes, u64), state: StateSnapshot, record_bytes_max: usize) -> Self {
        let chunks = cut(&state.records, record_bytes_max);
        let totals = SnapshotImage {
            image,
            next: Sequence(next),
            chunk_count: u32::try_from(chunks.len()).unwrap_or(u32::MAX),
            checksum: checksum(&state.records),
            record_count: chunks.iter().map(|chunk| u64::from(chunk.record_count)).sum(),
            record_bytes: state.records.len() as u64,
            order_count: state.order_count,
            instrument_count: state.instrument_count,
            is_suspect: state.is_suspect,
        };
        Self { session, totals, ts_recv: state.ts_recv, records: state.records, chunks }
    }

    pub(super) fn session(&self) -> SessionBytes {
        self.session
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.totals.is_suspect
    }

    pub(super) fn chunk_count(&self) -> u32 {
        self.totals.chunk_count
    }

    /// The frames of a chunk's packet.
    pub(super) fn frames(&self, chunk: u32) -> Option<Vec<u8>> {
        let cut = self.chunks.get(usize::try_from(chunk).ok()?)?;
        let records = self.records.get(cut.begin..cut.end)?;
        Some(chunk_frames(&self.totals, chunk, self.ts_recv, cut.record_count, records))
    }
}

/// Whole records per chunk, and at least one; one empty chunk for a state without records.
fn cut(records: &[u8], record_bytes_max: usize) -> Vec<ImageChunk> {
    let mut chunks = Vec::with_capacity(records.len() / record_bytes_max.max(1) + 1);
    let mut open = ImageChunk { begin: 0, end: 0, record_count: 0 };
    while let Some(units) = records.get(open.end) {
        let end = open.end + usize::from(*units).max(1) * dbn::RecordHeader::LENGTH_MULTIPLIER;
        if open.record_count > 0 && end - open.begin > record_bytes_max {
            chunks.push(open);
            open = ImageChunk { begin: open.end, record_count: 0, ..open };
        }
        open = ImageChunk { end, record_count: open.record_count + 1, ..open };
    }
    if open.record_count > 0 || chunks.is_empty() {
        chunks.push(open);
    }
    chunks
}

/// Follows the logs, takes the snapshots that are wanted, and sends those of snapshot groups. Owned by one cold thread.
#[derive(Debug)]
pub struct SnapshotTaker {
    store: Arc<SnapshotStore>,
    registry: Arc<Registry>,
    channels: Vec<TakenChannel>,
    next_image: u32,
    groups: Vec<SnapshotGroup>,
}

#[derive(Debug)]
struct TakenChannel {
    id: ChannelId,
    name: String,
    state: ChannelState,
    record_bytes_max: usize,
    /// The log was not read to its end.
    is_behind: bool,
    /// The log was once read to its end.
    has_read: bool,
    /// The last image was of suspect books.
    is_suspect: bool,
    readiness: Readiness,
    counts: SnapshotsTaken,
    counters: CounterWriter<SnapshotsTaken>,
}

/// Whether a channel has snapshots that every receiver can use. The log of the gateway has each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Readiness {
    /// As assumed before the first turn.
    #[default]
    Ready,
    /// The log is read for the first time.
    Reading,
    /// Nothing is in the log.
    Empty,
    /// The last image was of suspect books.
    Suspect,
}

impl SnapshotTaker {
    #[cfg(test)]
    pub(super) fn readiness(&self, channel: ChannelId) -> Option<Readiness> {
        self.channels.iter().find(|other| other.id == channel).map(|channel| channel.readiness)
    }

    /// Opens the logs. Counters are added to the registry.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn new(served: &[ServedChannel], registry: &Arc<Registry>) -> Result<Self, LogError> {
        // Another number than those of an earlier start: a subscriber may still ask for one of its images.
        #[allow(clippy::cast_possible_truncation, reason = "the lower bits are those that differ")]
        let behind = (unix_now().0 >> 20) as u32;
        Self::behind_image(behind, served, registry)
    }

    /// As [`Self::new`], with images numbered from `behind` + 1 on.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn behind_image(behind: u32, served: &[ServedChannel], registry: &Arc<Registry>) -> Result<Self, LogError> {
        let (store, registry) = (Arc::default(), Arc::clone(registry));
        let (channels, groups) = (Vec::new(), Vec::new());
        let mut taker = Self { store, registry, channels, next_image: behind, groups };
        for channel in served {
            taker.add(channel)?;
        }
        Ok(taker)
    }

    /// Sends images of its channels to that snapshot group too.
    pub(crate) fn send_to(&mut self, mut group: SnapshotGroup, served: &[ServedChannel]) {
        served.iter().for_each(|channel| group.add(channel, &self.registry));
        self.groups.push(group);
    }

    /// What the service takes the images from.
    #[must_use]
    pub fn store(&self) -> &Arc<SnapshotStore> {
        &self.store
    }

    /// Takes snapshots of one more channel.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub(crate) fn add(&mut self, served: &ServedChannel) -> Result<(), LogError> {
        let mut state = ChannelState::open(&served.log_directory, served.channel, served.books)?;
        if let Some(initial) = &served.initial {
            state.begin_with(InitialState::clone(initial));
        }
        let record_bytes_max = served.frame_bytes_max.saturating_sub(CHUNK_OVERHEAD_BYTES);
        let counters = self.registry.register(&served.name);
        let counts = SnapshotsTaken::default();
        self.channels.push(TakenChannel {
            id: served.channel,
            name: served.name.clone(),
            state,
            record_bytes_max,
            is_behind: true,
            has_read: false,
            is_suspect: false,
            readiness: Readiness::default(),
            counts,
            counters,
        });
        self.groups.iter_mut().for_each(|group| group.add(served, &self.registry));
        self.store.lock().insert(served.channel, ChannelImages::default());
        Ok(())
    }

    /// Forgets a channel.
    pub(crate) fn remove(&mut self, channel: ChannelId) {
        self.channels.retain(|other| other.id != channel);
        self.groups.iter_mut().for_each(|group| group.remove(channel));
        self.store.lock().remove(&channel);
    }

    /// How long the thread pauses where a turn has left nothing to read.
    pub(crate) fn pause(&self) -> Duration {
        if self.groups.iter().any(SnapshotGroup::is_sending) { SENDING_INTERVAL } else { TURN_INTERVAL }
    }

    /// Follows the logs for a bounded time, takes the snapshots that are wanted and possible, and sends to the snapshot groups what
    /// their rates allow. Returns whether there may be more to read.
    pub fn turn(&mut self, now: MonoNs) -> bool {
        let mut more = false;
        let Self { store, channels, next_image, groups, .. } = self;
        for channel in channels.iter_mut() {
            channel.is_behind = channel.state.follow(FOLLOW_ENTRIES_MAX);
            more |= channel.is_behind;
            let position = channel.state.position();
            let is_wanted = {
                let mut images = store.lock();
                let Some(of_channel) = images.get_mut(&channel.id) else { continue };
                of_channel.session = position.map(|(session, _)| session);
                of_channel.images.retain(|kept| now.since(kept.used) <= IMAGE_IDLE_NS);
                of_channel.is_wanted && !channel.is_behind
            };
            // Without the lock: a million orders take a while.
            let Some(position) = position.filter(|_| is_wanted) else { continue };
            let (image, duration_ns) = channel.take(position, next_image, ChannelState::snapshot);
            if let Some(of_channel) = store.lock().get_mut(&channel.id) {
                of_channel.is_wanted = false;
                // Its age counts from here: an image that took longer than it stays fresh would never be offered.
                of_channel.push(image, now.plus(duration_ns));
            }
        }
        for group in groups {
            group.turn(now, &mut |id| {
                let channel = channels.iter_mut().find(|channel| channel.id == id && !channel.is_behind);
                let positioned = channel.and_then(|channel| Some((channel.state.position()?, channel)));
                // Its receivers cannot ask for names.
                let state = ChannelState::snapshot_with_names;
                let image = positioned.map(|(position, channel)| channel.take(position, next_image, state).0);
                image.map_or(Taken::Early, Taken::Image)
            });
        }
        for channel in channels {
            if let Some(readiness) = channel.update_readiness() {
                readiness.log(&channel.name);
            }
        }
        more
    }
}

impl Readiness {
    fn log(self, channel: &str) {
        match self {
            Self::Ready => tracing::info!(channel, "snapshots of the channel are available"),
            Self::Reading | Self::Empty => {
                let reason = if self == Self::Empty { "nothing is in its log" } else { "its log is being read" };
                tracing::info!(channel, reason, "no snapshot of the channel yet");
            }
            Self::Suspect => tracing::warn!(
                channel,
                reason = "its books are suspect",
                "no sound snapshot of the channel: the snapshot group sends none, and requested ones are marked suspect"
            ),
        }
    }
}

impl TakenChannel {
    /// Returns the readiness if it has changed.
    fn update_readiness(&mut self) -> Option<Readiness> {
        self.has_read |= !self.is_behind;
        let readiness = match self.state.position() {
            _ if self.is_suspect => Readiness::Suspect,
            _ if !self.has_read => Readiness::Reading,
            Some(_) => Readiness::Ready,
            None => Readiness::Empty,
        };
        (std::mem::replace(&mut self.readiness, readiness) != readiness).then_some(readiness)
    }

    /// An image of the state, which is at that position, and how long it took, ns.
    fn take(
        &mut self,
        position: (SessionBytes, u64),
        next_image: &mut u32,
        state: fn(&ChannelState) -> StateSnapshot,
    ) -> (Image, u64) {
        *next_image = next_image.wrapping_add(1).max(1);
        let begin = mono_now();
        let image = Image::new(*next_image, position, state(&self.state), self.record_bytes_max);
        let duration_ns = mono_now().since(begin);
        self.count(&image.totals, duration_ns);
        (image, duration_ns)
    }

    fn count(&mut self, totals: &SnapshotImage, duration_ns: u64) {
        self.counts = SnapshotsTaken {
            snapshots_taken: self.counts.snapshots_taken + 1,
            snapshots_suspect: self.counts.snapshots_suspect + u64::from(totals.is_suspect),
            snapshot_duration_last_ns: duration_ns,
            snapshot_record_bytes: totals.record_bytes,
            snapshot_orders: totals.order_count,
        };
        self.counters.publish(&self.counts);
        self.is_suspect = totals.is_suspect;
    }
}

/// Pause of the snapshot thread when the logs have nothing new: a fraction of a subscriber's timeout.
pub(crate) const TURN_INTERVAL: Duration = Duration::from_millis(5);
/// Entries of a log read in one turn.
const FOLLOW_ENTRIES_MAX: usize = 16_384;
/// Images kept per channel.
const IMAGES_MAX: usize = 2;
/// A request for any image gets one that is no older.
const IMAGE_FRESH_NS: u64 = 2_000_000_000;
/// Somebody still requests chunks of an image that was used so recently.
const IMAGE_IN_USE_NS: u64 = 2_000_000_000;
/// An image that nobody has used for this long is discarded.
const IMAGE_IDLE_NS: u64 = 10_000_000_000;
const _: () = assert!(IMAGE_IN_USE_NS <= IMAGE_IDLE_NS && IMAGE_FRESH_NS <= IMAGE_IDLE_NS);
