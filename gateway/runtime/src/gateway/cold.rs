//! The cold threads beside the pools, which may block: log maintenance, state on disk, drop counters, memberships, and
//! [`retransmission_threads`](super::retransmission_threads).

use std::{
    collections::BTreeMap,
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_queue::ArrayQueue;
use mdgw_feeds::{
    channel::KnownSession,
    identity::{ChannelId, GroupId, Line},
    time::MonoNs,
};
use mdgw_pair::standby::KnownEpochs;
use mdgw_sys::{
    alarm::Alarm,
    clock::{mono_now, unix_now},
    drops::{ReceiveBufferUse, SocketDrops},
    listener_counters::ListenerCounters,
    sockets::{InterfaceDependents, MembershipWatch},
    task_queue::TaskQueue,
};
use mdgw_telemetry::counters::Registry;
use socket2::Socket;

use super::{
    GatewayError,
    log_maintenance::MaintainedLog,
    retransmission_threads::{Retransmission, SnapshotThread},
    wiring::named_handle,
};
use crate::{
    config::{Resolved, resolved::RetransmissionLimits},
    retransmit::{ServedChannel, snapshot_group::SnapshotGroup},
    state_file::{ResumePosition, StateError, StateFile, StoredChannel},
};

/// Inputs of the cold threads.
pub(super) struct ColdParts<'c> {
    pub(super) config: &'c Resolved,
    pub(super) state: StateFile,
    pub(super) sessions: Arc<ArrayQueue<(ChannelId, KnownSession)>>,
    pub(super) logs: Vec<MaintainedLog>,
    pub(super) watched: InterfaceDependents,
    pub(super) drops: SocketDrops,
    pub(super) served: Vec<ServedChannel>,
    pub(super) snapshot_groups: Vec<SnapshotGroup>,
    pub(super) epochs: Vec<(GroupId, Arc<KnownEpochs>)>,
    pub(super) registry: &'c Arc<Registry>,
}

/// The cold threads of a gateway that do not belong to an election, with what stops them.
#[derive(Debug)]
pub(super) struct ColdThreads {
    stop: Arc<AtomicBool>,
    maintenance: Option<JoinHandle<Result<StateFile, StateError>>>,
    tasks: TaskQueue<MaintenanceTasks>,
    kernel_drops: KernelDrops,
    memberships: Option<MembershipWatch>,
    retransmission: Option<Retransmission>,
    snapshots: Option<SnapshotThread>,
}

impl ColdThreads {
    pub(super) fn start(parts: ColdParts<'_>) -> Result<Self, GatewayError> {
        let ColdParts { config, state, sessions, logs, watched, drops, served, snapshot_groups, epochs, registry } =
            parts;
        let stop = Arc::new(AtomicBool::new(false));
        let kernel_drops = KernelDrops::default();
        let memberships = if watched.memberships.is_empty() && watched.egresses.is_empty() {
            None
        } else {
            let watch = MembershipWatch::start(watched, MembershipWatch::INTERVAL);
            Some(watch.map_err(GatewayError::io("watch multicast memberships"))?)
        };
        let (kernel_drops_here, drop_log) = (kernel_drops.clone(), DropLog::of(config));
        let maintenance = MaintenanceTasks {
            state,
            sessions,
            logs,
            drops,
            kernel_drops: kernel_drops_here,
            drop_log,
            epochs,
            unsaved_sessions: BTreeMap::new(),
            is_state_failing: false,
        };
        let (thread_stop, tasks) = (Arc::clone(&stop), TaskQueue::default());
        let thread_tasks = tasks.clone();
        let maintenance = std::thread::Builder::new()
            .name("mdgw-maint".to_owned())
            .spawn(move || maintenance.run(&thread_stop, &thread_tasks))
            .map_err(GatewayError::io("start the log maintenance thread"))?;
        let maintenance = Some(maintenance);
        let mut cold =
            Self { stop, maintenance, tasks, kernel_drops, memberships, retransmission: None, snapshots: None };
        cold.snapshots = SnapshotThread::start(config, &served, snapshot_groups, registry, &cold.stop)?;
        if let Some(retransmission) = &config.retransmission {
            let snapshots = cold.snapshots.as_ref();
            cold.retransmission = Some(Retransmission::start(retransmission, served, snapshots, registry, &cold.stop)?);
        }
        Ok(cold)
    }

