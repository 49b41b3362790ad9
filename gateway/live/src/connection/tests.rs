use dbn::enums::{SystemCode, rtype};
use mdgw_feeds::{book::BookLimits, channel::SchemaSet};
use mdgw_wire::identity::{ChannelId, Feed};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    runtime::{Builder, Runtime},
};

use super::*;
use crate::{
    open_sessions::{Entry, OpenSessions, SessionPhase},
    protocol::{Compression, ProtocolLimits},
    stream::{
        channel::{ChannelSource, tests::TestLog},
        place::LogPlace,
        ring::RingPosition,
    },
};

const REPLAYS_MAX: usize = 2;
const METADATA_BYTES: usize = 128;
/// A session that takes longer does not end at all.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A dataset by order without a feeder: the tests append chunks and answer requests for snapshots.
fn dataset_of(source: ChannelSource) -> Arc<Dataset> {
    Arc::new(Dataset::new("XNAS.ITCH", vec![source], 1 << 20, REPLAYS_MAX))
}

fn dataset() -> Arc<Dataset> {
    dataset_of(ChannelSource {
        id: ChannelId(1),
        feed: Feed::NasdaqItch,
        schemas: SchemaSet::MBO,
        log_directory: "/nonexistent".into(),
        books: BookLimits::default(),
        journals: None,
        symbols: None,
    })
}

fn limits() -> ConnectionLimits {
    ConnectionLimits { symbols_max: 3, queue_bytes_max: 1_000, stall: Duration::from_secs(60) }
}

fn auth(slow_reader: SlowReader) -> AuthRequest {
    AuthRequest {
        auth: String::new(),
        dataset: "XNAS.ITCH".to_owned(),
        ts_out: false,
        compression: Compression::None,
        heartbeat_interval_s: 30,
        slow_reader: Some(slow_reader),
        client: String::new(),
    }
}

fn served(dataset: &Arc<Dataset>, slow_reader: SlowReader) -> Served {
    let outgoing = Outgoing::new(Compression::None, false).unwrap();
    Served::new(
        Arc::clone(dataset),
        auth(slow_reader),
        limits(),
        outgoing,
        Arc::new(SessionProgress::new(Arc::default())),
    )
}

fn mbo(symbols: Symbols) -> SubscribeRequest {
    SubscribeRequest {
        id: "1".to_owned(),
        schema: Schemas::MBO,
        schema_name: "mbo",
        symbol_type: SymbolType::RawSymbol,
        symbols,
        start: None,
        snapshot: false,
    }
}

fn order(instrument_id: u32, order_id: u64) -> dbn::MboMsg {
    let hd = dbn::RecordHeader::new::<dbn::MboMsg>(rtype::MBO, 2, instrument_id, 1);
    dbn::MboMsg { hd, order_id, ..dbn::MboMsg::default() }
}

/// Appends a chunk as the feeder does, with the naming of the instrument if there is one.
fn push_chunk(dataset: &Dataset, naming: Option<(u32, &str)>, records: &[dbn::MboMsg]) {
    let mut chunk = Chunk::default();
    if let Some((id, symbol)) = naming {
        chunk.push(control::mapping(1, id, (SType::RawSymbol, symbol), symbol).as_ref(), Schemas::default());
        dataset.map(id, symbol);
    }
    for record in records {
        chunk.push(record.as_ref(), Schemas::MBO);
    }
    dataset.ring.push(chunk, vec![LogPlace::default()]);
}

/// Answers the oldest request for a snapshot with one order of each of its instruments. Returns the instruments.
fn answer_snapshot(dataset: &Dataset, order_id: u64, next_chunk: u64) -> Vec<u32> {
    let request = dataset.take_snapshot_request().expect("a snapshot was requested");
    let orders = request.instruments.iter().map(|id| order(*id, order_id));
    let records = orders.flat_map(|order| order.as_ref().to_vec()).collect();
    request.reply.send(Snapshot { next_chunk, records: dataset.hold(records) }).unwrap();
    request.instruments
}

/// A record in short: what it is, and the instrument, code or order that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Mapping(u32),
    Order(u32, u64),
    Error(u8),
    System(u8),
}

