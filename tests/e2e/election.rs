//! One of several gateways on one host leads. After a kill another gateway leads under a higher epoch. After an orderly
//! shutdown it leads without waiting for the lease.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions},
    process::{self, MdgwProcess, Signal},
};

/// Starts gateway `node` of 1 and 2, with the election's records in `records`.
fn start(fixture: &GatewayFixture, records: &Path) -> MdgwProcess {
    start_with(fixture, "file", &format!("[election.file]\ndirectory = \"{}\"\n", records.display()))
}

/// Starts gateway `node` of 1 and 2. Gateway 1 bootstraps the membership. Each gateway has its own address.
fn start_member(fixture: &GatewayFixture, key: &Path) -> MdgwProcess {
    // Take ports that the fixtures have reserved, so that no other process uses them.
    let address = |node: u8| format!("127.0.0.{}:{}", 10 + node, fixture.output.port());
    let keys = format!(
        "[election.emergent]\nallow_split = true\nlisten = \"{}\"\nkey_file = \"{}\"\nminimum_size = 1\nfound = {}\n\
         seeds = [\"{}\", \"{}\"]\n",
        address(fixture.node),
        key.display(),
        fixture.node == 1,
        address(1),
        address(2)
    );
    start_with(fixture, "emergent", &keys)
}

fn start_with(fixture: &GatewayFixture, backend: &str, keys: &str) -> MdgwProcess {
    let (node, peer) = (fixture.node, 3 - fixture.node);
    let election = format!(
        "\n[election]\nbackend = \"{backend}\"\nprofile = \"calm\"\nname = \"gw{node}\"\n\n{keys}\n\
         [[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n",
    );
    let path = fixture.path("gateway.toml");
    fs::write(&path, fixture.config_text(&GatewayOptions::itch()) + &election)
        .expect("the configuration can be written");
    process::start([Path::new("run"), &path])
}

/// Waits until the gateway leads. Returns the count of its epoch.
fn wait_for_leadership_epoch(gateway: &MdgwProcess, times: usize) -> u64 {
    let line = gateway.wait_for_stderr_times("INFO leads ", times);
    let epoch = line.split("epoch=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let digits: String = epoch.unwrap_or_default().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no epoch: {line}"))
}

#[test]
fn after_a_kill_or_stop_the_peer_leads_with_a_higher_epoch() {
    let first_fixture = GatewayFixture::with_node(1);
    let second_fixture = first_fixture.peer_on_same_lines(2);
    let records = first_fixture.path("records");

    let first = start(&first_fixture, &records);
    let first_epoch = wait_for_leadership_epoch(&first, 1);
    let second = start(&second_fixture, &records);
    second.wait_for_stderr("gateway running");
    assert!(!second.stderr_so_far().contains("INFO leads "), "one leads at a time");

    // After a kill the lease must expire first.
    first.stop_with(Signal::Kill);
    let second_epoch = wait_for_leadership_epoch(&second, 1);
    assert!(second_epoch > first_epoch);

    // The restarted gateway is a candidate, and takes over when the leader stops in order.
    let first = start(&first_fixture, &records);
    first.wait_for_stderr("gateway running");
    let ended = second.stop_with(Signal::Terminate).expect_code(0);
    // It hands over if it knows already that the other gateway is eligible.
    assert!(["reason=HandedOver", "reason=Released"].iter().any(|end| ended.stderr.contains(end)), "{}", ended.stderr);
    assert!(wait_for_leadership_epoch(&first, 1) > second_epoch);
    let _ended = first.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn without_a_store_the_oldest_member_leads_and_a_restarted_one_is_youngest() {
    let first_fixture = GatewayFixture::with_node(1);
    let second_fixture = first_fixture.peer_on_same_lines(2);
    let key = first_fixture.path("key");
    fs::write(&key, "07".repeat(32)).expect("the key can be written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the permissions can be set");

    let first = start_member(&first_fixture, &key);
    first.wait_for_stderr("two gateways can lead");
    let first_epoch = wait_for_leadership_epoch(&first, 1);
    let second = start_member(&second_fixture, &key);
    second.wait_for_stderr("state=Connected");
    assert!(!second.stderr_so_far().contains("INFO leads "), "the oldest leads");

    // After the kill no answer comes, and the next gateway by age claims leadership.
    first.stop_with(Signal::Kill);
    let second_epoch = wait_for_leadership_epoch(&second, 1);
    assert!(second_epoch > first_epoch);

    // The restarted gateway joins, although it is configured to bootstrap, and takes over when the leader stops in order.
    let first = start_member(&first_fixture, &key);
    first.wait_for_stderr("state=Connected");
    assert!(!first.stderr_so_far().contains("INFO leads "), "one leads");
    let ended = second.stop_with(Signal::Terminate).expect_code(0);
    // It hands over if it knows already that the other gateway is eligible.
    assert!(["reason=HandedOver", "reason=Released"].iter().any(|end| ended.stderr.contains(end)), "{}", ended.stderr);
    assert!(wait_for_leadership_epoch(&first, 1) > second_epoch);
    let _ended = first.stop_with(Signal::Terminate).expect_code(0);
}
