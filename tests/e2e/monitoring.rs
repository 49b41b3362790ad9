//! A real Prometheus and the shipped rules and dashboard, against a pair that runs; health for load balancers in an election.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, fs, process::Command};

use mdgw_runtime::gateway::sample_names;
use mdgw_sys::alarm::Alarm;
use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayOptions, text},
    http::get_at,
    process::{self, wait_until},
    prometheus::{Prometheus, rules},
    service_unit::ops,
};
use serde_json::Value;

/// Panels that show nothing as long as nothing has happened.
const MAY_BE_EMPTY: [&str; 2] = ["Firing alerts", "Refused by listeners"];

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
    let mut pair = ElectedPair::new(GatewayOptions { latency: "interval_ms = 100", ..GatewayOptions::itch() })
        .with_admin_listeners();
    pair.start(1);
    pair.start(2);
    let prometheus = Prometheus::start(&[pair.admin_address(1), pair.admin_address(2)]);
    let instance = format!("instance=\"{}\"", pair.admin_address(1));

    // No line has brought a packet yet, which is an alarm some seconds after the start.
    let firing = |alert: &str| {
        let alerts = prometheus.api("alerts")["alerts"].as_array().cloned().unwrap_or_default();
        alerts.into_iter().find(|found| {
            found["labels"]["alertname"] == alert
                && found["state"] == "firing"
                && found["labels"]["instance"] == pair.admin_address(1).to_string()
        })
    };
    wait_until("the alert fires", || firing("line-silent").is_some());
    let alert = firing("line-silent").unwrap();
    assert_eq!(alert["labels"]["channel"], "one", "{alert}");
    assert_eq!(alert["annotations"]["runbook"], "ops/runbooks/line-silent.md", "{alert}");
    assert_eq!(prometheus.value(&format!("mdgw_alarms_total{{{instance}, alarm=\"line-silent\"}}")), Some(2.0));
    assert!(firing("channel-failed").is_none());
    let dashboard: Value = serde_json::from_slice(&fs::read(ops("grafana/mdgw.json")).unwrap()).unwrap();
    let queries = queries(&dashboard);
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

    // Every metric that is declared is exported, and no other.
    let names = prometheus.api("label/__name__/values");
    let of_gateway =
        names.as_array().unwrap().iter().filter_map(Value::as_str).filter(|name| name.starts_with("mdgw_"));
    assert_eq!(of_gateway.map(str::to_owned).collect::<BTreeSet<_>>(), sample_names());

    let groups = prometheus.api("rules?type=alert");
    let evaluated = groups["groups"][0]["rules"].as_array().unwrap();
    assert!(evaluated.len() > Alarm::ALL.len() / 2, "{groups}");
    for rule in evaluated {
        assert_eq!(rule["health"], "ok", "{rule}");
    }

    assert!(queries.len() > 20, "{queries:?}");
    for (title, query) in queries {
        if MAY_BE_EMPTY.contains(&title.as_str()) {
            let _parsed = prometheus.query(&query);
        } else {
            // A rate takes two scrapes after the first.
            wait_until(&format!("panel {title}: {query}"), || !prometheus.query(&query).is_empty());
        }
    }
}

/// Titles and expressions of all panels, and of the variables, with every variable set to what Grafana would insert for "All".
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let set = |expression: &str| {
        let expression = expression.replace("$__rate_interval", "5s").replace("$__range", "60s");
        let expression = expression.replace("$instance", ".*").replace("$channel", ".*");
        assert!(!expression.contains('$'), "a variable that the test does not know: {expression}");
        expression
    };
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} has no query");
        for target in targets {
            found.push((title.to_owned(), set(target["expr"].as_str().unwrap())));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let metric = query.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(',')).unwrap().0;
            found.push((variable["name"].as_str().unwrap().to_owned(), set(metric)));
        }
    }
    found
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
