//! How this gateway is, group by group: how fit, and whether it has joined its peer. A cold thread looks some times a
//! second; the elections are told, and whoever asks for the status.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mdgw_election::{
    auth::SharedKey,
    core::{Role, View},
    driver::Election,
    fitness::{Fitness, FitnessClass, Standing},
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
    pair_link::{PairDesk, PeerEnd, ask_positions, message::ChannelPositions},
    standby::{
        Board, ChannelBoard, Hearing,
        fitness::{ChannelLook, FitnessLook, FitnessWatch, is_well},
        join::{JoinLook, JoinProgress, JoinWatch, Windows},
    },
};
use mdgw_publog::Reader;

use super::{Beginning, GroupDesk, wiring::log_directory};
use crate::config::Resolved;

/// What the last look at a group has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) fitness: Fitness,
    pub(super) joining: JoinProgress,
}

/// For whoever asks: the newest of each group.
pub(super) type Conditions = Arc<Mutex<BTreeMap<GroupId, Condition>>>;

/// How fit the other gateways have told that they are, group by group.
pub(super) type PeerFitness = Arc<Mutex<BTreeMap<(GroupId, NodeId), Fitness>>>;

/// Looks at all groups.
#[derive(Debug, Default)]
pub(super) struct ConditionWatch {
    groups: BTreeMap<GroupId, GroupWatch>,
    newest: Conditions,
    /// Of the first look.
    begun: Option<MonoNs>,
}

#[derive(Debug, Default)]
struct GroupWatch {
    join: JoinWatch,
    fitness: FitnessWatch,
    told: Option<Standing>,
    told_at: MonoNs,
    /// Whether it was told that this gateway does not come to have its peer's messages.
    is_unlike: bool,
    class: Option<FitnessClass>,
    namesake: NamesakeWatch,
    /// Windows that differed, and when one did last.
    different: (u64, Option<MonoNs>),
}

/// Finds out that another process leads as this gateway: with its number.
#[derive(Debug, Default)]
struct NamesakeWatch {
    since: Option<MonoNs>,
    is_told: bool,
}

/// This process in its elections.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnPlace {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    /// How long what a process has there outlives it: its lease, or its session.
    pub(super) stays_ns: u64,
}

/// What is looked at.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) own: OwnPlace,
    pub(super) board: &'a Board,
    /// The link's, where there is one.
    pub(super) pair: Option<&'a PairDesk>,
    pub(super) peer_fitness: &'a PeerFitness,
    /// A leader that lives says something at least so often, ns.
    pub(super) heartbeat_ns: u64,
}

impl ConditionWatch {
    /// For whoever asks.
    pub(super) fn newest(&self) -> &Conditions {
        &self.newest
    }

    /// Looks at one group and tells its election.
    pub(super) fn look(
        &mut self,
        group: GroupId,
        (desk, election): (&GroupDesk, &Election),
        around: &Surroundings<'_>,
        now: MonoNs,
    ) {
        let begun = *self.begun.get_or_insert(now);
        let watch = self.groups.entry(group).or_default();
        let channels = around.channels(desk, now);
        let fitness = watch.fitness.look(&around.fitness_look(&channels, election, now), now);
        let has_leader = channels.iter().any(|channel| channel.leader_is_heard);
        // Just started, it can't know yet whether somebody leads.
        let is_early = now.since(begun) < around.silence_ns();
        let windows = around.windows(desk);
        let different = windows.iter().map(|windows| windows.different).sum();
        election.set_differs(watch.differs(different, now));
        let look = JoinLook {
            has_peer: is_early || has_leader,
            channels: channels.iter().map(|channel| (channel.own.ready, channel.theirs)).collect(),
            fitness: (fitness, around.fittest_peer(group)),
            windows,
        };
        let joining = if is_early && !has_leader { watch.join.progress() } else { watch.join.look(&look, now) };
        watch.tell(group, joining, now);
        watch.tell_fitness(group, fitness);
        if let Some(namesake) = watch.namesake.look(&election.view(), &around.own, now) {
            tracing::error!(
                alarm = "number-twice",
                group = group.0,
                %namesake,
                "another process leads under this gateway's number: each gateway must have one of its own"
            );
        }
        election.set_fitness(fitness);
        election.set_standing(joining.standing);
        lock(&self.newest).insert(group, Condition { fitness, joining });
    }
}

