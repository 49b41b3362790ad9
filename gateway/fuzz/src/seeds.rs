//! Seeds: the messages and files that earlier versions wrote (`tests/data/formats`), requests of live clients
//! (`tests/data/live`), and captures with faults.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The fixtures of each target, and how many bytes of tag each message ends with.
const FIXTURES: [(&str, &[&str], usize); 10] = [
    ("vote_message", &["quorum_messages.hex"], 32),
    ("election_record", &["record.jsonl"], 0),
    ("death_notice", &["announcement.hex"], 32),
    ("peer_message", &["peer_messages.jsonl"], 0),
    ("member_message", &["emergent_messages.jsonl"], 0),
    ("link_message", &["pair_link_messages.hex"], 0),
    ("control_request", &["control_requests.jsonl"], 0),
    ("configuration", &["configuration"], 0),
    ("capture_file", &["../fuzz/capture"], 0),
    ("latency_log", &["interval_log.hlog"], 0),
];

/// The seeds of each target, by its name.
///
/// # Errors
/// When a fixture cannot be read.
pub fn all() -> io::Result<Vec<(&'static str, Vec<Vec<u8>>)>> {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/formats");
    let mut all = Vec::new();
    for (target, files, tag_bytes) in FIXTURES {
        let mut seeds = Vec::new();
        for file in files {
            seeds.extend(messages(&formats.join(file))?);
        }
        for seed in &mut seeds {
            seed.truncate(seed.len() - tag_bytes);
        }
        all.push((target, seeds));
    }
    let hello = lines(&formats.join("pair_link_hello_5.hex"))?;
    all.push(("link_stream", hello.into_iter().map(|hello| [&[hello.len() as u8][..], &hello].concat()).collect()));
    let sessions = fs::read_to_string(formats.join("../live/sessions.txt"))?;
    let in_pieces = |session: &str| session.lines().flat_map(|line| piece(line)).collect();
    all.push(("live_session", sessions.split("\n\n").map(in_pieces).collect()));
    let copies = lines(&formats.join("state_copy.hex"))?;
    let for_each_feed = copies.iter().flat_map(|copy| (0..3).map(|feed| [&[feed][..], copy].concat()));
    all.push(("state_copy", for_each_feed.collect()));
    // The first byte: checksums are made valid.
    let journal = lines(&formats.join("journal_names.hex"))?;
    all.push(("journal_names", vec![[vec![0], journal.concat()].concat()]));
    all.push(("log_segment", vec![log_segment(&[1, 1]), log_segment(&[1, 2, 3, 5])]));
    Ok(all)
}

/// A segment with a message for each sequence: seal, number of slots, one slot, entries. What has no name is 0.
fn log_segment(sequences: &[u64]) -> Vec<u8> {
    const ENTRIES_AT: u64 = 6_208;
    let session = [1_u64 | 20_260_102 << 32, 0];
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut segment = vec![(19 * sequences.len()) as u8, 1];
    segment.extend(words(&[session[0], session[1], sequences[0], ENTRIES_AT]));
    for (number, sequence) in (0..).zip(sequences) {
        let payload_bytes = 32 + 56;
        let sizes = payload_bytes | 1 << 32;
        segment.extend(words(&[64 + payload_bytes, number, session[0], session[1], *sequence, sequence + 1, 7, sizes]));
        // A frame of 56 bytes and one record, the first and last part; the record's length, in units of four, and its type.
        segment.extend(words(&[*sequence, 9, 56 << 32 | 1 << 48, 3 << 8]));
        segment.extend(words(&[14 | 0xa0 << 8, 0, 0, 0, 0, 0, 0]));
    }
    segment.extend([0xff; 8]);
    segment
}

/// One line of a live client, with its length before it.
fn piece(line: &str) -> Vec<u8> {
    let bytes = [line.as_bytes(), b"\n"].concat();
    bytes.chunks(255).flat_map(|chunk| [&[chunk.len() as u8][..], chunk].concat()).collect()
}

/// The files of a folder, the lines of a text, or the whole of another file.
fn messages(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    if path.is_dir() {
        let files: Vec<PathBuf> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        return files.iter().map(fs::read).collect();
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("hex" | "jsonl") => lines(path),
        _ => Ok(vec![fs::read(path)?]),
    }
}

fn lines(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let text = fs::read_to_string(path)?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.map(|line| if line.starts_with(['{', '[']) { line.as_bytes().to_vec() } else { from_hex(line) }).collect())
}

fn from_hex(line: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    line.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
