//! The receiving thread: waits, receives, hands over.

use std::{collections::VecDeque, io, os::fd::RawFd};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    clock::mono_now,
    handle::{ChannelIndex, Handle, LineSet},
};

use super::{
    QueuedSet, SocketChange,
    queue::{Work, WorkItem, WorkQueue},
};
use crate::{
    dispatch::{
        ChannelHandler, WaitPolicy,
        pool_state::PoolState,
        roles::{Role, ThreadGauges},
    },
    handle_set::{Event, HandleSet, ThreadIo, Wait},
};

/// What the receiving thread keeps between its turns.
pub(super) struct Receiver<'p, S: HandleSet, H: ChannelHandler> {
    shared: &'p PoolState<QueuedSet<S>, H>,
    gauges: &'p ThreadGauges,
    io: S::Io,
    events: Vec<Event>,
    /// By channel index.
    inputs: Vec<ChannelInput>,
    /// Channels that have something to hand over.
    backlog: VecDeque<usize>,
    /// A channel of the backlog can be served without waiting for a worker.
    can_continue: bool,
    /// Time at which the last wait returned events.
    now: MonoNs,
    /// Time since which the thread has polled without an event.
    idle_since: Option<MonoNs>,
}

/// What the receiving thread knows of a channel.
struct ChannelInput {
    /// Sockets, by line. None for lines without one.
    sockets: [Option<RawFd>; Line::COUNT_MAX],
    /// Lines that may hold datagrams.
    ready: LineSet,
    is_due: bool,
    has_messages: bool,
    is_in_backlog: bool,
    /// The queue was full when the channel was last served.
    is_blocked: bool,
}

enum Served {
    Done,
    /// The quota is used up.
    More,
    QueueFull,
}

impl<'p, S: HandleSet, H: ChannelHandler> Receiver<'p, S, H> {
    pub(super) fn new(shared: &'p PoolState<QueuedSet<S>, H>, io: S::Io) -> Self {
        let input = |_| ChannelInput {
            sockets: [None; Line::COUNT_MAX],
            ready: LineSet::default(),
            is_due: false,
            has_messages: false,
            is_in_backlog: false,
            is_blocked: false,
        };
        Self {
            shared,
            gauges: &shared.gauges[0],
            io,
            events: Vec::with_capacity(shared.settings.batch_events_max),
            inputs: (0..shared.slots.len()).map(input).collect(),
            backlog: VecDeque::with_capacity(shared.slots.len()),
            can_continue: false,
            now: mono_now(),
            idle_since: None,
        }
    }

