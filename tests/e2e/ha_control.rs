//! Requests and commands over the control sockets of running gateways; the audit records starts and stops.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    gateways::GatewayProcesses,
    process::{self, Signal, wait_until},
};

#[test]
fn history_covers_kills_and_restarts() {
    let fixture = GatewayFixture::new();
    let (audit, socket) = (fixture.path("audit.jsonl"), fixture.path("run/control"));
    let keys = format!("[gateway]\naudit_file = \"{}\"\ncontrol_socket = \"{}\"", text(&audit), text(&socket));
    let config = fixture.config_text(&GatewayOptions::itch()).replacen("[gateway]", &keys, 1);
    let path = fixture.path("with_control.toml");
    fs::write(&path, config).unwrap();
    let ha = |tool: &[&str]| process::run(["ha"].iter().chain(tool).chain(&["--socket", text(&socket)]));
    let start = || {
        let gateway = process::start(["run", text(&path)]);
        gateway.wait_for_stderr("gateway running");
        // The socket may appear a moment after the log line.
        wait_until("the gateway opens its control socket", || socket.exists());
        gateway
    };
    // A separate thread writes the audit asynchronously.
    let history = |entries: usize| {
        let mut json = serde_json::Value::Null;
        wait_until("the audit has the entries", || {
            json = ha(&["history", "--json"]).expect_code(0).json();
            json["entries"].as_array().is_some_and(|list| list.len() >= entries)
        });
        json
    };
    let _ = ha(&["status"]).expect_code(2);

    let gateway = start();
    assert!(ha(&["status"]).expect_code(0).stdout.contains("runs standalone"));
    let refused = ha(&["hand-over"]).expect_code(1);
    assert!(refused.stderr.contains("no such group"), "{}", refused.stderr);
    for command in ["hand-over", "drill"] {
        let refused = ha(&[command, "--json"]).expect_code(1);
        let reasons = refused.json()["refused"].clone();
        assert!(reasons.as_array().is_some_and(|reasons| reasons.len() == 1) && refused.stderr.is_empty(), "{reasons}");
    }
    let _ = history(2);
    let _ = gateway.stop_with(Signal::Kill);
    // An incomplete line, as a crash during a write leaves it.
    let full_audit = fs::read(&audit).unwrap();
    fs::write(&audit, [&full_audit[..], b"{\"number\":3,\"time_"].concat()).unwrap();

    fs::remove_file(&socket).unwrap();
    let gateway = start();
    let json = history(5);
    let events: Vec<_> =
        json["entries"].as_array().unwrap().iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["started", "gained", "torn", "started", "gained"]);
    let epochs: Vec<_> = json["entries"].as_array().unwrap().iter().map(|entry| entry["epoch_count"].clone()).collect();
    assert_eq!(epochs, [1, 1, 0, 2, 2]);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(!socket.exists());
    let written = fs::read_to_string(&audit).unwrap();
    let last = written.lines().last().unwrap();
    assert!(last.contains("\"event\":\"stopped\",\"crc32c\":"), "{last}");
}

#[test]
fn only_the_leader_pins_and_unpins() {
    let (pair, [leader, other]) = running_pair();
    let is_pinned = |node| pair.status(node).unwrap()["pinned"] == true;
    for command in ["pin", "unpin"] {
        let refused = pair.gateways.ha(other, &[command]).expect_code(1);
        assert!(refused.stderr.contains("is not the leader"), "{}", refused.stderr);
    }
    assert!(!is_pinned(leader));
    let done = pair.gateways.ha(leader, &["pin"]).expect_code(0);
    assert!(done.stdout.contains("is pinned (no automatic moves)"), "{}", done.stdout);
    wait_until("it is pinned", || is_pinned(leader));
    let _done = pair.gateways.ha(leader, &["unpin"]).expect_code(0);
    wait_until("the pin is removed", || !is_pinned(leader));
}

