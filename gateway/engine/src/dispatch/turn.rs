//! One turn of the leader, and the work of a thread between turns.

use std::{
    collections::VecDeque,
    io,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering::Relaxed,
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::{
    clock::{WallFromMono, mono_now},
    handle::{ChannelIndex, Handle, LineSet},
};

use super::{
    claim::{HeldClaim, PendingEvents},
    pool_state::{ChannelSlot, PoolState, RunQueueEntry, panic_text},
    roles::{Role, ThreadGauges},
    token::{FollowOptions, Promoted, TakeOutcome},
};
use crate::{
    dispatch::{ChannelHandler, FailReason, Failure, PromotionPolicy, TurnContext, WaitPolicy},
    handle_set::{Event, HandleSet, ThreadIo, Wait},
};

/// One thread of a pool.
pub(super) struct Worker<'p, S: HandleSet, H: ChannelHandler> {
    shared: &'p PoolState<S, H>,
    gauges: &'p ThreadGauges,
    thread: usize,
    io: S::Io,
    local: H::Local,
    wall: WallFromMono,
    /// Time at which the present work arrived.
    now: MonoNs,
    events: Vec<Event>,
    claimed: VecDeque<Claimed<'p, H>>,
    /// Time since which the leader has polled without an event.
    idle_since: Option<MonoNs>,
    /// The timer expired, and the datagrams received before it are not all delivered yet (sets that deliver data).
    is_timer_pending: bool,
    /// Provided datagrams belong to a channel in the run queue; they must be processed before the next wait.
    is_provided_pending: bool,
    /// Running mean of the time for one claimed channel, ns.
    claim_ns_mean: u64,
}

struct Claimed<'p, H> {
    index: usize,
    held: HeldClaim<'p, H>,
}

impl<'p, S: HandleSet, H: ChannelHandler> Worker<'p, S, H> {
    /// The thread with that index in the pool, and that number in its dispatch.
    pub(super) fn new(shared: &'p PoolState<S, H>, index: usize, number: usize, io: S::Io, local: H::Local) -> Self {
        Self {
            shared,
            gauges: &shared.gauges[index],
            thread: number,
            io,
            local,
            wall: WallFromMono::new(),
            now: mono_now(),
            events: Vec::with_capacity(shared.settings.batch_events_max),
            // A channel is claimed at most once at a time, so this capacity suffices.
            claimed: VecDeque::with_capacity(shared.slots.len()),
            idle_since: None,
            is_timer_pending: false,
            is_provided_pending: false,
            claim_ns_mean: 0,
        }
    }

    pub(super) fn io(&mut self) -> &mut S::Io {
        &mut self.io
    }

    /// Processes what another thread has found for a channel, in the wait that returned at `found_at`.
    pub(super) fn process_found(&mut self, channel: ChannelIndex, pending: PendingEvents, found_at: MonoNs) {
        let begun_at = mono_now();
        self.gauges.set_role(Role::Processing);
        self.now = found_at;
        self.post(channel, pending);
        while let Some(claimed) = self.claimed.pop_front() {
            self.process(claimed);
        }
        self.gauges.record_processing(mono_now().since(begun_at));
    }

    /// Runs until the pool stops.
    pub(super) fn run(&mut self) {
        loop {
            let take = match self.shared.token.try_take() {
                TakeOutcome::AlreadyHeld => match self.shared.run_queue.pop() {
                    Some(entry) => {
                        self.run_deferred(entry);
                        continue;
                    }
                    None => self.follow(),
                },
                take => take,
            };
            if take == TakeOutcome::Stopping || self.lead().is_break() {
                return;
            }
        }
    }

    /// Leads, turn by turn, until another thread may.
    fn lead(&mut self) -> ControlFlow<()> {
        self.gauges.set_role(Role::Leader);
        self.end_saturation();
        self.idle_since = None;
        while !self.shared.token.is_stopping() {
            match self.wait() {
                Ok(()) => self.claim(),
                Err(error) => return self.fail_pool("wait on its handle set", &error),
            }
            if self.claimed.is_empty() {
                continue;
            }
            if self.should_promote_first() {
                self.promote()?;
                self.process_claimed();
                return ControlFlow::Continue(());
            }
            if self.process_while_leading()? == LeadState::Released {
                return ControlFlow::Continue(());
            }
        }
        ControlFlow::Break(())
    }