    /// Sum of the datagrams that the kernel dropped, for snapshots.
    pub(super) fn kernel_drops(&self) -> &KernelDrops {
        &self.kernel_drops
    }

    /// What the retransmission service has received and refused, if there is one.
    pub(super) fn retransmission_counters(&self) -> Option<&Arc<ListenerCounters>> {
        self.retransmission.as_ref().map(Retransmission::listener_counters)
    }

    pub(super) fn set_retransmission_limits(&self, limits: RetransmissionLimits) {
        if let Some(running) = &self.retransmission {
            running.set_limits(limits);
        }
    }

    /// What the state file has of these channels. `None` if the maintenance thread does not answer.
    pub(super) fn stored(&self, channels: Vec<ChannelId>) -> Option<BTreeMap<ChannelId, StoredChannel>> {
        self.tasks.run(
            || {},
            move |maintenance| {
                // A session that has just begun may still be in the queue.
                maintenance.persist_state();
                channels.into_iter().map(|channel| (channel, maintenance.stored(channel))).collect()
            },
        )
    }

    /// Takes snapshots of one more channel and answers requests for it, if the gateway does so.
    ///
    /// # Errors
    /// When the log cannot be read, or a thread does not answer.
    pub(super) fn serve(&self, served: ServedChannel) -> Result<(), String> {
        self.snapshots.as_ref().map_or(Ok(()), |snapshots| snapshots.add(&served))?;
        self.retransmission.as_ref().map_or(Ok(()), |running| running.add(served))
    }

    /// Maintains the log of one more channel, and watches its sockets.
    pub(super) fn add(
        &mut self,
        (id, name): (ChannelId, String),
        log: MaintainedLog,
        sockets: Vec<(Line, Arc<Socket>)>,
        dependents: InterfaceDependents,
    ) {
        self.maintain(move |maintenance| {
            maintenance.drop_log.names.insert(id.0.into(), name);
            maintenance.logs.push(log);
            for (line, socket) in sockets {
                maintenance.drops.add(named_handle(id, line), socket);
            }
        });
        self.watch(dependents);
    }

    /// Watches these memberships and outputs too.
    pub(super) fn watch(&mut self, dependents: InterfaceDependents) {
        if let Some(memberships) = &self.memberships {
            return memberships.add(dependents);
        }
        if dependents.memberships.is_empty() && dependents.egresses.is_empty() {
            return;
        }
        match MembershipWatch::start(dependents, MembershipWatch::INTERVAL) {
            Ok(watch) => self.memberships = Some(watch),
            Err(error) => tracing::error!(%error, "cannot watch multicast memberships"),
        }
    }

    /// Watches these sockets no longer, so that they can close.
    pub(super) fn unwatch(&self, sockets: Vec<RawFd>) {
        if let Some(memberships) = &self.memberships {
            memberships.remove(sockets);
        }
    }

    /// Lets go of a channel whose pipeline has ended, and stores its position for the next time that it is added or the
    /// gateway starts. Its log's files stay.
    pub(super) fn remove(&self, channel: ChannelId, sockets: Vec<Arc<Socket>>, position: Option<ResumePosition>) {
        if let Some(running) = &self.retransmission {
            running.remove(channel);
        }
        if let Some(snapshots) = &self.snapshots {
            snapshots.remove(channel);
        }
        self.maintain(move |maintenance| {
            maintenance.read_drops();
            maintenance.logs.retain(|log| log.channel != channel);
            sockets.iter().for_each(|socket| maintenance.drops.remove(socket));
            let recorded = maintenance
                .persist_sessions()
                .and_then(|()| maintenance.state.record_shutdown(position.map(|position| (channel, position))));
            if let Err(error) = recorded {
                tracing::error!(channel_id = channel.0, %error, "cannot write the position of a removed channel to the state file");
            }
        });
    }

