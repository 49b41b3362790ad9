//! Dependency rules: which of our packages each may use, and which external packages it must not use. Cargo keeps a
//! package from using what it doesn't list; this checks the lists.

use std::{collections::BTreeSet, env, process::Command};

use super::{assert_none, read, root, sources};

/// For each of our packages, which others of ours its code may use. Why: ARCHITECTURE.md.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 28] = [
    ("gateway/wire", &[]),
    ("feeds", &["wire"]),
    ("gateway/sys", &["wire"]),
    ("gateway/telemetry", &["feeds", "sys", "wire"]),
    ("gateway/status", &["telemetry", "wire"]),
    ("gateway/publog", &[]),
    ("gateway/keys", &[]),
    ("gateway/log-books", &["feeds", "publog", "wire"]),
    ("gateway/live", &["feeds", "journal", "keys", "log-books", "publog", "sys", "wire"]),
    ("gateway/journal", &["captures", "feeds", "publog", "sys", "wire"]),
    ("gateway/nats", &["feeds", "keys", "publog", "sys", "wire"]),
    ("gateway/doctor", &["sys"]),
    ("gateway/admin", &[]),
    ("gateway/engine", &["feeds", "publog", "sys", "telemetry"]),
    ("gateway/election", &["keys", "sys", "wire"]),
    ("gateway/stores", &["election", "sys", "wire"]),
    ("gateway/pair", &["election", "engine", "feeds", "publog", "sys", "telemetry", "wire"]),
    ("gateway/captures", &["feeds", "wire"]),
    ("gateway/simulator", &["captures", "feeds", "sys", "wire"]),
    ("gateway/tools", &["captures", "feeds", "journal", "publog", "status", "sys", "telemetry"]),
    (
        "gateway/runtime",
        &[
            "admin",
            "doctor",
            "election",
            "engine",
            "feeds",
            "keys",
            "log-books",
            "pair",
            "publog",
            "status",
            "stores",
            "sys",
            "telemetry",
        ],
    ),
    ("gateway/log-reader", &["publog", "wire"]),
    ("gateway/subscriber", &["keys", "wire"]),
    (
        "gateway/mdgw",
        &[
            "captures",
            "doctor",
            "election",
            "feeds",
            "journal",
            "live",
            "nats",
            "runtime",
            "simulator",
            "status",
            "stores",
            "subscriber",
            "sys",
            "telemetry",
            "tools",
        ],
    ),
    (
        "bench",
        &[
            "captures",
            "election",
            "engine",
            "feeds",
            "log-reader",
            "pair",
            "publog",
            "runtime",
            "simulator",
            "status",
            "subscriber",
            "sys",
            "telemetry",
        ],
    ),
    (
        "tests",
        &[
            "captures",
            "election",
            "engine",
            "feeds",
            "log-reader",
            "nats",
            "pair",
            "publog",
            "runtime",
            "simulator",
            "status",
            "stores",
            "subscriber",
            "sys",
            "telemetry",
            "tools",
        ],
    ),
    ("tests/model", &["election", "feeds", "tests"]),
    (
        "tests/simulation",
        &["captures", "election", "engine", "feeds", "pair", "publog", "runtime", "subscriber", "sys", "tests"],
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
    ("tokio", &["gateway/admin", "gateway/live", "gateway/nats", "gateway/stores"]),
    (
        "serde_json",
        &[
            "gateway/election",
            "gateway/nats",
            "gateway/pair",
            "gateway/status",
            "gateway/stores",
            "gateway/tools",
            "gateway/runtime",
            "gateway/mdgw",
            "bench",
            "tests",
        ],
    ),
    (
        "serde",
        &[
            "gateway/doctor",
            "gateway/election",
            "gateway/nats",
            "gateway/status",
            "gateway/tools",
            "gateway/runtime",
            "gateway/mdgw",
            "tests",
        ],
    ),
];

/// All packages that `feeds` may link, since its output must be a function of bytes and times. It needs `libc` for one
/// madvise(2) call for the memory of the books.
const FEEDS_ALLOWED_CRATES: [&str; 5] = ["dbn", "hdrhistogram", "libc", "mdgw-wire", "zerocopy"];
/// All packages that `wire` may link, since every consumer links them too: no DBN library, so that a consumer may use any version
/// of one. `hmac` and `sha2` make the tags of packets.
const WIRE_ALLOWED_CRATES: [&str; 4] = ["hdrhistogram", "hmac", "sha2", "zerocopy"];

