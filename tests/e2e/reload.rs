//! A running gateway whose configuration changes: channels and output lines come and go under load.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::UdpSocket,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::PathBuf,
    process::Command,
};

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text, wait_until_joined, write_key, write_key_of},
    http::get_at,
    pair::{log_entries, read_entries},
    process::{self, MdgwProcess, Signal, wait_until},
    trading_day::{DATE, TradingDay},
};
use serde_json::Value;

/// The parts of a configuration that a test changes.
#[derive(Clone)]
struct ConfigParts {
    before: String,
    /// `[[channel]]` with its lines, by name.
    channels: Vec<(&'static str, String)>,
    output: String,
    output_lines: Vec<String>,
    after: String,
}

impl ConfigParts {
    /// One channel for each fixture, and the output line of each. The first fixture has the other parts.
    fn of(fixtures: &[GatewayFixture], options: &GatewayOptions, spare_channels: usize) -> Self {
        let names = ["one", "two", "three"];
        let options = GatewayOptions { has_recovery: false, ..options.clone() };
        let texts: Vec<_> = fixtures.iter().map(|fixture| fixture.config_text(&options)).collect();
        let part = |text: &str, from: &str, to: &str| text[text.find(from).unwrap()..text.find(to).unwrap()].to_owned();
        let channel = |(place, text): (usize, &String)| {
            let channel = part(text, "[[channel]]", "[[output]]");
            let id = format!("id = {}\nname = \"{}\"", place + 1, names[place]);
            (names[place], channel.replacen("id = 1\nname = \"one\"", &id, 1))
        };
        let first = &texts[0];
        let pool = format!("[[pool]]\nspare_channels = {spare_channels}\n");
        Self {
            before: first[..first.find("[[channel]]").unwrap()].replacen("[[pool]]\n", &pool, 1),
            channels: texts.iter().enumerate().map(channel).collect(),
            output: part(first, "[[output]]", "[[output.line]]"),
            output_lines: texts.iter().map(|text| part(text, "[[output.line]]", "[retransmission]")).collect(),
            after: first[first.find("[retransmission]").unwrap()..].to_owned(),
        }
    }

    /// With these channels and output lines.
    fn text(&self, channels: &[&str], lines: &[usize]) -> String {
        let wanted = self.channels.iter().filter(|(name, _)| channels.contains(name)).map(|(_, text)| text.as_str());
        let lines = lines.iter().map(|line| self.output_lines[*line].as_str());
        let parts = [self.before.as_str()].into_iter().chain(wanted).chain([self.output.as_str()]).chain(lines);
        parts.chain([self.after.as_str()]).collect()
    }
}

/// A running gateway, and the file that it reloads.
struct Reloading {
    gateway: MdgwProcess,
    path: PathBuf,
    applied: usize,
    refused: usize,
}

impl Reloading {
    fn start(path: PathBuf, config: &str) -> Self {
        fs::write(&path, config).unwrap();
        let gateway = process::start(["run", text(&path), "--date", DATE, "--ts-recv", "none"]);
        gateway.wait_for_stderr("gateway running");
        Self { gateway, path, applied: 0, refused: 0 }
    }

    fn reload(&mut self, config: &str) {
        fs::write(&self.path, config).unwrap();
        self.gateway.signal(Signal::HangUp);
        self.applied += 1;
        self.gateway.wait_for_stderr_times("configuration reloaded", self.applied);
    }

