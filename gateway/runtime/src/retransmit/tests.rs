//! Requests and answers over loopback.

use mdgw_engine::publish::LogSink;
use mdgw_feeds::{
    book::BookLimits,
    frame::{FrameMeta, FrameSink},
    identity::{Feed, Sequence, Session},
    published::{packet::parse_packet, tag::TagPolicy},
    time::{TradingDate, UnixNs},
};
use mdgw_publog::{LogOptions, OpenedLog, Retention, SegmentMaintenance};

use super::*;

struct ServiceFixture {
    directory: tempfile::TempDir,
    log: LogSink,
    maintenance: SegmentMaintenance,
    service: RetransmissionService,
    client: UdpSocket,
    now: MonoNs,
    /// What every packet of an answer must fulfil.
    tags: TagPolicy,
}

const NOW: UnixNs = UnixNs(1_600_000_000_000_000_000);
const GROUP: GroupId = GroupId(2);
const CHANNEL: ChannelId = ChannelId(3);
const NONCE: u64 = 0x1234_5678_9abc_def0;

fn session(restart: u32) -> Session {
    Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(20_230_822).unwrap(), restart }
}

fn limits() -> RetransmissionLimits {
    RetransmissionLimits {
        allowed: vec!["127.0.0.0/8".parse().unwrap()],
        requests_per_second: 1_000,
        bytes_per_second: 1_000_000,
        snapshot_bytes_per_second: 1_000_000,
        packets_per_request_max: 100,
        requesters_max: 16,
    }
}

impl ServiceFixture {
    fn new(limits: RetransmissionLimits) -> Self {
        Self::with_tags(limits, TagPolicy::default())
    }

    fn with_tags(limits: RetransmissionLimits, tags: TagPolicy) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let retention = Retention { bytes_max: 256 << 10, age_ns_max: None, protected_bytes_max: 256 << 10 };
        let options = LogOptions {
            segment_bytes: 64 << 10,
            private_bytes: 64 << 10,
            retention,
            ..LogOptions::new(directory.path(), CHANNEL.0)
        };
        let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, NOW.0).unwrap();
        let mut log = LogSink::new(writer);
        log.begin(NOW);
        log.session(session(0), Sequence(1));
        let served = ServedChannel {
            group: GROUP,
            channel: CHANNEL,
            name: "one".to_owned(),
            log_directory: directory.path().to_owned(),
            frame_bytes_max: 1_408,
            tag_key: tags.keys.first().cloned(),
            fence: Arc::new(Fence::standalone(Epoch(9))),
            epochs: Arc::new(KnownEpochs::new(Epoch(9), 1)),
            books: BookLimits::default(),
            initial: None,
        };
        let config = RetransmissionConfig { listen: "127.0.0.1:0".parse().unwrap(), snapshots: false, limits };
        let service = RetransmissionService::new(&config, vec![served], &Arc::default()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_nonblocking(true).unwrap();
        Self { directory, log, maintenance, service, client, now: MonoNs(1_000_000_000), tags }
    }

    /// Writes messages of this range to the log, each from its own datagram and with one record of that type.
    fn messages(&mut self, range: Range<u64>, record_type: u8) {
        for sequence in range {
            self.maintenance.run_once(NOW.0);
            let mut record = [0; 520];
            (record[0], record[1]) = (130, record_type);
            self.frame(sequence, 1, &record);
            self.log.flush();
        }
    }

    fn frame(&mut self, sequence: u64, record_count: u16, body: &[u8]) {
        self.log.frame(&FrameMeta::message(Sequence(sequence), NOW, 0), record_count, body);
    }

    fn send_request(&mut self, kind: RequestKind, session: Option<Session>, first: u64, next: u64) -> Vec<String> {
        let request = ServiceRequest {
            kind,
            group: GROUP,
            channel: CHANNEL,
            session,
            first: Sequence(first),
            next: Sequence(next),
            nonce: NONCE,
        };
        self.send_raw(zerocopy::IntoBytes::as_bytes(&request.to_packet()))
    }

    /// Sends a request and returns the answer, one text per packet: `#restart [first,next) flags frames`.
    fn send_raw(&mut self, request: &[u8]) -> Vec<String> {
        self.client.send_to(request, self.service.local_address().unwrap()).unwrap();
        while self.service.turn(self.now).unwrap() {}
        let mut texts = Vec::new();
        let mut datagram = [0; 2_048];
        while let Ok(length) = self.client.recv(&mut datagram) {
            assert_eq!(self.tags.check(TagUse::Answer { nonce: NONCE }, &datagram[..length]), Ok(()));
            let packet = parse_packet(&datagram[..length]).unwrap();
            assert_eq!(packet.is_tagged, !self.tags.keys.is_empty());
            let meta = packet.meta;
            assert_eq!((meta.group, meta.channel, meta.epoch), (GROUP, CHANNEL, Epoch(9)));
            assert!(meta.flags.contains(PacketFlags::RETRANSMISSION));
            let names =
                [(PacketFlags::HEARTBEAT, 'h'), (PacketFlags::SNAPSHOT, 's'), (PacketFlags::END_OF_SESSION, 'e')];
            let flags: String =
                names.iter().filter(|(flag, _)| meta.flags.contains(*flag)).map(|(_, letter)| letter).collect();
            let (restart, count) = (meta.session.restart, packet.frame_count);
            texts.push(format!("#{restart} [{},{}) {flags}{count}", meta.first.0, meta.next.0));
        }
        texts
    }
}