impl GroupWatch {
    /// Whether a window has differed lately, of `count` so far.
    fn differs(&mut self, count: u64, now: MonoNs) -> bool {
        if count > self.different.0 {
            self.different = (count, Some(now));
        }
        self.different.1.is_some_and(|at| now.since(at) < DIFFERS_NS)
    }

    fn tell(&mut self, group: GroupId, joining: JoinProgress, now: MonoNs) {
        let JoinProgress { standing, behind_messages, channels_missing, level_ns, unlike_ns } = joining;
        if unlike_ns >= UNLIKE_NS && !core::mem::replace(&mut self.is_unlike, true) {
            tracing::error!(
                alarm = "does-not-stand",
                group = group.0,
                "as far as its peer, but its messages are not the peer's: its books are in doubt; started again, it begins with the peer's"
            );
        }
        if self.told.replace(standing) != Some(standing) {
            match standing {
                Standing::Joins => {
                    tracing::info!(group = group.0, "stands for election once it is level with its peer")
                }
                Standing::Stands => tracing::info!(group = group.0, "stands for election"),
            }
            self.told_at = now;
        } else if standing == Standing::Joins && now.since(self.told_at) >= TELL_NS {
            let level_ms = level_ns / 1_000_000;
            tracing::info!(group = group.0, behind_messages, channels_missing, level_ms, "joins its peer");
            self.told_at = now;
        }
    }

    fn tell_fitness(&mut self, group: GroupId, fitness: Fitness) {
        let class = fitness.class();
        let before = self.class.replace(class);
        if class != FitnessClass::Fit && before != Some(class) {
            tracing::warn!(group = group.0, fitness = class.name(), ?fitness, "less fit to lead");
        } else if class == FitnessClass::Fit && before.is_some_and(|before| before != class) {
            tracing::info!(group = group.0, "fit to lead again");
        }
    }
}

impl NamesakeWatch {
    /// What an earlier start left ends with its lease or its session, and this gateway, as nothing stands in its way, leads
    /// then. So one that stays is another's. Told once.
    fn look(&mut self, view: &View, own: &OwnPlace, now: MonoNs) -> Option<Member> {
        let is_namesake = |leader: &&Member| leader.node == own.node && leader.incarnation != own.incarnation;
        let leader = view.leader.as_ref().filter(is_namesake);
        let Some(leader) = leader.filter(|_| view.role == Role::Candidate) else {
            *self = Self::default();
            return None;
        };
        let since = *self.since.get_or_insert(now);
        let is_news = now.since(since) >= own.stays_ns.saturating_mul(2).max(NAMESAKE_NS) && !self.is_told;
        self.is_told |= is_news;
        is_news.then(|| leader.clone())
    }
}

/// One channel, from both sides.
#[derive(Clone, Copy, Debug)]
struct Seen {
    own: ChannelBoard,
    look: ChannelLook,
    theirs: Option<StreamPosition>,
    /// The other gateway publishes it.
    leader_is_heard: bool,
}

