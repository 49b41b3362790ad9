//! What `mdgw doctor` examines for a configuration: its needs as plain values, and the addresses that it tries.

mod store_query;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddrV4},
    path::Path,
    time::Duration,
};

use mdgw_doctor::{
    CheckResult, Directory, Endpoint, Facts, FeedLine, Needs, NoAnswer, PinnedThreads, Report, Role, examine,
};
use mdgw_election::{auth::SharedKey, identity::NodeId, quorum::voter_query::query_voters};
use mdgw_engine::dispatch::WaitPolicy;
use mdgw_pair::pair_link::query_positions;
use mdgw_status::control::{Request, send_request_within};
use mdgw_sys::sockets::Stamps;
use serde_json::Value;

use self::store_query::Question;
use super::{
    host::{Findings, Host},
    resolved::{Backend, ElectionConfig, Interface, QuorumConfig, Resolved, Threads},
};

/// Examines this host for a configuration, and changes nothing on it. Tries the store's nodes, the peers and the voters. `further` is what other
/// parts of `mdgw check` found.
#[must_use]
pub fn examine_host(config: &Resolved, further: CheckResult) -> Report {
    let needs = needs(config);
    let mut facts = Facts::read(Some(&needs));
    // The item `memlock` judges it: by the gateway's limits if one runs, which this process need not have.
    let host = Host { lock_refused: None, ..Host::asked(config) };
    let mut found = further;
    let Findings { faults, warnings } = host.findings(config);
    found.faults.splice(..0, faults);
    found.warnings.splice(..0, warnings);
    found.not_permitted.splice(..0, host.not_permitted);
    facts.check = Some(found);
    if let Some(election) = &config.election {
        facts.endpoints = stores(&election.backend, config.gateway.control_socket.as_deref());
        facts.endpoints.extend(peers(config.gateway.node, election));
        if let Backend::Quorum(quorum) = &election.backend {
            facts.endpoints.extend(voters(config, quorum));
        }
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
    let outputs = config.outputs.iter().flat_map(|output| output.destinations());
    let mut output_interfaces: Vec<_> = outputs.map(|line| interface_name(&line.interface)).collect();
    output_interfaces.sort_unstable();
    output_interfaces.dedup();
    // Networks that may ask are no addresses of this host.
    let mut addresses = config.settings().into_iter().filter(|(key, _)| key != "retransmission.allowed");
    Needs {
        config: config.path.display().to_string(),
        threads: pools.chain(election).collect(),
        lines: lines.collect(),
        output_interfaces,
        uses_loopback: addresses.any(|(_, value)| has_loopback_address(&value)),
        memory_bytes: config.memory_needed_bytes(),
        lock_memory: config.gateway.lock_memory,
        directories: directories(config),
    }
}

/// Whether a setting's value, such as `"127.0.0.1:31100"` or a list of URLs, has an address of the loopback interface.
fn has_loopback_address(value: &str) -> bool {
    value.split(['"', ',', ' ']).any(|text| {
        let behind_scheme = text.split_once("://").map_or(text, |(_, rest)| rest);
        let authority = behind_scheme.split('/').next().unwrap_or_default();
        let address = authority.rsplit('@').next().unwrap_or_default();
        let host = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, _)) => host,
            None => address.split(':').next().unwrap_or_default(),
        };
        host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    })
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

/// Asks every node of the store, and the gateway that runs here for its own view of the store.
fn stores(backend: &Backend, control_socket: Option<&Path>) -> Vec<Endpoint> {
    let (access, question) = match backend {
        Backend::Etcd(etcd) if etcd.tls.is_some() => (&etcd.access, Question::TlsHello),
        Backend::Etcd(etcd) => (&etcd.access, Question::EtcdHealth),
        Backend::ZooKeeper(zookeeper) => (&zookeeper.access, Question::Session),
        Backend::File(_) | Backend::Quorum(_) | Backend::Emergent(_) => return Vec::new(),
    };
    let nodes = access.endpoints.iter().map(|address| Endpoint {
        role: Role::Store,
        address: address.clone(),
        answer: store_query::ask(address, question),
    });
    nodes.chain(control_socket.and_then(store_query::of_gateway)).collect()
}

