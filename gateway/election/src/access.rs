//! How a store is reached. Part of every build: a build without a store's client reports an error when the
//! configuration asks for that store.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

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

#[cfg(feature = "etcd")]
impl EtcdConfig {
    /// Key under which etcd holds a group's record.
    #[must_use]
    pub(crate) fn key(&self, group: mdgw_wire::identity::GroupId) -> String {
        format!("{}group-{}", self.prefix, group.0)
    }
}

impl EtcdTls {
    /// The files to read, each with what it holds, for error texts.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [("certificate", certificate), ("key", key)]);
        [("certificate authority", &self.ca_file)]
            .into_iter()
            .chain(identity)
            .map(|(what, path)| (what, path.as_path()))
    }
}

#[cfg(feature = "zookeeper")]
impl ZooKeeperConfig {
    /// Path of the ZooKeeper node that holds a group's record.
    #[must_use]
    pub(crate) fn record_path(&self, group: mdgw_wire::identity::GroupId) -> String {
        format!("{}/group-{}", self.path, group.0)
    }
}

impl Login {
    /// Reads the password from [`Self::password_file`], without the end of line.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn password(&self) -> Result<String, AccessError> {
        let path = &self.password_file;
        let text = fs::read_to_string(path).map_err(|source| AccessError::File {
            what: "password file",
            path: path.clone(),
            source,
        })?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

/// Reads a file of credentials; `what` says what the file holds, for the error text.
///
/// # Errors
/// When the file cannot be read.
pub fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::File { what, path: path.to_owned(), source })
}

/// Why a store could not be opened. Unreachable nodes are no such reason: they may come back.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file of credentials cannot be read.
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