#[test]
fn packages_depend_only_on_allowed_packages() {
    for (package, allowed) in ALLOWED_DEPENDENCIES {
        let manifest = read(&format!("{package}/Cargo.toml"));
        assert_none(forbidden_dependencies(package, &manifest, allowed));
        assert_none(unused_permissions(package, &manifest, allowed));
    }
    for (package, allowed) in
        [("feeds", FEEDS_ALLOWED_CRATES.as_slice()), ("gateway/wire", WIRE_ALLOWED_CRATES.as_slice())]
    {
        let manifest = read(&format!("{package}/Cargo.toml"));
        assert_none(
            linked(&manifest, &["dependencies", "build-dependencies"]).filter(|name| !allowed.contains(&&**name)),
        );
    }

    let control =
        "[dependencies]\nmdgw-engine.workspace = true\nlibc = \"1\"\n[target.'cfg(unix)'.dependencies]\nmdgw = \"1\"";
    let found: Vec<_> = forbidden_dependencies("control", control, &["sys"]).collect();
    assert_eq!(found, ["control: mdgw", "control: mdgw-engine"]);
    let found: Vec<_> = unused_permissions("gateway/pair", control, &["engine", "sys"]).collect();
    assert_eq!(found, ["gateway/pair: sys is unused", "gateway/pair: simulator is unused in tests"]);
}

/// rustdoc reads a whole package to look for examples. So only the packages that have some say nothing of them in their manifests.
#[test]
fn examples_in_documentation_are_tested() {
    let sources = sources();
    let mut with_examples = Vec::new();
    for (package, _) in ALLOWED_DEPENDENCIES {
        let folder = if package == "tests" { "tests/support/".to_owned() } else { format!("{package}/src/") };
        if !root().join(&folder).join("lib.rs").exists() {
            continue;
        }
        let mut of_package = sources.iter().filter(|source| source.path.starts_with(&folder));
        let has_example = of_package.any(|source| has_example(&source.text));
        let is_skipped = read(&format!("{package}/Cargo.toml")).contains("\ndoctest = false\n");
        assert_eq!(
            is_skipped, !has_example,
            "{package}: `doctest = false` belongs where the documentation has no example"
        );
        with_examples.extend(has_example.then_some(package));
    }
    assert!(with_examples.contains(&"gateway/subscriber"), "{with_examples:?}");

    assert!(!has_example("/// ```text\n/// a ─► b\n/// ```\n"));
    assert!(has_example("/// ```text\n/// a ─► b\n/// ```\n/// ```no_run\n/// run();\n/// ```\n"));
}

/// Whether a file's documentation has a block of code that is not of another language.
fn has_example(text: &str) -> bool {
    let mut is_open = false;
    text.lines().any(|line| {
        let documentation = ["///", "//!"].into_iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        let Some(language) = documentation.and_then(|line| line.trim_start().strip_prefix("```")) else { return false };
        is_open = !is_open;
        let is_rust = ["", "rust", "no_run", "ignore", "should_panic", "compile_fail"].contains(&language);
        is_open && is_rust
    })
}

/// What a consumer in Rust compiles with the library for the network, or with the one for shared memory, itself included.
#[test]
fn a_consumer_compiles_fewer_than_thirty_packages() {
    ["mdgw-subscriber", "mdgw-log-reader"].into_iter().for_each(check_packages_of_consumer);
}

fn check_packages_of_consumer(library: &str) {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "--locked", "--package", library, "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(tree.stdout).expect("names are text");
    let packages: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    assert!(packages.iter().any(|package| package.starts_with("mdgw-wire ")), "{tree}");
    assert!(packages.len() < 30, "{}: {packages:?}", packages.len());
    assert_none(packages.iter().filter(|package| package.starts_with("dbn ") || package.starts_with("mdgw-feeds ")));
}

#[test]
fn architecture_shows_the_allowed_dependencies() {
    let architecture = read("ARCHITECTURE.md");
    let shown = dependencies_shown(&architecture);
    let in_force = ALLOWED_DEPENDENCIES
        .iter()
        .filter(|(package, _)| *package != "bench" && !package.starts_with("tests"))
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
