//! Receivers in Python and C that lose messages for good have the right books again from a snapshot, as the one in Rust
//! (`tests/e2e/snapshot_start.rs`).

use std::{fs, path::Path, process::Command};

use dbn::decode::dbn::RecordDecoder;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    order_books::{ConsumerBooks, FileContent},
    process::{self, ExitedProcess, MdgwProcess, Signal},
    skip::skip,
    trading_day::TradingDay,
};

use super::{c, data_files, text as vector_text};

const MESSAGES: u64 = 240_000;

#[test]
fn receivers_in_python_and_c_have_right_books_after_a_loss() {
    let test = "receivers_in_python_and_c_have_right_books_after_a_loss";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(test, "python3 is not installed");
    }
    let fixture = GatewayFixture::new();
    let Some(example) = c::compile_example(test, fixture.path("").as_path()) else { return };
    let day = TradingDay::of(&fixture, MESSAGES);
    let itch = GatewayOptions::itch();
    let options = GatewayOptions {
        retransmission: format!("{}snapshots = true\n", itch.retransmission),
        // Less than half of the day.
        segment_bytes: 1 << 20,
        retention_bytes: 2 << 20,
        ..itch
    };
    let gateway = day.gateway(&fixture, &options);
    let file = fixture.path("python.dbn");
    let receivers = [python_command(&fixture, &file), c_command(&fixture, &example)].map(process::spawn);
    receivers.iter().for_each(|receiver| _ = receiver.wait_for_stderr("receiving"));
    wait_until_joined(fixture.output, 2);

    // They sleep while more is published than their sockets and the log hold.
    receivers.iter().for_each(|receiver| receiver.signal(Signal::Stop));
    day.play_first_half(&fixture);
    receivers.iter().for_each(|receiver| receiver.signal(Signal::Continue));
    for receiver in &receivers {
        receiver.wait_for_stdout("lost channel=1 ");
        receiver.wait_for_stdout("books channel=1 state=suspect");
    }
    day.play_second_half(&fixture);
    // Exit code 1: messages are missing.
    let [python, c] = receivers.map(MdgwProcess::end).map(|ended| ended.expect_code(1));
    check(&day, "Python", &python, &fs::read(file).unwrap());
    let records = records_of(&c.stdout);
    check(&day, "C", &c, &records);
    assert!(c.stdout.contains("\nrepeated channel=1 "), "nothing was repeated:\n{}", c.stderr);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

fn python_command(fixture: &GatewayFixture, file: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(data_files::repository_path("gateway/subscriber/python/mdgw_subscriber.py"));
    command.args(["--line", &fixture.output.to_string(), "--interface", "127.0.0.1"]);
    command.args(["--retransmission", &fixture.retransmission.to_string()]);
    command.args(["--rebuild", "--until-ended", "--dbn", text(file)]);
    command
}

/// With one channel, since the memory for the rebuild is allocated for each.
fn c_command(fixture: &GatewayFixture, example: &Path) -> Command {
    let mut command = Command::new(example);
    command.args(["1", "127.0.0.1", &fixture.output.to_string()]);
    command.args(["--service", &fixture.retransmission.to_string()]);
    command.args(["--rebuild", "--until-ended", "--channel", "1"]);
    command
}

/// Compares the books that these records make with those of the whole day.
fn check(day: &TradingDay, name: &str, receiver: &ExitedProcess, records: &[u8]) {
    let (expected, whole) = ConsumerBooks::of_file(&day.expected);
    let (found, content) = ConsumerBooks::of_records(RecordDecoder::new(records));
    let FileContent { snapshot_records, suspect_records, live_records } = content;
    assert!(receiver.stdout.contains("books channel=1 state=right"), "{name}: {}", receiver.stderr);
    assert!(snapshot_records > 0 && suspect_records == 0, "{name}: {content:?}");
    assert!(live_records < whole.live_records, "{name}: nothing was lost: {}", receiver.stderr);
    assert!(!expected.orders.is_empty() && found.orders == expected.orders, "{name}: the books differ: {content:?}");
}

/// The records of printed items, back to back.
fn records_of(items: &str) -> Vec<u8> {
    let with_records =
        items.lines().filter(|line| ["message ", "snapshot ", "repeated "].iter().any(|kind| line.starts_with(kind)));
    with_records.flat_map(|line| vector_text::from_hex(vector_text::setting(line, "body").unwrap())).collect()
}
