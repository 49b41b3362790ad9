//! One candidate in an election over a real store, as a process that can be killed and stopped. While its fence is open
//! it "sends": it writes the epoch and the time of the fence check to standard output. It closes when standard input
//! ends.
//!
//!     candidate etcd|zookeeper|zookeeper-latch NODE INCARNATION PROFILE HOST:PORT,…

use std::{
    env,
    error::Error,
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use mdgw_election::{
    access::{EtcdConfig, StoreAccess, ZooKeeperConfig, ZooKeeperMode},
    auto_move::AutoMoveConfig,
    driver::{Election, ElectionHooks, ElectionOptions, inbox},
    etcd,
    fitness::Eligibility,
    identity::{Incarnation, Member, NodeId, NodeName},
    latch::LeaderLatch,
    lease::{Lease, LeaseConfig, OnSuspended},
    record::ConfigVersion,
    register::Register,
    session_latch::{SessionLatch, SessionLatchConfig},
    timing::LeaseTiming,
    zookeeper,
};
use mdgw_feeds::identity::{Epoch, GroupId};
use mdgw_sys::{clock::mono_now, fence::Fence};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [store, node, incarnation, profile, endpoints] = arguments.as_slice() else {
        return Err("expected: candidate STORE NODE INCARNATION PROFILE ENDPOINTS".into());
    };
    let node = NodeId(node.parse()?);
    let timing = LeaseTiming::PROFILES.iter().find(|(name, _)| name == profile).ok_or("no such profile")?.1;
    let access = StoreAccess {
        endpoints: endpoints.split(',').map(str::to_owned).collect(),
        request_timeout: Duration::from_secs(1),
        login: None,
    };
    let names: Vec<NodeName> = (0..4).filter_map(|node| NodeName::new(&format!("gw{node}"))).collect();
    let name = names.get(usize::from(node.0)).ok_or("nodes are 0 to 3")?.clone();
    let member = Member { node, name, incarnation: Incarnation(incarnation.parse()?) };
    let fence = Arc::new(Fence::closed());
    if store == "zookeeper-latch" {
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
        candidates: (0..4).map(NodeId).zip(names).collect(),
        configuration: ConfigVersion::default(),
        on_suspended: OnSuspended::Hold,
        preferred: None,
        own_epoch: Epoch::default(),
        moves: AutoMoveConfig::default(),
    });
    let (inbox, waiting) = inbox();
    let register: Box<dyn Register> = match store.as_str() {
        "etcd" => {
            let config = EtcdConfig { access, prefix: "/mdgw/".to_owned(), tls: None };
            Box::new(etcd::open(&config, GROUP, inbox.register_sender())?)
        }
        "zookeeper" => {
            let config = zookeeper_config(access);
            Box::new(zookeeper::open(&config, GROUP, inbox.register_sender())?)
        }
        _ => return Err("no such store".into()),
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
        name: GROUP.0.to_string(),
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
/// Session timeout: short, but above the minimum of the test's ensemble.
const SESSION: Duration = Duration::from_millis(600);
const SEND_INTERVAL: Duration = Duration::from_micros(200);
