//! Assertions of each fuzz target. Nothing may panic. A message that a parser accepts is the same after it was written and read
//! again.
//!
//! Messages that need a tag are read under a valid one: what is fuzzed is the parser behind the tag.

use std::{cell::RefCell, fs, path::Path, time::Duration};

use mdgw_captures::capture_file::{CaptureFile, OpenOptions};
pub use mdgw_election::fuzzing::{death_notice, election_record, vote_message};
use mdgw_election::{
    auth::{Nonce, SharedKey},
    emergent::message::Envelope,
    identity::Incarnation,
    peer::PeerMessage,
};
use mdgw_feeds::{
    book::BookLimits,
    channel::{ChannelConfig, copy::CopyRestorer},
    identity::{ChannelId, Feed},
};
use mdgw_live::protocol::{LineBuffer, ProtocolLimits, Session, Step};
use mdgw_log_reader::{Item, LogChannel, LogReader, LogReaderConfig, LogStart, Output};
pub use mdgw_pair::fuzzing::link_message;
use mdgw_pair::pair_link::{framing::LinkStream, message::LinkIdentity};
use mdgw_publog::{Checksum, LogOptions};
use mdgw_runtime::config::{Resolved, explain::explain};
use mdgw_status::control::Request;
use mdgw_tools::report::Report;
use serde_json::{from_slice, to_vec};

/// A message between candidates over the pair link.
pub fn peer_message(input: &[u8]) {
    let Ok(message) = from_slice::<PeerMessage>(input) else { return };
    let written = to_vec(&message).expect("a message can be written");
    assert_eq!(from_slice::<PeerMessage>(&written).expect("and read"), message);
}

/// A message between members of the backend without a store.
pub fn member_message(input: &[u8]) {
    let Ok(message) = from_slice::<Envelope>(input) else { return };
    let written = to_vec(&message).expect("a message can be written");
    assert_eq!(from_slice::<Envelope>(&written).expect("and read"), message);
}

/// A request on the control socket.
pub fn control_request(input: &[u8]) {
    let Ok(request) = from_slice::<Request>(input) else { return };
    let written = to_vec(&request).expect("a request can be written");
    assert_eq!(from_slice::<Request>(&written).expect("and read"), request);
}

/// The bytes of a connection, in pieces: the first byte of a piece is its length.
pub fn link_stream(input: &[u8]) {
    let identity = LinkIdentity { node: 1, incarnation: Incarnation(5) };
    let mut stream = LinkStream::new(SharedKey::new(&[7; 32]), identity, Nonce([9; 16]));
    let mut rest = input;
    while let [length, behind @ ..] = rest {
        let (piece, after) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = after;
        stream.push(piece);
        loop {
            match stream.next_message() {
                Ok(None) => break,
                Ok(Some(message)) => panic!("without the key: {message:?}"),
                // The connection is closed.
                Err(_) => return,
            }
        }
    }
}

/// The bytes of a live client, in pieces: the first byte of a piece is its length. Its authentication request is accepted.
pub fn live_session(input: &[u8]) {
    const LINE_BYTES_MAX: usize = 512;
    const SYMBOLS_MAX: usize = 16;
    let mut lines = LineBuffer::new(LINE_BYTES_MAX);
    let mut session = Session::new(ProtocolLimits { symbols_max: SYMBOLS_MAX });
    let (mut is_authenticated, mut rest) = (false, input);
    while let [length, behind @ ..] = rest {
        let (piece, after) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = after;
        lines.push(piece);
        loop {
            let line = match lines.next_line() {
                Ok(None) => break,
                Ok(Some(line)) => line,
                // The connection is closed.
                Err(_) => return,
            };
            assert!(line.len() <= LINE_BYTES_MAX);
            let had_started = session.has_started();
            match session.accept(line) {
                Step::Wait | Step::Report(_) => {}
                Step::Authenticate(_) => {
                    assert!(!is_authenticated, "once");
                    is_authenticated = true;
                    session.authenticated();
                }
                Step::Refuse(_) => {
                    assert!(!is_authenticated, "a session that is authenticated goes on");
                    return;
                }
                Step::Start => assert!(is_authenticated && !had_started && session.has_started(), "once"),
                Step::Subscribe(request) => {
                    assert!(is_authenticated && request.symbols.count() <= SYMBOLS_MAX);
                    assert!(!(had_started && request.start.is_some()), "no replay after the start");
                }
                // Unsubscribing takes no memory beyond the line.
                Step::Unsubscribe(request) => {
                    assert!(is_authenticated && request.symbols.count() <= LINE_BYTES_MAX);
                }
            }
        }
    }
}

/// A state copy as one slice, for a channel with small books.
pub fn state_copy(input: &[u8]) {
    let Some((feed, slice)) = input.split_first() else { return };
    let feed = [Feed::NasdaqItch, Feed::IexDeep, Feed::IexTops][usize::from(*feed) % 3];
    let mut config = ChannelConfig::new(ChannelId(1), feed);
    config.books = BookLimits { orders_max: 64, levels_max: 64, instruments_max: 16, ..BookLimits::default() };
    let mut restorer = CopyRestorer::new(config);
    if restorer.push_slice(slice).is_ok() {
        assert!(restorer.items() <= slice.len(), "more items than bytes");
        let _refused = restorer.into_channel();
    }
}

