//! Health of this gateway, group by group: its fitness, and whether it has joined its peer. A cold thread evaluates it
//! some times a second for the elections and for the status.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mdgw_election::{
    auth::SharedKey,
    core::{Role, View, VoterView},
    driver::Election,
    fitness::{Eligibility, Fitness, FitnessClass},
    identity::{Incarnation, Member, NodeId},
    latch::LeaderLatch as _,
};
use mdgw_feeds::{
    channel::ChannelState,
    identity::{ChannelId, GroupId, Sequence, Session},
    published::position::StreamPosition,
    time::MonoNs,
};
use mdgw_pair::{
    pair_link::{LinkHandle, PeerEndpoint, PeerReport, message::ChannelPositions, query_positions},
    standby::{
        ChannelStatus, ReceivePath, StatusTable,
        fitness::{ChannelSample, FitnessSample, FitnessWatch, has_no_gaps},
        join::{JoinProgress, JoinSample, JoinWatch, WindowCounts},
    },
};
use mdgw_publog::Reader;

use super::{GroupHandle, StartMode, thread_watch::HotThread};
use crate::config::Resolved;
use mdgw_sys::alarm::Alarm;

/// Result of the last evaluation of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupHealth {
    pub(super) fitness: Fitness,
    pub(super) joining: JoinProgress,
}

/// The newest health of each group, for the status.
pub(super) type GroupHealthMap = Arc<Mutex<BTreeMap<GroupId, GroupHealth>>>;

/// The fitness that the peers have reported, group by group.
pub(super) type PeerFitness = Arc<Mutex<BTreeMap<(GroupId, NodeId), Fitness>>>;

/// Evaluates all groups.
#[derive(Debug, Default)]
pub(super) struct HealthMonitor {
    groups: BTreeMap<GroupId, GroupHealthMonitor>,
    newest: GroupHealthMap,
    /// Time of the first evaluation.
    begun: Option<MonoNs>,
}

#[derive(Debug, Default)]
struct GroupHealthMonitor {
    join: JoinWatch,
    fitness: FitnessWatch,
    logged_eligibility: Option<Eligibility>,
    logged_at: MonoNs,
    /// Whether the alarm has been logged that this gateway's messages differ from its peer's.
    is_mismatch_logged: bool,
    /// Whether it has been logged that this gateway holds its candidacy.
    is_hold_logged: bool,
    class: Option<FitnessClass>,
    /// When the alarm about output that is not received was last logged.
    fitness_logged_at: MonoNs,
    /// Voters that did not answer, and when that was last logged.
    silent_voters: BTreeMap<NodeId, MonoNs>,
    duplicate: DuplicateIdWatch,
    /// Number of compared windows whose messages differed from the peer's, and when the last difference was found.
    different: (u64, Option<MonoNs>),
}

/// Detects another process that leads with this gateway's node number.
#[derive(Debug, Default)]
struct DuplicateIdWatch {
    since: Option<MonoNs>,
    is_logged: bool,
}

/// This process as a member of its elections.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnMember {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    /// How long an ended process can still appear as the leader: the length of its lease or session, ns.
    pub(super) outlives_ns: u64,
}

/// Inputs of an evaluation, from the standby, the link and the peers.
#[derive(Debug)]
pub(super) struct HealthInputs<'a> {
    pub(super) own: OwnMember,
    pub(super) status_table: &'a StatusTable,
    /// Handle of the pair link, if there is one.
    pub(super) pair: Option<&'a LinkHandle>,
    pub(super) peer_fitness: &'a PeerFitness,
    /// Heartbeat interval: a live leader sends at least this often, ns.
    pub(super) heartbeat_ns: u64,
    /// See [`voter_silence_ns`].
    pub(super) voter_silence_ns: u64,
    /// The hot threads that make no progress.
    pub(super) stalled: &'a [HotThread],
}

impl HealthMonitor {
    /// The newest health of each group, for the status.
    pub(super) fn newest(&self) -> &GroupHealthMap {
        &self.newest
    }

