//! Each runbook has an alert rule or a reason why it has none, each rule a test, each rule over a state a condition on the page
//! of the gateway, and rules and dashboard name only metrics that a gateway exports.

use std::collections::BTreeSet;

use mdgw_runtime::gateway::sample_names;
use mdgw_sys::alarm::Alarm;

use super::{assert_none, files, read};

const RULES: &str = "ops/prometheus/mdgw.rules.yml";
const RULE_TESTS: &str = "ops/prometheus/mdgw.rules.test.yml";
const README: &str = "ops/prometheus/README.md";
const DASHBOARD: &str = "ops/grafana/mdgw.json";
const PAGE: &str = "gateway/admin/src/page/page.js";

#[test]
fn each_runbook_has_an_alert_rule_or_a_reason() {
    let names: Vec<_> = Alarm::ALL.iter().map(|alarm| alarm.name()).chain(WITHOUT_ALARM).collect();
    assert_none(differences(&names, &read(RULES), &read(RULE_TESTS), &read(README)));

    let rules = "  - alert: good\n    runbook: ops/runbooks/good.md\n  - alert: bad\n    runbook: ops/runbooks/good.md\n  \
                 - alert: named\n    runbook: ops/runbooks/named.md\n  \
                 - alert: untested\n    runbook: ops/runbooks/untested.md\n";
    let tests = "alertname: good\n  exp_alerts:\nalertname: bad\n  exp_alerts:\nalertname: untested, exp_alerts: []\n\
                 alertname: named\n  exp_alerts: &named\n";
    let reasons = "| [reason](../runbooks/reason.md) | no metric |\n| [good](../runbooks/good.md) | both |\n\
                   | [empty](../runbooks/empty.md) |  |\n";
    assert_eq!(
        differences(&["good", "bad", "named", "untested", "reason", "empty", "neither"], rules, tests, reasons),
        [
            "good: a rule and a reason why there is none",
            "bad: the rule does not name its runbook",
            "untested: no test in which it fires",
            "empty: neither a rule nor a reason",
            "neither: neither a rule nor a reason",
        ]
    );
    assert_eq!(
        differences(&[], rules, tests, ""),
        ["bad: no alarm", "good: no alarm", "named: no alarm", "untested: no alarm"]
    );
}

fn differences(alarms: &[&str], rules: &str, tests: &str, readme: &str) -> Vec<String> {
    let rules: Vec<(&str, &str)> =
        rules.split("- alert: ").skip(1).map(|rule| rule.split_once('\n').expect("a rule has several lines")).collect();
    let fires = |name: &str| {
        let mut of_rule = tests.split("alertname: ").skip(1);
        // The list of alerts may have an anchor, by which later evaluations name the list.
        let expects_alerts = |test: &str| test.contains("exp_alerts:\n") || test.contains("exp_alerts: &");
        of_rule.any(|test| test.starts_with(&format!("{name}\n")) && expects_alerts(test))
    };
    let mut found = Vec::new();
    for name in alarms {
        let row = format!("| [{name}](../runbooks/{name}.md) | ");
        let has_reason = readme.lines().any(|line| line.strip_prefix(&row).is_some_and(|rest| rest.trim().len() > 1));
        match rules.iter().find(|(rule, _)| rule == name) {
            None if !has_reason => found.push(format!("{name}: neither a rule nor a reason")),
            None => {}
            Some(_) if has_reason => found.push(format!("{name}: a rule and a reason why there is none")),
            Some((_, rule)) if !rule.contains(&format!("runbook: ops/runbooks/{name}.md\n")) => {
                found.push(format!("{name}: the rule does not name its runbook"));
            }
            Some(_) if !fires(name) => found.push(format!("{name}: no test in which it fires")),
            Some(_) => {}
        }
    }
    let named: BTreeSet<_> = rules.iter().map(|(rule, _)| *rule).filter(|rule| !alarms.contains(rule)).collect();
    found.extend(named.into_iter().map(|rule| format!("{rule}: no alarm")));
    found
}

