//! What a gateway tells its service manager: the end of the start, its state, the watchdog, reloads, and the stop with its
//! hand-over.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::SocketAddrV4,
    path::Path,
    time::{Duration, Instant},
};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text},
    held_thread::{HeldThreads, has_strace},
    http::get_at,
    notify_socket::NotifySocket,
    process::{self, MdgwProcess, Signal, wait_until},
    skip::skip,
};
use serde_json::{Value, json};

/// `WatchdogSec=` of these tests.
const WATCHDOG: Duration = Duration::from_secs(2);

/// Starts a gateway as a service manager does.
fn start(config: &Path, manager: &NotifySocket) -> MdgwProcess {
    let watchdog_us = WATCHDOG.as_micros().to_string();
    let variables = [("NOTIFY_SOCKET", manager.path()), ("WATCHDOG_USEC", Path::new(&watchdog_us))];
    process::start_with(Path::new("."), &variables, ["run", text(config), "--date", "2019-01-30", "--ts-recv", "none"])
}

fn options(line_silence_ms: u32) -> GatewayOptions {
    let itch = GatewayOptions::itch();
    GatewayOptions {
        channel: format!("{}line_silence_ms = {line_silence_ms}\n", itch.channel),
        threads: 1,
        io: "epoll",
        ..itch
    }
}

#[test]
fn the_start_is_complete_when_the_channels_are_live_and_not_before() {
    let fixture = GatewayFixture::new();
    let mut manager = NotifySocket::new();
    let config = fixture.config(&options(60_000));
    let gateway = start(&config, &manager);
    manager.wait_for("STATUS=standalone; 0 of 1 channels live, one is waiting", 1);
    // The start goes on, since the threads make progress.
    assert_eq!(manager.wait_for("EXTEND_TIMEOUT_USEC=", 3), ["EXTEND_TIMEOUT_USEC=20000000"]);
    assert_eq!(manager.count("READY=1") + manager.count("WATCHDOG=1"), 0, "{:?}", manager.all());
    // Its end would be taken for that of the start.
    gateway.signal(Signal::HangUp);
    gateway.wait_for_stderr("configuration reloaded");
    assert_eq!(manager.count("RELOADING=1") + manager.count("READY=1"), 0, "{:?}", manager.all());

    let _ = fixture.sim(&["--messages", "2000", "--rate", "20000"]).end().expect_code(0);
    manager.wait_for("READY=1", 1);
    manager.wait_for("STATUS=standalone; 1 of 1 channels live", 1);
    let since = Instant::now();
    manager.wait_for("WATCHDOG=1", 4);
    assert!(since.elapsed() < 2 * WATCHDOG, "at least twice in an interval");

    gateway.signal(Signal::HangUp);
    let reloading = manager.wait_for("RELOADING=1", 1);
    assert!(reloading.len() == 2 && reloading[1].starts_with("MONOTONIC_USEC="), "{reloading:?}");
    manager.wait_for("READY=1", 2);

    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    let stopping = manager.wait_for("STOPPING=1", 1);
    assert_eq!(stopping, ["STOPPING=1", "STATUS=stopping", "EXTEND_TIMEOUT_USEC=20000000"]);
    assert_eq!(manager.all().last().unwrap(), &stopping);
}

#[test]
fn a_start_at_night_is_complete_once_every_line_has_been_silent_for_its_time() {
    let fixture = GatewayFixture::new();
    let mut manager = NotifySocket::new();
    let gateway = start(&fixture.config(&options(200)), &manager);
    manager.wait_for("READY=1", 1);
    manager.wait_for("STATUS=standalone; 0 of 1 channels live, one is waiting (the venue sends nothing)", 1);
    manager.wait_for("WATCHDOG=1", 2);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert_eq!(manager.count("READY=1"), 1);
}

/// While threads are held, the watchdog is not fed for longer than its interval, and the alarm is raised; afterwards the
/// gateway feeds it again.
fn expect_starved_watchdog(gateway: &MdgwProcess, manager: &mut NotifySocket, held: HeldThreads, alarm: &str) {
    let line = gateway.wait_for_stderr("makes no progress");
    assert!(line.contains(&format!("alarm=\"{alarm}\"")), "{line}");
    // What was sent before the alarm.
    let fed = manager.count("WATCHDOG=1");
    std::thread::sleep(WATCHDOG + WATCHDOG / 4);
    assert_eq!(manager.count("WATCHDOG=1"), fed, "{}", gateway.stderr_so_far());
    held.release();
    gateway.wait_for_stderr("makes progress again");
    manager.wait_for("WATCHDOG=1", fed + 2);
}

