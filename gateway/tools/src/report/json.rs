//! The report as one line of JSON, for other programs. Times are nanoseconds.

use serde_json::{Map, Value, json};

use super::{
    Change, ChannelCounts, Comparison, DeclaredGaps, GapCounts, LatencyStatistics, LineReport, Report, StageReport,
    takeovers::Takeover,
};

/// The report as the object that `mdgw report --json` prints.
#[must_use]
pub fn value(report: &Report) -> Value {
    let channels: Vec<Value> = report
        .channels
        .iter()
        .map(|channel| {
            let stages: Vec<Value> = channel.stages.iter().map(stage_value).collect();
            let lines: Vec<Value> = channel.lines.iter().map(line_value).collect();
            let gaps: Vec<Value> = channel.gaps.seen.iter().map(gap_value).collect();
            let standby_gaps: Vec<Value> = channel.gaps.of_standby.iter().map(gap_value).collect();
            let leader_unknown = gap_counts_value(channel.gaps.leader_unknown);
            let pauses: Vec<Value> =
                channel.pauses.iter().map(|(from, until)| json!({ "from_ns": from.0, "until_ns": until.0 })).collect();
            let by_host: Map<String, Value> =
                channel.counted_by_host.iter().map(|(host, counts)| (host.clone(), counted_value(counts))).collect();
            json!({ "id": channel.id.0, "name": channel.name, "stages": stages, "pauses": pauses, "rate_unit": channel.rate_unit.name(),
                "counted": counted_value(&channel.counted), "counted_by_host": by_host, "gaps": gaps,
                "gaps_of_standby_only": standby_gaps, "gaps_with_leader_unknown": leader_unknown, "lines": lines })
        })
        .collect();
    let disclosures: Vec<Value> = report
        .disclosures
        .iter()
        .map(|disclosed| {
            let entries: Map<String, Value> =
                disclosed.entries.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
            json!({ "logs": disclosed.logs, "entries": entries })
        })
        .collect();
    let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    json!({
        "begin_ns": report.begin.0,
        "end_ns": report.end.0,
        "channels": channels,
        "takeovers": report.takeovers.iter().map(takeover_value).collect::<Vec<_>>(),
        "disclosures": disclosures,
        "damage": damage,
    })
}

/// All groups by name, and the changes against the first one.
#[must_use]
pub fn comparison(comparison: &Comparison) -> Value {
    let groups: Vec<Value> = comparison
        .groups
        .iter()
        .map(|group| {
            let mut value = value(&group.report);
            value["name"] = json!(group.name);
            value
        })
        .collect();
    let differences: Vec<Value> = comparison
        .differences
        .iter()
        .map(|difference| {
            let changes: Map<String, Value> =
                difference.changes.iter().map(|change| (change.name.to_owned(), change_value(change))).collect();
            json!({
                "group": comparison.groups.get(difference.group).map(|group| &group.name),
                "channel": difference.channel.0,
                "name": difference.name,
                "stage": difference.stage.name(),
                "samples": {
                    "are_runs": difference.samples.are_runs,
                    "base_count": difference.samples.base_count,
                    "count": difference.samples.count,
                    "chance": difference.samples.chance(),
                },
                "changes": changes,
            })
        })
        .collect();
    json!({ "base": comparison.groups.first().map(|group| &group.name), "groups": groups, "differences": differences })
}

pub(super) fn takeover_value(takeover: &Takeover) -> Value {
    let channels: Vec<Value> = takeover
        .channels
        .iter()
        .map(|cost| json!({ "channel": cost.channel, "blackout_ns": cost.blackout_ns, "republished_packets": cost.republished_packets }))
        .collect();
    json!({ "time_ns": takeover.time.0, "group": takeover.group, "node": takeover.node, "cause": takeover.cause, "lost_after_ns": takeover.lost_after_ns, "channels": channels })
}

