//! HdrHistogram interval logs, format version 1.3, readable by the official tools, with our disclosure in comments.
//!
//! ```text
//! #[Histogram log format version 1.3]
//! #[mdgw CPU = …]                                   one line per entry of the disclosure
//! #[StartTime: 1548856800.123 (seconds since epoch)]
//! #[BaseTime: 1548856800.123 (seconds since epoch)]
//! "StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
//! Tag=channel=1;stage=wire_to_wire;thread=main-0,0.127,1.007,2.769,HISTF…
//! Tag=channel=1;lead=A,0.127,1.007,0.084,HISTF…
//! #[negative channel=1;stage=wire_to_user;thread=main-0 = 3]
//! #[counts channel=1,0.127,1.007,datagrams=900;messages=2100;duplicates=1040;gaps=0;gap_messages=0;drops=0]
//! #[counts channel=1;line=A,0.127,1.007,packets=450;won_messages=1930;duplicate_messages=170;late_messages=0]
//! ```
//! Start timestamps count from the base time. Lengths and timestamps are seconds, maxima milliseconds, the histograms'
//! values nanoseconds. A tag may contain no comma and no space, hence the semicolons. `lead=A`: the lead of line A, one
//! value for each message that arrived on A before another line. Counts are those of the interval.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Seek as _, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::{
    Counter, Histogram,
    serialization::{Serializer as _, V2DeflateSerializer},
};
use mdgw_telemetry::stages::Stage;
use mdgw_wire::{
    identity::{ChannelId, Line},
    time::{TradingDate, UnixNs},
};

use super::disclosure::Disclosure;

/// First line of a log.
pub const FORMAT_LINE: &str = "#[Histogram log format version 1.3]";
/// Header line with the names of the columns.
pub(crate) const LEGEND: &str = r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#;
/// Prefix of an entry of the disclosure.
pub const DISCLOSURE_PREFIX: &str = "#[mdgw ";
/// Prefix of a count of negative values.
pub const NEGATIVE_PREFIX: &str = "#[negative ";

/// Prefix of the counts of a channel or a line.
pub const COUNTS_PREFIX: &str = "#[counts ";

/// Tag of a stage's interval.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IntervalTag {
    /// Id of the channel.
    pub channel: ChannelId,
    /// Stage of the data path whose values the interval has.
    pub stage: Stage,
    /// Name of the thread.
    pub thread: String,
}

impl fmt::Display for IntervalTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel={};stage={};thread={}", self.channel.0, self.stage.name(), self.thread)
    }
}

impl FromStr for IntervalTag {
    type Err = InvalidTag;

    fn from_str(text: &str) -> Result<Self, InvalidTag> {
        let mut parts = text.split(';').map(|part| part.split_once('='));
        let mut next = |key: &str| match parts.next() {
            Some(Some((found, value))) if found == key => Ok(value),
            _ => Err(InvalidTag),
        };
        let channel = ChannelId(next("channel")?.parse().map_err(|_| InvalidTag)?);
        let stage = Stage::from_name(next("stage")?).ok_or(InvalidTag)?;
        let thread = next("thread")?.to_owned();
        Ok(Self { channel, stage, thread })
    }
}

/// Tag of a line's lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeadTag {
    /// Id of the channel.
    pub channel: ChannelId,
    /// The line that was ahead.
    pub line: Line,
}

impl fmt::Display for LeadTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel={};lead={}", self.channel.0, self.line)
    }
}

impl FromStr for LeadTag {
    type Err = InvalidTag;

    fn from_str(text: &str) -> Result<Self, InvalidTag> {
        let (channel, line) = parse_channel_and(text, ";lead=")?;
        Ok(Self { channel, line: parse_line(line)? })
    }
}

/// Tag of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountsTag {
    /// Id of the channel.
    pub channel: ChannelId,
    /// One of its lines, or `None` for the whole channel.
    pub line: Option<Line>,
}

