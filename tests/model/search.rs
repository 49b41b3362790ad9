//! Breadth-first search of a model, and assertions about its result.

use std::fmt::Debug;

use mdgw_tests::captures::print_to_stderr;
use stateright::{Checker as _, HasDiscoveries, Model};

/// A model whose property `safe` holds in every state without a violation.
pub(super) trait SafetyModel:
    Model<State: SearchState, Action: Clone + Debug + PartialEq> + Clone + Send + Sync + 'static
{
    type Violation: Copy + Debug + PartialEq;

    /// The violation in that state, if any.
    fn violation(state: &Self::State) -> Option<Self::Violation>;
}

/// The traits that a state needs for the search.
pub(super) trait SearchState: Clone + Debug + PartialEq + std::hash::Hash + Send + Sync + 'static {}
impl<S: Clone + Debug + PartialEq + std::hash::Hash + Send + Sync + 'static> SearchState for S {}

/// Result of a search.
struct SearchResult<W> {
    /// The violation, and the number of steps to it.
    violation: Option<(W, usize)>,
    /// Number of generated states.
    states: usize,
    reached: Vec<&'static str>,
}

/// Searches until `states` states have been generated, or a violation is found.
fn search<M: SafetyModel>(model: M, states: usize) -> SearchResult<M::Violation> {
    let stop_condition = HasDiscoveries::AnyFailures;
    let checker = model
        .checker()
        .threads(1)
        .target_state_count(states_wanted(states))
        .finish_when(stop_condition)
        .spawn_bfs()
        .join();
    let mut discoveries = checker.discoveries();
    let violation = discoveries.remove("safe").map(|path| {
        let steps = path.clone().into_actions().len();
        (path.into_states().last().and_then(M::violation).expect("the state has a violation"), steps)
    });
    SearchResult { violation, states: checker.state_count(), reached: discoveries.into_keys().collect() }
}

/// Asserts that no violation is found, although all of `reached` happens.
#[track_caller]
pub(super) fn assert_safe<M: SafetyModel>(what: &str, model: M, states: usize, reached: &[&str]) {
    let found = search(model, states);
    print_to_stderr(&format!("{what}: {} states", found.states));
    assert_eq!(found.violation, None, "after {} states", found.states);
    for wanted in reached {
        assert!(found.reached.contains(wanted), "too few states for this: {wanted}: {}", found.states);
    }
}

#[track_caller]
pub(super) fn assert_violates<M: SafetyModel>(what: &str, model: M, states: usize, expected: &[M::Violation]) {
    let found = search(model, states);
    let (violation, steps) = found.violation.unwrap_or_else(|| panic!("not found in {} states", found.states));
    print_to_stderr(&format!("without {what}: {violation:?} after {steps} steps, {} states", found.states));
    assert!(expected.contains(&violation), "{violation:?} after {steps} steps, {} states", found.states);
}

/// Asserts two searches with equal numbers of states. With all safeguards there is no violation, although all of `reached`
/// happens. With the safeguard switched off there is a violation. So the search is deep enough to check that safeguard.
#[track_caller]
pub(super) fn assert_safeguard_needed<M: SafetyModel>(
    safeguard: &str,
    model: M,
    (states, reached): (usize, &[&str]),
    switch_off: fn(&mut M),
    expected: &[M::Violation],
) {
    let mut without = model.clone();
    switch_off(&mut without);
    assert_violates(safeguard, without, states, expected);
    assert_safe(&format!("with {safeguard}"), model, states, reached);
}

/// Number of states to generate. A longer search is requested by `STATES=10000000`.
fn states_wanted(states: usize) -> usize {
    let wanted = std::env::var("STATES").ok().map(|text| text.parse().expect("a number"));
    wanted.map_or(states, |wanted: usize| wanted.max(states))
}
