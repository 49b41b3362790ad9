//! A real Prometheus and the shipped rules and dashboard, against a pair that runs; health for load balancers in an election.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, fs, io::Write as _, net::SocketAddrV4, process::Command};

use mdgw_runtime::gateway::sample_names;
use mdgw_sys::alarm::Alarm;
use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayOptions, free_address, text},
    held_thread::{HeldThreads, has_strace},
    http::get_at,
    process::{self, wait_until},
    prometheus::{Prometheus, dashboard_queries, program_of, rules},
    service_unit::ops,
    skip::skip,
    tmpfs::TmpfsMount,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Panels that show nothing as long as nothing has happened, and of a pair without voters.
const MAY_BE_EMPTY: [&str; 3] = ["Firing alerts", "Refused by listeners", "Voters"];

#[test]
fn the_alert_rules_pass_their_own_tests() {
    let folder = ops("prometheus");
    let check = |rules: &str| {
        let mut promtool = Command::new("promtool");
        promtool.args(["test", "rules", rules]).current_dir(&folder).output().expect("promtool runs")
    };
    let passed = check("mdgw.rules.test.yml");
    let shown = format!("{}{}", String::from_utf8_lossy(&passed.stdout), String::from_utf8_lossy(&passed.stderr));
    assert!(passed.status.success() && shown.contains("SUCCESS"), "{shown}");

    // The tool reports a rule that never fires.
    let broken = tempfile::tempdir().unwrap();
    let rules = fs::read_to_string(rules()).unwrap().replace("mdgw_channel_state == 6", "mdgw_channel_state == 7");
    fs::write(broken.path().join("mdgw.rules.yml"), rules).unwrap();
    fs::copy(folder.join("mdgw.rules.test.yml"), broken.path().join("tests.yml")).unwrap();
    let failed = check(text(&broken.path().join("tests.yml")));
    assert!(!failed.status.success());
}

#[test]
fn prometheus_agrees_with_top_and_rules_and_dashboard_work_on_it() {
    let itch = GatewayOptions::itch();
    let retransmission = itch.retransmission.clone() + "snapshots = true\n";
    let mut pair = ElectedPair::new(GatewayOptions { latency: "interval_ms = 100", retransmission, ..itch })
        .with_admin_listeners();
    pair.start(1);
    pair.start(2);
    let prometheus = Prometheus::start(&[pair.admin_address(1), pair.admin_address(2)]);
    let instance = format!("instance=\"{}\"", pair.admin_address(1));

    // No line has brought a packet yet, which is an alarm some seconds after the start.
    let firing = |alert: &str| firing(&prometheus, alert, pair.admin_address(1));
    wait_until("the alert fires", || firing("line-silent").is_some());
    let alert = firing("line-silent").unwrap();
    assert_eq!(alert["labels"]["channel"], "one", "{alert}");
    assert_eq!(alert["annotations"]["runbook"], "ops/runbooks/line-silent.md", "{alert}");
    let link = format!("http://{}/runbooks/line-silent.md", pair.admin_address(1));
    assert_eq!(alert["annotations"]["runbook_url"], link, "{alert}");
    assert_eq!(get_at(pair.admin_address(1), "/runbooks/line-silent.md").0, 200);
    assert_eq!(prometheus.value(&format!("mdgw_alarms_total{{{instance}, alarm=\"line-silent\"}}")), Some(2.0));
    assert!(firing("channel-failed").is_none());
    let queries = dashboard_queries();
    let (_, alerts) = queries.iter().find(|(title, _)| title == "Firing alerts").unwrap();
    wait_until("the dashboard shows the alert", || !prometheus.query(alerts).is_empty());

    let _ = pair.gateways.fixture(1).sim(&["--messages", "20000", "--rate", "20000"]).end().expect_code(0);
    wait_until("prometheus and top agree", || {
        let socket = pair.gateways.fixture(1).path("control");
        let top = process::run(["top", "--once", "--json", "--interval", "1ms", "--socket", text(&socket)]);
        let top = top.expect_code(0).json();
        let channel = &top["channels"][0];
        let names = ["messages", "records", "gaps", "gap_messages", "drops", "book_faults", "packets_sent"];
        let agrees = names.iter().all(|name| {
            let scraped = prometheus.value(&format!("mdgw_channel_{name}_total{{{instance}}}"));
            scraped.is_some() && scraped == channel[name].as_f64()
        });
        agrees && channel["messages"].as_u64() > Some(19_000)
    });

    // Each refusal is exported before the first one, so that a rate has it: the admin listener refuses what is no request.
    let refused = format!("mdgw_listener_refused_total{{{instance}, listener=\"admin\", reason=\"malformed\"}}");
    assert_eq!(prometheus.value(&refused), Some(0.0));
    std::net::TcpStream::connect(pair.admin_address(1)).unwrap().write_all(b"\xff\xff\r\n\r\n").unwrap();
    wait_until("the refusal is scraped", || prometheus.value(&refused) == Some(1.0));

    // Every metric of a gateway that is declared is exported, and no other.
    let names = prometheus.api("label/__name__/values");
    let of_gateway =
        names.as_array().unwrap().iter().filter_map(Value::as_str).filter(|name| name.starts_with("mdgw_"));
    assert_eq!(of_gateway.map(str::to_owned).collect::<BTreeSet<_>>(), names_of_this_pair());

    let groups = prometheus.api("rules?type=alert");
    let evaluated = groups["groups"][0]["rules"].as_array().unwrap();
    assert!(evaluated.len() > Alarm::ALL.len() / 2, "{groups}");
    for rule in evaluated {
        assert_eq!(rule["health"], "ok", "{rule}");
    }

    assert!(queries.len() > 20, "{queries:?}");
    // `program_metrics` has those of the programs beside a gateway.
    for (title, query) in queries.into_iter().filter(|(_, query)| program_of(query).is_none()) {
        if MAY_BE_EMPTY.contains(&title.as_str()) {
            let _parsed = prometheus.query(&query);
        } else {
            // A rate takes two scrapes after the first.
            wait_until(&format!("panel {title}: {query}"), || !prometheus.query(&query).is_empty());
        }
    }
}

