//! A group's record as one key of etcd: compare-and-swap on its modification revision, and a watch. No lease of etcd:
//! the store's leader counts those in whole seconds, while our lease is timed by its holder.

use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions, Identity, KeyValue,
    TlsOptions, Txn, TxnOp, WatchOptions,
};
use mdgw_election::{
    access::{AccessError, EtcdConfig, read, read_private_key},
    register::{Outcome, RegisterSender, Version, Versioned},
};
use mdgw_wire::identity::GroupId;

use crate::store_register::{StoreClient, StoreRegister, read_outcome, versioned};

/// Opens the register of one group. Returns at once; connections are made in the background.
///
/// # Errors
/// When a file cannot be read or the thread cannot be started.
pub fn open(config: &EtcdConfig, group: GroupId, events: RegisterSender) -> Result<StoreRegister, AccessError> {
    // Pings check idle connections; etcd refuses clients that ping more often than each 5 s.
    let mut options = ConnectOptions::new()
        .with_require_leader(true)
        .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
        .with_auto_token_refresh(true);
    if let Some(login) = &config.access.login {
        options = options.with_user(&login.user, login.password()?);
    }
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    if let Some(tls) = &config.tls {
        let ca = Certificate::from_pem(read("certificate authority", &tls.ca_file)?);
        let mut tls_options = TlsOptions::new().ca_certificate(ca);
        if let Some((certificate, key)) = &tls.identity {
            let identity = Identity::from_pem(read("certificate", certificate)?, read_private_key(key)?);
            tls_options = tls_options.identity(identity);
        }
        options = options.with_tls(tls_options);
    }
    let settings = Settings { scheme, key: config.key(group).into_bytes(), options };
    Ok(StoreRegister::open::<NodeClient>(config.access.clone(), settings, events)?)
}

struct Settings {
    scheme: &'static str,
    key: Vec<u8>,
    options: ConnectOptions,
}

/// A connection to one node.
#[derive(Clone)]
struct NodeClient {
    client: Client,
    key: Vec<u8>,
}

impl StoreClient for NodeClient {
    type Settings = Settings;

    async fn connect(settings: &Settings, endpoint: &str) -> Result<Self, String> {
        let url = format!("{}://{endpoint}", settings.scheme);
        let options = Some(settings.options.clone());
        let client = Client::connect([url], options).await.map_err(|error| reason(&error))?;
        let node = Self { client, key: settings.key.clone() };
        // The client connects on its first request, so this read opens the connection. The read is linearizable: a node
        // without a majority fails here.
        let answer = node.client.kv_client().get(node.key.as_slice(), Some(GetOptions::new().with_keys_only())).await;
        answer.map_err(|error| reason(&error))?;
        Ok(node)
    }

    async fn read(&self) -> Outcome {
        match self.client.kv_client().get(self.key.as_slice(), None).await {
            Ok(answer) => read_outcome(answer.kvs().first().map(|found| (version(found), found.value()))),
            Err(error) => failure_outcome(&error),
        }
    }

    async fn compare_and_swap(&self, expected: Version, value: Vec<u8>) -> Outcome {
        let Ok(revision) = i64::try_from(expected.0) else {
            return Outcome::Failed(format!("{expected:?} is not an etcd revision"));
        };
        // A key that does not exist has revision 0, and so has `Version::NONE`.
        let is_expected = Compare::mod_revision(self.key.as_slice(), CompareOp::Equal, revision);
        let put = TxnOp::put(self.key.as_slice(), value, None);
        match self.client.kv_client().txn(Txn::new().when([is_expected]).and_then([put])).await {
            Ok(answer) if !answer.succeeded() => Outcome::Refused,
            Ok(answer) => match answer.header().map(|header| to_version(header.revision())) {
                Some(version) => Outcome::Swapped(version),
                None => Outcome::Unknown("the etcd response has no revision".to_owned()),
            },
            Err(error) => failure_outcome(&error),
        }
    }

    async fn watch(&self, on_change: impl Fn(Option<Versioned>)) -> String {
        match self.watch_until_failure(on_change).await {
            Ok(why) => why,
            Err(error) => reason(&error),
        }
    }
}

impl NodeClient {
    async fn watch_until_failure(&self, on_change: impl Fn(Option<Versioned>)) -> Result<String, Error> {
        let now = self.client.kv_client().get(self.key.as_slice(), None).await?;
        let Some(header) = now.header() else { return Ok("the etcd response has no revision".to_owned()) };
        let next = header.revision() + 1;
        report_change(now.kvs().first(), &on_change);
        let options = WatchOptions::new().with_start_revision(next);
        let mut stream = self.client.watch_client().watch(self.key.as_slice(), Some(options)).await?;
        while let Some(answer) = stream.message().await? {
            if answer.canceled() {
                // etcd also ends a watch when it has compacted the revisions that the watch would start from. The next
                // watch begins with a read, so it misses nothing.
                return Ok(format!("etcd ended the watch: {}", answer.cancel_reason()));
            }
            for event in answer.events() {
                match event.event_type() {
                    EventType::Put => report_change(event.kv(), &on_change),
                    EventType::Delete => on_change(None),
                }
            }
        }
        Ok("etcd closed the watch".to_owned())
    }
}

fn report_change(found: Option<&KeyValue>, on_change: &impl Fn(Option<Versioned>)) {
    match found.map(|found| versioned(version(found), found.value())).transpose() {
        Ok(record) => on_change(record),
        // A read returns the same defect as its outcome, so here it is only logged.
        Err(reason) => tracing::warn!(reason, "the election key in etcd contains an invalid record"),
    }
}

fn version(found: &KeyValue) -> Version {
    to_version(found.mod_revision())
}

/// Revisions begin at 1.
fn to_version(revision: i64) -> Version {
    Version(revision.unsigned_abs())
}

/// The outcome of a failed request. Only what etcd itself refused has certainly not happened.
fn failure_outcome(error: &Error) -> Outcome {
    let text = reason(error);
    match error {
        Error::GRpcStatus(status) if is_refusal(status.message()) => Outcome::Failed(text),
        _ => Outcome::Unknown(text),
    }
}

/// Messages of etcd for requests that it did not execute.
fn is_refusal(message: &str) -> bool {
    REFUSALS.iter().any(|refusal| message.contains(refusal))
}

const REFUSALS: [&str; 6] = [
    "etcdserver: permission denied",
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: mvcc: database space exceeded",
    "etcdserver: too many requests",
    "etcdserver: request is too large",
];

fn reason(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => format!("{}: {}", status.code(), status.message()),
        other => other.to_string(),
    }
}

const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
