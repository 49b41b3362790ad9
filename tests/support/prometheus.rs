//! A real Prometheus that scrapes gateways and evaluates the rules of `ops/prometheus`.

use std::{
    fs::{self, File},
    net::SocketAddrV4,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    bound_child,
    gateway_fixture::free_address,
    http::{get_at, percent_encoded, try_get_at},
    process::wait_until,
    service_unit::ops,
};

/// A running Prometheus. Killed when it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddrV4,
    child: Child,
    _directory: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these admin listeners five times a second. Waits until it answers.
    ///
    /// # Panics
    /// When Prometheus is not installed, or does not start.
    #[must_use]
    pub fn start(targets: &[SocketAddrV4]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let targets: Vec<_> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let config = format!(
            "global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}\nrule_files: [\"{}\"]\n\
             scrape_configs:\n- job_name: mdgw\n  static_configs:\n  - targets: [{}]\n",
            rules().display(),
            targets.join(", ")
        );
        let path = directory.path().join("prometheus.yml");
        fs::write(&path, config).expect("the configuration can be written");
        let address = free_address();
        let log_path = directory.path().join("log");
        let log = File::create(&log_path).expect("a log can be created");
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = bound_child::spawn(bound_child::bind(&command)).expect("prometheus starts");
        let mut started = Self { address, child, _directory: directory };
        wait_until("prometheus answers", || {
            let ended = started.child.try_wait().expect("a child can be waited for");
            let log = || fs::read_to_string(&log_path).unwrap_or_default();
            assert!(ended.is_none(), "prometheus ended: {}", log());
            try_get_at(address, "/-/ready").is_ok_and(|(code, _)| code == 200)
        });
        started
    }

    /// The field `data` of the answer of its HTTP API.
    ///
    /// # Panics
    /// When the answer is an error.
    #[must_use]
    pub fn api(&self, path: &str) -> Value {
        let (code, body) = get_at(self.address, &format!("/api/v1/{path}"));
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"));
        assert_eq!((code, &answer["status"]), (200, &Value::from("success")), "{path}: {body}");
        answer["data"].clone()
    }

    /// The series that an expression has now, each with labels and value.
    ///
    /// # Panics
    /// When the expression is refused.
    #[must_use]
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let data = self.api(&format!("query?query={}", percent_encoded(expression)));
        data["result"].as_array().cloned().unwrap_or_else(|| panic!("{expression}: {data}"))
    }

    /// The value of an expression with one series; `None` without a series.
    ///
    /// # Panics
    /// When the expression is refused, or has several series.
    #[must_use]
    pub fn value(&self, expression: &str) -> Option<f64> {
        let series = self.query(expression);
        assert!(series.len() < 2, "{expression}: {series:?}");
        series.first()?["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// The alert rules that the project ships.
#[must_use]
pub fn rules() -> PathBuf {
    ops("prometheus").join("mdgw.rules.yml").canonicalize().expect("the rules exist")
}

/// Titles and expressions of all panels of the dashboard that the project ships, and of its variables, with every variable set to what Grafana would insert for "All".
///
/// # Panics
/// When the dashboard is not as the tests expect it.
#[must_use]
pub fn dashboard_queries() -> Vec<(String, String)> {
    let text = fs::read(ops("grafana/mdgw.json")).expect("the dashboard is there");
    let dashboard: Value = serde_json::from_slice(&text).expect("the dashboard is JSON");
    let set = |expression: &str| {
        let expression = expression.replace("$__rate_interval", "5s").replace("$__range", "60s");
        let expression = expression.replace("$instance", ".*").replace("$channel", ".*");
        let expression = expression.replace("$program", ".*");
        assert!(!expression.contains('$'), "a variable that the test does not know: {expression}");
        expression
    };
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("a list").iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().expect("a list");
        assert!(!targets.is_empty(), "{title} has no query");
        for target in targets {
            found.push((title.to_owned(), set(target["expr"].as_str().expect("an expression"))));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("a list") {
        if let Some(query) = variable["query"]["query"].as_str() {
            let metric = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.rsplit_once(','))
                .expect("values of a label")
                .0;
            found.push((variable["name"].as_str().expect("a name").to_owned(), set(metric)));
        }
    }
    found
}

/// The program beside a gateway that exports what a query reads; `None`: the gateway does. The identity of any program is of `live`.
#[must_use]
pub fn program_of(query: &str) -> Option<&'static str> {
    let programs = [
        ("mdgw_live_", "live"),
        ("mdgw_journal_", "journal"),
        ("mdgw_nats_", "nats"),
        ("mdgw_mirror_", "mirror"),
        ("mdgw_program", "live"),
    ];
    programs.into_iter().find(|(prefix, _)| query.contains(prefix)).map(|(_, program)| program)
}