    fn maintain(&self, task: impl FnOnce(&mut MaintenanceTasks) + Send + 'static) {
        if !self.tasks.run_even_late(|| {}, task) {
            tracing::error!("the log maintenance thread does not answer: a change of channels waits for it");
        }
    }

    /// Stops all threads and stores the channels' `positions` for the next start.
    pub(super) fn stop(mut self, positions: Vec<(ChannelId, ResumePosition)>) -> Result<(), GatewayError> {
        self.stop.store(true, Ordering::Release);
        drop(self.memberships.take());
        if let Some(retransmission) = self.retransmission.take() {
            retransmission.join();
        }
        if let Some(snapshots) = self.snapshots.take() {
            snapshots.join();
        }
        let Some(maintenance) = self.maintenance.take() else { return Ok(()) };
        let mut state = maintenance.join().map_err(|_| GatewayError::Io {
            act: "stop the log maintenance thread".to_owned(),
            source: std::io::Error::other("it panicked"),
        })??;
        Ok(state.record_shutdown(positions)?)
    }
}

impl Drop for ColdThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Datagrams that the kernel dropped because a receive buffer was full, summed by the maintenance thread, and the highest use of a
/// receive buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelDrops(Arc<ReceiveCounts>);

#[derive(Debug, Default)]
struct ReceiveCounts {
    dropped: AtomicU64,
    /// Used bytes in the upper half, the limit in the lower half.
    highest_use: AtomicU64,
}

impl KernelDrops {
    /// The sum over all sockets.
    pub(super) fn total(&self) -> u64 {
        // Relaxed: a count orders nothing else.
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// The fullest receive buffer so far.
    pub(super) fn highest_use(&self) -> ReceiveBufferUse {
        let [used_bytes, limit_bytes] = halves(self.0.highest_use.load(Ordering::Relaxed));
        ReceiveBufferUse { used_bytes, limit_bytes }
    }

    fn add(&self, count: u64) {
        self.0.dropped.fetch_add(count, Ordering::Relaxed);
    }

    fn set_highest_use(&self, ReceiveBufferUse { used_bytes, limit_bytes }: ReceiveBufferUse) {
        self.0.highest_use.store(u64::from(used_bytes) << 32 | u64::from(limit_bytes), Ordering::Relaxed);
    }
}

/// Upper and lower half.
#[allow(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

struct MaintenanceTasks {
    state: StateFile,
    sessions: Arc<ArrayQueue<(ChannelId, KnownSession)>>,
    logs: Vec<MaintainedLog>,
    drops: SocketDrops,
    kernel_drops: KernelDrops,
    drop_log: DropLog,
    /// Known epochs of each group. The highest one of each group is stored in the state file.
    epochs: Vec<(GroupId, Arc<KnownEpochs>)>,
    /// Sessions that the state file does not have yet.
    unsaved_sessions: BTreeMap<ChannelId, KnownSession>,
    /// Whether the state file could not be written when that was tried last.
    is_state_failing: bool,
}

/// Interval of the maintenance tasks. A segment takes at least tens of milliseconds to fill, and one segment is ready
/// ahead.
const TASK_INTERVAL: Duration = Duration::from_millis(2);
/// Drop counters are read once in this many turns.
const TURNS_PER_DROP_READING: u32 = 50;

impl MaintenanceTasks {
    /// Returns the state file when it stops.
    fn run(mut self, stop: &AtomicBool, tasks: &TaskQueue<Self>) -> Result<StateFile, StateError> {
        let mut turn = 0_u32;
        while !stop.load(Ordering::Acquire) {
            tasks.run_pending(&mut self);
            let now_ns = unix_now().0;
            for log in &mut self.logs {
                log.turn(now_ns);
            }
            if !self.sessions.is_empty() {
                self.persist_state();
            }
            if turn.is_multiple_of(TURNS_PER_DROP_READING) {
                self.read_drops();
                self.persist_state();
            }
            turn = turn.wrapping_add(1);
            std::thread::sleep(TASK_INTERVAL);
        }
        self.read_drops();
        self.drop_log.report_all();
        self.persist_epochs()?;
        self.persist_sessions()?;
        Ok(self.state)
    }

