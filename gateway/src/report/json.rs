//! The report as one line of JSON, for other programs. Times are nanoseconds.

use serde_json::{Map, Value, json};

use super::{Report, quantity::QUANTILES};

/// The whole report.
#[must_use]
pub fn value(report: &Report) -> Value {
    let channels: Vec<Value> = report
        .channels
        .iter()
        .map(|channel| {
            let stages: Vec<Value> = channel
                .stages
                .iter()
                .map(|stage| {
                    let histogram = &stage.histogram;
                    let mut fields = Map::new();
                    fields.insert("stage".to_owned(), json!(stage.stage.name()));
                    fields.insert("count".to_owned(), json!(histogram.len()));
                    for (quantile, name) in QUANTILES {
                        fields.insert(format!("{name}_ns"), json!(histogram.value_at_quantile(quantile)));
                    }
                    fields.insert("max_ns".to_owned(), json!(histogram.max()));
                    fields.insert("negative_count".to_owned(), json!(stage.negative_count));
                    fields.insert("threads".to_owned(), json!(stage.threads));
                    Value::Object(fields)
                })
                .collect();
            json!({ "id": channel.id.0, "name": channel.name, "stages": stages })
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
        "disclosures": disclosures,
        "damage": damage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::plausible_report;

    #[test]
    fn figures_stand_under_their_names() {
        let value = value(&plausible_report());
        let stage = &value["channels"][1]["stages"][5];
        assert_eq!(stage["stage"], "wire_to_wire");
        assert_eq!(stage["count"], 20_000);
        assert!(stage["p99.9_ns"].as_u64().unwrap() >= stage["p50_ns"].as_u64().unwrap());
        assert_eq!(value["disclosures"][0]["entries"]["receive stamps"], "kernel software");
    }
}