    /// Evaluates one group and passes the result to its election.
    pub(super) fn update(
        &mut self,
        group: GroupId,
        (handle, election): (&GroupHandle, &Election),
        inputs: &HealthInputs<'_>,
        now: MonoNs,
    ) {
        let begun = *self.begun.get_or_insert(now);
        let watch = self.groups.entry(group).or_default();
        let channels = inputs.channels(handle, now);
        let fitness = watch.fitness.update(&inputs.fitness_sample(&channels, election, now), now);
        let has_leader = channels.iter().any(|channel| channel.leader_is_observed);
        // Shortly after the start it is unknown whether a gateway leads.
        let is_early = now.since(begun) < inputs.silence_ns();
        let windows = inputs.windows(handle);
        let different = windows.iter().map(|windows| windows.different).sum();
        election.set_output_mismatch(watch.has_recent_mismatch(different, now));
        let is_ahead_of_output = is_ahead_of_output(handle, &channels);
        let peer_may_lead = is_ahead_of_output && inputs.is_linked() && now.since(begun) < PEER_LEADS_NS_MAX;
        let sample = JoinSample {
            has_peer: is_early || has_leader || peer_may_lead,
            channels: channels.iter().map(|channel| (channel.own.logged_through, channel.theirs)).collect(),
            fitness: (fitness, inputs.fittest_peer(group)),
            windows,
            is_ahead_of_output,
        };
        let joining = if is_early && !has_leader { watch.join.progress() } else { watch.join.update(&sample, now) };
        watch.log_eligibility(group, joining, now);
        watch.log_fitness(group, fitness, now);
        // A voter may answer late at the start. An election thread that is stuck takes no answer.
        if now.since(begun) >= inputs.voter_silence_ns && !inputs.stalled.contains(&HotThread::Election(group)) {
            let voters = election.view().voters;
            let others = voters.iter().filter(|(node, _)| **node != inputs.own.node);
            watch.log_voters(group, others, inputs.voter_silence_ns, now);
        }
        if let Some(duplicate) = watch.duplicate.update(&election.view(), &inputs.own, now) {
            tracing::error!(
                alarm = Alarm::DuplicateGatewayId.name(),
                group = group.0,
                %duplicate,
                "another process leads with this gateway's node number: gateway.node must be unique"
            );
        }
        if watch.fitness.was_received() {
            election.set_output_received();
        }
        election.set_fitness(fitness);
        election.set_eligibility(joining.eligibility);
        lock(&self.newest).insert(group, GroupHealth { fitness, joining });
    }
}

impl GroupHealthMonitor {
    /// Whether a window has differed recently; `count`: differing windows so far.
    fn has_recent_mismatch(&mut self, count: u64, now: MonoNs) -> bool {
        if count > self.different.0 {
            self.different = (count, Some(now));
        }
        self.different.1.is_some_and(|at| now.since(at) < MISMATCH_HOLD_NS)
    }

    fn log_eligibility(&mut self, group: GroupId, joining: JoinProgress, now: MonoNs) {
        let JoinProgress { eligibility, behind_messages, channels_missing, caught_up_ns, mismatched_ns, awaits_output } =
            joining;
        if mismatched_ns >= MISMATCH_NS && !core::mem::replace(&mut self.is_mismatch_logged, true) {
            tracing::error!(
                alarm = Alarm::NotEligible.name(),
                group = group.0,
                "caught up, but its messages differ from the peer's: its books are suspect; restart it to copy the peer's state"
            );
        }
        if awaits_output && !core::mem::replace(&mut self.is_hold_logged, true) {
            tracing::info!(
                group = group.0,
                "caught up, but holds its candidacy until it has received the output up to its state copy: \
                 6 s at most once it is caught up, and 20 s at most from its start without a leader"
            );
        }
        if self.logged_eligibility.replace(eligibility) != Some(eligibility) {
            match eligibility {
                Eligibility::Joining => {
                    tracing::info!(group = group.0, "joining: becomes eligible when it has caught up with its peer")
                }
                Eligibility::Eligible => tracing::info!(group = group.0, "eligible"),
            }
            self.logged_at = now;
        } else if eligibility == Eligibility::Joining && now.since(self.logged_at) >= LOG_INTERVAL_NS {
            let caught_up_ms = caught_up_ns / 1_000_000;
            tracing::info!(group = group.0, behind_messages, channels_missing, caught_up_ms, "joining");
            self.logged_at = now;
        }
    }

