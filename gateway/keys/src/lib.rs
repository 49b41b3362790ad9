//! Key files, and other files that hold a secret. Gateways and consumers read them by the same rule: only the owner may have
//! access. A key is a file of 64 hexadecimal digits.

#![forbid(unsafe_code)]

use std::{
    error::Error,
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// A key as it is in its file. `Debug` does not print it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyBytes(pub [u8; KEY_BYTES]);

impl KeyBytes {
    /// Reads the key from a file that holds 64 hexadecimal digits and that only its owner may read.
    ///
    /// # Errors
    /// When the file cannot be read, others could read or change it, or it holds anything else.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let text = read_owner_only(SecretFile::Key, path, FILE_BYTES_MAX)?;
        parse(&text).map_err(|what| SecretFile::Key.malformed(path, what, EXPECTED))
    }
}

/// What a file of a secret holds, for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretFile {
    /// One key: 64 hexadecimal digits.
    Key,
    /// The keys of live clients.
    ClientKeys,
    /// The password of a user.
    Password,
    /// The private key of a certificate.
    PrivateKey,
}

impl SecretFile {
    /// The error for a file of this kind whose content is invalid. `what` must hold nothing of the content.
    #[must_use]
    pub fn malformed(self, path: &Path, what: String, expected: &'static str) -> KeyError {
        KeyError::Malformed { kind: self, path: path.to_owned(), what, expected }
    }
}

impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key file",
            Self::ClientKeys => "file of client keys",
            Self::Password => "password file",
            Self::PrivateKey => "private key",
        })
    }
}

/// Most bytes of a password, a token, credentials or a private key.
pub const SECRET_BYTES_MAX: u64 = 16 << 10;

/// Reads a text file that only its owner may access.
///
/// # Errors
/// When the file cannot be read, others could read or change it, it is no file of text, or it has more than `bytes_max` bytes.
pub fn read_owner_only(kind: SecretFile, path: &Path, bytes_max: u64) -> Result<String, KeyError> {
    let io_error = |source| KeyError::Io { kind, path: path.to_owned(), source };
    let mut file = open_regular(path).map_err(io_error)?;
    // Checks the opened file, since its name may refer to another file by now.
    let mode = file.metadata().map_err(io_error)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::TooPermissive { kind, path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.by_ref().take(bytes_max.saturating_add(1)).read_to_string(&mut text).map_err(io_error)?;
    if text.len() as u64 > bytes_max {
        return Err(kind.malformed(path, format!("longer than {bytes_max} bytes"), "expected a shorter file"));
    }
    Ok(text)
}

/// Opens a file for reading, and refuses what is no regular file: a pipe would block the process that opens it.
///
/// # Errors
/// When it is no regular file, or the operating system refuses.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let refuse_other = |found: fs::Metadata| {
        if found.is_file() { Ok(()) } else { Err(io::Error::other("not a regular file")) }
    };
    refuse_other(fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Its name may refer to another file by now.
    refuse_other(file.metadata()?)?;
    Ok(file)
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyBytes")
    }
}

/// Why a secret could not be loaded.
// By hand: a consumer links this package, and `thiserror` would bring two more.
#[derive(Debug)]
pub enum KeyError {
    /// The operating system refused.
    Io {
        /// What the file should hold.
        kind: SecretFile,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Others than the owner may read or change the file.
    TooPermissive {
        /// What the file should hold.
        kind: SecretFile,
        /// Path of the file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// The content is invalid.
    Malformed {
        /// What the file should hold.
        kind: SecretFile,
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the content, without any of the content.
        what: String,
        /// The content that is expected.
        expected: &'static str,
    },
}

impl KeyError {
    /// Whether this user may not read the file. Its owner may.
    #[must_use]
    pub fn lacks_rights(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { kind, path, source } => {
                write!(f, "cannot read {kind} {}{}: {source}", path.display(), advice(*kind, path, source))
            }
            Self::TooPermissive { kind, path, mode } => {
                let path = path.display();
                write!(f, "{kind} {path}: mode {mode:o} allows access by group or others: chmod 600 {path}")
            }
            Self::Malformed { kind, path, what, expected } => {
                write!(f, "{kind} {}: {what}; {expected}", path.display())
            }
        }
    }
}

impl Error for KeyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::TooPermissive { .. } | Self::Malformed { .. } => None,
        }
    }
}