    /// Stores the highest known epoch of each group. A peer's epoch may be above this gateway's, which must not publish
    /// below it after a restart. An epoch of another group says nothing: a gateway that knows an epoch above those of the
    /// leader's record cannot open as its designated successor.
    fn persist_epochs(&mut self) -> Result<(), StateError> {
        self.state.record_epochs(self.epochs.iter().map(|(group, epochs)| (*group, epochs.highest())))
    }

    /// What the state file has of a channel, or shall have as soon as it can be written.
    fn stored(&self, channel: ChannelId) -> StoredChannel {
        match self.unsaved_sessions.get(&channel) {
            Some(unsaved) => StoredChannel { session: Some(*unsaved), shutdown_position: None },
            None => self.state.stored(channel),
        }
    }

    /// Stores what the state file lacks. Publishing continues if that fails: after a restart the gateway may count session restarts,
    /// and know epochs, from the older state on disk.
    fn persist_state(&mut self) {
        let mut is_failing = false;
        for (what, stored) in [("restart counts", self.persist_sessions()), ("epochs", self.persist_epochs())] {
            if let Err(error) = stored {
                tracing::error!(alarm = Alarm::StateFileFailing.name(), what, %error, "cannot write the state file");
                is_failing = true;
            }
        }
        if std::mem::replace(&mut self.is_state_failing, is_failing) && !is_failing {
            tracing::info!(ends = Alarm::StateFileFailing.name(), "the state file is writable again");
        }
    }

    fn persist_sessions(&mut self) -> Result<(), StateError> {
        while let Some((channel, known)) = self.sessions.pop() {
            let stored = self.unsaved_sessions.insert(channel, known).or_else(|| self.state.session(channel));
            if stored.is_none_or(|stored| stored.session != known.session) {
                tracing::info!(channel_id = channel.0, session = %known.session, "session");
            }
        }
        // What cannot be written is tried again in the next turn.
        while let Some(entry) = self.unsaved_sessions.first_entry() {
            self.state.set_session(*entry.key(), *entry.get())?;
            entry.remove();
        }
        Ok(())
    }

    fn read_drops(&mut self) {
        let (kernel_drops, drop_log) = (&self.kernel_drops, &mut self.drop_log);
        let read = self.drops.read(|handle, dropped| {
            kernel_drops.add(u64::from(dropped));
            drop_log.add((handle.channel.0, handle.line.0), u64::from(dropped));
        });
        drop_log.report_due(mono_now());
        kernel_drops.set_highest_use(self.drops.highest_use());
        if let Err(error) = read {
            tracing::warn!(%error, "cannot read a kernel drop counter");
        }
    }
}

/// Logs what the kernel has dropped: at once, and then at most one line a second for each line of a channel, with the sum. A
/// flood that fills many sockets would otherwise fill the log too.
#[derive(Debug, Default)]
struct DropLog {
    /// Names of the channels by their ids, which their sockets' handles have. A removed channel keeps its name: its last drops
    /// may be read later.
    names: BTreeMap<u32, String>,
    /// By channel and line.
    sockets: BTreeMap<(u32, u8), UnreportedDrops>,
}

#[derive(Clone, Copy, Debug, Default)]
struct UnreportedDrops {
    dropped: u64,
    next_at: MonoNs,
}

impl DropLog {
    fn of(config: &Resolved) -> Self {
        let names = config.channels.iter().map(|channel| (channel.id.0.into(), channel.name.clone())).collect();
        Self { names, sockets: BTreeMap::new() }
    }

    fn add(&mut self, socket: (u32, u8), dropped: u64) {
        self.sockets.entry(socket).or_default().dropped += dropped;
    }

    fn report_due(&mut self, now: MonoNs) {
        for ((channel, line), dropped) in self.take_due(now) {
            let line = Line(line);
            let name = self.names.get(&channel);
            tracing::warn!(
                alarm = Alarm::KernelDrops.name(),
                channel = name.map_or("", String::as_str),
                %line,
                dropped,
                "the kernel dropped datagrams: receive buffer full"
            );
        }
    }