    fn log_voters<'a>(
        &mut self,
        group: GroupId,
        voters: impl Iterator<Item = (&'a NodeId, &'a VoterView)>,
        silence_ns: u64,
        now: MonoNs,
    ) {
        for (node, voter) in voters {
            let name = &voter.name;
            if !voter.answers(silence_ns, now) {
                let logged_at = self.silent_voters.get(node);
                if logged_at.is_some_and(|at| now.since(*at) < ALARM_INTERVAL_NS) {
                    continue;
                }
                self.silent_voters.insert(*node, now);
                let silent_s = voter.answered_at.map(|at| now.since(at) / 1_000_000_000);
                let alarm = Alarm::VoterSilent.name();
                tracing::error!(
                    alarm,
                    group = group.0,
                    voter = %name,
                    node = node.0,
                    silent_s,
                    "voter does not answer"
                );
            } else if self.silent_voters.remove(node).is_some() {
                let ends = Alarm::VoterSilent.name();
                tracing::info!(ends, group = group.0, voter = %name, node = node.0, "voter answers again");
            }
        }
    }

    fn log_fitness(&mut self, group: GroupId, fitness: Fitness, now: MonoNs) {
        let class = fitness.class();
        let Fitness { output_not_received: _, channels_failed, channels_behind, log_failing, stalled } = fitness;
        let before = self.class.replace(class);
        let is_new = before != Some(class);
        if is_new && before == Some(FitnessClass::OutputNotReceived) {
            tracing::info!(ends = Alarm::OutputFailing.name(), group = group.0, "the output is received again");
        }
        match class {
            FitnessClass::Fit if is_new && before.is_some() => tracing::info!(group = group.0, "fitness restored"),
            FitnessClass::Fit => {}
            FitnessClass::OutputNotReceived if is_new || now.since(self.fitness_logged_at) >= ALARM_INTERVAL_NS => {
                self.fitness_logged_at = now;
                let alarm = Alarm::OutputFailing.name();
                tracing::error!(
                    alarm,
                    group = group.0,
                    fitness = class.name(),
                    channels_failed,
                    channels_behind,
                    log_failing,
                    stalled,
                    "fitness reduced"
                );
            }
            _ if is_new => {
                tracing::warn!(
                    group = group.0,
                    fitness = class.name(),
                    channels_failed,
                    channels_behind,
                    log_failing,
                    stalled,
                    "fitness reduced"
                );
            }
            _ => {}
        }
    }
}

/// A voter that has not answered for this time is silent, ns. Voters are asked at least once a lease.
pub(crate) fn voter_silence_ns(lease_ns: u64) -> u64 {
    lease_ns.saturating_mul(3).max(VOTER_SILENCE_NS_MIN)
}

/// Longer than an election thread that is stuck stays unnoticed (5 s, by a check a second): it takes no answers.
const VOTER_SILENCE_NS_MIN: u64 = 7_000_000_000;