/// What the session sends now, without the metadata.
fn sent(served: &mut Served) -> Result<Vec<Sent>, Ending> {
    served.fill().map_err(|(ending, _)| ending)?;
    let bytes = served.outgoing.unsent().to_vec();
    served.outgoing.advance(bytes.len());
    Ok(records(&bytes))
}

fn records(bytes: &[u8]) -> Vec<Sent> {
    let mut rest = bytes.strip_prefix(b"DBN").map_or(bytes, |_| &bytes[METADATA_BYTES..]);
    let mut records = Vec::new();
    while let Some(length) = rest.first() {
        let (record, others) = rest.split_at(usize::from(*length) * 4);
        rest = others;
        let instrument_id = control::instrument_id(record);
        records.push(match record[1] {
            rtype::SYMBOL_MAPPING => Sent::Mapping(instrument_id),
            rtype::MBO => Sent::Order(instrument_id, control::u64_at(record, 16)),
            rtype::ERROR => Sent::Error(record[318]),
            rtype::SYSTEM => Sent::System(record[319]),
            other => panic!("rtype {other}"),
        });
    }
    records
}

const ACKNOWLEDGED: Sent = Sent::System(SystemCode::SubscriptionAck as u8);
const SKIPPED: Sent = Sent::Error(ErrorCode::SkippedRecordsAfterSlowReading as u8);
const INVALID: Sent = Sent::Error(ErrorCode::InvalidSubscription as u8);

#[test]
fn operators_see_what_a_session_gets_and_how_far_it_is_behind() {
    let dataset = dataset();
    let mut served = served(&dataset, SlowReader::Skip);
    let sessions = OpenSessions::default();
    let entry = Entry {
        peer: ([10, 0, 0, 9], 4_711).into(),
        key: "research".to_owned(),
        client: String::new(),
        dataset: Arc::clone(&dataset),
        began_ns: 17,
        progress: Arc::clone(&served.progress),
    };
    let listed = sessions.list(1, entry);
    let status = |served: &Served| {
        served.show_position();
        sessions.status().remove(0)
    };
    assert_eq!((status(&served).phase, status(&served).subscribed.symbols), (SessionPhase::Waiting, Some(0)));

    served.accept(Step::Subscribe(mbo(Symbols::All)));
    served.accept(Step::Start);
    let expected = Subscribed { schemas: Schemas::MBO, symbols: None, policy: SlowReader::Skip };
    assert_eq!((status(&served).phase, status(&served).subscribed), (SessionPhase::Live, expected));
    assert_eq!((status(&served).behind_bytes, status(&served).skips), (Some(0), 0));

    let bytes_before = dataset.ring.bytes_behind(0);
    push_chunk(&dataset, Some((7, "A")), &[order(7, 1)]);
    assert!(bytes_before < status(&served).behind_bytes, "a chunk that it has not read");
    sent(&mut served).unwrap();
    assert_eq!(status(&served).behind_bytes, Some(0));

    let many = vec![order(7, 1); 100];
    push_chunk(&dataset, None, &many);
    assert!(sent(&mut served).unwrap().contains(&SKIPPED), "the limit of its queue is 1,000 bytes");
    assert_eq!(status(&served).skips, 1);
    drop(listed);
    assert_eq!(sessions.status(), []);
}

#[test]
fn an_instrument_named_while_a_snapshot_is_taken_is_mapped_before_its_records() {
    let dataset = dataset();
    dataset.map(5, "A");
    let mut session = served(&dataset, SlowReader::Warn);
    session.accept(Step::Subscribe(SubscribeRequest { snapshot: true, ..mbo(Symbols::All) }));
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(5)]));
    push_chunk(&dataset, Some((6, "B")), &[order(6, 1)]);
    assert_eq!(answer_snapshot(&dataset, 1, 1), [5]);
    // The snapshot lacks the new instrument, so another one is taken.
    assert_eq!(sent(&mut session), Ok(vec![Sent::Mapping(6)]));
    assert_eq!(answer_snapshot(&dataset, 2, 1), [5, 6]);
    push_chunk(&dataset, None, &[order(6, 3)]);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Order(5, 2), Sent::Order(6, 2), Sent::Order(6, 3)]));
}