    /// Returns the reason of the refusal.
    fn refuse(&mut self, config: &str) -> String {
        fs::write(&self.path, config).unwrap();
        self.gateway.signal(Signal::HangUp);
        self.refused += 1;
        self.gateway.wait_for_stderr_times("nothing changed", self.refused)
    }
}

/// A subscriber of one channel that records until the day ends.
fn tail(fixture: &GatewayFixture, channel: usize, lines: &[&GatewayFixture], more: &[&str]) -> (MdgwProcess, PathBuf) {
    let out = fixture.path(&format!("{channel}.dbn"));
    let channel = channel.to_string();
    let lines: Vec<_> = lines.iter().map(|line| line.output.to_string()).collect();
    let fixed = ["tail", "--interface", "127.0.0.1", "--channel", &channel, "--schema", "mbo", "--ts-recv", "none"];
    let rest = ["--until-ended", "-o", text(&out)];
    let lines = lines.iter().flat_map(|line| ["--line", line]);
    (process::start(fixed.into_iter().chain(lines).chain(rest).chain(more.iter().copied())), out)
}

fn expect_whole_day(day: &TradingDay, (tail, out): (MdgwProcess, PathBuf)) {
    let tail = tail.end().expect_code(0);
    assert!(!tail.stderr.contains("lost [") && !tail.stderr.contains("gap ["), "{}", tail.stderr);
    assert!(fs::read(out).unwrap() == day.expected, "differs from the channel's output alone: {}", tail.stderr);
}

fn days(fixtures: &[GatewayFixture]) -> Vec<TradingDay> {
    fixtures.iter().zip([12_000, 15_000, 9_000]).map(|(fixture, count)| TradingDay::of(fixture, count)).collect()
}

/// Names of the channels that `mdgw top` shows.
fn shown(socket: &std::path::Path) -> Vec<String> {
    let shown = process::run(["top", "--once", "--json", "--interval", "100ms", "--socket", text(socket)]);
    let value: Value = shown.expect_code(0).json();
    value["channels"].as_array().unwrap().iter().map(|channel| channel["name"].as_str().unwrap().to_owned()).collect()
}

/// With a control socket, an admin listener and an audit file.
fn with_observers(parts: &ConfigParts, fixture: &GatewayFixture, listen: &str) -> ConfigParts {
    let [socket, audit] = ["control", "audit.jsonl"].map(|name| fixture.path(name));
    let keys = format!("[gateway]\ncontrol_socket = \"{}\"\naudit_file = \"{}\"", text(&socket), text(&audit));
    ConfigParts {
        before: parts.before.replacen("[gateway]", &keys, 1),
        after: format!("{}\n[admin]\nlisten = \"{listen}\"\n", parts.after).replacen(
            "[latency]",
            "[latency]\ninterval_ms = 100",
            1,
        ),
        ..parts.clone()
    }
}

#[test]
fn a_channel_added_under_load_is_complete_and_disturbs_no_other() {
    // A pool of several threads, and one of a single thread, to which the kernel delivers datagrams where it can.
    for (threads, io) in [(2, "epoll"), (1, "auto")] {
        let fixtures: Vec<_> = (0..3).map(|_| GatewayFixture::new()).collect();
        let days = days(&fixtures);
        let options = GatewayOptions { threads, io, ..GatewayOptions::itch() };
        let admin = free_address();
        let parts = with_observers(&ConfigParts::of(&fixtures, &options, 1), &fixtures[0], &admin.to_string());
        let mut running = Reloading::start(fixtures[0].path("reload.toml"), &parts.text(&["one", "two"], &[0]));
        let socket = fixtures[0].path("control");
        let tails: Vec<_> = (1..=3).map(|channel| tail(&fixtures[0], channel, &[&fixtures[0]], &[])).collect();
        wait_until_joined(fixtures[0].output, 3);
        assert_eq!(shown(&socket), ["one", "two"]);
        std::thread::scope(|scope| {
            for (day, fixture) in days[..2].iter().zip(&fixtures) {
                scope.spawn(|| {
                    day.play_first_half(fixture);
                    day.play_second_half(fixture);
                });
            }
            wait_until("the channels receive", || !log_entries(&fixtures[0]).is_empty());
            running.reload(&parts.text(&["one", "two", "three"], &[0]));
            days[2].play_first_half(&fixtures[2]);
            days[2].play_second_half(&fixtures[2]);
        });
        for (day, tail) in days.iter().zip(tails) {
            expect_whole_day(day, tail);
        }
        assert_eq!(shown(&socket), ["one", "two", "three"]);
        wait_until("the latencies of the new channel are collected", || {
            let (_, metrics) = get_at(admin, "/metrics");
            ["mdgw_channel_messages_total", "mdgw_channel_log_segments_reused_total", "mdgw_line_packets_total"]
                .iter()
                .all(|name| metrics.contains(&format!("{name}{{channel=\"three\"")))
                && metrics.contains("mdgw_channel_latency_seconds_count{channel=\"three\"")
        });
        let (code, ready) = get_at(admin, "/ready");
        assert_eq!((code, ready.trim()), (200, "3 channels"));
        let page: Value = serde_json::from_str(&get_at(admin, "/status.json").1).unwrap();
        assert_eq!(page["snapshot"]["channels"][2]["name"], "three", "{page}");
        let audit = fs::read_to_string(fixtures[0].path("audit.jsonl")).unwrap();
        assert!(audit.contains("configuration reloaded: channel three added"), "{audit}");
        let ended = running.gateway.stop_with(Signal::Terminate).expect_code(0);
        assert!(ended.stdout.lines().any(|line| line.starts_with("three ")), "{}", ended.stdout);
    }
}

#[test]
fn a_channel_removed_under_load_can_be_added_again_and_its_log_continues() {
    let fixtures: Vec<_> = (0..2).map(|_| GatewayFixture::new()).collect();
    let days = [TradingDay::of(&fixtures[0], 12_000), TradingDay::of(&fixtures[1], 60_000)];
    let admin = free_address();
    let options = GatewayOptions { threads: 1, ..GatewayOptions::itch() };
    let parts = with_observers(&ConfigParts::of(&fixtures, &options, 1), &fixtures[0], &admin.to_string());
    let mut running = Reloading::start(fixtures[0].path("reload.toml"), &parts.text(&["one", "two"], &[0]));
    let steady = tail(&fixtures[0], 1, &[&fixtures[0]], &[]);
    let service = fixtures[0].retransmission.to_string();
    wait_until_joined(fixtures[0].output, 1);
    let two = || {
        let log = mdgw_publog::Reader::open(fixtures[0].path("log").join("2"), 2);
        log.map(read_entries).unwrap_or_default()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            days[0].play_first_half(&fixtures[0]);
            days[0].play_second_half(&fixtures[0]);
        });
        let second = scope.spawn(|| days[1].play_first_half(&fixtures[1]));
        wait_until("packets of the second channel arrive", || two().len() > 100);
        running.reload(&parts.text(&["one"], &[0]));
        let removed_at = two().len();
        assert!(!second.is_finished(), "packets still arrive");
        assert_eq!(shown(&fixtures[0].path("control")), ["one"]);
        let (_, metrics) = get_at(admin, "/metrics");
        assert!(metrics.contains("channel=\"one\"") && !metrics.contains("channel=\"two\""), "{metrics}");
        second.join().unwrap();
        assert_eq!(two().len(), removed_at, "nothing receives them");
        running.reload(&parts.text(&["one", "two"], &[0]));
    });
    days[1].play_second_half(&fixtures[1]);
    expect_whole_day(&days[0], steady);
    wait_until("the second day has ended", || {
        two()
            .last()
            .is_some_and(|entry| entry.flags.contains(mdgw_feeds::published::packet::PacketFlags::END_OF_SESSION))
    });
    // One session, whose names ascend: what came in between is a declared gap.
    let entries = two();
    assert!(entries.iter().all(|entry| entry.session == entries[0].session));
    assert!(entries.is_sorted_by(|earlier, later| earlier.next <= later.first), "a name is used twice");
    let (late, out) = tail(&fixtures[1], 2, &[&fixtures[0]], &["--retransmission", &service]);
    let late = late.end();
    assert_eq!(late.stderr.matches("gap [").count(), 1, "{}", late.stderr);
    assert!(!late.stderr.contains("lost ["), "{}", late.stderr);
    assert!(fs::metadata(out).unwrap().len() > 0);
    let (_, metrics) = get_at(admin, "/metrics");
    assert!(metrics.contains("mdgw_channel_late_starts_total{channel=\"two\"}"), "{metrics}");
    let audit = fs::read_to_string(fixtures[0].path("audit.jsonl")).unwrap();
    assert!(audit.contains("channel two removed") && audit.contains("channel two added"), "{audit}");
    let _ = running.gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn output_lines_are_added_removed_and_moved_under_load() {
    let fixtures: Vec<_> = (0..3).map(|_| GatewayFixture::new()).collect();
    let day = TradingDay::of(&fixtures[0], 16_000);
    let options = GatewayOptions::itch();
    let parts = ConfigParts::of(&fixtures, &options, 0);
    let mut running = Reloading::start(fixtures[0].path("reload.toml"), &parts.text(&["one"], &[0]));
    // Without a retransmission service: what no line carries is missing in the file. `tail` takes two lines.
    let both = tail(&fixtures[0], 1, &[&fixtures[0], &fixtures[1]], &[]);
    for fixture in &fixtures[..2] {
        wait_until_joined(fixture.output, 1);
    }
    let further =
        tail(&fixtures[1], 1, &[&fixtures[2]], &["--retransmission", &fixtures[0].retransmission.to_string()]);
    wait_until_joined(fixtures[2].output, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            day.play_first_half(&fixtures[0]);
            day.play_second_half(&fixtures[0]);
        });
        let has_logged = |count: usize| wait_until("more is published", || log_entries(&fixtures[0]).len() > count);
        has_logged(50);
        running.reload(&parts.text(&["one"], &[0, 1]));
        has_logged(log_entries(&fixtures[0]).len() + 50);
        running.reload(&parts.text(&["one"], &[1]));
        // The first line is not used any more, and its slot is vacant again.
        has_logged(log_entries(&fixtures[0]).len() + 50);
        running.reload(&parts.text(&["one"], &[0]));
        has_logged(log_entries(&fixtures[0]).len() + 50);
        running.reload(&parts.text(&["one"], &[2, 0]));
    });
    expect_whole_day(&day, both);
    expect_whole_day(&day, further);
    let ended = running.gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(!ended.stderr.contains("sends refused"), "{}", ended.stderr);
}