fn stage_value(stage: &StageReport) -> Value {
    let mut fields = Map::new();
    fields.insert("stage".to_owned(), json!(stage.stage.name()));
    insert_statistics(&mut fields, &LatencyStatistics::of(&stage.histogram));
    fields.insert("negative_count".to_owned(), json!(stage.negative_count));
    fields.insert("threads".to_owned(), json!(stage.threads));
    let timeline = stage.timeline.iter().map(|point| {
        json!({
            "from_ns": point.start.0,
            "until_ns": point.end.0,
            "count": point.count,
            "p50_ns": point.p50_ns,
            "p99_ns": point.p99_ns,
            "max_ns": point.max_ns,
            "per_s_max": point.per_s_max,
            "is_burst": point.is_burst,
        })
    });
    fields.insert("timeline".to_owned(), timeline.collect());
    let load = stage.load.iter().map(|bucket| {
        let mut fields = Map::new();
        fields.insert("from_per_s".to_owned(), json!(bucket.from_per_s));
        fields.insert("until_per_s".to_owned(), json!(bucket.until_per_s));
        fields.insert("intervals".to_owned(), json!(bucket.intervals));
        insert_statistics(&mut fields, &bucket.statistics);
        Value::Object(fields)
    });
    fields.insert("load".to_owned(), load.collect());
    Value::Object(fields)
}

fn gap_value(gap: &DeclaredGaps) -> Value {
    let GapCounts { messages, gaps } = gap.counts;
    json!({ "from_ns": gap.start.0, "until_ns": gap.end.0, "gaps": gaps, "messages": messages })
}

pub(super) fn gap_counts_value(GapCounts { messages, gaps }: GapCounts) -> Value {
    json!({ "gaps": gaps, "messages": messages })
}

pub(super) fn counted_value(counted: &ChannelCounts) -> Value {
    let ChannelCounts { datagrams, messages, gaps, gap_messages, drops } = *counted;
    json!({
        "datagrams": datagrams,
        "messages": messages,
        "gaps": gaps,
        "gap_messages": gap_messages,
        "drops": drops,
    })
}

fn line_value(line: &LineReport) -> Value {
    let lead = |statistics: &LatencyStatistics| {
        let mut fields = Map::new();
        insert_statistics(&mut fields, statistics);
        Value::Object(fields)
    };
    let slices: Vec<Value> = line
        .slices
        .iter()
        .map(|slice| json!({ "from_ns": slice.start.0, "until_ns": slice.end.0, "lead": lead(&slice.lead) }))
        .collect();
    json!({
        "line": line.line.to_string(),
        "packets": line.packets,
        "won_messages": line.won_messages,
        "duplicate_messages": line.duplicate_messages,
        "late_messages": line.late_messages,
        "lead": lead(&line.lead),
        "by_time": slices,
    })
}

fn insert_statistics(fields: &mut Map<String, Value>, statistics: &LatencyStatistics) {
    fields.insert("count".to_owned(), json!(statistics.count));
    fields.extend(statistics.named().map(|(name, value_ns)| (format!("{name}_ns"), json!(value_ns))));
}

fn change_value(change: &Change) -> Value {
    json!({
        "base_ns": change.base_ns,
        "value_ns": change.value_ns,
        "change": change.share(),
        "base_spread_ns": [change.base_spread_ns.0, change.base_spread_ns.1],
        "spread_ns": [change.spread_ns.0, change.spread_ns.1],
        "verdict": change.verdict.name(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Group, summary::tests::sample_report};

    #[test]
    fn statistics_are_keyed_by_their_names() {
        let value = value(&sample_report());
        let stage = &value["channels"][1]["stages"][5];
        assert_eq!(stage["stage"], "wire_to_wire");
        assert_eq!(stage["count"], 20_000);
        assert!(stage["p99.9_ns"].as_u64().unwrap() >= stage["p50_ns"].as_u64().unwrap());
        assert_eq!(value["disclosures"][0]["entries"]["receive timestamps"], "kernel software");
        assert_eq!(stage["timeline"].as_array().unwrap().len(), 20);
        assert_eq!(stage["load"][0]["from_per_s"], 1_000);
    }

    #[test]
    fn groups_and_changes_are_keyed_by_their_names() {
        let groups = ["old", "new"].map(|name| Group { name: name.to_owned(), report: sample_report() });
        let value = comparison(&Comparison::of(groups.into()));
        assert_eq!((&value["base"], &value["groups"][1]["name"]), (&json!("old"), &json!("new")));
        let difference = &value["differences"][5];
        assert_eq!((&difference["group"], &difference["stage"]), (&json!("new"), &json!("wire_to_wire")));
        assert_eq!(difference["changes"]["p99.9"]["verdict"], "within_spread");
        assert_eq!(difference["changes"]["p50"]["change"], 0.0);
        assert_eq!(difference["samples"]["are_runs"], true);
    }
}