const TRADE: u8 = 0;

#[test]
fn a_range_request_returns_the_entries_that_cover_it_and_an_end_packet() {
    let mut fixture = ServiceFixture::new(limits());
    fixture.messages(1..10, TRADE);
    let answer = fixture.send_request(RequestKind::Range, Some(session(0)), 4, 7);
    assert_eq!(answer, ["#0 [4,5) 1", "#0 [5,6) 1", "#0 [6,7) 1", "#0 [1,10) h0"]);
    let answer = fixture.send_request(RequestKind::Range, None, 9, 50);
    assert_eq!(answer, ["#0 [9,10) 1", "#0 [1,10) h0"]);
    for (first, next) in [(10, 20), (3, 3)] {
        assert_eq!(fixture.send_request(RequestKind::Range, None, first, next), ["#0 [1,10) h0"], "[{first},{next})");
    }
}

#[test]
fn every_packet_of_an_answer_has_a_tag_within_the_limits() {
    let tags = TagPolicy { keys: vec![TagKey::new(&[7; 32])], accepts_untagged: false };
    // Each packet has 632 bytes, and the end of the answer 80: three fit.
    let limits = RetransmissionLimits { bytes_per_second: 2_600, ..limits() };
    let mut fixture = ServiceFixture::with_tags(limits, tags);
    fixture.messages(1..9, TRADE);
    let answer = fixture.send_request(RequestKind::Range, Some(session(0)), 1, 9);
    assert_eq!(answer, ["#0 [1,2) 1", "#0 [2,3) 1", "#0 [3,4) 1", "#0 [1,9) h0"]);
    fixture.now = fixture.now.plus(10_000_000_000);
    assert_eq!(fixture.send_request(RequestKind::Definitions, None, 0, 0), ["#0 [0,0) hs0"]);
    assert_eq!(fixture.send_request(RequestKind::Epoch, Some(session(0)), 5, 5), ["#0 [5,5) hse0"]);
}

#[test]
fn all_parts_of_a_message_and_empty_ranges_are_retransmitted() {
    let mut fixture = ServiceFixture::new(limits());
    fixture.messages(1..2, TRADE);
    let mut record = [0; 368];
    record[0] = 92;
    fixture.frame(2, 5, &record.repeat(5));
    fixture.log.covered_through(Sequence(8));
    fixture.log.commit_covered();
    fixture.log.end_of_session();
    let answer = fixture.send_request(RequestKind::Range, None, 2, 8);
    // A packet that covers a range without frames does not end the answer.
    assert_eq!(answer, ["#0 [2,2) 1", "#0 [2,3) 1", "#0 [3,8) 0", "#0 [1,8) he0"]);
}

#[test]
fn a_first_part_in_an_entry_that_ends_before_its_message_is_retransmitted() {
    let mut fixture = ServiceFixture::new(limits());
    fixture.messages(1..2, TRADE);
    let mut record = [0; 368];
    record[0] = 92;
    fixture.log.covered_through(Sequence(7));
    fixture.frame(7, 5, &record.repeat(5));
    fixture.messages(8..9, TRADE);
    let answer = fixture.send_request(RequestKind::Range, None, 7, 8);
    assert_eq!(answer, ["#0 [2,7) 1", "#0 [7,8) 1", "#0 [1,9) h0"]);
    let answer = fixture.send_request(RequestKind::Range, None, 8, 9);
    assert_eq!(answer, ["#0 [8,9) 1", "#0 [1,9) h0"], "no more than was asked for");
}

#[test]
fn each_session_is_answered_separately() {
    let mut fixture = ServiceFixture::new(limits());
    fixture.messages(1..4, TRADE);
    fixture.log.session(session(1), Sequence(1));
    fixture.messages(1..3, TRADE);
    assert_eq!(
        fixture.send_request(RequestKind::Range, Some(session(0)), 2, 9),
        ["#0 [2,3) 1", "#0 [3,4) 1", "#0 [4,4) 0", "#0 [1,4) he0"]
    );
    assert_eq!(fixture.send_request(RequestKind::Range, None, 2, 9), ["#1 [2,3) 1", "#1 [1,3) h0"]);
    assert_eq!(
        fixture.send_request(RequestKind::Range, Some(session(7)), 2, 9),
        ["#7 [0,0) h0"],
        "nothing of that one"
    );
}

