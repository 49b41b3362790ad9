use mdgw_wire::{
    identity::{ChannelId, Feed, Session},
    time::TradingDate,
};

use super::*;
use crate::name::{Content, Name, Place};

mod simulation;

fn session() -> Session {
    Session { feed: Feed::NasdaqItch, date: TradingDate::from_yyyymmdd(20_261_127).unwrap(), restart: 0 }
}

fn named(sequence: u64, content: Content) -> SinkMessage {
    let first = Place::message(session(), sequence);
    let name = Name { feed: Feed::NasdaqItch, channel: ChannelId(1), first, content };
    let mut message = SinkMessage::new(name, "mdgw".to_owned(), None, 0);
    if matches!(content, Content::Records { .. }) {
        message.append(&[0; 56]);
    }
    message
}

fn record(sequence: u64) -> SinkMessage {
    named(sequence, Content::Records { count: 0 })
}

fn gap(first: u64, next: u64) -> SinkMessage {
    named(first, Content::Gap { next })
}

fn end_at(last_sequence: u64, of: &SinkMessage, node: u8) -> StreamEnd {
    StreamEnd { last_sequence, last: Some(LastMessage { end: of.end, node: Some(node) }) }
}

const EMPTY: StreamEnd = StreamEnd { last_sequence: 0, last: None };
const TAKEOVER_NS: u64 = 2_000;

fn config(node: u8, has_peer: bool) -> WriterConfig {
    WriterConfig {
        node,
        has_peer,
        takeover: Duration::from_nanos(TAKEOVER_NS),
        ack_timeout: Duration::from_nanos(5_000),
        in_flight_max: 3,
    }
}

fn stored(sequence: u64) -> Answer {
    Answer::Stored { sequence, is_duplicate: false }
}

#[test]
fn each_append_expects_the_one_before_it() {
    let mut writer = Writer::new(config(1, true));
    let now = MonoNs(10);
    assert!(writer.wants_end(now) && writer.append(&record(1), now).is_none(), "the end is not known");
    assert_eq!(writer.on_end(&EMPTY, now), (Some(Resume::Oldest), Change::None));
    let expected = |chain, last_sequence, last: Option<u64>| {
        Some(Expectation { chain, last_sequence, last_id: last.map(|sequence| record(sequence).id) })
    };
    assert_eq!(writer.append(&record(1), now), expected(1, 0, None));
    assert_eq!(writer.append(&record(2), now), expected(1, 1, Some(1)));
    assert_eq!(writer.append(&record(3), now), expected(1, 2, Some(2)));
    assert_eq!(writer.append(&record(4), now), None, "as many as may be in flight");
    // The answer to the second one covers the first.
    writer.on_answer(1, 2, &stored(2), now);
    assert_eq!((writer.in_flight(), writer.counts().stored), (1, 2));
    assert_eq!(writer.append(&record(4), now), expected(1, 3, Some(3)));
}

#[test]
fn a_sink_that_comes_back_goes_on_at_once_behind_its_own_message_and_waits_behind_anothers() {
    for (node, has_peer, waits) in [(1, true, false), (2, true, true), (2, false, false)] {
        let mut writer = Writer::new(config(1, has_peer));
        let (resume, change) = writer.on_end(&end_at(7, &record(7), node), MonoNs(0));
        assert_eq!((resume, change), (Some(Resume::Behind(record(7).end)), Change::None));
        assert_eq!(writer.append(&record(8), MonoNs(TAKEOVER_NS - 1)).is_none(), waits);
        if waits {
            // The other one appends meanwhile: the wait begins again.
            let (resume, _) = writer.on_end(&end_at(8, &record(8), node), MonoNs(1_500));
            assert_eq!(resume, Some(Resume::Behind(record(8).end)));
            assert!(writer.append(&record(9), MonoNs(3_499)).is_none());
            assert!(writer.append(&record(9), MonoNs(3_500)).is_some());
        }
    }
}

#[test]
fn a_refused_append_reads_the_end_and_names_who_fenced_it() {
    let mut writer = Writer::new(config(1, true));
    let now = MonoNs(0);
    writer.on_end(&EMPTY, now);
    for sequence in 1..=3 {
        assert!(writer.append(&record(sequence), now).is_some());
    }
    writer.on_answer(1, 1, &stored(1), now);
    writer.on_answer(1, 2, &Answer::Refused, now);
    assert!(!writer.is_synced() && writer.wants_end(now));
    // The other answers of the chain, and those of a chain that never was, change nothing.
    writer.on_answer(1, 3, &Answer::Refused, now);
    let (resume, change) = writer.on_end(&end_at(9, &record(9), 2), now);
    assert_eq!((resume, change), (Some(Resume::Behind(record(9).end)), Change::Fenced { by: Some(2) }));
    writer.on_answer(1, 3, &stored(3), now);
    assert_eq!((writer.counts().refused, writer.counts().stored, writer.is_writing()), (1, 1, false));
    assert!(writer.append(&record(10), now).is_none());
}

