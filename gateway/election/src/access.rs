//! How a store is reached. Part of every build: a build without a store's client reports an error when the
//! configuration asks for that store.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use mdgw_keys::{KeyError, SecretFile, read_owner_only};
use serde::{Deserialize, Serialize};

/// Settings that all stores have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreAccess {
    /// Nodes of the store, `host:port`; at least one.
    pub endpoints: Vec<String>,
    /// How long an answer may take before the outcome counts as unknown.
    pub request_timeout: Duration,
    /// The credentials, where the store asks for them.
    pub login: Option<Login>,
}

/// A user, and the file that holds only the password and an end of line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// Name under which the gateway logs in to the store.
    pub user: String,
    /// The file with the password, which is never part of the configuration itself.
    pub password_file: PathBuf,
}

/// Records as keys of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// Nodes, time-out and user of etcd.
    pub access: StoreAccess,
    /// Prefix of the keys of all groups.
    pub prefix: String,
    /// TLS; the nodes' certificates must be signed by this authority.
    pub tls: Option<EtcdTls>,
}

/// Files in PEM form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdTls {
    /// The authority that signed the nodes' certificates.
    pub ca_file: PathBuf,
    /// Our own certificate and its key, where the nodes ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Records as nodes of ZooKeeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZooKeeperConfig {
    /// Nodes of the ensemble, time-out and user. With a user, only that user can access the nodes that gateways create.
    pub access: StoreAccess,
    /// The parent of all groups' nodes.
    pub path: String,
    /// How the leader is chosen.
    pub mode: ZooKeeperMode,
}

/// How the leader is chosen over ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ZooKeeperMode {
    /// By a versioned record whose lease the holder times.
    Lease,
    /// By a queue of ephemeral nodes.
    Latch {
        /// The requested time-out of a session.
        session: Duration,
    },
}

impl EtcdConfig {
    /// Key under which etcd holds a group's record.
    #[must_use]
    pub fn key(&self, group: mdgw_wire::identity::GroupId) -> String {
        format!("{}group-{}", self.prefix, group.0)
    }
}

impl EtcdTls {
    /// Checks that every file can be read, and that nobody but its owner has access to the private key.
    ///
    /// # Errors
    /// One for each file that the gateway could not use.
    pub fn check_files(&self) -> Vec<AccessError> {
        let own = self.identity.as_ref().map(|(certificate, _)| ("certificate", certificate));
        let certificates = [("certificate authority", &self.ca_file)].into_iter().chain(own);
        let unread = certificates.filter_map(|(what, path)| read(what, path).err());
        let refused_key = self.identity.as_ref().and_then(|(_, key)| read_private_key(key).err());
        unread.chain(refused_key).collect()
    }
}

impl ZooKeeperConfig {
    /// Path of the ZooKeeper node that holds a group's record.
    #[must_use]
    pub fn record_path(&self, group: mdgw_wire::identity::GroupId) -> String {
        format!("{}/group-{}", self.path, group.0)
    }
}

impl Login {
    /// Reads the password from [`Self::password_file`], without the end of line.
    ///
    /// # Errors
    /// When the file cannot be read, or others than its owner have access to it.
    pub fn password(&self) -> Result<String, AccessError> {
        let text = read_owner_only(SecretFile::Password, &self.password_file, PASSWORD_FILE_BYTES_MAX)?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

/// Reads the private key of a certificate.
///
/// # Errors
/// When the file cannot be read, or others than its owner have access to it.
pub fn read_private_key(path: &Path) -> Result<String, AccessError> {
    Ok(read_owner_only(SecretFile::PrivateKey, path, PRIVATE_KEY_BYTES_MAX)?)
}

const PASSWORD_FILE_BYTES_MAX: u64 = 4 << 10;
/// Maximum size of a private key in PEM form. One of RSA with 16,384 bits takes about 13,000 bytes.
const PRIVATE_KEY_BYTES_MAX: u64 = 64 << 10;

/// Reads a certificate, which is no secret; `what` says what the file holds, for the error text.
///
/// # Errors
/// When the file cannot be read.
pub fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::File { what, path: path.to_owned(), source })
}

/// Why a store could not be opened. Unreachable nodes are no such reason: they may come back.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A password or private key cannot be read, or others may read it.
    #[error("for the election store: {0}")]
    Secret(#[from] KeyError),
    /// A certificate cannot be read.
    #[error("cannot read {what} {} for the election store: {source}", path.display())]
    File {
        /// What the file should hold, for the error text.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The store's thread cannot be started.
    #[error("cannot start a thread for the election store: {0}")]
    Thread(#[from] io::Error),
}
