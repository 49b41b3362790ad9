//! The keys of clients, from a file that only its owner may read.
//!
//! ```text
//! # name     key                               datasets             sessions
//! research   db-unitTESTkey0123456789abcdefgh  XNAS.ITCH,IEXG.DEEP  10
//! backup     db-anotherTESTkey456789abcdefghi  *                    2
//! ```

use std::{collections::HashSet, path::Path};

use mdgw_keys::{KeyError, SecretFile, read_owner_only};

use crate::protocol::auth;

/// A client's key.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientKey {
    /// Name for logs and limits.
    pub name: String,
    key: String,
    /// Datasets that the key opens; empty: all.
    pub datasets: Vec<String>,
    /// Sessions that may be open at a time.
    pub sessions_max: usize,
}

impl std::fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientKey").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientKeys(Vec<ClientKey>);

impl ClientKeys {
    /// Reads the key file.
    ///
    /// # Errors
    /// When the file cannot be read, others could read or change it, or a line is invalid. The text never has a key.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let text = read_owner_only(SecretFile::ClientKeys, path, FILE_BYTES_MAX)?;
        Self::parse(&text).map_err(|what| SecretFile::ClientKeys.malformed(path, what, EXPECTED))
    }

    /// The key that gave this answer to the challenge.
    #[must_use]
    pub fn find(&self, challenge: &str, answered: &str) -> Option<&ClientKey> {
        let index = auth::find_key(challenge, answered, self.0.iter().map(|client| client.key.as_str()))?;
        self.0.get(index)
    }

    /// Number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let (mut names, mut secrets) = (HashSet::new(), HashSet::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let client = parse_line(line).map_err(|what| format!("line {number}: {what}"))?;
            if !names.insert(client.name.clone()) {
                return Err(format!("line {number}: name {:?} is used twice", client.name));
            }
            if !secrets.insert(client.key.clone()) {
                return Err(format!("line {number}: the key of another name"));
            }
            keys.push(client);
        }
        match keys.len() {
            // A file that an editor has emptied must not shut all clients out at a reload.
            0 => Err("no key in it".to_owned()),
            1..=KEYS_MAX => Ok(Self(keys)),
            _ => Err(format!("more than {KEYS_MAX} keys")),
        }
    }
}

fn parse_line(line: &str) -> Result<ClientKey, String> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let [name, key, datasets, sessions] = fields[..] else {
        return Err(format!("{} fields found", fields.len()));
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("name longer than {NAME_BYTES_MAX} bytes"));
    }
    if key.len() != KEY_CHARACTERS || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        return Err(format!("a key is {KEY_CHARACTERS} letters, digits, - or _"));
    }
    let sessions_max = sessions.parse().ok().filter(|count| (1..=SESSIONS_MAX).contains(count));
    Ok(ClientKey {
        name: name.to_owned(),
        key: key.to_owned(),
        datasets: if datasets == "*" { Vec::new() } else { datasets.split(',').map(str::to_owned).collect() },
        sessions_max: sessions_max.ok_or_else(|| format!("sessions: must be 1 to {SESSIONS_MAX}"))?,
    })
}

const EXPECTED: &str = "expected lines of name, key, datasets separated by commas or *, and sessions";
/// What the Rust and C++ clients insist on.
const KEY_CHARACTERS: usize = 32;
const NAME_BYTES_MAX: usize = 64;
const SESSIONS_MAX: usize = 100_000;
/// Keys of one file: each costs a comparison per handshake.
const KEYS_MAX: usize = 10_000;
const FILE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    const KEY: &str = "db-unitTESTkey0123456789abcdefgh";

    #[test]
    fn a_file_of_keys_is_read_and_an_answer_finds_its_key() {
        let text = format!(
            "# comment\n\nresearch {KEY} XNAS.ITCH,IEXG.DEEP 10\n  all\tdb-anotherTESTkey456789abcdefghi * 1\n"
        );
        let keys = ClientKeys::parse(&text).unwrap();
        assert_eq!(keys.count(), 2);
        let found = keys.find("challenge", &auth::answer("challenge", KEY)).unwrap();
        assert_eq!((found.name.as_str(), found.sessions_max), ("research", 10));
        assert_eq!(found.datasets, ["XNAS.ITCH", "IEXG.DEEP"]);
        assert!(!format!("{keys:?}").contains("unitTEST"), "a key is never shown");
        assert_eq!(keys.find("challenge", "0-defgh"), None);
    }

    #[test]
    fn an_invalid_line_is_named_without_the_key() {
        let good = format!("a {KEY} * 1");
        for (text, expected) in [
            ("a b".to_owned(), "line 1: 2 fields found"),
            (format!("a {KEY}x * 1"), "line 1: a key is 32 letters"),
            (format!("a {} * 1", KEY.replace('k', "|")), "line 1: a key is 32 letters"),
            (format!("a {KEY} * 0"), "line 1: sessions: must be 1 to"),
            (format!("{good}\na db-anotherTESTkey456789abcdefghi * 1"), "line 2: name \"a\" is used twice"),
            (format!("{good}\nb {KEY} * 1"), "line 2: the key of another name"),
            ("# all removed\n".to_owned(), "no key in it"),
        ] {
            let error = ClientKeys::parse(&text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("TESTkey"), "{error}");
        }
    }

    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        fs::write(&path, format!("a {KEY} * 1\n")).unwrap();
        for (mode, is_accepted) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(ClientKeys::load(&path).is_ok(), is_accepted, "{mode:o}");
        }
    }
}