    /// Waits for events; reads the clock after the wait.
    fn wait(&mut self) -> io::Result<()> {
        let wait = if self.must_poll() { Wait::Poll } else { Wait::Block };
        self.events.clear();
        self.gauges.mark_idle();
        self.io.wait(wait, self.shared.settings.batch_events_max, &mut self.events)?;
        if !self.events.is_empty() {
            self.gauges.record_turn(self.events.len());
            self.idle_since = None;
            self.now = mono_now();
        } else if wait == Wait::Block {
            self.gauges.empty_waits.add(1);
        } else if self.shared.settings.wait == WaitPolicy::SpinThenPark {
            self.now = mono_now();
            self.idle_since.get_or_insert(self.now);
        }
        Ok(())
    }

    /// Whether the leader must not sleep: there is work without a coming event, or the leader still spins.
    fn must_poll(&self) -> bool {
        let spins = match self.shared.settings.wait {
            WaitPolicy::Spin => true,
            WaitPolicy::Park => false,
            WaitPolicy::SpinThenPark => {
                self.idle_since.is_none_or(|since| self.now.since(since) < self.shared.settings.spin_ns)
            }
        };
        spins || self.is_timer_pending || !self.shared.run_queue.is_empty()
    }

    /// Claims the channels of the events, and one from the run queue.
    fn claim(&mut self) {
        let event_count = self.events.len();
        for position in 0..event_count {
            match self.events[position] {
                Event::Ready(handle) => {
                    self.post(handle.channel, PendingEvents::ready(LineSet::default().with(handle.line)));
                }
                Event::Provided(handle) => {
                    let claimed =
                        self.post(handle.channel, PendingEvents::provided(LineSet::default().with(handle.line)));
                    self.is_provided_pending |= !claimed;
                }
                Event::Timer => {
                    self.gauges.timer_expiries.add(1);
                    self.is_timer_pending = true;
                }
                Event::Wake => {
                    self.gauges.wakes.add(1);
                    self.claim_with_messages();
                }
            }
        }
        // A set that delivers data does so only in the wait. So everything before a deadline is drained once a wait
        // came back short. Sockets can be read at any time.
        let all_received = !self.shared.settings.delivers_data || event_count < self.shared.settings.batch_events_max;
        if self.is_timer_pending && all_received {
            self.is_timer_pending = false;
            self.claim_expired();
        }
        if let Some(RunQueueEntry { index, deferred }) = self.shared.run_queue.pop() {
            if event_count == 0 {
                self.now = mono_now();
            }
            let held = self.shared.slots[index].claim.resume(deferred);
            self.claimed.push_back(Claimed { index, held });
        }
    }

    /// Claims a channel, or leaves the events to its holder. Returns whether this thread holds it.
    fn post(&mut self, channel: ChannelIndex, pending: PendingEvents) -> bool {
        let (Ok(index), Some(slot)) = (usize::try_from(channel.0), self.shared.slot(channel)) else {
            self.gauges.orphan_events.add(1);
            return true;
        };
        if slot.failure.is_set() && pending != PendingEvents::DEADLINE {
            self.gauges.orphan_events.add(1);
            return true;
        }
        if let Some(held) = slot.claim.post(pending) {
            self.claimed.push_back(Claimed { index, held });
            return true;
        }
        let is_own_claim = self.claimed.iter().any(|claimed| claimed.index == index);
        if !is_own_claim {
            self.gauges.busy_channel_posts.add(1);
        }
        is_own_claim
    }

    fn claim_with_messages(&mut self) {
        let shared = self.shared;
        for (channel, slot) in (0_u32..).zip(&shared.slots) {
            if !slot.inbox.is_empty() {
                self.post(ChannelIndex(channel), PendingEvents::MESSAGE);
            }
        }
    }

    fn claim_expired(&mut self) {
        let shared = self.shared;
        let deadlines = shared.slots.iter().map(|slot| &slot.deadline).enumerate();
        let now = self.now;
        let due = |index| {
            // The pool has far fewer channels than `u32::MAX`.
            let channel = u32::try_from(index).unwrap_or(u32::MAX);
            self.post(ChannelIndex(channel), PendingEvents::DEADLINE);
        };
        shared.deadline_timer.expire(now, deadlines, due, |at| shared.set.set_timer(Some(at)));
    }

