//! What `mdgw doctor` examines for a configuration: its needs as plain values, and the addresses that it tries.

use std::{
    net::{TcpStream, ToSocketAddrs as _},
    path::Path,
    time::Duration,
};

use mdgw_doctor::{
    CheckResult, Directory, Endpoint, Facts, FeedLine, Needs, NoAnswer, PinnedThreads, Report, Role, examine,
};
use mdgw_election::auth::SharedKey;
use mdgw_engine::dispatch::WaitPolicy;
use mdgw_pair::pair_link::query_positions;
use mdgw_sys::sockets::Stamps;

use super::{
    host::{Findings, Host},
    resolved::{Backend, ElectionConfig, Interface, Resolved, Threads},
};

/// Examines this host for a configuration, and changes nothing. Tries the store's nodes and the peers. `further` is what other
/// parts of `mdgw check` found.
#[must_use]
pub fn examine_host(config: &Resolved, further: CheckResult) -> Report {
    let needs = needs(config);
    let mut facts = Facts::read(Some(&needs));
    let host = Host::asked(config);
    let mut found = further;
    let Findings { faults, warnings } = host.findings(config);
    found.faults.splice(..0, faults);
    found.warnings.splice(..0, warnings);
    found.not_permitted.splice(..0, host.not_permitted);
    facts.check = Some(found);
    if let Some(election) = &config.election {
        facts.endpoints = endpoints(config.gateway.node, election);
    }
    examine(Path::new("/"), &facts, Some(&needs))
}

/// Examines this host for a gateway of any configuration.
#[must_use]
pub fn examine_bare_host() -> Report {
    examine(Path::new("/"), &Facts::read(None), None)
}

fn needs(config: &Resolved) -> Needs {
    let pools = config.pools.iter().map(|pool| PinnedThreads {
        name: pool.name.clone(),
        cores: match &pool.threads {
            Threads::Pinned(cores) => cores.iter().copied().collect(),
            Threads::Unpinned(_) => mdgw_doctor::CoreSet::default(),
        },
        priority: pool.priority,
        spins: pool.wait == WaitPolicy::Spin,
    });
    let election = config.election.as_ref().map(|election| PinnedThreads {
        name: "election".to_owned(),
        cores: election.core.into_iter().collect(),
        priority: election.priority,
        spins: false,
    });
    let lines = config.channels.iter().flat_map(|channel| &channel.lines).map(|line| FeedLine {
        interface: interface_name(&line.interface),
        group: line.group,
        sources: line.sources.clone(),
        receive_buffer_bytes: line.receive_buffer_bytes as u64,
        wants_hardware_stamps: line.stamps == Stamps::Hardware,
    });
    let outputs = config.outputs.iter().flat_map(|output| &output.lines);
    let mut output_interfaces: Vec<_> = outputs.map(|line| interface_name(&line.interface)).collect();
    output_interfaces.sort_unstable();
    output_interfaces.dedup();
    Needs {
        config: config.path.display().to_string(),
        threads: pools.chain(election).collect(),
        lines: lines.collect(),
        output_interfaces,
        lock_memory: config.gateway.lock_memory,
        directories: directories(config),
    }
}

fn directories(config: &Resolved) -> Vec<Directory> {
    let logs = Directory {
        holds: "publication logs",
        path: config.gateway.log_dir.clone(),
        // One segment of each log is made ahead.
        bytes: config.memory().logs_bytes + config.channels.len() as u64 * config.gateway.segment_bytes,
    };
    let latency = config.latency.directory.as_ref();
    let latency = latency.map(|path| Directory { holds: "latency logs", path: path.clone(), bytes: 0 });
    let state = config.gateway.state_file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let state = state.map(|path| Directory { holds: "state file", path: path.to_owned(), bytes: STATE_BYTES });
    let journal = config.journal.as_ref().map(|journal| Directory {
        holds: "journals",
        path: journal.directory.clone(),
        bytes: journal.free_bytes_min,
    });
    [Some(logs), latency, state, journal].into_iter().flatten().collect()
}

/// State, votes and an audit of many changes of leadership, bytes.
const STATE_BYTES: u64 = 64 << 20;

/// Name of the interface; as configured if this host has no such interface.
fn interface_name(interface: &Interface) -> String {
    interface.lookup().map_or_else(|_| interface.to_string(), |found| found.name)
}