#[test]
fn the_dashboard_shows_the_voters_of_a_quorum() {
    let mut pair = ElectedPair::new(GatewayOptions::itch()).with_admin_listeners();
    let at = |name| pair.gateways.fixture(1).path(name);
    let voter = |node| format!("[[election.quorum.voter]]\nnode = {node}\naddress = \"{}\"\n", free_address());
    let quorum = format!(
        "[election.quorum]\nlisten = \"{}\"\nkey_file = \"{}\"\nvote_directory = \"{}\"\n{}{}\n",
        free_address(),
        text(&at("key")),
        text(&at("votes")),
        voter(2),
        voter(3)
    );
    let config = pair.config_text(1).replace("backend = \"file\"", "backend = \"quorum\"");
    let (before, rest) = config.split_once("[election.file]").unwrap();
    let (_, after) = rest.split_once("[election.link]").unwrap();
    let config = format!("{before}{quorum}[election.link]{after}");
    pair.gateways.start(1, &config);
    let prometheus = Prometheus::start(&[pair.admin_address(1)]);
    let queries = dashboard_queries();
    let (_, voters) = queries.iter().find(|(title, _)| title == "Voters").unwrap();
    // Neither of them runs.
    wait_until("the panel shows both", || {
        let shown = prometheus.query(voters);
        shown.len() == 2 && shown.iter().all(|voter| voter["value"][1] == "0" && voter["metric"]["name"].is_string())
    });
}

/// The declared names but those of the programs beside a gateway, which have listeners of their own, and of voters: only a
/// `quorum` has some.
fn names_of_this_pair() -> BTreeSet<String> {
    let others = [
        "mdgw_live_",
        "mdgw_journal_",
        "mdgw_nats_",
        "mdgw_mirror_",
        "mdgw_program",
        "mdgw_group_voter_up",
        "mdgw_channel_snapshot_group_",
    ];
    sample_names().into_iter().filter(|name| !others.iter().any(|other| name.starts_with(other))).collect()
}

/// The alert of that name, if it fires for that gateway.
fn firing(prometheus: &Prometheus, alert: &str, gateway: SocketAddrV4) -> Option<Value> {
    let alerts = prometheus.api("alerts")["alerts"].as_array().cloned().unwrap_or_default();
    alerts.into_iter().find(|found| {
        found["labels"]["alertname"] == alert
            && found["state"] == "firing"
            && found["labels"]["instance"] == gateway.to_string()
    })
}