    /// What is due, and its number.
    fn take_due(&mut self, now: MonoNs) -> Vec<((u32, u8), u64)> {
        let due = self.sockets.iter_mut().filter(|(_, drops)| drops.dropped > 0 && now >= drops.next_at);
        due.map(|(socket, drops)| {
            drops.next_at = now.plus(DROP_LOG_INTERVAL_NS);
            (*socket, std::mem::take(&mut drops.dropped))
        })
        .collect()
    }

    /// The rest, when the thread ends.
    fn report_all(&mut self) {
        self.report_due(MonoNs(u64::MAX));
    }
}

/// Shortest time between two lines about one socket, ns.
const DROP_LOG_INTERVAL_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::fs;

    use mdgw_feeds::identity::Epoch;

    use super::*;
    use crate::state_file::tests::known;

    #[test]
    fn drops_of_a_flood_are_logged_once_a_second_for_each_socket_and_none_is_left_out() {
        let mut log = DropLog::default();
        let (mut lines, mut dropped) = (0, 0);
        for reading in 0..100_u64 {
            for socket in [(1, 0), (1, 1)] {
                log.add(socket, 10);
            }
            let due = log.take_due(MonoNs(1 + reading * 100_000_000));
            lines += due.len();
            dropped += due.iter().map(|(_, dropped)| dropped).sum::<u64>();
        }
        assert_eq!(lines, 20, "ten seconds, two sockets");
        dropped += log.take_due(MonoNs(u64::MAX)).iter().map(|(_, dropped)| dropped).sum::<u64>();
        assert_eq!(dropped, 2_000);
        assert_eq!(log.take_due(MonoNs(u64::MAX)), []);
    }

    /// A write that failed is tried again, and the session is in the file as soon as there is room.
    #[test]
    fn a_session_that_could_not_be_stored_is_stored_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let mut tasks = maintenance(StateFile::open(&path).unwrap(), Vec::new());
        assert!(tasks.sessions.push((ChannelId(3), known(2))).is_ok());
        // The new state is made beside the old one: a folder in its place refuses that, for root too.
        fs::create_dir(path.with_file_name("state.json.new")).unwrap();
        for _ in 0..2 {
            tasks.persist_state();
            assert!(tasks.is_state_failing && tasks.state.session(ChannelId(3)).is_none());
        }
        fs::remove_dir(path.with_file_name("state.json.new")).unwrap();
        tasks.persist_state();
        assert!(!tasks.is_state_failing && tasks.unsaved_sessions.is_empty());
        drop(tasks);
        assert_eq!(StateFile::open(&path).unwrap().session(ChannelId(3)), Some(known(2)));
    }

    fn maintenance(state: StateFile, epochs: Vec<(GroupId, Arc<KnownEpochs>)>) -> MaintenanceTasks {
        MaintenanceTasks {
            state,
            sessions: Arc::new(ArrayQueue::new(1)),
            logs: Vec::new(),
            drops: SocketDrops::default(),
            kernel_drops: KernelDrops::default(),
            drop_log: DropLog::default(),
            epochs,
            unsaved_sessions: BTreeMap::new(),
            is_state_failing: false,
        }
    }

    #[test]
    fn each_groups_highest_epoch_is_stored_and_counts_for_no_other_group() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let known = |group, count| (GroupId(group), Arc::new(KnownEpochs::new(Epoch::new(count, 1), 1_000)));
        let groups = vec![known(1, 10), known(2, 5)];
        let second = Arc::clone(&groups[1].1);
        let mut tasks = maintenance(StateFile::open(&path).unwrap(), groups);
        tasks.persist_epochs().unwrap();
        second.observe(Epoch::new(6, 2)).unwrap();
        tasks.persist_epochs().unwrap();
        drop(tasks);
        let state = StateFile::open(&path).unwrap();
        assert_eq!([1, 2, 3].map(|group| state.group_epoch(GroupId(group)).count()), [10, 6, 0]);
    }
}
