//! Several channels in one pool, published on two output lines: each channel's output is the same as if it ran alone,
//! although both lines lose packets and one channel fails.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    net::SocketAddrV4,
    process::{Child, Command, Stdio},
};

use mdgw_captures::impairment::LineImpairment;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    process::{self, MdgwProcess, Signal},
    relay::LossyRelay,
    skip::skip,
    trading_day::{DATE, TradingDay},
};

#[test]
fn each_channel_is_complete_over_two_lossy_output_lines() {
    every_channel_is_complete("leader-followers");
}

/// Three channels on two threads: with half-sync one worker has all, with reactors one thread has two.
#[test]
fn each_channel_is_complete_under_half_sync_and_reactors() {
    every_channel_is_complete("half-sync");
    every_channel_is_complete("reactor");
}

fn every_channel_is_complete(dispatch: &'static str) {
    let scenario = MultiChannelScenario::start(2, dispatch);
    let service = scenario.fixtures[0].retransmission.to_string();
    let tails: Vec<_> = (1..=CHANNELS)
        .map(|channel| scenario.tail(channel, &scenario.behind, &["--retransmission", &service]))
        .collect();
    wait_until_joined(scenario.behind[0], 3);
    wait_until_joined(scenario.behind[1], 3);
    scenario.play();
    for (channel, tail) in (1..=CHANNELS).zip(tails) {
        let tail = tail.end().expect_code(0);
        assert!(!tail.stderr.contains("lost ["), "channel {channel}: {}", tail.stderr);
        let received = fs::read(scenario.out(channel)).unwrap();
        assert!(received == scenario.days[channel - 1].expected, "channel {channel} differs from its output alone");
    }
    scenario.assert_lines_lossy();
    let ended = scenario.gateway.stop_with(Signal::Terminate).expect_code(0);
    for name in NAMES {
        assert!(ended.stdout.lines().any(|line| line.starts_with(name)), "{name}: {}", ended.stdout);
    }
}

/// Negative control: on one of these lines alone, without a request server, packets are missing.
#[test]
fn a_single_lossy_line_loses_packets() {
    let scenario = MultiChannelScenario::start(2, "leader-followers");
    let tail = scenario.tail(1, &scenario.behind[..1], &[]);
    wait_until_joined(scenario.behind[0], 1);
    scenario.play();
    let tail = tail.end().expect_code(1);
    let is_reported =
        tail.stderr.contains("lost [") && tail.stderr.contains(" messages published by the gateway were not");
    assert!(is_reported, "{}", tail.stderr);
    let _ = scenario.gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn a_failed_channel_is_reported_and_the_others_continue() {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        return skip(
            "a_failed_channel_is_reported_and_the_others_continue",
            "no strace, which makes a system call fail",
        );
    }
    let scenario = MultiChannelScenario::start(1, "leader-followers");
    let service = scenario.fixtures[0].retransmission.to_string();
    let service_arguments = ["--retransmission", &service];
    let mut tails: Vec<_> =
        (1..=CHANNELS).map(|channel| scenario.tail(channel, &scenario.behind, &service_arguments)).collect();
    wait_until_joined(scenario.behind[0], 3);
    wait_until_joined(scenario.behind[1], 3);
    scenario.play_halves(&[TradingDay::play_first_half]);
    // Wait until each channel has a session: without one it publishes nothing.
    tails.iter().for_each(|tail| drop(tail.wait_for_stderr(": session ")));

    let mut fault = fail_one_receive(&scenario.gateway);
    let alarm = scenario.gateway.wait_for_stderr("alarm=\"channel-failed\"");
    assert!(alarm.contains("cannot read a line's socket"), "{alarm}");
    let failed = NAMES
        .iter()
        .position(|name| alarm.contains(&format!("channel=\"{name}\"")))
        .expect("the alarm names the channel");
    fault.kill().unwrap();
    fault.wait().unwrap();
    let failed_tail = tails.remove(failed);
    let failure_line = format!("channel {}: Failed", failed + 1);
    failed_tail.wait_for_stderr(&failure_line);
    scenario.play_halves(&[TradingDay::play_second_half]);

    let healthy_channels = (1..=CHANNELS).filter(|channel| *channel != failed + 1);
    for (channel, tail) in healthy_channels.zip(tails) {
        let tail = tail.end().expect_code(0);
        assert!(
            !tail.stderr.contains("lost [") && !tail.stderr.contains("Failed"),
            "channel {channel}: {}",
            tail.stderr
        );
        let received = fs::read(scenario.out(channel)).unwrap();
        assert!(received == scenario.days[channel - 1].expected, "channel {channel} differs from its output alone");
    }
    // A subscriber that joins now receives it as well.
    drop(failed_tail);
    scenario.tail(failed + 1, &scenario.behind, &service_arguments).wait_for_stderr(&failure_line);
    let ended = scenario.gateway.stop_with(Signal::Terminate).expect_code(0);
    let row = |name: &str| ended.stdout.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    for (place, name) in NAMES.iter().enumerate() {
        assert_eq!(row(name).contains(" failed "), place == failed, "{}", ended.stdout);
    }
    assert_eq!(ended.stdout.matches("out of service: ").count(), 1, "{}", ended.stdout);
    assert_eq!(ended.stderr.matches("alarm=\"channel-failed\"").count(), 1, "{}", ended.stderr);
}