/// Tries every node of the store and every peer.
fn endpoints(node: u8, election: &ElectionConfig) -> Vec<Endpoint> {
    let stores = match &election.backend {
        Backend::Etcd(etcd) => etcd.access.endpoints.as_slice(),
        Backend::ZooKeeper(zookeeper) => zookeeper.access.endpoints.as_slice(),
        Backend::File(_) | Backend::Quorum(_) | Backend::Emergent(_) => &[],
    };
    let stores =
        stores.iter().map(|address| Endpoint { role: Role::Store, address: address.clone(), answer: connect(address) });
    let links = election.link.iter().flat_map(|link| link.peers.iter().map(move |peer| (peer, &link.key_file)));
    let peers = links.map(|(peer, key_file)| {
        let key = SharedKey::load(key_file).map_err(|error| NoAnswer::NotAsked(error.to_string()));
        let answer = key.and_then(|key| {
            let positions = query_positions(peer.address, node, key, TIMEOUT);
            let positions = positions.map_err(|error| NoAnswer::Failed(error.to_string()))?;
            Ok(format!("answers with the positions of {} channels", positions.len()))
        });
        Endpoint { role: Role::Peer, address: peer.address.to_string(), answer }
    });
    stores.chain(peers).collect()
}

/// How long an address may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

fn connect(address: &str) -> Result<String, NoAnswer> {
    let found = address.to_socket_addrs().map_err(|error| NoAnswer::Failed(error.to_string()))?;
    let mut last = "the name has no address".to_owned();
    for address in found {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(_connected) => return Ok("accepts connections".to_owned()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(NoAnswer::Failed(last))
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, path::PathBuf};

    use mdgw_doctor::Status;

    use super::*;
    use crate::config::resolved::{JournalCompression, JournalSettings};

    #[test]
    fn the_needs_of_the_shipped_configuration_are_complete() {
        let needs = needs(&Resolved::shipped());
        let main = &needs.threads[0];
        assert_eq!((main.name.as_str(), main.cores.to_string(), main.spins), ("main", "2-3".to_owned(), true));
        assert_eq!(needs.lines.len(), 4);
        assert_eq!(needs.lines[0].group.to_string(), "233.54.12.111:26477");
        assert_eq!(needs.output_interfaces, ["eth3", "eth4"]);
        let directories: Vec<_> =
            needs.directories.iter().map(|directory| (&directory.path, directory.bytes)).collect();
        let path = PathBuf::from;
        assert_eq!(
            directories,
            [(&path("/dev/shm/mdgw"), 640 << 20), (&path("/var/log/mdgw"), 0), (&path("/var/lib/mdgw"), STATE_BYTES)]
        );
    }

    #[test]
    fn the_disk_of_the_journals_is_examined_and_the_check_compares_its_space() {
        let mut config = Resolved::shipped();
        let path = Path::new("/proc/journal");
        config.journal = Some(JournalSettings {
            directory: path.to_owned(),
            admin_listen: None,
            compression: JournalCompression::default(),
            flush_ns: 0,
            retention_days: 0,
            retention_bytes: 0,
            free_bytes_min: 1 << 30,
        });
        let report = examine_host(&config, CheckResult::default());
        let disk = report.items.iter().find(|item| item.subject.as_deref() == path.to_str()).unwrap();
        // /proc has no space.
        assert_eq!(
            (disk.name, disk.status, disk.read.as_str()),
            ("disk", Status::Warn, "journals: 0 MiB free, 1024 MiB needed")
        );
        let warned = "`mdgw journal` will write nothing: 0 B are free for journal.directory /proc/journal, and journal.free_bytes_min is 1 GiB";
        let shows_it = |item: &mdgw_doctor::Item| item.name == "mdgw check" && item.read.contains(warned);
        assert!(report.items.iter().any(shows_it), "{:#?}", report.items);
        let warns = |config: &Resolved| Host::asked(config).findings(config).warnings.contains(&warned.to_owned());
        assert!(warns(&config));
        config.journal.as_mut().unwrap().free_bytes_min = 0;
        assert!(!warns(&config));
    }

    #[test]
    fn a_store_is_reachable_if_it_accepts_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(connect(&address).as_deref(), Ok("accepts connections"));
        drop(listener);
        assert!(matches!(connect(&address), Err(NoAnswer::Failed(error)) if error.contains("refused")));
        assert!(connect("no port").is_err());
    }

    #[test]
    fn an_examination_names_faults_of_the_check_and_a_peer_that_cannot_be_asked_without_a_key() {
        let text = include_str!("../../../../ops/config/pair.toml").replace("/tmp/mdgw-pair.key", "/nonexistent/key");
        let config = Resolved::from_text(Path::new("pair.toml"), &text).unwrap_or_else(|error| panic!("{error}"));
        let report = examine_host(&config, CheckResult::default());
        let item = |name: &str| report.items.iter().find(|item| item.name == name).unwrap();
        assert_eq!(item("mdgw check").status, Status::Fail);
        assert_eq!(item("mdgw check").commands, ["mdgw check pair.toml"]);
        assert_eq!((item("peer").status, item("peer").subject.as_deref()), (Status::Unknown, Some("127.0.0.1:31202")));
        assert!(item("peer").read.contains("/nonexistent/key"), "{}", item("peer").read);
        assert_eq!(item("store").status, Status::Ok, "records in a folder");
    }
}
