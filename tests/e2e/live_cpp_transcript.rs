//! What the official C++ client sends and expects, byte by byte: it cannot be built from what Debian and the registries offer. It has its
//! own order of fields, reads in blocking calls, sends symbols in lines of 500, and may send times as text.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    time::Duration,
};

use mdgw_tests::{
    gateway_fixture::GatewayFixture,
    process::{Signal, TEST_TIMEOUT},
};
use sha2::{Digest as _, Sha256};

use super::{KEY, live_rust_client::records_of, serve_whole_day};

#[test]
fn the_bytes_of_a_cpp_client_bring_it_the_records_of_an_offline_replay() {
    let fixture = GatewayFixture::new();
    let (gateway, live, address) = serve_whole_day(&fixture);
    let expected = records_of(&fixture.path("expected.dbn"));

    // All symbols, from the oldest record on.
    let mut client = CppClient::log_in(address);
    client.send("schema=mbo|stype_in=raw_symbol|id=1|symbols=ALL_SYMBOLS|snapshot=0|start=0|is_last=1\n");
    client.assert_silent();
    client.start();
    assert_eq!(client.next_control(), (SYSTEM, 1, "Subscription request 1 for mbo data succeeded".to_owned(), None));
    let mut session = client.until_replayed("mbo");
    assert!(session.records == expected, "{} records, not the {} of the replay", session.records.len(), expected.len());

    // Each fault is reported, and the session goes on.
    let late = "schema=mbo|stype_in=raw_symbol|id=2|symbols=ALL_SYMBOLS|snapshot=0|start=0|is_last=1\n";
    for wrong in [late, "schema=mbo|stype_in=parent|id=3|symbols=ES.FUT|snapshot=0|is_last=1\n", "nonsense\n"] {
        client.send(wrong);
        let (kind, code, text, is_last) = client.next_control();
        assert_eq!((kind, code, is_last), (ERROR, 5, Some(1)), "{wrong}: {text}");
    }
    client.send("schema=status|stype_in=raw_symbol|id=4|symbols=ALL_SYMBOLS|snapshot=0|is_last=1\n");
    assert_eq!(client.next_control().2, "Subscription request 4 for status data succeeded");

    // 1,101 symbols in three lines, two of them known, from a time as text.
    let (first, second) = (session.mapped.pop_first().unwrap(), session.mapped.pop_last().unwrap());
    let start = &expected[expected.len() / 2];
    let unknown = |range: std::ops::Range<u32>| range.map(|number| format!("NOPE{number}")).collect::<Vec<_>>();
    let lines =
        [unknown(0..500), [unknown(500..999), vec![first.1]].concat(), [unknown(999..1_099), vec![second.1]].concat()];
    let mut client = CppClient::log_in(address);
    for (index, symbols) in lines.iter().enumerate() {
        let (symbols, is_last) = (symbols.join(","), u8::from(index == 2));
        let time = iso_8601(ts_event(start));
        client.send(&format!(
            "schema=mbo|stype_in=raw_symbol|id=1|symbols={symbols}|snapshot=0|start={time}|is_last={is_last}\n"
        ));
    }
    client.start();
    assert_eq!(client.next_control(), (SYSTEM, 1, "Subscription request 1 for mbo data succeeded".to_owned(), None));
    for number in 0..1_099 {
        let expected = (ERROR, 4, format!("Failed to resolve symbol: NOPE{number}"), Some(u8::from(number == 1_098)));
        assert_eq!(client.next_control(), expected);
    }
    let session = client.until_replayed("mbo");
    let wanted = [first.0, second.0];
    assert_eq!(session.mapped.keys().copied().collect::<Vec<_>>(), wanted);
    let is_wanted = |record: &&Vec<u8>| wanted.contains(&instrument(record)) && ts_event(record) >= ts_event(start);
    assert!(session.records == expected.iter().filter(is_wanted).cloned().collect::<Vec<_>>());

    let _ = live.stop_with(Signal::Terminate).expect_code(0);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

const MAPPING: u8 = 0x16;
const SYSTEM: u8 = 0x17;
const ERROR: u8 = 0x15;

/// A client that reads as that for C++ does.
struct CppClient(TcpStream);

/// What a session brought.
#[derive(Default)]
struct CppSession {
    records: Vec<Vec<u8>>,
    mapped: BTreeMap<u32, String>,
}

impl CppClient {
    fn log_in(address: SocketAddrV4) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut client = Self(stream);
        assert!(client.line().starts_with("lsg_version="));
        let line = client.line();
        let challenge = line.strip_prefix("cram=").unwrap();
        let digest = Sha256::digest(format!("{challenge}|{KEY}"));
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let answer = format!("{hex}-{}", &KEY[KEY.len() - 5..]);
        client.send(&format!(
            "auth={answer}|dataset=XNAS.ITCH|encoding=dbn|compression=none|ts_out=0|client=C++ 0.65.0 GNU 14.2.0\n"
        ));
        let line = client.line();
        let id = line.strip_prefix("success=1|session_id=").unwrap();
        assert!(id.parse::<u64>().is_ok(), "{line}");
        client
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// A line of the text part. A carriage return would stay in it, and fail the authentication.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        loop {
            let [byte] = self.bytes();
            if byte == b'\n' {
                return String::from_utf8(line).unwrap();
            }
            line.push(byte);
        }
    }

    /// Whatever came now would be taken for DBN.
    fn assert_silent(&self) {
        self.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let error = (&self.0).read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        self.0.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    }

    /// Starts the session and reads the metadata.
    fn start(&mut self) {
        self.send("start_session\n");
        assert_eq!(&self.bytes::<4>(), b"DBN\x03");
        assert_eq!(u32::from_le_bytes(self.bytes()), 120);
        let metadata: [u8; 120] = self.bytes();
        assert_eq!(&metadata[..18], b"XNAS.ITCH\0\0\0\0\0\0\0\xff\xff");
        assert_eq!(&metadata[26..47], b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\xff\0\0\x47\0");
        assert!(metadata[47..].iter().all(|byte| *byte == 0));
    }

    fn record(&mut self) -> Vec<u8> {
        let [length] = self.bytes();
        let mut record = vec![0; usize::from(length) * 4];
        record[0] = length;
        self.0.read_exact(&mut record[1..]).unwrap();
        record
    }

    /// A system or error record: type, code, text, and whether it is the last error of its request.
    fn next_control(&mut self) -> (u8, u8, String, Option<u8>) {
        let record = self.record();
        assert_eq!((record.len(), u16::from_le_bytes([record[2], record[3]]), instrument(&record)), (320, 0, 0));
        let text = record[16..318].split(|byte| *byte == 0).next().unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        match record[1] {
            SYSTEM => (SYSTEM, record[319], text, None),
            ERROR => (ERROR, record[318], text, Some(record[319])),
            other => panic!("record type {other}: {record:02x?}"),
        }
    }

    /// Reads up to the record that says that the replay has caught up.
    fn until_replayed(&mut self, schema: &str) -> CppSession {
        let mut session = CppSession::default();
        loop {
            let record = self.record();
            match record[1] {
                MAPPING => {
                    assert_eq!((record.len(), record[16], record[88], &record[160..]), (176, 1, 1, &[0xff; 16][..]));
                    let symbol = record[89..160].split(|byte| *byte == 0).next().unwrap();
                    session.mapped.insert(instrument(&record), String::from_utf8(symbol.to_vec()).unwrap());
                }
                SYSTEM => {
                    assert_eq!(record[319], 3, "{record:02x?}");
                    assert!(record[16..].starts_with(format!("Finished {schema} replay\0").as_bytes()));
                    return session;
                }
                _ => {
                    assert!(session.mapped.contains_key(&instrument(&record)), "a record before its mapping");
                    session.records.push(record);
                }
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }
}

fn instrument(record: &[u8]) -> u32 {
    u32::from_le_bytes(record[4..8].try_into().unwrap())
}

fn ts_event(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[8..16].try_into().unwrap())
}

/// A time of the test's day, 2019-01-30.
fn iso_8601(ns: u64) -> String {
    const MIDNIGHT_UTC_NS: u64 = 1_548_806_400_000_000_000;
    let of_day = ns.checked_sub(MIDNIGHT_UTC_NS).unwrap();
    let (seconds, fraction) = (of_day / 1_000_000_000, of_day % 1_000_000_000);
    assert!(seconds < 86_400);
    format!("2019-01-30T{:02}:{:02}:{:02}.{fraction:09}Z", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}