/// The snapshots of other sessions take all the room. The session's other records go on, so it does not fall behind.
#[test]
fn a_session_that_waits_for_room_for_its_snapshot_reads_on() {
    let dataset = dataset();
    dataset.map(5, "A");
    let held = dataset.hold(vec![0; 1 << 23]);
    let mut session = served(&dataset, SlowReader::Warn);
    session.accept(Step::Subscribe(SubscribeRequest { snapshot: true, ..mbo(Symbols::All) }));
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(5)]));
    assert!(dataset.has_waiting_snapshot() && dataset.take_snapshot_request().is_none());
    // More than the session may be behind.
    for order_id in 0..50 {
        push_chunk(&dataset, None, &[order(5, order_id)]);
        assert_eq!(sent(&mut session), Ok(vec![]));
    }
    push_chunk(&dataset, Some((6, "B")), &[]);
    assert_eq!(sent(&mut session), Ok(vec![]));
    drop(held);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Mapping(6)]));
    assert!(!dataset.has_waiting_snapshot());
    assert_eq!(answer_snapshot(&dataset, 99, 51), [5, 6]);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Order(5, 99), Sent::Order(6, 99)]));
    push_chunk(&dataset, None, &[order(6, 100)]);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Order(6, 100)]));
}

#[test]
fn a_skip_takes_a_pending_snapshot_again_and_names_what_was_named_meanwhile() {
    let dataset = dataset();
    dataset.map(5, "A");
    let mut session = served(&dataset, SlowReader::Skip);
    session.accept(Step::Subscribe(SubscribeRequest { snapshot: true, ..mbo(Symbols::All) }));
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(5)]));
    // The snapshot lies a chunk ahead of the session, and more records than the session may be behind follow it.
    push_chunk(&dataset, Some((6, "B")), &[order(6, 1)]);
    assert_eq!(answer_snapshot(&dataset, 1, 1), [5]);
    push_chunk(&dataset, None, &vec![order(5, 1); 20]);
    assert_eq!(sent(&mut session), Ok(vec![SKIPPED]));
    assert_eq!(sent(&mut session), Ok(vec![]));
    assert_eq!(answer_snapshot(&dataset, 2, 2), [5]);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Mapping(6)]));
    assert_eq!(answer_snapshot(&dataset, 3, 2), [5, 6]);
    push_chunk(&dataset, None, &[order(6, 4)]);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Order(5, 3), Sent::Order(6, 3), Sent::Order(6, 4)]));
}

#[test]
fn a_skip_sends_the_mappings_and_the_orders_of_the_skipped_records() {
    let dataset = dataset();
    dataset.map(5, "A");
    let mut session = served(&dataset, SlowReader::Skip);
    session.accept(Step::Subscribe(mbo(list(&["A", "B"]))));
    session.accept(Step::Start);
    let unresolved = Sent::Error(ErrorCode::SymbolResolutionFailed as u8);
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, unresolved, Sent::Mapping(5)]));
    push_chunk(&dataset, Some((6, "B")), &vec![order(6, 1); 20]);
    push_chunk(&dataset, Some((7, "C")), &vec![order(7, 1); 20]);
    assert_eq!(sent(&mut session), Ok(vec![SKIPPED, Sent::Mapping(5), Sent::Mapping(6)]));
    let mut instruments = answer_snapshot(&dataset, 2, 2);
    instruments.sort_unstable();
    assert_eq!(instruments, [5, 6]);
    push_chunk(&dataset, None, &[order(6, 3), order(7, 3)]);
    let mut after = sent(&mut session).unwrap();
    assert_eq!(after.pop(), Some(Sent::Order(6, 3)));
    after.sort_unstable_by_key(|record| format!("{record:?}"));
    assert_eq!(after, [Sent::Order(5, 2), Sent::Order(6, 2)]);
}

/// The ring has no further chunk that would report the end of the day.
#[test]
fn a_session_whose_day_ends_while_it_replays_ends_when_it_joins() {
    for (began_after_end, is_ended, expected) in [
        (false, true, Err(Ending::EndOfSession)),
        (false, false, Ok(vec![])),
        // The session waits for the next day.
        (true, true, Ok(vec![])),
    ] {
        let mut session = served(&dataset(), SlowReader::Warn);
        session.accept(Step::Start);
        assert_eq!(sent(&mut session), Ok(vec![]));
        session.began_after_end = began_after_end;
        let (sender, receiver) = mpsc::channel(1);
        session.source = Source::Replay(Replay::of(receiver));
        sender
            .try_send(ReplayItem::Joined {
                position: RingPosition { chunk: 0, first_places: vec![LogPlace::default()], is_ended },
                has_hole: false,
            })
            .unwrap();
        assert_eq!(sent(&mut session), expected, "{began_after_end} {is_ended}");
    }
}