const EXPECTED: &str = "expected 64 hexadecimal digits, such as openssl rand -hex 32 prints";
const _: () = assert!(KEY_BYTES == 32);

fn advice(kind: SecretFile, path: &Path, error: &io::Error) -> String {
    if kind != SecretFile::Key || error.kind() != io::ErrorKind::NotFound {
        return String::new();
    }
    format!(
        " (copy the key of the deployment to it, or create the first: umask 077; openssl rand -hex {KEY_BYTES} > {})",
        path.display()
    )
}

/// Maximum size of a key file: a key and some white space around it.
const FILE_BYTES_MAX: u64 = 1 << 10;

fn parse(text: &str) -> Result<KeyBytes, String> {
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
    Ok(KeyBytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_readable_or_malformed_key_file_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let load = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            KeyBytes::load(&path)
        };
        let missing = KeyBytes::load(&path).unwrap_err().to_string();
        assert!(missing.contains("openssl rand -hex 32"), "{missing}");
        assert!(
            missing.ends_with("No such file or directory (os error 2)"),
            "a chain of errors ends with its cause: {missing}"
        );
        let digits = "0a".repeat(32);
        assert_eq!(load(&format!("{digits}\n"), 0o600).unwrap(), KeyBytes([10; 32]));
        let mixed = "0123456789abcdefABCDEF".repeat(3);
        assert_eq!(load(&mixed[..64], 0o600).unwrap().0[..11], [1, 35, 69, 103, 137, 171, 205, 239, 171, 205, 239]);
        for mode in [0o640, 0o604, 0o620, 0o602] {
            let refused = load(&digits, mode).unwrap_err().to_string();
            assert!(refused.contains("chmod 600"), "{refused}");
        }
        for text in ["", "0a", &"0x".repeat(32), &"0a".repeat(33), &"00".repeat(32), &"é".repeat(32)] {
            let refused = load(text, 0o600).unwrap_err();
            assert!(matches!(refused, KeyError::Malformed { .. }), "{text:?}");
            assert!(text.len() < 4 || !refused.to_string().contains(text), "a key is never shown");
        }
        let long = load(&format!("{digits}{}", " ".repeat(2_000)), 0o600).unwrap_err().to_string();
        assert!(long.contains("longer than 1024 bytes"), "{long}");
        // Nobody ever writes to the pipe.
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap().success());
        for path in [directory.path(), &pipe] {
            let refused = KeyBytes::load(path).unwrap_err().to_string();
            assert!(refused.ends_with("not a regular file"), "{refused}");
        }
        assert_eq!(format!("{:?}", KeyBytes([7; 32])), "KeyBytes");
    }

    #[test]
    fn every_secret_is_refused_where_others_have_access_and_named_for_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for (kind, name) in [(SecretFile::Password, "password file"), (SecretFile::PrivateKey, "private key")] {
            let _ = fs::remove_file(&path);
            let missing = read_owner_only(kind, &path, 64).unwrap_err().to_string();
            assert!(missing.starts_with(&format!("cannot read {name} ")) && !missing.contains("openssl"), "{missing}");
            fs::write(&path, "hunter2\n").unwrap();
            for (mode, is_accepted) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o610, false)] {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                let read = read_owner_only(kind, &path, 64);
                assert_eq!(read.is_ok(), is_accepted, "{mode:o}");
                let text = read.err().map(|error| format!("{error} {error:?}")).unwrap_or_default();
                assert!(is_accepted || text.contains(&format!("{name} ")) && !text.contains("hunter2"), "{text}");
            }
        }
    }
}