impl Surroundings<'_> {
    /// Longer than this a leader isn't silent.
    fn silence_ns(&self) -> u64 {
        (3 * self.heartbeat_ns).clamp(SILENCE_NS_MIN, SILENCE_NS_MAX)
    }

    fn is_linked(&self) -> bool {
        self.pair.is_some_and(|pair| !pair.peer_nodes().is_empty())
    }

    /// How fit the fittest of the peers is that are there.
    fn fittest_peer(&self, group: GroupId) -> Fitness {
        let linked = self.pair.map(PairDesk::peer_nodes).unwrap_or_default();
        let told = lock(self.peer_fitness);
        let of_linked = linked.into_iter().filter_map(|node| told.get(&(group, NodeId(node))).copied());
        of_linked.max_by_key(Fitness::class).unwrap_or_default()
    }

    /// What peers have told of a channel that is not too old.
    fn told(&self, channel: ChannelId, now: MonoNs) -> Vec<ChannelPositions> {
        let told = self.pair.map(|pair| pair.told(channel)).unwrap_or_default();
        told.into_iter().filter(|told| now.since(told.at) < self.silence_ns()).map(|told| told.positions).collect()
    }

    fn channels(&self, desk: &GroupDesk, now: MonoNs) -> Vec<Seen> {
        let seen = |channel| {
            let own = self.board.get(channel)?;
            let told = self.told(channel, now);
            let is_on_wire = own.packets > 0 && now.since(own.heard_at) < self.silence_ns();
            let tells = told.iter().any(|told| told.published.is_some());
            // Where the link is to tell of the peer, a leader without a link is one to be succeeded.
            let leader_is_heard =
                if self.pair.is_some() { !told.is_empty() && (is_on_wire || tells) } else { is_on_wire };
            // Of several peers, what the best one has, and whatever any of them has heard.
            let peer_state = match told.as_slice() {
                [] => leader_is_heard.then_some(ChannelState::Live),
                told => {
                    let states = told.iter().filter_map(|told| ChannelState::from_number(told.state));
                    states.max_by_key(|state| is_well(*state))
                }
            };
            let look = ChannelLook {
                channel,
                state: own.state,
                peer_state,
                published: own.published,
                echoed: told.iter().filter_map(|told| told.heard).max(),
            };
            Some(Seen { own, look, theirs: told.iter().filter_map(|told| told.ready).max(), leader_is_heard })
        };
        desk.channels().filter_map(seen).collect()
    }

    fn fitness_look(&self, channels: &[Seen], election: &Election, now: MonoNs) -> FitnessLook {
        let peer_hears = |seen: &Seen| self.told(seen.look.channel, now).iter().any(|told| told.hears_probe);
        FitnessLook {
            channels: channels.iter().map(|seen| seen.look).collect(),
            log_entries_lost: channels.iter().map(|seen| seen.own.log_entries_lost).sum(),
            stalls: election.long_stalls(),
            peer_hears_probe: self.is_linked() && channels.iter().any(peer_hears),
            is_deaf: self.board.hearing(now) == Hearing::Deaf && !election.has_leadership(),
        }
    }

    /// Of each of the group's channels.
    fn windows(&self, desk: &GroupDesk) -> Vec<Windows> {
        desk.channels().filter_map(|channel| Some(self.pair?.windows(channel))).collect()
    }
}

/// What a gateway of a pair is to begin with: where its peer can give the whole session, with that, so that its books
/// are as good; else with what it has. A log that nobody else could give again isn't given away.
#[must_use]
pub fn beginning(config: &Resolved) -> Beginning {
    let Some(link) = config.election.as_ref().and_then(|election| election.link.as_ref()) else {
        return Beginning::OwnLog;
    };
    // A key that can't be read is told when the gateway starts.
    let Ok(key) = SharedKey::load(&link.key_file) else { return Beginning::OwnLog };
    if link.peers.iter().any(|peer| gives_whole_session(config, peer, &key)) {
        Beginning::WholeSession
    } else {
        Beginning::OwnLog
    }
}

/// Whether that peer is there and has all that would be given away.
fn gives_whole_session(config: &Resolved, peer: &PeerEnd, key: &SharedKey) -> bool {
    let Ok(told) = ask_positions(peer.address, config.gateway.node, key.clone(), ASK_PATIENCE) else { return false };
    for setup in &config.channels {
        let theirs = told.iter().find(|theirs| theirs.channel == setup.id);
        let own = log_end(&log_directory(config, setup.id), setup.id);
        if !may_go(own, theirs, setup.recovery.is_some()) {
            tracing::info!(
                peer = %peer.address,
                channel = setup.name,
                own = ?own,
                peer_keeps = ?theirs.and_then(|theirs| theirs.kept),
                "the other gateway is there, but without the whole session"
            );
            return false;
        }
    }
    tracing::info!(peer = %peer.address, "the other gateway is there: the whole session is asked of it");
    true
}

/// How far a log has come; `None` where nothing can be read of it.
pub(super) fn log_end(directory: &Path, channel: ChannelId) -> Option<StreamPosition> {
    let (session, next) = Reader::open(directory, channel.0).and_then(|mut log| log.last()).ok()??;
    Some(StreamPosition::at(Session::from_bytes(session)?, Sequence(next)))
}

