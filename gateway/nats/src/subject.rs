//! Subjects: which name a symbol has in NATS, and back.
//!
//! A subject is a list of tokens with `.` between them. `*` and `>` are wildcards, and the protocol ends a subject at white space. So a
//! symbol is written as in a URL: each byte that is not a visible ASCII character, and each of `.`, `*`, `>` and `%`, becomes `%` and two
//! hexadecimal digits in upper case. `BRK.B` is `BRK%2EB`.

use std::fmt::Write as _;

use mdgw_wire::identity::{Feed, InstrumentId};

/// Subject of a run of records: `<prefix>.<dataset>.<schema>.<symbol>`. A dataset, such as `XNAS.ITCH`, is two tokens.
#[must_use]
pub fn records_subject(prefix: &str, feed: Feed, schema: &str, symbol_token: &str) -> String {
    format!("{prefix}.{}.{schema}.{symbol_token}", feed.dataset())
}

/// Subject of what the channel lacks: gaps and holes.
#[must_use]
pub fn gap_subject(prefix: &str, feed: Feed) -> String {
    format!("{prefix}.{}._gap", feed.dataset())
}

/// Subject of ends of sessions.
#[must_use]
pub fn end_subject(prefix: &str, feed: Feed) -> String {
    format!("{prefix}.{}._end", feed.dataset())
}

/// All subjects of a channel, with a wildcard.
#[must_use]
pub fn all_subjects(prefix: &str, feed: Feed) -> String {
    format!("{prefix}.{}.>", feed.dataset())
}

/// The token of a symbol.
#[must_use]
pub fn escape(symbol: &[u8]) -> String {
    let mut token = String::with_capacity(symbol.len());
    for byte in symbol {
        if byte.is_ascii_graphic() && !RESERVED.contains(byte) {
            token.push(char::from(*byte));
        } else {
            // Writing to a `String` does not fail.
            let _ok = write!(token, "%{byte:02X}");
        }
    }
    token
}

/// The symbol of a token; `None` if no symbol has that token.
#[must_use]
pub fn unescape(token: &str) -> Option<Vec<u8>> {
    let mut symbol = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        rest = if *first == b'%' {
            let (digits, others) = others.split_first_chunk::<2>()?;
            symbol.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            others
        } else {
            symbol.push(*first);
            others
        };
    }
    // One symbol, one token: otherwise the order books of one instrument could be under two subjects.
    (!symbol.is_empty() && escape(&symbol) == token).then_some(symbol)
}

/// The token of an instrument whose symbol the log does not have: `%i` and its number. No symbol has such a token, since `i` is no
/// hexadecimal digit.
#[must_use]
pub fn token_of_number(instrument: InstrumentId) -> String {
    format!("%i{}", instrument.0)
}

/// Characters that are visible and have a meaning in subjects, or here.
const RESERVED: [u8; 4] = [b'.', b'*', b'>', b'%'];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn symbols_are_written_as_in_a_url() {
        for (symbol, token) in [
            ("AAPL", "AAPL"),
            ("BRK.B", "BRK%2EB"),
            ("ZVZZT  ", "ZVZZT%20%20"),
            ("A*>", "A%2A%3E"),
            ("100%", "100%25"),
            ("ESZ6-ESH7", "ESZ6-ESH7"),
            ("\t\0é", "%09%00%C3%A9"),
        ] {
            assert_eq!(escape(symbol.as_bytes()), token);
            assert_eq!(unescape(token).as_deref(), Some(symbol.as_bytes()));
        }
    }

    #[test]
    fn what_no_symbol_has_is_refused() {
        for token in ["", "%", "%2", "%2e", "%41", "%i7", "A.B", "A B", "%+1", "*", ">"] {
            assert_eq!(unescape(token), None, "{token:?}");
        }
        assert_eq!(token_of_number(InstrumentId(7)), "%i7");
    }

    #[test]
    fn each_dataset_is_two_tokens() {
        for feed in Feed::ALL {
            assert_eq!(feed.dataset().split('.').count(), 2, "{feed}");
            assert_eq!(records_subject("mdgw", feed, "mbo", "A").split('.').count(), 5);
        }
    }

    proptest! {
        #[test]
        fn each_symbol_has_a_legal_token_and_comes_back(symbol in proptest::collection::vec(any::<u8>(), 1..80)) {
            let token = escape(&symbol);
            prop_assert!(token.bytes().all(|byte| byte.is_ascii_graphic() && !b".*>".contains(&byte)), "{token:?}");
            prop_assert_eq!(unescape(&token), Some(symbol));
        }

        #[test]
        fn no_token_is_refused_with_a_panic(token in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(token) = std::str::from_utf8(&token) && let Some(symbol) = unescape(token) {
                prop_assert_eq!(escape(&symbol), token);
            }
        }
    }
}
