//! Copies of states and logs over loopback, and the ways in which a copy can fail.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use mdgw_election::{auth::Nonce, identity::Incarnation};
use mdgw_engine::{
    pipeline::{ChannelMessage, PeerGapRequests},
    publish::LogSink,
};
use mdgw_feeds::{book::BookLimits, channel::Datagram, transport::moldudp64::PacketWriter};
use mdgw_publog::{LogOptions, OpenedLog};
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator};
use mdgw_wire::{
    frame::{FrameMeta, FrameSink},
    identity::{ChannelId, Feed, Line, Sequence, Session},
    published::position::StreamPosition,
    time::{MonoNs, TradingDate, UnixNs},
};

use super::*;
use crate::{
    pair_link::{
        ChannelLogs, ChannelSender, PairEndpoints, PairLink, PairLinkConfig, PairParts, PeerEndpoint, fetch_log,
        framing::LinkStream,
        message::{LogRequest, LoggedEntry},
    },
    standby::InputHistory,
};

const CHANNEL: ChannelId = ChannelId(5);
const TIMEOUT: Duration = Duration::from_secs(60);

fn silence_limit() -> SilenceLimit {
    SilenceLimit::new(TIMEOUT, TIMEOUT)
}

struct DiscardSink;

impl FrameSink for DiscardSink {
    fn frame(&mut self, _: &FrameMeta, _: u16, _: &[u8]) {}
    fn covered_through(&mut self, _: Sequence) {}
    fn session(&mut self, _: Session, _: Sequence) {}
    fn end_of_session(&mut self) {}
}

fn config() -> ChannelConfig {
    let books = BookLimits { instruments_max: 9_000, orders_max: 20_000, levels_max: 20_000, ..BookLimits::default() };
    ChannelConfig { books, ..ChannelConfig::new(CHANNEL, Feed::NasdaqItch) }
}

/// The generator's next messages, each in a packet of its own.
fn feed(channel: &mut Channel, generator: &mut ItchGenerator, count: u64) {
    let (mut message, mut packet) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let first = Sequence(generator.generated() + 1);
        assert!(generator.next_message(&mut message).is_some());
        packet.clear();
        let mut writer = PacketWriter::begin(&mut packet, [b'1'; 10], first, usize::MAX);
        assert!(writer.push(&message));
        writer.finish();
        let datagram = Datagram { line: Line::A, bytes: &packet, ts_recv: UnixNs(1_548_858_600_000_000_000) };
        channel.accept(datagram, MonoNs(1), &mut DiscardSink);
    }
}

fn identity(node: u8) -> LinkIdentity {
    LinkIdentity { node, incarnation: Incarnation(node.into()) }
}

fn free_address() -> SocketAddrV4 {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
    address
}

fn key() -> SharedKey {
    SharedKey::new(&[7; 32])
}

/// The link of a donor with that channel. Each slice request also feeds further messages to the channel.
fn donor_link(listen: SocketAddrV4, channel: &Arc<Mutex<(Channel, ItchGenerator)>>) -> PairLink {
    let channel = Arc::clone(channel);
    let channels = ChannelSender::new(move |id, message| {
        let ChannelMessage::CopySlice(turn) = message else { return false };
        let (channel, generator) = &mut *channel.lock().unwrap();
        if id != CHANNEL {
            return false;
        }
        turn.run(channel);
        feed(channel, generator, 3);
        true
    });
    link(listen, channels, ChannelLogs::default())
}

fn link(listen: SocketAddrV4, channels: ChannelSender, logs: ChannelLogs) -> PairLink {
    let peers = vec![PeerEndpoint { node: None, address: free_address() }];
    let endpoints = PairEndpoints { listen, peers, key: key(), period_ns: 5_000_000 };
    let parts = PairParts {
        status_table: Arc::default(),
        groups: BTreeMap::new(),
        logs,
        peer_gap_requests: Arc::new(PeerGapRequests::new(1)),
        history: Arc::new(InputHistory::new([], 0)),
        channels,
    };
    PairLink::start(PairLinkConfig { identity: identity(2), endpoints }, parts).unwrap()
}

