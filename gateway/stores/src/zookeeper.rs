//! A group's record as one persistent node of ZooKeeper: a set of its data that names the version, and a watch. The
//! session shows only the connection's state: there is no ephemeral node, so no gateway waits for a session to expire.
//!
//! Reads are linearizable like swaps. A node of ZooKeeper answers reads by itself and may lag behind the others, so an
//! empty transaction, which takes a majority, confirms the version that was read.
//!
//! [`session`] is the alternative: an entry in a queue of ephemeral nodes.

pub mod session;

use std::{path::Path, time::Duration};

use mdgw_election::{
    access::{AccessError, ZooKeeperConfig},
    register::{Outcome, RegisterSender, Version, Versioned},
};
use mdgw_wire::identity::GroupId;
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteError, SessionState, Stat};

use crate::store_register::{StoreClient, StoreRegister, read_outcome, versioned};

/// Opens the register of one group. Returns at once; connections are made in the background.
///
/// # Errors
/// When the password cannot be read or the thread cannot be started.
pub fn open(config: &ZooKeeperConfig, group: GroupId, events: RegisterSender) -> Result<StoreRegister, AccessError> {
    let login = login(config)?;
    let settings = Settings { path: config.record_path(group), login };
    Ok(StoreRegister::open::<NodeClient>(config.access.clone(), settings, events)?)
}

/// The credentials as `user:password`, in the form of ZooKeeper's digest scheme.
fn login(config: &ZooKeeperConfig) -> Result<Option<String>, AccessError> {
    let Some(login) = &config.access.login else { return Ok(None) };
    Ok(Some(format!("{}:{}", login.user, login.password()?)))
}

struct Settings {
    path: String,
    /// The credentials as `user:password`.
    login: Option<String>,
}

/// A session with one node.
#[derive(Clone)]
struct NodeClient {
    client: Client,
    path: String,
    acls: Acls<'static>,
}

impl StoreClient for NodeClient {
    type Settings = Settings;

    async fn connect(settings: &Settings, endpoint: &str) -> Result<Self, String> {
        let mut connector = Client::connector().with_session_timeout(SESSION).with_fail_eagerly();
        if let Some(login) = &settings.login {
            connector = connector.with_auth("digest", login.as_bytes());
        }
        let client = connector.connect(endpoint).await.map_err(|error| error.to_string())?;
        let acls = if settings.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
        let node = Self { client, path: settings.path.clone(), acls };
        // Creating the parent node takes a majority, so a store node without a majority fails here.
        let folder = Path::new(&node.path).parent().and_then(Path::to_str).filter(|folder| *folder != "/");
        if let Some(folder) = folder {
            let options = CreateMode::Persistent.with_acls(acls);
            node.client.mkdir(folder, &options).await.map_err(|error| format!("create {folder}: {error}"))?;
        }
        Ok(node)
    }

    async fn read(&self) -> Outcome {
        loop {
            let found = match self.client.get_data(&self.path).await {
                Ok((value, stat)) => Some((stat.version, value)),
                Err(Error::NoNode) => None,
                Err(error) => return failure_outcome(&error),
            };
            let confirmed = self.confirm(found.as_ref().map(|(version, _)| *version)).await;
            match confirmed {
                Ok(true) => {
                    let found = found.as_ref().map(|(version, value)| (to_version(*version), value.as_slice()));
                    return read_outcome(found);
                }
                // This store node was behind when it answered the read. The read is repeated once the node has caught
                // up.
                Ok(false) => {
                    if let Err(error) = self.client.sync(&self.path).await {
                        return failure_outcome(&error);
                    }
                }
                Err(error) => return failure_outcome(&error),
            }
        }
    }

    async fn compare_and_swap(&self, expected: Version, value: Vec<u8>) -> Outcome {
        let swapped = if expected == Version::NONE {
            let options = CreateMode::Persistent.with_acls(self.acls);
            self.client.create(&self.path, &value, &options).await.map(|(stat, _)| stat)
        } else {
            let Some(version) = from_version(expected) else {
                return Outcome::Failed(format!("{expected:?} is not a ZooKeeper version"));
            };
            self.client.set_data(&self.path, &value, Some(version)).await
        };
        match swapped {
            Ok(Stat { version, .. }) => Outcome::Swapped(to_version(version)),
            Err(Error::BadVersion | Error::NodeExists) => Outcome::Refused,
            Err(Error::NoNode) if expected != Version::NONE => Outcome::Refused,
            Err(error) => failure_outcome(&error),
        }
    }

