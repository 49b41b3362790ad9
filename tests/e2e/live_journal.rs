//! Replays of live clients out of the journal, where the log has lost the beginning of the day.

use std::{
    fs,
    net::SocketAddrV4,
    path::PathBuf,
    time::{Duration, Instant},
};

use databento::{
    Symbols,
    dbn::{Compression, Schema},
};
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::{self, MdgwProcess, Signal, wait_until},
    python::python,
    trading_day::{DATE, TradingDay},
};

use super::{
    client,
    live_rust_client::{Session, expect_one_hole, records_of, run, subscription},
    replay_offline, run_client, start_live, start_live_with,
};

/// The beginning is in the journal alone, the rest in the log, and the second half is live. Each record comes once, and books are those
/// of the whole day.
#[test]
fn a_replay_goes_from_the_journal_to_the_log_to_live_without_a_seam() {
    let Some(python) = python("a_replay_goes_from_the_journal_to_the_log_to_live_without_a_seam") else { return };
    let host = Host::start();
    host.day.play_first_half(&host.fixture);
    host.wait_for_journal(&host.open_journal());
    let (live, address) = host.start_live();
    let expected = host.fixture.path("expected.dbn");
    let mut running = Vec::new();
    for (schema, expected) in [("mbo", expected.clone()), ("mbp-1", replay_offline(&host.fixture, "mbp-1"))] {
        let arguments = ["XNAS.ITCH", schema, text(&expected), "zstd", "until-close"];
        running.push(process::spawn(client(&python, address, &arguments)));
    }
    for client in &running {
        client.wait_for_stderr("replay finished");
    }
    host.day.play_second_half(&host.fixture);
    for client in running {
        let _ = client.end().expect_code(0);
    }
    // The whole day, when it is over.
    wait_until("the journal is closed", || host.closed_journal().with_extension("names").exists());
    for schema in ["mbo", "mbp-10", "status", "definition"] {
        let expected = replay_offline(&host.fixture, schema);
        run_client(&python, address, &["XNAS.ITCH", schema, text(&expected), "none"]);
    }
    let live = live.stop_with(Signal::Terminate).expect_code(0);
    assert!(!live.stderr.contains("a hole"), "{}", live.stderr);
    // A negative control: without the journal the beginning is missing.
    let (without, address) = start_live(&host.fixture);
    let alone = client(&python, address, &["XNAS.ITCH", "mbo", text(&expected), "none"]).output().unwrap();
    assert!(!alone.status.success(), "the log has the whole day");
    let _ = without.stop_with(Signal::Terminate).expect_code(0);
    host.stop();
}

/// The client asks for the time of a record that only the journal has.
#[test]
fn a_replay_from_a_time_in_the_journal_begins_there() {
    let host = Host::start();
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    wait_until("the journal is closed", || host.closed_journal().with_extension("names").exists());
    let (live, address) = host.start_live();
    let expected = records_of(&host.fixture.path("expected.dbn"));
    let ts_event = |record: &Vec<u8>| u64::from_le_bytes(*record[8..].first_chunk().unwrap());
    let start = ts_event(&expected[expected.len() / 8]);
    let subscriptions = vec![subscription(Schema::Mbo, Symbols::All, start)];
    let received = run(Session::until_replayed(&[address], subscriptions, Compression::None)).records;
    let wanted: Vec<_> = expected.into_iter().filter(|record| ts_event(record) >= start).collect();
    assert!(received == wanted, "{} records, {} expected", received.len(), wanted.len());
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    host.stop();
}

/// What a damaged journal held is missing, and every order behind the hole carries the mark of a book that may be wrong.
#[test]
fn a_damaged_journal_is_a_hole_behind_which_orders_are_marked() {
    let host = Host::start();
    host.day.play_first_half(&host.fixture);
    host.day.play_second_half(&host.fixture);
    let names = host.closed_journal().with_extension("names");
    wait_until("the journal is closed", || names.exists());
    let mut bytes = fs::read(&names).unwrap();
    let middle = bytes.len() / 3 / 64 * 64;
    bytes[middle + 20] ^= 1;
    fs::write(&names, bytes).unwrap();
    let (live, address) = host.start_live();
    let all = vec![subscription(Schema::Mbo, Symbols::All, 0)];
    let received = run(Session::until_replayed(&[address], all, Compression::None)).records;
    let expected = records_of(&host.fixture.path("expected.dbn"));
    expect_one_hole(&received, &expected);
    let live = live.stop_with(Signal::Terminate).expect_code(0);
    assert!(live.stderr.contains("a journal cannot be read to its end"), "{}", live.stderr);
    host.stop();
}

/// A gateway with a log that is too short for its day, and its journal.
struct Host {
    fixture: GatewayFixture,
    day: TradingDay,
    gateway: MdgwProcess,
    journal: MdgwProcess,
}

impl Host {
    fn start() -> Self {
        let fixture = GatewayFixture::new();
        let day = TradingDay::of(&fixture, 60_000);
        let options = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 2 << 20, ..GatewayOptions::itch() };
        let gateway = day.gateway(&fixture, &options);
        let config = fs::read_to_string(fixture.path("gateway.toml")).unwrap();
        let path = fixture.path("journal.toml");
        fs::write(&path, config + &journal_table(&fixture)).unwrap();
        let journal = process::start(["journal", text(&path)]);
        journal.wait_for_stderr("journal: ready");
        Self { fixture, day, gateway, journal }
    }

    /// Starts `mdgw live` with the journal.
    fn start_live(&self) -> (MdgwProcess, SocketAddrV4) {
        start_live_with(&self.fixture, &format!("journal_days_max = 1\n{}", journal_table(&self.fixture)))
    }

    fn closed_journal(&self) -> PathBuf {
        let schemas = "mbo+status+definition+imbalance+statistics";
        self.fixture.path(&format!("journal/XNAS.ITCH/{DATE}.{schemas}.dbn"))
    }

    fn open_journal(&self) -> PathBuf {
        self.closed_journal().with_extension("dbn.part")
    }

    /// Waits until the journal has grown to more than the log may keep, and no further: on a crowded machine it pauses in between.
    fn wait_for_journal(&self, path: &std::path::Path) {
        let length = || fs::metadata(path).map_or(0, |metadata| metadata.len());
        let (mut before, mut grown) = (0, Instant::now());
        wait_until("the journal has the first half", || {
            let now = length();
            if std::mem::replace(&mut before, now) != now {
                grown = Instant::now();
            }
            now > 4 << 20 && grown.elapsed() > Duration::from_secs(2)
        });
    }

    fn stop(self) {
        let journal = self.journal.stop_with(Signal::Terminate).expect_code(0);
        assert!(!journal.stderr.contains("alarm"), "{}", journal.stderr);
        let _ = self.gateway.stop_with(Signal::Terminate).expect_code(0);
    }
}

fn journal_table(fixture: &GatewayFixture) -> String {
    let directory = fixture.path("journal");
    format!("\n[journal]\ndirectory = \"{}\"\nfree_bytes_min = 0\nflush_ms = 10\n", text(&directory))
}
