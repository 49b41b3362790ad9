//! Numbers formatted for people, as commands, reports and explanations of a configuration write them.

use std::fmt;

/// A count with thousands separators.
#[derive(Clone, Copy)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        let texts = [0, 999, 1_000, 12_345, 1_234_567].map(|count| Count(count).to_string());
        assert_eq!(texts, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
