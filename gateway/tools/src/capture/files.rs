//! Names of output files, and when a file is full.

use std::path::{Path, PathBuf};

use time::UtcDateTime;

/// Options of the output files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFiles {
    /// Path of the file; `-` is standard output. With rotation or a trigger, each file name adds a number and a time:
    /// `day.pcapng.zst` gives `day-00001-20261121T143000Z.pcapng.zst`. Compressed if the name ends in `.zst`.
    pub path: PathBuf,
    /// Start a new file before the current file exceeds this size (uncompressed).
    pub bytes_max: Option<u64>,
    /// Start a new file after this duration, ns.
    pub span_ns_max: Option<u64>,
    /// Keep only the last files of this capture.
    pub files_max: Option<usize>,
}

/// Contradictory options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOutput {
    /// Rotation and triggers need a file, not standard output.
    #[error("rotation and triggers need a file: name one with --out instead of standard output")]
    StandardOutput,
    /// `files_max` needs rotation or a trigger.
    #[error("--files needs --rotate-size, --rotate-time or --trigger")]
    FileLimitWithoutRotation,
}

impl OutputFiles {
    /// Checks the options.
    ///
    /// # Errors
    /// See [`InvalidOutput`].
    pub fn check(&self, has_trigger: bool) -> Result<(), InvalidOutput> {
        let is_series = self.is_series(has_trigger);
        if is_series && super::is_standard_output(&self.path) {
            return Err(InvalidOutput::StandardOutput);
        }
        if self.files_max.is_some() && !is_series {
            return Err(InvalidOutput::FileLimitWithoutRotation);
        }
        Ok(())
    }

    fn is_series(&self, has_trigger: bool) -> bool {
        has_trigger || self.bytes_max.is_some() || self.span_ns_max.is_some()
    }
}

/// Generates the names of a capture's files.
#[derive(Debug)]
pub(super) struct Series {
    files: OutputFiles,
    is_series: bool,
    files_started: u64,
}

/// What has been written to the file that is open: decides when the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CurrentFile {
    pub(super) bytes: u64,
    /// Time of its first packet.
    pub(super) first_ns: Option<u64>,
}

impl Series {
    pub(super) fn new(files: &OutputFiles, has_trigger: bool) -> Self {
        Self { files: files.clone(), is_series: files.is_series(has_trigger), files_started: 0 }
    }

    /// Name of the file that begins now.
    pub(super) fn next(&mut self, now_ns: u64) -> PathBuf {
        self.files_started += 1;
        if self.is_series { numbered(&self.files.path, self.files_started, now_ns) } else { self.files.path.clone() }
    }

    /// Files begun so far.
    pub(super) fn files_started(&self) -> u64 {
        self.files_started
    }

    /// Whether a block of this size and time belongs to the next file.
    pub(super) fn is_full(&self, current: CurrentFile, time_ns: u64, block_bytes: usize) -> bool {
        let Some(first_ns) = current.first_ns else { return false };
        let too_large = self.files.bytes_max.is_some_and(|max| current.bytes + block_bytes as u64 > max);
        let too_long = self.files.span_ns_max.is_some_and(|max| time_ns >= first_ns.saturating_add(max));
        too_large || too_long
    }
}

/// `folder/stem-00001-20261121T143000Z.extensions`.
fn numbered(path: &Path, number: u64, now_ns: u64) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, endings) = match name.find(".pcap").or_else(|| name.find('.')) {
        Some(at) if at > 0 => name.split_at(at),
        _ => (&*name, ""),
    };
    let time = UtcDateTime::from_unix_timestamp_nanos(now_ns.into()).unwrap_or(UtcDateTime::UNIX_EPOCH);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.as_hms();
    let month = u8::from(month);
    let stamp = format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z");
    path.with_file_name(format!("{stem}-{number:05}-{stamp}{endings}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: u64 = 1_700_000_000_123_456_789;

    fn files(path: &str) -> OutputFiles {
        OutputFiles { path: path.into(), bytes_max: Some(1_000), span_ns_max: Some(60), files_max: None }
    }

    #[test]
    fn file_names_contain_number_and_time_and_keep_the_extension() {
        let check = |path: &str, expected: &str| {
            let mut series = Series::new(&files(path), false);
            series.next(NOW_NS);
            assert_eq!(series.next(NOW_NS), Path::new(expected));
        };
        check("a/day.pcapng.zst", "a/day-00002-20231114T221320Z.pcapng.zst");
        check("day.2.pcapng", "day.2-00002-20231114T221320Z.pcapng");
        check("day", "day-00002-20231114T221320Z");
        check(".hidden", ".hidden-00002-20231114T221320Z");
    }

    #[test]
    fn a_capture_without_rotation_keeps_the_given_file_name() {
        let whole = OutputFiles { bytes_max: None, span_ns_max: None, ..files("day.pcapng") };
        assert_eq!(Series::new(&whole, false).next(NOW_NS), Path::new("day.pcapng"));
    }

    #[test]
    fn a_file_is_full_by_size_or_by_time_but_never_without_a_packet() {
        let series = Series::new(&files("x"), false);
        let current = |bytes, first_ns| CurrentFile { bytes, first_ns };
        assert!(!series.is_full(current(900, Some(5)), 64, 100));
        assert!(series.is_full(current(901, Some(5)), 64, 100));
        assert!(series.is_full(current(0, Some(5)), 65, 100));
        assert!(!series.is_full(current(5_000, None), 65, 100), "a file without packets is never full");
    }

    #[test]
    fn impossible_output_options_are_refused() {
        assert_eq!(files("-").check(false), Err(InvalidOutput::StandardOutput));
        let endless = OutputFiles { bytes_max: None, span_ns_max: None, files_max: Some(3), path: "-".into() };
        assert_eq!(endless.check(false), Err(InvalidOutput::FileLimitWithoutRotation));
        assert_eq!(OutputFiles { files_max: None, ..endless }.check(false), Ok(()));
        assert_eq!(OutputFiles { files_max: Some(3), ..files("a") }.check(false), Ok(()));
    }
}
