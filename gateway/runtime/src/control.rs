//! The gateway's answers on the control socket.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use mdgw_election::{
    core::{ConnectionState, Pin, Role, View, VoterView},
    identity::{Member, NodeId, NodeName},
    latch::LeaderLatch,
};
use mdgw_feeds::identity::{Epoch, GroupId};
use mdgw_status::{
    control::{ReloadRequester, Request, Response},
    snapshot::{ListenerSnapshot, Snapshot},
};
use mdgw_sys::clock::mono_now;
use serde_json::{Value, json};

use crate::audit::{
    entry::state_name,
    file::{AuditError, AuditHistory},
};

/// Answers the requests to one gateway.
pub(crate) struct PairControl {
    /// Node number of this gateway.
    pub node: NodeId,
    /// Control of each group of the gateway.
    pub groups: BTreeMap<GroupId, GroupControl>,
    /// The audit file, if there is one.
    pub audit: Option<PathBuf>,
    /// Counters and gauges of the gateway.
    pub snapshot: Arc<dyn Fn() -> Snapshot + Send + Sync>,
    /// What the listeners beside the data path have received and refused.
    pub listeners: Arc<dyn Fn() -> Vec<ListenerSnapshot> + Send + Sync>,
    /// A voter that has not answered for this time counts as silent, ns.
    pub voter_silence_ns: u64,
    /// For how long the main thread has made no progress, ms; `None` if it makes some.
    pub main_thread_stuck_ms: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Who applies a reload; `None` for answers that change nothing.
    pub reload: Option<ReloadRequester>,
}

/// What the control socket needs of one group.
#[derive(Clone)]
pub(crate) struct GroupControl {
    /// The group's election.
    pub latch: Arc<dyn LeaderLatch>,
    /// Admits a gateway that the record does not name; `None` if the backend has no candidate list.
    pub admit: Option<Admit>,
    /// Requests leadership from the leader.
    pub request_leadership: RequestLeadership,
    /// Whether the group's election thread makes no progress: what the election shows is old then.
    pub is_stalled: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Further details for the status, such as positions of the group's channels.
    pub details: Arc<dyn Fn() -> Value + Send + Sync>,
}

/// Adds the gateway to the candidates of the election record.
pub(crate) type Admit = Arc<dyn Fn(NodeId, NodeName) + Send + Sync>;

/// Asks that gateway over the pair link to hand over to this one; `false`: the link to it is down.
pub(crate) type RequestLeadership = Arc<dyn Fn(NodeId) -> bool + Send + Sync>;

impl PairControl {
    /// Answers one request. Blocks until a requested hand-over or reload has completed or failed.
    #[must_use]
    pub(crate) fn handle(&self, request: Request) -> Response {
        Response::from(match request {
            Request::Status {} => Ok(self.status()),
            Request::Snapshot {} => Ok(json!((self.snapshot)())),
            Request::History { count } => self.history(count),
            Request::HandOver { group, target } => self.hand_over(group, target.map(NodeId)),
            Request::TakeBack { group } => self.take_back(group, TAKE_BACK_TIMEOUT),
            Request::Pin { group } => self.set_pin(group, Pin::Pinned),
            Request::Unpin { group } => self.set_pin(group, Pin::Free),
            Request::Admit { group, node, name } => self.admit(group, NodeId(node), &name),
            Request::Reload { config } => {
                return match &self.reload {
                    Some(requester) => requester.reload(config),
                    None => Response::Refused("nothing reloads a configuration here".to_owned()),
                };
            }
        })
    }

