//! A pair whose gateways reload one after the other: a channel is added to both and removed from both while they run.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::PathBuf, time::Duration};

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    process::{self, MdgwProcess, Signal, wait_until},
    trading_day::TradingDay,
};

/// A pair with one channel, and the lines of another one.
struct ReloadingPair {
    pair: ElectedPair,
    /// Its lines are those of channel two.
    more: GatewayFixture,
    days: [TradingDay; 2],
}

impl ReloadingPair {
    /// Gateway 1 leads, gateway 2 is eligible.
    fn start() -> Self {
        let pair = ElectedPair::new(GatewayOptions { has_recovery: false, ..GatewayOptions::itch() });
        let more = GatewayFixture::new();
        let days = [TradingDay::of(pair.gateways.fixture(1), 10_000), TradingDay::of(&more, 8_000)];
        let mut started = Self { pair, more, days };
        for node in [1, 2] {
            let config = started.config(node, 1, false);
            started.pair.gateways.start(node, &config);
            if node == 1 {
                started.pair.wait_until_leads(1);
            }
        }
        started.pair.wait_until_eligible(2);
        started
    }

    fn config(&self, node: u8, revision: u64, has_second: bool) -> String {
        let config =
            self.pair.config_text(node).replacen("[election]\n", &format!("[election]\nrevision = {revision}\n"), 1);
        if !has_second {
            return config;
        }
        let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
        let second = self.more.config_text(&options);
        let second = &second[second.find("[[channel]]").unwrap()..second.find("[[output]]").unwrap()];
        let second = second.replacen("id = 1\nname = \"one\"", "id = 2\nname = \"two\"", 1);
        config.replacen("[[output]]", &format!("{second}\n[[output]]"), 1)
    }

    /// Writes the configuration and reloads it. `times`: how often this gateway has reloaded by then.
    fn reload(&self, node: u8, revision: u64, has_second: bool, times: usize) {
        fs::write(self.pair.gateways.fixture(node).path("gateway.toml"), self.config(node, revision, has_second))
            .unwrap();
        let gateway = self.pair.gateways.running(node).unwrap();
        gateway.signal(Signal::HangUp);
        gateway.wait_for_stderr_times("configuration reloaded", times);
    }