#[test]
fn a_drill_hands_over_and_back_and_reports_durations() {
    let (pair, [leader, other]) = running_pair();
    pair.wait_until_eligible(other);
    let epoch = |node| pair.status(node).unwrap()["epoch"]["count"].as_u64().unwrap();
    let before = epoch(leader);
    let drill = |from: u8, more: &[&str]| pair.gateways.ha(from, &[&["drill"], more].concat());
    let refused = drill(other, &[]).expect_code(1);
    assert!(refused.stderr.contains(&format!("node {other} does not lead")), "{}", refused.stderr);
    assert_eq!(epoch(leader), before, "a refused drill moves nothing");

    let json = drill(leader, &["--json"]).expect_code(0).json();
    let hand_overs = json["hand_overs"].as_array().unwrap();
    let to: Vec<_> = hand_overs.iter().map(|way| way["to"]["leader"]["node"].as_u64().unwrap()).collect();
    assert_eq!(to, [u64::from(other), u64::from(leader)]);
    assert!(hand_overs.iter().all(|way| way["took_us"].as_u64().unwrap() > 0), "{json}");
    pair.wait_until_leads(leader);
    assert_eq!(epoch(leader), before + 2);
    // The gateway that led during the drill has both changes in its audit.
    wait_until("the audit records the changes", || {
        let history = pair.gateways.ha(other, &["history", "--json"]).expect_code(0).json();
        let entries = history["entries"].as_array().unwrap();
        ["gained", "took_over", "lost"]
            .iter()
            .all(|event| entries.iter().any(|entry| entry["event"] == *event && entry["epoch_count"] == before + 1))
    });
}

#[test]
fn an_unlisted_gateway_is_eligible_once_admitted() {
    let first = GatewayFixture::with_node(1);
    let second = first.peer_on_same_lines(2);
    let records = first.path("records");
    let mut gateways = GatewayProcesses::new(vec![first, second]);
    // The running gateway is configured with another peer, which never starts.
    let config = config_with_peer(gateways.fixture(1), &records, 9);
    gateways.start(1, &config);
    let of = |gateways: &GatewayProcesses, node| gateways.status(node).unwrap()[0].clone();
    wait_until("the first gateway leads", || of(&gateways, 1)["role"] == "leader");
    let config = config_with_peer(gateways.fixture(2), &records, 1);
    gateways.start(2, &config);
    wait_until("the status gives the reason", || {
        of(&gateways, 2)["ineligible_reason"].as_str().is_some_and(|text| text.contains("mdgw ha admit"))
    });

    let admit = |node: u8, name: &str| gateways.ha(1, &["admit", "--node", &node.to_string(), "--name", name]);
    let refused = admit(9, "other").expect_code(1);
    assert!(refused.stderr.contains("node 9 is already named gw9"), "{}", refused.stderr);
    let refused = gateways.ha(2, &["admit", "--node", "5", "--name", "gw5"]).expect_code(1);
    assert!(refused.stderr.contains("is not the leader"), "{}", refused.stderr);
    let done = admit(2, "gw2").expect_code(0);
    assert!(done.stderr.contains("no other gateway has this name or number"), "{}", done.stderr);
    wait_until("the gateway is eligible", || {
        let status = of(&gateways, 2);
        status["role"] == "candidate" && status["ineligible_reason"].is_null()
    });
    gateways.running(2).unwrap().wait_for_stderr("INFO eligible again");
    gateways.kill(1);
    wait_until("the admitted gateway leads", || of(&gateways, 2)["role"] == "leader");
}

/// Starts two gateways. Returns them with the node ids of the leader and of the other gateway.
fn running_pair() -> (ElectedPair, [u8; 2]) {
    let mut pair = ElectedPair::new(GatewayOptions::itch());
    [1, 2].into_iter().for_each(|node| pair.start(node));
    let leader = pair.leader();
    (pair, [leader, 3 - leader])
}

/// Configuration of a gateway over the records, with one peer and no link to it.
fn config_with_peer(fixture: &GatewayFixture, records: &Path, peer: u8) -> String {
    let keys = format!("[gateway]\ncontrol_socket = \"{}\"", text(&fixture.path("control")));
    let election = format!(
        "\n[election]\nbackend = \"file\"\nprofile = \"calm\"\nname = \"gw{}\"\n\n\
         [election.file]\ndirectory = \"{}\"\n\n[[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n",
        fixture.node,
        text(records)
    );
    fixture.config_text(&GatewayOptions::itch()).replacen("[gateway]", &keys, 1) + &election
}
