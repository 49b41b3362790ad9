//! Reads one interval log, line by line. Histograms stay encoded until their values are needed.

use std::{
    fmt,
    io::{self, Read as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::read::ZlibDecoder;
use hdrhistogram::{Histogram, serialization::Deserializer};
use mdgw_feeds::time::UnixNs;
use mdgw_status::interval_log::{
    COUNTS_PREFIX, CountsTag, DISCLOSURE_PREFIX, FORMAT_LINE, IntervalTag, InvalidTag, LeadTag, NEGATIVE_PREFIX,
};
use mdgw_telemetry::counters::CounterKey;

/// Content of one log.
#[derive(Debug, Default)]
pub(super) struct Log<'a> {
    /// Disclosure of the writer.
    pub(super) disclosure: Vec<(String, String)>,
    /// Base of its timestamps.
    pub(super) base: Option<UnixNs>,
    /// Intervals in the log's order.
    pub(super) intervals: Vec<Interval<'a>>,
    /// Leads of lines.
    pub(super) leads: Vec<Interval<'a, LeadTag>>,
    /// Counts of channels and lines.
    pub(super) counts: Vec<Counts<'a>>,
    /// Values that were negative.
    pub(super) negatives: Vec<(IntervalTag, u64)>,
    /// Lines that could not be read.
    pub(super) damage: Vec<LogDamage>,
}

/// One line with a histogram.
#[derive(Debug)]
pub(super) struct Interval<'a, Tag = IntervalTag> {
    pub(super) place: LinePosition,
    pub(super) tag: Tag,
    pub(super) start: UnixNs,
    pub(super) length_ns: u64,
    encoded: &'a str,
}

/// Counts of a channel or a line over an interval.
#[derive(Debug)]
pub(super) struct Counts<'a> {
    pub(super) tag: CountsTag,
    pub(super) start: UnixNs,
    pub(super) length_ns: u64,
    values: Vec<(&'a str, u64)>,
}

/// A line of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinePosition {
    /// From 1.
    pub(super) line: usize,
    /// Offset in the file, bytes.
    pub(super) offset_bytes: usize,
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDamage {
    /// Path of the log.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// Offset of the line in the file, bytes.
    pub offset_bytes: usize,
    /// Fault of the line.
    pub reason: String,
}

impl LogDamage {
    pub(super) fn at(path: &Path, LinePosition { line, offset_bytes }: LinePosition, reason: String) -> Self {
        Self { path: path.to_owned(), line, offset_bytes, reason }
    }
}

/// The lines of a file with their ends, and where they are. Only the last one may lack its end.
pub(super) fn lines_of(bytes: &[u8]) -> impl Iterator<Item = (LinePosition, &[u8])> {
    let mut offset_bytes = 0;
    (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')).map(move |(number, line)| {
        let place = LinePosition { line: number, offset_bytes };
        offset_bytes += line.len();
        (place, line)
    })
}

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} (line at byte {})", self.path.display(), self.line, self.reason, self.offset_bytes)
    }
}

impl<'a> Log<'a> {
    /// Reads all lines of `bytes`, the content of `path`. A file that doesn't begin like an interval log is not read at
    /// all.
    pub(super) fn read(path: &Path, bytes: &'a [u8]) -> Self {
        let mut log = Self::default();
        if !bytes.starts_with(FORMAT_LINE.as_bytes()) {
            let reason = format!("not a latency log: the first line is not {FORMAT_LINE}");
            log.damage.push(LogDamage { path: path.to_owned(), line: 1, offset_bytes: 0, reason });
            return log;
        }
        for (place, line) in lines_of(bytes) {
            let is_whole = line.ends_with(b"\n");
            let outcome = match std::str::from_utf8(line) {
                Ok(_) if !is_whole => Err("truncated line".to_owned()),
                Ok(text) => log.line(place, text.trim_end()),
                Err(_) => Err("not valid UTF-8".to_owned()),
            };
            if let Err(reason) = outcome {
                log.damage.push(LogDamage::at(path, place, reason));
            }
        }
        log
    }

    fn line(&mut self, place: LinePosition, text: &'a str) -> Result<(), String> {
        let entry = |prefix| text.strip_prefix(prefix).map(|rest| rest.strip_suffix(']').unwrap_or(rest));
        if let Some(entry) = entry(DISCLOSURE_PREFIX) {
            let (key, value) = entry.split_once(" = ").ok_or("disclosure entry without a value")?;
            self.disclosure.push((present_key(key).to_owned(), value.to_owned()));
        } else if let Some(entry) = entry(NEGATIVE_PREFIX) {
            let (tag, count) = entry.split_once(" = ").ok_or("negative-value count is missing")?;
            let tag = tag.parse().map_err(|error| format!("{error}"))?;
            let count = count.parse().map_err(|_| format!("{count:?} is not a count"))?;
            self.negatives.push((tag, count));
        } else if let Some(entry) = entry(COUNTS_PREFIX) {
            let base = self.base.ok_or(NO_BASE_TIME)?;
            self.counts.push(Counts::read(entry, base)?);
        } else if let Some(rest) = text.strip_prefix("#[BaseTime: ") {
            let seconds = rest.split(' ').next().unwrap_or_default();
            self.base = Some(UnixNs(nanoseconds(seconds)?));
        } else if !(text.is_empty() || text.starts_with('#') || text.starts_with("\"StartTimestamp\"")) {
            let base = self.base.ok_or(NO_BASE_TIME)?;
            let tag = text.split(',').next().unwrap_or_default();
            if tag.contains(";lead=") {
                self.leads.push(Interval::read(place, text, base)?);
            } else {
                self.intervals.push(Interval::read(place, text, base)?);
            }
        }
        Ok(())
    }
}