#[test]
fn a_stalled_pool_thread_starves_the_watchdog() {
    if !has_strace() {
        return skip("a_stalled_pool_thread_starves_the_watchdog", "no strace");
    }
    let fixture = GatewayFixture::new();
    let mut manager = NotifySocket::new();
    let gateway = start(&fixture.config(&options(200)), &manager);
    manager.wait_for("READY=1", 1);
    let _exchange = fixture.sim(&["--messages", "1000000", "--stocks", "20", "--rate", "1000"]);
    manager.wait_for("STATUS=standalone; 1 of 1 channels live", 1);
    let held = HeldThreads::named(gateway.id(), "main-0", "sendmmsg");
    expect_starved_watchdog(&gateway, &mut manager, held, "pool-thread-stall");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_stalled_pool_thread_is_shown_without_a_service_manager() {
    held_pool_thread_is_shown("a_stalled_pool_thread_is_shown_without_a_service_manager", "sendmmsg");
}

/// It counts as idle, although packets wait for it.
#[test]
fn a_pool_thread_that_is_held_while_it_waits_is_shown_too() {
    held_pool_thread_is_shown("a_pool_thread_that_is_held_while_it_waits_is_shown_too", "/^epoll_p?wait2?$");
}

/// The state and the counters of the thread's channel are those from before.
fn held_pool_thread_is_shown(test: &str, system_call: &str) {
    if !has_strace() {
        return skip(test, "no strace");
    }
    let (fixture, listen) = (GatewayFixture::new(), free_address());
    let gateway = with_admin_listener(&fixture, listen);
    let _exchange = fixture.sim(&["--messages", "1000000", "--stocks", "20", "--rate", "1000"]);
    let is = |code: u16, path: &str| get_at(listen, path).0 == code;
    wait_until("the channel is live", || is(200, "/live") && is(200, "/ready"));
    let held = HeldThreads::named(gateway.id(), "main-0", system_call);
    let line = gateway.wait_for_stderr("makes no progress");
    assert!(line.contains("alarm=\"pool-thread-stall\"") && line.contains("thread=\"main-0\""), "{line}");
    wait_until("no probe says that it works", || is(503, "/live") && is(503, "/ready"));
    for path in ["/live", "/ready"] {
        assert!(get_at(listen, path).1.contains("no progress: pool thread main-0"), "{path}");
    }
    wait_until("metrics, page and top have it", || {
        let status = status(listen);
        let thread = &status["snapshot"]["pools"][0]["threads"][0];
        has_sample(listen, "mdgw_stalled_pool_threads 1")
            && status["stalled_pool_threads"] == json!(["main-0"])
            && thread["role"] == "stalled"
    });
    held.release();
    let ended = gateway.wait_for_stderr("makes progress again");
    assert!(ended.contains("ends=\"pool-thread-stall\"") && ended.contains("thread=\"main-0\""), "{ended}");
    wait_until("it works again", || is(200, "/live") && is(200, "/ready"));
    wait_until("no thread counts", || has_sample(listen, "mdgw_stalled_pool_threads 0"));
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A gateway of its own, with an admin listener.
fn with_admin_listener(fixture: &GatewayFixture, listen: SocketAddrV4) -> MdgwProcess {
    let path = fixture.path("with_admin.toml");
    let keys = format!("[gateway]\ncontrol_socket = \"{}\"", text(&fixture.path("control")));
    let config = fixture.config_text(&options(200)).replace("[gateway]", &keys);
    fs::write(&path, format!("{config}\n[admin]\nlisten = \"{listen}\"\n")).unwrap();
    let gateway = process::start(["run", text(&path), "--date", "2019-01-30", "--ts-recv", "none"]);
    gateway.wait_for_stderr("admin listener");
    gateway
}

fn has_sample(listen: SocketAddrV4, sample: &str) -> bool {
    get_at(listen, "/metrics").1.lines().any(|line| line == sample)
}

fn status(listen: SocketAddrV4) -> Value {
    serde_json::from_str(&get_at(listen, "/status.json").1).unwrap()
}

/// It is the one that watches the others, so only the admin thread is left to say so.
#[test]
fn a_stalled_main_thread_is_shown_and_is_an_alarm() {
    if !has_strace() {
        return skip("a_stalled_main_thread_is_shown_and_is_an_alarm", "no strace");
    }
    let (fixture, listen) = (GatewayFixture::new(), free_address());
    let gateway = with_admin_listener(&fixture, listen);
    assert!(has_sample(listen, "mdgw_main_thread_stalled 0"));
    assert!(status(listen)["main_thread_stuck_ms"].is_null());
    // The main thread has the process's number, and sleeps between its turns.
    let held = HeldThreads::numbered(gateway.id(), "/^(clock_)?nanosleep$");
    wait_until("the metrics show it", || has_sample(listen, "mdgw_main_thread_stalled 1"));
    let line = gateway.wait_for_stderr("the main thread makes no progress");
    assert!(line.contains("alarm=\"main-thread-stall\""), "{line}");
    wait_until("the alarm counts once", || has_sample(listen, "mdgw_alarms_total{alarm=\"main-thread-stall\"} 1"));
    assert!(status(listen)["main_thread_stuck_ms"].as_u64() > Some(10_000));
    let (code, body) = get_at(listen, "/live");
    assert!(code == 503 && body.starts_with("the main thread is stuck for "), "{code} {body}");
    for command in [&["ha", "status"][..], &["top", "--once"]] {
        let shown = process::run(command.iter().copied().chain(["--socket", text(&fixture.path("control"))]))
            .expect_code(0)
            .stdout;
        assert!(shown.contains("the main thread here is stuck for "), "{command:?}: {shown}");
    }
    // The reload stays with the gateway, and is carried out after its client has gone.
    let control = fixture.path("control");
    let reload = ["reload", "--socket", text(&control), "--timeout", "1s"];
    let unanswered = process::run(reload).expect_code(3);
    assert!(unanswered.stderr.contains("the gateway, which may still carry the reload out"), "{}", unanswered.stderr);
    held.release();
    let ended = gateway.wait_for_stderr("the main thread makes progress again");
    gateway.wait_for_stderr("configuration reloaded");
    assert!(ended.contains("ends=\"main-thread-stall\""), "{ended}");
    wait_until("it turns", || has_sample(listen, "mdgw_main_thread_stalled 0"));
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_stalled_election_thread_starves_the_watchdog_and_idle_pool_threads_do_not() {
    if !has_strace() {
        return skip("a_stalled_election_thread_starves_the_watchdog_and_idle_pool_threads_do_not", "no strace");
    }
    let mut pair = ElectedPair::new(GatewayOptions { threads: 2, ..options(200) }).with_admin_listeners();
    let mut manager = NotifySocket::new();
    let path = pair.gateways.fixture(1).path("gateway.toml");
    fs::write(&path, pair.config_text(1)).unwrap();
    let first = start(&path, &manager);
    first.wait_for_stderr("INFO leads ");
    manager.wait_for("READY=1", 1);
    // Nothing arrives, so no thread of the pool has anything to do for longer than the limit.
    manager.wait_for("WATCHDOG=1", 8);
    pair.start(2);
    let held = HeldThreads::named(first.id(), "mdgw-elect-1", "futex");
    // The lease of the held leader ends, long before the watchdog does.
    pair.wait_until_leads(2);
    let status = pair.status(1).unwrap();
    assert!(status["leader"].is_null() && status["has_leadership"] == false, "{status}");
    first.wait_for_stderr("makes no progress");
    // What the thread last reported, that it leads and is connected, is old.
    let listen = pair.admin_address(1);
    wait_until("it would not take over", || {
        let [eligible, stuck] = ["mdgw_group_eligible{group=\"1\"} 0", "mdgw_group_election_stalled{group=\"1\"} 1"];
        has_sample(listen, eligible) && has_sample(listen, stuck)
    });
    expect_starved_watchdog(&first, &mut manager, held, "election-thread-stall");
    first.wait_for_stderr("leadership lost");
    let _ = first.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_leader_that_is_stopped_hands_over_before_it_ends() {
    let pair = ElectedPair::new(options(200));
    let mut manager = NotifySocket::new();
    let mut standby_manager = NotifySocket::new();
    let [first, second] = [(1, &manager), (2, &standby_manager)].map(|(node, manager)| {
        let path = pair.gateways.fixture(node).path("gateway.toml");
        fs::write(&path, pair.config_text(node)).unwrap();
        let gateway = start(&path, manager);
        gateway.wait_for_stderr(if node == 1 { "INFO leads " } else { "gateway running" });
        gateway
    });
    manager.wait_for("STATUS=leads group 1; ", 1);
    standby_manager.wait_for("STATUS=standby of group 1; ", 1);
    standby_manager.wait_for("READY=1", 1);
    pair.wait_until_eligible(2);
    wait_until("the leader knows that its peer is eligible", || {
        pair.status(1).is_some_and(|status| status["successor"] == 2)
    });

    let stopped = first.stop_with(Signal::Terminate).expect_code(0);
    let [handed_over, lost] = ["handed over before the stop", "leadership lost"].map(|event| {
        stopped
            .stderr
            .lines()
            .find(|line| line.contains(event))
            .unwrap_or_else(|| panic!("{event}: {}", stopped.stderr))
    });
    assert!(handed_over.contains("gw2") && lost.contains("HandedOver"), "{}", stopped.stderr);
    pair.wait_until_leads(2);
    standby_manager.wait_for("STATUS=leads group 1; ", 1);
    // Six leases of one second on top of the rest.
    assert_eq!(manager.wait_for("STOPPING=1", 1)[2], "EXTEND_TIMEOUT_USEC=26000000");

    // Nobody is left to take over from the second.
    let stopped = second.stop_with(Signal::Terminate).expect_code(0);
    assert!(stopped.stderr.contains("stops as the leader"), "{}", stopped.stderr);
}