/// The files are read elsewhere: until the answer is there, the session sends the metadata and what is due meanwhile.
#[test]
fn a_start_in_the_past_waits_for_the_oldest_event_without_a_read_of_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::new(&directory);
    // The log has lost the beginning.
    (3..6).for_each(|sequence| log.add_order(sequence));
    let dataset = dataset_of(log.source.clone());
    runtime().block_on(async {
        for (start, expected) in [(2, Sent::Error(ErrorCode::ReplayDataAgedOut as u8)), (3, ACKNOWLEDGED)] {
            let mut session = served(&dataset, SlowReader::Warn);
            // The answer of the first round would be there at once.
            session.dataset.oldest_event.forget();
            session.accept(Step::Subscribe(SubscribeRequest { start: Some(start), ..mbo(Symbols::All) }));
            session.accept(Step::Start);
            assert!(session.starting.is_some() && session.replays.is_empty(), "the answer comes later");
            let mut answers = Vec::new();
            let begin = Instant::now();
            while answers.is_empty() {
                assert!(begin.elapsed() < TIMEOUT);
                tokio::time::sleep(Duration::from_millis(1)).await;
                answers = sent(&mut session).unwrap();
            }
            assert_eq!(answers, [expected], "{start}");
        }
    });
}

#[test]
fn a_client_learns_that_a_journal_was_removed_during_its_replay() {
    let mut session = served(&dataset(), SlowReader::Warn);
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![]));
    let (sender, receiver) = mpsc::channel(1);
    session.source = Source::Replay(Replay::of(receiver));
    sender.try_send(ReplayItem::LostJournal).unwrap();
    assert_eq!(sent(&mut session), Ok(vec![Sent::Error(ErrorCode::ReplayDataAgedOut as u8)]));
    assert!(matches!(session.source, Source::Replay(_)), "the replay goes on");
}

/// Its replay lacked records, so the client's book stays wrong after it has joined the live stream.
#[test]
fn records_behind_a_replay_with_a_hole_are_marked() {
    for has_hole in [false, true] {
        let dataset = dataset();
        dataset.map(5, "A");
        let mut session = served(&dataset, SlowReader::Warn);
        session.accept(Step::Subscribe(mbo(list(&["A"]))));
        session.accept(Step::Start);
        assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(5)]));
        let (sender, receiver) = mpsc::channel(1);
        session.source = Source::Replay(Replay::of(receiver));
        sender.try_send(ReplayItem::Joined { position: dataset.ring.end(), has_hole }).unwrap();
        assert_eq!(sent(&mut session), Ok(vec![]));
        push_chunk(&dataset, None, &[order(5, 2)]);
        session.fill().unwrap();
        let flags = session.outgoing.unsent()[std::mem::offset_of!(dbn::MboMsg, flags)];
        assert_eq!(flags & dbn::flags::MAYBE_BAD_BOOK != 0, has_hole);
    }
}