/// Asks every peer.
fn peers(node: u8, election: &ElectionConfig) -> Vec<Endpoint> {
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
    peers.collect()
}

/// Asks every other voter, in the gateway's place or, if the gateway runs, through the gateway.
fn voters(config: &Resolved, quorum: &QuorumConfig) -> Vec<Endpoint> {
    let not_asked = NoAnswer::NotAsked;
    let queried: Result<VoterAnswers, NoAnswer> =
        SharedKey::load(&quorum.key_file).map_err(|error| not_asked(error.to_string())).and_then(|key| {
            let group = config.channels.first().map(|channel| channel.group);
            let group = group.ok_or_else(|| not_asked("the configuration has no group".to_owned()))?;
            match query_voters(quorum.listen, (NodeId(config.gateway.node), group), key, &quorum.voters, TIMEOUT) {
                Ok(query) => Ok(quorum
                    .voters
                    .keys()
                    .map(|node| {
                        (*node, if query.answered.contains(node) { Ok(()) } else { Err(silence(query.forged)) })
                    })
                    .collect()),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    voters_of_gateway(config.gateway.control_socket.as_deref(), quorum.listen).map_err(not_asked)
                }
                Err(error) => Err(not_asked(format!("election.quorum.listen {}: {error}", quorum.listen))),
            }
        });
    let endpoint = |(node, address): (&NodeId, &SocketAddrV4)| {
        let answer: Result<(), NoAnswer> = match &queried {
            Ok(voters) => match voters.get(node) {
                Some(answer) => answer.clone().map_err(|how| NoAnswer::Failed(format!("node {node} {how}"))),
                None => {
                    Err(not_asked("the gateway that runs here does not know whether this voter answers".to_owned()))
                }
            },
            Err(reason) => Err(reason.clone()),
        };
        let answer = answer.map(|()| format!("node {node} answers, authenticated with the shared key"));
        Endpoint { role: Role::Voter, address: address.to_string(), answer }
    };
    quorum.voters.iter().map(endpoint).collect()
}

/// For each voter how it is silent, if it is.
type VoterAnswers = BTreeMap<NodeId, Result<(), String>>;

fn silence(forged: u64) -> String {
    let text = format!("does not answer within {} s", TIMEOUT.as_secs());
    if forged == 0 { text } else { format!("{text}; {forged} datagrams under another key were received") }
}

/// What the gateway that uses `listen` knows of its voters, as `mdgw ha status` shows it.
fn voters_of_gateway(socket: Option<&Path>, listen: SocketAddrV4) -> Result<VoterAnswers, String> {
    let in_use = format!("{listen} is in use, and the voters answer nowhere else");
    let socket = socket.ok_or_else(|| format!("{in_use}: a gateway without gateway.control_socket cannot be asked"))?;
    let status = send_request_within(socket, &Request::Status {}, TIMEOUT);
    let status = status.map_err(|error| format!("{in_use}; asked the gateway: {error}"))?;
    Ok(voters_of_status(&status))
}

/// The voters of a gateway's status. A voter answers if it answers for each group. Groups whose election thread is stuck say nothing.
fn voters_of_status(status: &Value) -> VoterAnswers {
    let mut answers = VoterAnswers::new();
    let groups = status["groups"].as_array().into_iter().flatten();
    for voter in groups.filter_map(|group| group["voters"].as_array()).flatten() {
        let Some(node) = voter["node"].as_u64().and_then(|node| u8::try_from(node).ok()) else { continue };
        let Some(has_answered) = voter["answers"].as_bool() else { continue };
        let answer = match voter["answered_ms_ago"].as_u64() {
            _ if has_answered => Ok(()),
            Some(ms) => Err(format!("last answered the gateway that runs here {} s ago", ms / 1_000)),
            None => Err("has not answered the gateway that runs here".to_owned()),
        };
        let known = answers.entry(NodeId(node)).or_insert(Ok(()));
        *known = known.clone().and(answer);
    }
    answers
}

