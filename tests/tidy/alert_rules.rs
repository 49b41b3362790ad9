//! Each runbook has an alert rule or a reason why it has none, each rule a test, and rules and dashboard name only metrics
//! that a gateway exports.

use std::collections::BTreeSet;

use mdgw_runtime::gateway::sample_names;
use mdgw_sys::alarm::Alarm;

use super::{assert_none, files, read};

const RULES: &str = "ops/prometheus/mdgw.rules.yml";
const RULE_TESTS: &str = "ops/prometheus/mdgw.rules.test.yml";
const README: &str = "ops/prometheus/README.md";
const DASHBOARD: &str = "ops/grafana/mdgw.json";

#[test]
fn each_runbook_has_an_alert_rule_or_a_reason() {
    let names: Vec<_> = Alarm::ALL.iter().map(|alarm| alarm.name()).collect();
    assert_none(differences(&names, &read(RULES), &read(RULE_TESTS), &read(README)));

    let rules = "  - alert: good\n    runbook: ops/runbooks/good.md\n  - alert: bad\n    runbook: ops/runbooks/good.md\n  \
                 - alert: untested\n    runbook: ops/runbooks/untested.md\n";
    let tests = "alertname: good\n  exp_alerts:\nalertname: bad\n  exp_alerts:\nalertname: untested, exp_alerts: []\n";
    let reasons = "| [reason](../runbooks/reason.md) | no metric |\n| [good](../runbooks/good.md) | both |\n\
                   | [empty](../runbooks/empty.md) |  |\n";
    assert_eq!(
        differences(&["good", "bad", "untested", "reason", "empty", "neither"], rules, tests, reasons),
        [
            "good: a rule and a reason why there is none",
            "bad: the rule does not name its runbook",
            "untested: no test in which it fires",
            "empty: neither a rule nor a reason",
            "neither: neither a rule nor a reason",
        ]
    );
    assert_eq!(differences(&[], rules, tests, ""), ["bad: no alarm", "good: no alarm", "untested: no alarm"]);
}

fn differences(alarms: &[&str], rules: &str, tests: &str, readme: &str) -> Vec<String> {
    let rules: Vec<(&str, &str)> =
        rules.split("- alert: ").skip(1).map(|rule| rule.split_once('\n').expect("a rule has several lines")).collect();
    let fires = |name: &str| {
        let mut of_rule = tests.split("alertname: ").skip(1);
        of_rule.any(|test| test.starts_with(&format!("{name}\n")) && test.contains("exp_alerts:\n"))
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
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with("mdgw_")).map(str::to_owned).collect()
}

/// Values of the label `alarm`, with quotes as in YAML or as in JSON.
fn alarms(text: &str) -> Vec<String> {
    let plain = text.replace('\\', "");
    plain.split("alarm=\"").skip(1).filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect()
}
