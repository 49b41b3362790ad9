#![allow(clippy::unwrap_used, reason = "tests")]

mod admin;
mod listeners;
mod reload;
mod snapshot_group;

use std::{net::Ipv4Addr, path::Path};

use expect_test::{Expect, expect};
use mdgw_election::timing::LeaseTiming;
use mdgw_engine::dispatch::{DispatchModel, PromotionPolicy, WaitPolicy};
use mdgw_feeds::frame::FRAME_HEADER_BYTES;

use crate::config::{ConfigError, Resolved, resolved::Threads};

const MINIMAL: &str = r#"[gateway]
state_file = "state"

[[pool]]
name = "main"
cores = [2]
wait = "spin"

[[channel]]
id = 1
name = "nasdaq"
feed = "nasdaq-itch-5.0"

[[channel.line]]
group = "233.54.12.111:26477"
interface = "lo"

[[output]]
groups = [1]

[[output.line]]
address = "239.1.1.1:31000"
interface = "lo"

[retransmission]
listen = "127.0.0.1:31100"
allowed = ["127.0.0.0/8"]
"#;

/// The output line of [`MINIMAL`].
const OUTPUT_LINE: &str = "address = \"239.1.1.1:31000\"\ninterface = \"lo\"\n";

fn load(text: &str) -> Result<Resolved, ConfigError> {
    Resolved::from_text(Path::new("x.toml"), text)
}

/// [`MINIMAL`] with `from`, which it must contain, replaced by `to`.
fn with_edit(from: &str, to: &str) -> String {
    assert!(MINIMAL.contains(from), "{from}");
    MINIMAL.replacen(from, to, 1)
}

fn refused(text: &str, expected: Expect) {
    expected.assert_eq(&load(text).unwrap_err().to_string());
}

#[test]
fn a_small_configuration_gets_its_defaults() {
    let resolved = load(MINIMAL).unwrap();
    assert_eq!(resolved.warnings, Vec::<String>::new());
    let pool = &resolved.pools[0];
    assert_eq!(
        (&pool.threads, pool.wait, pool.promotion),
        (&Threads::Pinned(vec![2]), WaitPolicy::Spin, PromotionPolicy::Strict)
    );
    let channel = &resolved.channels[0];
    assert_eq!((channel.group.0, channel.pool, channel.gap_timeout_ns), (1, 0, 2_000_000));
    assert!(channel.window_packets > pool.quota_packets * channel.lines.len());
}

#[test]
fn promotion_follows_the_wait_policy_unless_given() {
    let promotion = |text: &str| load(text).unwrap().pools[0].promotion;
    assert_eq!(promotion(&with_edit("\"spin\"", "\"park\"")), PromotionPolicy::Lazy);
    assert_eq!(promotion(&with_edit("\"spin\"", "\"park\"\npromotion = \"strict\"")), PromotionPolicy::Strict);
}

#[test]
fn dispatch_models_are_chosen_by_name_and_refused_where_they_cannot_work() {
    let two_threads = with_edit("cores = [2]", "cores = [2, 3]");
    let with = |line: &str| two_threads.replacen("wait = \"spin\"", &format!("wait = \"spin\"\n{line}"), 1);
    let model = |text: &str| load(text).unwrap().pools[0].dispatch;
    assert_eq!(model(MINIMAL), DispatchModel::LeaderFollowers);
    assert_eq!(model(&with("dispatch = \"leader-followers\"")), DispatchModel::LeaderFollowers);
    assert_eq!(model(&with("dispatch = \"half-sync\"")), DispatchModel::HalfSync);
    assert_eq!(model(&with("dispatch = \"reactor\"")), DispatchModel::Reactor);
    refused(
        &with_edit("wait = \"spin\"", "wait = \"spin\"\ndispatch = \"half-sync\""),
        expect![[
            "x.toml:8:12: pool[0].dispatch: \"half-sync\": needs two threads or more: one receives, the others process"
        ]],
    );
    refused(
        &with("dispatch = \"reactor\"\npromotion = \"lazy\""),
        expect![[
            "x.toml:9:13: pool[0].promotion: `promotion` conflicts with `dispatch = \"reactor\"`: only \"leader-followers\" promotes threads"
        ]],
    );
    refused(
        &with("dispatch = \"proactor\""),
        expect![[
            r#"x.toml:8:12: pool[0].dispatch: "proactor": did you mean "reactor"? must be one of: leader-followers, half-sync, reactor"#
        ]],
    );
}

#[test]
fn shipped_configurations_load() {
    for name in ["mdgw.toml", "loopback.toml", "pair.toml", "quorum.toml", "groups.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/config").join(name);
        let resolved = Resolved::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(resolved.warnings, Vec::<String>::new(), "{name}");
    }
}

/// Keys and values that were renamed since are still read.
#[test]
fn configurations_of_version_0_1_0_load() {
    for name in ["mdgw.toml", "loopback.toml", "pair.toml", "votes.toml", "groups.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/formats/configuration").join(name);
        let _resolved = Resolved::load(&path).unwrap_or_else(|error| panic!("{error}"));
    }
    let pair = include_str!("../../../../../tests/data/formats/configuration/pair.toml");
    let started = pair.replacen("[election.link]", "[election.link]\nsentinel = \"started\"", 1);
    assert_ne!(started, pair);
    let sentinel = |text: &str| Resolved::from_text(Path::new("pair.toml"), text).unwrap().settings();
    assert_eq!(sentinel(&started), sentinel(&started.replace("\"started\"", "\"spawn\"")));
}

#[test]
fn commented_defaults_of_mdgw_toml_are_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/config/mdgw.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let is_key = |line: &str| {
        line.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    };
    let mut uncommented = String::new();
    let mut count = 0;
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(rest) if is_key(rest) && !rest.starts_with("date") => {
                uncommented.push_str(rest);
                count += 1;
            }
            _ => uncommented.push_str(line),
        }
        uncommented.push('\n');
    }
    assert!(count > 25, "{count} commented keys found");
    let [plain, explicit] =
        [&text, &uncommented].map(|text| Resolved::from_text(&path, text).unwrap_or_else(|e| panic!("{e}")));
    assert_eq!(plain.settings(), explicit.settings());
}