/// How long an address may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::{TcpListener, UdpSocket},
        os::unix::net::UnixListener,
        path::PathBuf,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    use mdgw_doctor::Status;
    use mdgw_election::{
        access::{EtcdConfig, StoreAccess, ZooKeeperConfig, ZooKeeperMode},
        quorum::{
            link::VoteLink,
            witness::{Witness, WitnessOptions},
        },
    };
    use serde_json::json;

    use super::*;
    use crate::config::{
        resolved::{JournalCompression, JournalSettings},
        tag_keys::tests::write_key,
    };

    /// An address of this host with a port that was free.
    fn free_address() -> SocketAddrV4 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().to_string().parse().unwrap()
    }

    fn voter_items(config: &Resolved) -> Vec<(Status, String)> {
        let report = examine_host(config, CheckResult::default());
        let voters = report.items.into_iter().filter(|item| item.name == "voter");
        voters.map(|item| (item.status, item.read)).collect()
    }

    #[test]
    fn each_voter_of_a_quorum_is_asked_in_the_gateways_place_and_by_a_running_gateway() {
        let folder = tempfile::tempdir().unwrap();
        let (own, witness, other) = (free_address(), free_address(), free_address());
        let (key_file, control) = (folder.path().join("key"), folder.path().join("control"));
        let text = include_str!("../../../../ops/config/quorum.toml")
            .replace("10.20.0.7:27500", &own.to_string())
            .replace("10.20.0.8:27500", &other.to_string())
            .replace("10.20.0.9:27500", &witness.to_string())
            .replace("10.20.0.8:31200", "127.0.0.1:1")
            .replace("/etc/mdgw/key", key_file.to_str().unwrap())
            .replace("/run/mdgw/control", control.to_str().unwrap());
        let config = Resolved::from_text(Path::new("quorum.toml"), &text).unwrap_or_else(|error| panic!("{error}"));
        let hidden = voter_items(&config);
        assert_eq!(hidden.len(), 2);
        assert!(hidden.iter().all(|(status, _)| *status == Status::Unknown), "without the key: {hidden:?}");
        assert!(hidden[0].1.contains(key_file.to_str().unwrap()), "{hidden:?}");

        write_key(&key_file, &"0a".repeat(32));
        let link = VoteLink::open(witness, NodeId(3), SharedKey::load(&key_file).unwrap(), [(NodeId(1), own)].into());
        let options = WitnessOptions {
            node: NodeId(3),
            vote_directory: folder.path().join("votes"),
            rate_error_ppm: 600,
            groups_max: 2,
        };
        let running = Witness::new(link.unwrap(), options).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let votes = thread::spawn(move || running.run(&stops).unwrap());
        let ok = (Status::Ok, "node 3 answers, authenticated with the shared key".to_owned());
        let silent = (Status::Warn, "node 2 does not answer within 1 s".to_owned());
        assert_eq!(voter_items(&config), [silent, ok.clone()]);
        stop.store(true, Ordering::Relaxed);
        votes.join().unwrap();

        // A gateway uses the address, and cannot be asked; then it can.
        let _gateway = UdpSocket::bind(own).unwrap();
        let in_use = voter_items(&config);
        assert!(
            in_use.iter().all(|(status, read)| *status == Status::Unknown && read.contains("is in use")),
            "{in_use:?}"
        );
        let listener = UnixListener::bind(&control).unwrap();
        let answers = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&connection).read_line(&mut line).unwrap();
            assert!(line.contains("status"), "{line}");
            let voter =
                |node, answers, ms: Option<u64>| json!({ "node": node, "answers": answers, "answered_ms_ago": ms });
            let voters = [voter(2, false, Some(7_300)), voter(3, true, Some(20))];
            writeln!(connection, "{}", json!({ "ok": { "groups": [{ "voters": voters }] } })).unwrap();
        });
        let silent = (Status::Warn, "node 2 last answered the gateway that runs here 7 s ago".to_owned());
        assert_eq!(voter_items(&config), [silent, ok]);
        answers.join().unwrap();
    }

    #[test]
    fn a_voter_that_is_silent_in_one_group_is_silent_and_a_status_of_any_form_is_read() {
        let voter = |answers| json!({ "node": 3, "answers": answers, "answered_ms_ago": null });
        let status = json!({ "groups": [{ "voters": [voter(true)] }, { "voters": [voter(false)] }, { "voters": [voter(true)] }] });
        let silent = Err("has not answered the gateway that runs here".to_owned());
        assert_eq!(voters_of_status(&status), [(NodeId(3), silent)].into());
        let unknown = json!({ "groups": [{ "voters": [{ "node": 3, "answers": null, "answered_ms_ago": 30_000 }] }] });
        let odd = json!({ "groups": [{}, { "voters": [1, { "node": 300 }, { "node": 3 }] }] });
        for odd in [json!(null), json!({ "groups": 1 }), odd, unknown] {
            assert!(voters_of_status(&odd).is_empty(), "{odd}");
        }
    }

    #[test]
    fn the_needs_of_the_shipped_configuration_are_complete() {
        let needs = needs(&Resolved::shipped());
        let main = &needs.threads[0];
        assert_eq!((main.name.as_str(), main.cores.to_string(), main.spins), ("main", "2-3".to_owned(), true));
        assert_eq!(needs.lines.len(), 4);
        assert_eq!(needs.lines[0].group.to_string(), "233.54.12.111:26477");
        assert_eq!(needs.output_interfaces, ["eth3", "eth4"]);
        assert!(!needs.uses_loopback);
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
    fn a_configuration_uses_loopback_if_one_of_its_addresses_is_there() {
        let needs = |address: &str| {
            let text = include_str!("../../../../ops/config/quorum.toml").replace("10.20.0.7:31100", address);
            needs(&Resolved::from_text(Path::new("quorum.toml"), &text).unwrap_or_else(|error| panic!("{error}")))
        };
        assert!(!needs("10.20.0.7:31100").uses_loopback);
        assert!(needs("127.0.0.1:31100").uses_loopback);
        for value in [
            "\"nats://user@127.0.0.1:4222\"",
            "[\"a:1\", \"localhost:2379\"]",
            "\"127.0.0.1\"",
            "\"[::1]:4222\"",
            "\"http://[::1]/path\"",
        ] {
            assert!(has_loopback_address(value), "{value}");
        }
        for value in [
            "\"10.20.0.7:31100\"",
            "\"/run/localhost/mdgw.sock\"",
            "\"http://a/127.0.0.1\"",
            "127",
            "\"\"",
            "true",
            "[[",
        ] {
            assert!(!has_loopback_address(value), "{value}");
        }
    }

    #[test]
    fn a_store_that_accepts_connections_and_answers_nothing_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let access =
            |address: &str| StoreAccess { endpoints: vec![address.to_owned()], request_timeout: TIMEOUT, login: None };
        let backends = |address: &str| {
            let (path, mode) = ("/mdgw".to_owned(), ZooKeeperMode::Lease);
            [
                Backend::Etcd(EtcdConfig { access: access(address), prefix: String::new(), tls: None }),
                Backend::ZooKeeper(ZooKeeperConfig { access: access(address), path, mode }),
            ]
        };
        let answers = |address: &str| backends(address).map(|backend| stores(&backend, None).remove(0).answer);
        for answer in answers(&address) {
            let Err(NoAnswer::Wrong { read, .. }) = answer else { panic!("{answer:?}") };
            assert_eq!(read, "accepts a connection, and does not answer within 1 s");
        }
        drop(listener);
        for answer in answers(&address) {
            assert!(matches!(&answer, Err(NoAnswer::Failed(error)) if error.contains("refused")), "{answer:?}");
        }
        for answer in answers("no port") {
            assert!(matches!(answer, Err(NoAnswer::Failed(_))), "{answer:?}");
        }
        assert_eq!(stores(&Backend::File(PathBuf::from("/d")), None), []);
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
