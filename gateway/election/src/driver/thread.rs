//! The election thread.

use std::{
    io,
    net::SocketAddrV4,
    sync::{Arc, mpsc},
    time::Duration,
};

use hdrhistogram::Histogram;
use mdgw_sys::{
    affinity::pin_to,
    alarm::Alarm,
    clock::mono_now,
    clock_rate::RateMonitor,
    scheduler::{request_short_slice, set_fifo},
};
use mdgw_wire::{identity::Epoch, time::MonoNs};

use super::{Backend, DriverState, ElectionHooks, ElectionOptions, InboxReceiver, ListenerEvent, inbox::RECEIVED_MAX};
use crate::{
    core::{CloseReason, ConnectionState, Core, Input, Notice, Output, Role},
    peer::PeerMessage,
};

pub(super) struct ElectionThread<C: Core, B> {
    core: C,
    backend: B,
    inbox: InboxReceiver<C::Event>,
    hooks: Box<dyn ElectionHooks>,
    shared: Arc<DriverState>,
    options: ElectionOptions,
    /// The fence was closed, and sends may be outstanding.
    is_draining: bool,
    next_state_at: MonoNs,
    /// The last epoch that the hooks reported as observed, who sent it, and when the hooks are asked again at the earliest.
    observed: Option<Epoch>,
    observed_from: Option<SocketAddrV4>,
    observe_at: MonoNs,
    outranked: OutrankedAlarm,
    raises: RaiseSummary,
    clock_rate: RateMonitor,
    stalls: Histogram<u64>,
    alarming_stalls: u64,
    is_closing: bool,
}