    /// Runs until the pool stops.
    pub(super) fn run(&mut self) {
        self.gauges.set_role(Role::Leader);
        while !self.shared.token.is_stopping() {
            if let Err(error) = self.wait() {
                return self.shared.stop_with(format!("thread 0 cannot wait on its handle set: {error}"));
            }
            self.apply_socket_changes();
            self.note_events();
            self.serve_backlog();
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let settings = &self.shared.settings;
        let spins = match settings.wait {
            WaitPolicy::Spin => true,
            WaitPolicy::Park => false,
            WaitPolicy::SpinThenPark => self.idle_since.is_none_or(|since| self.now.since(since) < settings.spin_ns),
        };
        let wait = if spins || self.can_continue { Wait::Poll } else { Wait::Block };
        self.events.clear();
        self.gauges.mark_idle();
        self.io.wait(wait, settings.batch_events_max, &mut self.events)?;
        if !self.events.is_empty() {
            self.gauges.record_turn(self.events.len());
            self.idle_since = None;
            self.now = mono_now();
        } else if wait == Wait::Block {
            self.gauges.empty_waits.add(1);
        } else if settings.wait == WaitPolicy::SpinThenPark {
            self.now = mono_now();
            self.idle_since.get_or_insert(self.now);
        }
        Ok(())
    }

    fn apply_socket_changes(&mut self) {
        while let Some(change) = self.shared.set.socket_changes.pop() {
            match change {
                SocketChange::Add { handle, raw_fd } => {
                    if let Some(socket) = self.socket_of(handle) {
                        *socket = Some(raw_fd);
                    }
                }
                SocketChange::Remove { raw_fd } => {
                    let all = self.inputs.iter_mut().flat_map(|input| &mut input.sockets);
                    all.filter(|socket| **socket == Some(raw_fd)).for_each(|socket| *socket = None);
                }
            }
        }
    }

    fn socket_of(&mut self, handle: Handle) -> Option<&mut Option<RawFd>> {
        let input = self.inputs.get_mut(usize::try_from(handle.channel.0).ok()?)?;
        input.sockets.get_mut(usize::from(handle.line.0))
    }

    fn note_events(&mut self) {
        for position in 0..self.events.len() {
            match self.events[position] {
                Event::Ready(handle) => self.note(handle.channel.0, |input| {
                    input.ready = input.ready.with(handle.line);
                }),
                Event::Timer => {
                    self.gauges.timer_expiries.add(1);
                    self.note_expired();
                }
                Event::Wake => {
                    self.gauges.wakes.add(1);
                    let shared = self.shared;
                    for (channel, slot) in (0..).zip(&shared.slots) {
                        if !slot.inbox.is_empty() {
                            self.note(channel, |input| input.has_messages = true);
                        }
                    }
                }
                // Such a set is refused at the start.
                Event::Provided(_) => self.gauges.orphan_events.add(1),
            }
        }
    }

    fn note_expired(&mut self) {
        let shared = self.shared;
        let deadlines = shared.slots.iter().map(|slot| &slot.deadline).enumerate();
        let now = self.now;
        let due = |index: usize| {
            self.note(u32::try_from(index).unwrap_or(u32::MAX), |input| {
                input.is_due = true;
                // Everything received before the deadline is handed over before it.
                input.ready = LineSet(u8::MAX);
            });
        };
        shared.deadline_timer.expire(now, deadlines, due, |at| shared.set.set_timer(Some(at)));
    }

    fn note(&mut self, channel: u32, change: impl FnOnce(&mut ChannelInput)) {
        let index = usize::try_from(channel).unwrap_or(usize::MAX);
        let Some(input) = self.inputs.get_mut(index) else { return self.gauges.orphan_events.add(1) };
        change(input);
        if !std::mem::replace(&mut input.is_in_backlog, true) {
            self.backlog.push_back(index);
        }
    }

    /// Gives each channel of the backlog one turn.
    fn serve_backlog(&mut self) {
        self.can_continue = false;
        for _ in 0..self.backlog.len() {
            let Some(index) = self.backlog.pop_front() else { return };
            let queue = &self.shared.set.queues[index % self.shared.set.queues.len()];
            let served = match self.serve(index, queue) {
                // The worker wakes this thread. If it has made room meanwhile, the next turn serves the channel.
                Served::QueueFull if queue.request_wake() => Served::QueueFull,
                Served::QueueFull => Served::More,
                served => served,
            };
            let input = &mut self.inputs[index];
            match served {
                Served::Done => {
                    input.is_in_backlog = false;
                    input.is_blocked = false;
                    continue;
                }
                Served::More => {
                    input.is_blocked = false;
                    self.can_continue = true;
                }
                Served::QueueFull => {
                    if !std::mem::replace(&mut input.is_blocked, true) {
                        self.gauges.queue_full.add(1);
                    }
                }
            }
            self.backlog.push_back(index);
        }
    }

    /// Hands over what a channel has: messages, one batch of datagrams, and once its lines are short, its deadline.
    fn serve(&mut self, index: usize, queue: &WorkQueue) -> Served {
        let (shared, found_at) = (self.shared, self.now);
        let slot = &shared.slots[index];
        let input = &mut self.inputs[index];
        self.gauges.mark_busy();
        if slot.failure.is_set() {
            if input.has_messages || (!input.ready.is_empty() && !input.is_due) {
                self.gauges.orphan_events.add(1);
            }
            input.has_messages = false;
            input.ready = LineSet::default();
        }
        // A pool has far fewer channels than `u32::MAX`.
        let channel = ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX));
        let hand_over = |work| queue.push(WorkItem { channel, found_at, work });
        if input.has_messages {
            if !queue.has_room() {
                return Served::QueueFull;
            }
            input.has_messages = false;
            hand_over(Work::Messages);
        }
        let mut sockets = [(Line::A, -1); Line::COUNT_MAX];
        let mut count = 0;
        for (line, raw_fd) in (0..).map(Line).zip(&input.sockets) {
            if let (true, Some(raw_fd)) = (input.ready.contains(line), raw_fd) {
                sockets[count] = (line, *raw_fd);
                count += 1;
            }
        }
        input.ready = LineSet::default();
        if count > 0 {
            let lines = sockets[..count].iter().fold(LineSet::default(), |lines, (line, _)| lines.with(*line));
            let Some(mut batch) = queue.take_free() else {
                input.ready = lines;
                return Served::QueueFull;
            };
            batch.clear_with_limit(shared.settings.quota_packets);
            match self.io.receive(&sockets[..count], &mut batch) {
                Ok(unfinished) if batch.is_empty() => {
                    queue.give_back(batch);
                    input.ready = unfinished;
                }
                Ok(unfinished) => {
                    hand_over(Work::Datagrams(batch));
                    input.ready = unfinished;
                }
                Err(error) => {
                    queue.give_back(batch);
                    hand_over(Work::ReceiveFailed(error));
                }
            }
            if !input.ready.is_empty() {
                self.gauges.quota_hits.add(1);
                return Served::More;
            }
        }
        if input.is_due {
            if !queue.has_room() {
                return Served::QueueFull;
            }
            input.is_due = false;
            hand_over(Work::Deadline);
        }
        Served::Done
    }
}
