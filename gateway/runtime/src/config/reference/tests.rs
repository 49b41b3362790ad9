//! Compares the reference with what the resolver does.

use std::{collections::BTreeSet, env, fs, path::Path};

use super::{Absent, Allowed, Key, Table, markdown, tables::TABLES};
use crate::config::{ConfigError, Resolved};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/guide/configuration.md");

/// Names that keys had in version 0.1.0 and that are still read.
const FORMER_NAMES: [(&str, &str); 5] = [
    ("channel.recovery", "requests_under_way_max"),
    ("election", "preferred"),
    ("election", "tenure_ms"),
    ("election", "listeners_ms_max"),
    ("election.emergent", "found"),
];

/// Tables with their required keys only.
const COMMON: &str = "\
[gateway]
node = 1
state_file = \"/s\"
[[pool]]
name = \"main\"
threads = 1
[[channel]]
id = 1
name = \"itch\"
feed = \"nasdaq-itch-5.0\"
[[channel.line]]
group = \"239.1.1.1:1000\"
interface = \"lo\"
[channel.recovery]
server = \"127.0.0.1:2000\"
[[output]]
groups = [1]
[[output.line]]
address = \"239.1.1.9:1001\"
interface = \"lo\"
[output.snapshots]
address = \"239.1.1.9:1002\"
interface = \"lo\"
[retransmission]
listen = \"127.0.0.1:2001\"
allowed = [\"127.0.0.0/8\"]
[live]
listen = \"127.0.0.1:2004\"
key_file = \"/k\"
[journal]
directory = \"/j\"
[nats]
servers = [\"nats://127.0.0.1:4222\"]
[mirror]
[admin]
listen = \"127.0.0.1:9464\"
[latency]
[log]
";

const LINK: &str = "\
[election.link]
listen = \"127.0.0.1:2002\"
peer = \"127.0.0.1:2003\"
key_file = \"/k\"
[[election.peer]]
node = 2
name = \"gw2\"
";

/// One election for each backend.
const ELECTIONS: [(&str, &str); 6] = [
    ("file", "[election.file]\n"),
    ("etcd", "[election.etcd]\nendpoints = [\"127.0.0.1:2379\"]\n"),
    ("zookeeper", "[election.zookeeper]\nendpoints = [\"127.0.0.1:2181\"]\n"),
    ("zookeeper", "[election.zookeeper]\nendpoints = [\"127.0.0.1:2181\"]\nmode = \"latch\"\n"),
    (
        "quorum",
        "[election.quorum]\nlisten = \"127.0.0.1:2004\"\nkey_file = \"/k\"\nvote_directory = \"/v\"\n\
         [[election.quorum.voter]]\nnode = 2\naddress = \"127.0.0.1:2005\"\n\
         [[election.quorum.voter]]\nnode = 3\naddress = \"127.0.0.1:2006\"\n",
    ),
    (
        "emergent",
        "[election.emergent]\nallow_split = true\nlisten = \"127.0.0.1:2004\"\nkey_file = \"/k\"\nminimum_size = 2\n\
         seeds = [\"127.0.0.1:2005\"]\n",
    ),
];

fn samples() -> impl Iterator<Item = String> {
    ELECTIONS
        .into_iter()
        .map(|(backend, table)| format!("{COMMON}[election]\nbackend = \"{backend}\"\nname = \"gw1\"\n{table}{LINK}"))
}

fn sample_with(table: &Table) -> String {
    let has_table = |sample: &String| sample.lines().any(|line| line == table.header);
    samples().find(has_table).unwrap_or_else(|| panic!("no sample has {}", table.header))
}

fn is_built_in(sample: &str) -> bool {
    (cfg!(feature = "etcd") || !sample.contains("\"etcd\""))
        && (cfg!(feature = "zookeeper") || !sample.contains("\"zookeeper\""))
}

/// The sample with this value of the key in the table; a value that the sample has is replaced.
fn with_key(sample: &str, header: &str, key: &str, value: &str) -> String {
    let (mut text, mut in_table, mut is_done) = (String::new(), false, false);
    for line in sample.lines() {
        if line.starts_with('[') {
            in_table = line == header && !is_done;
        } else if in_table && line.split(" = ").next() == Some(key) {
            continue;
        }
        text += &format!("{line}\n");
        if in_table && !is_done {
            text += &format!("{key} = {value}\n");
            is_done = true;
        }
    }
    text
}

fn problems(text: &str) -> Vec<String> {
    match Resolved::from_text(Path::new("reference.toml"), text) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Invalid(problems)) => problems.into_iter().map(|problem| problem.message).collect(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn samples_are_valid() {
    for sample in samples().filter(|sample| is_built_in(sample)) {
        assert_eq!(problems(&sample), [""; 0], "{sample}");
    }
}

/// Every key that the resolver accepts is in the reference, and the reference has no other key.
#[test]
fn the_reference_has_exactly_the_keys_that_are_accepted() {
    let known_in = |text: &str| {
        let problems = problems(text);
        let known = problems.iter().find_map(|problem| problem.split_once("known keys: "));
        let (_, known) = known.unwrap_or_else(|| panic!("{problems:?}"));
        known.split(", ").map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let subtables = |path: &str| {
        let below = TABLES.iter().map(Table::path).filter_map(move |other| match path {
            "" => Some(other),
            _ => other.strip_prefix(path)?.strip_prefix('.'),
        });
        below.filter(|name| !name.contains('.')).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(known_in(&format!("no_such_key_at_all = 1\n{COMMON}")), subtables(""));
    for table in &TABLES {
        let accepted = known_in(&with_key(&sample_with(table), table.header, "no_such_key_at_all", "1"));
        let mut described = subtables(table.path());
        described.extend(table.keys.iter().map(|key| key.name.to_owned()));
        for (_, former) in FORMER_NAMES.iter().filter(|(path, _)| *path == table.path()) {
            assert!(accepted.contains(*former), "{}: {former} is no longer read", table.header);
        }
        let is_former = |name: &String| FORMER_NAMES.contains(&(table.path(), name.as_str()));
        let accepted: BTreeSet<_> = accepted.into_iter().filter(|name| !is_former(name)).collect();
        assert_eq!(accepted, described, "{}", table.header);
    }
}

#[test]
fn stated_bounds_and_names_are_those_in_force() {
    for table in &TABLES {
        for Key { name, allowed, .. } in table.keys {
            let (wrong, wanted) = match allowed {
                Allowed::Number(bound) => {
                    let wrong = if bound.max < i64::MAX { bound.max + 1 } else { bound.min - 1 };
                    (
                        wrong.to_string(),
                        format!("{wrong}: must be between {} and {} ({})", bound.min, bound.max, bound.unit),
                    )
                }
                Allowed::OneOf(names) => {
                    ("\"no such name\"".to_owned(), format!("must be one of: {}", names.join(", ")))
                }
                Allowed::Bool => ("1".to_owned(), "expected true or false".to_owned()),
                Allowed::Text(_) => continue,
            };
            let found = problems(&with_key(&sample_with(table), table.header, name, &wrong));
            assert!(found.iter().any(|problem| problem.contains(&wanted)), "{}.{name}: {found:?}", table.path());
        }
    }
}

#[test]
fn required_keys_are_refused_where_they_are_absent() {
    for table in &TABLES {
        for key in table.keys.iter().filter(|key| matches!(key.default, Absent::Required)) {
            let sample = sample_with(table);
            let without: String = {
                let kept = with_key(&sample, table.header, key.name, "0");
                kept.replacen(&format!("{}\n{} = 0\n", table.header, key.name), &format!("{}\n", table.header), 1)
            };
            assert!(problems(&without).len() > problems(&sample).len(), "{}.{}", table.path(), key.name);
        }
    }
}

#[test]
fn stated_defaults_are_those_in_force() {
    for table in &TABLES {
        for key in table.keys {
            let Some(default) = key.fixed_default() else { continue };
            // `profile` is not in the settings: it sets the defaults of other keys.
            if (table.path(), key.name) == ("election", "profile") {
                let with = with_key(&sample_with(table), table.header, key.name, &default);
                assert_eq!(settings(&with), settings(&sample_with(table)));
                continue;
            }
            let path = format!("{}.{}", table.path(), key.name);
            let mut was_seen = false;
            let is_written = |sample: &String| {
                with_key(sample, table.header, key.name, "0").lines().count() == sample.lines().count()
            };
            for sample in samples().filter(|sample| is_built_in(sample) && !is_written(sample)) {
                for (_, value) in settings(&sample).into_iter().filter(|(of, _)| *of == path) {
                    assert_eq!(value, default, "{path}");
                    was_seen = true;
                }
            }
            let may_be_absent = !is_built_in(&sample_with(table));
            assert!(
                was_seen || may_be_absent || (table.path(), key.name) == ("gateway", "node"),
                "{path} is not shown"
            );
        }
    }
    let alone = COMMON.replace("node = 1\n", "");
    assert!(settings(&alone).contains(&("gateway.node".to_owned(), "0".to_owned())));
}

/// All settings in force, under the keys of the reference. Names of pools, channels, lines, outputs and nodes are left
/// out.
fn settings(text: &str) -> Vec<(String, String)> {
    let resolved = Resolved::from_text(Path::new("reference.toml"), text).expect("the sample is valid");
    let nameless = |key: &str| {
        let parts: Vec<&str> = key.split('.').collect();
        match parts[..] {
            ["channel", _, "line", _, key] => format!("channel.line.{key}"),
            ["output", _, line, key] if line.starts_with("line[") => format!("output.line.{key}"),
            ["pool" | "channel" | "output", _, ref key @ ..] => format!("{}.{}", parts[0], key.join(".")),
            ["election", "peer", _, key] => format!("election.peer.{key}"),
            ["election", "quorum", "voter", _, key] => format!("election.quorum.voter.{key}"),
            _ => key.to_owned(),
        }
    };
    resolved.settings().into_iter().map(|(key, value)| (nameless(&key), value)).collect()
}

#[test]
fn the_committed_reference_is_current() {
    let generated = markdown();
    if env::var_os("UPDATE").is_some() {
        fs::write(DOCUMENT, &generated).expect("the guide can be written");
    }
    let committed = fs::read_to_string(DOCUMENT).unwrap_or_default();
    let (committed, generated): (Vec<_>, Vec<_>) = (committed.lines().collect(), generated.lines().collect());
    let differs = committed.iter().zip(&generated).find(|(committed, generated)| committed != generated);
    assert!(
        differs.is_none() && committed.len() == generated.len(),
        "ops/guide/configuration.md is not current: UPDATE=1 cargo test -p mdgw-runtime --lib config::reference; {differs:?}"
    );
}
