//! All orders, within bounds, in which three members can be cut off from each other, restart and meet again.
//!
//! The network delivers in order and in time unless it is cut. The search chooses when and between which members it is
//! cut, which member is killed, and which one restarts. Between choices time advances in steps. At the end all cuts
//! heal, stopped members start, and all must reunite.

use stateright::{Checker as _, Model, Property};

use super::{Safeguard, test_cluster::SimulatedNetwork};

/// A cluster of three, with two as its minimum size.
#[derive(Clone, Debug)]
struct Cluster {
    disabled: Option<Safeguard>,
    cuts: Cuts,
    choices_max: u8,
}

/// Faults of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cuts {
    /// Whole sides are cut off, both ways.
    Clean,
    /// Single directions are cut.
    OneWay,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    network: SimulatedNetwork,
    choices: u8,
    /// Steps since the last choice.
    steps: u8,
    /// At the end: whether all have reunited.
    end: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// Time advances.
    Step,
    /// No further choice.
    End,
    /// One node on one side, two on the other.
    Isolate(usize),
    /// Nothing gets through from the first to the second.
    Cut(usize, usize),
    /// All cuts end.
    Heal,
    Kill(usize),
    Start(usize),
}

/// Two heartbeats, and not a divisor of the failure time-out.
const STEP_MS: u64 = 45;
/// Longer than a failure time-out and a claim.
const STEPS_MAX: u8 = 4;
/// Enough for probes and joins with all their attempts.
const QUIET_MS: u64 = 6_000;

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { network: SimulatedNetwork::formed(3, 2, self.disabled), choices: 0, steps: 0, end: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.end.is_some() {
            return;
        }
        if state.choices == self.choices_max {
            return actions.push(Action::End);
        }
        if state.steps < STEPS_MAX {
            actions.push(Action::Step);
        }
        let network = &state.network;
        for index in 0..3 {
            actions.push(if network.nodes[index].core.is_some() { Action::Kill(index) } else { Action::Start(index) });
        }
        if !network.cuts.is_empty() {
            actions.push(Action::Heal);
        } else if self.cuts == Cuts::Clean {
            actions.extend((0..3).map(Action::Isolate));
        }
        if self.cuts == Cuts::OneWay {
            let pairs = (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
            let new = pairs.filter(|pair| pair.0 != pair.1 && !network.cuts.contains(pair));
            actions.extend(new.map(|(from, to)| Action::Cut(from, to)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step | Action::End => state.steps += 1,
            _ => (state.choices, state.steps) = (last.choices + 1, 0),
        }
        let network = &mut state.network;
        match action {
            Action::Step => network.run_ms(STEP_MS),
            Action::End => {
                // The last choice takes effect first.
                network.run_ms(STEP_MS * u64::from(STEPS_MAX));
                network.heal();
                for index in 0..3 {
                    if network.nodes[index].core.is_none() {
                        network.start(index);
                    }
                }
                network.run_ms(QUIET_MS);
                state.end = Some(network.is_reunited());
            }
            Action::Isolate(index) => network.isolate(&[index]),
            Action::Cut(from, to) => drop(network.cuts.insert((from, to))),
            Action::Heal => network.heal(),
            Action::Kill(index) => network.kill(index),
            Action::Start(index) => network.start(index),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UNIQUE, |_: &Self, state: &State| state.network.epochs_are_unique()),
            Property::always(REUNITED, |_, state: &State| state.end != Some(false)),
            // Of three nodes only one side can have two.
            Property::always(ONE_LEADER, |_, state: &State| state.network.leaders_max <= 1),
        ]
    }
}

const UNIQUE: &str = "no epoch is opened twice";
const REUNITED: &str = "after a quiet time all are one, with one leader";
const ONE_LEADER: &str = "two never lead at once";

/// Searches all states; returns the names of violated properties.
fn violated(disabled: Option<Safeguard>, cuts: Cuts, choices_max: u8) -> Vec<&'static str> {
    let checker = Cluster { disabled, cuts, choices_max }.checker().spawn_dfs().join();
    if disabled.is_none() {
        // The search covered enough.
        assert!(checker.unique_state_count() > 200, "only {} states", checker.unique_state_count());
    }
    let discoveries = checker.discoveries();
    let violated = discoveries.keys().copied().collect();
    let counterexamples: Vec<_> = discoveries.into_iter().map(|(name, path)| (name, path.into_actions())).collect();
    assert!(disabled.is_some() || counterexamples.is_empty(), "{counterexamples:?}");
    violated
}

#[test]
fn splits_restarts_and_merges_keep_one_leader_and_reunite() {
    assert_eq!(violated(None, Cuts::Clean, 2), [] as [&str; 0]);
}

#[test]
fn one_way_cuts_keep_one_leader_and_reunite() {
    assert_eq!(violated(None, Cuts::OneWay, 2), [] as [&str; 0]);
}

#[test]
fn without_a_minimum_size_a_clean_cut_has_two_leaders() {
    assert!(violated(Some(Safeguard::MinimumSize), Cuts::Clean, 1).contains(&ONE_LEADER));
}

#[test]
fn without_the_heartbeat_deadline_a_clean_cut_has_two_leaders() {
    assert!(violated(Some(Safeguard::HeartbeatDeadline), Cuts::Clean, 1).contains(&ONE_LEADER));
}

#[test]
fn if_claims_may_displace_live_members_a_clean_cut_has_two_leaders() {
    assert!(violated(Some(Safeguard::DisplaceOnlySilent), Cuts::Clean, 2).contains(&ONE_LEADER));
}

#[test]
fn without_echoes_one_way_cuts_have_two_leaders() {
    assert!(violated(Some(Safeguard::RequireEcho), Cuts::OneWay, 2).contains(&ONE_LEADER));
}

#[test]
fn without_yielding_the_sides_of_a_split_do_not_reunite() {
    assert!(violated(Some(Safeguard::SmallerSideYields), Cuts::Clean, 2).contains(&REUNITED));
}
