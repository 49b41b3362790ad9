//! Quantities in readable form.

use std::fmt;

/// Bytes in the largest binary unit that leaves a whole number or two digits.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    #[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) if self.0.is_multiple_of(size) => write!(f, "{} {unit}", self.0 / size),
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Nanoseconds in the largest unit that leaves a whole number.
pub(super) struct Nanoseconds(pub(super) u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (3_600_000_000_000, "h"),
            (60_000_000_000, "min"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
            (1, "ns"),
        ];
        let fits = units.into_iter().find(|(size, _)| self.0 >= *size && self.0.is_multiple_of(*size));
        let (size, unit) = fits.unwrap_or((1, "ns"));
        write!(f, "{} {unit}", self.0 / size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_formatted_for_people() {
        let bytes = [1_023, 1_024, 1 << 20, 3 << 29, 212_992].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(bytes, ["1023 B", "1 KiB", "1 MiB", "1.5 GiB", "208 KiB"]);
        let times = [0, 999, 2_000_000, 90_000_000_000].map(|ns| Nanoseconds(ns).to_string());
        assert_eq!(times, ["0 ns", "999 ns", "2 ms", "90 s"]);
    }
}
