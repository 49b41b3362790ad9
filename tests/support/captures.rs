//! The location of the real captures, and the selection of those that a test needs. They are never in the repository.

use std::{
    env, fs, io,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;

use crate::skip::skip_without_captures;

/// A capture and its expected decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureWithDecode {
    /// The file with the packets, or with the messages of a day file.
    pub capture: PathBuf,
    /// The file with the expected decode: JSON, plain or gzip.
    pub expected: PathBuf,
}

/// The directory of captures: `MDGW_CAPTURES`, else `../shared/captures` as seen from the repository. `None`,
/// with a message on standard error, if it does not exist: the test is then skipped.
#[must_use]
pub fn root(test: &str) -> Option<PathBuf> {
    let root = env::var_os("MDGW_CAPTURES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures"), PathBuf::from);
    if root.is_dir() {
        return Some(root);
    }
    skip_without_captures(test, &format!("no captures at {} (set MDGW_CAPTURES)", root.display()));
    None
}

/// The captures below `root` with a decode, in those directories `venue/feed` that `wanted` accepts, sorted by name.
///
/// # Errors
/// A directory that can't be read, or a capture without an expected decode.
pub fn pairs(root: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<CaptureWithDecode>> {
    let mut pairs = Vec::new();
    for venue in directories(root)? {
        for feed in directories(&venue)? {
            let name = feed.strip_prefix(root).unwrap_or(&feed).to_string_lossy().replace('\\', "/");
            if !wanted(&name) {
                continue;
            }
            for capture in sorted_entries(&feed)?.into_iter().filter(|path| is_capture(path)) {
                pairs.push(CaptureWithDecode { expected: expected_decode_path(&capture)?, capture });
            }
        }
    }
    Ok(pairs)
}

/// A file's content, decompressed if it is gzip.
///
/// # Errors
/// The file can't be read or unpacked.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let compressed = fs::read(path)?;
    if !compressed.starts_with(&[0x1f, 0x8b]) {
        return Ok(compressed);
    }
    let mut content = Vec::new();
    MultiGzDecoder::new(compressed.as_slice()).read_to_end(&mut content)?;
    Ok(content)
}

/// Prints a line on standard error past the test harness, which hides the output of passing tests.
///
/// # Panics
/// When standard error can't be written to.
pub fn print_to_stderr(line: &str) {
    writeln!(io::stderr(), "{line}").expect("standard error takes a line");
}

fn is_capture(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    [".pcap", ".pcapng", ".itch"].iter().any(|suffix| name.ends_with(suffix))
}

fn expected_decode_path(capture: &Path) -> io::Result<PathBuf> {
    let name = capture.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    [format!("{stem}.expected.json"), format!("{stem}.expected.json.gz")]
        .into_iter()
        .map(|name| capture.with_file_name(name))
        .find(|path| path.is_file())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{}: no expected decode", capture.display())))
}

fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(sorted_entries(path)?.into_iter().filter(|path| path.is_dir()).collect())
}

fn sorted_entries(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}
