//! Location of the records of all groups, used by the gateway and its sentinel.

use std::{
    io,
    path::{Path, PathBuf},
};

use mdgw_wire::identity::GroupId;
use serde::{Deserialize, Serialize};

use super::{
    access::{AccessError, EtcdConfig, ZooKeeperConfig},
    register::{Register, RegisterSender},
};

/// A store of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RecordLocation {
    /// A directory of this host.
    File(PathBuf),
    /// Keys of etcd.
    Etcd(EtcdConfig),
    /// Nodes of ZooKeeper.
    #[serde(rename = "zookeeper")]
    ZooKeeper(ZooKeeperConfig),
}

/// Why a register could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum RecordLocationError {
    /// The directory cannot be used.
    #[error("cannot use directory {} for election records: {source}", directory.display())]
    Directory {
        /// Path of the directory.
        directory: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The store's client cannot be started.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// This program has no client for that store.
    #[error("this build has no client for {0}")]
    NotCompiledIn(&'static str),
}

/// Opens a group's record: `mdgw_stores::open`, which knows the clients of the stores.
pub type RegisterOpener =
    fn(&RecordLocation, GroupId, RegisterSender) -> Result<Box<dyn Register>, RecordLocationError>;

impl RecordLocation {
    /// The same location for a process that runs in another directory.
    ///
    /// # Errors
    /// When the current directory no longer exists.
    pub fn absolute(&self) -> io::Result<Self> {
        let mut place = self.clone();
        let files: Vec<&mut PathBuf> = match &mut place {
            Self::File(directory) => vec![directory],
            Self::Etcd(EtcdConfig { access, tls, .. }) => {
                let password = access.login.as_mut().map(|login| &mut login.password_file);
                let identity = tls.iter_mut().flat_map(|tls| {
                    let own = tls.identity.iter_mut().flat_map(|(certificate, key)| [certificate, key]);
                    own.chain([&mut tls.ca_file])
                });
                password.into_iter().chain(identity).collect()
            }
            Self::ZooKeeper(ZooKeeperConfig { access, .. }) => {
                access.login.as_mut().map(|login| &mut login.password_file).into_iter().collect()
            }
        };
        for file in files {
            *file = std::path::absolute(Path::new(file))?;
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::{EtcdTls, Login, StoreAccess, ZooKeeperMode};

    fn access() -> StoreAccess {
        StoreAccess {
            endpoints: vec!["192.0.2.1:2379".to_owned()],
            request_timeout: Duration::from_millis(50),
            login: Some(Login { user: "mdgw".to_owned(), password_file: "password".into() }),
        }
    }

    #[test]
    fn absolute_paths_are_the_same_in_another_process() {
        let here = std::env::current_dir().unwrap();
        let tls = EtcdTls { ca_file: "ca.pem".into(), identity: Some(("own.pem".into(), "/etc/own.key".into())) };
        let etcd = RecordLocation::Etcd(EtcdConfig { access: access(), prefix: "/mdgw/".to_owned(), tls: Some(tls) });
        let zookeeper = RecordLocation::ZooKeeper(ZooKeeperConfig {
            access: access(),
            path: "/mdgw".to_owned(),
            mode: ZooKeeperMode::Lease,
        });
        let text = |place: &RecordLocation| serde_json::to_string(place).unwrap();
        for place in [RecordLocation::File("records".into()), etcd, zookeeper] {
            let absolute = place.absolute().unwrap();
            let text_of_absolute = text(&absolute);
            for name in ["records", "password", "ca.pem", "own.pem"] {
                let is_named = text(&place).contains(&format!("\"{name}\""));
                let there = format!("\"{}\"", here.join(name).display());
                assert_eq!(text_of_absolute.contains(&there), is_named, "{name}: {text_of_absolute}");
            }
            assert_eq!(
                text_of_absolute.contains("\"/etc/own.key\""),
                matches!(place, RecordLocation::Etcd(_)),
                "{text_of_absolute}"
            );
            assert_eq!(serde_json::from_str::<RecordLocation>(&text_of_absolute).unwrap(), absolute);
            assert_eq!(absolute.absolute().unwrap(), absolute);
        }
    }
}
