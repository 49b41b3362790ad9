//! Two gateways with conflicting configurations raise the alarms that the runbooks are named after.

use std::fs;

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayOptions, text, write_key},
};

#[test]
fn duplicate_gateway_ids_raise_an_alarm_and_one_leads() {
    let mut pair = ElectedPair::new(GatewayOptions::itch());
    pair.start(1);
    pair.wait_until_leads(1);
    let config = pair.config_text(2);
    // The second gateway uses the node number and the name of the first.
    let same = [("node = 2", "node = own"), ("gw2", "own"), ("node = 1", "node = 2"), ("gw1", "gw2")]
        .into_iter()
        .chain([("node = own", "node = 1"), ("own", "gw1")])
        .fold(config, |config, (from, to)| config.replace(from, to));
    pair.gateways.start(2, &same);
    let [first, second] = [1, 2].map(|place| pair.gateways.running(place).expect("it runs"));
    for gateway in [first, second] {
        let line = gateway.wait_for_stderr("alarm=\"duplicate-gateway-id\"");
        assert!(line.contains("127.0.0.1"), "the alarm gives the address of the other gateway: {line}");
    }
    let line = second.wait_for_stderr("leads with this gateway's node number");
    assert!(line.contains("alarm=\"duplicate-gateway-id\"") && line.contains("gw1 (node 1, started "), "{line}");
    assert_eq!([pair.role(1), pair.role(2)], ["leader", "candidate"]);
}

#[test]
fn different_link_keys_raise_link_alarms() {
    let mut pair = ElectedPair::new(GatewayOptions::itch());
    pair.start(1);
    let [key, other] = [1, 2].map(|node| pair.gateways.fixture(node).path("key"));
    write_key(&other);
    fs::write(&other, "a5".repeat(32)).expect("the key can be written");
    pair.gateways.start(2, &pair.config_text(2).replace(text(&key), text(&other)));
    for node in [1, 2] {
        let gateway = pair.gateways.running(node).expect("it runs");
        let line = gateway.wait_for_stderr("alarm=\"pair-link-refused\"");
        assert!(line.contains("peer=127.0.0.1"), "{line}");
        let line = gateway.wait_for_stderr("has not been up since the start");
        assert!(line.contains("alarm=\"pair-link-down\""), "{line}");
    }
}