#[test]
fn the_end_of_an_abandoned_session_is_known_though_its_last_messages_are_in_no_file() {
    let mut fixture = ServiceFixture::new(limits());
    fixture.messages(1..4, TRADE);
    // Log maintenance starves.
    let mut next = 4;
    while fixture.log.writer().counts().entries_private == 0 {
        let mut record = [0; 520];
        record[0] = 130;
        fixture.frame(next, 1, &record);
        fixture.log.flush();
        next += 1;
    }
    fixture.log.session(session(1), Sequence(1));
    let send_request =
        |fixture: &mut ServiceFixture| fixture.send_request(RequestKind::Range, Some(session(0)), next - 1, next);
    assert_eq!(send_request(&mut fixture), [format!("#0 [1,{}) h0", next - 1)], "not known to be the end");
    fixture.messages(1..2, TRADE);
    assert_eq!(send_request(&mut fixture), [format!("#0 [1,{next}) he0")]);
}

#[test]
fn the_sessions_of_the_log_are_listed_one_by_one() {
    let mut fixture = ServiceFixture::new(limits());
    assert_eq!(fixture.send_request(RequestKind::Sessions, None, 0, 0), [""; 0], "there is none to name");
    assert_eq!(fixture.send_request(RequestKind::Sessions, Some(session(0)), 0, 0), ["#0 [0,0) h0"]);
    fixture.messages(1..4, TRADE);
    fixture.log.session(session(1), Sequence(1));
    fixture.messages(1..3, TRADE);
    fixture.log.session(session(5), Sequence(1));
    fixture.messages(1..9, TRADE);
    let mut send_request = |from: Option<u32>| fixture.send_request(RequestKind::Sessions, from.map(session), 0, 0);
    assert_eq!(send_request(None), ["#0 [1,4) he0"]);
    assert_eq!(send_request(Some(0)), ["#0 [1,4) he0"]);
    assert_eq!(send_request(Some(1)), ["#1 [1,3) he0"]);
    assert_eq!(send_request(Some(2)), ["#5 [1,9) h0"]);
    assert_eq!(send_request(Some(6)), ["#6 [0,0) h0"], "none from there on");
    // Sessions whose segments were removed are not listed.
    fixture.messages(9..2_000, TRADE);
    assert!(fixture.maintenance.counts().removed > 5);
    let sessions = fixture.send_request(RequestKind::Sessions, Some(session(0)), 0, 0);
    assert!(sessions[0].starts_with("#5 [1") && sessions[0].ends_with(",2000) h0"), "{sessions:?}");
}

#[test]
fn an_expired_range_is_answered_from_the_oldest_entry() {
    let mut fixture = ServiceFixture::new(limits());
    fixture.messages(1..2_000, TRADE);
    assert!(fixture.maintenance.counts().removed > 5);
    let answer = fixture.send_request(RequestKind::Range, None, 1, 1_999);
    let end = answer.last().unwrap();
    let oldest: u64 = end.strip_prefix("#0 [").unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(oldest > 1_000, "{oldest}");
    assert_eq!(end, &format!("#0 [{oldest},2000) h0"));
    assert_eq!(answer[0], format!("#0 [{oldest},{}) 1", oldest + 1));
    assert_eq!(fixture.service.counts().expired, 1);
}

#[test]
fn limits_truncate_answers_but_keep_the_end_packet() {
    let mut fixture = ServiceFixture::new(RetransmissionLimits { packets_per_request_max: 3, ..limits() });
    fixture.messages(1..10, TRADE);
    assert_eq!(
        fixture.send_request(RequestKind::Range, None, 2, 9),
        ["#0 [2,3) 1", "#0 [3,4) 1", "#0 [4,5) 1", "#0 [1,10) h0"]
    );
    // Each packet has 616 bytes, and the end of the answer 64.
    fixture.service.set_limits(RetransmissionLimits { bytes_per_second: 2_500, ..limits() });
    let answer = fixture.send_request(RequestKind::Range, None, 1, 9);
    assert_eq!(answer, ["#0 [1,2) 1", "#0 [2,3) 1", "#0 [3,4) 1", "#0 [1,10) h0"]);
    assert_eq!(fixture.send_request(RequestKind::Range, None, 1, 9), [""; 0], "nothing left to give");
    assert_eq!(fixture.service.listener_counters().refused(Refusal::Rate), 1);
    fixture.now = fixture.now.plus(1_000_000_000);
    assert_eq!(fixture.send_request(RequestKind::Range, None, 1, 9).len(), 4);
    assert_eq!(fixture.service.counts().truncated, 3);
}

