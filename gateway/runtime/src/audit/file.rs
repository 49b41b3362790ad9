//! The audit's file: append-only, and a line counts once it is synced.
//!
//! An incomplete line after a crash or on a full disk stays in the file. It is ended by a newline and followed by a
//! line that reports it: nothing that a reader may have seen is removed. Readers skip invalid lines and report how
//! much they skipped.
//!
//! The last field of a line, `crc32c`, is the CRC-32C of the bytes before the comma that precedes it: a changed digit would
//! otherwise be another valid number. Lines without it, as 0.1.0 wrote them first, are read.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use mdgw_election::identity::NodeId;
use mdgw_feeds::identity::{Epoch, GroupId};
use mdgw_sys::{clock::unix_now, file_lock::try_lock};

use super::entry::{AuditEvent, Entry, PendingEntry};

/// An audit file open for appending. Locked against a second writer as long as it lives.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    file: File,
    /// Number of the last line.
    number: u64,
    /// Bytes at the end that belong to no complete line.
    torn_bytes: u64,
}

/// What an audit file contained when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Complete entries.
    pub entries: u64,
    /// Lines that are not valid entries.
    pub damaged_lines: u64,
    /// Bytes of an incomplete last line.
    pub torn_bytes: u64,
}

/// Why an audit file cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The operating system refused.
    #[error("cannot {act} audit file {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        act: &'static str,
        /// Path of the audit file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is a device, a directory or a pipe.
    #[error("audit file {} is not a regular file, so it cannot be read back", path.display())]
    NotARegularFile {
        /// Path that was given for the audit file.
        path: PathBuf,
    },
    /// Another process has the file open for writing.
    #[error("audit file {} is in use by another gateway", path.display())]
    Busy {
        /// Path of the audit file.
        path: PathBuf,
    },
}

impl AuditFile {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// When it cannot be read or written, or another process writes it.
    pub fn open(path: impl Into<PathBuf>) -> Result<(Self, Recovered), AuditError> {
        let path = path.into();
        let io = |act: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| AuditError::Io { act, path, source }
        };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(io("make the directory of", &path))?;
        }
        let file = File::options().read(true).append(true).create(true).open(&path).map_err(io("open", &path))?;
        if !file.metadata().map_err(io("stat", &path))?.is_file() {
            return Err(AuditError::NotARegularFile { path });
        }
        if !try_lock(&file).map_err(io("lock", &path))? {
            return Err(AuditError::Busy { path });
        }
        let history = AuditHistory::of(&file).map_err(io("read", &path))?;
        let recovered = Recovered {
            entries: history.entries.len() as u64,
            damaged_lines: history.damaged_lines,
            torn_bytes: history.torn_bytes,
        };
        let number = history.entries.iter().map(|entry| entry.number).max().unwrap_or(0);
        Ok((Self::from_parts(file, path, number, history.torn_bytes), recovered))
    }

    pub(super) fn from_parts(file: File, path: PathBuf, number: u64, torn_bytes: u64) -> Self {
        Self { path, file, number, torn_bytes }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still at its path. True as well if that cannot be examined.
    #[must_use]
    pub(super) fn is_in_place(&self) -> bool {
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(of_file), Ok(of_path)) => identity(of_file) == identity(of_path),
            (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => false,
            _ => true,
        }
    }

    /// Goes on in a new file at the same path, since somebody has moved or removed this one. The numbers go on.
    ///
    /// # Errors
    /// When no file can be opened there. This one is still written then.
    pub(super) fn begin_again(&mut self) -> Result<(), AuditError> {
        let (mut file, _) = Self::open(&self.path)?;
        file.number = file.number.max(self.number);
        *self = file;
        Ok(())
    }

    /// Appends a line; it is on disk when this returns.
    ///
    /// # Errors
    /// When the line cannot be written or synced. The next append first ends the part that was written.
    pub fn append(&mut self, draft: &PendingEntry) -> Result<(), AuditError> {
        if self.torn_bytes > 0 {
            let torn = PendingEntry {
                time: unix_now(),
                group: GroupId(0),
                node: NodeId(0),
                epoch: Epoch::default(),
                change: AuditEvent::Torn { bytes: self.torn_bytes },
            };
            self.line("\n", &torn)?;
        }
        self.line("", draft)
    }

    fn line(&mut self, before: &str, draft: &PendingEntry) -> Result<(), AuditError> {
        let number = self.number + 1;
        let entry =
            serde_json::to_string(&Entry::of(draft, number)).unwrap_or_else(|_| unreachable!("numbers and text"));
        let text = format!("{before}{}\n", with_checksum(&entry));
        let mut left = text.as_bytes();
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    self.torn_bytes += (text.len() - left.len()) as u64;
                    return Err(AuditError::Io { act: "write", path: self.path.clone(), source });
                }
            }
        }
        self.torn_bytes = 0;
        self.number = number;
        // A line that is not synced may be lost in a crash. So it is written again, under the same number.
        self.file.sync_data().map_err(|source| {
            self.number = number - 1;
            AuditError::Io { act: "sync", path: self.path.clone(), source }
        })
    }
}