#[test]
fn a_live_channel_is_copied_over_a_link_repeatedly() {
    let day = || {
        ItchGenerator::new(ItchDay {
            stock_count: 200,
            live_orders: 5_000,
            message_count: 100_000,
            ..ItchDay::default()
        })
    };
    let mut generator = day();
    let mut channel = Channel::new(config());
    feed(&mut channel, &mut generator, 20_000);
    let channel = Arc::new(Mutex::new((channel, generator)));
    let listen = free_address();
    let _link = donor_link(listen, &channel);

    // A joiner with another key receives nothing.
    let refused = fetch_copy(listen, identity(1), SharedKey::new(&[8; 32]), config(), &mut silence_limit());
    assert!(matches!(refused, Err(CopyError::Io(_) | CopyError::Link(_))), "{refused:?}");
    for _ in 0..2 {
        let copied = fetch_copy(listen, identity(1), key(), config(), &mut silence_limit()).unwrap();
        let (_, next) = copied.position().unwrap();
        assert!(next > Sequence(20_000));
        let (mut reference, mut generator) = (Channel::new(config()), day());
        feed(&mut reference, &mut generator, next.0 - 1);
        assert_eq!(copied.orders(&|_| true), reference.orders(&|_| true), "the state before {}", next.0);
    }
}

/// Acts as a donor: accepts one connection, waits for a copy request, and sends `messages`. Returns its address.
fn scripted_donor(messages: Vec<LinkMessage>) -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { unreachable!() };
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut stream = LinkStream::new(key(), identity(2), Nonce([9; 16]));
        socket.write_all(&stream.hello()).unwrap();
        let mut bytes = [0; 1_024];
        while !matches!(stream.next_message(), Ok(Some(LinkMessage::CopyRequest { channel: CHANNEL }))) {
            let count = socket.read(&mut bytes).unwrap();
            stream.push(&bytes[..count]);
        }
        for message in messages {
            socket.write_all(&stream.seal(&message).unwrap()).unwrap();
        }
        // Close only after the joiner has received everything.
        let _closed = socket.shutdown(std::net::Shutdown::Write);
        while socket.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    address
}

