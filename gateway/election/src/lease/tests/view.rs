//! What the view says about another leader.

use super::*;

#[test]
fn the_view_says_until_when_another_leaders_lease_lasts() {
    let mut harness = Harness::following(2, record(5, &member(1, 1)));
    let leader = |harness: &Harness| {
        let view = harness.core.view();
        (view.leader, view.leader_until)
    };
    assert_eq!(leader(&harness), (Some(member(1, 1)), Some(harness.now.plus(WAIT_NS))));
    harness.run(WAIT_NS / 2);
    harness.put(Record { renewal: 1, ..record(5, &member(1, 1)) });
    harness.changed();
    assert_eq!(leader(&harness), (Some(member(1, 1)), Some(harness.now.plus(WAIT_NS))), "a renewal");
    harness.run(WAIT_NS);
    assert_eq!(leader(&harness), (Some(member(2, 1)), None));
}