    /// Adds a channel with large books to gateway 1, and waits until it builds them. Returns the gateway and its configuration.
    fn begin_slow_reload(&self) -> (&MdgwProcess, String) {
        let config = self.config(1, 2, true);
        let (before, second) = config.split_at(config.find("name = \"two\"").unwrap());
        let config = before.to_owned() + &second.replacen("orders_max = 65536", "orders_max = 16777216", 1);
        fs::write(self.pair.gateways.fixture(1).path("gateway.toml"), &config).unwrap();
        let gateway = self.pair.gateways.running(1).unwrap();
        gateway.signal(Signal::HangUp);
        wait_until("the reload builds the channel", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", gateway.id())).unwrap();
            let mut names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.any(|name| name.trim() == "mdgw-reload")
        });
        (gateway, config)
    }

    /// Subscribers of both channels until the end of their days, which ask both gateways for what they miss.
    fn tails(&self) -> [(MdgwProcess, PathBuf); 2] {
        let first = self.pair.gateways.fixture(1);
        let services = [1, 2].map(|node| self.pair.gateways.fixture(node).retransmission.to_string());
        let tails = ["1", "2"].map(|channel| {
            let out = first.path(&format!("{channel}.dbn"));
            let fixed = ["tail", "--line", &first.output.to_string(), "--interface", "127.0.0.1", "--channel", channel]
                .map(str::to_owned);
            let services = services.iter().flat_map(|service| ["--retransmission".to_owned(), service.clone()]);
            let rest = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)].map(str::to_owned);
            (process::start(fixed.into_iter().chain(services).chain(rest)), out)
        });
        // Both gateways listen to the group too.
        wait_until_joined(first.output, 4);
        tails
    }

    /// Plays a half of both days at the same time.
    fn play(&self, half: fn(&TradingDay, &GatewayFixture)) {
        std::thread::scope(|scope| {
            for (day, fixture) in self.days.iter().zip([self.pair.gateways.fixture(1), &self.more]) {
                scope.spawn(|| half(day, fixture));
            }
        });
    }

    /// Numbers of the channels in a gateway's status.
    fn channels(&self, node: u8) -> Vec<u64> {
        let status = self.pair.status(node).unwrap();
        status["details"]["channels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|channel| channel["channel"].as_u64().unwrap())
            .collect()
    }

    fn expect_whole_days(&self, tails: [(MdgwProcess, PathBuf); 2]) {
        for (day, (tail, out)) in self.days.iter().zip(tails) {
            let tail = tail.end();
            assert!(!tail.stderr.contains("lost [") && !tail.stderr.contains("gap ["), "{}", tail.stderr);
            // Its exit code is not 0: on one host the gateways' probes reach it, which it refuses.
            assert!(fs::read(out).unwrap() == day.expected, "differs from the channel alone: {}", tail.stderr);
        }
    }

    /// The leader stays, and finds nothing wrong with itself, for a while in which it would have moved.
    fn expect_steady(&self, leader: u8) {
        let epoch = self.pair.status(leader).unwrap()["epoch"].clone();
        for _ in 0..20 {
            let status = self.pair.status(leader).unwrap();
            assert_eq!(
                (&status["role"], &status["epoch"], &status["details"]["fitness"]),
                (&"leader".into(), &epoch, &"fit".into()),
                "{status}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_channel_is_added_to_a_pair_survives_a_takeover_and_is_removed() {
    let mut reloading = ReloadingPair::start();
    let tails = reloading.tails();
    // The standby first: it keeps the books of the channel, and nobody publishes it.
    reloading.reload(2, 2, true, 1);
    assert_eq!((reloading.channels(1), reloading.channels(2)), (vec![1], vec![1, 2]));
    assert_eq!((reloading.pair.role(1), reloading.pair.role(2)), ("leader".to_owned(), "candidate".to_owned()));
    reloading.reload(1, 2, true, 1);
    assert_eq!(reloading.channels(1), [1, 2]);
    reloading.play(TradingDay::play_first_half);
    reloading.expect_steady(1);
    assert_eq!(reloading.pair.role(2), "candidate");
    // Both know what the other one has of the channel, and compare it.
    wait_until("the standby follows the channel", || {
        let status = reloading.pair.status(2).unwrap();
        status["details"]["channels"][1]["packets_received"].as_u64() > Some(0)
    });
    reloading.pair.gateways.kill(1);
    reloading.pair.wait_until_leads(2);
    reloading.play(TradingDay::play_second_half);
    reloading.expect_whole_days(tails);

    // Back with its new file, the other gateway is a candidate at once. Then the channel goes from both.
    let config = reloading.config(1, 2, true);
    reloading.pair.gateways.start(1, &config);
    reloading.pair.wait_until_eligible(1);
    reloading.reload(1, 3, false, 1);
    assert_eq!((reloading.channels(1), reloading.channels(2)), (vec![1], vec![1, 2]));
    reloading.expect_steady(2);
    assert_eq!(reloading.pair.role(1), "candidate");
    reloading.reload(2, 3, false, 2);
    assert_eq!(reloading.channels(2), [1]);
    reloading.expect_steady(2);
    let status = reloading.pair.status(1).unwrap();
    assert_eq!(status["role"], "candidate", "{status}");
    let log = reloading.pair.gateways.stop(2);
    assert!(!log.contains("gateways-differ"), "{log}");
}

#[test]
fn a_leader_that_reloads_first_stays_and_its_standby_is_not_eligible_until_it_reloads() {
    let mut reloading = ReloadingPair::start();
    let tails = reloading.tails();
    reloading.reload(1, 2, true, 1);
    wait_until("the standby has another configuration", || reloading.pair.role(2) != "candidate");
    reloading.play(TradingDay::play_first_half);
    // The standby acknowledges nothing of the channel that it does not have: the leader is not to blame.
    reloading.expect_steady(1);
    reloading.reload(2, 2, true, 1);
    reloading.pair.wait_until_eligible(2);
    let standby = reloading.pair.gateways.running(2).unwrap();
    standby.wait_for_stderr("starting with a copy of the peer's state");
    reloading.pair.gateways.kill(1);
    reloading.pair.wait_until_leads(2);
    reloading.play(TradingDay::play_second_half);
    // What the second gateway's log lacks of the channel was received before the kill.
    reloading.expect_whole_days(tails);
}

/// The file may have changed after the first reload had read it.
#[test]
fn a_reload_that_is_asked_for_during_another_one_follows_it() {
    let reloading = ReloadingPair::start();
    let (gateway, config) = reloading.begin_slow_reload();
    let changed = config.replacen("[log]\n", "[log]\nalarm_interval_ms = 2000\n", 1);
    fs::write(reloading.pair.gateways.fixture(1).path("gateway.toml"), changed).unwrap();
    gateway.signal(Signal::HangUp);
    let second = gateway.wait_for_stderr_times("configuration reloaded", 2);
    assert!(second.contains("log.alarm_interval_ms") && !second.contains("channel.two"), "{second}");
}

/// The books of the channel that is added are large, so the reload takes longer than the other gateway needs to lead.
#[test]
fn a_leader_that_is_stopped_while_it_builds_a_channel_hands_over_before_the_channel_is_built() {
    let reloading = ReloadingPair::start();
    let (gateway, _) = reloading.begin_slow_reload();
    gateway.signal(Signal::Terminate);
    reloading.pair.wait_until_leads(2);
    let _line = gateway.wait_for_stderr("channel added");
    let log = gateway.stderr_so_far();
    let at = |line: &str| log.find(line).unwrap_or_else(|| panic!("{line}: {log}"));
    assert!(at("handed over before the stop") < at("channel added"), "{log}");
}