#[test]
fn a_donor_that_dies_damages_or_refuses_yields_no_copy() {
    let mut channel = Channel::new(config());
    let mut generator = ItchGenerator::new(ItchDay { stock_count: 50, live_orders: 500, ..ItchDay::default() });
    feed(&mut channel, &mut generator, 3_000);
    assert!(channel.begin_copy(mdgw_feeds::channel::CopyBuffer::new()).is_none());
    let mut slices = Vec::new();
    let mut step = mdgw_feeds::channel::CopyStep::More;
    while step == mdgw_feeds::channel::CopyStep::More {
        let mut slice = Vec::with_capacity(mdgw_feeds::channel::copy::SLICE_BYTES_MAX);
        step = channel.copy_slice(&mut slice);
        if !slice.is_empty() {
            slices.push(slice);
        }
    }
    let slice_messages = |slices: &[Vec<u8>]| -> Vec<LinkMessage> {
        let numbered = (0..).zip(slices);
        numbered
            .map(|(number, bytes)| LinkMessage::CopySlice { channel: CHANNEL, number, bytes: bytes.clone() })
            .collect()
    };
    let end = |slices: usize, checksum: u32, fault| {
        LinkMessage::CopyEnd(CopyEnd { channel: CHANNEL, fault, slices: u32::try_from(slices).unwrap(), checksum })
    };
    let all = slices.iter().fold(0, |checksum, slice| crc32c::crc32c_append(checksum, slice));
    let whole = [slice_messages(&slices), vec![end(slices.len(), all, None)]].concat();
    let take = |messages| fetch_copy(scripted_donor(messages), identity(1), key(), config(), &mut silence_limit());
    let copied = take(whole.clone()).unwrap();
    assert_eq!(copied.orders(&|_| true), channel.orders(&|_| true), "the control");

    let half = take(whole[..whole.len() / 2].to_vec());
    assert!(matches!(&half, Err(CopyError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof), "{half:?}");
    let without_one = take([&whole[..1], &whole[2..]].concat());
    assert!(matches!(without_one, Err(CopyError::Damaged)));
    let changed = take([slice_messages(&slices), vec![end(slices.len(), all ^ 1, None)]].concat());
    assert!(matches!(changed, Err(CopyError::Damaged)));
    let refused = take(vec![end(0, 0, Some(CopyFault::BookTooDeep))]);
    assert!(matches!(refused, Err(CopyError::Fault(CopyFault::BookTooDeep))));
    // The kernel accepts connections even for a stopped process.
    let stopped = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = stopped.local_addr().unwrap() else { unreachable!() };
    let short = &mut SilenceLimit::new(Duration::from_millis(50), TIMEOUT);
    let silent = fetch_copy(address, identity(1), key(), config(), short);
    assert!(matches!(&silent, Err(error @ CopyError::Unreachable(_)) if !error.is_transient()), "{silent:?}");
    assert!(half.is_err_and(|error| error.is_transient()) && changed.is_err_and(|error| !error.is_transient()));
    let early = take(vec![end(0, 0, None)]);
    assert!(matches!(early, Err(CopyError::Fault(CopyFault::Incomplete))));
}

fn session(restart: u32) -> Session {
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_190_130).unwrap(), restart }
}

/// A log with these sessions, which have so many messages; each message has an entry of its own.
fn write_log(directory: &Path, sessions: &[(u32, u64)]) {
    let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(directory, CHANNEL.0) };
    let OpenedLog { writer, mut maintenance, .. } = mdgw_publog::open(options, 1).unwrap();
    let mut sink = LogSink::new(writer);
    for (restart, messages) in sessions {
        sink.session(session(*restart), Sequence(1));
        for sequence in 1..=*messages {
            let mut record = [0; 80];
            record[0] = 20;
            sink.frame(&FrameMeta::message(Sequence(sequence), UnixNs(1), 0), 1, &record);
            sink.flush();
            maintenance.run_once(1);
        }
    }
}

#[test]
fn entries_of_a_log_are_fetched_from_the_end_of_the_requesters_log_on() {
    let directory = tempfile::tempdir().unwrap();
    write_log(directory.path(), &[(0, 500), (1, 3_000)]);
    let listen = free_address();
    let logs = ChannelLogs::of([(CHANNEL, directory.path().to_owned())]);
    let _link = link(listen, ChannelSender::new(|_, _| false), logs);
    let fetch = |channel, from: Option<(u32, u64)>, messages_max| {
        let from = from.map(|(restart, sequence)| StreamPosition::at(session(restart), Sequence(sequence)));
        let mut fetched = Vec::new();
        let mut accept = |of: Session, entry: &LoggedEntry| fetched.push((of.restart, entry.first.0, entry.next.0));
        let request = LogRequest { channel, from, messages_max };
        fetch_log(listen, identity(1), key(), request, &mut silence_limit(), &mut accept)?;
        Ok::<_, CopyError>(fetched)
    };
    for (from, messages_max, first) in [
        (Some((1, 2_000)), 5_000, (1, 2_000)),
        (Some((1, 2_000)), 500, (1, 2_501)),
        (Some((1, 3_001)), 5_000, (1, 3_001)),
        (Some((0, 400)), 5_000, (0, 400)),
        (Some((0, 400)), 3_101, (1, 1)),
        (Some((0, 400)), 500, (1, 2_501)),
        (None, 5_000, (1, 1)),
        (None, 700, (1, 2_301)),
    ] {
        // The threads of earlier answers may not have ended yet: then the request is refused.
        let mut fetched = (0..1_000).find_map(|_| fetch(CHANNEL, from, messages_max).ok()).unwrap();
        // The end of the first session covers nothing.
        fetched.retain(|(_, first, next)| first < next);
        // The entry before the first one may hold a part of it.
        let all = (1..=500).map(|sequence| (0, sequence)).chain((1..=3_000).map(|sequence| (1, sequence)));
        let before = (first.0, u64::max(first.1, 2) - 1);
        let expected: Vec<_> = all.filter(|entry| *entry >= before).map(|(of, next)| (of, next, next + 1)).collect();
        assert!(fetched == expected, "{from:?} {messages_max}: {:?} to {:?}", fetched.first(), fetched.last());
    }
    let unknown = fetch(ChannelId(9), None, 1);
    assert!(matches!(unknown, Err(CopyError::Io(_))), "{unknown:?}");
}