#[test]
fn each_alert_of_a_gateway_links_the_runbook_that_the_gateway_serves() {
    assert_none(link_differences(&read(RULES)));

    let link = |name: &str| format!("    runbook_url: \"http://{{{{ $labels.instance }}}}/runbooks/{name}.md\"\n");
    let rule = |name: &str, rest: &str| format!("  - alert: {name}\n    labels: x\n{rest}");
    let rules = [
        rule("good", &link("good")),
        rule("bad", &link("good")),
        rule("none", ""),
        rule("group", "    labels: {scope: group}\n"),
        rule("nats-hole", ""),
        rule("journal-hole", &link("journal-hole")),
        rule("admin-listener-down", ""),
    ];
    assert_eq!(
        link_differences(&rules.concat()),
        [
            "bad: no link to its runbook",
            "none: no link to its runbook",
            "journal-hole: a link to a page that nothing serves"
        ]
    );
}

fn link_differences(rules: &str) -> Vec<String> {
    let of_rule = rules.split("- alert: ").skip(1).filter_map(|rule| {
        let (name, rest) = rule.split_once('\n').expect("a rule has several lines");
        let link = format!("runbook_url: \"http://{{{{ $labels.instance }}}}/runbooks/{name}.md\"\n");
        // A group has no instance. The programs beside a gateway serve no pages.
        let is_served = !rest.contains("scope: group") && !SERVES_NO_PAGE.iter().any(|start| name.starts_with(start));
        match (is_served, rest.contains("runbook_url: ")) {
            (true, _) if !rest.contains(&link) => Some(format!("{name}: no link to its runbook")),
            (false, true) => Some(format!("{name}: a link to a page that nothing serves")),
            _ => None,
        }
    });
    of_rule.collect()
}

/// Runbooks of alerts that are seen from outside alone, so that no process raises an alarm.
const WITHOUT_ALARM: [&str; 1] = ["gateway-restarted"];

/// How the names of alarms begin whose alerts come from no listener of a gateway.
const SERVES_NO_PAGE: [&str; 5] = ["admin-listener-down", "journal-", "nats-", "live-", "mirror-"];

/// Rules over states that the page does not show, by alarm and metric.
const NOT_ON_THE_PAGE: [(&str, &str); 8] = [
    // The rules take only for how long the metric has been there, whatever its value.
    ("gap-declared", "mdgw_channel_state"),
    ("log-behind", "mdgw_channel_state"),
    // The rule takes the metric only to know a gateway.
    ("gateway-restarted", "mdgw_gateway"),
    // A page without answers says so at its top.
    ("admin-listener-down", "up"),
    // Other processes, which have no page.
    ("journal-stopped", "mdgw_journal_writing"),
    ("nats-unreachable", "mdgw_nats_failing"),
    ("live-closed", "mdgw_live_accepting"),
    ("mirror-silent", "mdgw_mirror_group_silence_seconds"),
];

#[test]
fn the_page_shows_each_state_that_a_rule_is_about() {
    assert_none(page_differences(&read(RULES), &read(PAGE), &NOT_ON_THE_PAGE));

    let rules = "  - alert: a\n    expr: >-\n      mdgw_a == 0 and mdgw_a_total > 0\n    labels: up\n\
                 - alert: b\n    expr: >-\n      mdgw_b > 1 or increase(mdgw_b_total[15m]) > 0\n    labels: x\n\
                 - alert: c\n    expr: >-\n      time() - mdgw_alarm_last_timestamp_seconds{alarm=\"c\"} < 900\n    labels: x\n\
                 - alert: d\n    expr: >-\n      up{job=\"d\"} == 0\n    labels: x\n";
    let page = "const CONDITIONS = [\n  [\"a\", \"mdgw_a\", x => x],\n  [\"c\", \"\", x => x],\n  [\"e\", \"mdgw_e\", x],\n];\n";
    assert_eq!(
        page_differences(rules, page, &[("d", "up"), ("a", "mdgw_a"), ("f", "mdgw_f")]),
        [
            "a: the page shows mdgw_a and is excused from it",
            "b: the page does not show mdgw_b",
            "e: no rule is about mdgw_e",
            "f: no rule is about mdgw_f",
        ]
    );
}