/// Makes the next recvmmsg(2) of the pool's thread fail.
fn fail_one_receive(gateway: &MdgwProcess) -> Child {
    let is_of_pool = |task: &std::path::Path| fs::read_to_string(task.join("comm")).unwrap().starts_with("main-");
    let tasks = fs::read_dir(format!("/proc/{}/task", gateway.id())).unwrap().map(|task| task.unwrap().path());
    let pool_threads: Vec<_> = tasks.filter(|task| is_of_pool(task)).collect();
    let [thread] = pool_threads.as_slice() else { panic!("not one pool thread: {pool_threads:?}") };
    Command::new("strace")
        .args(["-q", "-e", "trace=recvmmsg", "-e", "inject=recvmmsg:error=EIO:when=1", "-p"])
        .arg(thread.file_name().unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

const CHANNELS: usize = 3;
const NAMES: [&str; CHANNELS] = ["one", "two", "three"];

/// One gateway with several channels, and two output lines over a lossy relay. There is one fixture for the lines of each
/// channel.
struct MultiChannelScenario {
    fixtures: Vec<GatewayFixture>,
    days: Vec<TradingDay>,
    gateway: MdgwProcess,
    relays: Vec<LossyRelay>,
    behind: [SocketAddrV4; 2],
    _lossy_sites: [GatewayFixture; 2],
}

impl MultiChannelScenario {
    fn start(threads: usize, dispatch: &'static str) -> Self {
        let fixtures: Vec<_> = (0..CHANNELS).map(|_| GatewayFixture::new()).collect();
        let days: Vec<_> = fixtures
            .iter()
            .zip([12_000, 15_000, 18_000])
            .map(|(fixture, count)| TradingDay::of(fixture, count))
            .collect();
        let config = fixtures[0].path("several.toml");
        fs::write(&config, config_text(&fixtures, threads, dispatch)).unwrap();
        let gateway = process::start(["run", text(&config), "--date", DATE, "--ts-recv", "none"]);
        gateway.wait_for_stderr("gateway running");
        let behind = [GatewayFixture::new(), GatewayFixture::new()];
        let groups = [behind[0].output, behind[1].output];
        let damage = LineImpairment { loss: 0.1, duplicate: 0.05, reorder: 0.05, skew_ns: 0 };
        let relays = (0..).zip(groups).zip(&fixtures);
        let relays = relays.map(|((seed, to), fixture)| LossyRelay::start(fixture.output, to, damage, seed)).collect();
        Self { fixtures, days, gateway, relays, behind: groups, _lossy_sites: behind }
    }

    fn out(&self, channel: usize) -> std::path::PathBuf {
        self.fixtures[0].path(&format!("{channel}.dbn"))
    }

    fn tail(&self, channel: usize, lines: &[SocketAddrV4], more: &[&str]) -> MdgwProcess {
        let (out, channel) = (self.out(channel), channel.to_string());
        let fixed = ["tail", "--interface", "127.0.0.1", "--channel", &channel, "--schema", "mbo", "--ts-recv", "none"];
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        let lines = lines.iter().flat_map(|line| ["--line", line]);
        let rest = ["--until-ended", "-o", text(&out)];
        process::start(fixed.into_iter().chain(lines).chain(rest).chain(more.iter().copied()))
    }

    /// All channels at the same time.
    fn play(&self) {
        self.play_halves(&[TradingDay::play_first_half, TradingDay::play_second_half]);
    }

    fn play_halves(&self, halves: &[fn(&TradingDay, &GatewayFixture)]) {
        std::thread::scope(|scope| {
            for (day, fixture) in self.days.iter().zip(&self.fixtures) {
                scope.spawn(|| halves.iter().for_each(|play| play(day, fixture)));
            }
        });
    }

    fn assert_lines_lossy(&self) {
        for relay in &self.relays {
            let (received_count, forwarded_count) = relay.counts();
            assert!(
                forwarded_count < received_count && received_count > 1_000,
                "{received_count} received, {forwarded_count} forwarded"
            );
        }
    }
}

fn config_text(fixtures: &[GatewayFixture], threads: usize, dispatch: &'static str) -> String {
    let wanted = GatewayOptions { has_recovery: false, threads, dispatch, io: "epoll", ..GatewayOptions::itch() };
    GatewayFixture::config_of_channels(fixtures, &wanted)
}