#[test]
fn a_request_for_the_epoch_is_answered_with_its_own_numbers() {
    let mut fixture = ServiceFixture::new(limits());
    // No session is in the log yet; the answer repeats the requested one.
    let answer = fixture.send_request(RequestKind::Epoch, Some(session(3)), 77_777, 77_777);
    assert_eq!(answer, ["#3 [77777,77777) hse0"]);
    let request = ServiceRequest {
        kind: RequestKind::Epoch,
        group: GROUP,
        channel: ChannelId(99),
        session: Some(session(0)),
        first: Sequence(5),
        next: Sequence(5),
        nonce: NONCE,
    };
    let answer = fixture.send_raw(zerocopy::IntoBytes::as_bytes(&request.to_packet()));
    assert_eq!(answer, ["#0 [5,5) hse0"], "a receiver may have seen a forged channel only");
    let other = ServiceRequest { group: GroupId(77), ..request };
    assert_eq!(fixture.send_raw(zerocopy::IntoBytes::as_bytes(&other.to_packet())), [""; 0]);
    assert_eq!(fixture.service.listener_counters().refused(Refusal::UnknownChannel), 1);
}

#[test]
fn foreign_and_malformed_requests_are_counted_and_not_answered() {
    let mut fixture = ServiceFixture::new(limits());
    fixture.messages(1..10, TRADE);
    for invalid_request in [&[0; 3][..], &[0; REQUEST_PACKET_BYTES], &[0; REQUEST_PACKET_BYTES + 20]] {
        assert_eq!(fixture.send_raw(invalid_request), [""; 0]);
    }
    assert_eq!(fixture.service.listener_counters().refused(Refusal::Malformed), 3);
    let other = ServiceRequest {
        kind: RequestKind::Range,
        group: GROUP,
        channel: ChannelId(99),
        session: None,
        first: Sequence(1),
        next: Sequence(2),
        nonce: NONCE,
    };
    assert_eq!(fixture.send_raw(zerocopy::IntoBytes::as_bytes(&other.to_packet())), [""; 0]);
    assert_eq!(fixture.service.listener_counters().refused(Refusal::UnknownChannel), 1);
    fixture.service.set_limits(RetransmissionLimits { allowed: vec!["10.0.0.0/8".parse().unwrap()], ..limits() });
    assert_eq!(fixture.send_request(RequestKind::Range, None, 1, 9), [""; 0]);
    assert_eq!(fixture.service.listener_counters().refused(Refusal::Network), 1);
    assert_eq!(fixture.service.counts().packets, 0);
}

#[test]
fn definitions_outlive_their_segments_and_span_several_packets() {
    let mut fixture = ServiceFixture::new(RetransmissionLimits { packets_per_request_max: 2, ..limits() });
    fixture.messages(1..6, dbn::enums::rtype::INSTRUMENT_DEF);
    fixture.messages(6..7, TRADE);
    fixture.messages(7..8, dbn::enums::rtype::SYMBOL_MAPPING);
    fixture.send_request(RequestKind::Definitions, None, 0, 0);
    fixture.messages(8..2_000, TRADE);
    assert!(fixture.maintenance.counts().removed > 5);
    // Each definition has 552 bytes, so a packet holds two.
    let answer = fixture.send_request(RequestKind::Definitions, None, 0, 0);
    assert_eq!(answer, ["#0 [0,2) s2", "#0 [2,4) s2", "#0 [4,6) hs0"]);
    let answer = fixture.send_request(RequestKind::Definitions, Some(session(0)), 4, 0x7fff);
    assert_eq!(answer, ["#0 [4,6) s2", "#0 [6,6) hs0"]);
    assert_eq!(fixture.send_request(RequestKind::Definitions, None, 77, 77), ["#0 [6,6) hs0"]);

    fixture.log.session(session(1), Sequence(1));
    fixture.messages(1..2, dbn::enums::rtype::INSTRUMENT_DEF);
    assert_eq!(fixture.send_request(RequestKind::Definitions, None, 0, 0), ["#1 [0,1) s1", "#1 [1,1) hs0"]);
    assert_eq!(fixture.send_request(RequestKind::Definitions, Some(session(0)), 0, 0), ["#0 [0,0) hs0"]);
}

#[test]
fn a_service_answers_as_soon_as_the_log_has_entries() {
    let mut fixture = ServiceFixture::new(limits());
    assert_eq!(fixture.send_request(RequestKind::Range, None, 1, 2), [""; 0]);
    assert_eq!(fixture.service.listener_counters().refused(Refusal::UnknownChannel), 1);
    fixture.messages(1..2, TRADE);
    assert_eq!(fixture.send_request(RequestKind::Range, None, 1, 2), ["#0 [1,2) 1", "#0 [1,2) h0"]);
    assert!(fixture.directory.path().exists());
}