#[test]
fn a_lost_sentinel_and_an_audit_on_a_full_disk_fire_their_alerts() {
    let mut pair = ElectedPair::new(GatewayOptions::itch()).with_admin_listeners();
    let audit = pair.gateways.fixture(1).path("audit");
    let Some(disk) = TmpfsMount::new("an audit on a full disk", audit, "256k") else { return };
    let config = pair.config_text(1).replace("audit.jsonl", "audit/audit.jsonl");
    pair.gateways.start(1, &config);
    pair.wait_until_leads(1);
    pair.start(2);
    pair.wait_until_eligible(2);
    let address = pair.admin_address(1);
    let prometheus = Prometheus::start(&[address]);
    let value = |name: &str| prometheus.value(name);
    wait_until("the gateway is scraped", || value("mdgw_sentinel_lost") == Some(0.0));
    assert_eq!(value("mdgw_audit_failures_total"), Some(0.0));
    assert!(firing(&prometheus, "no-sentinel", address).is_none());
    assert!(firing(&prometheus, "audit-failing", address).is_none());

    let gateway = pair.gateways.running(1).unwrap();
    let sentinel = i32::try_from(gateway.only_child()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(sentinel, Signal::KILL).unwrap();
    gateway.wait_for_stderr("alarm=\"no-sentinel\"");
    wait_until("the gauge shows it", || value("mdgw_sentinel_lost") == Some(1.0));
    wait_until("the alert fires", || firing(&prometheus, "no-sentinel", address).is_some());

    disk.fill();
    // The rest of the file's last page still takes some lines.
    wait_until("the audit alarm is raised", || {
        let _refused_if_not_yet_eligible = pair.gateways.ha(1, &["drill"]);
        gateway.stderr_so_far().contains("alarm=\"audit-failing\"")
    });
    wait_until("each further attempt counts", || value("mdgw_audit_failures_total") > Some(2.0));
    wait_until("the alert fires", || firing(&prometheus, "audit-failing", address).is_some());
    disk.remove_filler();
    gateway.wait_for_stderr("the audit file is writable again");
    // What was kept in memory is on disk. The first line on the full disk was cut, and is there again.
    let numbers = || {
        let text = fs::read_to_string(disk.path().join("audit.jsonl")).unwrap();
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.map(|entry| entry["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let written = numbers();
    assert_eq!(written, (1..=written.len() as u64).collect::<Vec<_>>(), "no change is lost");
    let before = value("mdgw_audit_failures_total");
    let _done = pair.gateways.ha(1, &["drill"]).expect_code(0);
    wait_until("later changes are written", || numbers().len() > written.len());
    assert_eq!(value("mdgw_audit_failures_total"), before, "no attempt fails any more");
    let _ = pair.gateways.stop(1);
}

/// The sentinel is a process of its own, without metrics.
#[test]
fn a_gateway_that_its_sentinel_may_not_kill_fires_the_alert() {
    if !has_strace() {
        return skip("a_gateway_that_its_sentinel_may_not_kill_fires_the_alert", "strace is not installed");
    }
    let mut pair = ElectedPair::new(GatewayOptions::itch()).with_admin_listeners();
    let config = pair.config_text(1).replace("[election.link]\n", "[election.link]\nhang_limit_ms = 500\n");
    pair.gateways.start(1, &config);
    pair.wait_until_leads(1);
    let address = pair.admin_address(1);
    let prometheus = Prometheus::start(&[address]);
    wait_until("the gateway is scraped", || prometheus.value("mdgw_sentinel_kill_refused") == Some(0.0));
    let gateway = pair.gateways.running(1).unwrap();
    let _refused = HeldThreads::refused(gateway.only_child(), "pidfd_send_signal", "EPERM");

    gateway.signal(process::Signal::Stop);
    gateway.wait_for_stderr("cannot kill the gateway: its death is announced when the process has ended");
    gateway.signal(process::Signal::Continue);
    gateway.wait_for_stderr("the sentinel could not kill this gateway");
    wait_until("the gauge shows it", || prometheus.value("mdgw_sentinel_kill_refused") == Some(1.0));
    wait_until("the alert fires", || firing(&prometheus, "kill-refused", address).is_some());
    assert_eq!(prometheus.value("mdgw_alarms_total{alarm=\"kill-refused\"}"), Some(1.0));
    let _ = pair.gateways.stop(1);
}

#[test]
fn exactly_one_gateway_of_a_pair_answers_that_it_leads() {
    let mut pair = ElectedPair::new(GatewayOptions::itch()).with_admin_listeners();
    pair.start(1);
    pair.start(2);
    let leads = |pair: &ElectedPair, node: u8| get_at(pair.admin_address(node), "/leader");
    let leader = pair.leader();
    let standby = 3 - leader;
    wait_until("the leader answers 200", || leads(&pair, leader) == (200, "leads group 1\n".to_owned()));
    assert_eq!(leads(&pair, standby), (503, "does not lead group 1\n".to_owned()));
    assert_eq!(get_at(pair.admin_address(leader), "/leader?group=1").0, 200);
    assert_eq!(get_at(pair.admin_address(leader), "/leader?group=2"), (503, "no such group\n".to_owned()));

    // An ordered hand-over: never do both answer 200.
    pair.wait_until_eligible(standby);
    // The leader refuses until it knows that the other one is eligible.
    wait_until("the leader hands over", || pair.gateways.ha(leader, &["hand-over"]).code == Some(0));
    wait_until("the answer moves", || {
        // In this order: once the successor leads, the former leader no longer does.
        let now = leads(&pair, standby).0;
        let former = leads(&pair, leader).0;
        assert!((former, now) != (200, 200), "both lead");
        now == 200
    });
    assert_eq!(leads(&pair, leader).0, 503);

    // The leader dies: the answer moves back.
    pair.wait_until_eligible(leader);
    pair.gateways.kill(standby);
    wait_until("the survivor answers 200", || leads(&pair, leader).0 == 200);
}