/// The client chose no policy: of the schemas that are skipped by default it loses records until it is current, and of the others none.
#[test]
fn a_slow_session_of_both_kinds_of_schemas_loses_records_of_the_one_kind_alone() {
    let dataset = dataset();
    dataset.map(5, "A");
    let mut session = served(&dataset, SlowReader::Warn);
    session.auth.slow_reader = None;
    session.accept(Step::Subscribe(mbo(list(&["A"]))));
    session.accept(Step::Subscribe(SubscribeRequest {
        schema: Schemas::MBP_1,
        schema_name: "mbp-1",
        ..mbo(list(&["A"]))
    }));
    session.accept(Step::Start);
    let acknowledged = [ACKNOWLEDGED, Sent::Mapping(5)];
    assert_eq!(sent(&mut session), Ok([acknowledged, acknowledged].concat()));
    let push = |order_id: u64| {
        let mut chunk = Chunk::default();
        chunk.push(order(5, order_id).as_ref(), Schemas::MBO);
        chunk.push(order(5, order_id + 1).as_ref(), Schemas::MBP_1);
        dataset.ring.push(chunk, vec![LogPlace::default()]);
    };
    push(10);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Order(5, 10), Sent::Order(5, 11)]), "it is not behind");
    // More than half of the limit of 1,000 bytes.
    (2..6).for_each(|number| push(number * 10));
    let warned = Sent::System(SystemCode::SlowReaderWarning as u8);
    let orders = [20, 30, 40, 50].map(|order_id| Sent::Order(5, order_id));
    assert_eq!(sent(&mut session), Ok([&[warned][..], &orders, &[SKIPPED]].concat()));
    push(60);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Order(5, 60), Sent::Order(5, 61)]), "it is current again");

    (7..20).for_each(|number| push(number * 10));
    assert_eq!(sent(&mut session), Err(Ending::TooSlow), "the limit holds for the schemas of which nothing is skipped");
}

#[test]
fn an_unsubscription_ends_the_snapshot_that_was_asked_for_before_it() {
    let dataset = dataset();
    dataset.map(5, "A");
    let mut session = served(&dataset, SlowReader::Warn);
    session.accept(Step::Subscribe(SubscribeRequest { snapshot: true, ..mbo(list(&["A"])) }));
    session.accept(Step::Unsubscribe(UnsubscribeRequest {
        schema: Schemas::MBO,
        schema_name: "mbo",
        symbol_type: SymbolType::RawSymbol,
        symbols: list(&["A"]),
    }));
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(5)]));
    assert_eq!(answer_snapshot(&dataset, 1, 0), [5]);
    let unsubscribed = Sent::System(SystemCode::UnsubscribeAck as u8);
    assert_eq!(sent(&mut session), Ok(vec![Sent::Order(5, 1), unsubscribed]));
    push_chunk(&dataset, None, &[order(5, 2)]);
    assert_eq!(sent(&mut session), Ok(vec![]));
}

/// The end of an interval is announced with the time of sending, as every control record.
#[test]
fn the_end_of_an_interval_has_the_time_of_sending() {
    let dataset = dataset();
    let mut session = served(&dataset, SlowReader::Warn);
    session.accept(Step::Subscribe(SubscribeRequest {
        schema: Schemas::OHLCV_1S,
        schema_name: "ohlcv-1s",
        ..mbo(Symbols::All)
    }));
    session.accept(Step::Start);
    sent(&mut session).unwrap();
    let mut chunk = Chunk::default();
    chunk.push(control::end_of_interval(1_000_000_000, "ohlcv-1s").as_ref(), Schemas::OHLCV_1S);
    dataset.ring.push(chunk, vec![LogPlace::default()]);
    let before = now_ns();
    served_bytes(&mut session, |record| {
        assert_eq!(record[319], SystemCode::EndOfInterval as u8);
        assert!((before..=now_ns()).contains(&control::ts_event(record)));
    });
}

/// The bytes that the session sends now.
fn served_bytes(served: &mut Served, check: impl FnOnce(&[u8])) {
    served.fill().unwrap();
    check(served.outgoing.unsent());
    served.outgoing.advance(served.outgoing.unsent().len());
}

fn list(names: &[&str]) -> Symbols {
    Symbols::List(names.iter().map(|name| (*name).to_owned()).collect())
}

/// Whatever becomes of the requests: the first one's schema does not exist.
#[test]
fn symbols_beyond_the_limit_that_wait_for_the_start_are_refused() {
    let dataset = dataset();
    dataset.map(3, "C");
    let mut session = served(&dataset, SlowReader::Warn);
    let status = |names: &[&str]| Step::Subscribe(SubscribeRequest { schema: Schemas::STATUS, ..mbo(list(names)) });
    session.accept(status(&["A", "B"]));
    session.accept(status(&["C", "D"]));
    session.accept(Step::Subscribe(mbo(list(&["C"]))));
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![INVALID, INVALID, ACKNOWLEDGED, Sent::Mapping(3)]));
}

