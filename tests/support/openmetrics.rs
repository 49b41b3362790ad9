//! Metrics as a third-party parser of OpenMetrics reads them.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

/// Samples by name and labels, and the families, as the foreign parser reads them.
///
/// # Panics
/// When the parser refuses the text, or a sample is there twice.
#[must_use]
pub fn parse(python: &Path, metrics: &str) -> (BTreeMap<String, f64>, Vec<Value>) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/openmetrics.py");
    let mut parser = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the parser works");
    parser.stdin.take().expect("the parser works").write_all(metrics.as_bytes()).expect("the parser works");
    let parsed = parser.wait_with_output().expect("the parser works");
    assert!(parsed.status.success(), "{}\n{metrics}", String::from_utf8_lossy(&parsed.stderr));
    let families: Vec<Value> = serde_json::from_slice(&parsed.stdout).expect("the parser works");
    let mut samples = BTreeMap::new();
    for sample in families.iter().flat_map(|family| family["samples"].as_array().expect("the parser works")) {
        let labels: Vec<_> = sample["labels"]
            .as_object()
            .expect("the parser works")
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().expect("the parser works")))
            .collect();
        let name = format!("{}{{{}}}", sample["name"].as_str().expect("the parser works"), labels.join(","));
        assert!(
            samples.insert(name.clone(), sample["value"].as_f64().expect("the parser works")).is_none(),
            "{name} twice"
        );
    }
    (samples, families)
}
