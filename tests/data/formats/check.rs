//! Compares a fixture of this folder with the values that it encodes. Each package includes this file in its unit tests.

use std::fmt::Debug;

/// Each message of the fixture must be read as its value, and each value must be written as its message.
///
/// A line is one message: JSON, or else hexadecimal digits. Lines that begin with `#` are comments.
#[track_caller]
pub(crate) fn check<T: PartialEq + Debug>(
    fixture: &str,
    values: &[T],
    mut read: impl FnMut(&[u8]) -> T,
    write: impl Fn(&T) -> Vec<u8>,
) {
    let lines: Vec<&str> = fixture.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), values.len(), "messages of the fixture and values");
    for (line, value) in lines.into_iter().zip(values) {
        let bytes = if line.starts_with(['{', '[']) { line.as_bytes().to_vec() } else { from_hex(line) };
        assert_eq!(read(&bytes), *value, "{line}");
        assert_eq!(write(value).escape_ascii().to_string(), bytes.escape_ascii().to_string(), "{value:?}");
    }
}

fn from_hex(line: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    line.as_bytes().chunks(2).map(byte).collect()
}