fn page_differences(rules: &str, page: &str, excused: &[(&str, &str)]) -> Vec<String> {
    let (states, shown) = (states_of_rules(rules), conditions_of_page(page));
    assert!(!states.is_empty() && !shown.is_empty(), "{states:?} {shown:?}");
    let mut found = BTreeSet::new();
    for state @ (alarm, metric) in &states {
        match (shown.contains(state), excused.contains(state)) {
            (false, false) => found.insert(format!("{alarm}: the page does not show {metric}")),
            (true, true) => found.insert(format!("{alarm}: the page shows {metric} and is excused from it")),
            _ => false,
        };
    }
    let without_rule = shown.iter().chain(excused).filter(|state| !states.contains(state));
    found.extend(without_rule.map(|(alarm, metric)| format!("{alarm}: no rule is about {metric}")));
    found.into_iter().collect()
}

/// Alarm and metric of each state that a rule is about: its gauges but for those that are times.
fn states_of_rules(rules: &str) -> BTreeSet<(&str, &str)> {
    let is_state = |word: &&str| {
        let is_time = word.ends_with("_timestamp_seconds") || word.ends_with("start_time_seconds");
        *word == "up" || word.starts_with("mdgw_") && !word.ends_with("_total") && !is_time
    };
    let of_rule = rules.split("- alert: ").skip(1).flat_map(|rule| {
        let (alarm, rest) = rule.split_once('\n').expect("a rule has several lines");
        let expression = rest.split("labels:").next().unwrap_or_default();
        words(expression).filter(is_state).map(move |metric| (alarm, metric))
    });
    of_rule.collect()
}

/// Alarm and metric of each condition of the page that has a rule.
fn conditions_of_page(page: &str) -> BTreeSet<(&str, &str)> {
    let list = page.split("const CONDITIONS = [").nth(1).and_then(|rest| rest.split("\n];").next()).unwrap_or_default();
    let rows = list.lines().filter_map(|line| line.trim().strip_prefix("[\"")?.split_once("\", \""));
    let rows = rows.filter_map(|(alarm, rest)| Some((alarm, rest.split_once('"')?.0)));
    rows.filter(|(_, metric)| !metric.is_empty()).collect()
}

#[test]
fn rules_and_dashboard_name_exported_metrics_and_alarms_only() {
    let exported = sample_names();
    for path in [RULES, RULE_TESTS, DASHBOARD] {
        let text = read(path);
        assert!(metrics(&text).len() > 5, "{path}: {:?}", metrics(&text));
        assert_none(metrics(&text).difference(&exported).map(|name| format!("{path}: {name} is not exported")));
        assert_none(alarms(&text).into_iter().filter(|name| Alarm::by_name(name).is_none()));
    }
    let control = "rate(mdgw_gateway[1m]) / mdgw_no_such_total{alarm=\"x-y\"}";
    assert_eq!(metrics(control).difference(&exported).collect::<Vec<_>>(), ["mdgw_no_such_total"]);
    assert_eq!(alarms(control), ["x-y"]);
}

#[test]
fn the_dashboard_shows_the_log_of_gateways_and_programs() {
    let dashboard = read(DASHBOARD);
    for metric in ["mdgw_log_events_waiting", "mdgw_log_events_lost_total"] {
        let query = format!("{metric}{{instance=~\\\"$instance|$program\\\"}}");
        assert!(dashboard.contains(&query), "{query}");
    }
}