#[test]
fn commented_defaults_of_pair_toml_are_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/config/pair.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, election) = text.split_once("[election]").unwrap();
    let has_default =
        |line: &&str| line.contains(" = ") && !line.starts_with("# preferred") && !line.starts_with("# core");
    let lines = election
        .lines()
        .map(|line| Some(line).filter(has_default).and_then(|line| line.strip_prefix("# ")).unwrap_or(line));
    let explicit = format!("{before}[election]{}\n", lines.collect::<Vec<_>>().join("\n"));
    assert_ne!(explicit, text);
    let [plain, explicit] = [&text, &explicit].map(|text| load(text).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(plain.settings(), explicit.settings());
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    refused(
        &with_edit("wait =", "wiat ="),
        expect![
            "x.toml:7:1: pool[0].wiat: unknown key `wiat`; did you mean `wait`? known keys: name, cores, threads, dispatch, io, wait, promotion, spin_us, quota, batch, priority, spare_channels"
        ],
    );
    refused(
        &with_edit("[[channel.line]]", "[[channel.lines]]"),
        expect![
            "x.toml:14:11: channel[0].lines[0]: unknown key `lines`; did you mean `line`? known keys: id, name, feed, group, pool, schemas, date, window_packets, gap_timeout_us, line_silence_ms, orders_max, levels_max, instruments_max, order_store, line, recovery"
        ],
    );
    refused(
        &with_edit("[[output]]", "[[ouptut]]"),
        expect![
            "x.toml:18:3: ouptut[0]: unknown key `ouptut`; did you mean `output`? known keys: gateway, pool, channel, output, retransmission, live, journal, nats, mirror, admin, election, latency, log"
        ],
    );
    refused(
        &with_edit("id = 1", "id = 1\ncolour = 3"),
        expect![
            "x.toml:11:1: channel[0].colour: unknown key `colour`; known keys: id, name, feed, group, pool, schemas, date, window_packets, gap_timeout_us, line_silence_ms, orders_max, levels_max, instruments_max, order_store, line, recovery"
        ],
    );
}