    /// The answer to [`Request::Status`].
    pub(crate) fn status(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|(group, control)| {
                let view = control.latch.view();
                // The fence opens before the view says so. Until then its epoch and leader are those of the leadership before.
                let has_leadership = view.role == Role::Leader && control.latch.has_leadership();
                let is_stalled = (control.is_stalled)();
                // An election thread that is stuck takes no answers, so whether the voters answer is unknown.
                let voter_silence_ns = (!is_stalled).then_some(self.voter_silence_ns);
                let mut value = view_value(&view, voter_silence_ns);
                value["election_stalled"] = json!(is_stalled);
                value["group"] = json!(group.0);
                value["has_leadership"] = json!(has_leadership);
                // The election thread writes the view: with a stuck thread, or no store, it names this gateway longer than the
                // fence is open. It names another leader until the next one: without an eligible gateway for ever.
                let has_ended = |leader: &Member| {
                    is_stalled || leader.node == self.node || view.leader_until.is_some_and(|until| mono_now() >= until)
                };
                if !has_leadership && view.leader.as_ref().is_some_and(has_ended) {
                    value["last_leader"] = value["leader"].take();
                }
                let reason = value["leader"].is_null().then(|| why_leader_is_unknown(&view, is_stalled));
                value["leader_unknown"] = json!(reason.flatten());
                value["details"] = (control.details)();
                value
            })
            .collect();
        json!({
            "node": self.node.0,
            "groups": groups,
            "listeners": (self.listeners)(),
            "main_thread_stuck_ms": (self.main_thread_stuck_ms)(),
        })
    }

    fn history(&self, count: usize) -> Result<Value, String> {
        self.history_of(AuditHistory::read, count)
    }

    /// The newest lines, as the answer to [`Request::History`]. However long the file is, reading it takes milliseconds.
    pub(crate) fn recent_history(&self, count: usize) -> Result<Value, String> {
        self.history_of(AuditHistory::read_end, count)
    }

    fn history_of(
        &self,
        read: impl FnOnce(&Path) -> Result<AuditHistory, AuditError>,
        count: usize,
    ) -> Result<Value, String> {
        let path = self.audit.as_ref().ok_or("no audit file: gateway.audit_file is not set")?;
        let history = read(path).map_err(|error| error.to_string())?;
        let from = history.entries.len().saturating_sub(count.min(HISTORY_MAX));
        Ok(json!({ "entries": history.entries[from..], "damaged_lines": history.damaged_lines }))
    }

    fn hand_over(&self, group: Option<u16>, target: Option<NodeId>) -> Result<Value, String> {
        let (group, control) = self.group(group)?;
        let leader = control.latch.hand_over(target).map_err(|error| error.to_string())?;
        Ok(
            json!({ "group": group.0, "leader": member_value(&leader), "epoch": epoch_value(control.latch.view().epoch) }),
        )
    }

    /// Requests leadership from the leader until this gateway leads or `timeout` has passed. The request is repeated,
    /// since a gateway that has just become leader may not be ready to hand over.
    fn take_back(&self, group: Option<u16>, timeout: Duration) -> Result<Value, String> {
        let (group, control) = self.group(group)?;
        let (latch, begun) = (&control.latch, Instant::now());
        let mut asked = begun;
        while !latch.has_leadership() {
            let leader = latch.view().leader;
            let named = leader.as_ref().map_or_else(|| "no gateway".to_owned(), ToString::to_string);
            if begun.elapsed() >= timeout {
                let limit_s = timeout.as_secs();
                return Err(format!(
                    "{named} leads group {} and did not hand over within {limit_s} s; see its log",
                    group.0
                ));
            }
            asked = Instant::now();
            if leader.is_some_and(|leader| leader.node != self.node && !(control.request_leadership)(leader.node)) {
                return Err(format!("{named} leads group {}, and the pair link to it is down", group.0));
            }
            latch.await_leadership_for(TAKE_BACK_RETRY_INTERVAL).map_err(|closed| closed.to_string())?;
        }
        let view = latch.view();
        Ok(json!({
            "group": group.0,
            "leader": view.leader.as_ref().map(member_value),
            "epoch": epoch_value(view.epoch),
            "took_us": u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX),
        }))
    }

    fn set_pin(&self, group: Option<u16>, pin: Pin) -> Result<Value, String> {
        let mut chosen: Vec<_> = match group {
            Some(_) => vec![self.group(group)?],
            None => self.groups.iter().map(|(group, control)| (*group, control)).collect(),
        };
        // A pin of a standby has no effect on the leader.
        chosen.retain(|(_, control)| control.latch.has_leadership());
        if chosen.is_empty() {
            return Err("this gateway is not the leader: send the request to the leader".to_owned());
        }
        for (_, control) in &chosen {
            control.latch.set_pin(pin);
        }
        let groups: Vec<u16> = chosen.iter().map(|(group, _)| group.0).collect();
        Ok(json!({ "groups": groups, "pinned": pin == Pin::Pinned }))
    }

    fn admit(&self, group: Option<u16>, node: NodeId, name: &str) -> Result<Value, String> {
        let (group, control) = self.group(group)?;
        let admit = control.admit.as_ref().ok_or("this backend has no candidate list to admit a gateway to")?;
        let name = NodeName::new(name).ok_or("a node name has 1 to 64 letters, digits, '-', '_' or '.'")?;
        if !control.latch.has_leadership() && node != self.node {
            return Err(
                "this gateway is not the leader: send the request to the leader or to the gateway to be admitted"
                    .to_owned(),
            );
        }
        if let Some(other) = control.latch.view().participants.get(&node).filter(|other| **other != name) {
            return Err(format!("node {} is already named {other}", node.0));
        }
        admit(node, name);
        Ok(json!({ "group": group.0, "node": node.0 }))
    }

    /// The requested group; without a name, the only group.
    fn group(&self, group: Option<u16>) -> Result<(GroupId, &GroupControl), String> {
        let known = || self.groups.keys().map(|group| group.0.to_string()).collect::<Vec<_>>().join(", ");
        let found = match group {
            Some(group) => self.groups.get_key_value(&GroupId(group)),
            None if self.groups.len() > 1 => return Err(format!("group is required; groups: {}", known())),
            None => self.groups.first_key_value(),
        };
        found.map(|(group, control)| (*group, control)).ok_or_else(|| format!("no such group; groups: {}", known()))
    }
}