#[test]
fn symbols_that_are_subscribed_to_in_several_schemas_count_once() {
    let dataset = dataset();
    for (id, symbol) in (1..).zip(["A", "B", "C", "D"]) {
        dataset.map(id, symbol);
    }
    let in_schema = |schema, names: &[&str]| Step::Subscribe(SubscribeRequest { schema, ..mbo(list(names)) });
    let mut session = served(&dataset, SlowReader::Warn);
    // Three symbols are the limit.
    session.accept(in_schema(Schemas::MBO, &["A", "B", "C"]));
    session.accept(in_schema(Schemas::TRADES, &["A", "B", "C"]));
    session.accept(Step::Start);
    let mapped = [ACKNOWLEDGED, Sent::Mapping(1), Sent::Mapping(2), Sent::Mapping(3)];
    assert_eq!(sent(&mut session), Ok([mapped, mapped].concat()));
    session.accept(in_schema(Schemas::MBP_1, &["A", "B", "C"]));
    assert_eq!(sent(&mut session), Ok(mapped.into()));
    session.accept(in_schema(Schemas::MBP_1, &["D"]));
    assert_eq!(sent(&mut session), Ok(vec![INVALID]));
}

#[test]
fn symbols_beyond_the_limit_are_refused_request_by_request() {
    let request = |names: &[&str]| Step::Subscribe(mbo(list(names)));
    let dataset = dataset();
    for (id, symbol) in (1..).zip(["A", "B", "C", "D", "E"]) {
        dataset.map(id, symbol);
    }
    let mut session = served(&dataset, SlowReader::Warn);
    // Three symbols are the limit.
    session.accept(request(&["A", "B"]));
    session.accept(request(&["C", "D"]));
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(1), Sent::Mapping(2), INVALID]));
    session.accept(request(&["D", "E"]));
    assert_eq!(sent(&mut session), Ok(vec![INVALID]));
    session.accept(request(&["E"]));
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(5)]));
}

