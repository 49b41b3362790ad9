//! Dependency rules: which of our packages each may use, and which external packages it must not use. Cargo keeps a
//! package from using what it doesn't list; this checks the lists.

use super::{assert_none, read};

/// For each of our packages, which others of ours its code may use. Why: ARCHITECTURE.md.
const DOORS: [(&str, &[&str]); 16] = [
    ("feeds", &[]),
    ("gateway/sys", &["feeds"]),
    ("gateway/telemetry", &["feeds", "sys"]),
    ("gateway/status", &["feeds", "telemetry"]),
    ("gateway/publog", &[]),
    ("gateway/engine", &["feeds", "publog", "sys", "telemetry"]),
    ("gateway/election", &["feeds", "sys"]),
    ("gateway/pair", &["election", "engine", "feeds", "publog", "sys", "telemetry"]),
    ("gateway/captures", &["feeds"]),
    ("gateway/simulator", &["captures", "feeds", "sys"]),
    ("gateway/tools", &["captures", "feeds", "publog", "status", "sys", "telemetry"]),
    ("gateway/runtime", &["election", "engine", "feeds", "pair", "publog", "status", "sys", "telemetry"]),
    ("gateway/subscriber", &["feeds"]),
    (
        "gateway/mdgw",
        &["captures", "election", "feeds", "runtime", "simulator", "status", "subscriber", "sys", "telemetry", "tools"],
    ),
    ("bench", &["captures", "election", "engine", "feeds", "publog", "simulator", "sys"]),
    (
        "tests",
        &[
            "captures",
            "election",
            "engine",
            "feeds",
            "pair",
            "publog",
            "runtime",
            "simulator",
            "status",
            "subscriber",
            "sys",
            "telemetry",
            "tools",
        ],
    ),
];

/// Which packages may be used besides by tests of the package itself: generated input, and a clock.
const IN_TESTS_ONLY: [(&str, &str); 3] =
    [("gateway/pair", "simulator"), ("gateway/status", "sys"), ("gateway/tools", "simulator")];

/// Unrecognised packages that only these of ours may link.
const ONLY_IN: [(&str, &[&str]); 7] = [
    ("clap", &["gateway/mdgw", "bench", "tests"]),
    ("ratatui", &["gateway/mdgw"]),
    ("anyhow", &["gateway/mdgw", "bench"]),
    ("toml", &["gateway/runtime", "gateway/mdgw", "tests"]),
    ("tokio", &["gateway/election"]),
    (
        "serde_json",
        &[
            "gateway/election",
            "gateway/pair",
            "gateway/status",
            "gateway/tools",
            "gateway/runtime",
            "gateway/mdgw",
            "bench",
            "tests",
        ],
    ),
    ("serde", &["gateway/election", "gateway/status", "gateway/tools", "gateway/runtime", "gateway/mdgw", "tests"]),
];

/// All that `feeds` may link: it is a function of bytes and times. `libc` is there for one piece of advice about the
/// books' memory.
const FEEDS_ALLOWED_CRATES: [&str; 4] = ["dbn", "hdrhistogram", "libc", "zerocopy"];

#[test]
fn packages_use_only_what_their_doors_open_to() {
    for (package, allowed) in DOORS {
        let manifest = read(&format!("{package}/Cargo.toml"));
        assert_none(through_walls(package, &manifest, allowed));
        assert_none(unused_doors(package, &manifest, allowed));
    }
    let feeds = read("feeds/Cargo.toml");
    assert_none(
        linked(&feeds, &["dependencies", "build-dependencies"]).filter(|name| !FEEDS_ALLOWED_CRATES.contains(&&**name)),
    );

    let control =
        "[dependencies]\nmdgw-engine.workspace = true\nlibc = \"1\"\n[target.'cfg(unix)'.dependencies]\nmdgw = \"1\"";
    let found: Vec<_> = through_walls("control", control, &["sys"]).collect();
    assert_eq!(found, ["control: mdgw", "control: mdgw-engine"]);
    let found: Vec<_> = unused_doors("gateway/pair", control, &["engine", "sys"]).collect();
    assert_eq!(found, ["gateway/pair: sys is unused", "gateway/pair: simulator is unused in tests"]);
}

#[test]
fn architecture_shows_the_doors_in_force() {
    let architecture = read("ARCHITECTURE.md");
    let shown = doors_shown(&architecture);
    let in_force = DOORS
        .iter()
        .filter(|(package, _)| !matches!(*package, "bench" | "tests"))
        .map(|(package, doors)| (*package, doors.to_vec()));
    assert_eq!(
        shown.iter().map(|(package, doors)| (package.as_str(), doors.clone())).collect::<Vec<_>>(),
        in_force.collect::<Vec<_>>()
    );

    let control = "| `gateway/x` | `y`, z | a, b |\n| `feeds` | w | – |\n| else |\n";
    let shown = doors_shown(control);
    assert_eq!(shown, [("gateway/x".to_owned(), vec!["a", "b"]), ("feeds".to_owned(), vec![])]);
}