impl DuplicateIdWatch {
    /// Returns a leader that has this gateway's node number but is another process; each such leader once. An earlier
    /// start of this gateway can appear as the leader only until its lease or session ends. After that this gateway
    /// would lead, so a leader with this node number that remains is another process.
    fn update(&mut self, view: &View, own: &OwnMember, now: MonoNs) -> Option<Member> {
        let is_namesake = |leader: &&Member| leader.node == own.node && leader.incarnation != own.incarnation;
        let leader = view.leader.as_ref().filter(is_namesake);
        let Some(leader) = leader.filter(|_| view.role == Role::Candidate) else {
            *self = Self::default();
            return None;
        };
        let since = *self.since.get_or_insert(now);
        let is_new = now.since(since) >= own.outlives_ns.saturating_mul(2).max(DUPLICATE_ID_NS) && !self.is_logged;
        self.is_logged |= is_new;
        is_new.then(|| leader.clone())
    }
}

/// One channel, seen from both gateways.
#[derive(Clone, Copy, Debug)]
struct ChannelObservation {
    own: ChannelStatus,
    sample: ChannelSample,
    theirs: Option<StreamPosition>,
    /// Whether a leader's output is received, or a peer reports that it publishes the channel.
    leader_is_observed: bool,
}

/// Whether a channel's log has a hole before a copy of the peer's state, and the output up to the copy was not received: should this
/// gateway lead now, it would publish nothing of the hole.
fn is_ahead_of_output(handle: &GroupHandle, channels: &[ChannelObservation]) -> bool {
    let holes = handle.openings().into_iter().filter_map(|(channel, _, hole)| Some((channel, hole?)));
    let mut of_channels = holes.filter_map(|(channel, (_, next))| {
        let observed = channels.iter().find(|observation| observation.sample.channel == channel)?;
        Some((observed.own, next))
    });
    of_channels.any(|(own, next)| has_unreceived_copy(own.logged_through, own.received.received_through, next))
}

/// Whether the output up to a copy, which ends at `next`, was not received.
fn has_unreceived_copy(logged: Option<StreamPosition>, received: Option<StreamPosition>, next: StreamPosition) -> bool {
    let is_present = logged.is_none_or(|logged| logged.session == next.session);
    is_present && received.is_none_or(|received| received < next)
}