const NO_BASE_TIME: &str = "interval before the BaseTime line";

impl<'a> Counts<'a> {
    fn read(entry: &'a str, base: UnixNs) -> Result<Self, String> {
        let fields: Vec<&str> = entry.split(',').collect();
        let [tag, start, length, values] = fields.as_slice() else {
            return Err(format!("{} fields, expected tag, start, length and counts", fields.len()));
        };
        let value = |text: &'a str| {
            let (name, count) = text.split_once('=').ok_or_else(|| format!("{text:?} is not a count"))?;
            Ok((name, count.parse().map_err(|_| format!("{text:?} is not a count"))?))
        };
        Ok(Self {
            tag: tag.parse().map_err(|error| format!("counts of {tag:?}: {error}"))?,
            start: UnixNs(base.0.saturating_add(nanoseconds(start)?)),
            length_ns: nanoseconds(length)?,
            values: values.split(';').map(value).collect::<Result<_, String>>()?,
        })
    }

    /// The count with that key; 0 if the log has none.
    pub(super) fn value(&self, key: impl CounterKey) -> u64 {
        let name = key.descriptor().name;
        self.values.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    }
}

impl<'a, Tag: FromStr<Err = InvalidTag>> Interval<'a, Tag> {
    fn read(place: LinePosition, text: &'a str, base: UnixNs) -> Result<Self, String> {
        let fields: Vec<&str> = text.split(',').collect();
        let [tag, start, length, _max, encoded] = fields.as_slice() else {
            return Err(format!("{} fields, expected tag, start, length, maximum and histogram", fields.len()));
        };
        let tag = tag.strip_prefix("Tag=").ok_or("expected Tag=channel=…")?;
        Ok(Self {
            place,
            tag: tag.parse().map_err(|error| format!("tag {tag:?}: {error}"))?,
            start: UnixNs(base.0.saturating_add(nanoseconds(start)?)),
            length_ns: nanoseconds(length)?,
            encoded,
        })
    }

    /// Decodes its histogram.
    pub(super) fn histogram(&self, deserializer: &mut Deserializer) -> Result<Histogram<u64>, String> {
        let encoded =
            STANDARD.decode(self.encoded).map_err(|error| format!("histogram is not valid base64: {error}"))?;
        let wrong = |error: String| format!("histogram cannot be decoded: {error}");
        let plain = uncompressed(encoded).map_err(|error| wrong(error.to_string()))?;
        check_payload(&plain).map_err(wrong)?;
        deserializer.deserialize(&mut plain.as_slice()).map_err(|error| wrong(error.to_string()))
    }
}

/// A histogram, decompressed if necessary.
fn uncompressed(encoded: Vec<u8>) -> io::Result<Vec<u8>> {
    let Some((COMPRESSED_COOKIE, rest)) = encoded.split_first_chunk().map(|(cookie, rest)| (*cookie, rest)) else {
        return Ok(encoded);
    };
    let mut plain = Vec::new();
    ZlibDecoder::new(rest.get(LENGTH_BYTES..).unwrap_or_default()).take(PLAIN_BYTES_MAX).read_to_end(&mut plain)?;
    Ok(plain)
}

/// Rejects two faults on which the deserializer would crash: it allocates as many bytes as the header claims, and it
/// negates the run length 2^63 of empty values. No valid histogram has either.
fn check_payload(plain: &[u8]) -> Result<(), String> {
    let present = plain.get(HEADER_BYTES..).ok_or("shorter than a histogram header")?;
    let claimed = plain.get(COOKIE_BYTES..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes));
    if present.len() < claimed as usize {
        return Err(format!("declares {claimed} bytes, {} present", present.len()));
    }
    if present.windows(VARINT_BYTES_MAX).any(|varint| varint.iter().all(|byte| *byte == 0xff)) {
        return Err("zero run exceeds the histogram".to_owned());
    }
    Ok(())
}