/// Whether what the own log has of the present session can be had again.
fn may_go(own: Option<StreamPosition>, theirs: Option<&ChannelPositions>, has_server: bool) -> bool {
    let Some(own) = own else { return true };
    let Some((ready, theirs)) = theirs.and_then(|theirs| Some((theirs.ready?, theirs))) else { return false };
    match ready.session.cmp(&own.session) {
        Ordering::Greater => true,
        Ordering::Less => false,
        Ordering::Equal => theirs.kept.is_some_and(|kept| {
            // The venue's server fills holes; it need not keep a day.
            let end = if has_server { kept.next } else { kept.until };
            kept.from <= Sequence(1) && end >= own.sequence
        }),
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A difference keeps leadership from moving by itself for so long: an hour, in which somebody will have looked at it.
const DIFFERS_NS: u64 = 3_600_000_000_000;
/// Takeovers are over long before.
const NAMESAKE_NS: u64 = 5_000_000_000;
/// Whoever joins has its peer's messages after some seconds, or never.
const UNLIKE_NS: u64 = 10_000_000_000;
/// Between two lines of the log that tell how far joining has come.
const TELL_NS: u64 = 1_000_000_000;
/// The link needs a moment to come up.
const SILENCE_NS_MIN: u64 = 1_000_000_000;
const SILENCE_NS_MAX: u64 = 5_000_000_000;
/// On one network it is a matter of a few milliseconds.
const ASK_PATIENCE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use mdgw_election::identity::NodeName;
    use mdgw_feeds::{identity::Feed, time::TradingDate};
    use mdgw_pair::pair_link::message::KeptInput;

    use super::*;

    fn at(restart: u32, sequence: u64) -> StreamPosition {
        let date = TradingDate::from_yyyymmdd(20_230_822).unwrap();
        StreamPosition::at(Session { feed: Feed::IexTops, date, restart }, Sequence(sequence))
    }

    fn peer(ready: StreamPosition, kept: Option<[u64; 3]>) -> ChannelPositions {
        let kept = kept.map(|kept| kept.map(Sequence)).map(|[from, until, next]| KeptInput { from, until, next });
        ChannelPositions { ready: Some(ready), kept, ..ChannelPositions::default() }
    }

    #[test]
    fn a_window_that_differed_counts_for_an_hour() {
        let mut watch = GroupWatch::default();
        assert!(!watch.differs(0, MonoNs(5)));
        assert!(watch.differs(1, MonoNs(10)));
        assert!(watch.differs(1, MonoNs(9 + DIFFERS_NS)));
        assert!(!watch.differs(1, MonoNs(10 + DIFFERS_NS)));
        assert!(watch.differs(2, MonoNs(10 + DIFFERS_NS)));
    }

    #[test]
    fn who_leads_on_under_this_gateways_number_is_another_process() {
        let own = OwnPlace { node: NodeId(2), incarnation: Incarnation(7), stays_ns: 3_000_000_000 };
        let member =
            |node| Member { node: NodeId(node), name: NodeName::new("gw").unwrap(), incarnation: Incarnation(1) };
        let view = |role, node| View { role, leader: Some(member(node)), ..View::default() };
        let told = |views: &[(u64, View)]| {
            let mut watch = NamesakeWatch::default();
            let looks = views.iter().map(|(second, view)| watch.look(view, &own, MonoNs(*second * 1_000_000_000)));
            looks.map(|namesake| u32::from(namesake.is_some())).collect::<Vec<_>>()
        };
        let twin = view(Role::Candidate, 2);
        let staying = [0, 5, 6, 7].map(|second| (second, twin.clone()));
        let mut oneself = twin.clone();
        oneself.leader.as_mut().unwrap().incarnation = own.incarnation;
        assert_eq!(told(&[(0, oneself.clone()), (9, oneself)]), [0, 0], "first in line, and its deadline is over");
        assert_eq!(told(&staying), [0, 0, 1, 0], "after two leases, once");
        for other in [view(Role::Leader, 2), view(Role::Bystander, 2), view(Role::Candidate, 1)] {
            let between = [(0, twin.clone()), (4, other), (5, twin.clone()), (10, twin.clone()), (11, twin.clone())];
            assert_eq!(told(&between), [0, 0, 0, 0, 1], "an earlier start's record, or none of ours, was between");
        }
    }

    #[test]
    fn a_log_goes_only_where_all_of_it_can_be_had_again() {
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
            assert_eq!(may_go(own, theirs.as_ref(), false), may_go_alone, "{theirs:?}");
            assert_eq!(may_go(own, theirs.as_ref(), true), may_go_with_server, "{theirs:?} and a server");
            assert!(may_go(None, theirs.as_ref(), false), "there is nothing to lose");
        }
    }
}