    /// Whether to give up the lead before the claimed channels are processed.
    fn should_promote_first(&self) -> bool {
        let settings = &self.shared.settings;
        settings.is_multi_threaded
            && match settings.promotion {
                PromotionPolicy::Strict => true,
                PromotionPolicy::Lazy => {
                    let wake_cost_ns = if self.shared.token.has_spinner() { SPINNER_WAKE_NS } else { SLEEPER_WAKE_NS };
                    self.claim_ns_mean * count(self.claimed.len()) > wake_cost_ns
                }
            }
    }

    /// Gives up the lead to one follower.
    fn promote(&mut self) -> ControlFlow<()> {
        if let Err(error) = self.io.release_wait() {
            return self.fail_pool("give up its wait", &error);
        }
        if !self.shared.token.has_follower() {
            // Before the release, since the next leader reads it. If a follower arrives in between, the saturation ends
            // at once.
            self.shared.saturated_since.store(self.now.0, Relaxed);
        }
        let promoted = self.shared.token.release();
        self.gauges.promotions.add(1);
        if promoted == Promoted::NoFollower {
            self.gauges.promotions_without_follower.add(1);
        }
        self.gauges.set_role(Role::Processing);
        ControlFlow::Continue(())
    }

    /// Processes without having promoted, but gives up the lead when that takes longer than expected.
    fn process_while_leading(&mut self) -> ControlFlow<(), LeadState> {
        let claimed_count = self.claimed.len();
        let mut lead = LeadState::Retained;
        while let Some(claimed) = self.claimed.pop_front() {
            self.process(claimed);
            if lead == LeadState::Retained && self.shared.settings.is_multi_threaded && !self.claimed.is_empty() {
                let elapsed_ns = mono_now().since(self.now);
                if elapsed_ns > self.shared.settings.stall_ns_max {
                    self.promote()?;
                    self.gauges.late_promotions.add(1);
                    lead = LeadState::Released;
                }
            }
        }
        if std::mem::take(&mut self.is_provided_pending) {
            for _ in 0..self.shared.run_queue.len() {
                self.shared.run_queue.pop().into_iter().for_each(|entry| self.resume(entry));
            }
        }
        if lead == LeadState::Retained {
            self.gauges.leads_retained.add(1);
        }
        self.record_processing(claimed_count);
        ControlFlow::Continue(lead)
    }

    fn process_claimed(&mut self) {
        let claimed_count = self.claimed.len();
        while let Some(claimed) = self.claimed.pop_front() {
            self.process(claimed);
        }
        self.record_processing(claimed_count);
    }

    /// Processes a channel from the run queue while another thread leads.
    fn run_deferred(&mut self, entry: RunQueueEntry) {
        self.gauges.set_role(Role::Processing);
        self.now = mono_now();
        self.resume(entry);
        self.record_processing(1);
    }

    fn resume(&mut self, RunQueueEntry { index, deferred }: RunQueueEntry) {
        let held = self.shared.slots[index].claim.resume(deferred);
        self.process(Claimed { index, held });
    }

    fn record_processing(&mut self, claimed_count: usize) {
        let ns = mono_now().since(self.now);
        self.gauges.record_processing(ns);
        let per_claim_ns = ns / count(claimed_count).max(1);
        self.claim_ns_mean = (self.claim_ns_mean * (MEAN_WEIGHT - 1) + per_claim_ns) / MEAN_WEIGHT;
    }

    /// Processes a channel until no posted event is left, or its quota is used up.
    fn process(&mut self, Claimed { index, mut held }: Claimed<'p, H>) {
        let slot = &self.shared.slots[index];
        self.gauges.mark_busy();
        self.gauges.claims.add(1);
        let mut quota = self.shared.settings.quota_packets;
        loop {
            let pending = held.take_events();
            let remaining = self.handle_events(index, &mut held, pending, &mut quota);
            if remaining != PendingEvents::NONE {
                if remaining == PendingEvents::RETIRE {
                    return self.shared.retire(slot, held);
                }
                return self.defer(index, held, remaining);
            }
            // Relaxed: the claim orders the writes of its holders.
            let deadline =
                if slot.is_muted.load(Relaxed) { None } else { held.with(|handler| handler.next_deadline()) };
            let set = &self.shared.set;
            self.shared.deadline_timer.publish(&slot.deadline, deadline, |at| set.set_timer(Some(at)));
            match held.release() {
                Ok(()) => return,
                Err(reclaimed) if quota == 0 => return self.defer(index, reclaimed, PendingEvents::NONE),
                Err(reclaimed) => held = reclaimed,
            }
        }
    }

