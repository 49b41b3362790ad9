//! Where a store is and who asks it. Known to every build: one that lacks a store's client says so when the
//! configuration asks for that store.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use mdgw_feeds::identity::GroupId;
use serde::{Deserialize, Serialize};

/// What all stores are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreAccess {
    /// Its nodes, `host:port`; at least one.
    pub endpoints: Vec<String>,
    /// How long an answer may take before it is unknown.
    pub request_timeout: Duration,
    /// Who asks, where the store wants to know.
    pub login: Option<Login>,
}

/// A user, and the file that holds nothing but the password and the end of its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// Where the password is; it never stands in the configuration itself.
    pub password_file: PathBuf,
}

/// Records as keys of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// Nodes, time-out, user.
    pub access: StoreAccess,
    /// What the keys of all groups begin with.
    pub prefix: String,
    /// Encrypted, with nodes that this authority vouches for.
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
    /// Nodes of the ensemble, time-out, user. With a user, what is created belongs to that one alone.
    pub access: StoreAccess,
    /// The node below which those of all groups stand.
    pub path: String,
    /// What decides who leads.
    pub mode: ZooKeeperMode,
}

/// What decides who leads over ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ZooKeeperMode {
    /// A versioned record whose lease its holder times.
    Lease,
    /// A line of ephemeral nodes.
    Latch {
        /// Time-out of a session, as it is asked for.
        session: Duration,
    },
}

impl EtcdConfig {
    /// The key of a group's record.
    #[must_use]
    pub fn key(&self, group: GroupId) -> String {
        format!("{}group-{}", self.prefix, group.0)
    }
}

impl EtcdTls {
    /// Each file with what it holds.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [("certificate", certificate), ("key", key)]);
        [("certificate authority", &self.ca_file)]
            .into_iter()
            .chain(identity)
            .map(|(what, path)| (what, path.as_path()))
    }
}

impl ZooKeeperConfig {
    /// The path of a group's record.
    #[must_use]
    pub fn record_path(&self, group: GroupId) -> String {
        format!("{}/group-{}", self.path, group.0)
    }
}

impl Login {
    /// The password.
    ///
    /// # Errors
    /// When it can't be read.
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

/// A file that lets us in, which holds `what`.
///
/// # Errors
/// When it can't be read.
pub fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::File { what, path: path.to_owned(), source })
}

/// Why a store could not be opened. That none of its nodes answers is no such reason: it may come.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file that lets us in can't be read.
    #[error("cannot read {what} {} of the election's store: {source}", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The store's thread can't be started.
    #[error("cannot start a thread for the election's store: {0}")]
    Thread(#[from] io::Error),
}
