//! Authentication: messages between gateways, witnesses and sentinels carry an HMAC-SHA256 (RFC 2104, FIPS 180-4) under
//! a key that all of them share. Messages are not encrypted: positions and epochs are not secret, but must not be
//! forged.
//!
//! A tag proves that a holder of the key wrote the bytes at some time. Freshness is proved separately:
//! - an answer repeats the [`Nonce`] or number of a request that is still outstanding;
//! - on a connection, [`AuthenticatedSession`] ties each message to both ends' nonces and to its number.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The key of one deployment. `Debug` does not print it.
#[derive(Clone)]
pub struct SharedKey(Hmac<Sha256>);

/// Bytes of a tag: HMAC-SHA256, not shortened.
pub const TAG_BYTES: usize = 32;

/// Proof that a holder of the key wrote the bytes.
pub type Tag = [u8; TAG_BYTES];

/// The purpose of a tag. Its label precedes the covered bytes, so that a message for one purpose is not valid for
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Between candidates and voters.
    Vote,
    /// On a connection between two gateways.
    PairLink,
    /// A process has ended.
    DeathNotice,
    /// Between members of the backend without a store.
    Membership,
}

impl SharedKey {
    /// Makes the key from its raw bytes.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        Self(Hmac::new_from_slice(bytes).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")))
    }

    /// Reads the key from a file that holds 64 hexadecimal digits and that only its owner may read.
    ///
    /// # Errors
    /// When the file cannot be read, others could read or change it, or it holds anything else.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let io_error = |source| KeyError::Io { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(io_error)?;
        // Checks the opened file, since its name may refer to another file by now.
        let metadata = file.metadata().map_err(io_error)?;
        if !metadata.is_file() {
            return Err(KeyError::Malformed { path: path.to_owned(), what: "not a regular file".to_owned() });
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::TooPermissive { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.by_ref().take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(io_error)?;
        let bytes = parse(&text).map_err(|what| KeyError::Malformed { path: path.to_owned(), what })?;
        Ok(Self::new(&bytes))
    }

    /// The tag over `parts`, one after the other. The tag does not cover the boundaries between parts: all parts but
    /// one must have fixed lengths, or the parts must contain their lengths.
    #[must_use]
    pub(crate) fn tag(&self, purpose: Purpose, parts: &[&[u8]]) -> Tag {
        self.mac_over(purpose, parts).finalize().into_bytes().into()
    }

    /// Whether `tag` is the tag over `parts`. Takes constant time.
    #[must_use]
    pub(crate) fn is_tag(&self, purpose: Purpose, parts: &[&[u8]], tag: &Tag) -> bool {
        self.mac_over(purpose, parts).verify_slice(tag).is_ok()
    }

    fn mac_over(&self, purpose: Purpose, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(purpose.label());
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey")
    }
}

impl Purpose {
    /// All labels have one length, so that no label is a prefix of another one with data.
    fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Vote => b"mdgw vote      1",
            Self::PairLink => b"mdgw pair      1",
            Self::DeathNotice => b"mdgw death     1",
            Self::Membership => b"mdgw members   1",
        }
    }
}

/// Why the key could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The operating system refused.
    #[error("cannot read key file {}: {source}; create a key with (umask 077; openssl rand -hex 32 > {})", path.display(), path.display())]
    Io {
        /// Path of the key file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Others than the owner may read or change the file.
    #[error("key file {}: mode {mode:o} allows access by group or others: chmod 600 {}", path.display(), path.display())]
    TooPermissive {
        /// Path of the key file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// The file holds no valid key.
    #[error(
        "key file {}: {what}; expected {} hexadecimal digits, such as openssl rand -hex {KEY_BYTES} prints",
        path.display(), 2 * KEY_BYTES
    )]
    Malformed {
        /// Path of the key file.
        path: PathBuf,
        /// What is wrong with the content, without any of the content.
        what: String,
    },
}

/// A random number that is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 16]);

impl Nonce {
    /// Draws a nonce from the kernel's random number generator.
    ///
    /// # Errors
    /// When the kernel provides none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The first 64 bits as a number, for uses that need no more.
    #[must_use]
    pub fn number(self) -> u64 {
        let [number, ..] = self.0.as_chunks().0 else { return 0 };
        u64::from_le_bytes(*number)
    }
}

/// One end of a connection. Each end draws a nonce and sends it in the clear; from then on every message has a tag over
/// both nonces and its number. So a message from another connection, from another moment of this one, or from the other
/// direction is refused. Loss is allowed (numbers may be skipped); repetition and reordering are not.
#[derive(Debug)]
pub struct AuthenticatedSession {
    key: SharedKey,
    purpose: Purpose,
    ours: Nonce,
    theirs: Nonce,
    sent: u64,
    received: u64,
}

impl AuthenticatedSession {
    /// Begins a session. `None` when both nonces are equal: the other end reflects ours.
    #[must_use]
    pub fn new(key: SharedKey, purpose: Purpose, ours: Nonce, theirs: Nonce) -> Option<Self> {
        (ours != theirs).then_some(Self { key, purpose, ours, theirs, sent: 0, received: 0 })
    }

    /// Number and tag for the next outgoing message.
    pub fn seal(&mut self, message: &[u8]) -> (u64, Tag) {
        self.sent += 1;
        let number = self.sent.to_le_bytes();
        (self.sent, self.key.tag(self.purpose, &[&self.ours.0, &self.theirs.0, &number, message]))
    }