impl<C, B> ElectionThread<C, B>
where
    C: Core + Send + 'static,
    C::Event: Send + 'static,
    B: Backend<C::Request> + 'static,
{
    pub(super) fn new(
        core: C,
        backend: B,
        inbox: InboxReceiver<C::Event>,
        hooks: Box<dyn ElectionHooks>,
        shared: Arc<DriverState>,
        options: ElectionOptions,
    ) -> Self {
        let stalls = Histogram::new_with_bounds(1, STALL_NS_MAX, 2).unwrap_or_else(|_| unreachable!("sound bounds"));
        Self {
            core,
            backend,
            inbox,
            hooks,
            shared,
            options,
            is_draining: false,
            next_state_at: MonoNs(0),
            observed: None,
            observed_from: None,
            observe_at: MonoNs(0),
            outranked: OutrankedAlarm::default(),
            raises: RaiseSummary::default(),
            clock_rate: RateMonitor::default(),
            stalls,
            alarming_stalls: 0,
            is_closing: false,
        }
    }

    pub(super) fn launch(self) -> io::Result<()> {
        let name = format!("mdgw-elect-{}", self.options.group);
        std::thread::Builder::new().name(name).spawn(move || {
            let mut thread = self;
            // However the thread ends, the fence is closed then and listeners are notified. State that the backend
            // holds, such as a session's queue entry, is released only afterwards.
            let _end = EndOnDrop(Arc::clone(&thread.shared));
            thread.run();
        })?;
        Ok(())
    }

    fn run(&mut self) {
        self.set_affinity_and_priority();
        self.backend.begin();
        // Inputs that arrived before the thread began.
        self.handle_pending();
        let mut woke_at = mono_now();
        loop {
            self.hooks.on_iteration();
            self.advance_time();
            let now = mono_now();
            self.record_busy_time(now.since(woke_at));
            if self.core.view().role == Role::Closed && self.is_closing {
                return;
            }
            let wake_at = self.wake_at(now);
            let received = self.inbox.recv_timeout(Duration::from_nanos(wake_at.since(now)));
            woke_at = mono_now();
            self.record_stall(woke_at.since(wake_at));
            match received {
                Ok(input) => {
                    self.handle(input);
                    // All pending inputs are processed before any decision.
                    self.handle_pending();
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Processes what is pending. The limit is above what the inbox holds, so that inputs which keep arriving cannot keep the
    /// thread from its deadlines.
    fn handle_pending(&mut self) {
        for _ in 0..INPUTS_PER_TURN_MAX {
            let Some(input) = self.inbox.try_recv() else { return };
            self.handle(input);
        }
    }

    /// Sets CPU core and priority, where permitted.
    fn set_affinity_and_priority(&self) {
        if let Some(core) = self.options.core
            && let Err(error) = pin_to(core)
        {
            tracing::warn!(%error, "the election thread is not pinned");
        }
        request_short_slice();
        if let Some(priority) = self.options.fifo_priority
            && let Err(error) = set_fifo(priority)
        {
            tracing::warn!(%error, "the election thread has no real-time priority: other load may delay it");
        }
    }

    fn wake_at(&self, now: MonoNs) -> MonoNs {
        let drain = self.is_draining.then(|| now.plus(DRAIN_POLL_NS));
        let observe = (self.observe_at > now).then_some(self.observe_at);
        let times = [self.core.next_deadline(), drain, observe, self.raises.due_at(), Some(self.next_state_at)];
        let next = times.into_iter().flatten().min();
        // The core was given the time a moment ago, so a core that wants the time at once waits for the shortest step.
        let (earliest, latest) = (now.plus(STEP_NS_MIN), now.plus(IDLE_NS_MAX));
        next.map_or(latest, |next| next.clamp(earliest, latest))
    }

    fn handle(&mut self, input: Input<C::Event>) {
        self.is_closing |= matches!(input, Input::Close);
        let outputs = self.core.step(mono_now(), input);
        self.apply_outputs(outputs);
    }

    fn advance_time(&mut self) {
        let now = mono_now();
        // Without a limit: a core that is notified of the end would let the next leader open beside a stalled send.
        if self.is_draining && self.hooks.is_drained() {
            self.is_draining = false;
            self.handle(Input::Drained);
        }
        if now >= self.observe_at {
            self.read_observed_epoch(now);
        }
        let due = self.raises.take_due(now);
        self.report_raises(due);
        if now >= self.next_state_at {
            // Twice per renewal: a successor's lease counts from the stamp in this state, so each millisecond of its
            // age is lost.
            self.next_state_at = now.plus(self.options.timing.renew_ns / 2);
            let rate = self.clock_rate.read(now);
            self.handle(Input::ClockRate(rate));
            let state = self.core.peer_state(now);
            for peer in &self.options.peers {
                self.hooks.to_peer(*peer, PeerMessage::State(state.clone()));
            }
        }
        let outputs = self.core.step(mono_now(), Input::Time);
        self.apply_outputs(outputs);
        let view = self.core.view();
        let has_changed = self.shared.state().view != view;
        if has_changed {
            self.hooks.on_epoch(view.epoch);
            self.publish_view();
        }
    }

    /// A higher epoch is passed on at once, then none for a while: a flood of forged packets costs a bounded number of
    /// elections.
    fn read_observed_epoch(&mut self, now: MonoNs) {
        if let Some((epoch, from)) = self.hooks.observed_epoch()
            && Some(epoch) > self.observed
        {
            (self.observed, self.observed_from) = (Some(epoch), from);
            self.observe_at = now.plus(OBSERVATION_INTERVAL_NS);
            self.handle(Input::ObservedEpoch(epoch));
        }
    }

    fn apply_outputs(&mut self, outputs: Vec<Output<C::Request>>) {
        let fence = Arc::clone(&self.shared.fence);
        let raises = opens_after_outranked(&outputs);
        let mut is_raise = false;
        for output in outputs {
            match output {
                Output::Renew { deadline } => {
                    self.hooks.update_second_fence(fence.epoch(), Some(deadline));
                    fence.renew(deadline);
                }
                Output::Close { epoch, reason } => {
                    fence.close();
                    is_raise = raises && reason == CloseReason::Outranked;
                    self.hooks.update_second_fence(epoch, None);
                    self.hooks.on_fence_change();
                    if is_raise {
                        continue;
                    }
                    let all = self.raises.take();
                    self.report_raises(all);
                    self.publish_view();
                    self.shared.notify_listeners(ListenerEvent::Lost(epoch, reason), None);
                    self.hooks.on_leadership(epoch, Some(reason));
                    tracing::warn!(group = self.options.group, epoch = epoch.count(), ?reason, "leadership lost");
                }
                Output::Open { epoch, deadline } => {
                    let limit = Duration::from_nanos(self.options.listeners_ns_max);
                    let event = if is_raise { ListenerEvent::Raised(epoch) } else { ListenerEvent::Gained(epoch) };
                    self.shared.notify_listeners(event, Some(limit));
                    // Before any packet carries the epoch: a packet that continues from it must be believed here too.
                    self.hooks.on_epoch(epoch);
                    self.hooks.update_second_fence(epoch, Some(deadline));
                    if is_raise {
                        fence.raise(epoch, deadline)
                    } else {
                        fence.open(epoch, deadline)
                    }
                    self.hooks.on_fence_change();
                    self.publish_view();
                    self.hooks.on_leadership(epoch, None);
                    if is_raise {
                        self.raises.record(epoch);
                        let due = self.raises.take_due(mono_now());
                        self.report_raises(due);
                    } else {
                        tracing::info!(group = self.options.group, epoch = epoch.count(), "leads");
                    }
                }
                Output::PeerOutputEnded(epoch) => self.hooks.on_peer_output_ended(epoch),
                Output::Drain => self.is_draining = true,
                Output::Request(request) => self.backend.ask(request),
                Output::Peer { to, message } => self.hooks.to_peer(to, message),
                Output::Connection(state) => {
                    let epoch = self.core.view().epoch;
                    self.log_connection(state);
                    self.shared.notify_listeners(ListenerEvent::Connection(epoch, state), None);
                }
                Output::Notice(notice) => self.report(&notice),
            }
        }
    }

    fn log_connection(&self, state: ConnectionState) {
        let group = self.options.group;
        match state {
            ConnectionState::Lost => {
                let alarm = Alarm::StoreUnreachable.name();
                tracing::error!(alarm, group, ?state, "{}", C::CONNECTION);
            }
            ConnectionState::Suspended => tracing::warn!(group, ?state, "{}", C::CONNECTION),
            ConnectionState::Connected | ConnectionState::Reconnected => {
                let ends = Alarm::StoreUnreachable.name();
                tracing::info!(ends, group, ?state, "{}", C::CONNECTION);
            }
            _ => tracing::info!(group, ?state, "{}", C::CONNECTION),
        }
    }

    fn report_raises(&mut self, raises: Option<Raises>) {
        let Some(Raises { epoch, count }) = raises else { return };
        tracing::info!(group = self.options.group, epoch = epoch.count(), count, "raised its epoch and leads on");
        self.hooks.on_raised(epoch, count);
    }

    fn report(&mut self, notice: &Notice) {
        let from = match notice {
            Notice::HigherEpochObserved(epoch) => self.observed_from.filter(|_| self.observed == Some(*epoch)),
            _ => None,
        };
        let notice = match notice {
            Notice::HigherEpochObserved(epoch) if from.is_none() => &Notice::HigherEpochReported(*epoch),
            _ => notice,
        };
        match notice {
            Notice::HigherEpochObserved(_) | Notice::HigherEpochReported(_) => {
                let Some(count) = self.outranked.record(mono_now()) else { return };
                let (alarm, group) = (Alarm::Outranked.name(), self.options.group);
                tracing::error!(alarm, group, from = from.map(tracing::field::display), count, "{notice}");
            }
            Notice::RunsOnPromises => {
                tracing::error!(alarm = Alarm::StoreUnreachable.name(), group = self.options.group, "{notice}")
            }
            Notice::Obstacle(obstacle) if !obstacle.is_temporary() => {
                tracing::error!(alarm = Alarm::NotEligible.name(), group = self.options.group, "{notice}");
            }
            _ => tracing::warn!(group = self.options.group, "{notice}"),
        }
        if let Notice::HandOverFailed { why, .. } = notice {
            self.shared.change(|state| state.hand_over_failed = Some((*why).to_owned()));
        }
        self.hooks.on_notice(notice, from);
    }

    fn publish_view(&self) {
        let view = self.core.view();
        let was_alarmed = self.shared.state().view.obstacle.as_ref().is_some_and(|obstacle| !obstacle.is_temporary());
        if was_alarmed && view.obstacle.is_none() {
            tracing::info!(ends = Alarm::NotEligible.name(), group = self.options.group, "eligible again");
        }
        self.shared.change(|state| state.view = view);
    }

    /// Records how late the thread woke, for any cause, ns; 0: in time.
    fn record_stall(&mut self, stall_ns: u64) {
        if stall_ns == 0 {
            return;
        }
        self.stalls.saturating_record(stall_ns);
        let is_alarming = self.is_alarming(stall_ns);
        if is_alarming {
            let group = self.options.group;
            tracing::warn!(alarm = Alarm::ElectionThreadStall.name(), group, stall_ns, "the election thread woke late");
        }
        self.publish_stalls(is_alarming);
    }

    /// Records how long an iteration took, ns: the thread could do nothing else in that time.
    fn record_busy_time(&mut self, round_ns: u64) {
        if self.is_alarming(round_ns) {
            self.stalls.saturating_record(round_ns);
            let group = self.options.group;
            tracing::warn!(
                alarm = Alarm::ElectionThreadStall.name(),
                group,
                round_ns,
                "the election thread was held up in its work"
            );
            self.publish_stalls(true);
        }
    }

    /// Whether a delay exceeds half of the margin.
    fn is_alarming(&self, late_ns: u64) -> bool {
        late_ns > self.options.timing.margin_ns / 2
    }

    fn publish_stalls(&mut self, is_alarming: bool) {
        self.alarming_stalls += u64::from(is_alarming);
        if is_alarming || self.stalls.len().is_multiple_of(STALLS_PER_PUBLICATION) {
            let (stalls, alarming) = (self.stalls.clone(), self.alarming_stalls);
            let mut state = self.shared.state();
            state.stalls = Some(stalls);
            state.alarming_stalls = alarming;
        }
    }
}

/// Limits the alarm of an outranked leader to one a second.
#[derive(Debug, Default)]
struct OutrankedAlarm {
    /// Times that this gateway was outranked, since its start.
    count: u64,
    next_at: MonoNs,
}

impl OutrankedAlarm {
    /// Returns the count if an alarm is due.
    fn record(&mut self, now: MonoNs) -> Option<u64> {
        self.count += 1;
        if now < self.next_at {
            return None;
        }
        self.next_at = now.plus(ALARM_INTERVAL_NS);
        Some(self.count)
    }
}

/// Whether the outputs close the fence of an outranked leader and open it again. A leadership that is closed and opened in
/// one step is the same one. A leader of an `emergent` group may stay closed for a while instead.
fn opens_after_outranked<R>(outputs: &[Output<R>]) -> bool {
    let is_closing = |output: &Output<R>| matches!(output, Output::Close { reason: CloseReason::Outranked, .. });
    let mut later = outputs.iter().skip_while(|output| !is_closing(output));
    later.any(|output| matches!(output, Output::Open { .. }))
}

/// Raises of the epoch that are reported together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Raises {
    epoch: Epoch,
    count: u64,
}

/// Reports the first raise at once, and those of the next second together: under forged epochs a leader may raise its epoch
/// 200 times a second, and each raise would fill a line of the log and of the audit.
#[derive(Debug, Default)]
struct RaiseSummary {
    unreported: Option<Raises>,
    next_at: MonoNs,
}

impl RaiseSummary {
    fn record(&mut self, epoch: Epoch) {
        let count = 1 + self.unreported.map_or(0, |raises| raises.count);
        self.unreported = Some(Raises { epoch, count });
    }

    /// When a report is due; `None`: there is nothing to report.
    fn due_at(&self) -> Option<MonoNs> {
        self.unreported.map(|_| self.next_at)
    }

    fn take_due(&mut self, now: MonoNs) -> Option<Raises> {
        let due = self.unreported.take_if(|_| now >= self.next_at)?;
        self.next_at = now.plus(ALARM_INTERVAL_NS);
        Some(due)
    }

    /// Everything that is not reported yet: the leadership ends.
    fn take(&mut self) -> Option<Raises> {
        self.unreported.take()
    }
}

struct EndOnDrop(Arc<DriverState>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A minute: later wake-ups are recorded as this value.
const STALL_NS_MAX: u64 = 60_000_000_000;
/// Longest wait for an input, ns.
const IDLE_NS_MAX: u64 = 100_000_000;
/// Shortest time between two alarms of an outranked leader, and between two reports of its raises, ns.
const ALARM_INTERVAL_NS: u64 = 1_000_000_000;
/// Shortest time between two observed epochs that reach the core, ns: less than the interval of most floods, and more
/// than a swap or vote takes.
pub(super) const OBSERVATION_INTERVAL_NS: u64 = 5_000_000;
/// Shortest wait for an input, ns, so that no core can keep the thread from its inbox.
const STEP_NS_MIN: u64 = 20_000;
/// Interval at which the thread checks whether sends are outstanding, ns.
const DRAIN_POLL_NS: u64 = 50_000;
/// Most inputs that are processed before the deadlines are checked again.
const INPUTS_PER_TURN_MAX: usize = 2 * RECEIVED_MAX;
const STALLS_PER_PUBLICATION: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_raises_in_five_seconds_are_reported_once_a_second_and_each_is_counted() {
        let mut summary = RaiseSummary::default();
        let mut reports = Vec::new();
        for raise in 0..1_000 {
            let now = MonoNs(ALARM_INTERVAL_NS + raise * OBSERVATION_INTERVAL_NS);
            // The thread wakes for the report, or for the raise.
            reports.extend(summary.take_due(now));
            summary.record(Epoch::new(raise + 1, 1));
            reports.extend(summary.take_due(now));
        }
        assert!(summary.due_at().is_some_and(|at| at >= MonoNs(6 * ALARM_INTERVAL_NS)));
        reports.extend(summary.take());
        let counts: Vec<u64> = reports.iter().map(|raises| raises.count).collect();
        assert_eq!(counts, [1, 199, 200, 200, 200, 200]);
        assert_eq!(reports.last().map(|raises| raises.epoch), Some(Epoch::new(1_000, 1)));
        assert_eq!((summary.due_at(), summary.take()), (None, None));
    }

    #[test]
    fn a_raise_is_a_closing_and_an_opening_in_one_step() {
        let (epoch, deadline) = (Epoch::new(1, 1), MonoNs(1));
        let close = |reason| Output::<()>::Close { epoch, reason };
        let open = Output::Open { epoch, deadline };
        for (outputs, expected) in [
            (vec![close(CloseReason::Outranked), Output::Drain, open.clone()], true),
            (vec![close(CloseReason::Outranked), Output::Drain], false),
            (vec![open.clone(), close(CloseReason::Outranked)], false),
            (vec![close(CloseReason::Expired), open], false),
        ] {
            assert_eq!(opens_after_outranked(&outputs), expected, "{outputs:?}");
        }
    }
}