    async fn watch(&self, on_change: impl Fn(Option<Versioned>)) -> String {
        match self.watch_until_failure(on_change).await {
            Ok(state) => format!("the session with ZooKeeper is {state}"),
            Err(error) => error.to_string(),
        }
    }
}

impl NodeClient {
    /// Whether the record still has that version, or still does not exist, confirmed by a majority.
    async fn confirm(&self, version: Option<i32>) -> Result<bool, Error> {
        let mut check = self.client.new_multi_writer();
        check.add_check_version(&self.path, version.unwrap_or(ANY))?;
        match (check.commit().await, version) {
            (Ok(_), version) => Ok(version.is_some()),
            (Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }), version) => Ok(version.is_none()),
            (Err(MultiWriteError::OperationFailed { source: Error::BadVersion, .. }), _) => Ok(false),
            (Err(error), _) => Err(error.into()),
        }
    }

    async fn watch_until_failure(&self, on_change: impl Fn(Option<Versioned>)) -> Result<SessionState, Error> {
        let mut state = self.client.state_watcher();
        // After a sync, the session reads nothing older.
        self.client.sync(&self.path).await?;
        loop {
            let watcher = match self.client.get_and_watch_data(&self.path).await {
                Ok((value, stat, watcher)) => {
                    match versioned(to_version(stat.version), &value) {
                        Ok(found) => on_change(Some(found)),
                        // A read returns the same defect as its outcome, so here it is only logged.
                        Err(reason) => {
                            tracing::warn!(reason, "the election node in ZooKeeper contains an invalid record")
                        }
                    }
                    watcher
                }
                Err(Error::NoNode) => match self.client.check_and_watch_stat(&self.path).await? {
                    (None, watcher) => {
                        on_change(None);
                        watcher
                    }
                    (Some(_), _) => continue,
                },
                Err(error) => return Err(error),
            };
            tokio::select! {
                _ = watcher.changed() => {}
                state = state.changed() => if state != SessionState::SyncConnected {
                    return Ok(state);
                },
            }
        }
    }
}

/// ZooKeeper counts from 0, in signed 32 bits that overflow after 497 days of renewals each 20 ms. Our 0 means that
/// there is no record.
fn to_version(version: i32) -> Version {
    Version(u64::from(version.cast_unsigned()) + 1)
}

/// `None` for versions that ZooKeeper never has, and for the one that means "any".
fn from_version(version: Version) -> Option<i32> {
    let version = u32::try_from(version.0.checked_sub(1)?).ok()?.cast_signed();
    (version != ANY).then_some(version)
}

/// The version that means "any" in a request.
const ANY: i32 = -1;

/// The outcome of a failed request. Only what ZooKeeper itself refused has certainly not happened.
fn failure_outcome(error: &Error) -> Outcome {
    let text = error.to_string();
    match error {
        Error::NoAuth
        | Error::NoNode
        | Error::InvalidAcl
        | Error::NotReadOnly
        | Error::QuotaExceeded
        | Error::Throttled
        | Error::BadArguments(_)
        | Error::Unimplemented => Outcome::Failed(text),
        _ => Outcome::Unknown(text),
    }
}

/// Requested session time-out. The client drops a connection after a third of it without an answer.
const SESSION: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_grow_across_the_sign_change_and_never_equal_the_wildcard() {
        for version in [0, 1, i32::MAX, i32::MIN, -2] {
            assert_eq!(from_version(to_version(version)), Some(version));
        }
        assert!(to_version(i32::MAX) < to_version(i32::MIN));
        assert!(to_version(i32::MIN) < to_version(-2));
        for never in [Version::NONE, to_version(ANY), Version(to_version(ANY).0 + 1), Version(u64::MAX)] {
            assert_eq!(from_version(never), None, "{never:?}");
        }
    }
}