    /// No event will come for the remaining work: some thread resumes it from the run queue, at the latest this one.
    fn defer(&mut self, index: usize, held: HeldClaim<'p, H>, remaining: PendingEvents) {
        self.gauges.quota_hits.add(1);
        let deferred = held.defer(remaining);
        let pushed = self.shared.run_queue.push(RunQueueEntry { index, deferred });
        debug_assert!(pushed.is_ok(), "a claimed channel is deferred once, and there is room for all");
    }

    /// Calls the handler for all events. Returns those that the quota left over, or [`PendingEvents::RETIRE`] alone if it is
    /// among them.
    fn handle_events(
        &mut self,
        index: usize,
        held: &mut HeldClaim<'p, H>,
        pending: PendingEvents,
        quota: &mut usize,
    ) -> PendingEvents {
        let slot = &self.shared.slots[index];
        if slot.failure.is_set() {
            if pending.contains(PendingEvents::RETIRE) {
                return PendingEvents::RETIRE;
            }
            if pending.contains(PendingEvents::DEADLINE) {
                self.call_failed(index, held, |handler, context| {
                    let now = mono_now();
                    if handler.next_deadline().is_some_and(|deadline| deadline <= now) {
                        handler.on_failed_deadline(now, context);
                    }
                });
            }
            return PendingEvents::NONE;
        }
        let woken_at = self.wall.at(self.now);
        let context =
            TurnContext { io: &mut self.io, local: &mut self.local, now: self.now, woken_at, thread: self.thread };
        let mut handler_call = HandlerCall { slot, index, context, gauges: self.gauges, quota };
        // The panic is contained: no lock is held across a handler, and a failed channel's state is never used again.
        let outcome =
            catch_unwind(AssertUnwindSafe(|| held.with(|handler| handler_call.handle_events(handler, pending))));
        let reason = match outcome {
            Ok(Ok(remaining)) => return remaining,
            Ok(Err(Failure(reason))) => FailReason::Failed(reason),
            Err(panic) => FailReason::Panicked(panic_text(&*panic)),
        };
        self.gauges.failures.add(1);
        self.call_failed(index, held, |handler, context| handler.on_failed(&reason, context));
        slot.failure.set(reason);
        while slot.inbox.pop().is_some() {}
        if pending.contains(PendingEvents::RETIRE) { PendingEvents::RETIRE } else { PendingEvents::NONE }
    }