/// A session over a socket of the loopback, with the client's end of the socket.
async fn connect(
    dataset: &Arc<Dataset>,
    limits: ConnectionLimits,
) -> (tokio::task::JoinHandle<Ending>, TcpStream, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let (stop_sender, stop) = watch::channel(false);
    let mut protocol = Session::new(ProtocolLimits { symbols_max: 3 });
    protocol.authenticated();
    let connection = Connection {
        stream,
        lines: LineBuffer::new(128 << 10),
        protocol,
        auth: auth(SlowReader::Warn),
        dataset: Arc::clone(dataset),
        limits,
        progress: Arc::new(SessionProgress::new(Arc::default())),
        stop,
    };
    (tokio::spawn(serve(connection)), client, stop_sender)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Of the requests themselves, and of the answers to them.
#[test]
fn requests_beyond_the_limits_before_the_start_end_the_session_with_an_error() {
    for (requests, queue_bytes_max, is_refused) in
        [(WAITING_MAX + 1, 1 << 20, true), (WAITING_MAX, 1 << 20, false), (2, 1_000, false), (3, 1_000, true)]
    {
        let (received, ending) = runtime().block_on(async {
            let limits = ConnectionLimits { queue_bytes_max, ..limits() };
            let (session, mut client, _stop) = connect(&dataset(), limits).await;
            let lines = "schema=mbo|symbols=ALL_SYMBOLS|id=7\n".repeat(requests) + "start_session\n";
            client.write_all(lines.as_bytes()).await.unwrap();
            if !is_refused {
                client.shutdown().await.unwrap();
            }
            let mut received = Vec::new();
            tokio::time::timeout(TIMEOUT, client.read_to_end(&mut received)).await.expect("the session ends").unwrap();
            (records(&received), session.await.unwrap())
        });
        let expected = if is_refused { Ending::TooManyRequests } else { Ending::ClientClosed };
        assert_eq!(ending, expected, "{requests} requests");
        let errors: Vec<_> = received.iter().filter(|record| **record != ACKNOWLEDGED).collect();
        let error = [&Sent::Error(ErrorCode::InternalError as u8)];
        assert_eq!(errors, if is_refused { &error[..] } else { &[] }, "{requests} requests");
    }
}

/// The feeder has not made the replay's schemas yet, so the replay waits while the client leaves.
#[test]
fn a_replay_ends_with_its_client() {
    let directory = tempfile::tempdir().unwrap();
    let dataset = dataset_of(TestLog::new(&directory).source);
    let runtime = runtime();
    let has_ended = runtime.block_on(async {
        let (session, mut client, _stop) = connect(&dataset, limits()).await;
        client.write_all(b"schema=mbo|symbols=ALL_SYMBOLS|start=0\nstart_session\n").await.unwrap();
        let free = |replays: usize| {
            let dataset = Arc::clone(&dataset);
            async move {
                while dataset.replays.free() != replays {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, free(REPLAYS_MAX - 1)).await.expect("the replay runs");
        drop(client);
        assert_eq!(session.await.unwrap(), Ending::ClientClosed);
        tokio::time::timeout(TIMEOUT, free(REPLAYS_MAX)).await.is_ok()
    });
    // Without a wait for the replay's thread, so that a replay that does not end fails the test.
    runtime.shutdown_background();
    assert!(has_ended);
}

/// Its positions are of the old log. The client comes back, and begins with the new one.
#[test]
fn a_session_ends_with_an_error_when_the_gateway_begins_a_new_log_and_the_next_one_is_served() {
    let dataset = dataset();
    runtime().block_on(async {
        let lines = b"schema=mbo|symbols=ALL_SYMBOLS|id=7\nstart_session\n";
        let (session, mut client, _stop) = connect(&dataset, limits()).await;
        client.write_all(lines).await.unwrap();
        let mut metadata = [0; METADATA_BYTES];
        client.read_exact(&mut metadata).await.unwrap();
        dataset.logs.send_modify(|logs| logs.replacements += 1);
        let mut received = Vec::new();
        tokio::time::timeout(TIMEOUT, client.read_to_end(&mut received)).await.expect("the session ends").unwrap();
        assert_eq!(records(&received).last(), Some(&Sent::Error(ErrorCode::InternalError as u8)));
        assert_eq!(session.await.unwrap(), Ending::GatewayEnded);

        let (session, mut client, _stop) = connect(&dataset, limits()).await;
        client.write_all(lines).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(session.await.unwrap(), Ending::ClientClosed);
    });
}

/// The client shows its users what it asked for.
#[test]
fn a_mapping_that_changes_has_the_form_that_the_client_asked_for() {
    let dataset = dataset();
    dataset.map(5, "A");
    let mut session = served(&dataset, SlowReader::Warn);
    let by_id = SubscribeRequest { symbol_type: SymbolType::InstrumentId, ..mbo(list(&["5"])) };
    session.accept(Step::Subscribe(by_id));
    session.accept(Step::Start);
    assert_eq!(sent(&mut session), Ok(vec![ACKNOWLEDGED, Sent::Mapping(5)]));
    push_chunk(&dataset, Some((5, "B")), &[]);
    session.fill().unwrap();
    let mapping = session.outgoing.unsent();
    assert_eq!((mapping[1], mapping[16]), (rtype::SYMBOL_MAPPING, SType::InstrumentId as u8));
    assert_eq!((&mapping[17..19], &mapping[89..91]), (&b"5\0"[..], &b"B\0"[..]));
}

/// A plain close would tell the client that the day has ended.
#[test]
fn a_client_that_takes_nothing_sees_a_reset() {
    let source = ChannelSource { log_directory: "/nonexistent".into(), ..dataset().sources[0].clone() };
    let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![source], 1 << 26, REPLAYS_MAX));
    let ending = runtime().block_on(async {
        let limits = ConnectionLimits { queue_bytes_max: 1 << 26, stall: Duration::from_millis(200), ..limits() };
        let (session, mut client, _stop) = connect(&dataset, limits).await;
        client.write_all(b"schema=mbo|symbols=ALL_SYMBOLS\nstart_session\n").await.unwrap();
        let mut metadata = [0; METADATA_BYTES];
        client.read_exact(&mut metadata).await.unwrap();
        // More than the sockets hold.
        for _ in 0..64 {
            push_chunk(&dataset, None, &vec![order(5, 1); 4_096]);
        }
        let ending = session.await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(TIMEOUT, client.read_to_end(&mut rest)).await.expect("the connection ends");
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        ending
    });
    assert_eq!(ending, Ending::TooSlow);
}
