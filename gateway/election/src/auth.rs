//! Authentication: messages between gateways, witnesses and sentinels carry an HMAC-SHA256 (RFC 2104, FIPS 180-4) under
//! a key that all of them share. Messages are not encrypted: positions and epochs are not secret, but must not be
//! forged.
//!
//! A tag proves that a holder of the key wrote the bytes at some time. Who wrote them, and when, is proved separately:
//! - an answer repeats the [`Nonce`] or number of a request that is still outstanding; a message without a connection
//!   names its sender under the tag;
//! - on a connection, [`AuthenticatedSession`] ties each message to what both ends stated about themselves, to both ends'
//!   nonces and to its number.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
pub use mdgw_keys::KeyError;
use mdgw_keys::{KEY_BYTES, KeyBytes};
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

    /// Reads the key from a file.
    ///
    /// # Errors
    /// As [`KeyBytes::load`].
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        KeyBytes::load(path).map(|key| Self::new(&key.0))
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

    /// A key of its own, from this key and `parts`, for which the rule of [`Self::tag`] holds. HMAC is a pseudorandom
    /// function: the result tells nothing of this key, and other parts give an unrelated key.
    fn derive(&self, purpose: Purpose, parts: &[&[u8]]) -> Self {
        Self::new(&self.tag(purpose, parts))
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
            Self::PairLink => b"mdgw pair      2",
            Self::DeathNotice => b"mdgw death     1",
            Self::Membership => b"mdgw members   1",
        }
    }
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

/// One end of a connection. Each end opens it with a hello in the clear: its nonce, and what it says of itself, such as
/// its node number. The key of each direction is derived from the shared key and both hellos, the sender's first. So a
/// tag is valid only between two ends that have seen the same two hellos, in one direction, on one connection. A tag also
/// covers the message's number. Loss is allowed (numbers may be skipped); repetition and reordering are not.
#[derive(Debug)]
pub struct AuthenticatedSession {
    purpose: Purpose,
    /// Key of what this end sends.
    ours: SharedKey,
    /// Key of what the other end sends.
    theirs: SharedKey,
    sent: u64,
    received: u64,
}

impl AuthenticatedSession {
    /// Begins a session. Each hello contains a nonce of its sender. `None` when both hellos are equal: the other end
    /// reflects ours.
    #[must_use]
    pub fn new<const HELLO_BYTES: usize>(
        key: &SharedKey,
        purpose: Purpose,
        ours: &[u8; HELLO_BYTES],
        theirs: &[u8; HELLO_BYTES],
    ) -> Option<Self> {
        let key_of =
            |sender: &[u8; HELLO_BYTES], receiver: &[u8; HELLO_BYTES]| key.derive(purpose, &[sender, receiver]);
        (ours != theirs).then(|| Self {
            purpose,
            ours: key_of(ours, theirs),
            theirs: key_of(theirs, ours),
            sent: 0,
            received: 0,
        })
    }

    /// Number and tag for the next outgoing message.
    pub fn seal(&mut self, message: &[u8]) -> (u64, Tag) {
        self.sent += 1;
        (self.sent, self.ours.tag(self.purpose, &[&self.sent.to_le_bytes(), message]))
    }

    /// Verifies that the other end wrote this message in this session, and that it arrives for the first time.
    ///
    /// # Errors
    /// When the tag is wrong, or the message was repeated or reordered.
    pub fn open(&mut self, number: u64, message: &[u8], tag: &Tag) -> Result<(), AuthError> {
        if !self.theirs.is_tag(self.purpose, &[&number.to_le_bytes(), message], tag) {
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
    #[error("authentication failed (different key, or changed on the way)")]
    Forged,
    /// The message, or a later one, was received before.
    #[error("it was received before, or is older than one that was (replayed)")]
    Replayed,
}

#[cfg(test)]
mod tests {
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

    /// Both ends of a connection. Each receives the other's hello as `theirs` changes it.
    fn ends_with(theirs: impl Fn([u8; 4]) -> [u8; 4]) -> [AuthenticatedSession; 2] {
        let key = SharedKey::new(&[1; 32]);
        [([1; 4], [2; 4]), ([2; 4], [1; 4])]
            .map(|(a, b)| AuthenticatedSession::new(&key, Purpose::PairLink, &a, &theirs(b)).unwrap())
    }

    #[test]
    fn a_message_is_accepted_once_in_order_and_only_by_the_other_end() {
        let [mut a, mut b] = ends_with(|hello| hello);
        let (first, first_tag) = a.seal(b"one");
        let (second, second_tag) = a.seal(b"two");
        assert_eq!(a.open(first, b"one", &first_tag), Err(AuthError::Forged), "sent back to its writer");
        assert_eq!(b.open(second, b"one", &first_tag), Err(AuthError::Forged), "under another number");
        assert_eq!(b.open(first, b"one", &first_tag), Ok(()));
        assert_eq!(b.open(first, b"one", &first_tag), Err(AuthError::Replayed));
        assert_eq!(b.open(second, b"two", &second_tag), Ok(()));
        assert_eq!(b.open(first, b"one", &first_tag), Err(AuthError::Replayed), "an older one");
        let key = SharedKey::new(&[1; 32]);
        let mut later = AuthenticatedSession::new(&key, Purpose::PairLink, &[3; 4], &[1; 4]).unwrap();
        assert_eq!(later.open(second, b"two", &second_tag), Err(AuthError::Forged), "on another connection");
    }

    #[test]
    fn a_message_is_refused_when_either_hello_was_changed() {
        for byte in 0..4 {
            for (of_first, of_second) in [(1, 0), (0, 1), (1, 1)] {
                let change = |mut hello: [u8; 4]| {
                    hello[byte] ^= if hello[3] == 2 { of_second } else { of_first };
                    hello
                };
                let [mut a, mut b] = ends_with(change);
                let (number, tag) = a.seal(b"one");
                assert_eq!(b.open(number, b"one", &tag), Err(AuthError::Forged), "byte {byte}");
            }
        }
    }

    #[test]
    fn no_tag_of_a_session_is_a_tag_of_the_shared_key() {
        let (key, [mut a, _]) = (SharedKey::new(&[1; 32]), ends_with(|hello| hello));
        let (number, tag) = a.seal(b"one");
        for purpose in [Purpose::Vote, Purpose::PairLink, Purpose::DeathNotice, Purpose::Membership] {
            assert!(!key.is_tag(purpose, &[&number.to_le_bytes(), b"one"], &tag), "{purpose:?}");
        }
    }

    #[test]
    fn a_reflected_nonce_is_refused() {
        let nonce = Nonce::random().unwrap();
        assert!(AuthenticatedSession::new(&SharedKey::new(&[1; 32]), Purpose::PairLink, &nonce.0, &nonce.0).is_none());
        assert_ne!(nonce, Nonce::random().unwrap());
    }

    const VECTOR: &str = "a1df171aa91af526159a18082b40a04ff36ab2dfa10ba9a2f5ba8c4dcee53c7a";
}
