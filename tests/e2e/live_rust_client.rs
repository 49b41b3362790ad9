//! The official Rust client gets the records of `replay --offline` from the live gateway, through a failover of a pair too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    future::Future,
    io::ErrorKind,
    mem::offset_of,
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use databento::{
    LiveClient, Symbols,
    dbn::{
        Compression, ErrorMsg, MboMsg, Mbp1Msg, Schema, SymbolMappingMsg, SystemCode, SystemMsg,
        decode::{DbnMetadata as _, DecodeRecordRef as _, dbn::Decoder},
        enums::rtype,
        flags,
    },
    live::Subscription,
};
use mdgw_feeds::identity::Sequence;
use mdgw_tests::{
    captures::print_to_stderr,
    feeds::{self, MIDNIGHT_NS},
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text},
    http::{metric_at, wait_for_readiness},
    order_books::symbols_of_file,
    pair::log_entries,
    process::{self, Signal, TEST_TIMEOUT, wait_until},
    trading_day::{self, DATE, TradingDay},
};
use time::OffsetDateTime;

use super::{KEY, LivePair, replay_offline, serve_whole_day, start_live, start_live_with};

/// The schemas, each with the type of its records.
const SCHEMAS: [(Schema, u8); 7] = [
    (Schema::Mbo, rtype::MBO),
    (Schema::Mbp1, rtype::MBP_1),
    (Schema::Mbp10, rtype::MBP_10),
    (Schema::Trades, rtype::MBP_0),
    (Schema::Definition, rtype::INSTRUMENT_DEF),
    (Schema::Status, rtype::STATUS),
    (Schema::Imbalance, rtype::IMBALANCE),
];

