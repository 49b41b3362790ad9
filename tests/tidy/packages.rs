//! Dependency rules: which of our packages each may use, and which external packages it must not use. Cargo keeps a
//! package from using what it doesn't list; this checks the lists.

use super::{assert_none, read};

/// For each of our packages, which others of ours its code may use. Why: ARCHITECTURE.md.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 18] = [
    ("feeds", &[]),
    ("gateway/sys", &["feeds"]),
    ("gateway/telemetry", &["feeds", "sys"]),
    ("gateway/status", &["feeds", "telemetry"]),
    ("gateway/publog", &[]),
    ("gateway/keys", &[]),
    ("gateway/live", &["feeds", "keys", "publog"]),
    ("gateway/engine", &["feeds", "publog", "sys", "telemetry"]),
    ("gateway/election", &["feeds", "keys", "sys"]),
    ("gateway/pair", &["election", "engine", "feeds", "publog", "sys", "telemetry"]),
    ("gateway/captures", &["feeds"]),
    ("gateway/simulator", &["captures", "feeds", "sys"]),
    ("gateway/tools", &["captures", "feeds", "publog", "status", "sys", "telemetry"]),
    ("gateway/runtime", &["election", "engine", "feeds", "keys", "pair", "publog", "status", "sys", "telemetry"]),
    ("gateway/subscriber", &["feeds", "keys"]),
    (
        "gateway/mdgw",
        &[
            "captures",
            "election",
            "feeds",
            "live",
            "runtime",
            "simulator",
            "status",
            "subscriber",
            "sys",
            "telemetry",
            "tools",
        ],
    ),
    ("bench", &["captures", "election", "engine", "feeds", "publog", "simulator", "status", "sys", "telemetry"]),
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

/// Further packages that only the tests of a package may use: generated input, and a clock.
const IN_TESTS_ONLY: [(&str, &str); 3] =
    [("gateway/pair", "simulator"), ("gateway/status", "sys"), ("gateway/tools", "simulator")];