/// An operator silences these before the work. The rules themselves have tests of their own.
#[test]
fn the_pages_of_an_upgrade_name_the_alerts_of_a_planned_restart() {
    let rules = read(RULES);
    let named = ["gateway-restarted", "admin-listener-down", "pair-link-down", "voter-silent"];
    for path in ["ops/runbooks/upgrade.md", "ops/guide/upgrade.md"] {
        let page = read(path);
        for alert in named {
            assert!(rules.contains(&format!("- alert: {alert}\n")), "{alert}");
            assert!(page.contains(&format!("`{alert}`")), "{path} does not name {alert}");
        }
    }
    let guide = read("ops/guide/upgrade.md");
    let silences: Vec<&str> = guide.lines().filter(|line| line.contains("amtool silence add")).collect();
    for alert in named {
        assert!(silences.iter().any(|line| line.contains(alert)), "{alert}: {silences:?}");
    }
    // Of a gateway that starts again and again the alert is critical.
    assert!(silences.iter().all(|line| !line.contains("gateway-restarted") || line.contains("severity=warning")));
}

#[test]
fn guides_and_runbooks_name_exported_metrics_and_alarms_only() {
    let exported = sample_names();
    let pages = files(&["md"]);
    let pages: Vec<_> = pages.iter().filter(|page| PAGES.iter().any(|folder| page.path.starts_with(folder))).collect();
    let unknown = |text: &str| {
        // A name that ends in an underscore stands for several, and that of a histogram for its samples.
        let is_exported = |name: &String| {
            let is_part = |sample: &String| sample.starts_with(name) && name.ends_with('_');
            exported.contains(name) || exported.contains(&format!("{name}_bucket")) || exported.iter().any(is_part)
        };
        let of_metrics = quoted_metrics(text).into_iter().filter(|name| !is_exported(name));
        let of_alarms = alarms(text).into_iter().filter(|name| name != "NAME" && Alarm::by_name(name).is_none());
        of_metrics.chain(of_alarms).collect::<Vec<_>>()
    };
    assert!(pages.iter().map(|page| quoted_metrics(&page.text).len()).sum::<usize>() > 20);
    assert_none(pages.iter().flat_map(|page| {
        unknown(&page.text).into_iter().map(move |name| format!("{}: {name} does not exist", page.path))
    }));

    let control =
        "`mdgw_gateway`, `mdgw_no_such_total{group=\"1\"}`, `mdgw_subscriber.py`, `alarm=\"x-y\"`, `alarm=\"NAME\"`";
    assert_eq!(unknown(control), ["mdgw_no_such_total", "x-y"]);
}

/// Names of the receivers in Python and C.
const OF_RECEIVERS: [&str; 4] = ["mdgw_fill_local_times", "mdgw_log_counts_of", "mdgw_log_position", "mdgw_subscriber"];

const PAGES: [&str; 3] = ["ops/guide/", "ops/runbooks/", "ops/prometheus/"];

/// Code between backquotes that is the name of a metric, with or without labels.
fn quoted_metrics(text: &str) -> BTreeSet<String> {
    let is_name =
        |word: &&str| word.chars().all(|next| next.is_ascii_lowercase() || next.is_ascii_digit() || next == '_');
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let names = quoted.map(|code| code.split('{').next().unwrap_or_default()).filter(|name| name.starts_with("mdgw_"));
    names.filter(is_name).filter(|name| !OF_RECEIVERS.contains(name)).map(str::to_owned).collect()
}

fn metrics(text: &str) -> BTreeSet<String> {
    words(text).filter(|word| word.starts_with("mdgw_")).map(str::to_owned).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
}

/// Values of the label `alarm`, with quotes as in YAML or as in JSON.
fn alarms(text: &str) -> Vec<String> {
    let plain = text.replace('\\', "");
    plain.split("alarm=\"").skip(1).filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect()
}
