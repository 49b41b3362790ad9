//! A short trading day on one line: the venue's input and the expected file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    feeds::{self, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess},
};

/// A day in two halves, and its expected result.
#[derive(Debug)]
pub struct TradingDay {
    captures: [PathBuf; 2],
    /// The expected file of a subscriber that receives the whole day, made by the offline decoder without a gateway.
    pub expected: Vec<u8>,
}

impl TradingDay {
    /// Generates a day of that many messages.
    ///
    /// # Panics
    /// When the files can't be written or replayed.
    #[must_use]
    pub fn of(fixture: &GatewayFixture, messages: u64) -> Self {
        let packets: Vec<Packet> = feeds::itch_packets(feeds::itch_day(messages, 8), SESSION, MIDNIGHT_NS);
        let (first_half, second_half) = packets.split_at(packets.len() / 2);
        let captures = ["morning.pcap", "afternoon.pcap"].map(|name| fixture.path(name));
        for (path, packets) in captures.iter().zip([first_half, second_half]) {
            feeds::write_capture(path, feeds::DESTINATIONS[0], packets);
        }
        let out = fixture.path("expected.dbn");
        let files = ["replay", "--offline", text(&captures[0]), text(&captures[1]), "--feed", "nasdaq-itch-5.0"];
        let arguments = ["--schema", "mbo", "--ts-recv", "none", "--date", DATE, "-o", text(&out)];
        let _ = process::run(files.iter().chain(&arguments)).expect_code(0);
        Self { captures, expected: fs::read(out).expect("the offline decoder has written its output") }
    }

    /// Starts the gateway that receives the day.
    #[must_use]
    pub fn gateway(&self, fixture: &GatewayFixture, options: &GatewayOptions) -> MdgwProcess {
        let options = GatewayOptions { has_recovery: false, ..options.clone() };
        fixture.gateway(&options, &["--date", DATE, "--ts-recv", "none"])
    }

    /// Starts a subscriber that records until the day ends. Returns it with the path of its file.
    #[must_use]
    pub fn tail(&self, fixture: &GatewayFixture, name: &str, more: &[&str]) -> (MdgwProcess, PathBuf) {
        let out = fixture.path(name);
        let fixed = ["--schema", "mbo", "--ts-recv", "none", "--until-ended", "-o", text(&out)];
        (fixture.tail(&[fixed.as_slice(), more].concat()), out)
    }

    /// The captures of the two halves.
    #[must_use]
    pub fn captures(&self) -> &[PathBuf; 2] {
        &self.captures
    }

    /// Plays the first half.
    pub fn play_first_half(&self, fixture: &GatewayFixture) {
        play(&self.captures[0], fixture);
    }

    /// Plays the second half.
    pub fn play_second_half(&self, fixture: &GatewayFixture) {
        play(&self.captures[1], fixture);
    }
}

/// The trading date of a [`TradingDay`].
pub const DATE: &str = "2019-01-30";

/// Plays a capture on the first line.
pub fn play(capture: &Path, fixture: &GatewayFixture) {
    let line = fixture.lines[0].to_string();
    let replay = ["replay", text(capture), "--to", &line, "--rate", "5000", "--interface", "127.0.0.1"];
    let _ = process::run(replay).expect_code(0);
}