impl fmt::Display for CountsTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel={}", self.channel.0)?;
        self.line.map_or(Ok(()), |line| write!(f, ";line={line}"))
    }
}

impl FromStr for CountsTag {
    type Err = InvalidTag;

    fn from_str(text: &str) -> Result<Self, InvalidTag> {
        if text.contains(';') {
            let (channel, line) = parse_channel_and(text, ";line=")?;
            return Ok(Self { channel, line: Some(parse_line(line)?) });
        }
        let channel = text.strip_prefix("channel=").and_then(|id| id.parse().ok()).ok_or(InvalidTag)?;
        Ok(Self { channel: ChannelId(channel), line: None })
    }
}

fn parse_channel_and<'t>(text: &'t str, key: &str) -> Result<(ChannelId, &'t str), InvalidTag> {
    let (channel, rest) = text.split_once(key).ok_or(InvalidTag)?;
    let channel = channel.strip_prefix("channel=").and_then(|id| id.parse().ok()).ok_or(InvalidTag)?;
    Ok((ChannelId(channel), rest))
}

/// Parses the letter of a line.
fn parse_line(text: &str) -> Result<Line, InvalidTag> {
    let lines = (0..=u8::MAX).map(Line).take(Line::COUNT_MAX);
    lines.into_iter().find(|line| line.to_string() == text).ok_or(InvalidTag)
}

/// The tag has another form than this module writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a tag such as channel=1;stage=wire_to_wire;thread=main-0 or channel=1;lead=A")]
pub struct InvalidTag;

/// Writes one log. For cold threads: it allocates and waits for the disk.
pub struct IntervalLogWriter<W: Write> {
    out: W,
    base: UnixNs,
    serializer: V2DeflateSerializer,
    bytes: Vec<u8>,
    text: String,
}

/// One log in a file of its own. If it is dropped, what is buffered is written as far as the disk accepts it.
pub struct IntervalLogFile {
    writer: IntervalLogWriter<BufWriter<File>>,
    path: PathBuf,
    /// Length of the file up to the last [`complete`](Self::complete).
    complete_bytes: u64,
    /// Length of the header.
    header_bytes: u64,
}

impl IntervalLogFile {
    /// Creates a file in `directory`, named by its start time, and writes the header.
    ///
    /// # Errors
    /// The file system's error; no file is left then. An existing file is never overwritten.
    pub fn create(directory: &Path, base: UnixNs, disclosure: &Disclosure) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let path = directory.join(file_name(base, std::process::id()));
        let file = BufWriter::new(File::options().write(true).create_new(true).open(&path)?);
        let begun = IntervalLogWriter::begin(file, base, disclosure).and_then(|writer| {
            let mut log = Self { writer, path: path.clone(), complete_bytes: 0, header_bytes: 0 };
            log.complete()?;
            log.header_bytes = log.complete_bytes;
            Ok(log)
        });
        // The error that is reported is that of the write, whatever becomes of the file.
        begun.inspect_err(|_| drop(fs::remove_file(&path)))
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes to the log.
    pub fn writer(&mut self) -> &mut IntervalLogWriter<BufWriter<File>> {
        &mut self.writer
    }

    /// Flushes what was written since the last call. [`abandon`](Self::abandon) keeps it.
    ///
    /// # Errors
    /// The file system's error.
    pub fn complete(&mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.complete_bytes = self.writer.out.get_ref().stream_position()?;
        Ok(())
    }

    /// Whether the file is still at its path. True as well if that cannot be examined.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        match (self.writer.out.get_ref().metadata(), fs::metadata(&self.path)) {
            (Ok(of_file), Ok(of_path)) => identity(of_file) == identity(of_path),
            (_, Err(error)) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
            (Err(_), Ok(_)) => true,
        }
    }

    /// Ends a log that could not be written: the file ends with what was [complete](Self::complete). Without anything but the header it is
    /// removed.
    ///
    /// # Errors
    /// The file system's error. The file may end in the middle of a line then.
    pub fn abandon(self) -> io::Result<()> {
        let (file, _) = self.writer.out.into_parts();
        if self.complete_bytes == self.header_bytes {
            fs::remove_file(&self.path)
        } else {
            file.set_len(self.complete_bytes)
        }
    }
}