#[test]
fn a_refused_reload_names_its_reasons_and_changes_nothing() {
    let fixtures: Vec<_> = (0..3).map(|_| GatewayFixture::new()).collect();
    let admin = free_address();
    let parts =
        with_observers(&ConfigParts::of(&fixtures, &GatewayOptions::itch(), 1), &fixtures[0], &admin.to_string());
    let one = parts.text(&["one"], &[0]);
    let mut running = Reloading::start(fixtures[0].path("reload.toml"), &one);
    let two = parts.text(&["one", "two"], &[0]);
    let line = fixtures[1].lines[0].to_string();

    let reason = running.refuse(&parts.text(&["one", "two", "three"], &[0]));
    assert!(reason.contains("channel.three: too few spare slots: pool \"main\" has 1 left"), "{reason}");
    let reason = running.refuse(&parts.text(&["two"], &[0]));
    let advice = "channel.one: it is the last channel of group 1: add the new one by a reload first, if its pool has a spare slot";
    assert!(reason.contains(advice), "{reason}");
    let reason = running.refuse(&two.replacen("name = \"two\"\n", "name = \"two\"\ngroup = 7\n", 1));
    assert!(reason.contains("channel.two: group 7 has no channel yet"), "{reason}");
    let reason = running.refuse(&one.replacen("orders_max = 65536", "orders_max = 65537", 1));
    assert!(reason.contains("channel.one.orders_max: 65537 needs a restart"), "{reason}");

    // What only the attempt shows: no such interface, and a port in use. The first line of the channel could be opened.
    let (before, last_line) = two.split_at(two.rfind("[[channel.line]]").unwrap());
    let absent = last_line.replacen("interface = \"127.0.0.1\"", "interface = \"nosuch0\"", 1);
    let reason = running.refuse(&format!("{before}{absent}"));
    assert!(reason.contains("channel.two: ") && reason.contains("nosuch0"), "{reason}");
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reason = running.refuse(&two.replacen(&line, &taken.local_addr().unwrap().to_string(), 1));
    assert!(reason.contains("channel.two: ") && reason.contains("bind"), "{reason}");
    // An output line that cannot be opened refuses the channel of the same reload too.
    let absent = parts.output_lines[1].replacen("interface = \"127.0.0.1\"", "interface = \"nosuch0\"", 1);
    let lines = ConfigParts { output_lines: vec![parts.output_lines[0].clone(), absent], ..parts.clone() };
    let reason = running.refuse(&lines.text(&["one", "two"], &[0, 1]));
    assert!(reason.contains("output.1.line: ") && reason.contains("nosuch0"), "{reason}");

    let socket = fixtures[0].path("control");
    assert_eq!(shown(&socket), ["one"]);
    let (_, metrics) = get_at(admin, "/metrics");
    assert!(!metrics.contains("channel=\"two\""), "{metrics}");
    // The slot of the refused channel is vacant, its log and its sockets are closed.
    running.reload(&two);
    assert_eq!(shown(&socket), ["one", "two"]);
    running.reload(&one);
    let log = running.gateway.stderr_so_far();
    assert_eq!(log.matches("channel removed").count(), 1, "{log}");
    let _ = running.gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Only the log of the channel, which takes no memory before it grows, is beyond any host.
#[test]
fn a_reload_refuses_a_channel_beyond_the_memory_of_the_host() {
    let fixtures = [GatewayFixture::new(), GatewayFixture::new()];
    let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = GatewayOptions { retention_bytes: 1 << 40, ..GatewayOptions::itch() };
    let mut parts = ConfigParts::of(&fixtures, &options, 1);
    let log_dir = |folder: &str| format!("log_dir = \"{folder}\"");
    let on_disk = log_dir(text(&fixtures[0].path("log")));
    assert!(parts.before.contains(&on_disk), "{}", parts.before);
    parts.before = parts.before.replacen(&on_disk, &log_dir(text(in_memory.path())), 1);
    let one = parts.text(&["one"], &[0]);
    let mut running = Reloading::start(fixtures[0].path("reload.toml"), &one);
    let _ = running.gateway.wait_for_stderr("memory: the gateway takes up to 1024");
    let reason = running.refuse(&parts.text(&["one", "two"], &[0]));
    assert!(reason.contains("channel.two: it takes up to 1024"), "{reason}");
    assert!(reason.contains(" are available: lower "), "{reason}");
    let _ = running.gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// `mdgw reload` waits for the result, prints it, and exits with it.
#[test]
fn a_requested_reload_reports_what_changed_and_what_was_refused() {
    let fixtures = [GatewayFixture::new(), GatewayFixture::new()];
    let options = GatewayOptions::itch();
    let plain = ConfigParts::of(&fixtures, &options, 1);
    let mut parts = with_observers(&plain, &fixtures[0], &free_address().to_string());
    parts.after += &format!("[journal]\ndirectory = \"{}\"\n", text(&fixtures[0].path("journal")));
    let path = fixtures[0].path("reload.toml");
    let one = parts.text(&["one"], &[0]);
    let running = Reloading::start(path.clone(), &one);
    let socket = fixtures[0].path("control");
    let reload = |more: &[&str]| process::run([&["reload"], more].concat());
    let write = |config: &str| fs::write(&path, config).unwrap();

    let same = reload(&[text(&path)]).expect_code(0);
    assert!(same.stdout.ends_with("reload.toml: no setting differs\n"), "{}", same.stdout);

    let slower = parts.text(&["one", "two"], &[0]).replace("requests_per_second = 10000", "requests_per_second = 5000");
    write(&slower);
    let changed = reload(&[text(&path)]).expect_code(0).stdout;
    assert!(changed.contains("\n  channel.two: added\n"), "{changed}");
    assert!(changed.contains("\n  retransmission.requests_per_second: 10000 -> 5000\n"), "{changed}");
    let restart = changed.lines().last().unwrap();
    assert_eq!(restart, "restart mdgw journal: it does not know an added channel before");
    assert_eq!(changed.lines().count(), 4, "{changed}");
    assert_eq!(shown(&socket), ["one", "two"]);
    let in_log = "mdgw journal does not know an added channel before its next start";
    let _line = running.gateway.wait_for_stderr(in_log);

    // All that is refused, each with its reason, and nothing of what could be applied.
    write(&one.replace("threads = 2", "threads = 3").replace("[gateway]", "[gateway]\nlock_memory = false"));
    let refused = reload(&[text(&path)]).expect_code(1);
    assert!(refused.stderr.contains("reload refused, nothing changed:"), "{}", refused.stderr);
    for key in ["threads: 3 needs a restart", "gateway.lock_memory: false needs a restart"] {
        assert!(refused.stderr.contains(key), "{key}: {}", refused.stderr);
    }
    assert_eq!(shown(&socket), ["one", "two"], "nothing changed");
    // The same as JSON, and nothing else.
    let as_json = reload(&["--json", text(&path)]).expect_code(1);
    let reasons: Vec<String> = serde_json::from_value(as_json.json()["refused"].clone()).unwrap();
    assert_eq!(refused.stderr.lines().skip(1).map(str::trim).collect::<Vec<_>>(), reasons);
    assert_eq!((as_json.stdout.lines().count(), as_json.stderr.as_str()), (1, ""));

    // With the socket alone the gateway reads the file, and refuses it.
    write(&slower.replace("[latency]", "[latenzy]"));
    let refused = reload(&["--socket", text(&socket)]).expect_code(1);
    assert!(refused.stderr.contains("latenzy"), "{}", refused.stderr);
    let invalid = reload(&[text(&path)]).expect_code(2);
    assert!(invalid.stderr.contains("nothing changed") && invalid.stderr.contains("latenzy"), "{}", invalid.stderr);

    // A file that the gateway does not read.
    let copy = fixtures[0].path("copy.toml");
    fs::write(&copy, &slower).unwrap();
    let other = reload(&[text(&copy)]).expect_code(1);
    assert!(other.stderr.contains("copy.toml") && other.stderr.contains("runs with"), "{}", other.stderr);

    // To open a pipe would hold up the gateway.
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let refused = reload(&["--socket", text(&socket)]).expect_code(1);
    assert!(refused.stderr.contains("is not a regular file"), "{}", refused.stderr);
    fs::remove_file(&path).unwrap();

    write(&slower);
    let json = reload(&["--json", text(&path)]).expect_code(0).json();
    assert_eq!(json["changed"], serde_json::json!([]), "{json}");
    // A channel that was there at the start is removed and added again unchanged.
    write(&parts.text(&["two"], &[0]).replace("requests_per_second = 10000", "requests_per_second = 5000"));
    let removed = reload(&[text(&path)]).expect_code(0).stdout;
    assert!(removed.ends_with("\n  channel.one: removed\n"), "{removed}");
    write(&slower);
    let added = reload(&[text(&path)]).expect_code(0).stdout;
    let advice = "restart mdgw journal only if it was started while an added channel was removed\n";
    assert!(added.ends_with(&format!("\n  channel.one: added\n{advice}")), "{added}");
    assert_eq!(running.gateway.stderr_so_far().matches(in_log).count(), 1);
    // Lines are named by their addresses: the number of the second becomes that of the first.
    for (lines, changed) in [(&[0, 1][..], "1: added"), (&[1], "0: removed")] {
        let config = parts.text(&["one", "two"], lines);
        write(&config.replace("requests_per_second = 10000", "requests_per_second = 5000"));
        let (line, done) = changed.split_once(": ").unwrap();
        let line = fixtures[line.parse::<usize>().unwrap()].output;
        let expected = format!("reload.toml:\n  output.1.line {line} on 127.0.0.1: {done}\n");
        let shown = reload(&[text(&path)]).expect_code(0).stdout;
        assert!(shown.ends_with(&expected), "{shown}");
    }
    // Both signals may be pending at once.
    running.gateway.signal(Signal::HangUp);
    let _ = running.gateway.stop_with(Signal::Terminate).expect_code(0);

    let unanswered = reload(&[text(&path)]).expect_code(2);
    assert!(
        unanswered.stderr.contains("nothing changed: cannot connect to the control socket"),
        "{}",
        unanswered.stderr
    );
    fs::write(&copy, plain.text(&["one"], &[0])).unwrap();
    let socketless = reload(&[text(&copy)]).expect_code(2);
    assert!(socketless.stderr.contains("gateway.control_socket is not set"), "{}", socketless.stderr);
}

/// Nobody reads what is asked at such a socket.
#[test]
fn a_reload_without_an_answer_says_so_and_ends_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let _silent = UnixListener::bind(&socket).unwrap();
    let shown = text(&socket);
    let unanswered = process::run(["reload", "--socket", shown, "--timeout", "6s"]).expect_code(3);
    let [notice, end] = unanswered.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", unanswered.stderr) };
    for part in [shown, "has not answered for 5 s, still waiting", "mdgw ha status", "runbook main-thread-stall"] {
        assert!(notice.contains(part), "{part}: {notice}");
    }
    assert!(end.contains("the result is unknown") && end.contains("may still carry the reload out"), "{end}");
    assert!(end.ends_with("within 6 s"), "{end}");
    let short = process::run(["reload", "--live", "--json", "--socket", shown, "--timeout", "100ms"]).expect_code(3);
    assert_eq!((short.stdout.as_str(), short.stderr.lines().count()), ("", 1), "{}", short.stderr);
    assert!(short.stderr.contains("see the log of mdgw live"), "{}", short.stderr);
}

/// A gateway reads its key files at the start only.
#[test]
fn a_reload_names_a_key_file_whose_content_has_changed_since_the_start() {
    let fixtures = [GatewayFixture::new()];
    let key_file = fixtures[0].path("tag_key");
    write_key(&key_file);
    let output = format!("tag_key_files = [\"{}\"]\n", text(&key_file));
    let options = GatewayOptions { output, ..GatewayOptions::itch() };
    let parts = with_observers(&ConfigParts::of(&fixtures, &options, 1), &fixtures[0], &free_address().to_string());
    let path = fixtures[0].path("reload.toml");
    let running = Reloading::start(path.clone(), &parts.text(&["one"], &[0]));
    let reload = || process::run(["reload", text(&path)]);
    let same = reload().expect_code(0);
    assert!(same.stdout.contains("no setting differs"), "{}", same.stdout);

    write_key_of(&key_file, 9);
    let refused = reload().expect_code(1);
    let expected =
        format!("output.1.tag_key_files: the content of {} has changed and needs a restart", text(&key_file));
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    // The log has the reason too. Its thread writes later than the client is answered.
    let _ = running.gateway.wait_for_stderr(&expected);

    write_key(&key_file);
    let _ = reload().expect_code(0);

    // The next start would be refused, as `mdgw check` says.
    let set = |mode| fs::set_permissions(&key_file, fs::Permissions::from_mode(mode)).unwrap();
    set(0o644);
    let refused = reload().expect_code(1);
    let remedy = format!("mode 644 allows access by group or others: chmod 600 {}", text(&key_file));
    let expected = format!("output.1.tag_key_files: key file {}: {remedy}", text(&key_file));
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    let checked = process::run(["check", text(&path)]).expect_code(1);
    assert!(checked.stdout.contains(&remedy), "{}", checked.stdout);
    set(0o600);
    let _ = reload().expect_code(0);

    fs::remove_file(&key_file).unwrap();
    let warned = reload().expect_code(0);
    let expected = format!("warning: output.1.tag_key_files: {} is no longer there", text(&key_file));
    assert!(warned.stdout.contains(&expected), "{}", warned.stdout);
    let _ = running.gateway.stop_with(Signal::Terminate).expect_code(0);
}