/// The first answers were lost with a connection. The appends had arrived, which the read of the end did not show yet.
#[test]
fn a_duplicate_in_its_own_place_is_stored_and_elsewhere_is_not() {
    let mut writer = Writer::new(config(1, true));
    let now = MonoNs(0);
    writer.on_end(&EMPTY, now);
    assert!(writer.append(&record(1), now).is_some());
    writer.on_failure(now);
    writer.on_end(&EMPTY, now);
    assert_eq!(writer.append(&record(1), now).unwrap().chain, 2);
    assert!(writer.append(&record(2), now).is_some());
    writer.on_answer(2, 1, &Answer::Stored { sequence: 1, is_duplicate: true }, now);
    assert_eq!((writer.counts().stored, writer.counts().duplicates, writer.in_flight()), (1, 1, 1));
    writer.on_answer(2, 2, &Answer::Stored { sequence: 9, is_duplicate: true }, now);
    assert!(!writer.is_synced());
}

#[test]
fn a_late_answer_ends_the_chain() {
    let mut writer = Writer::new(config(1, true));
    writer.on_end(&EMPTY, MonoNs(0));
    assert!(writer.append(&record(1), MonoNs(0)).is_some());
    assert!(!writer.on_deadline(MonoNs(4_999)) && writer.on_deadline(MonoNs(5_000)));
    assert!(writer.wants_end(MonoNs(5_000)) && !writer.on_deadline(MonoNs(9_000)));
}

/// What is a gap here, the other gateway may have.
#[test]
fn a_gap_is_offered_to_the_other_sink_first() {
    let mut writer = Writer::new(config(1, true));
    writer.on_end(&EMPTY, MonoNs(0));
    assert!(writer.append(&record(1), MonoNs(0)).is_some());
    assert!(writer.append(&gap(2, 5), MonoNs(0)).is_none() && writer.is_writing(), "an answer is missing");
    writer.on_answer(1, 1, &stored(1), MonoNs(10));
    assert!(writer.append(&gap(2, 5), MonoNs(10)).is_none() && !writer.is_writing());
    let unchanged = end_at(1, &record(1), 1);
    assert_eq!(writer.on_end(&unchanged, MonoNs(10)), (None, Change::None));
    assert!(writer.append(&gap(2, 5), MonoNs(10 + 2 * TAKEOVER_NS - 1)).is_none());
    assert!(writer.append(&gap(2, 5), MonoNs(10 + 2 * TAKEOVER_NS)).is_some());
    assert!(writer.append(&record(5), MonoNs(10 + 2 * TAKEOVER_NS)).is_some());

    // Alone, there is nobody to offer it to.
    let mut alone = Writer::new(config(1, false));
    alone.on_end(&EMPTY, MonoNs(0));
    assert!(alone.append(&gap(1, 5), MonoNs(0)).is_some());
}

#[test]
fn a_purged_stream_goes_on_where_this_process_knows_its_end() {
    let purged = |last_sequence| StreamEnd { last_sequence, last: None };
    let mut writer = Writer::new(config(1, false));
    let now = MonoNs(0);
    writer.on_end(&EMPTY, now);
    assert!(writer.append(&record(1), now).is_some());
    writer.on_answer(1, 1, &stored(1), now);
    writer.on_failure(now);
    assert_eq!(writer.on_end(&purged(1), now), (Some(Resume::Behind(record(1).end)), Change::None));
    writer.on_failure(now);
    assert_eq!(writer.on_end(&purged(4), now).0, Some(Resume::EndUnknown));
    // A server that lost acknowledged messages, and a stream that was made anew.
    let mut writer = Writer::new(config(1, false));
    writer.on_end(&EMPTY, now);
    for sequence in 1..=2 {
        assert!(writer.append(&record(sequence), now).is_some());
        writer.on_answer(1, sequence, &stored(sequence), now);
    }
    writer.on_failure(now);
    let back = writer.on_end(&end_at(1, &record(1), 1), now);
    assert_eq!(back, (Some(Resume::Behind(record(1).end)), Change::RolledBack { acknowledged: 2 }));
    writer.on_failure(now);
    assert_eq!(writer.on_end(&EMPTY, now).0, Some(Resume::Oldest));
}