impl HealthInputs<'_> {
    /// After this time without output, ns, the leader counts as gone: a live leader is never silent for longer.
    fn silence_ns(&self) -> u64 {
        (3 * self.heartbeat_ns).clamp(SILENCE_NS_MIN, SILENCE_NS_MAX)
    }

    fn is_linked(&self) -> bool {
        self.pair.is_some_and(|pair| !pair.peer_nodes().is_empty())
    }

    /// The fitness of the fittest connected peer.
    fn fittest_peer(&self, group: GroupId) -> Fitness {
        let linked = self.pair.map(LinkHandle::peer_nodes).unwrap_or_default();
        let reported = lock(self.peer_fitness);
        let of_linked = linked.into_iter().filter_map(|node| reported.get(&(group, NodeId(node))).copied());
        of_linked.max_by_key(Fitness::class).unwrap_or_default()
    }

    /// Recent reports of the peers about a channel.
    fn peer_reports(&self, channel: ChannelId, now: MonoNs) -> Vec<PeerReport> {
        let mut reports = self.pair.map(|pair| pair.peer_reports(channel)).unwrap_or_default();
        reports.retain(|report| now.since(report.received_at) < self.silence_ns());
        reports
    }

    fn channels(&self, handle: &GroupHandle, now: MonoNs) -> Vec<ChannelObservation> {
        let observation = |channel| {
            let own = self.status_table.get(channel)?;
            let reports = self.peer_reports(channel, now);
            let is_on_wire = own.packets > 0 && now.since(own.received_at) < self.silence_ns();
            let publishes = reports.iter().any(|report| report.positions.published.is_some());
            // With a link, a leader counts as observed only if it is connected: from another leader this gateway can
            // neither copy state nor take a hand-over, only take over after its end.
            let leader_is_observed =
                if self.pair.is_some() { !reports.is_empty() && (is_on_wire || publishes) } else { is_on_wire };
            // With several peers, the state of the best one counts, and the furthest position that any has received.
            let peer_state = match reports.as_slice() {
                [] => leader_is_observed.then_some(ChannelState::Live),
                reports => {
                    let states = reports.iter().filter_map(|report| ChannelState::from_number(report.positions.state));
                    states.max_by_key(|state| has_no_gaps(*state))
                }
            };
            let sample = ChannelSample {
                channel,
                state: own.state,
                peer_state,
                // A peer that reports other channels and not this one does not have it: a reload adds a channel to one gateway
                // after the other. That it does not acknowledge the output says nothing about this gateway.
                published: own.published.filter(|_| self.pair.is_none() || !reports.is_empty()),
                published_as_of: own.published_as_of,
                peer_received: reports.iter().filter_map(|report| report.positions.last_received).max(),
                reported_at: reports.iter().map(|report| report.received_at).max(),
                output_refused_ns: if reports.is_empty() { 0 } else { own.output_refused_ns },
            };
            Some(ChannelObservation {
                own,
                sample,
                theirs: reports.iter().filter_map(|report| report.positions.logged_through).max(),
                leader_is_observed,
            })
        };
        handle.channels().into_iter().filter_map(observation).collect()
    }

    fn fitness_sample(&self, channels: &[ChannelObservation], election: &Election, now: MonoNs) -> FitnessSample {
        let peer_receives = |observation: &ChannelObservation| {
            self.peer_reports(observation.sample.channel, now).iter().any(|report| report.positions.receives_probe)
        };
        // The counter of a former leader keeps its last value until the channel's next turn.
        let has_leadership = election.has_leadership();
        let sample = |observation: &ChannelObservation| {
            let output_refused_ns = if has_leadership { observation.sample.output_refused_ns } else { 0 };
            ChannelSample { output_refused_ns, ..observation.sample }
        };
        FitnessSample {
            channels: channels.iter().map(sample).collect(),
            log_entries_lost: channels.iter().map(|observation| observation.own.log_entries_lost).sum(),
            stalls: election.long_stalls(),
            heartbeat_ns: self.heartbeat_ns,
            peer_receives_probe: self.is_linked() && channels.iter().any(peer_receives),
            receive_path_failed: self.status_table.receive_path(now) == ReceivePath::Failed && !has_leadership,
        }
    }

    /// Compared windows of each of the group's channels.
    fn windows(&self, handle: &GroupHandle) -> Vec<WindowCounts> {
        handle.channels().into_iter().filter_map(|channel| Some(self.pair?.windows(channel))).collect()
    }
}

/// Chooses what a gateway of a pair begins with. If a peer can supply the whole session, the gateway replays it, so
/// that its books are as good as the peer's. Otherwise it begins with its own log. A log is deleted only if its content
/// can be recovered.
#[must_use]
pub fn beginning(config: &Resolved) -> StartMode {
    let Some(link) = config.election.as_ref().and_then(|election| election.link.as_ref()) else {
        return StartMode::OwnLog;
    };
    // A key that cannot be read is reported when the gateway starts.
    let Ok(key) = SharedKey::load(&link.key_file) else { return StartMode::OwnLog };
    if link.peers.iter().any(|peer| has_whole_session(config, peer, &key)) {
        StartMode::WholeSession
    } else {
        StartMode::OwnLog
    }
}

/// Whether the peer answers and holds everything that this gateway would delete.
fn has_whole_session(config: &Resolved, peer: &PeerEndpoint, key: &SharedKey) -> bool {
    let Ok(reported) = query_positions(peer.address, config.gateway.node, key.clone(), QUERY_TIMEOUT) else {
        return false;
    };
    for setup in &config.channels {
        let theirs = reported.iter().find(|theirs| theirs.channel == setup.id);
        let own = log_end(&config.gateway.log_directory(setup.id), setup.id);
        if !is_recoverable(own, theirs, setup.recovery.is_some()) {
            let kept = theirs.and_then(|theirs| theirs.available_input);
            tracing::info!(
                peer = %peer.address,
                channel = setup.name,
                own_next = own.map(|end| end.sequence.0),
                peer_from = kept.map(|kept| kept.from.0),
                peer_until = kept.map(|kept| kept.until.0),
                "the peer answers, but does not hold the whole session"
            );
            return false;
        }
    }
    tracing::info!(peer = %peer.address, "the peer answers: requesting the whole session from it");
    true
}

