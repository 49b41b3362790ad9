//! A leader that is outranked.

use super::*;

#[test]
fn an_outranked_leader_keeps_its_fence_open_until_the_store_has_its_higher_epoch() {
    let mut harness = Harness::leading(1);
    harness.run(30 * MS);
    harness.outputs.clear();
    harness.step(Input::ObservedEpoch(Epoch::new(70, 2)));
    harness.step(Input::Time);
    assert!(harness.outputs.contains(&Output::Notice(Notice::HigherEpochObserved(Epoch::new(70, 2)))));
    let is_closed = |output: &Output<_>| matches!(output, Output::Close { .. });
    assert!(!harness.outputs.iter().any(is_closed), "the store has not answered");
    assert_eq!(harness.core.view().role, Role::Leader);
    harness.run(MS);
    // Closed and opened in one step: nothing is silent in between.
    let changes = harness.outputs.iter().filter(|output| is_closed(output) || matches!(output, Output::Open { .. }));
    let epochs: Vec<_> = changes
        .map(|output| match output {
            Output::Close { epoch, .. } | Output::Open { epoch, .. } => *epoch,
            _ => Epoch::default(),
        })
        .collect();
    assert_eq!(epochs, [Epoch::new(1, 1), Epoch::new(71, 1)]);
    // The record shows the epoch, so that the next leader opens above it.
    assert_eq!(harness.stored.as_ref().unwrap().record.epoch, Epoch::new(71, 1));
}