impl<W: Write> IntervalLogWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn begin(mut out: W, base: UnixNs, disclosure: &Disclosure) -> io::Result<Self> {
        writeln!(out, "{FORMAT_LINE}")?;
        for (key, value) in disclosure.entries() {
            writeln!(out, "{DISCLOSURE_PREFIX}{key} = {value}]")?;
        }
        let seconds = Seconds(base.0);
        writeln!(out, "#[StartTime: {seconds} (seconds since epoch)]")?;
        writeln!(out, "#[BaseTime: {seconds} (seconds since epoch)]")?;
        writeln!(out, "{LEGEND}")?;
        // Timestamps are written in milliseconds, so their base must be a whole millisecond.
        let base = UnixNs(base.0 / NS_PER_MS * NS_PER_MS);
        Ok(Self { out, base, serializer: V2DeflateSerializer::new(), bytes: Vec::new(), text: String::new() })
    }

    /// Writes an entry of the disclosure that came after the header was written. Keys and values have one line.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write_disclosure(&mut self, key: &str, value: &str) -> io::Result<()> {
        writeln!(self.out, "{DISCLOSURE_PREFIX}{key} = {value}]")
    }

    /// Writes one interval of one tag.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write<T: Counter>(
        &mut self,
        tag: &impl fmt::Display,
        start: UnixNs,
        length_ns: u64,
        histogram: &Histogram<T>,
    ) -> io::Result<()> {
        self.bytes.clear();
        self.serializer.serialize(histogram, &mut self.bytes).map_err(io::Error::other)?;
        self.text.clear();
        STANDARD.encode_string(&self.bytes, &mut self.text);
        let start = Seconds(start.0.saturating_sub(self.base.0));
        let max_ms = Thousandths(histogram.max() / NS_PER_US);
        writeln!(self.out, "Tag={tag},{start},{},{max_ms},{}", Seconds(length_ns), self.text)
    }

    /// Writes the number of negative values of a tag.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write_negative(&mut self, tag: &IntervalTag, count: u64) -> io::Result<()> {
        writeln!(self.out, "{NEGATIVE_PREFIX}{tag} = {count}]")
    }

    /// Writes the counts of an interval, by name.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write_counts(
        &mut self,
        tag: &CountsTag,
        start: UnixNs,
        length_ns: u64,
        counts: &[(&str, u64)],
    ) -> io::Result<()> {
        let start = Seconds(start.0.saturating_sub(self.base.0));
        let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name}={count}")).collect();
        writeln!(self.out, "{COUNTS_PREFIX}{tag},{start},{},{}]", Seconds(length_ns), counts.join(";"))
    }

    /// Flushes the log.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Flushes the log and returns the underlying writer.
    ///
    /// # Errors
    /// The error of the last flush.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Name of the log that begins at `at`, unique among the processes of a host.
fn file_name(at: UnixNs, process: u32) -> String {
    let second = at.0 / 1_000_000_000 % 86_400;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let day = TradingDate::in_utc(at).yyyymmdd();
    format!("mdgw-latency-{day}T{hour:02}{minute:02}{second:02}Z-{process}.hlog")
}

/// Nanoseconds, written as seconds with three decimals.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Thousandths(self.0 / NS_PER_MS).fmt(f)
    }
}

