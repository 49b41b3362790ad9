//! Real stores as an operator would run them: etcd and ZooKeeper with one or three nodes, on loopback, with data in a
//! temporary directory. Nodes can be killed, stopped, restarted, and restored from a backup. Dropping the [`Ensemble`]
//! ends and removes everything, after a panic too. If the test process itself is killed, the kernel ends the nodes.

mod etcd;
pub mod register_client;
mod server;
mod zookeeper;

use std::{
    fs, io,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

pub use etcd::{PASSWORD, USER};
use server::StoreNode;

use crate::{gateway_fixture::free_address, namespaces::Host, process::TEST_TIMEOUT, skip::skip};

/// A kind of store, and its access control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// etcd, from Debian's `etcd-server`, without access control.
    Etcd,
    /// etcd with client certificates: see [`Ensemble::certificate`].
    EtcdTls,
    /// etcd for [`USER`] with [`PASSWORD`], with access only to keys below `/mdgw/`.
    EtcdPassword,
    /// ZooKeeper, from the jars of Debian's `libzookeeper-java`, without access control.
    ZooKeeper,
}

/// A running store.
#[derive(Debug)]
pub struct Ensemble {
    store: Store,
    nodes: Vec<StoreNode>,
    directory: TempDir,
    backup_count: usize,
}

/// A backup of the data of all nodes. Removed with the ensemble.
#[derive(Debug)]
pub struct Backup(PathBuf);

/// A certificate file for a store of [`Store::EtcdTls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// The certificate of the authority.
    Ca,
    /// The client's certificate.
    Client,
    /// The client's key.
    ClientKey,
}

impl Store {
    /// Whether it is installed. If not, `test` is skipped.
    #[must_use]
    pub fn is_installed(self, test: &str) -> bool {
        let (found, packages) = match self {
            Self::ZooKeeper => (zookeeper::is_installed(), "libzookeeper-java and default-jre-headless"),
            Self::Etcd | Self::EtcdTls | Self::EtcdPassword => (etcd::is_installed(), "etcd-server and openssl"),
        };
        if !found {
            skip(test, &format!("{packages} (packages of Debian) are not installed"));
        }
        found
    }
}

impl Ensemble {
    /// Starts that many nodes and waits until they serve.
    ///
    /// # Panics
    /// When they don't.
    #[must_use]
    pub fn start(store: Store, count: usize) -> Self {
        // Another process may take a port between the search and the start.
        for _ in 1..START_ATTEMPTS_MAX {
            let mut ensemble = Self::new(store, count);
            ensemble.nodes.iter_mut().for_each(StoreNode::start);
            if ensemble.all_serving(TEST_TIMEOUT) {
                return ensemble.with_password_enabled();
            }
            assert!(ensemble.nodes.iter_mut().any(|node| !node.is_running()), "{}", ensemble.log());
        }
        let mut ensemble = Self::new(store, count);
        ensemble.nodes.iter_mut().for_each(StoreNode::start);
        ensemble.await_serving();
        ensemble.with_password_enabled()
    }

    /// Starts one node on each of these hosts and waits until they serve. Clients must be on hosts of the same switch.
    ///
    /// # Panics
    /// When they don't serve.
    #[must_use]
    pub fn start_on(store: Store, hosts: &[Host]) -> Self {
        let addresses = hosts.iter().map(|host| HOST_PORTS.map(|port| SocketAddrV4::new(host.address, port)));
        let mut ensemble = Self::at(store, &addresses.collect::<Vec<_>>());
        for (node, host) in ensemble.nodes.iter_mut().zip(hosts) {
            node.namespace = Some(host.namespace.clone());
            node.start();
        }
        ensemble.await_serving();
        ensemble
    }

    fn new(store: Store, count: usize) -> Self {
        Self::at(store, &(0..count).map(|_| [(); 3].map(|()| free_address())).collect::<Vec<_>>())
    }

