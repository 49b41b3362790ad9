//! Merges several captures into one stream by their capture times, in the order in which their datagrams arrived.

use std::{path::PathBuf, str::FromStr};

use mdgw_captures::capture_file::{CaptureError, CaptureFile, CapturedDatagram, OpenOptions};
use mdgw_feeds::time::TradingDate;

/// Several captures that are read together. A damaged capture ends at its damage; the others go on. Datagrams truncated
/// by the snap length are skipped, since part of a packet can't be used; each file counts its own.
#[derive(Debug)]
pub struct CaptureMerge {
    inputs: Vec<MergeInput>,
    window: Window,
    bounds_ns: Option<(u64, u64)>,
    current: Option<usize>,
    damages: Vec<CaptureError>,
}

/// Time window to replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Begin, included.
    pub from: Option<Moment>,
    /// End, excluded.
    pub until: Option<Moment>,
}

/// A time in a capture, as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nanoseconds after the first datagram: `+90.5` (seconds).
    AfterStart(u64),
    /// Nanoseconds since midnight UTC on the day of the first datagram: `13:30`, `13:30:00.25`.
    OfDay(u64),
    /// Nanoseconds since 1970 UTC: `2017-04-25T13:30:00Z`.
    At(u64),
}

#[derive(Debug)]
struct MergeInput {
    file: CaptureFile,
    /// Time of the file's current datagram; `None` at its end.
    time_ns: Option<u64>,
}

impl CaptureMerge {
    /// Opens all files.
    ///
    /// # Errors
    /// The first file that cannot be opened. Damage further inside is not an error here: see [`Self::damages`].
    pub fn open(paths: &[PathBuf], options: &OpenOptions, window: Window) -> Result<Self, CaptureError> {
        let inputs = paths
            .iter()
            .map(|path| CaptureFile::open(path, options).map(|file| MergeInput { file, time_ns: None }))
            .collect::<Result<Vec<_>, _>>()?;
        let mut merge = Self { inputs, window, bounds_ns: None, current: None, damages: Vec::new() };
        for index in 0..merge.inputs.len() {
            merge.advance_input(index);
        }
        Ok(merge)
    }

    /// Advances to the next datagram of the window; `false` at the end.
    #[inline]
    pub fn advance(&mut self) -> bool {
        loop {
            if let Some(index) = self.current.take() {
                self.advance_input(index);
            }
            let Some((time_ns, index)) = self.earliest() else { return false };
            let (from_ns, until_ns) = *self.bounds_ns.get_or_insert_with(|| self.window.bounds_ns(time_ns));
            if time_ns >= until_ns {
                return false;
            }
            self.current = Some(index);
            if time_ns >= from_ns {
                return true;
            }
        }
    }

    /// Index of the file, and the datagram that [`Self::advance`] moved to.
    #[inline]
    #[must_use]
    pub fn current(&self) -> Option<(usize, CapturedDatagram<'_>)> {
        let index = self.current?;
        Some((index, self.inputs.get(index)?.file.current()?))
    }

    /// The files, in the order given.
    pub(crate) fn files(&self) -> impl ExactSizeIterator<Item = &CaptureFile> {
        self.inputs.iter().map(|part| &part.file)
    }

    /// The file at this index.
    #[inline]
    #[must_use]
    pub(crate) fn file(&self, index: usize) -> Option<&CaptureFile> {
        self.inputs.get(index).map(|part| &part.file)
    }

    /// Errors that ended files early.
    #[must_use]
    pub fn damages(&self) -> &[CaptureError] {
        &self.damages
    }

    /// Takes the errors out.
    #[must_use]
    pub(crate) fn into_damages(self) -> Vec<CaptureError> {
        self.damages
    }

    /// Frames truncated by snap lengths, in all files.
    #[must_use]
    pub fn truncated(&self) -> u64 {
        self.files().map(|file| file.counts().truncated).sum()
    }

    /// Bytes of all files on disk read so far.
    #[must_use]
    pub(crate) fn file_bytes_read(&self) -> u64 {
        self.files().map(CaptureFile::file_bytes_read).sum()
    }

    #[inline]
    fn earliest(&self) -> Option<(u64, usize)> {
        match self.inputs.as_slice() {
            [only] => only.time_ns.map(|time_ns| (time_ns, 0)),
            // Equal times: the file that was given first.
            inputs => {
                inputs.iter().enumerate().filter_map(|(index, part)| part.time_ns.map(|time| (time, index))).min()
            }
        }
    }

    #[inline]
    fn advance_input(&mut self, index: usize) {
        let Some(part) = self.inputs.get_mut(index) else { return };
        part.time_ns = loop {
            match part.file.next_datagram() {
                Ok(Some(datagram)) if datagram.is_truncated => {}
                Ok(datagram) => break datagram.map(|datagram| datagram.time_ns),
                Err(damage) => {
                    self.damages.push(damage);
                    break None;
                }
            }
        };
    }
}

impl Window {
    /// Half-open bounds of the window in a capture that begins at `first_ns`.
    #[must_use]
    pub(crate) fn bounds_ns(&self, first_ns: u64) -> (u64, u64) {
        (
            self.from.map_or(0, |from| from.resolve(first_ns)),
            self.until.map_or(u64::MAX, |until| until.resolve(first_ns)),
        )
    }
}

impl Moment {
    /// The time this many nanoseconds later.
    #[must_use]
    pub(crate) fn later_by(self, ns: u64) -> Self {
        match self {
            Self::AfterStart(at) => Self::AfterStart(at.saturating_add(ns)),
            Self::OfDay(at) => Self::OfDay(at.saturating_add(ns)),
            Self::At(at) => Self::At(at.saturating_add(ns)),
        }
    }