impl fmt::Debug for PairControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairControl")
            .field("node", &self.node)
            .field("groups", &self.groups.keys())
            .finish_non_exhaustive()
    }
}

/// Why this gateway cannot know who leads the group; `None`: if no gateway is named, none leads.
fn why_leader_is_unknown(view: &View, is_stalled: bool) -> Option<&'static str> {
    if is_stalled {
        Some("the election thread here is stuck")
    } else if matches!(view.connection, ConnectionState::Connected | ConnectionState::Reconnected) {
        None
    } else {
        Some("this gateway is not connected to its election")
    }
}

/// `voter_silence_ns`: `None` if it is unknown whether voters answer.
fn view_value(view: &View, voter_silence_ns: Option<u64>) -> Value {
    json!({
        "role": role_name(view.role),
        "epoch": epoch_value(view.epoch),
        "leader": view.leader.as_ref().map(member_value),
        "successor": view.successor.map(|node| node.0),
        "participants": view.participants.iter().map(|(node, name)| json!({ "node": node.0, "name": name })).collect::<Vec<_>>(),
        "connection": state_name(view.connection),
        "pinned": view.pin == Pin::Pinned,
        "ineligible_reason": view.obstacle.as_ref().map(ToString::to_string),
        "ineligible_lasting": view.obstacle.as_ref().is_some_and(|obstacle| !obstacle.is_temporary()),
        "voters": view.voters.iter().map(|(node, voter)| voter_value(*node, voter, voter_silence_ns)).collect::<Vec<_>>(),
    })
}

fn voter_value(node: NodeId, voter: &VoterView, silence_ns: Option<u64>) -> Value {
    let now = mono_now();
    let answered_ms_ago = voter.answered_at.map(|at| now.since(at) / 1_000_000);
    let answers = silence_ns.map(|silence_ns| voter.answers(silence_ns, now));
    json!({ "node": node.0, "name": voter.name, "answers": answers, "answered_ms_ago": answered_ms_ago })
}

fn member_value(member: &Member) -> Value {
    json!({ "node": member.node.0, "name": member.name, "incarnation": member.incarnation.0 })
}

fn epoch_value(epoch: Epoch) -> Value {
    json!({ "count": epoch.count(), "node": epoch.node() })
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Ineligible => "ineligible",
        Role::Candidate => "candidate",
        Role::Leader => "leader",
        Role::Closed => "closed",
    }
}