/// The contents of an audit file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditHistory {
    /// Valid entries, in the order of the file.
    pub entries: Vec<Entry>,
    /// Lines that are not valid entries.
    pub damaged_lines: u64,
    /// Bytes of a last line without a newline: being written, or left by a crash.
    pub torn_bytes: u64,
}

impl AuditHistory {
    /// Reads a file, which may be in use.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Self, AuditError> {
        let io = |act| move |source| AuditError::Io { act, path: path.to_owned(), source };
        // Opening a pipe would block.
        if !path.metadata().map_err(io("stat"))?.is_file() {
            return Err(AuditError::NotARegularFile { path: path.to_owned() });
        }
        Self::of(&File::open(path).map_err(io("open"))?).map_err(io("read"))
    }

    /// Reads the end of a file, which may be in use: at most [`END_BYTES_MAX`].
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_end(path: &Path) -> Result<Self, AuditError> {
        let io = |act| move |source| AuditError::Io { act, path: path.to_owned(), source };
        let metadata = path.metadata().map_err(io("stat"))?;
        if !metadata.is_file() {
            return Err(AuditError::NotARegularFile { path: path.to_owned() });
        }
        let mut file = File::open(path).map_err(io("open"))?;
        let begin = metadata.len().saturating_sub(END_BYTES_MAX);
        // One byte earlier: if a line begins at `begin`, only the newline before that line is skipped.
        file.seek(SeekFrom::Start(begin.saturating_sub(1))).map_err(io("read"))?;
        let mut input = BufReader::new(file.take(END_BYTES_MAX + 1));
        if begin > 0 {
            skip_line(&mut input).map_err(io("read"))?;
        }
        Self::of(input).map_err(io("read"))
    }

    fn of(file: impl io::Read) -> io::Result<Self> {
        let mut history = Self::default();
        let mut input = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut bytes = (&mut input).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? as u64;
            if bytes == 0 {
                return Ok(history);
            }
            let is_whole = line.ends_with(b"\n")
                || bytes == LINE_BYTES_MAX && {
                    let (skipped, is_ended) = skip_line(&mut input)?;
                    bytes += skipped;
                    is_ended
                };
            if !is_whole {
                history.torn_bytes = bytes;
            } else if let Some(entry) = parse_line(&line) {
                if history.entries.last() != Some(&entry) {
                    history.entries.push(entry);
                }
            } else {
                history.damaged_lines += 1;
            }
        }
    }
}

/// The line of an entry, a JSON object, with its checksum as the last field.
fn with_checksum(entry: &str) -> String {
    let fields = entry.strip_suffix('}').unwrap_or_else(|| unreachable!("an object"));
    format!("{fields}{CHECKSUM_FIELD}{}}}", crc32c::crc32c(fields.as_bytes()))
}

/// The entry of a line; `None` if the line is damaged. Where the name of the checksum's field is damaged, nothing else is:
/// then the line counts as one without a checksum.
fn parse_line(line: &[u8]) -> Option<Entry> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let name = CHECKSUM_FIELD.as_bytes();
    let tail = line.len().saturating_sub(name.len() + CHECKSUM_DIGITS_MAX + 1);
    let Some(at) = line[tail..].windows(name.len()).rposition(|window| window == name).map(|at| tail + at) else {
        return serde_json::from_slice(line).ok();
    };
    let (fields, digits) = (&line[..at], line[at + name.len()..].strip_suffix(b"}")?);
    let crc: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let is_intact = crc == crc32c::crc32c(fields);
    is_intact.then(|| serde_json::from_slice(&[fields, b"}"].concat()).ok())?
}

/// Bytes of the rest of a line, and whether it ends in a newline.
fn skip_line(input: &mut impl io::BufRead) -> io::Result<(u64, bool)> {
    let mut skipped = 0;
    loop {
        let held = input.fill_buf()?;
        let end = held.iter().position(|byte| *byte == b'\n');
        let bytes = end.map_or(held.len(), |end| end + 1);
        input.consume(bytes);
        skipped += bytes as u64;
        if end.is_some() || bytes == 0 {
            return Ok((skipped, end.is_some()));
        }
    }
}