    /// Verifies that the other end wrote this message in this session, and that it arrives for the first time.
    ///
    /// # Errors
    /// When the tag is wrong, or the message was repeated or reordered.
    pub fn open(&mut self, number: u64, message: &[u8], tag: &Tag) -> Result<(), AuthError> {
        let parts: [&[u8]; 4] = [&self.theirs.0, &self.ours.0, &number.to_le_bytes(), message];
        if !self.key.is_tag(self.purpose, &parts, tag) {
            return Err(AuthError::Forged);
        }
        if number <= self.received {
            return Err(AuthError::Replayed);
        }
        self.received = number;
        Ok(())
    }
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Its tag is not valid under our key.
    #[error("authentication failed (different key)")]
    Forged,
    /// The message, or a later one, was received before.
    #[error("it was received before, or is older than one that was (replayed)")]
    Replayed,
}

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// Maximum size of a key file: a key and some white space around it.
const FILE_BYTES_MAX: u64 = 1 << 10;

fn parse(text: &str) -> Result<[u8; KEY_BYTES], String> {
    let digits = text.trim_ascii().as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return Err(format!("{} characters found", digits.len()));
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
        let (Some(high), Some(low)) = (high, low) else {
            return Err("contains characters other than hexadecimal digits".to_owned());
        };
        *byte = high << 4 | low;
    }
    if bytes == [0; KEY_BYTES] {
        return Err("the key is all zeros".to_owned());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn tags_match_the_published_test_vector() {
        // The same as: printf 'mdgw vote      1abc' | openssl dgst -sha256 -mac HMAC -macopt hexkey:0b0b…0b (32 bytes)
        let tag = SharedKey::new(&[0x0b; 32]).tag(Purpose::Vote, &[b"a", b"bc"]);
        let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, VECTOR);
    }

    #[test]
    fn a_changed_bit_key_or_purpose_is_detected() {
        let key = SharedKey::new(&[1; 32]);
        let tag = key.tag(Purpose::Vote, &[b"message"]);
        assert!(key.is_tag(Purpose::Vote, &[b"message"], &tag));
        assert!(!key.is_tag(Purpose::PairLink, &[b"message"], &tag));
        assert!(!SharedKey::new(&[2; 32]).is_tag(Purpose::Vote, &[b"message"], &tag));
        assert!(!key.is_tag(Purpose::Vote, &[b"massage"], &tag));
        for bit in 0..TAG_BYTES * 8 {
            let mut damaged = tag;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_tag(Purpose::Vote, &[b"message"], &damaged), "bit {bit}");
        }
    }

    #[test]
    fn a_readable_or_malformed_key_file_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let load = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            SharedKey::load(&path)
        };
        let missing = SharedKey::load(&path).unwrap_err().to_string();
        assert!(missing.contains("openssl rand -hex 32"), "{missing}");
        let digits = "0a".repeat(32);
        let key = load(&format!("{digits}\n"), 0o600).unwrap();
        assert_eq!(key.tag(Purpose::Vote, &[]), SharedKey::new(&[10; 32]).tag(Purpose::Vote, &[]));
        for mode in [0o640, 0o604, 0o620, 0o602] {
            let refused = load(&digits, mode).unwrap_err().to_string();
            assert!(refused.contains("chmod 600"), "{refused}");
        }
        for text in ["", "0a", &"0x".repeat(32), &"0a".repeat(33), &"00".repeat(32), &"é".repeat(32)] {
            let refused = load(text, 0o600).unwrap_err();
            assert!(matches!(refused, KeyError::Malformed { .. }), "{text:?}");
            assert!(text.len() < 4 || !refused.to_string().contains(text), "a key is never shown");
        }
        let refused = SharedKey::load(directory.path()).unwrap_err();
        assert!(matches!(refused, KeyError::Malformed { .. } | KeyError::TooPermissive { .. }), "{refused}");
    }

    /// Both ends of a connection.
    fn ends() -> [AuthenticatedSession; 2] {
        let (key, a, b) = (SharedKey::new(&[1; 32]), Nonce([1; 16]), Nonce([2; 16]));
        [(a, b), (b, a)]
            .map(|(ours, theirs)| AuthenticatedSession::new(key.clone(), Purpose::PairLink, ours, theirs).unwrap())
    }

    #[test]
    fn a_message_is_accepted_once_in_order_and_only_by_the_other_end() {
        let [mut a, mut b] = ends();
        let (first, first_tag) = a.seal(b"one");
        let (second, second_tag) = a.seal(b"two");
        assert_eq!(a.open(first, b"one", &first_tag), Err(AuthError::Forged), "sent back to its writer");
        assert_eq!(b.open(second, b"one", &first_tag), Err(AuthError::Forged), "under another number");
        assert_eq!(b.open(first, b"one", &first_tag), Ok(()));
        assert_eq!(b.open(first, b"one", &first_tag), Err(AuthError::Replayed));
        assert_eq!(b.open(second, b"two", &second_tag), Ok(()));
        assert_eq!(b.open(first, b"one", &first_tag), Err(AuthError::Replayed), "an older one");
        let other = Nonce([3; 16]);
        let mut later = AuthenticatedSession::new(b.key.clone(), Purpose::PairLink, other, a.ours).unwrap();
        assert_eq!(later.open(second, b"two", &second_tag), Err(AuthError::Forged), "on another connection");
    }

    #[test]
    fn a_reflected_nonce_is_refused() {
        let nonce = Nonce::random().unwrap();
        assert!(AuthenticatedSession::new(SharedKey::new(&[1; 32]), Purpose::PairLink, nonce, nonce).is_none());
        assert_ne!(nonce, Nonce::random().unwrap());
    }

    const VECTOR: &str = "a1df171aa91af526159a18082b40a04ff36ab2dfa10ba9a2f5ba8c4dcee53c7a";
}