struct Thousandths(u64);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::{
        Deserializer,
        interval_log::{IntervalLogIterator, LogEntry},
    };
    use mdgw_telemetry::stages::StageHistograms;

    use super::*;

    fn tag() -> IntervalTag {
        IntervalTag { channel: ChannelId(1), stage: Stage::WireToWire, thread: "main-0".to_owned() }
    }

    #[test]
    fn tags_round_trip() {
        assert_eq!(tag().to_string(), "channel=1;stage=wire_to_wire;thread=main-0");
        assert_eq!(tag().to_string().parse(), Ok(tag()));
        for text in ["", "channel=1", "channel=70000;stage=publish;thread=x", "channel=1;stage=no;thread=x", "a;b;c"] {
            assert_eq!(text.parse::<IntervalTag>(), Err(InvalidTag), "{text}");
        }
        let lead = LeadTag { channel: ChannelId(7), line: Line(1) };
        assert_eq!((lead.to_string(), lead.to_string().parse()), ("channel=7;lead=B".to_owned(), Ok(lead)));
        for line in [None, Some(Line(0)), Some(Line::RECOVERY)] {
            let counts = CountsTag { channel: ChannelId(7), line };
            assert_eq!(counts.to_string().parse(), Ok(counts));
        }
        for text in ["", "channel=7;lead=", "channel=7;lead=AB", "lead=A", "channel=x;lead=A", "channel=7;line=Z"] {
            assert_eq!(text.parse::<LeadTag>(), Err(InvalidTag), "{text}");
            assert_eq!(text.parse::<CountsTag>(), Err(InvalidTag), "{text}");
        }
    }

    #[test]
    fn an_abandoned_log_ends_with_what_was_complete() {
        let folder = tempfile::tempdir().unwrap();
        let mut log =
            IntervalLogFile::create(folder.path(), UnixNs(1_548_856_800_123_456_789), &Disclosure::default()).unwrap();
        let path = log.path().to_owned();
        log.writer().write_negative(&tag(), 1).unwrap();
        log.complete().unwrap();
        let complete = fs::read_to_string(&path).unwrap();
        log.writer().write_negative(&tag(), 2).unwrap();
        log.writer().flush().unwrap();
        log.writer().write_negative(&tag(), 3).unwrap();
        log.abandon().unwrap();
        assert!(complete.ends_with(" = 1]\n"), "{complete}");
        assert_eq!(fs::read_to_string(&path).unwrap(), complete);

        let log = IntervalLogFile::create(folder.path(), UnixNs(0), &Disclosure::default()).unwrap();
        let path = log.path().to_owned();
        log.abandon().unwrap();
        assert!(!path.exists(), "nothing but a header");
    }

    #[test]
    fn a_log_that_was_moved_or_replaced_is_not_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let log = IntervalLogFile::create(folder.path(), UnixNs(0), &Disclosure::default()).unwrap();
        assert!(log.is_in_place());
        fs::rename(log.path(), folder.path().join("moved")).unwrap();
        assert!(!log.is_in_place());
        fs::write(log.path(), "another").unwrap();
        assert!(!log.is_in_place());
    }

    #[test]
    fn an_independent_parser_reads_times_tags_and_values() {
        let mut disclosure = Disclosure::default();
        disclosure.push("host", "test, with a comma");
        let base = UnixNs(1_548_856_800_123_999_999);
        let mut log = IntervalLogWriter::begin(Vec::new(), base, &disclosure).unwrap();
        let mut set = StageHistograms::new(1, 2);
        for value in 1..=10_000 {
            set.record(mdgw_sys::handle::ChannelIndex(0), Stage::WireToWire, value);
        }
        let histogram = set.recorded().next().unwrap().histogram.clone();
        log.write(&tag(), UnixNs(base.0 + 1_500_000_000), 1_007_000_000, &histogram).unwrap();
        log.write_negative(&tag(), 3).unwrap();
        let counts = CountsTag { channel: ChannelId(1), line: None };
        log.write_counts(&counts, UnixNs(base.0 + 1_500_000_000), 1_007_000_000, &[("messages", 5)]).unwrap();
        let bytes = log.into_inner().unwrap();

        let entries: Vec<_> = IntervalLogIterator::new(&bytes).map(|entry| entry.unwrap()).collect();
        let [LogEntry::StartTime(start), LogEntry::BaseTime(base), LogEntry::Interval(interval)] = entries.as_slice()
        else {
            panic!("{entries:?}")
        };
        assert_eq!((start.as_millis(), base.as_millis()), (1_548_856_800_123, 1_548_856_800_123));
        assert_eq!(interval.tag().unwrap().as_str(), tag().to_string());
        assert_eq!(interval.start_timestamp().as_millis(), 1_500);
        assert_eq!(interval.duration().as_millis(), 1_007);
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut STANDARD.decode(interval.encoded_histogram()).unwrap().as_slice())
            .unwrap();
        assert_eq!(
            (read.len(), read.min(), read.value_at_quantile(0.5)),
            (10_000, 1, histogram.value_at_quantile(0.5))
        );
    }

    #[test]
    fn log_files_are_named_by_their_start_time() {
        assert_eq!(file_name(UnixNs(1_548_856_805_000_000_000), 42), "mdgw-latency-20190130T140005Z-42.hlog");
    }

    #[test]
    fn an_existing_log_is_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let base = UnixNs(1_548_856_800_000_000_000);
        let create = || IntervalLogFile::create(directory.path(), base, &Disclosure::default());
        create().unwrap();
        assert_eq!(create().err().map(|error| error.kind()), Some(io::ErrorKind::AlreadyExists));
    }

    #[test]
    fn a_log_written_by_0_1_0_is_read_and_written_alike() {
        let mut disclosure = Disclosure::default();
        disclosure.push("version", "mdgw 0.1.0");
        let base = UnixNs(1_548_856_800_123_000_000);
        let start = UnixNs(base.0 + 1_500_000_000);
        let length_ns = 1_007_000_000;
        let mut values = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 2).unwrap();
        values.record_n(1_500_000, 3).unwrap();
        let mut log = IntervalLogWriter::begin(Vec::new(), base, &disclosure).unwrap();
        for stage in Stage::ALL {
            log.write(&IntervalTag { stage, ..tag() }, start, length_ns, &values).unwrap();
        }
        let lines = [Line::A, Line::B, Line::RECOVERY];
        for line in lines {
            log.write(&LeadTag { channel: ChannelId(7), line }, start, length_ns, &values).unwrap();
        }
        log.write_negative(&tag(), 3).unwrap();
        let counts = [None, Some(Line::A), Some(Line::RECOVERY)].map(|line| CountsTag { channel: ChannelId(7), line });
        for counts in counts {
            log.write_counts(&counts, start, length_ns, &[("messages", 5), ("gaps", 1)]).unwrap();
        }
        let written = String::from_utf8(log.into_inner().unwrap()).unwrap();

        let fixture = include_str!("../../../tests/data/formats/interval_log.hlog");
        // Histograms are compared by their values: the packed form depends on the compression library.
        let plain = |log: &str| -> String {
            log.lines().map(|line| line.split(",HISTF").next().unwrap_or_default().to_owned() + "\n").collect()
        };
        assert_eq!(plain(&written), plain(fixture));
        for entry in IntervalLogIterator::new(fixture.as_bytes()) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            let packed = STANDARD.decode(interval.encoded_histogram()).unwrap();
            let read: Histogram<u64> = Deserializer::new().deserialize(&mut packed.as_slice()).unwrap();
            assert_eq!(read, values);
            let tag = interval.tag().unwrap().as_str();
            assert!(tag.parse::<IntervalTag>().is_ok() || tag.parse::<LeadTag>().is_ok(), "{tag}");
        }
        let counted = fixture.lines().filter_map(|line| line.strip_prefix(COUNTS_PREFIX)?.split(',').next());
        let counted: Vec<CountsTag> = counted.map(|tag| tag.parse().unwrap()).collect();
        assert_eq!(counted, counts);
    }
}