/// How long [`PairControl::take_back`] repeats its request: longer than a gateway needs to become eligible again after
/// a hand-over.
const TAKE_BACK_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two requests for leadership: longer than a successful hand-over takes.
const TAKE_BACK_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Most audit lines in one answer.
const HISTORY_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Mutex, PoisonError,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
        time::Duration,
    };

    use mdgw_election::{
        fitness::{Eligibility, Fitness},
        identity::Incarnation,
        latch::{Closed, HandOverError, Listener, ListenerId},
    };
    use mdgw_feeds::time::MonoNs;

    use super::*;
    use crate::audit::{Audit, entry::AuditEvent};

    /// An election of two gateways, in which the requester wins.
    #[derive(Debug, Default)]
    struct FakeElection {
        view: Mutex<View>,
        /// The fence is open already, though the view does not say so yet.
        is_open: bool,
    }

    impl FakeElection {
        fn leading() -> Arc<Self> {
            let participants = [1, 2].map(|node| (NodeId(node), member(node).name)).into();
            let (epoch, leader) = (Epoch::new(5, 1), Some(member(1)));
            // A witness that has not answered.
            let voters = [(NodeId(3), VoterView { name: member(3).name, answered_at: None })].into();
            let view = View { role: Role::Leader, epoch, leader, participants, voters, ..View::default() };
            Arc::new(Self { view: Mutex::new(view), is_open: false })
        }

        fn with<T>(&self, change: impl FnOnce(&mut View) -> T) -> T {
            change(&mut self.view.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    fn member(node: u8) -> Member {
        let name = NodeName::new(&format!("gw{node}")).unwrap();
        Member { node: NodeId(node), name, incarnation: Incarnation(1) }
    }

    impl LeaderLatch for FakeElection {
        fn start(&self) -> Result<(), Closed> {
            Ok(())
        }
        fn close(&self) {}
        fn has_leadership(&self) -> bool {
            self.is_open || self.with(|view| view.role == Role::Leader)
        }
        fn await_leadership(&self) -> Result<Epoch, Closed> {
            Err(Closed)
        }
        fn await_leadership_for(&self, _: Duration) -> Result<Option<Epoch>, Closed> {
            Ok(None)
        }
        fn listen(&self, _: Arc<dyn Listener>) -> ListenerId {
            ListenerId(0)
        }
        fn unlisten(&self, _: ListenerId) {}
        fn view(&self) -> View {
            self.with(|view| view.clone())
        }
        fn hand_over(&self, target: Option<NodeId>) -> Result<Member, HandOverError> {
            self.with(|view| {
                if view.role != Role::Leader {
                    return Err(HandOverError::NotLeader);
                }
                let leader = member(target.map_or(2, |node| node.0));
                (view.role, view.epoch, view.leader) =
                    (Role::Candidate, Epoch::new(6, leader.node.0), Some(leader.clone()));
                Ok(leader)
            })
        }
        fn set_pin(&self, pin: Pin) {
            self.with(|view| view.pin = pin);
        }
        fn set_fitness(&self, _: Fitness) {}
        fn set_eligibility(&self, _: Eligibility) {}
    }

    fn control(groups: u16, audit: Option<PathBuf>) -> PairControl {
        let groups = (1..=groups).map(|group| {
            let details = Arc::new(|| Value::Null);
            let latch = FakeElection::leading();
            let asked = Arc::clone(&latch);
            // The third gateway does not exist; the second hands over its group.
            let request_leadership: RequestLeadership = Arc::new(move |node| {
                asked.with(|view| {
                    if view.pin == Pin::Free {
                        (view.role, view.leader) = (Role::Leader, Some(member(1)));
                    }
                });
                node == NodeId(2)
            });
            // The election thread of the second group is stuck.
            let is_stalled = Arc::new(move || group == 2);
            (GroupId(group), GroupControl { latch, admit: None, request_leadership, is_stalled, details })
        });
        let snapshot = Arc::new(|| Snapshot { source: "gateway 1".to_owned(), ..Snapshot::default() });
        let listeners = Arc::new(|| vec![ListenerSnapshot { name: "votes".to_owned(), ..ListenerSnapshot::default() }]);
        let reload = None;
        PairControl {
            node: NodeId(1),
            groups: groups.collect(),
            audit,
            snapshot,
            listeners,
            voter_silence_ns: 1,
            main_thread_stuck_ms: Arc::new(|| Some(14_000)),
            reload,
        }
    }

    fn ok(handle: Response) -> Value {
        match handle {
            Response::Ok(value) => value,
            Response::Refused(reason) => panic!("{reason}"),
        }
    }

    fn refused(handle: Response) -> String {
        match handle {
            Response::Ok(value) => panic!("{value}"),
            Response::Refused(reason) => reason,
        }
    }

    #[test]
    fn a_hand_over_returns_the_new_leader_and_a_second_one_is_refused() {
        let control = control(1, None);
        let hand_over = || control.handle(Request::HandOver { group: None, target: None });
        let value = ok(hand_over());
        assert_eq!((&value["leader"]["name"], &value["epoch"]["count"]), (&json!("gw2"), &json!(6)));
        assert_eq!(refused(hand_over()), "this gateway is not the leader");
        let group = &ok(control.handle(Request::Status {}))["groups"][0];
        assert_eq!((&group["role"], &group["leader"]["node"]), (&json!("candidate"), &json!(2)));
    }

    #[test]
    fn whether_voters_answer_is_unknown_while_the_election_thread_is_stuck() {
        let control = control(2, None);
        let groups = &ok(control.handle(Request::Status {}))["groups"];
        let shown = |group: usize| (&groups[group]["election_stalled"], &groups[group]["voters"][0]["answers"]);
        assert_eq!(shown(0), (&json!(false), &json!(false)));
        assert_eq!(shown(1), (&json!(true), &json!(null)));
    }

    #[test]
    fn the_leader_is_unknown_while_the_election_thread_is_stuck_or_the_election_is_not_connected() {
        let (mut control, latch) = (control(1, None), FakeElection::leading());
        let is_stuck = Arc::new(AtomicBool::new(false));
        let group = control.groups.get_mut(&GroupId(1)).unwrap();
        group.latch = Arc::clone(&latch) as Arc<dyn LeaderLatch>;
        let stuck = Arc::clone(&is_stuck);
        group.is_stalled = Arc::new(move || stuck.load(Relaxed));
        let shown = |connection, until: Option<MonoNs>, has_stuck_thread| {
            is_stuck.store(has_stuck_thread, Relaxed);
            latch.with(|view| {
                (view.role, view.leader, view.leader_until) = (Role::Candidate, Some(member(2)), until);
                view.connection = connection;
            });
            let group = &control.status()["groups"][0];
            let unknown = group["leader_unknown"].as_str().map(str::to_owned);
            (group["leader"]["node"].as_u64(), group["last_leader"]["node"].as_u64(), unknown)
        };
        let (connected, ended) = (ConnectionState::Connected, Some(mono_now()));
        assert_eq!(shown(connected, None, false), (Some(2), None, None));
        assert_eq!(shown(connected, ended, false), (None, Some(2), None), "nobody leads");
        let stuck = Some("the election thread here is stuck".to_owned());
        // The leader that the stuck thread has last seen may have been replaced since, whatever its lease.
        let lasting = Some(mono_now().plus(60_000_000_000));
        for until in [None, ended, lasting] {
            assert_eq!(shown(connected, until, true), (None, Some(2), stuck.clone()));
        }
        let apart = Some("this gateway is not connected to its election".to_owned());
        assert_eq!(shown(ConnectionState::Suspended, lasting, false), (Some(2), None, None));
        assert_eq!(shown(ConnectionState::Suspended, ended, false), (None, Some(2), apart));
    }

    #[test]
    fn a_stuck_main_thread_is_in_the_status() {
        assert_eq!(control(1, None).status()["main_thread_stuck_ms"], 14_000);
    }

    #[test]
    fn a_leader_is_named_until_its_lease_has_ended_and_as_the_last_one_then() {
        let (mut control, latch) = (control(1, None), FakeElection::leading());
        let leader_until = |until| {
            latch.with(|view| {
                (view.role, view.leader, view.leader_until) = (Role::Ineligible, Some(member(2)), until);
            });
        };
        control.groups.get_mut(&GroupId(1)).unwrap().latch = Arc::clone(&latch) as Arc<dyn LeaderLatch>;
        let leaders = || {
            let group = &control.status()["groups"][0];
            [&group["leader"]["node"], &group["last_leader"]["node"]].map(Value::as_u64)
        };
        leader_until(None);
        assert_eq!(leaders(), [Some(2), None], "the backend names a leader only as long as it answers");
        leader_until(Some(mono_now().plus(60_000_000_000)));
        assert_eq!(leaders(), [Some(2), None]);
        leader_until(Some(mono_now()));
        assert_eq!(leaders(), [None, Some(2)]);
    }

    #[test]
    fn a_leadership_is_not_reported_with_the_epoch_before() {
        let view = View { epoch: Epoch::new(5, 2), leader: Some(member(2)), ..View::default() };
        let mut control = control(1, None);
        let latch = FakeElection { view: Mutex::new(view), is_open: true };
        control.groups.get_mut(&GroupId(1)).unwrap().latch = Arc::new(latch);
        let group = &ok(control.handle(Request::Status {}))["groups"][0];
        let shown = (&group["has_leadership"], &group["leader"]["node"], &group["epoch"]["count"]);
        assert_eq!(shown, (&json!(false), &json!(2), &json!(5)));
    }

    #[test]
    fn take_back_succeeds_unless_the_leader_is_pinned() {
        let control = control(1, None);
        let hand_over = |target| ok(control.handle(Request::HandOver { group: None, target: Some(target) }));
        let _handed_over = hand_over(2);
        let back = ok(control.handle(Request::TakeBack { group: None }));
        assert_eq!(back["leader"]["node"], 1);
        assert!(back["took_us"].is_u64(), "{back}");

        let latch = &control.groups[&GroupId(1)].latch;
        latch.set_pin(Pin::Pinned);
        let _handed_over = hand_over(2);
        let why = control.take_back(None, Duration::ZERO).unwrap_err();
        assert!(why.contains("node 2") && why.contains("did not hand over within 0 s"), "{why}");
        let why = control.take_back(None, Duration::from_secs(1)).unwrap_err();
        assert!(why.contains("did not hand over within 1 s"), "{why}");
    }

    #[test]
    fn take_back_fails_without_a_link_to_the_leader() {
        let control = control(1, None);
        control.groups[&GroupId(1)].latch.set_pin(Pin::Pinned);
        let _handed_over = ok(control.handle(Request::HandOver { group: None, target: Some(3) }));
        let why = refused(control.handle(Request::TakeBack { group: None }));
        assert!(why.contains("node 3") && why.ends_with("the pair link to it is down"), "{why}");
    }

    #[test]
    fn a_snapshot_round_trips() {
        let value = ok(control(1, None).handle(Request::Snapshot {}));
        let snapshot: Snapshot = serde_json::from_value(value).unwrap();
        assert_eq!(snapshot.source, "gateway 1");
    }

    #[test]
    fn a_request_must_name_its_group_if_there_are_several() {
        let control = control(2, None);
        assert_eq!(
            refused(control.handle(Request::HandOver { group: None, target: None })),
            "group is required; groups: 1, 2"
        );
        let missing = refused(control.handle(Request::HandOver { group: Some(7), target: None }));
        assert_eq!(missing, "no such group; groups: 1, 2");
        assert_eq!(ok(control.handle(Request::HandOver { group: Some(2), target: Some(2) }))["group"], 2);
        // The other group has another leader now.
        assert_eq!(ok(control.handle(Request::Pin { group: Some(1) }))["groups"], json!([1]));
        let pinned = |index: usize| ok(control.handle(Request::Status {}))["groups"][index]["pinned"].clone();
        assert_eq!((pinned(0), pinned(1)), (json!(true), json!(false)));
        assert_eq!(ok(control.handle(Request::Unpin { group: None }))["groups"], json!([1]));
        assert_eq!(pinned(0), json!(false));
    }

    #[test]
    fn a_pin_at_a_standby_is_refused() {
        let control = control(1, None);
        assert!(matches!(control.handle(Request::HandOver { group: None, target: None }), Response::Ok(_)));
        for request in [Request::Pin { group: None }, Request::Unpin { group: Some(1) }] {
            assert_eq!(
                refused(control.handle(request)),
                "this gateway is not the leader: send the request to the leader"
            );
        }
    }

    #[test]
    fn only_a_leader_admits_others_and_never_under_a_node_id_in_use() {
        let mut control = control(1, None);
        let admit = |node, name: &str| Request::Admit { group: None, node, name: name.to_owned() };
        let reason = refused(control.handle(admit(3, "gw3")));
        assert_eq!(reason, "this backend has no candidate list to admit a gateway to");
        let admitted = Arc::new(Mutex::new(Vec::new()));
        let to_admit = Arc::clone(&admitted);
        let record: Admit = Arc::new(move |node, _| to_admit.lock().unwrap().push(node.0));
        control.groups.values_mut().for_each(|group| group.admit = Some(Arc::clone(&record)));
        ok(control.handle(admit(3, "gw3")));
        assert_eq!(refused(control.handle(admit(2, "other-name"))), "node 2 is already named gw2");
        ok(control.handle(Request::HandOver { group: None, target: None }));
        assert!(refused(control.handle(admit(4, "gw4"))).starts_with("this gateway is not the leader"));
        // A gateway that does not lead can still admit itself: the record may name no gateway that could.
        ok(control.handle(admit(1, "gw1")));
        assert_eq!(*admitted.lock().unwrap(), [3, 1]);
    }

    #[test]
    fn history_returns_the_last_audit_entries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::start(&path).unwrap();
        (1..=5)
            .for_each(|count| audit.sender().record(GroupId(1), NodeId(1), Epoch::new(count, 1), AuditEvent::Gained));
        drop(audit);
        let value = ok(control(1, Some(path)).handle(Request::History { count: 2 }));
        let counts: Vec<_> = value["entries"].as_array().unwrap().iter().map(|entry| &entry["epoch_count"]).collect();
        assert_eq!(counts, [4, 5]);
        assert!(refused(control(1, None).handle(Request::History { count: 2 })).contains("audit_file"));
    }
}