const CHECKSUM_FIELD: &str = ",\"crc32c\":";
const CHECKSUM_DIGITS_MAX: usize = 10;
/// How much of the end of a file [`AuditHistory::read_end`] reads: some thousand changes of leadership of a few channels, or a
/// few tens of a large gateway.
const END_BYTES_MAX: u64 = 1 << 20;
/// Longest line that is read. An entry with all channels of a large gateway has some hundred kilobytes.
const LINE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use mdgw_feeds::time::UnixNs;

    use super::*;

    fn draft(count: u64) -> PendingEntry {
        PendingEntry {
            time: UnixNs(count),
            group: GroupId(1),
            node: NodeId(2),
            epoch: Epoch::new(count, 2),
            change: AuditEvent::Lost { reason: "expired".into() },
        }
    }

    #[test]
    fn entries_are_numbered_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/audit.jsonl");
        for start in 0..3 {
            let (mut file, recovered) = AuditFile::open(&path).unwrap();
            assert_eq!(recovered, Recovered { entries: 2 * start, damaged_lines: 0, torn_bytes: 0 });
            file.append(&draft(2 * start + 1)).unwrap();
            file.append(&draft(2 * start + 2)).unwrap();
        }
        let history = AuditHistory::read(&path).unwrap();
        assert_eq!(history.entries.len(), 6);
        assert!(history.entries.iter().all(|entry| entry.number == entry.epoch_count));
    }

    #[test]
    fn devices_and_endless_lines_take_no_memory() {
        for device in ["/dev/zero", "/dev/full"] {
            assert!(matches!(AuditFile::open(device).unwrap_err(), AuditError::NotARegularFile { .. }), "{device}");
            assert!(
                matches!(AuditHistory::read(Path::new(device)).unwrap_err(), AuditError::NotARegularFile { .. }),
                "{device}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        AuditFile::open(&path).unwrap().0.append(&draft(1)).unwrap();
        // An oversized line without a newline, and one with.
        let mut text = fs::read(&path).unwrap();
        let long = vec![b'x'; 3 * usize::try_from(LINE_BYTES_MAX).unwrap() / 2];
        text.extend([&long[..], b"\n"].concat());
        fs::write(&path, &text).unwrap();
        let history = AuditHistory::read(&path).unwrap();
        assert_eq!((history.entries.len(), history.damaged_lines, history.torn_bytes), (1, 1, 0));
        text.extend(&long);
        fs::write(&path, &text).unwrap();
        let history = AuditHistory::read(&path).unwrap();
        assert_eq!((history.damaged_lines, history.torn_bytes), (1, long.len() as u64));
    }

    #[test]
    fn a_line_torn_at_any_byte_is_terminated_and_reported_and_earlier_lines_survive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (mut file, _) = AuditFile::open(&path).unwrap();
        file.append(&draft(1)).unwrap();
        let first_bytes = fs::read(&path).unwrap().len();
        file.append(&draft(2)).unwrap();
        drop(file);
        let whole = fs::read(&path).unwrap();
        for cut in first_bytes + 1..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut file, recovered) = AuditFile::open(&path).unwrap();
            let torn_bytes = (cut - first_bytes) as u64;
            assert_eq!(recovered, Recovered { entries: 1, damaged_lines: 0, torn_bytes });
            file.append(&draft(3)).unwrap();
            drop(file);
            let history = AuditHistory::read(&path).unwrap();
            // A line that lacks only its newline is complete and counts.
            let (entries, damaged_lines) = if cut == whole.len() - 1 { (4, 0) } else { (3, 1) };
            assert_eq!((history.entries.len(), history.damaged_lines), (entries, damaged_lines), "cut at {cut}");
            assert_eq!(history.entries[entries - 2].change, AuditEvent::Torn { bytes: torn_bytes });
            assert!(fs::read(&path).unwrap().starts_with(&whole[..cut]), "nothing was taken back");
        }
    }

    /// Each byte of a file of three lines takes each other value. Returns how many of these files yield an entry that was not
    /// written, or lose more than the two lines that a changed newline joins.
    fn undetected_changes(text: &[u8]) -> usize {
        let written = AuditHistory::of(text).unwrap().entries;
        assert_eq!(written.len(), 3);
        let mut undetected = 0;
        for position in 0..text.len() {
            for mask in 1..=255 {
                let mut damaged = text.to_vec();
                damaged[position] ^= mask;
                let found = AuditHistory::of(&damaged[..]).unwrap();
                let is_silent = found.entries.len() < 3 && found.damaged_lines == 0 && found.torn_bytes == 0;
                let is_right = found.entries.iter().all(|entry| written.contains(entry)) && !found.entries.is_empty();
                undetected += usize::from(is_silent || !is_right);
            }
        }
        undetected
    }

    #[test]
    fn an_audit_with_any_byte_changed_yields_only_entries_that_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (mut file, _) = AuditFile::open(&path).unwrap();
        for count in 1..=3 {
            file.append(&draft(count)).unwrap();
        }
        drop(file);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(undetected_changes(text.as_bytes()), 0);
        // Without checksums, this check finds other epochs, nodes and times.
        let without: String =
            text.lines().map(|line| format!("{}}}\n", &line[..line.rfind(CHECKSUM_FIELD).unwrap()])).collect();
        assert!(undetected_changes(without.as_bytes()) > 100);
    }

    #[test]
    fn the_end_of_a_long_file_has_its_newest_lines_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (mut file, _) = AuditFile::open(&path).unwrap();
        file.append(&draft(1)).unwrap();
        drop(file);
        assert_eq!(AuditHistory::read_end(&path).unwrap(), AuditHistory::read(&path).unwrap());
        let line = fs::read_to_string(&path).unwrap();
        // Lines of one length, then one byte more before them in each turn: the cut falls at each place of a line.
        let newest = u64::try_from(line.len()).unwrap();
        let count = usize::try_from(END_BYTES_MAX / newest).unwrap() + 3;
        for more in 0..=line.len() {
            let filler = "x".repeat(more) + "\n";
            // Equal lines in a row count once, so that a line written again after a failed sync counts once.
            let last = with_number(&line, 2);
            fs::write(&path, filler + &line.repeat(count) + &last).unwrap();
            let end = AuditHistory::read_end(&path).unwrap();
            assert_eq!((end.entries.len(), end.damaged_lines, end.torn_bytes), (2, 0, 0), "{more}");
            assert_eq!(end.entries.last().unwrap().number, 2);
        }
        assert!(matches!(AuditHistory::read_end(Path::new("/dev/zero")), Err(AuditError::NotARegularFile { .. })));
    }

    /// The line with another number of as many digits, and the checksum made anew.
    fn with_number(line: &str, number: u64) -> String {
        let entry = Entry { number, ..parse_line(line.as_bytes()).unwrap() };
        with_checksum(&serde_json::to_string(&entry).unwrap()) + "\n"
    }

    #[test]
    fn a_second_writer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let _first = AuditFile::open(&path).unwrap();
        assert!(matches!(AuditFile::open(&path), Err(AuditError::Busy { .. })));
    }

    #[test]
    fn junk_is_skipped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        fs::write(&path, b"\x00\xff\n{}\n[1]\n{\"number\":1}\n").unwrap();
        let (mut file, recovered) = AuditFile::open(&path).unwrap();
        assert_eq!(recovered, Recovered { entries: 0, damaged_lines: 4, torn_bytes: 0 });
        file.append(&draft(1)).unwrap();
        assert_eq!(AuditHistory::read(&path).unwrap().entries.len(), 1);
    }

    #[test]
    fn a_file_that_was_moved_goes_on_in_a_new_one_with_the_next_number() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("audit.jsonl"), folder.path().join("audit.jsonl.1"));
        let (mut file, _) = AuditFile::open(&path).unwrap();
        file.append(&draft(1)).unwrap();
        assert!(file.is_in_place());
        fs::rename(&path, &moved).unwrap();
        assert!(!file.is_in_place());
        file.begin_again().unwrap();
        assert!(file.is_in_place());
        file.append(&draft(2)).unwrap();
        let numbers = |path: &Path| {
            AuditHistory::read(path).unwrap().entries.iter().map(|entry| entry.number).collect::<Vec<_>>()
        };
        assert_eq!((numbers(&moved), numbers(&path)), (vec![1], vec![2]));
    }

    #[test]
    fn a_failed_write_is_an_error_and_uses_no_number() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut file = AuditFile::from_parts(full, "/dev/full".into(), 4, 0);
        let error = file.append(&draft(5)).unwrap_err().to_string();
        assert!(error.contains("write audit file /dev/full"), "{error}");
        assert_eq!(file.number, 4);
    }
}