/// A configuration file.
pub fn configuration(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    if let Ok(config) = Resolved::from_text(Path::new("gateway.toml"), text) {
        let mut output = String::new();
        explain(&config, &mut output).expect("a string takes everything");
    }
}

/// A capture file of any format.
pub fn capture_file(input: &[u8]) {
    with_file("capture", input, |path| {
        let options = OpenOptions::default();
        let Ok(mut file) = CaptureFile::open(path, &options) else { return };
        while let Ok(Some(datagram)) = file.next_datagram() {
            assert!(datagram.payload.len() <= datagram.captured_len as usize);
        }
    });
}

/// A latency log.
pub fn latency_log(input: &[u8]) {
    let report = Report::of(&[("a.hlog".into(), input.to_vec())], None);
    for damage in &report.damage {
        assert!(damage.offset_bytes <= input.len());
    }
}

/// The names file of an open journal.
pub fn journal_names(input: &[u8]) {
    with_file("unused", &[], |path| {
        let folder = path.with_file_name("journal");
        fs::create_dir_all(&folder).expect("a folder in memory");
        let _is_closed = mdgw_journal::fuzzing::journal_names(input, &folder);
    });
}

/// A segment of a publication log, as a reader of another user gets it: its seal, index and entries, behind the header of a log without
/// checksums. First a byte for the seal and one for the number of index slots, then the slots, then the entries.
pub fn log_segment(input: &[u8]) {
    let [seal, slots, rest @ ..] = input else { return };
    let (index, entries) = rest.split_at(rest.len().min(32 * usize::from(*slots % 4)));
    with_log(|directory, segment, empty| {
        let mut file = empty.to_vec();
        let mut write = |at: usize, bytes: &[u8]| {
            let length = bytes.len().min(file.len() - at);
            file[at..at + length].copy_from_slice(&bytes[..length]);
        };
        write(128, &(index.len() as u64 / 32).to_le_bytes());
        write(256, &(LOG_ENTRIES_AT as u64 + 8 * u64::from(*seal)).to_le_bytes());
        write(4_096, index);
        write(LOG_ENTRIES_AT, entries);
        fs::write(segment, &file).expect("the file can be written");
        for start in [LogStart::Oldest, LogStart::Day, LogStart::Session, LogStart::Live] {
            let channel = LogChannel { id: ChannelId(1), directory: directory.to_owned(), resume: None };
            let config = LogReaderConfig { start, ..LogReaderConfig::new(vec![channel]) };
            let Ok(mut reader) = LogReader::open(config) else { continue };
            let (mut read, mut last) = (0, None);
            let mut check = |output: Output<'_>| {
                if let Item::Message { header, body } = output.item {
                    let name = (output.session, header.sequence.get());
                    assert!(last < Some(name), "names ascend");
                    assert!(body.len() <= 1 << 16);
                    last = Some(name);
                }
            };
            while let Ok(polled) = reader.poll(Duration::ZERO, &mut check)
                && polled.entries > 0
            {
                read += polled.entries;
                assert!(read <= LOG_BYTES / 64, "the reader does not end");
            }
        }
    });
}

/// Calls `read` with a log's directory, the path of its only segment, and the content of an empty one.
fn with_log(read: impl FnOnce(&Path, &Path, &[u8])) {
    thread_local! {
        static LOG: RefCell<Option<(tempfile::TempDir, Vec<u8>)>> = const { RefCell::new(None) };
    }
    LOG.with_borrow_mut(|log| {
        let (folder, empty) = log.get_or_insert_with(|| {
            let folder = tempfile::tempdir_in("/dev/shm").expect("a file system in memory");
            let options = LogOptions {
                segment_bytes: LOG_BYTES,
                private_bytes: LOG_BYTES,
                checksum: Checksum::Off,
                ..LogOptions::new(folder.path(), 1)
            };
            drop(mdgw_publog::open(options, 0).expect("a log can be made"));
            fs::remove_file(folder.path().join("0000000000000002.segment")).expect("a segment made ahead");
            let empty = fs::read(folder.path().join(LOG_SEGMENT)).expect("the first segment");
            (folder, empty)
        });
        read(folder.path(), &folder.path().join(LOG_SEGMENT), empty);
    });
}

const LOG_SEGMENT: &str = "0000000000000001.segment";
const LOG_BYTES: usize = 32 << 10;
/// Behind the header and the slots of the index: one for 16 KiB, and 64 for sessions.
const LOG_ENTRIES_AT: usize = 4_096 + (LOG_BYTES / (16 << 10) + 64) * 32;

/// Calls `read` with the path of a file of that content, in memory.
fn with_file(name: &str, input: &[u8], read: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
    }
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir_in("/dev/shm").expect("a file system in memory"));
        let path = folder.path().join(name);
        fs::write(&path, input).expect("the file can be written");
        read(&path);
    });
}
