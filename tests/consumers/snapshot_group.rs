//! A receiver in Python without a path for requests starts in mid-session from the snapshot group, as the one in Rust
//! (`tests/e2e/snapshot_group.rs`).

use std::{fs, process::Command};

use dbn::decode::dbn::RecordDecoder;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    order_books::ConsumerBooks,
    process::{self, Signal},
    skip::skip,
    trading_day::TradingDay,
};

use super::data_files;

/// The afternoon is published while the image is sent, so the receiver keeps it.
#[test]
fn a_late_receiver_in_python_has_the_books_of_the_whole_day() {
    let test = "a_late_receiver_in_python_has_the_books_of_the_whole_day";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(test, "python3 is not installed");
    }
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 40_000);
    let keys = "interval_ms = 50\nbytes_per_second = 400000\npasses = 1";
    let gateway = day.gateway(&fixture, &GatewayOptions { snapshot_group: Some(keys), ..GatewayOptions::itch() });
    day.play_first_half(&fixture);
    let (file, line, group) = (fixture.path("python.dbn"), fixture.output.to_string(), fixture.snapshot_group());
    let mut command = Command::new("python3");
    command.arg(data_files::repository_path("gateway/subscriber/python/mdgw_subscriber.py"));
    command.args(["--line", &line, "--interface", "127.0.0.1", "--snapshot-group", &group.to_string()]);
    command.args(["--start", "snapshot", "--until-ended", "--dbn", text(&file)]);
    let receiver = process::spawn(command);
    wait_until_joined(group, 1);
    receiver.wait_for_stdout("session channel=1 ");
    day.play_second_half(&fixture);
    let receiver = receiver.end().expect_code(0);
    let (expected, whole) = ConsumerBooks::of_file(&day.expected);
    let (found, content) = ConsumerBooks::of_records(RecordDecoder::new(fs::read(file).unwrap().as_slice()));
    assert!(content.snapshot_records > 0 && content.suspect_records == 0, "{content:?}: {}", receiver.stderr);
    assert!(content.live_records < whole.live_records, "{content:?} of {whole:?}");
    assert!(!expected.orders.is_empty() && found.orders == expected.orders, "the books differ: {content:?}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}
