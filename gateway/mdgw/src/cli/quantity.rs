//! Parsers for sizes and durations on the command line.

/// Parses `500ms`, `10s`, `5m`, `1h`, or a bare number of seconds. Returns nanoseconds, above 0.
pub(super) fn parse_duration_ns(text: &str) -> Result<u64, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3_600e9)];
    parse(text, &units, 1e9).ok_or_else(|| "expected a duration such as 500ms, 10s, 5m or 1h".to_owned())
}

/// Parses `100MB` (1 MB = 1,000,000 bytes), `64MiB` (1 MiB = 1,048,576 bytes), or a bare number of bytes; above 0.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 1_024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("B", 1.0),
    ];
    parse(text, &units, 1.0).ok_or_else(|| "expected a size such as 500kB, 100MB or 2GiB".to_owned())
}

/// Parses a number and a unit. A number without unit is multiplied by `bare`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and below 2^63, as checked")]
fn parse(text: &str, units: &[(&str, f64)], bare: f64) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.get(digits.len()..)?;
    let size = match unit {
        "" => bare,
        unit => units.iter().find(|(name, _)| *name == unit)?.1,
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = digits.parse::<f64>().ok().filter(|_| is_number)? * size;
    (1.0..9e18).contains(&value).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_parsed_with_their_units() {
        for (text, ns) in [("10", 10_000_000_000), ("1.5s", 1_500_000_000), ("500ms", 500_000_000), ("1ns", 1)] {
            assert_eq!(parse_duration_ns(text), Ok(ns), "{text}");
        }
        assert_eq!((parse_duration_ns("2m"), parse_duration_ns("1h")), (Ok(120_000_000_000), Ok(3_600_000_000_000)));
        for (text, bytes) in
            [("100", 100), ("100MB", 100_000_000), ("64MiB", 64 << 20), ("1.5kB", 1_500), ("2G", 2_000_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "s", "-1s", "0", "1 s", "1e3", "10x", "NaN", "inf", "99999999999999999999"] {
            assert!(parse_duration_ns(text).is_err() && parse_bytes(text).is_err(), "{text}");
        }
    }
}