/// External packages, and which of our packages may depend on them.
const ONLY_IN: [(&str, &[&str]); 7] = [
    ("clap", &["gateway/mdgw", "bench", "tests"]),
    ("ratatui", &["gateway/mdgw"]),
    ("anyhow", &["gateway/mdgw", "bench"]),
    ("toml", &["gateway/runtime", "gateway/mdgw", "tests"]),
    ("tokio", &["gateway/election", "gateway/live"]),
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

/// All packages that `feeds` may link, since its output must be a function of bytes and times. It needs `libc` for one
/// madvise(2) call for the memory of the books, and `hmac` and `sha2` for the tags of published packets.
const FEEDS_ALLOWED_CRATES: [&str; 6] = ["dbn", "hdrhistogram", "hmac", "libc", "sha2", "zerocopy"];

#[test]
fn packages_depend_only_on_allowed_packages() {
    for (package, allowed) in ALLOWED_DEPENDENCIES {
        let manifest = read(&format!("{package}/Cargo.toml"));
        assert_none(forbidden_dependencies(package, &manifest, allowed));
        assert_none(unused_permissions(package, &manifest, allowed));
    }
    let feeds = read("feeds/Cargo.toml");
    assert_none(
        linked(&feeds, &["dependencies", "build-dependencies"]).filter(|name| !FEEDS_ALLOWED_CRATES.contains(&&**name)),
    );

    let control =
        "[dependencies]\nmdgw-engine.workspace = true\nlibc = \"1\"\n[target.'cfg(unix)'.dependencies]\nmdgw = \"1\"";
    let found: Vec<_> = forbidden_dependencies("control", control, &["sys"]).collect();
    assert_eq!(found, ["control: mdgw", "control: mdgw-engine"]);
    let found: Vec<_> = unused_permissions("gateway/pair", control, &["engine", "sys"]).collect();
    assert_eq!(found, ["gateway/pair: sys is unused", "gateway/pair: simulator is unused in tests"]);
}

#[test]
fn architecture_shows_the_allowed_dependencies() {
    let architecture = read("ARCHITECTURE.md");
    let shown = dependencies_shown(&architecture);
    let in_force = ALLOWED_DEPENDENCIES
        .iter()
        .filter(|(package, _)| !matches!(*package, "bench" | "tests"))
        .map(|(package, dependencies)| (*package, dependencies.to_vec()));
    assert_eq!(
        shown.iter().map(|(package, dependencies)| (package.as_str(), dependencies.clone())).collect::<Vec<_>>(),
        in_force.collect::<Vec<_>>()
    );

    let control = "| `gateway/x` | `y`, z | a, b |\n| `feeds` | w | – |\n| else |\n";
    let shown = dependencies_shown(control);
    assert_eq!(shown, [("gateway/x".to_owned(), vec!["a", "b"]), ("feeds".to_owned(), vec![])]);
}

/// Rows of the table of packages: the package, and which others it may use.
fn dependencies_shown(text: &str) -> Vec<(String, Vec<&str>)> {
    let rows = text.lines().filter_map(|line| {
        let [package, _, dependencies] =
            line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let package = package.strip_prefix('`')?.strip_suffix('`')?;
        let dependencies = if dependencies == "–" { Vec::new() } else { dependencies.split(", ").collect() };
        (package == "feeds" || package.starts_with("gateway/")).then(|| (package.to_owned(), dependencies))
    });
    rows.collect()
}

#[test]
fn every_package_has_a_row_of_allowed_dependencies() {
    let workspace: toml::Table = read("Cargo.toml").parse().expect("a manifest is TOML");
    let ours = workspace["workspace"]["dependencies"].as_table().expect("it lists packages").values();
    let paths: Vec<_> = ours.filter_map(|package| package.get("path")?.as_str()).collect();
    assert!(paths.len() > 10, "{paths:?}");
    assert_none(paths.iter().filter(|path| !ALLOWED_DEPENDENCIES.iter().any(|(package, _)| package == *path)));
}

#[test]
fn external_packages_are_used_only_where_allowed() {
    for (package, _) in ALLOWED_DEPENDENCIES {
        let manifest = read(&format!("{package}/Cargo.toml"));
        assert_none(misplaced(package, &manifest));
    }
    let control = "[dependencies]\nclap.workspace = true\nserde.workspace = true\nlibc.workspace = true";
    assert_eq!(
        misplaced("gateway/engine", control).collect::<Vec<_>>(),
        ["gateway/engine: clap", "gateway/engine: serde"]
    );
    assert_eq!(misplaced("gateway/mdgw", control).count(), 0);
}

fn misplaced(package: &str, manifest: &str) -> impl Iterator<Item = String> {
    let all: Vec<String> = linked(manifest, &["dependencies", "build-dependencies"]).collect();
    let users = ONLY_IN
        .iter()
        .filter(move |(name, users)| all.iter().any(|linked| linked == name) && !users.contains(&package));
    let users: Vec<_> = users.map(|(name, _)| format!("{package}: {name}")).collect();
    users.into_iter()
}

/// Packages of this repository that a manifest uses although they are not allowed.
fn forbidden_dependencies(package: &str, manifest: &str, allowed: &[&str]) -> impl Iterator<Item = String> {
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

/// Allowed packages that the package's manifest does not use.
fn unused_permissions(package: &str, manifest: &str, allowed: &[&str]) -> impl Iterator<Item = String> {
    let in_code: Vec<_> = linked(manifest, &["dependencies", "build-dependencies"]).collect();
    let in_tests: Vec<_> = linked(manifest, &["dev-dependencies"]).collect();
    let is_used = |names: &[String], permission: &str| names.iter().any(|name| *name == format!("mdgw-{permission}"));
    let code = allowed
        .iter()
        .filter(|permission| !is_used(&in_code, permission))
        .map(|permission| format!("{package}: {permission} is unused"));
    let of_tests = IN_TESTS_ONLY.iter().filter(|(of, permission)| *of == package && !is_used(&in_tests, permission));
    let found: Vec<_> =
        code.chain(of_tests.map(|(_, permission)| format!("{package}: {permission} is unused in tests"))).collect();
    found.into_iter()
}

/// Names in these tables of a manifest, and in the same tables of single targets.
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
