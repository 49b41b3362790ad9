//! One candidate in an election over a real store, as a process that can be killed and stopped. While its fence is open
//! it "sends": it writes the epoch and the time of the fence check to standard output. It closes when standard input
//! ends. Started by `tests/stores/election.rs`.

use std::{
    error::Error,
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use clap::{Parser, ValueEnum};
use mdgw_election::{
    access::{EtcdConfig, StoreAccess, ZooKeeperConfig, ZooKeeperMode},
    auto_move::AutoMoveConfig,
    driver::{Election, ElectionHooks, ElectionOptions, inbox},
    fitness::Eligibility,
    identity::{Incarnation, Member, NodeId, NodeName},
    latch::LeaderLatch,
    lease::{Lease, LeaseConfig, OnSuspended},
    record::ConfigVersion,
    register::Register,
    session_latch::{SessionLatch, SessionLatchConfig},
    timing::LeaseTiming,
};
use mdgw_feeds::identity::{Epoch, GroupId};
use mdgw_stores::{etcd, zookeeper};
use mdgw_sys::{clock::mono_now, fence::Fence};

/// Takes part in an election over a store until standard input ends. While the fence is open, writes the epoch and the time of
/// each check of the fence to standard output.
#[derive(Debug, Parser)]
#[command(name = "candidate")]
struct CandidateArgs {
    /// What elects.
    store: CandidateStore,
    /// Node number.
    #[arg(value_parser = clap::value_parser!(u8).range(..i64::from(NODE_COUNT)))]
    node: u8,
    /// Number of this start of the node; grows from start to start.
    incarnation: u64,
    /// Profile of the lease's times: default, fast or calm.
    #[arg(value_name = "PROFILE", value_parser = parse_profile)]
    timing: LeaseTiming,
    /// Addresses of the store's nodes.
    #[arg(value_name = "HOST:PORT,...", required = true, value_delimiter = ',')]
    endpoints: Vec<String>,
}

/// A store, and how it elects.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CandidateStore {
    /// A lease in a record of etcd.
    Etcd,
    /// A lease in a record of ZooKeeper.
    Zookeeper,
    /// ZooKeeper's sessions, as its latch recipe uses them.
    ZookeeperLatch,
}

fn parse_profile(wanted: &str) -> Result<LeaseTiming, String> {
    let profile = LeaseTiming::PROFILES.iter().find(|(name, _)| *name == wanted);
    profile.map(|(_, timing)| *timing).ok_or_else(|| "must be default, fast or calm".to_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let CandidateArgs { store, node, incarnation, timing, endpoints } = CandidateArgs::parse();
    let access = StoreAccess { endpoints, request_timeout: Duration::from_secs(1), login: None };
    let names: Vec<NodeName> = (0..NODE_COUNT).filter_map(|node| NodeName::new(&format!("gw{node}"))).collect();
    let name = names[usize::from(node)].clone();
    let member = Member { node: NodeId(node), name, incarnation: Incarnation(incarnation) };
    let fence = Arc::new(Fence::closed());
    if matches!(store, CandidateStore::ZookeeperLatch) {
        let core = SessionLatch::new(SessionLatchConfig {
            member: member.clone(),
            timing,
            configuration: ConfigVersion::default(),
            on_suspended: OnSuspended::Hold,
            own_epoch: Epoch::default(),
        });
        let (inbox, waiting) = inbox();
        let config = zookeeper_config(access);
        let session = zookeeper::session::open(&config, GROUP, SESSION, &member, inbox.clone())?;
        return run_candidate(
            Election::new(
                core,
                session,
                Arc::clone(&fence),
                waiting,
                &inbox,
                Box::new(IgnoredNotifications),
                options(timing),
            ),
            &fence,
        );
    }
    let core = Lease::new(LeaseConfig {
        member,
        timing,
        candidates: (0..NODE_COUNT).map(NodeId).zip(names).collect(),
        configuration: ConfigVersion::default(),
        on_suspended: OnSuspended::Hold,
        preferred: None,
        own_epoch: Epoch::default(),
        moves: AutoMoveConfig::default(),
    });
    let (inbox, waiting) = inbox();
    let register: Box<dyn Register> = if matches!(store, CandidateStore::Etcd) {
        let config = EtcdConfig { access, prefix: "/mdgw/".to_owned(), tls: None };
        Box::new(etcd::open(&config, GROUP, inbox.register_sender())?)
    } else {
        Box::new(zookeeper::open(&zookeeper_config(access), GROUP, inbox.register_sender())?)
    };
    run_candidate(
        Election::new(
            core,
            register,
            Arc::clone(&fence),
            waiting,
            &inbox,
            Box::new(IgnoredNotifications),
            options(timing),
        ),
        &fence,
    )
}

fn zookeeper_config(access: StoreAccess) -> ZooKeeperConfig {
    ZooKeeperConfig { access, path: "/mdgw".to_owned(), mode: ZooKeeperMode::Lease }
}

fn options(timing: LeaseTiming) -> ElectionOptions {
    ElectionOptions {
        group: GROUP.0,
        timing,
        core: None,
        fifo_priority: None,
        listeners_ns_max: 1_000_000,
        peers: Vec::new(),
    }
}

fn run_candidate(election: Election, fence: &Fence) -> Result<(), Box<dyn Error>> {
    election.set_eligibility(Eligibility::Eligible);
    election.start()?;
    send_until_stdin_closes(fence)?;
    election.close();
    Ok(())
}

/// Ignores all notifications: this program tests only the lease.
struct IgnoredNotifications;

impl ElectionHooks for IgnoredNotifications {}

fn send_until_stdin_closes(fence: &Fence) -> io::Result<()> {
    let is_stopping = Arc::new(AtomicBool::new(false));
    let thread_copy = Arc::clone(&is_stopping);
    thread::spawn(move || {
        // The content does not matter, only the end of standard input.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        thread_copy.store(true, Ordering::Release);
    });
    let mut out = io::stdout().lock();
    while !is_stopping.load(Ordering::Acquire) {
        let now = mono_now();
        if let Some(epoch) = fence.epoch_if_open(now) {
            writeln!(out, "{} {}", epoch.0, now.0)?;
            out.flush()?;
        }
        thread::sleep(SEND_INTERVAL);
    }
    Ok(())
}

const GROUP: GroupId = GroupId(1);
/// Nodes 0 to 3 may take part.
const NODE_COUNT: u8 = 4;
/// Session timeout: short, but above the minimum of the test's ensemble.
const SESSION: Duration = Duration::from_millis(600);
const SEND_INTERVAL: Duration = Duration::from_micros(200);