    /// Calls the handler of a channel that is out of service. After a panic the handler is never called again.
    fn call_failed(
        &mut self,
        index: usize,
        held: &mut HeldClaim<'p, H>,
        call: impl FnOnce(&mut H, &mut TurnContext<'_, S::Io, H::Local>),
    ) {
        let woken_at = self.wall.at(self.now);
        let mut context =
            TurnContext { io: &mut self.io, local: &mut self.local, now: self.now, woken_at, thread: self.thread };
        if catch_unwind(AssertUnwindSafe(|| held.with(|handler| call(handler, &mut context)))).is_err() {
            self.shared.slots[index].is_muted.store(true, Relaxed);
        }
    }

    fn follow(&mut self) -> TakeOutcome {
        let settings = &self.shared.settings;
        let mut poll_count = 0_u32;
        let mut since = None;
        let keep_spinning = || {
            poll_count = poll_count.wrapping_add(1);
            if settings.wait == WaitPolicy::Spin || !poll_count.is_multiple_of(POLLS_PER_CLOCK_READ) {
                return true;
            }
            let now = mono_now();
            now.since(*since.get_or_insert(now)) < settings.spin_ns
        };
        self.gauges.mark_idle();
        let waiting = FollowOptions { may_spin: settings.follower_may_spin, keep_spinning };
        let gauges = self.gauges;
        let on_role = |role| {
            gauges.set_role(role);
            if role == Role::Parked {
                gauges.sleeps.add(1);
            }
        };
        self.shared.token.follow(waiting, on_role, || gauges.spurious_wakes.add(1))
    }

    fn end_saturation(&mut self) {
        let since = self.shared.saturated_since.load(Relaxed);
        if since != 0 {
            self.shared.saturated_since.store(0, Relaxed);
            self.gauges.saturation_ns.add(mono_now().since(MonoNs(since)));
        }
    }

    fn fail_pool<T>(&self, action: &str, error: &io::Error) -> ControlFlow<(), T> {
        self.shared.stop_with(format!("thread {} cannot {action}: {error}", self.thread));
        ControlFlow::Break(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeadState {
    Retained,
    Released,
}

/// What one turn's calls of a handler need.
struct HandlerCall<'s, 'p, I, H: ChannelHandler> {
    slot: &'p ChannelSlot<H>,
    index: usize,
    context: TurnContext<'s, I, H::Local>,
    gauges: &'p ThreadGauges,
    quota: &'s mut usize,
}

impl<I: ThreadIo, H: ChannelHandler> HandlerCall<'_, '_, I, H> {
    fn handle_events(&mut self, handler: &mut H, pending: PendingEvents) -> Result<PendingEvents, Failure> {
        // Read before draining: everything received before that time is drained before the deadline is handled.
        let due_at = pending.contains(PendingEvents::DEADLINE).then(mono_now);
        if pending.contains(PendingEvents::MESSAGE) {
            if pending.contains(PendingEvents::RETIRE) {
                return Ok(PendingEvents::RETIRE);
            }
            self.read_inbox(handler)?;
        }
        self.process_provided(handler, pending.provided_lines())?;
        let lines = if due_at.is_some() { pending.ready_lines().union(handler.lines()) } else { pending.ready_lines() };
        let unread_lines = self.drain(handler, lines)?;
        if !unread_lines.is_empty() {
            let deadline = if due_at.is_some() { PendingEvents::DEADLINE } else { PendingEvents::NONE };
            return Ok(PendingEvents::ready(unread_lines).with(deadline));
        }
        if let Some(now) = due_at
            && handler.next_deadline().is_some_and(|deadline| deadline <= now)
        {
            self.gauges.deadlines.add(1);
            handler.on_deadline(now, &mut self.context)?;
        }
        Ok(PendingEvents::NONE)
    }

    /// Passes the channel's messages to the handler. A message that was sent after the event was taken comes with the
    /// next event.
    fn read_inbox(&mut self, handler: &mut H) -> Result<(), Failure> {
        for _ in 0..self.slot.inbox.capacity() {
            let Some(message) = self.slot.inbox.pop() else { break };
            handler.on_message(message, &mut self.context)?;
        }
        Ok(())
    }

    /// Processes provided datagrams. They are in memory already, and their buffers return to the kernel with the next
    /// wait. So the quota counts these datagrams but does not stop them.
    fn process_provided(&mut self, handler: &mut H, lines: LineSet) -> Result<(), Failure> {
        let channel = ChannelIndex(u32::try_from(self.index).unwrap_or(u32::MAX));
        for line in (0..8).map(Line).filter(|line| lines.contains(*line)) {
            let progress = handler.on_provided(Handle { channel, line }, &mut self.context)?;
            self.charge_quota(progress.packets);
        }
        Ok(())
    }

    /// Reads the lines until all are short or the quota is used up. Returns those that may hold more.
    fn drain(&mut self, handler: &mut H, mut lines: LineSet) -> Result<LineSet, Failure> {
        while !lines.is_empty() && *self.quota > 0 {
            let progress = handler.on_ready(lines, *self.quota, &mut self.context)?;
            self.charge_quota(progress.packets);
            lines = progress.unfinished_lines;
        }
        Ok(lines)
    }

    /// Counts a call's packets towards the quota. A call without a packet costs one, so that a handler that never
    /// reports its lines short cannot occupy the thread.
    fn charge_quota(&mut self, packets: usize) {
        self.gauges.mark_busy();
        self.gauges.packets.add(count(packets));
        *self.quota = self.quota.saturating_sub(packets.max(1));
    }
}

/// Cost of a promotion if the follower spins, and if it sleeps, ns: shorter processing is not worth a promotion.
const SPINNER_WAKE_NS: u64 = 1_000;
const SLEEPER_WAKE_NS: u64 = 10_000;
/// Weight of the running mean: a new value counts one part in `MEAN_WEIGHT`.
const MEAN_WEIGHT: u64 = 8;
/// Checks of the token by a spinning follower for each read of the clock.
const POLLS_PER_CLOCK_READ: u32 = 64;

fn count(number: usize) -> u64 {
    // No supported platform has more than 64-bit sizes.
    u64::try_from(number).unwrap_or(u64::MAX)
}