/// Acts as a donor whose link runs and whose channel hangs: it sends positions on each connection, and never a part of an answer.
fn donor_that_never_answers() -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { unreachable!() };
    thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut stream = LinkStream::new(key(), identity(2), Nonce::random().unwrap());
                socket.write_all(&stream.hello()).unwrap();
                let mut bytes = [0; 1_024];
                let count = socket.read(&mut bytes).unwrap();
                stream.push(&bytes[..count]);
                let _request = stream.next_message();
                let positions = LinkMessage::Positions(Vec::new());
                while stream.seal(&positions).is_some_and(|sealed| socket.write_all(&sealed).is_ok()) {
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
    });
    address
}

#[test]
fn all_requests_together_wait_for_a_silent_donor_no_longer_than_the_limit() {
    let (silence_max, total) = (Duration::from_millis(200), Duration::from_millis(300));
    // The kernel accepts connections even for a stopped process.
    let stopped = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(stopped_at) = stopped.local_addr().unwrap() else { unreachable!() };
    for (donor, is_reached) in [(stopped_at, false), (donor_that_never_answers(), true)] {
        let mut silence_limit = SilenceLimit::new(silence_max, total);
        let begun = Instant::now();
        let mut requests = 0;
        while !silence_limit.is_exhausted() {
            let request = LogRequest { channel: CHANNEL, from: None, messages_max: 1 };
            let outcome = if requests % 2 == 0 {
                fetch_copy(donor, identity(1), key(), config(), &mut silence_limit).map(|_| ())
            } else {
                fetch_log(donor, identity(1), key(), request, &mut silence_limit, &mut |_, _| {})
            };
            let is_io = matches!(&outcome, Err(CopyError::Io(_)));
            assert!(is_io == is_reached && outcome.is_err(), "{outcome:?}");
            requests += 1;
        }
        // A request more may be cut short by the clock.
        assert!((2..=3).contains(&requests), "{requests} requests");
        let waited = begun.elapsed();
        assert!(waited >= total && waited < total * 10, "{waited:?}");
    }
}

/// A slow donor spends nothing of the limit while its answers succeed.
#[test]
fn requests_that_succeed_are_no_silence() {
    let directory = tempfile::tempdir().unwrap();
    write_log(directory.path(), &[(0, 5)]);
    let listen = free_address();
    let logs = ChannelLogs::of([(CHANNEL, directory.path().to_owned())]);
    let _link = link(listen, ChannelSender::new(|_, _| false), logs);
    let mut silence_limit = SilenceLimit::new(TIMEOUT, TIMEOUT);
    let slow = &mut |_: Session, _: &LoggedEntry| thread::sleep(Duration::from_millis(2));
    let request = LogRequest { channel: CHANNEL, from: None, messages_max: 100 };
    fetch_log(listen, identity(1), key(), request, &mut silence_limit, slow).unwrap();
    let left = format!("{silence_limit:?}");
    assert!(left.contains(&format!("left: {TIMEOUT:?}")), "{left}");
}