    /// Addresses of each node: for clients, for the other nodes, and for health checks or elections.
    fn at(store: Store, addresses: &[[SocketAddrV4; 3]]) -> Self {
        let directory = tempfile::Builder::new().prefix("store").tempdir().expect("a directory for the store");
        let nodes = match store {
            Store::ZooKeeper => zookeeper::nodes(directory.path(), addresses),
            Store::Etcd | Store::EtcdPassword => etcd::nodes(directory.path(), addresses, None),
            Store::EtcdTls => {
                etcd::make_certificates(directory.path());
                etcd::nodes(directory.path(), addresses, Some(directory.path()))
            }
        };
        Self { store, nodes, directory, backup_count: 0 }
    }

    fn with_password_enabled(self) -> Self {
        if self.store == Store::EtcdPassword {
            etcd::require_password(self.nodes[0].address);
        }
        self
    }

    /// The kind of store.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store
    }

    /// Client addresses of its nodes, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddrV4> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Path of that certificate file of a [`Store::EtcdTls`].
    #[must_use]
    pub fn certificate(&self, which: Certificate) -> PathBuf {
        self.directory.path().join(match which {
            Certificate::Ca => etcd::CA,
            Certificate::Client => etcd::CLIENT,
            Certificate::ClientKey => etcd::CLIENT_KEY,
        })
    }

    /// Index of the store's own leader.
    ///
    /// # Panics
    /// When there is none for longer than [`TEST_TIMEOUT`].
    #[must_use]
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(leader) = self.nodes.iter().position(|node| node.is_leader()) {
                return leader;
            }
            assert!(Instant::now() < deadline, "no node leads\n{}", self.log());
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Pauses a node (SIGSTOP): its connections stay open, and it answers nothing.
    pub fn pause(&self, node: usize) {
        self.nodes[node].pause();
    }

    /// Continues a paused node.
    pub fn resume(&self, node: usize) {
        self.nodes[node].resume();
    }

    /// Restarts a killed node on its data.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].start();
    }

    /// Waits until all running nodes serve.
    ///
    /// # Panics
    /// When that takes longer than [`TEST_TIMEOUT`].
    pub fn await_serving(&mut self) {
        assert!(self.all_serving(TEST_TIMEOUT), "the store does not serve\n{}", self.log());
    }

    /// Copies the data of all nodes, which are killed for the copy and restarted.
    ///
    /// # Panics
    /// When they can't be copied, or don't serve again.
    pub fn back_up(&mut self) -> Backup {
        self.backup_count += 1;
        let to = self.directory.path().join(format!("backup-{}", self.backup_count));
        self.nodes.iter_mut().for_each(StoreNode::kill);
        for (index, node) in self.nodes.iter().enumerate() {
            copy(&node.data, &to.join(index.to_string())).expect("data can be copied");
        }
        self.nodes.iter_mut().for_each(StoreNode::start);
        self.await_serving();
        Backup(to)
    }

    /// Restores a backup, as an operator does after a disaster.
    ///
    /// # Panics
    /// When it can't be copied, or the nodes don't serve it.
    pub fn restore(&mut self, backup: &Backup) {
        self.nodes.iter_mut().for_each(StoreNode::kill);
        for (index, node) in self.nodes.iter().enumerate() {
            fs::remove_dir_all(&node.data).expect("data can be removed");
            copy(&backup.0.join(index.to_string()), &node.data).expect("data can be copied");
        }
        self.nodes.iter_mut().for_each(StoreNode::start);
        self.await_serving();
    }

    /// Whether all running nodes serve within that time; `false` at once when one of them exits.
    fn all_serving(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let mut started = self.nodes.iter_mut().filter(|node| node.is_started());
            if started.all(|node| node.is_serving()) {
                return true;
            }
            let has_lost = self.nodes.iter_mut().any(|node| node.is_started() && !node.is_running());
            if has_lost || Instant::now() > deadline {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The ends of the nodes' logs, for messages.
    fn log(&self) -> String {
        self.nodes.iter().map(StoreNode::log_end).collect()
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Ports of a node that has its own host: for clients, for the other nodes, and for health checks or elections.
const HOST_PORTS: [u16; 3] = [12_000, 12_001, 12_002];
const START_ATTEMPTS_MAX: usize = 3;
/// Interval of polling.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
