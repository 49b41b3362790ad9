//! `mdgw doctor` on this machine, as it is: with shipped configurations, and without one.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, fs, net::TcpListener, os::unix::fs::PermissionsExt as _, process::Command};

use mdgw_tests::{process, skip::skip};
use serde_json::Value;

/// What the exit code says: the worst item that was read.
fn worst_code(report: &Value) -> i32 {
    let statuses: BTreeSet<&str> =
        report["items"].as_array().unwrap().iter().map(|item| item["status"].as_str().unwrap()).collect();
    assert!(statuses.iter().all(|status| ["ok", "unknown", "warn", "fail"].contains(status)), "{statuses:?}");
    if statuses.contains("fail") { 2 } else { i32::from(statuses.contains("warn")) }
}

fn names(report: &Value) -> BTreeSet<&str> {
    report["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[test]
fn this_machine_is_examined_with_shipped_configurations_and_without_one() {
    let config = |name: &str| format!("{}/../ops/config/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut of_loopback = None;
    for arguments in [vec![config("loopback.toml")], vec![config("mdgw.toml")], vec![config("pair.toml")], vec![]] {
        let with = |option: &str| {
            let arguments = arguments.iter().map(String::as_str).chain([option]);
            process::run(["doctor"].into_iter().chain(arguments))
        };
        let exited = with("--json");
        let report = exited.json();
        assert_eq!(exited.code, Some(worst_code(&report)), "{report}");
        assert_eq!((&report["version"], &report["config"]), (&1.into(), &arguments.first().cloned().into()));
        let items = report["items"].as_array().unwrap();
        assert!(items.len() > 20, "{}", items.len());
        for item in items {
            let is_known = item["status"] != "unknown";
            assert!(!item["read"].as_str().unwrap().is_empty() && !item["why"].as_str().unwrap().is_empty(), "{item}");
            let needs_command = item["status"] == "warn" || item["status"] == "fail";
            assert_eq!(needs_command, !item["commands"].as_array().unwrap().is_empty(), "{item}");
            assert!(is_known || !needs_command);
        }
        let count: u64 = report["counts"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(count, items.len() as u64);

        let text = with("--all");
        assert_eq!(text.code, exited.code);
        let summary = text.stdout.lines().last().unwrap();
        assert!(summary.contains(" fail, ") && summary.ends_with(" ok"), "{summary}");
        for line in text.stdout.lines().filter(|line| !line.trim_start().starts_with('$')) {
            // A path or an error of the system may be one long word.
            assert!(line.chars().count() <= 80 || line.trim().split(' ').count() <= 3, "{line}");
        }
        of_loopback.get_or_insert(report);
    }
    // Every item that the guide lists was examined for one line on loopback.
    let guide = fs::read_to_string(format!("{}/../ops/guide/doctor.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let listed: BTreeSet<&str> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|row| row.split_once(" | "))
        .map(|(name, _)| name)
        .collect();
    let report = of_loopback.unwrap();
    let missing: Vec<_> = names(&report).difference(&listed).copied().collect();
    assert!(missing.is_empty(), "not in the guide: {missing:?}");
    assert!(names(&report).len() >= 29, "{:?}", names(&report));
}

#[test]
fn a_store_that_is_not_there_is_a_failure_and_an_invalid_configuration_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let shipped = fs::read_to_string(format!("{}/../ops/config/loopback.toml", env!("CARGO_MANIFEST_DIR"))).unwrap();
    // As of a store whose processes are stopped: the kernel accepts connections, and nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    for (backend, address, read) in [
        ("zookeeper", "127.0.0.1:1", "Connection refused"),
        ("zookeeper", silent.as_str(), "accepts a connection, and does not answer within 1 s"),
        ("etcd", &silent, "accepts a connection, and does not answer within 1 s"),
    ] {
        let election = format!(
            "\n[election]\nbackend = \"{backend}\"\nname = \"gw1\"\n[election.{backend}]\nendpoints = [\"{address}\"]\n"
        );
        fs::write(&path, format!("{shipped}{election}")).unwrap();
        let exited = process::run(["doctor", path.to_str().unwrap(), "--json"]);
        let report = exited.json();
        let store = report["items"].as_array().unwrap().iter().find(|item| item["name"] == "store").unwrap();
        assert_eq!((&store["status"], &store["subject"]), (&"fail".into(), &address.into()), "{report}");
        assert!(store["read"].as_str().unwrap().contains(read), "{store}");
        assert_eq!(exited.expect_code(2).stderr, "");
    }
    drop(listener);

    fs::write(&path, "nonsense = 1").unwrap();
    let refused = process::run(["doctor", path.to_str().unwrap(), "--json"]).expect_code(2);
    assert!(refused.stdout.is_empty() && refused.stderr.contains("nonsense"), "{}", refused.stderr);
}

/// Names and texts of the items that are failures.
fn failures(report: &Value) -> Vec<(String, String)> {
    let items = report["items"].as_array().unwrap().iter().filter(|item| item["status"] == "fail");
    let text = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
    items.map(|item| (text(item, "name"), text(item, "read"))).collect()
}

#[test]
fn a_user_without_rights_has_no_failure_that_root_does_not_have_and_no_file_is_made() {
    const TEST: &str = "a host examined by a user without rights";
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "it takes root to become another user");
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mode = |path: &str, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let shipped = fs::read_to_string(format!("{}/../ops/config/pair.toml", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let config = shipped.replace("/tmp/mdgw-pair-1", &at("gateway")).replace("/tmp/mdgw-pair.key", &at("key"));
    let journal = format!("\n[journal]\ndirectory = \"{}\"\n", at("gateway"));
    fs::write(at("pair.toml"), config + &journal).unwrap();
    fs::write(at("key"), "0a".repeat(32)).unwrap();
    fs::create_dir_all(at("gateway/log")).unwrap();
    for (path, bits) in [(".", 0o755), ("pair.toml", 0o644), ("key", 0o600), ("gateway", 0o700)] {
        mode(&at(path), bits);
    }
    let changed = || fs::metadata(at("gateway")).unwrap().modified().unwrap();
    let before = changed();
    let of_root = process::run(["doctor", &at("pair.toml"), "--json"]).json();
    assert_eq!(changed(), before, "the doctor has made a file");

    let arguments = ["--memlock=65536", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let examined = Command::new("prlimit")
        .args(arguments)
        .arg(process::program())
        .args(["doctor", &at("pair.toml"), "--json"])
        .output()
        .unwrap();
    let of_nobody: Value = serde_json::from_slice(&examined.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&examined.stderr)));
    assert_eq!(failures(&of_nobody), failures(&of_root));
    assert_eq!(examined.status.code(), Some(worst_code(&of_nobody)));
    let named =
        |name: &'static str| of_nobody["items"].as_array().unwrap().iter().filter(move |item| item["name"] == name);
    // One item judges the limit, and says whose it is: a gateway that runs has another one.
    let memlock = named("memlock").next().unwrap()["read"].as_str().unwrap();
    assert_eq!(memlock, "this process may lock 65536 bytes");
    let repeats = |item: &&Value| item["read"].as_str().unwrap().contains("memory cannot be locked");
    assert_eq!(named("mdgw check").find(repeats), None);
    let hidden: Vec<_> = named("mdgw check").filter(|item| item["status"] == "unknown").collect();
    let read = hidden.first().expect("what is hidden is unknown")["read"].as_str().unwrap();
    for part in [at("key"), format!("directory {}", at("gateway")), "as the gateway's user".to_owned()] {
        assert!(read.contains(&part), "no {part} in {read}");
    }
    let disks = of_root["items"].as_array().unwrap().iter().filter(|item| item["name"] == "disk");
    let is_of_journals = |item: &Value| item["read"].as_str().unwrap().starts_with("journals: ");
    assert!(disks.into_iter().any(is_of_journals), "{of_root}");
}