    fn resolve(self, first_ns: u64) -> u64 {
        match self {
            Self::AfterStart(ns) => first_ns.saturating_add(ns),
            Self::OfDay(ns) => (first_ns / NS_PER_DAY * NS_PER_DAY).saturating_add(ns),
            Self::At(ns) => ns,
        }
    }
}

impl FromStr for Moment {
    type Err = InvalidMoment;

    fn from_str(text: &str) -> Result<Self, InvalidMoment> {
        if let Some(seconds) = text.strip_prefix('+') {
            return parse_seconds(seconds).map(Self::AfterStart).ok_or(InvalidMoment);
        }
        if let Some((date, time)) = text.split_once('T') {
            let date: TradingDate = date.parse().map_err(|_| InvalidMoment)?;
            let time = parse_time_of_day(time.strip_suffix('Z').unwrap_or(time)).ok_or(InvalidMoment)?;
            return Ok(Self::At(date.midnight_utc().0.saturating_add(time)));
        }
        parse_time_of_day(text).map(Self::OfDay).ok_or(InvalidMoment)
    }
}

/// Text that is not a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a time (expected +SECONDS, HH:MM[:SS[.fraction]] or YYYY-MM-DDTHH:MM:SSZ, in UTC)")]
pub struct InvalidMoment;

/// `HH:MM` or `HH:MM:SS[.fraction]`, in ns.
fn parse_time_of_day(text: &str) -> Option<u64> {
    let mut fields = text.splitn(3, ':');
    let hours: u64 = fields.next()?.parse().ok()?;
    let minutes: u64 = fields.next()?.parse().ok()?;
    let seconds_ns = fields.next().map_or(Some(0), parse_seconds)?;
    (hours < 24 && minutes < 60 && seconds_ns < 60 * NS_PER_SECOND)
        .then_some((hours * 60 + minutes) * 60 * NS_PER_SECOND + seconds_ns)
}

/// Seconds with up to nine decimals, in ns.
fn parse_seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let fraction_ns: u64 = format!("{fraction:0<9}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(NS_PER_SECOND)?.checked_add(fraction_ns)
}

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_DAY: u64 = 86_400 * NS_PER_SECOND;

#[cfg(test)]
mod tests {
    use std::fs;

    use mdgw_captures::capture_file::PcapWriter;

    use super::*;

    fn capture(times_s: &[u64]) -> Vec<u8> {
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        for time_s in times_s {
            let (src, dst) = ("10.0.0.1:1".parse().unwrap(), "239.0.0.1:2".parse().unwrap());
            writer.datagram(time_s * NS_PER_SECOND, src, dst, b"x").unwrap();
        }
        writer.finish().unwrap()
    }

    /// File and second of each datagram, and the number of damaged files.
    fn merge(captures: &[Vec<u8>], window: Window) -> (Vec<(usize, u64)>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..captures.len()).map(|n| folder.path().join(n.to_string())).collect();
        for (path, bytes) in paths.iter().zip(captures) {
            fs::write(path, bytes).unwrap();
        }
        let mut merge = CaptureMerge::open(&paths, &OpenOptions::default(), window).unwrap();
        let mut seen = Vec::new();
        while merge.advance() {
            let (file, datagram) = merge.current().unwrap();
            seen.push((file, datagram.time_ns / NS_PER_SECOND));
        }
        (seen, merge.into_damages().len())
    }

    #[test]
    fn files_are_merged_by_time_and_ties_by_position() {
        let captures = [capture(&[1, 4, 5]), capture(&[1, 2, 9]), capture(&[])];
        let (seen, damaged) = merge(&captures, Window::default());
        assert_eq!(seen, [(0, 1), (1, 1), (1, 2), (0, 4), (0, 5), (1, 9)]);
        assert_eq!(damaged, 0);
    }

    #[test]
    fn a_damaged_file_does_not_end_the_others() {
        let mut truncated = capture(&[1, 2]);
        truncated.pop();
        let (seen, damaged) = merge(&[truncated, capture(&[3, 4])], Window::default());
        assert_eq!(seen, [(0, 1), (1, 3), (1, 4)]);
        assert_eq!(damaged, 1);
    }

    #[test]
    fn a_window_is_half_open_and_counts_from_the_first_datagram_of_all() {
        let captures = [capture(&[10, 20, 30, 40]), capture(&[15, 25])];
        let window = |from: &str, until: &str| Window { from: from.parse().ok(), until: until.parse().ok() };
        let seconds = |window| merge(&captures, window).0.into_iter().map(|(_, time_s)| time_s).collect::<Vec<_>>();
        assert_eq!(seconds(window("+5", "+20")), [15, 20, 25]);
        assert_eq!(seconds(window("00:00:25", "")), [25, 30, 40]);
        assert_eq!(seconds(window("", "1970-01-01T00:00:20Z")), [10, 15]);
        assert_eq!(seconds(window("+100", "")), [0; 0]);
    }

    #[test]
    fn moments_are_parsed_strictly() {
        let parse = |text: &str| text.parse::<Moment>();
        assert_eq!(parse("+1.5"), Ok(Moment::AfterStart(1_500_000_000)));
        assert_eq!(parse("13:30"), Ok(Moment::OfDay(48_600_000_000_000)));
        assert_eq!(parse("13:30:00.000000001"), Ok(Moment::OfDay(48_600_000_000_001)));
        assert_eq!(parse("2017-04-25T13:30:00Z"), Ok(Moment::At(1_493_127_000_000_000_000)));
        for text in ["", "+", "+-1", "+1e3", "24:00", "12:60", "12", "12:00:60", "1:2:3.0000000001", "2017-02-30T00:00"]
        {
            assert_eq!(parse(text), Err(InvalidMoment), "{text}");
        }
    }
}