/// Cookie of a compressed histogram of version 2.
const COMPRESSED_COOKIE: [u8; COOKIE_BYTES] = 0x1c84_9314_u32.to_be_bytes();
const COOKIE_BYTES: usize = 4;
/// Length field after a compressed histogram's cookie.
const LENGTH_BYTES: usize = 4;
/// Bytes of a histogram's header: cookie, length, offset, digits, lowest and highest value, ratio.
const HEADER_BYTES: usize = 40;
const VARINT_BYTES_MAX: usize = 9;
/// Most bytes of a decompressed histogram: more than a histogram of all 64-bit values with five digits has.
const PLAIN_BYTES_MAX: u64 = 64 << 20;

/// Parses seconds with up to nine decimals without a floating-point number.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a time in seconds");
    let (seconds, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(seconds) || !is_digits(decimals) || decimals.len() > 9 {
        return Err(wrong());
    }
    let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
    let decimals: u64 = format!("{decimals:0<9}").parse().map_err(|_| wrong())?;
    seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(decimals)).ok_or_else(wrong)
}

/// Keys of the disclosure that older logs name differently, so that a comparison with them shows no difference.
fn present_key(key: &str) -> &str {
    if key == "receive stamps" { "receive timestamps" } else { key }
}

#[cfg(test)]
mod tests {
    use mdgw_telemetry::channel_metrics::LineCount;

    use super::*;

    #[test]
    fn seconds_are_parsed_exactly() {
        assert_eq!(nanoseconds("1548856800.123"), Ok(1_548_856_800_123_000_000));
        assert_eq!(nanoseconds("0.000000001"), Ok(1));
        assert_eq!(nanoseconds("7"), Ok(7_000_000_000));
        for text in ["", ".", "-1.0", "1.0000000001", "1e3", "99999999999999999999.0", "99999999999.0"] {
            assert!(nanoseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_older_logs_disclosure_has_the_present_keys() {
        let disclosure = |key: &str| {
            let text = format!("#[Histogram log format version 1.3]\n#[mdgw {key} = kernel software]\n");
            Log::read(Path::new("x.hlog"), text.as_bytes()).disclosure
        };
        assert_eq!(disclosure("receive stamps"), disclosure("receive timestamps"));
        assert_eq!(disclosure("host")[0].0, "host");
    }

    #[test]
    fn damaged_lines_are_named_and_the_others_kept() {
        let text =
            b"#[Histogram log format version 1.3]\n#[mdgw host = a = b]\n#[BaseTime: 10.000 (seconds since epoch)]\n\
            Tag=channel=1;stage=publish;thread=m-0,1.000,2.000,3.000,xyz\n\
            Tag=channel=1;stage=nonsense;thread=m-0,1.000,2.000,3.000,xyz\n\
            \xff\xfe\n1.0,2.0\n#[negative channel=1;stage=publish;thread=m-0 = 4]\n#[negative x]\n\
            #[counts channel=1;line=A,1.000,2.000,packets=x]\n\
            #[counts channel=1;line=A,1.000,2.000,packets=7;new=9]\n\
            Tag=channel=1;lead=A,1.000,2.000,3.000,xyz\n\
            Tag=channel=1;stage=publish;thread=m-0,1.000,2.0";
        let log = Log::read(Path::new("x.hlog"), text);
        assert_eq!(log.disclosure, [("host".to_owned(), "a = b".to_owned())]);
        assert_eq!(log.intervals.len(), 1);
        assert_eq!((log.intervals[0].start, log.intervals[0].length_ns), (UnixNs(11_000_000_000), 2_000_000_000));
        assert!(log.intervals[0].histogram(&mut Deserializer::new()).is_err());
        assert_eq!(log.negatives.len(), 1);
        let lines: Vec<usize> = log.damage.iter().map(|damage| damage.line).collect();
        assert_eq!(lines, [5, 6, 7, 9, 10, 13]);
        let packets_and_late = (log.counts[0].value(LineCount::packets), log.counts[0].value(LineCount::late_messages));
        assert_eq!(packets_and_late, (7, 0), "a count that an older log lacks is 0");
        assert_eq!((log.counts.len(), log.leads.len()), (1, 1));
        let cut_at = text.len() - "Tag=channel=1;stage=publish;thread=m-0,1.000,2.0".len();
        let expected = format!("x.hlog:13: truncated line (line at byte {cut_at})");
        assert_eq!(log.damage.last().unwrap().to_string(), expected);
    }

    #[test]
    fn a_file_that_is_no_log_is_refused() {
        for text in [&b""[..], b"1\n2\n3\n", &[0; 4096], b"#[Histogram"] {
            let log = Log::read(Path::new("x.hlog"), text);
            assert_eq!(log.damage.len(), 1);
            assert!(log.damage[0].reason.starts_with("not a latency log"), "{}", log.damage[0]);
        }
    }

    #[test]
    fn an_interval_without_a_base_time_is_damage() {
        let text =
            b"#[Histogram log format version 1.3]\nTag=channel=1;stage=publish;thread=m-0,1.000,2.000,3.000,xyz\n";
        let log = Log::read(Path::new("x.hlog"), text);
        assert!(log.intervals.is_empty());
        assert!(log.damage[0].reason.contains("BaseTime"), "{}", log.damage[0]);
    }
}