#[test]
fn wrong_types_and_values_name_key_value_and_range() {
    refused(
        &with_edit("id = 1", "id = 70000"),
        expect!["x.toml:10:6: channel[0].id: 70000: must be between 0 and 65535 (channel number)"],
    );
    refused(
        &with_edit("id = 1", "id = \"one\""),
        expect![[r#"x.toml:10:6: channel[0].id: invalid type: string "one", expected a whole number"#]],
    );
    refused(
        &with_edit("cores = [2]", "cores = [2, 4096]"),
        expect!["x.toml:6:13: pool[0].cores[1]: 4096: must be between 0 and 1023 (core number)"],
    );
    refused(
        &with_edit("wait = \"spin\"", "wait = \"spin\"\nquota = 1025"),
        expect!["x.toml:8:9: pool[0].quota: 1025: must be between 1 and 1024 (packets)"],
    );
    refused(
        &with_edit("\"spin\"", "\"sleep\""),
        expect![[r#"x.toml:7:8: pool[0].wait: "sleep": must be one of: spin, park, spin-then-park"#]],
    );
    refused(
        &with_edit("nasdaq-itch-5.0", "nasdaq-itch-5"),
        expect![[
            r#"x.toml:12:8: channel[0].feed: "nasdaq-itch-5": did you mean "nasdaq-itch-5.0"? must be one of: nasdaq-itch-5.0, bx-itch-5.0, psx-itch-5.0, iex-tops-1.6, iex-deep-1.0"#
        ]],
    );
    refused(
        &with_edit("233.54.12.111:26477", "233.54.12.111"),
        expect![[
            r#"x.toml:15:9: channel[0].line[0].group: "233.54.12.111": expected IPv4 address and port, such as 233.54.12.111:26477"#
        ]],
    );
    refused(
        &with_edit("233.54.12.111:26477", "233.54.12.111:0"),
        expect![[
            r#"x.toml:15:9: channel[0].line[0].group: "233.54.12.111:0": port must be 1 to 65535; broadcast addresses are not allowed"#
        ]],
    );
    refused(
        &with_edit("127.0.0.0/8", "127.0.0.1/8"),
        expect![[
            r#"x.toml:27:12: retransmission.allowed[0]: "127.0.0.1/8": expected a network without host bits, such as "10.1.0.0/16""#
        ]],
    );
    refused(
        &with_edit("interface = \"lo\"", "interface = \"a name that is too long\""),
        expect![[
            r#"x.toml:16:13: channel[0].line[0].interface: "a name that is too long": expected the name (1 to 15 bytes) or IPv4 address of an interface"#
        ]],
    );
    refused(&with_edit("[[pool]]", "[pool]"), expect!["x.toml:4:1: pool: expected an array of tables: write [[pool]]"]);
    refused(
        &with_edit("id = 1", "id = "),
        expect!["x.toml:10:6: TOML syntax error: string values must be quoted, expected literal string"],
    );
    refused(
        &with_edit("id = 1", "id = 1\ndate = \"2019-02-30\""),
        expect![[r#"x.toml:11:8: channel[0].date: "2019-02-30": expected a day, such as "2019-01-30""#]],
    );
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    refused(
        &with_edit("[[pool]]", "[[pool]"),
        expect!["x.toml:4:8: TOML syntax error: unclosed array table, expected `]`"],
    );
    refused(
        &with_edit("wait = \"spin\"", "wait = \"spin"),
        expect![[r#"x.toml:7:13: TOML syntax error: invalid basic string, expected `"`"#]],
    );
    refused(
        &with_edit("wait = \"spin\"", "wait \"spin\""),
        expect![[r#"x.toml:7:6: TOML syntax error: key with no value, expected `=`"#]],
    );
    refused(
        &with_edit("cores = [2]", "cores = [2"),
        expect![[r#"x.toml:7:1: TOML syntax error: missing comma between array elements, expected `,`"#]],
    );
    refused("[gateway]\n[gateway]\n", expect!["x.toml:2:2: TOML syntax error: duplicate key"]);
}

#[test]
fn a_key_file_given_as_configuration_is_not_shown() {
    let key = "0123456789abcdef".repeat(4);
    let client = "research db-unitTESTkey0123456789abcdefgh XNAS.ITCH 10";
    let private_key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIDdh\n-----END PRIVATE KEY-----\n";
    for (text, secret) in [
        (format!("{key}\n"), &key[..8]),
        (format!("# name key\n{client}\n"), "db-unitTEST"),
        (private_key.to_owned(), "MC4CAQ"),
        ("hunter2 \u{0}\n".to_owned(), "hunter2"),
        (format!("password = {key}\n"), &key[..8]),
        (format!("password = \"{key}\n"), &key[..8]),
    ] {
        let refused = Resolved::from_text(Path::new("x.toml"), &text).unwrap_err();
        let shown = format!("{refused} {refused:?}");
        assert!(shown.contains("x.toml:") && shown.contains("TOML syntax error"), "{shown}");
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn missing_keys_name_their_table() {
    refused(&with_edit("state_file = \"state\"\n", ""), expect!["x.toml:1:1: gateway: `state_file` is missing"]);
    refused(&with_edit("id = 1\n", ""), expect!["x.toml:9:1: channel[0]: `id` is missing"]);
    refused(&with_edit("interface = \"lo\"\n", ""), expect!["x.toml:14:1: channel[0].line[0]: `interface` is missing"]);
    refused("", expect!["x.toml:1:1: `gateway` is missing"]);
    refused(
        "[gateway]\n",
        expect![[r#"
            3 problems
            x.toml:1:1: gateway: `state_file` is missing
            x.toml:1:1: there must be at least one [[pool]]
            x.toml:1:1: there must be at least one [[channel]]"#]],
    );
}

#[test]
fn violated_relations_between_keys_show_the_arithmetic() {
    refused(
        &with_edit("id = 1", "id = 1\nwindow_packets = 64"),
        expect![[
            r#"x.toml:11:18: channel[0].window_packets: window_packets = 64: must exceed one drain: quota 64 of pool "main" x 1 lines = 64 packets"#
        ]],
    );
    refused(
        &with_edit("state_file", "segment_bytes = 1048576\nretention_bytes = 2621440\nstate_file"),
        expect![
            "x.toml:3:19: gateway.retention_bytes: retention_bytes = 2621440: must be at least 2 and a whole number of segments; it is 2.50 segments of 1048576 bytes"
        ],
    );
}

#[test]
fn duplicates_are_refused() {
    refused(
        &with_edit("cores = [2]", "cores = [2, 2]"),
        expect![[r#"x.toml:6:13: pool[0].cores[1]: 2: core already used by pool "main""#]],
    );
    let second = "[[channel]]\nid = 1\nname = \"nasdaq\"\nfeed = \"bx-itch-5.0\"\n[[channel.line]]\ngroup = \"233.54.12.111:26477\"\ninterface = \"lo\"\n\n[[output]]";
    refused(
        &with_edit("[[output]]", second),
        expect![[r#"
            3 problems
            x.toml:19:6: channel[1].id: 1: duplicate number, used by channel "nasdaq"
            x.toml:20:8: channel[1].name: "nasdaq": duplicate channel name
            x.toml:23:9: channel[1].line[0].group: 233.54.12.111:26477 on lo: already used by line A of channel "nasdaq"; each line needs its own group and port"#]],
    );
    refused(
        &with_edit("239.1.1.1:31000", "233.54.12.111:26477"),
        expect![[
            r#"x.toml:22:11: output[0].line[0].address: 233.54.12.111:26477: is also line A of channel "nasdaq"; the gateway would receive its own output"#
        ]],
    );
    let duplicate = "[[output.line]]\naddress = \"239.1.1.1:31000\"\ninterface = \"lo\"\n[[output.line]]";
    refused(
        &with_edit("[[output.line]]", duplicate),
        expect!["x.toml:25:11: output[0].line[1].address: 239.1.1.1:31000 on lo: duplicate output line"],
    );
    refused(
        &with_edit("groups = [1]", "groups = [1, 1]"),
        expect!["x.toml:19:14: output[0].groups[1]: 1: already in another output"],
    );
}

#[test]
fn settings_that_the_feed_does_not_support_are_refused() {
    let iex = with_edit("nasdaq-itch-5.0", "iex-tops-1.6");
    let more = "id = 1\nschemas = [\"mbo\", \"mbp-10\", \"mbp-1\"]\norders_max = 5000";
    refused(
        &with_edit("nasdaq-itch-5.0", "iex-deep-1.0").replacen("id = 1", "id = 1\nschemas = [\"trades\", \"mbo\"]", 1),
        expect![[
            r#"x.toml:11:22: channel[0].schemas[1]: "mbo": not available from iex-deep-1.0; available: mbp-1, mbp-10, trades, status, definition, imbalance, statistics"#
        ]],
    );
    refused(
        &with_edit("id = 1", "id = 1\nschemas = [\"mbo\", \"trades\", \"mbo\"]"),
        expect![[r#"x.toml:11:29: channel[0].schemas[2]: "mbo": duplicate"#]],
    );
    refused(
        &iex.replacen("id = 1", more, 1),
        expect![[r#"
            2 problems
            x.toml:11:19: channel[0].schemas[1]: "mbp-10": not available from iex-tops-1.6; available: mbo, mbp-1, trades, status, definition, imbalance, statistics
            x.toml:12:14: channel[0].orders_max: iex-tops-1.6 carries no individual orders, so this key does not apply"#]],
    );
    refused(
        &iex.replacen("[[output]]", "[channel.recovery]\nserver = \"1.2.3.4:5\"\n[[output]]", 1),
        expect!["x.toml:18:1: channel[0].recovery: iex-tops-1.6 has no retransmission server; remove this table"],
    );
}

#[test]
fn a_channel_names_its_pool_if_there_are_several() {
    let two = with_edit("[[channel]]", "[[pool]]\nname = \"side\"\nthreads = 1\n\n[[channel]]");
    refused(&two, expect!["x.toml:13:1: channel[0]: `pool` is missing: there are 2 pools"]);
    assert_eq!(load(&two.replacen("id = 1", "id = 1\npool = \"side\"", 1)).unwrap().channels[0].pool, 1);
    refused(
        &two.replacen("id = 1", "id = 1\npool = \"sied\"", 1),
        expect![[r#"x.toml:15:8: channel[0].pool: "sied": did you mean "side"? must be one of: main, side"#]],
    );
    refused(
        &with_edit("cores = [2]", "threads = 2\npriority = 10"),
        expect![[
            r#"x.toml:7:12: pool[0].priority: 10: a spinning, unpinned SCHED_FIFO thread can hang the host; set `cores` or `wait = "park"`"#
        ]],
    );
}

#[test]
fn two_lines_may_share_a_group_with_different_sources() {
    let line = |source: &str| {
        format!("[[channel.line]]\ngroup = \"233.54.12.111:26477\"\ninterface = \"lo\"\nsource = [\"{source}\"]\n\n")
    };
    let lines = |a: &str, b: &str| {
        let (head, rest) = MINIMAL.split_once("[[channel.line]]").unwrap();
        let (_, tail) = rest.split_once("[[output]]").unwrap();
        format!("{head}{}{}[[output]]{tail}", line(a), line(b))
    };
    assert_eq!(load(&lines("10.0.0.1", "10.0.0.2")).unwrap().channels[0].lines.len(), 2);
    refused(
        &lines("10.0.0.1", "10.0.0.1"),
        expect![[
            r#"x.toml:20:9: channel[0].line[1].group: 233.54.12.111:26477 on lo: already used by line A of channel "nasdaq"; each line needs its own group and port"#
        ]],
    );
}

#[test]
fn senders_of_an_output_line_are_checked() {
    let with = |source: &str| with_edit(OUTPUT_LINE, &format!("{OUTPUT_LINE}source = [{source}]\n"));
    let resolved = load(&with("\"10.20.0.5\", \"10.20.0.6\"")).unwrap();
    assert_eq!(
        resolved.outputs[0].lines[0].sources,
        ["10.20.0.5", "10.20.0.6"].map(|source| source.parse::<Ipv4Addr>().unwrap())
    );
    refused(
        &with("\"10.20.0.5\", \"10.20.0.5\", \"239.1.1.1\", \"0.0.0.0\", \"255.255.255.255\", \"gateway-a\""),
        expect![[r#"
            5 problems
            x.toml:24:24: output[0].line[0].source[1]: 10.20.0.5: twice in the list
            x.toml:24:37: output[0].line[0].source[2]: 239.1.1.1: not the address of a sender
            x.toml:24:50: output[0].line[0].source[3]: 0.0.0.0: not the address of a sender
            x.toml:24:61: output[0].line[0].source[4]: 255.255.255.255: not the address of a sender
            x.toml:24:80: output[0].line[0].source[5]: "gateway-a": expected the IPv4 address of a sender"#]],
    );
    refused(
        &with("\"10.20.0.5\"").replacen("239.1.1.1", "10.1.1.1", 1),
        expect!["x.toml:24:10: output[0].line[0].source: 10.1.1.1:31000 is no multicast group; remove this key"],
    );
}

#[test]
fn tags_have_their_room_in_any_case_and_need_one_to_four_keys() {
    let with = |keys: &str| with_edit("groups = [1]\n", &format!("groups = [1]\n{keys}\n"));
    let (plain, tagged) = (load(MINIMAL).unwrap(), load(&with("tag_key_files = [\"new\", \"old\"]")).unwrap());
    let [plain, tagged] = [plain, tagged].map(|config| config.outputs.into_iter().next().unwrap());
    assert_eq!(tagged.tag_key_files, [Path::new("new"), Path::new("old")]);
    assert_eq!((plain.frame_bytes_max(), tagged.frame_bytes_max()), (1_392, 1_392));
    let smallest = load(&with("payload_bytes_max = 632")).unwrap();
    assert_eq!(smallest.outputs[0].frame_bytes_max(), FRAME_HEADER_BYTES + size_of::<dbn::InstrumentDefMsg>());
    refused(&with("tag_key_files = []"), expect!["x.toml:20:17: output[0].tag_key_files: 0 files: must be 1 to 4"]);
    let without_keys = load(&with("accept_untagged = true")).unwrap();
    assert!(without_keys.warnings.iter().any(|warning| warning.contains("accept_untagged")));
}

/// [`MINIMAL`] with an election table of these lines, and one peer.
fn with_election(lines: &str) -> String {
    format!("{MINIMAL}\n[election]\nname = \"gw0\"\n{lines}\n[[election.peer]]\nnode = 1\nname = \"gw1\"\n")
}

#[test]
#[cfg(not(feature = "etcd"))]
fn a_store_that_is_not_built_in_names_its_feature() {
    refused(
        &with_election("backend = \"etcd\"\n[election.etcd]\nendpoints = [\"10.0.0.1:2379\"]\n"),
        expect![[
            r#"x.toml:31:11: election.backend: "etcd": not included in this build; rebuild with `--features etcd`"#
        ]],
    );
}

#[test]
#[cfg(feature = "etcd")]
fn an_election_by_etcd_is_shown_with_its_defaults() {
    let text = "backend = \"etcd\"\n[election.etcd]\nendpoints = [\"10.0.0.1:2379\", \"etcd-2:2379\"]\nca_file = \"ca.pem\"\n\
                certificate_file = \"c.pem\"\nkey_file = \"c.key\"\nuser = \"mdgw\"\npassword_file = \"secret\"\n";
    let resolved = load(&with_election(text)).unwrap();
    let settings = resolved.settings().into_iter().filter(|(key, _)| is_of_store(key));
    let lines: Vec<String> = settings.map(|(key, value)| format!("{key} = {value}")).collect();
    expect![[r#"
        election.backend = "etcd"
        election.etcd.endpoints = ["10.0.0.1:2379", "etcd-2:2379"]
        election.etcd.request_timeout_ms = 1000
        election.etcd.user = "mdgw"
        election.etcd.password_file = "secret"
        election.etcd.prefix = "/mdgw/"
        election.etcd.ca_file = "ca.pem"
        election.etcd.certificate_file = "c.pem"
        election.etcd.key_file = "c.key""#]]
    .assert_eq(&lines.join("\n"));
    let mut explained = String::new();
    crate::config::explain::explain(&resolved, &mut explained).unwrap();
    let line = explained.lines().find(|line| line.starts_with("election")).unwrap();
    expect!["election     gw0 (node 0), records in etcd, encrypted, at 10.0.0.1:2379, etcd-2:2379, user mdgw: keys /mdgw/group-N; one election per group"]
        .assert_eq(line);
}

#[test]
#[cfg(feature = "etcd")]
fn invalid_etcd_keys_are_reported_with_their_positions() {
    refused(
        &with_election(
            "backend = \"etcd\"\n[election.etcd]\nendpoints = [\"http://a:1\", \"b:0\", \"c:1\", \"c:1\"]\n\
             key_file = \"c.key\"\nuser = \"mdgw\"\nrequest_timeout_ms = 0\n[election.zookeeper]\n",
        ),
        expect![[r#"
            7 problems
            x.toml:33:14: election.etcd.endpoints[0]: "http://a:1": expected host and port, such as "10.0.0.1:2379"
            x.toml:33:28: election.etcd.endpoints[1]: "b:0": expected host and port, such as "10.0.0.1:2379"
            x.toml:33:42: election.etcd.endpoints[3]: "c:1": duplicate
            x.toml:34:12: election.etcd.key_file: `certificate_file` is missing: both belong together
            x.toml:35:8: election.etcd.user: `password_file` is missing: both belong together
            x.toml:36:22: election.etcd.request_timeout_ms: 0: must be between 1 and 60000 (milliseconds)
            x.toml:37:1: election.zookeeper: only for `backend = "zookeeper"`; this configuration has "etcd""#]],
    );
    refused(&with_election("backend = \"etcd\"\n"), expect!["x.toml:29:1: election: `[election.etcd]` is missing"]);
    refused(
        &with_election("backend = \"ectd\"\n"),
        expect![[
            r#"x.toml:31:11: election.backend: "ectd": did you mean "etcd"? must be one of: file, etcd, zookeeper, quorum, emergent"#
        ]],
    );
    refused(&with_election(""), expect!["x.toml:29:1: election: `backend` is missing"]);
}

#[test]
#[cfg(feature = "zookeeper")]
fn an_election_by_zookeeper_is_shown_and_its_path_checked() {
    let text = "backend = \"zookeeper\"\n[election.zookeeper]\nendpoints = [\"10.0.0.1:2181\"]\n";
    let resolved = load(&with_election(text)).unwrap();
    let settings = resolved.settings().into_iter().filter(|(key, _)| is_of_store(key));
    let lines: Vec<String> = settings.map(|(key, value)| format!("{key} = {value}")).collect();
    expect![[r#"
        election.backend = "zookeeper"
        election.zookeeper.endpoints = ["10.0.0.1:2181"]
        election.zookeeper.request_timeout_ms = 1000
        election.zookeeper.path = "/mdgw"
        election.zookeeper.mode = "lease""#]]
    .assert_eq(&lines.join("\n"));
    let refused_session = with_election(&format!("{text}session_ms = 400\n"));
    refused(
        &refused_session,
        expect![[r#"x.toml:34:14: election.zookeeper.session_ms: only for `mode = "latch"`: a lease has no session"#]],
    );
    let latch = load(&with_election(&format!("{text}session_ms = 400\nmode = \"latch\"\n"))).unwrap();
    let mut explained = String::new();
    crate::config::explain::explain(&latch, &mut explained).unwrap();
    let line = explained.lines().find(|line| line.starts_with("election")).unwrap();
    expect!["election     gw0 (node 0), ephemeral nodes in ZooKeeper, session timeout 400ms, at 10.0.0.1:2181: nodes /mdgw/line-N; one election per group"]
        .assert_eq(line);
    refused(
        &with_election(&format!("{text}path = \"/mdgw/\"\nuser = \"u\"\n")),
        expect![[r#"
            2 problems
            x.toml:34:8: election.zookeeper.path: "/mdgw/": expected a path such as "/mdgw" of letters, digits, -, _ and .
            x.toml:35:8: election.zookeeper.user: `password_file` is missing: both belong together"#]],
    );
}

#[test]
#[cfg(feature = "zookeeper")]
fn a_latch_is_explained_by_its_session_and_unusable_settings_are_refused() {
    let latch = |more: &str, session: &str| {
        with_election(&format!(
            "backend = \"zookeeper\"\n{more}\n[election.zookeeper]\nendpoints = [\"10.0.0.1:2181\"]\nmode = \"latch\"\n{session}"
        ))
    };
    let explained = |text: &str| {
        let mut explained = String::new();
        crate::config::explain::explain(&load(text).unwrap(), &mut explained).unwrap();
        let lines = explained.lines().skip_while(|line| !line.starts_with("election")).skip(1);
        let lines = lines.take_while(|line| !line.starts_with("  kernel")).map(str::trim_start);
        lines.collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        session    4 s, or as granted by the ensemble; the leader writes every 20 ms
        deadline   send time of the last acknowledged write + 2/3 of the session - margin 20 ms: about 2646 ms
        takeover   when the ensemble expires the session (4 s or more after the last heartbeat), plus one compare-and-swap; immediately after a release or a death notice
        suspended  publish until the deadline
        peers      gw1 (node 1)
        link       none: no death notices"#]]
    .assert_eq(&explained(&latch("", "")));
    assert!(explained(&latch("on_suspended = \"stop\"", "")).contains("suspended  stop publishing immediately"));
    refused(
        &latch("preferred_leader = 1\ntenure_ms_min = 0", ""),
        expect![[r#"
            2 problems
            x.toml:32:20: election.preferred_leader: this backend makes no automatic hand-overs
            x.toml:33:17: election.tenure_ms_min: this backend makes no automatic hand-overs"#]],
    );
    refused(
        &latch("profile = \"calm\"", "session_ms = 1000\n"),
        expect![
            "x.toml:36:14: election.zookeeper.session_ms: renewal every 200 ms must be at most a third of two thirds of session 1000 ms - margin 200 ms: (666.666666 - 200) / 3 = 155.555555 ms"
        ],
    );
    load(&latch("profile = \"calm\"", "session_ms = 1200\n")).unwrap();
    refused(
        &latch("renew_ms = 900\nlease_ms = 10000\nmargin_ms = 30", ""),
        expect![
            "x.toml:35:1: election.zookeeper: renewal every 900 ms must be at most a third of two thirds of session 4000 ms - margin 30 ms: (2666.666666 - 30) / 3 = 878.888888 ms"
        ],
    );
}

#[test]
fn a_hang_limit_has_a_minimum_and_needs_a_sentinel() {
    let linked = |more: &str| {
        let link = "[election.link]\nlisten = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\nkey_file = \"key\"\n";
        with_file_election(&format!("kernel_fence = true\n{link}{more}"))
    };
    let election = load(&linked("hang_limit_ms = 205")).unwrap().election.unwrap();
    assert!(election.kernel_fence);
    assert_eq!(election.link.unwrap().hang_limit_ns, Some(205_000_000));
    assert_eq!(load(&linked("hang_limit_ms = 0")).unwrap().election.unwrap().link.unwrap().hang_limit_ns, None);
    refused(
        &linked("hang_limit_ms = 204\nsentinel = \"none\""),
        expect![[r#"
            2 problems
            x.toml:37:17: election.link.hang_limit_ms: 204: must be 0 or at least 200 + listener_timeout_ms = 205
            x.toml:37:17: election.link.hang_limit_ms: needs a sentinel, but `sentinel = "none"`"#]],
    );
}

#[test]
fn each_of_several_gateways_has_its_own_link_address() {
    let ends = |more: &str, peers: &str| {
        with_file_election(&format!("{more}\n[election.link]\nlisten = \"127.0.0.1:1\"\nkey_file = \"key\""))
            .replace("name = \"gw1\"\n", &format!("name = \"gw1\"\n{peers}"))
    };
    let third = "[[election.peer]]\nnode = 2\nname = \"gw2\"\n";
    let both = format!("link = \"127.0.0.1:2\"\n{third}link = \"127.0.0.1:3\"\n");
    let election = load(&ends("tenure_ms_min = 500", &both)).unwrap().election.unwrap();
    let linked: Vec<_> = election.link.unwrap().peers.iter().map(|peer| (peer.node, peer.address.port())).collect();
    assert_eq!(linked, [(Some(1), 2), (Some(2), 3)]);
    assert_eq!((election.spread, election.tenure_ns), (true, 500_000_000));
    assert!(!load(&ends("preferred_leader = 1", &both)).unwrap().election.unwrap().spread, "all are to be at one");
    refused(
        &ends("spread = true\npreferred = 1", &both),
        expect![
            "x.toml:32:10: election.spread: conflicts with `preferred_leader`, which puts all groups on one gateway"
        ],
    );
    refused(
        &ends("", third),
        expect![[r#"
        2 problems
        x.toml:36:1: election.peer[0]: `link` is missing
        x.toml:39:1: election.peer[1]: `link` is missing"#]],
    );
    refused(
        &ends("", &both.replace(":3", ":2")),
        expect!["x.toml:40:1: election.peer[1]: 127.0.0.1:2: duplicate address; each gateway needs its own"],
    );
    let named = ends("", &both).replace("key_file", "peer = \"127.0.0.1:2\"\nkey_file");
    refused(
        &named,
        expect![
            "x.toml:35:8: election.link.peer: only for a single peer; with several [[election.peer]], give each a `link`"
        ],
    );
    refused(
        &with_file_election("").replace("name = \"gw1\"", "name = \"gw1\"\nlink = \"127.0.0.1:2\""),
        expect!["x.toml:36:8: election.peer[0].link: `[election.link]` is missing: this gateway's own end"],
    );
}

#[test]
fn commented_defaults_of_groups_toml_are_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/config/groups.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let explicit = text.replace("# spread =", "spread =").replace("# tenure_ms_min =", "tenure_ms_min =");
    assert_ne!(explicit, text);
    let [plain, explicit] = [&text, &explicit].map(|text| load(text).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(plain.settings(), explicit.settings());
    let mut explained = String::new();
    crate::config::explain::explain(&plain, &mut explained).unwrap();
    let lines = explained.lines().filter(|line| line.starts_with("  groups") || line.starts_with("  link"));
    let lines: Vec<_> = lines.map(str::trim_start).collect();
    expect![[r#"
        groups     6, balanced by channel count over up to 3 gateways; a group moves by hand-over, after at least 10 s
        link       127.0.0.1:31201 to 127.0.0.1:31202, 127.0.0.1:31203; sentinel: spawn"#]]
    .assert_eq(&lines.join("\n"));
}

/// Whether the setting belongs to the backend or its store.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
fn is_of_store(key: &str) -> bool {
    ["election.backend", "election.etcd.", "election.zookeeper."].iter().any(|prefix| key.starts_with(prefix))
}

const MEMBERSHIP: &str = "allow_split = true\nlisten = \"10.0.0.1:31300\"\nkey_file = \"key\"\n\
                          seeds = [\"10.0.0.1:31300\", \"10.0.0.2:31300\"]\nminimum_size = 1\n";

fn with_membership(text: &str) -> String {
    with_election(&format!("backend = \"emergent\"\n[election.emergent]\n{text}"))
}

#[test]
fn an_emergent_election_is_explained_with_its_split_risk() {
    let resolved = load(&with_membership(MEMBERSHIP)).unwrap();
    let settings = resolved.settings().into_iter().filter(|(key, _)| key.starts_with("election.emergent."));
    let lines: Vec<String> = settings.map(|(key, value)| format!("{key} = {value}")).collect();
    expect![[r#"
        election.emergent.allow_split = true
        election.emergent.listen = "10.0.0.1:31300"
        election.emergent.key_file = "key"
        election.emergent.seeds = ["10.0.0.1:31300", "10.0.0.2:31300"]
        election.emergent.bootstrap = false
        election.emergent.minimum_size = 1
        election.emergent.join_attempts = 4"#]]
    .assert_eq(&lines.join("\n"));
    let mut explained = String::new();
    crate::config::explain::explain(&resolved, &mut explained).unwrap();
    let line = explained.lines().find(|line| line.starts_with("election")).unwrap();
    expect!["election     gw0 (node 0), by membership: this gateway on 10.0.0.1:31300, seeds 10.0.0.1:31300, 10.0.0.2:31300; the oldest of at least 1 members leads. DURING A NETWORK PARTITION TWO CAN LEAD; one election per group"]
        .assert_eq(line);
}

#[test]
fn settings_that_the_backend_ignores_are_refused() {
    let emergent = format!(
        "backend = \"emergent\"\non_suspended = \"stop\"\npreferred = 1\ntenure_ms_min = 10000\nspread = true\n\
         [election.emergent]\n{MEMBERSHIP}"
    );
    refused(
        &with_election(&emergent),
        expect![[r#"
            5 problems
            x.toml:32:16: election.on_suspended: "stop": only for backends with a store; without one, a leader that loses its majority publishes until its lease expires
            x.toml:33:13: election.preferred: this backend makes no automatic hand-overs
            x.toml:34:17: election.tenure_ms_min: this backend makes no automatic hand-overs
            x.toml:35:10: election.spread: this backend makes no automatic hand-overs
            x.toml:35:10: election.spread: conflicts with `preferred_leader`, which puts all groups on one gateway"#]],
    );
    refused(
        &with_votes("on_suspended = \"stop\"\npreferred = 1\ntenure_ms_min = 0", "10.0.0.3:27500"),
        expect![[
            r#"x.toml:32:16: election.on_suspended: "stop": only for backends with a store; without one, a leader that loses its majority publishes until its lease expires"#
        ]],
    );
    load(&with_votes("on_suspended = \"hold\"", "10.0.0.3:27500")).unwrap();
    load(&with_file_election("on_suspended = \"stop\"\npreferred = 1\ntenure_ms_min = 0")).unwrap();
}

/// [`MINIMAL`] with an election by votes; the other voters are a gateway and the witness at that address. `more`:
/// further keys.
fn with_votes(more: &str, witness: &str) -> String {
    with_election(&format!(
        "backend = \"quorum\"\n{more}\n[election.quorum]\nlisten = \"10.0.0.1:27500\"\nkey_file = \"key\"\n\
         vote_directory = \"votes\"\n[[election.quorum.voter]]\nnode = 1\naddress = \"10.0.0.2:27500\"\n\
         [[election.quorum.voter]]\nnode = 2\naddress = \"{witness}\"\n"
    ))
}

#[test]
fn a_voter_is_not_at_this_gateways_own_address() {
    refused(
        &with_votes("", "10.0.0.1:27500"),
        expect!["x.toml:40:1: election.quorum.voter[1]: node 2 at 10.0.0.1:27500: is this gateway's own `listen`"],
    );
}

#[test]
fn an_unusable_or_unconfirmed_emergent_election_is_refused() {
    refused(
        &with_membership(&MEMBERSHIP.replace("allow_split = true", "")),
        expect![
            "x.toml:32:1: election.emergent: the backend `emergent` prefers availability: during a network partition two gateways can lead, and receivers accept the higher epoch. If that is acceptable set `allow_split = true`; otherwise use another backend"
        ],
    );
    refused(
        &with_membership(
            &MEMBERSHIP
                .replace("= true", "= false")
                .replace(", \"10.0.0.2:31300\"", "")
                .replace("minimum_size = 1", "minimum_size = 3"),
        ),
        expect![[r#"
            3 problems
            x.toml:32:1: election.emergent: a gateway without `bootstrap = true` needs `seeds` with the address of at least one other gateway
            x.toml:33:15: election.emergent.allow_split: the backend `emergent` prefers availability: during a network partition two gateways can lead, and receivers accept the higher epoch. If that is acceptable set `allow_split = true`; otherwise use another backend
            x.toml:37:16: election.emergent.minimum_size: 3: exceeds the number of gateways (2): no gateway could ever lead"#]],
    );
    refused(
        &with_membership("allow_split = true\nlisten = \"0.0.0.0:31300\"\nbootstrap = true\n"),
        expect![[r#"
            3 problems
            x.toml:32:1: election.emergent: `minimum_size` is missing
            x.toml:32:1: election.emergent: `key_file` is missing
            x.toml:34:10: election.emergent.listen: 0.0.0.0:31300: this address is advertised to the other members, so it must be an address of this host"#]],
    );
    refused(
        &with_election("backend = \"emergent\"\n"),
        expect!["x.toml:29:1: election: `[election.emergent]` is missing"],
    );
}

/// [`MINIMAL`] with an election over `file`, and `more` lines in its table.
fn with_file_election(more: &str) -> String {
    format!(
        "{MINIMAL}\n[election]\nbackend = \"file\"\nname = \"gw0\"\n{more}\n[[election.peer]]\nnode = 1\nname = \"gw1\"\n"
    )
}

#[test]
fn a_pair_is_warned_of_missing_settings() {
    let warnings = load(&with_file_election("")).unwrap().warnings;
    let begins =
        ["gateway.node is not set", "[election.link] is missing", "gateway.audit_file is", "gateway.control_socket is"];
    assert_eq!(warnings.len(), begins.len(), "{warnings:?}");
    for (warning, begin) in warnings.iter().zip(begins) {
        assert!(warning.starts_with(begin), "{warning}");
    }
    let link = "[election.link]\nlisten = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\nkey_file = \"key\"\n";
    let whole = with_file_election(link).replacen(
        "[gateway]",
        "[gateway]\nnode = 0\naudit_file = \"audit\"\ncontrol_socket = \"control\"",
        1,
    );
    assert_eq!(load(&whole).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn election_timing_comes_from_the_profile_and_its_overrides() {
    let timing = |more: &str| load(&with_file_election(more)).unwrap().election.unwrap().timing;
    assert_eq!(timing(""), LeaseTiming::DEFAULT);
    assert_eq!(timing("profile = \"fast\""), LeaseTiming::FAST);
    assert_eq!(timing("profile = \"calm\"\nrenew_ms = 100").renew_ns, 100_000_000);
    assert_eq!(timing("margin_ms = 30").send_ns_max, 15_000_000);
}

#[test]
fn listener_time_is_limited_to_half_of_the_usable_lease() {
    refused(
        &with_file_election("listener_timeout_ms = 41"),
        expect![
            "x.toml:32:23: election.listener_timeout_ms: 41 ms: must be at most half of lease - margin = 80 ms / 2"
        ],
    );
    load(&with_file_election("listener_timeout_ms = 40")).unwrap();
}

#[test]
fn leases_that_could_overlap_are_refused_with_the_arithmetic() {
    refused(
        &with_file_election("margin_ms = 5\nsend_us_max = 5000"),
        expect![
            "x.toml:32:13: election.margin_ms: margin 5 ms must be at least 2 x 600 ppm x lease 100 ms + longest send 5 ms + clock read error 0.001 ms = 0.12 ms + 5 ms + 0.001 ms = 5.121 ms, and less than the lease"
        ],
    );
    refused(
        &with_file_election("renew_ms = 30"),
        expect![
            "x.toml:32:12: election.renew_ms: renewal every 30 ms must be at most a third of lease 100 ms - margin 20 ms: (100 - 20) / 3 = 26.666666 ms"
        ],
    );
}

#[test]
fn every_gateway_needs_its_own_node_id_and_name() {
    refused(
        &with_file_election("preferred_leader = 7\ncore = 2"),
        expect![[r#"
            2 problems
            x.toml:32:20: election.preferred_leader: 7: not the number of this gateway or of an [[election.peer]]
            x.toml:33:8: election.core: 2: belongs to pool main, whose load would delay lease renewals"#]],
    );
    let duplicate = with_file_election("").replace("node = 1\nname = \"gw1\"", "node = 0\nname = \"gw 1\"");
    refused(
        &duplicate,
        expect![[r#"
            2 problems
            x.toml:33:1: election.peer[0]: node 0 unnamed: duplicate number or name; each gateway needs its own
            x.toml:35:8: election.peer[0].name: "gw 1": must be 1 to 64 letters, digits, -, _ or ."#]],
    );
    refused(
        &with_file_election("").replace("\"gw1\"", "\"gw0\""),
        expect!["x.toml:33:1: election.peer[0]: node 1 gw0: duplicate number or name; each gateway needs its own"],
    );
    let warned = load(&with_file_election("")).unwrap().warnings;
    assert!(warned.iter().any(|warning| warning.contains("gateway.node is not set")), "{warned:?}");
}

#[test]
fn the_output_fingerprint_depends_only_on_settings_that_change_the_output() {
    let fingerprint = |text: &str| load(text).unwrap().output_fingerprint();
    let same = fingerprint(MINIMAL);
    assert_eq!(fingerprint(&with_edit("cores = [2]", "cores = [3]")), same);
    assert_eq!(fingerprint(&with_edit("239.1.1.1:31000", "239.1.1.1:31001")), same);
    assert_eq!(fingerprint(&with_edit("233.54.12.111", "233.54.12.112")), same);
    for (from, to) in
        [("id = 1", "id = 2"), ("nasdaq-itch-5.0", "bx-itch-5.0"), ("id = 1", "id = 1\norders_max = 5000")]
    {
        assert_ne!(fingerprint(&with_edit(from, to)), same, "{to}");
    }
    assert_eq!(fingerprint(&with_file_election("revision = 7")).revision, 7);
}

#[test]
fn a_listener_that_every_network_reaches_is_a_warning() {
    let text = include_str!("../../../../../ops/config/quorum.toml");
    let warnings = |text: &str| load(text).unwrap().warnings;
    assert_eq!(warnings(text), [""; 0]);
    let live = "[live]\nlisten = \"0.0.0.0:13000\"\nkey_file = \"clients\"\n";
    let everywhere = warnings(&format!("{}\n{live}", text.replace("listen = \"10.20.0.7:", "listen = \"0.0.0.0:")));
    for owner in ["retransmission", "election.quorum", "election.link", "live"] {
        let begin = format!("{owner}.listen 0.0.0.0:");
        assert!(everywhere.iter().any(|warning| warning.starts_with(&begin)), "{owner}: {everywhere:?}");
    }
    assert_eq!(everywhere.len(), 4, "{everywhere:?}");
}

#[test]
fn a_nats_sink_is_shown_and_its_keys_are_checked() {
    let text = |keys: &str| with_edit("[[output]]", &format!("[nats]\n{keys}\n[[output]]"));
    let keys = "servers = [\"tls://nats-1:4222\"]\nuser = \"mdgw\"\npassword_file = \"secret\"\nschemas = [\"mbo\"]";
    let resolved = load(&text(keys)).unwrap();
    let settings = resolved.settings().into_iter().filter(|(key, _)| key.starts_with("nats."));
    let lines: Vec<String> = settings.map(|(key, value)| format!("{key} = {value}")).collect();
    for line in [
        "nats.servers = [\"tls://nats-1:4222\"]",
        "nats.user = \"mdgw\"",
        "nats.password_file = \"secret\"",
        "nats.stream = \"mdgw\"",
        "nats.schemas = [\"mbo\"]",
        "nats.create_stream = true",
        "nats.storage = \"file\"",
        "nats.duplicate_window_seconds = 120",
        "nats.takeover_ms = 2000",
    ] {
        assert!(lines.iter().any(|known| known == line), "{line}: {lines:#?}");
    }
    for (keys, problem) in [
        ("", "`servers` is missing"),
        ("servers = []", "0 servers: must be 1 to 9"),
        ("servers = [\"nats-1:4222\"]", "expected an address such as \"nats://10.0.0.1:4222\""),
        (
            "token_file = \"t\"\nuser = \"u\"\npassword_file = \"p\"",
            "only one of `credentials_file`, `token_file` and `user`",
        ),
        ("user = \"u\"", "`password_file` is missing: both belong together"),
        ("key_file = \"k\"", "`certificate_file` is missing: both belong together"),
        ("stream = \"a.b\"", "\"a.b\": expected letters, digits, - and _"),
        ("subject_prefix = \"a..b\"", "\"a..b\": expected letters, digits, - and _, with dots between tokens"),
        ("channels = []", "[]: must name at least one channel"),
        ("channels = [\"nobody\"]", "must be one of: "),
        ("schemas = [\"mbp\"]", "must be one of: mbo, "),
        ("storage = \"tape\"", "must be one of: file, memory"),
        ("duplicate_window_seconds = 5", "shorter than a failover, 2 * takeover_ms + ack_timeout_ms = 9000 ms"),
        ("replicas = 7", "7: must be between 1 and 5 (servers)"),
    ] {
        let servers = if keys.contains("servers") || keys.is_empty() { "" } else { "servers = [\"nats://a:4222\"]\n" };
        let error = load(&text(&format!("{servers}{keys}"))).unwrap_err().to_string();
        assert!(error.contains(problem), "{keys}: {error}");
    }
}

#[test]
#[cfg(feature = "zookeeper")]
fn a_zookeeper_password_is_a_warning_since_it_is_sent_unencrypted() {
    let warnings = |login: &str| {
        let table = format!("backend = \"zookeeper\"\n[election.zookeeper]\nendpoints = [\"10.0.0.1:2181\"]\n{login}");
        load(&with_election(&table)).unwrap().warnings
    };
    let is_warned = |login: &str| warnings(login).iter().any(|warning| warning.contains("ZooKeeper password is sent"));
    assert!(is_warned("user = \"mdgw\"\npassword_file = \"secret\"\n") && !is_warned(""));
}