/// Rows of the table of packages: the package, and which others it may use.
fn doors_shown(text: &str) -> Vec<(String, Vec<&str>)> {
    let rows = text.lines().filter_map(|line| {
        let [package, _, doors] = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let package = package.strip_prefix('`')?.strip_suffix('`')?;
        let doors = if doors == "–" { Vec::new() } else { doors.split(", ").collect() };
        (package == "feeds" || package.starts_with("gateway/")).then(|| (package.to_owned(), doors))
    });
    rows.collect()
}

#[test]
fn every_package_has_doors() {
    let workspace: toml::Table = read("Cargo.toml").parse().expect("a manifest is TOML");
    let ours = workspace["workspace"]["dependencies"].as_table().expect("it lists packages").values();
    let paths: Vec<_> = ours.filter_map(|package| package.get("path")?.as_str()).collect();
    assert!(paths.len() > 10, "{paths:?}");
    assert_none(paths.iter().filter(|path| !DOORS.iter().any(|(package, _)| package == *path)));
}

#[test]
fn foreign_packages_stay_in_their_rooms() {
    for (package, _) in DOORS {
        let manifest = read(&format!("{package}/Cargo.toml"));
        assert_none(strayed(package, &manifest));
    }
    let control = "[dependencies]\nclap.workspace = true\nserde.workspace = true\nlibc.workspace = true";
    assert_eq!(
        strayed("gateway/engine", control).collect::<Vec<_>>(),
        ["gateway/engine: clap", "gateway/engine: serde"]
    );
    assert_eq!(strayed("gateway/mdgw", control).count(), 0);
}

fn strayed(package: &str, manifest: &str) -> impl Iterator<Item = String> {
    let all: Vec<String> = linked(manifest, &["dependencies", "build-dependencies"]).collect();
    let rooms = ONLY_IN
        .iter()
        .filter(move |(name, rooms)| all.iter().any(|linked| linked == name) && !rooms.contains(&package));
    let rooms: Vec<_> = rooms.map(|(name, _)| format!("{package}: {name}")).collect();
    rooms.into_iter()
}

/// Packages of ours in a manifest that are not among the allowed.
fn through_walls(package: &str, manifest: &str, allowed: &[&str]) -> impl Iterator<Item = String> {
    let is_ours = |name: &String| name == "mdgw" || name.starts_with("mdgw-");
    let may = |name: &str| allowed.iter().any(|allowed| name == format!("mdgw-{allowed}"));
    let in_tests = |name: &str| {
        may(name) || IN_TESTS_ONLY.iter().any(|(of, used)| *of == package && name == format!("mdgw-{used}"))
    };
    let code = linked(manifest, &["dependencies", "build-dependencies"]).filter(|name| is_ours(name) && !may(name));
    let tests = linked(manifest, &["dev-dependencies"]).filter(|name| is_ours(name) && !in_tests(name));
    let found: Vec<_> = code.chain(tests).map(|name| format!("{package}: {name}")).collect();
    found.into_iter()
}

/// Doors that the package's manifest does not use.
fn unused_doors(package: &str, manifest: &str, allowed: &[&str]) -> impl Iterator<Item = String> {
    let in_code: Vec<_> = linked(manifest, &["dependencies", "build-dependencies"]).collect();
    let in_tests: Vec<_> = linked(manifest, &["dev-dependencies"]).collect();
    let is_used = |names: &[String], door: &str| names.iter().any(|name| *name == format!("mdgw-{door}"));
    let code =
        allowed.iter().filter(|door| !is_used(&in_code, door)).map(|door| format!("{package}: {door} is unused"));
    let of_tests = IN_TESTS_ONLY.iter().filter(|(of, door)| *of == package && !is_used(&in_tests, door));
    let found: Vec<_> = code.chain(of_tests.map(|(_, door)| format!("{package}: {door} is unused in tests"))).collect();
    found.into_iter()
}

/// Names in these tables of a manifest, those of single targets too.
fn linked(manifest: &str, tables: &[&str]) -> impl Iterator<Item = String> {
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let of_targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    let names: Vec<String> = of_targets
        .chain([&manifest])
        .flat_map(|part| tables.iter().filter_map(|table| part.get(*table)?.as_table()))
        .flat_map(|table| table.keys().cloned())
        .collect();
    names.into_iter()
}
