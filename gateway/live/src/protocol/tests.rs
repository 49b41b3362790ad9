//! The lines of the official clients, and any other bytes.

use proptest::prelude::*;

use super::*;
use crate::schema::Schemas;

const LIMITS: ProtocolLimits = ProtocolLimits { symbols_max: 1_200 };

fn ready() -> Session {
    let mut session = Session::new(LIMITS);
    let line = b"auth=00-defgh|dataset=XNAS.ITCH|encoding=dbn|ts_out=0|compression=none|client=Python 3.13";
    assert!(matches!(session.accept(line), Step::Authenticate(_)));
    session.authenticated();
    session
}

fn subscribed(session: &mut Session, line: &str) -> SubscribeRequest {
    match session.accept(line.as_bytes()) {
        Step::Subscribe(request) => request,
        other => panic!("{line}: {other:?}"),
    }
}

fn reported(session: &mut Session, line: &str) -> String {
    match session.accept(line.as_bytes()) {
        Step::Report(reason) => reason,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn authentication_requests_have_fields_in_any_order() {
    let mut session = Session::new(LIMITS);
    let line = b"ts_out=1|client=Rust 0.64|compression=zstd|new_field=7|dataset=IEXG.DEEP|encoding=dbn\
        |heartbeat_interval_s=5|slow_reader_behavior=drop|auth=12=34-abcde";
    let Step::Authenticate(request) = session.accept(line) else { panic!("it is valid") };
    assert_eq!(
        request,
        AuthRequest {
            auth: "12=34-abcde".to_owned(),
            dataset: "IEXG.DEEP".to_owned(),
            ts_out: true,
            compression: Compression::Zstd,
            heartbeat_interval_s: 5,
            slow_reader: Some(SlowReader::Skip),
            client: "Rust 0.64".to_owned(),
        }
    );
    assert!(matches!(session.accept(b"start_session"), Step::Refuse(_)), "not before the answer");
}

#[test]
fn an_invalid_authentication_request_is_refused() {
    let base = "auth=0-abcde|dataset=XNAS.ITCH|encoding=dbn|ts_out=0|compression=none";
    for (from, to, expected) in [
        ("auth", "other", "auth is missing"),
        ("dataset=XNAS.ITCH", "dataset=", "dataset is missing"),
        ("=dbn", "=csv", "Unsupported encoding csv: expected dbn"),
        ("=none", "=lz4", "Unknown compression lz4: expected none or zstd"),
        ("ts_out=0", "ts_out=2", "Invalid ts_out: expected 0 or 1"),
        ("|encoding", "|heartbeat_interval_s=0|encoding", "Invalid heartbeat_interval_s 0"),
        (
            "|encoding",
            "|slow_reader_behavior=wait|encoding",
            "Unknown slow_reader_behavior wait: expected warn or skip",
        ),
    ] {
        let line = base.replacen(from, to, 1);
        let expected = format!("Invalid authentication request: {expected}");
        assert_eq!(Session::new(LIMITS).accept(line.as_bytes()), Step::Refuse(expected), "{line}");
    }
    for garbage in [&b"\xff\xfe"[..], b"start_session", b"GET / HTTP/1.1", b"auth\0=1"] {
        assert!(matches!(Session::new(LIMITS).accept(garbage), Step::Refuse(_)));
    }
}

#[test]
fn the_requests_of_all_clients_are_understood() {
    for line in [
        "schema=mbo|stype_in=raw_symbol|symbols=AAPL,MSFT|snapshot=0|id=7|is_last=1",
        "schema=mbo|stype_in=raw_symbol|symbols=AAPL,MSFT|snapshot=0|is_last=1|id=7",
        "schema=mbo|stype_in=raw_symbol|id=7|symbols=AAPL,MSFT|snapshot=0|is_last=1",
        "schema=mbo|symbols=AAPL, MSFT|id=7",
    ] {
        let request = subscribed(&mut ready(), line);
        assert_eq!(
            request,
            SubscribeRequest {
                id: "7".to_owned(),
                schema: Schemas::MBO,
                schema_name: "mbo",
                symbol_type: SymbolType::RawSymbol,
                symbols: Symbols::List(vec!["AAPL".to_owned(), "MSFT".to_owned()]),
                start: None,
                snapshot: false,
            }
        );
    }
    for start in ["start_session", "start_session=0"] {
        let mut session = ready();
        assert_eq!(session.accept(start.as_bytes()), Step::Start);
        assert!(session.has_started());
        assert!(reported(&mut session, start).contains("started already"));
    }
    let line = "unsubscribe|schema=mbo|stype_in=raw_symbol|symbols=ALL_SYMBOLS|is_last=1";
    let Step::Unsubscribe(request) = ready().accept(line.as_bytes()) else { panic!("it is valid") };
    assert_eq!((request.schema, request.symbols), (Schemas::MBO, Symbols::All));
}

#[test]
fn several_lines_are_one_request() {
    let mut session = ready();
    let list = |from: usize, to: usize| (from..to).map(|n| format!("S{n}")).collect::<Vec<_>>();
    for (from, to) in [(0, 500), (500, 1_000)] {
        let line = format!("schema=trades|symbols={}|id=3|is_last=0", list(from, to).join(","));
        assert_eq!(session.accept(line.as_bytes()), Step::Wait);
    }
    let line = format!("schema=trades|symbols={}|id=3|is_last=1", list(1_000, 1_101).join(","));
    assert_eq!(subscribed(&mut session, &line).symbols, Symbols::List(list(0, 1_101)));

    // One symbol too many in the last line: one error for the whole request, and the next request is served.
    for (from, to) in [(0, 600), (600, 1_200)] {
        let line = format!("schema=trades|symbols={}|id=4|is_last=0", list(from, to).join(","));
        assert_eq!(session.accept(line.as_bytes()), Step::Wait);
    }
    assert!(reported(&mut session, "schema=trades|symbols=X|id=4|is_last=1").contains("more than 1200 symbols"));
    assert_eq!(subscribed(&mut session, "schema=trades|symbols=X|id=5").id, "5");
}

#[test]
fn a_request_with_an_invalid_line_is_refused_once_and_as_a_whole() {
    let [good, bad] = ["schema=trades|symbols=A|id=3", "schema=trades|stype_in=parent|symbols=B|id=3"];
    for lines in [[good, bad, good], [bad, bad, bad], [good, good, bad], [bad, good, good]] {
        let mut session = ready();
        for line in &lines[..2] {
            assert_eq!(session.accept(format!("{line}|is_last=0").as_bytes()), Step::Wait, "{lines:?}");
        }
        assert!(reported(&mut session, lines[2]).contains("Unsupported stype_in parent"), "{lines:?}");
        assert_eq!(subscribed(&mut session, good).symbols, Symbols::List(vec!["A".to_owned()]), "{lines:?}");
    }
    let mut session = ready();
    assert_eq!(session.accept(format!("{bad}|is_last=0").as_bytes()), Step::Wait);
    assert_eq!(session.accept(b"start_session"), Step::Start);
    assert_eq!(subscribed(&mut session, good).id, "3");
}

#[test]
fn invalid_requests_are_reported_and_the_session_goes_on() {
    let mut session = ready();
    for (line, expected) in [
        ("hello", "expected a subscription"),
        ("symbols=AAPL", "expected a subscription"),
        ("schema=mbp-7|symbols=AAPL", "Unknown schema mbp-7"),
        ("schema=mbo", "symbols are missing"),
        ("schema=mbo|symbols=,,", "symbols are missing"),
        ("schema=mbo|symbols=ES.FUT|stype_in=parent", "Unsupported stype_in parent"),
        ("schema=mbo|symbols=A|start=yesterday", "Invalid start yesterday"),
        ("schema=trades|symbols=A|snapshot=1", "no snapshot of trades"),
        ("schema=mbo|symbols=A|snapshot=1|start=0", "exclude each other"),
        ("unsubscribe|symbols=A", "schema is missing"),
        ("unsubscribe", "schema is missing"),
    ] {
        let reason = reported(&mut session, line);
        assert!(reason.contains(expected), "{line}: {reason}");
    }
    // No instrument has such a symbol: it is not resolved, and the rest is served.
    let long = format!("schema=mbo|symbols=AAPL,{},B\u{e9}", "A".repeat(71));
    let symbols = ["AAPL".to_owned(), format!("{}...", "A".repeat(64)), "B...".to_owned()];
    assert_eq!(subscribed(&mut session, &long).symbols, Symbols::List(symbols.into()));
    assert_eq!(session.accept(b"start_session"), Step::Start);
    assert!(reported(&mut session, "schema=mbo|symbols=A|start=0").contains("before the session start"));
    assert_eq!(subscribed(&mut session, "schema=mbo|symbols=A").start, None);
}

#[test]
fn lines_longer_than_the_limit_are_refused() {
    let mut lines = LineBuffer::new(10);
    lines.push(b"0123456789\r\n0123456789\n\n01234");
    assert_eq!(lines.next_line(), Err(LineTooLong), "a carriage return counts");
    let mut lines = LineBuffer::new(10);
    lines.push(b"012345678\r\n0123456789\n\n01234");
    for expected in [Some(&b"012345678"[..]), Some(b"0123456789"), Some(b""), None] {
        assert_eq!(lines.next_line(), Ok(expected));
    }
    lines.push(b"567890");
    assert_eq!(lines.next_line(), Err(LineTooLong));
    lines.push(b"\nshort\n");
    assert_eq!(lines.next_line(), Err(LineTooLong), "it stays refused");
}

proptest! {
    #[test]
    fn cutting_into_lines_does_not_depend_on_the_packets(
        lines in proptest::collection::vec("[a-z|=]{0,20}", 0..20),
        cuts in proptest::collection::vec(1_usize..40, 0..20),
    ) {
        let bytes: Vec<u8> = lines.iter().flat_map(|line| line.bytes().chain([b'\n'])).collect();
        let mut buffer = LineBuffer::new(64);
        let mut found = Vec::new();
        let mut rest = bytes.as_slice();
        let mut cuts = cuts.into_iter();
        while !rest.is_empty() {
            let (packet, more) = rest.split_at(cuts.next().unwrap_or(1_000).min(rest.len()));
            buffer.push(packet);
            rest = more;
            while let Some(line) = buffer.next_line().unwrap() {
                found.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        prop_assert_eq!(found, lines);
    }

    #[test]
    fn no_bytes_break_a_session(lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..20)) {
        let mut session = ready();
        for line in &lines {
            let was_started = session.has_started();
            let step = session.accept(line);
            prop_assert_eq!(session.has_started(), was_started || step == Step::Start);
        }
    }

    #[test]
    fn a_request_never_has_more_symbols_than_allowed(counts in proptest::collection::vec((0_usize..700, any::<bool>()), 1..10)) {
        let mut session = ready();
        for (count, is_last) in counts {
            let symbols = vec!["A"; count.max(1)].join(",");
            let line = format!("schema=mbo|symbols={symbols}|is_last={}", u8::from(is_last));
            match session.accept(line.as_bytes()) {
                Step::Subscribe(SubscribeRequest { symbols: Symbols::List(list), .. }) => {
                    prop_assert!(is_last && list.len() <= LIMITS.symbols_max);
                }
                Step::Report(_) => prop_assert!(is_last),
                Step::Wait => prop_assert!(!is_last),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}

#[test]
fn a_request_without_its_last_line_is_reported() {
    let mut session = ready();
    assert_eq!(session.accept(b"schema=trades|symbols=A|id=3|is_last=0"), Step::Wait);
    assert_eq!(session.take_incomplete(), None);
    let step = session.accept(b"schema=trades|symbols=B|id=4");
    assert!(matches!(step, Step::Subscribe(request) if request.id == "4"));
    let reason = "Invalid subscription: the last line (is_last=1) of request 3 is missing";
    assert_eq!(session.take_incomplete().as_deref(), Some(reason));
    assert_eq!(session.take_incomplete(), None);
    assert_eq!(session.accept(b"unsubscribe|schema=trades|symbols=B|id=5|is_last=0"), Step::Wait);
    assert_eq!(session.accept(b"start_session"), Step::Start);
    let reason = "Invalid unsubscribe: the last line (is_last=1) of request 5 is missing";
    assert_eq!(session.take_incomplete().as_deref(), Some(reason));
}
