//! Challenge and answer: `auth=<hex SHA-256 of "challenge|key">-<last five characters of the key>`.

use std::{fs::File, io, io::Read as _};

use sha2::{Digest as _, Sha256};

/// Characters of a key that name it in an answer.
pub const KEY_NAME_BYTES: usize = 5;
/// Characters of a challenge.
pub const CHALLENGE_BYTES: usize = 32;
/// Characters of the answer before the key's name.
const DIGEST_HEX_BYTES: usize = 64;

/// A new challenge from the kernel's random number generator: 32 letters and digits.
///
/// # Errors
/// When the kernel provides no random numbers.
pub fn new_challenge() -> io::Result<String> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = [0; CHALLENGE_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect())
}

/// The answer that a client with this key gives.
#[must_use]
pub fn answer(challenge: &str, key: &str) -> String {
    let digest = Sha256::new().chain_update(challenge).chain_update("|").chain_update(key).finalize();
    let name = key.get(key.len().saturating_sub(KEY_NAME_BYTES)..).unwrap_or_default();
    let mut text = String::with_capacity(DIGEST_HEX_BYTES + 1 + KEY_NAME_BYTES);
    for byte in digest {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text.push('-');
    text.push_str(name);
    text
}

/// Index of the key that gave this answer. The time does not depend on how much of an answer is right; an unknown key costs
/// the work of a known one.
#[must_use]
pub fn find_key<'k>(challenge: &str, answered: &str, keys: impl Iterator<Item = &'k str>) -> Option<usize> {
    let name = answered.get(answered.len().saturating_sub(KEY_NAME_BYTES)..).unwrap_or_default();
    let mut found = None;
    let mut is_any_compared = false;
    for (index, key) in keys.enumerate() {
        if key.len() < KEY_NAME_BYTES || key.get(key.len() - KEY_NAME_BYTES..) != Some(name) {
            continue;
        }
        is_any_compared = true;
        if is_equal(answered.as_bytes(), answer(challenge, key).as_bytes()) && found.is_none() {
            found = Some(index);
        }
    }
    if !is_any_compared {
        // The same work as for a known name. Its result is not used.
        let dummy = answer(challenge, UNKNOWN_KEY);
        std::hint::black_box(is_equal(answered.as_bytes(), dummy.as_bytes()));
    }
    found
}

/// Stands for the key of an answer with an unknown name.
const UNKNOWN_KEY: &str = "db-000000000000000000000000000000";

/// Compares all bytes, whatever the first difference.
fn is_equal(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let difference = left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "db-unitTESTkey0123456789abcdefgh";
    const CHALLENGE: &str = "fWLTPGkBNO2jAGMDnHYf6JaEeLnlIHWw";
    const ANSWER: &str = "375d59e1145118151c4317f9b5c53c67a049e28b7ea7b62459da336b70613a6c-defgh";

    #[test]
    fn the_answer_is_that_of_the_official_clients() {
        assert_eq!(answer(CHALLENGE, KEY), ANSWER);
        let other = "db-anotherTESTkey456789abcdefgh";
        assert_eq!(find_key(CHALLENGE, ANSWER, [other, KEY].into_iter()), Some(1));
    }

    #[test]
    fn the_name_of_a_key_may_have_a_hyphen() {
        let key = "db-unitTESTkey0123456789abcd-xyz";
        assert_eq!(find_key(CHALLENGE, &answer(CHALLENGE, key), [KEY, key].into_iter()), Some(1));
    }

    #[test]
    fn any_other_answer_finds_no_key() {
        for index in 0..ANSWER.len() {
            let mut wrong = ANSWER.as_bytes().to_vec();
            wrong[index] = if wrong[index] == b'0' { b'1' } else { b'0' };
            let wrong = String::from_utf8(wrong).unwrap();
            assert_eq!(find_key(CHALLENGE, &wrong, [KEY].into_iter()), None, "{wrong}");
        }
        for wrong in ["", "-", "-defgh", "defgh", &ANSWER[1..], &ANSWER.to_uppercase()] {
            assert_eq!(find_key(CHALLENGE, wrong, [KEY].into_iter()), None, "{wrong}");
        }
        assert_eq!(find_key("another challenge", ANSWER, [KEY].into_iter()), None);
        assert_eq!(find_key(CHALLENGE, ANSWER, std::iter::empty()), None);
        assert_eq!(find_key(CHALLENGE, "", ["", "abc"].into_iter()), None);
    }

    #[test]
    fn challenges_are_printable_and_differ() {
        let challenges: std::collections::BTreeSet<_> = (0..100).map(|_| new_challenge().unwrap()).collect();
        assert_eq!(challenges.len(), 100);
        assert!(
            challenges.iter().all(|text| text.len() == 32 && text.bytes().all(|b| b.is_ascii_graphic() && b != b'|'))
        );
    }
}