#[test]
fn a_rust_client_gets_every_schema_as_offline_replay_makes_it() {
    let fixture = GatewayFixture::new();
    let (gateway, live, address) = serve_whole_day(&fixture);

    // One session with all schemas of all symbols.
    let subscriptions = SCHEMAS.map(|(schema, _)| subscription(schema, Symbols::All, 0));
    let mut received = run(Session::until_replayed(&[address], subscriptions.to_vec(), Compression::None));
    let mut all_expected = Vec::new();
    for (schema, kind) in SCHEMAS {
        let expected = records_of(&replay_offline(&fixture, schema.as_str()));
        let ours: Vec<_> = received.records.extract_if(.., |record| record[1] == kind).collect();
        assert_same_records(&ours, &expected);
        all_expected.push(expected);
    }
    assert!(received.records.is_empty(), "records of schemas that the client did not ask for");
    for id in 1..=SCHEMAS.len() {
        let acknowledgement = format!("Subscription request {id} for {} data succeeded", SCHEMAS[id - 1].0);
        assert_eq!(received.texts.iter().filter(|text| **text == acknowledgement).count(), 1, "{acknowledgement}");
    }

    // The trades of mbp-1 alone, with the book before each.
    let tbbo = vec![subscription(Schema::Tbbo, Symbols::All, 0)];
    let trades: Vec<_> =
        all_expected[1].iter().filter(|record| record[offset_of!(Mbp1Msg, action)] == b'T').cloned().collect();
    assert_same_records(&run(Session::until_replayed(&[address], tbbo, Compression::Zstd)).records, &trades);

    // Two symbols, compressed, from the time of a record in the middle of the day on.
    let mbo = &all_expected[0];
    let start = ts_event(&mbo[mbo.len() / 2]);
    let symbols: BTreeMap<u32, String> = received.mapped.into_iter().take(2).collect();
    let wanted: Vec<_> =
        mbo.iter().filter(|record| symbols.contains_key(&instrument(record)) && ts_event(record) >= start).collect();
    let names = Symbols::Symbols(symbols.values().cloned().collect());
    let subscriptions = vec![subscription(Schema::Mbo, names, start)];
    let received = run(Session::until_replayed(&[address], subscriptions, Compression::Zstd));
    assert_eq!(received.mapped, symbols);
    assert_eq!(received.records.iter().map(|record| instrument(record)).collect::<BTreeSet<_>>().len(), 2);
    assert_same_records(&received.records, &wanted.into_iter().cloned().collect::<Vec<_>>());

    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The gateway ends a session when the venue begins another one. That is not the day's end.
#[test]
fn a_client_stays_while_the_venue_begins_its_session_anew() {
    let fixture = GatewayFixture::new();
    let sessions = (0..).zip([*b"MDGWSIM001", *b"MDGWSIM002", *b"MDGWSIM003"]);
    let packets: Vec<_> = sessions
        .flat_map(|(number, name)| {
            feeds::itch_packets(feeds::itch_day(3_000, 8 + number), name, MIDNIGHT_NS + number * 60_000_000_000_000)
        })
        .collect();
    let capture = fixture.path("three.pcap");
    feeds::write_capture(&capture, feeds::DESTINATIONS[0], &packets);
    let file = fixture.path("expected.dbn");
    let offline = ["replay", "--offline", text(&capture), "--feed", "nasdaq-itch-5.0", "--date", DATE];
    let _ = process::run(offline.iter().chain(&["--schema", "mbo", "--ts-recv", "none", "-o", text(&file)]));
    let expected = records_of(&file);

    let wanted = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let gateway = fixture.gateway(&wanted, &["--date", DATE, "--ts-recv", "none"]);
    let (live, address) = start_live(&fixture);
    let (has_begun, wait_for_begin) = mpsc::channel();
    let received = thread::scope(|scope| {
        let subscriptions = [Schema::Mbo, Schema::Ohlcv1D].map(|schema| subscription(schema, Symbols::All, 0));
        let client = scope.spawn(move || {
            run(Session::until_closed(&[address], subscriptions.to_vec(), |count| {
                if count == 1 {
                    has_begun.send(()).unwrap();
                }
            }))
        });
        let line = fixture.lines[0].to_string();
        let replay = ["replay", text(&capture), "--to", &line, "--rate", "5000", "--interface", "127.0.0.1"];
        let _ = process::run(replay).expect_code(0);
        wait_for_begin.recv_timeout(TEST_TIMEOUT).unwrap();
        client.join().unwrap().records
    });
    let (bars, orders): (Vec<_>, Vec<_>) = received.into_iter().partition(|record| record[1] == rtype::OHLCV_1D);
    assert_same_records(&orders, &expected);
    let instruments: BTreeSet<_> = bars.iter().map(|bar| instrument(bar)).collect();
    assert!(!bars.is_empty() && instruments.len() == bars.len(), "more than one bar of an instrument and its day");

    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The log has lost the session's beginning, and with it the names of most instruments.
#[test]
fn symbols_that_the_log_has_lost_come_from_the_gateways_service() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 120_000);
    let options = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 2 << 20, ..GatewayOptions::itch() };
    let gateway = day.gateway(&fixture, &options);
    day.play_first_half(&fixture);
    wait_until("the log has lost its beginning", || {
        log_entries(&fixture).first().is_some_and(|entry| entry.first > Sequence(1))
    });
    let (live, address) = start_live(&fixture);
    let symbols = symbols_of_file(&day.expected);
    let (symbol, instrument_of_symbol) = symbols.iter().next().unwrap();
    let [all, one] = [Symbols::All, Symbols::Symbols(vec![symbol.clone()])].map(|symbols| {
        let subscription = Subscription::builder().symbols(symbols).schema(Schema::Mbo).build();
        thread::spawn(move || run(Session::until_closed(&[address], vec![subscription], |_| ())))
    });
    wait_until("both clients are served", || live.stderr_so_far().matches("live: session peer").count() == 2);
    day.play_second_half(&fixture);
    // A record before its mapping would fail the client.
    let [all, one] = [all, one].map(|client| client.join().unwrap());
    assert!(!all.records.is_empty() && !one.records.is_empty());
    let named: BTreeMap<String, String> = all.mapped.into_iter().map(|(id, symbol)| (symbol, id.to_string())).collect();
    assert_eq!(named, symbols);
    assert!(one.records.iter().all(|record| instrument(record).to_string() == *instrument_of_symbol));
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A client that subscribes and starts is in both lists, and no longer after it has gone.
#[test]
fn open_sessions_are_shown_to_operators() {
    let fixture = GatewayFixture::new();
    let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let _config_of_live = fixture.config(&options);
    let (gateway, control) = fixture.controlled_gateway(&options, &["--date", DATE]);
    let sessions = fixture.path("live_control");
    let (live, address) = start_live_with(&fixture, &format!("control_socket = \"{}\"\n", text(&sessions)));
    let sockets = ["--socket", text(&control), "--live", text(&sessions)];
    let shown = |command: &[&str]| process::run(command.iter().chain(&sockets)).expect_code(0).stdout;
    let is_listed = |command: &[&str]| shown(command).contains("XNAS.ITCH");
    let commands: [&[&str]; 2] = [&["top", "--once", "--interval", "10ms"], &["ha", "status"]];
    for command in commands {
        assert!(!is_listed(command), "{}", shown(command));
    }
    let mbo = Subscription::builder().symbols(Symbols::All).schema(Schema::Mbo).build();
    run(async {
        let client = start(&[address], vec![mbo], Compression::None).await;
        for command in commands {
            let expected = "XNAS.ITCH mbo of all symbols, live, warn, 0 KiB behind (0 % of the limit)";
            wait_until("the session is shown", || shown(command).contains(expected));
            let shown = shown(command);
            assert!(shown.contains(" test 127.0.0.1:"), "the key and the peer: {shown}");
        }
        drop(client);
    });
    for command in commands {
        wait_until("the session is gone", || !is_listed(command));
    }

    // A process that was killed leaves its socket: there are no clients, and that is no error.
    let _ = live.stop_with(Signal::Kill);
    assert!(sessions.exists());
    for command in commands {
        assert!(!is_listed(command));
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A key that is added is accepted after SIGHUP and not before; a key that is removed is refused, and its open session goes on. An
/// invalid file changes nothing.
#[test]
fn sighup_reads_the_keys_of_clients_again() {
    const ADDED: &str = "db-addedTESTkey0123456789abcdefg";
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (live, address) = start_live_with(&fixture, "");
    let keys = fixture.path("client_keys");
    let reload = |content: &str, answer: &str| {
        fs::write(&keys, content).unwrap();
        live.signal(Signal::HangUp);
        live.wait_for_stderr(answer);
    };
    run(async {
        let is_accepted = async |key| match log_in(&[address], key, Compression::None).await {
            Ok(_client) => true,
            Err(databento::Error::Auth(_)) => false,
            Err(error) => panic!("{error}"),
        };
        assert!(is_accepted(KEY).await && !is_accepted(ADDED).await);
        reload(&format!("test {KEY} * 10\nadded {ADDED} * 10\n"), "keys reloaded count=2");
        assert!(is_accepted(KEY).await && is_accepted(ADDED).await);

        let all = vec![subscription(Schema::Mbo, Symbols::All, 0)];
        let mut open = start(&[address], all, Compression::None).await;
        reload(&format!("added {ADDED} * 10\n"), "keys reloaded count=1");
        assert!(!is_accepted(KEY).await && is_accepted(ADDED).await);
        day.play_first_half(&fixture);
        let mut session = Session::default();
        while session.records.is_empty() {
            assert!(session.receive(&mut open).await, "the session of the removed key has ended");
        }

        reload("added too-short * 10\n", "reload failed, the keys stay as they were");
        assert!(!is_accepted(KEY).await && is_accepted(ADDED).await);
    });
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// The gateway of a pair is killed and its `mdgw live` is not: clients must learn that, since they could go on at the other gateway.
/// A gateway that comes back is served again.
#[test]
fn clients_are_sent_away_when_the_gateway_has_ended_and_served_when_it_is_back() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let (live, address) = start_live_with(&fixture, "");
    day.play_first_half(&fixture);
    let all = || vec![subscription(Schema::Mbo, Symbols::All, 0)];
    let ending = run(async {
        let mut client = start(&[address], all(), Compression::None).await;
        let mut session = Session::default();
        while session.records.is_empty() {
            assert!(session.receive(&mut client).await, "the session goes on");
        }
        let _ = gateway.stop_with(Signal::Kill);
        while let Some(record) = client.next_record().await.unwrap() {
            if let Some(error) = record.get::<ErrorMsg>() {
                return error.err().unwrap().to_owned();
            }
        }
        panic!("the connection was closed without an error");
    });
    assert_eq!(ending, "The gateway has ended");
    // Clients with several addresses take the first one that accepts a connection.
    wait_until("the kernel refuses connections", || {
        TcpStream::connect(address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });

    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    run(async {
        while log_in(&[address], KEY, Compression::None).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Official clients take the first address that accepts a connection: one without a gateway would keep them from the other. The day's
/// end is no reason to send them away. Operators see a closed port.
#[test]
fn a_start_without_a_gateway_accepts_no_client_until_one_runs_or_the_day_is_over() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    day.play_first_half(&fixture);
    let _ = gateway.stop_with(Signal::Kill);
    let admin = free_address();
    let with_admin = format!("admin_listen = \"{admin}\"\n");
    let accepting = || metric_at(admin, "mdgw_live_accepting");
    let alarms = || metric_at(admin, "mdgw_alarms_total{alarm=\"live-closed\"}");
    let (live, address) = start_live_with(&fixture, &with_admin);
    let line = live.wait_for_stderr("live: no gateway writes the logs, the port is closed");
    assert!(line.contains("alarm=\"live-closed\""), "{line}");
    let refused = TcpStream::connect(address).map_err(|error| error.kind());
    assert_eq!(refused.map(drop), Err(ErrorKind::ConnectionRefused));
    wait_for_readiness(admin, 503, "no gateway writes the logs, the port is closed");
    assert_eq!((accepting(), alarms()), (0.0, 1.0));

    // Another process has taken the port.
    let other = TcpListener::bind(address).unwrap();
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    live.wait_for_stderr("live: cannot listen again, trying on");
    wait_for_readiness(admin, 503, "the port is not open yet; see the log");
    assert_eq!((accepting(), alarms()), (0.0, 2.0));
    drop(other);
    let line = live.wait_for_stderr("live: the port is open again");
    assert!(line.contains("ends=\"live-closed\""), "{line}");
    wait_for_readiness(admin, 200, "running");
    wait_until("the port is shown as open", || accepting() == 1.0);
    let _client = run(log_in(&[address], KEY, Compression::None)).unwrap();
    day.play_second_half(&fixture);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    // In the middle of the day the port would be closed after 4.5 seconds.
    thread::sleep(Duration::from_secs(6));
    assert_eq!((accepting(), alarms()), (1.0, 2.0));
    wait_for_readiness(admin, 200, "running");
    let _ = live.stop_with(Signal::Terminate).expect_code(0);

    let (live, address) = start_live_with(&fixture, &with_admin);
    wait_until("the port is open", || TcpStream::connect(address).is_ok());
    wait_for_readiness(admin, 200, "running");
    wait_until("the port is shown as open", || accepting() == 1.0);
    let all = vec![subscription(Schema::Mbo, Symbols::All, 0)];
    assert!(!run(Session::until_replayed(&[address], all, Compression::None)).records.is_empty());
    let _ = live.stop_with(Signal::Terminate).expect_code(0);
}

/// The client has a list of both gateways. Its own reconnects ask for nothing from before, so a new session does, with the event
/// time of the last record that the client has.
#[test]
fn a_rust_client_goes_on_at_the_other_address_of_its_list_after_its_gateway_was_killed() {
    let mut pair = LivePair::start(["127.0.0.1", "127.0.0.1"]);
    let expected = records_of(&pair.first_fixture().path("expected.dbn"));
    let (addresses, third) = (pair.addresses, expected.len() / 3);
    let (has_third, wait_for_third) = mpsc::channel();
    let (received, first_session) = thread::scope(|scope| {
        let client = scope.spawn(move || {
            let all = |start| vec![subscription(Schema::Mbo, Symbols::All, start)];
            let first = Session::until_closed(&addresses, all(0), move |count| {
                if count == third {
                    has_third.send(()).unwrap();
                }
            });
            let mut received = run(first).records;
            let last_event = ts_event(received.last().unwrap());
            let again = received.iter().rev().take_while(|record| ts_event(record) == last_event).count();
            let first_session = received.len();
            let second = run(Session::until_closed(&addresses, all(last_event), |_| {})).records;
            // `start` is inclusive: the records of that time come again.
            assert_same_records(&second[..again], &received[first_session - again..]);
            received.extend_from_slice(&second[again..]);
            (received, first_session)
        });
        pair.play_first_half();
        wait_for_third.recv_timeout(TEST_TIMEOUT).unwrap();
        pair.kill_first_and_play_second_half();
        client.join().unwrap()
    });
    assert!(first_session < expected.len(), "the first session had the whole day");
    assert_same_records(&received, &expected);
    pair.stop();
}

/// The restarted gateway takes its peer's state, and the messages of its absence from its peer's log.
#[test]
fn a_restart_of_the_gateway_in_mid_session_leaves_no_hole_for_a_client() {
    let mut pair = LivePair::start(["127.0.0.1", "127.0.0.1"]);
    let expected = records_of(&replay_offline(pair.first_fixture(), "mbp-1"));
    let packets = feeds::capture_packets(&pair.first_fixture().path("morning.pcap"));
    let (early, missed) = packets.split_at(packets.len() / 2);
    let captures = [("early.pcap", early), ("missed.pcap", missed)].map(|(name, packets)| {
        let path = pair.first_fixture().path(name);
        feeds::write_capture(&path, feeds::DESTINATIONS[0], packets);
        path
    });
    let address = pair.addresses[0];
    let (has_some, wait_for_some) = mpsc::channel();
    let received = thread::scope(|scope| {
        let client = scope.spawn(move || {
            let subscriptions = vec![subscription(Schema::Mbp1, Symbols::All, 0)];
            run(Session::until_closed(&[address], subscriptions, |count| {
                if count == 1 {
                    has_some.send(()).unwrap();
                }
            }))
        });
        trading_day::play(&captures[0], pair.first_fixture());
        wait_for_some.recv_timeout(TEST_TIMEOUT).unwrap();
        pair.pair.gateways.kill(1);
        pair.pair.wait_until_leads(2);
        trading_day::play(&captures[1], pair.first_fixture());
        pair.pair.start(1);
        pair.pair.wait_until_eligible(1);
        pair.day.play_second_half(pair.first_fixture());
        client.join().unwrap().records
    });
    assert_same_records(&received, &expected);
    pair.stop();
}

/// What a session brought.
#[derive(Default)]
pub(crate) struct Session {
    /// Data records, header and body.
    pub(crate) records: Vec<Vec<u8>>,
    /// Symbols of instruments.
    mapped: BTreeMap<u32, String>,
    /// Texts of system records.
    texts: Vec<String>,
    replays_completed: usize,
}

impl Session {
    /// Until each replay has caught up. Then the client leaves, and reads on until the server has closed the connection.
    pub(crate) async fn until_replayed(
        addresses: &[SocketAddrV4],
        subscriptions: Vec<Subscription>,
        compression: Compression,
    ) -> Self {
        let mut session = Self::default();
        let replays = subscriptions.len();
        let mut client = start(addresses, subscriptions, compression).await;
        while session.replays_completed < replays {
            assert!(session.receive(&mut client).await, "the server closed the connection");
        }
        client.close().await.unwrap();
        while session.receive(&mut client).await {}
        session
    }

    /// Until the session ends or the server is gone. `on_record` gets the number of data records so far.
    async fn until_closed(
        addresses: &[SocketAddrV4],
        subscriptions: Vec<Subscription>,
        on_record: impl Fn(usize),
    ) -> Self {
        let mut session = Self::default();
        let mut client = start(addresses, subscriptions, Compression::None).await;
        let mut count = 0;
        while session.receive(&mut client).await {
            if session.records.len() > count {
                count = session.records.len();
                on_record(count);
            }
        }
        session
    }

    /// Takes one record. Returns whether there was one.
    async fn receive(&mut self, client: &mut LiveClient) -> bool {
        let record = match client.next_record().await {
            Ok(Some(record)) => record,
            Ok(None) | Err(databento::Error::Io(_)) => return false,
            Err(error) => panic!("{error}"),
        };
        if let Some(error) = record.get::<ErrorMsg>() {
            panic!("error record: {error:?}");
        } else if let Some(system) = record.get::<SystemMsg>() {
            self.texts.push(system.msg().unwrap().to_owned());
            self.replays_completed += usize::from(system.code().is_ok_and(|code| code == SystemCode::ReplayCompleted));
        } else if let Some(mapping) = record.get::<SymbolMappingMsg>() {
            self.mapped.insert(mapping.hd.instrument_id, mapping.stype_out_symbol().unwrap().to_owned());
        } else {
            let bytes = record.as_ref().to_vec();
            assert!(self.mapped.contains_key(&instrument(&bytes)), "a record before its mapping: {record:?}");
            self.records.push(bytes);
        }
        true
    }
}

/// A process that is being killed may accept a connection and reset it. So the client tries its list again.
async fn start(addresses: &[SocketAddrV4], subscriptions: Vec<Subscription>, compression: Compression) -> LiveClient {
    loop {
        match try_start(addresses, &subscriptions, compression).await {
            Ok(client) => return client,
            Err(databento::Error::Io(error)) => print_to_stderr(&format!("the client tries its list again: {error}")),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn try_start(
    addresses: &[SocketAddrV4],
    subscriptions: &[Subscription],
    compression: Compression,
) -> databento::Result<LiveClient> {
    let mut client = log_in(addresses, KEY, compression).await?;
    for subscription in subscriptions {
        client.subscribe(subscription.clone()).await?;
    }
    let metadata = client.start().await?;
    assert_eq!((metadata.dataset.as_str(), metadata.schema), ("XNAS.ITCH", None));
    Ok(client)
}

async fn log_in(addresses: &[SocketAddrV4], key: &str, compression: Compression) -> databento::Result<LiveClient> {
    let addresses: Vec<_> = addresses.iter().copied().map(SocketAddr::V4).collect();
    let builder = LiveClient::builder().addr(addresses.as_slice()).await?.key(key)?;
    builder.dataset("XNAS.ITCH").compression(compression).build().await
}

pub(crate) fn subscription(schema: Schema, symbols: Symbols, start_ns: u64) -> Subscription {
    let start = OffsetDateTime::from_unix_timestamp_nanos(start_ns.into()).unwrap();
    Subscription::builder().symbols(symbols).schema(schema).start(start).build()
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, work).await }).expect("the session goes on")
}

pub(crate) fn records_of(path: &Path) -> Vec<Vec<u8>> {
    let mut decoder = Decoder::from_file(path).unwrap();
    assert_eq!(decoder.metadata().version, 3);
    let mut records = Vec::new();
    while let Some(record) = decoder.decode_record_ref().unwrap() {
        records.push(record.as_ref().to_vec());
    }
    records
}

fn assert_same_records(ours: &[Vec<u8>], expected: &[Vec<u8>]) {
    let differs = ours.iter().zip(expected).position(|(ours, expected)| ours != expected);
    if let Some(index) = differs {
        panic!("record {index} differs:\n{:02x?}\n{:02x?}", ours[index], expected[index]);
    }
    assert_eq!(ours.len(), expected.len());
    assert!(!ours.is_empty());
}

/// Asserts that records of mbo lack some in the middle, and that those behind the hole are marked, and equal but for that.
pub(crate) fn expect_one_hole(received: &[Vec<u8>], expected: &[Vec<u8>]) {
    let at = offset_of!(MboMsg, flags);
    let is_marked = |record: &Vec<u8>| record[at] & flags::MAYBE_BAD_BOOK != 0;
    let whole = received.iter().take_while(|record| !is_marked(record)).count();
    assert!(whole > 1_000 && received.len() < expected.len(), "{whole} of {}", received.len());
    assert!(received[..whole] == expected[..whole], "the records in front of the hole");
    assert!(received[whole..].iter().all(is_marked));
    let mut behind = received[whole..].to_vec();
    behind.iter_mut().for_each(|record| record[at] &= !flags::MAYBE_BAD_BOOK);
    assert!(!behind.is_empty() && expected.ends_with(&behind), "the records behind the hole");
}

fn instrument(record: &[u8]) -> u32 {
    u32::from_le_bytes(record[4..8].try_into().unwrap())
}

fn ts_event(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[8..16].try_into().unwrap())
}