/// End of a log; `None` if the log is empty or cannot be read.
pub(super) fn log_end(directory: &Path, channel: ChannelId) -> Option<StreamPosition> {
    let (session, next) = Reader::open(directory, channel.0).and_then(|mut log| log.last_entry()).ok()??;
    Some(StreamPosition::at(Session::from_bytes(session)?, Sequence(next)))
}

/// Whether the peer, or the venue's server with it, can supply the messages of the local log again.
fn is_recoverable(own: Option<StreamPosition>, theirs: Option<&ChannelPositions>, has_server: bool) -> bool {
    let Some(own) = own else { return true };
    let Some((logged_through, theirs)) = theirs.and_then(|theirs| Some((theirs.logged_through?, theirs))) else {
        return false;
    };
    match logged_through.session.cmp(&own.session) {
        Ordering::Greater => true,
        Ordering::Less => false,
        Ordering::Equal => theirs.available_input.is_some_and(|available_input| {
            // The venue's server fills gaps; it need not store a whole day.
            let end = if has_server { available_input.next } else { available_input.until };
            available_input.from <= Sequence(1) && end >= own.sequence
        }),
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a difference between the gateways blocks automatic hand-overs: an hour, in which an operator can
/// investigate.
const MISMATCH_HOLD_NS: u64 = 3_600_000_000_000;
/// Least time before a leader with this node number counts as another process. A takeover ends long before this.
const DUPLICATE_ID_NS: u64 = 5_000_000_000;
/// After this time of differing messages a caught-up gateway raises an alarm: a joining gateway has its peer's messages
/// after some seconds, or never.
const MISMATCH_NS: u64 = 10_000_000_000;
/// Interval between progress messages in the log.
const LOG_INTERVAL_NS: u64 = 1_000_000_000;
/// A condition that lasts is an alarm again after this time.
const ALARM_INTERVAL_NS: u64 = 10_000_000_000;
/// Bounds of the time without output after which a leader counts as gone. The link needs a moment to come up.
const SILENCE_NS_MIN: u64 = 1_000_000_000;
const SILENCE_NS_MAX: u64 = 5_000_000_000;
/// Timeout of the query for a peer's positions, which takes a few milliseconds on one network.
const QUERY_TIMEOUT: Duration = Duration::from_millis(500);

/// For how long after its start a gateway that is ahead of the output waits for a peer that does not lead yet, ns.
const PEER_LEADS_NS_MAX: u64 = 20_000_000_000;

#[cfg(test)]
mod tests {
    use mdgw_election::identity::NodeName;
    use mdgw_feeds::{identity::Feed, time::TradingDate};
    use mdgw_pair::pair_link::message::AvailableInput;

    use super::*;

    fn at(restart: u32, sequence: u64) -> StreamPosition {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        StreamPosition::at(Session { feed: Feed::IexTops, date, restart }, Sequence(sequence))
    }

    fn peer(logged_through: StreamPosition, available_input: Option<[u64; 3]>) -> ChannelPositions {
        let available_input = available_input
            .map(|available_input| available_input.map(Sequence))
            .map(|[from, until, next]| AvailableInput { from, until, next });
        ChannelPositions { logged_through: Some(logged_through), available_input, ..ChannelPositions::default() }
    }

    #[test]
    fn a_copy_is_ahead_of_the_output_until_the_output_up_to_it_was_received() {
        let next = at(1, 400);
        for (logged, received, expected) in [
            (Some(at(1, 400)), None, true),
            (None, None, true),
            (Some(at(1, 500)), Some(at(1, 399)), true),
            (Some(at(1, 500)), Some(at(0, 900)), true),
            (Some(at(1, 500)), Some(at(1, 400)), false),
            (Some(at(1, 500)), Some(at(2, 1)), false),
            // The session of the copy is over.
            (Some(at(2, 5)), None, false),
        ] {
            assert_eq!(has_unreceived_copy(logged, received, next), expected, "{logged:?} {received:?}");
        }
    }

    #[test]
    fn a_window_mismatch_counts_for_an_hour() {
        let mut watch = GroupHealthMonitor::default();
        assert!(!watch.has_recent_mismatch(0, MonoNs(5)));
        assert!(watch.has_recent_mismatch(1, MonoNs(10)));
        assert!(watch.has_recent_mismatch(1, MonoNs(9 + MISMATCH_HOLD_NS)));
        assert!(!watch.has_recent_mismatch(1, MonoNs(10 + MISMATCH_HOLD_NS)));
        assert!(watch.has_recent_mismatch(2, MonoNs(10 + MISMATCH_HOLD_NS)));
    }

    #[test]
    fn a_leader_that_keeps_this_gateways_node_id_is_reported_as_a_duplicate() {
        let own = OwnMember { node: NodeId(2), incarnation: Incarnation(7), outlives_ns: 3_000_000_000 };
        let member =
            |node| Member { node: NodeId(node), name: NodeName::new("gw").unwrap(), incarnation: Incarnation(1) };
        let view = |role, node| View { role, leader: Some(member(node)), ..View::default() };
        let reports_of = |views: &[(u64, View)]| {
            let mut watch = DuplicateIdWatch::default();
            let logged = views.iter().map(|(second, view)| watch.update(view, &own, MonoNs(*second * 1_000_000_000)));
            logged.map(|duplicate| u32::from(duplicate.is_some())).collect::<Vec<_>>()
        };
        let duplicate = view(Role::Candidate, 2);
        let staying = [0, 5, 6, 7].map(|second| (second, duplicate.clone()));
        let mut own_record = duplicate.clone();
        own_record.leader.as_mut().unwrap().incarnation = own.incarnation;
        assert_eq!(
            reports_of(&[(0, own_record.clone()), (9, own_record)]),
            [0, 0],
            "the own record, also after its deadline"
        );
        assert_eq!(reports_of(&staying), [0, 0, 1, 0], "reported once, after two leases");
        for other in [view(Role::Leader, 2), view(Role::Ineligible, 2), view(Role::Candidate, 1)] {
            let between = [
                (0, duplicate.clone()),
                (4, other),
                (5, duplicate.clone()),
                (10, duplicate.clone()),
                (11, duplicate.clone()),
            ];
            assert_eq!(
                reports_of(&between),
                [0, 0, 0, 0, 1],
                "the wait begins again after a record of another gateway"
            );
        }
    }

    #[test]
    fn a_log_is_removed_only_if_all_of_it_is_recoverable() {
        let own = Some(at(1, 500));
        for (theirs, may_go_alone, may_go_with_server) in [
            (None, false, false),
            (Some(ChannelPositions::default()), false, false),
            (Some(peer(at(1, 900), None)), false, false),
            (Some(peer(at(1, 900), Some([1, 900, 900]))), true, true),
            (Some(peer(at(1, 900), Some([2, 900, 900]))), false, false),
            (Some(peer(at(1, 400), Some([1, 400, 400]))), false, false),
            (Some(peer(at(1, 900), Some([1, 70, 900]))), false, true),
            (Some(peer(at(0, 900), Some([1, 900, 900]))), false, false),
            (Some(peer(at(2, 3), None)), true, true),
        ] {
            assert_eq!(is_recoverable(own, theirs.as_ref(), false), may_go_alone, "{theirs:?}");
            assert_eq!(is_recoverable(own, theirs.as_ref(), true), may_go_with_server, "{theirs:?} and a server");
            assert!(is_recoverable(None, theirs.as_ref(), false), "there is nothing to lose");
        }
    }
}
