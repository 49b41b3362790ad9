//! Joins groups again, and binds outputs again, after their interface was removed and came back.
//!
//! The kernel keeps a membership while its interface is down or without an address. It drops the membership when the
//! interface is removed; a recreated interface has another index and no groups. So a cold thread compares the kernel's
//! state with the wanted one, after every change of a link or an address and in addition at regular intervals. It
//! compares the interface's index with the index at the join, and the kernel's table of joined groups
//! (`/proc/net/igmp`) with ours.
//!
//! The thread compares state instead of following changes: the next comparison repairs a missed change. A membership
//! that still exists is not touched, since leaving it would make the switch stop forwarding.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd},
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::Duration,
};

use socket2::Socket;

use super::{Interface, OutputOptions};
use crate::{batch::Output, interfaces, poll, socket_options, task_queue::TaskQueue};

/// A group that a socket has joined.
#[derive(Clone, Debug)]
pub struct Membership {
    pub(super) socket: Arc<Socket>,
    pub(super) group: Ipv4Addr,
    pub(super) sources: Vec<Ipv4Addr>,
    pub(super) interface: Option<Interface>,
    /// Index of the interface on which it is joined; 0 if the routing table chose.
    pub(super) index: u32,
}

/// The interface by which an output socket sends to its group.
#[derive(Clone, Debug)]
pub struct Egress {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) interface: Interface,
    /// Index of the interface that was set on the socket.
    pub(super) index: u32,
}

impl Egress {
    /// Egress of an output; `None` for unicast and if the routing table chooses.
    #[must_use]
    pub fn of(options: &OutputOptions, output: &Output) -> Option<Self> {
        let interface = options.interface.clone().filter(|_| options.destination.ip().is_multicast())?;
        let index = interface.index().unwrap_or(0);
        Some(Self { socket: Arc::clone(&output.socket), interface, index })
    }

    /// Sets the socket's interface again if its index has changed.
    fn repair(&mut self) -> io::Result<RepairOutcome> {
        let now = self.interface.lookup()?;
        if now.index == self.index {
            return Ok(RepairOutcome::NotNeeded);
        }
        socket_options::set_egress(&*self.socket, now.index, now.address)?;
        self.index = now.index;
        Ok(RepairOutcome::Repaired)
    }
}

/// Sockets that the watch repairs when their interface was removed and recreated.
#[derive(Clone, Debug, Default)]
pub struct InterfaceDependents {
    /// Joined groups.
    pub memberships: Vec<Membership>,
    /// Outputs to groups.
    pub egresses: Vec<Egress>,
}

impl From<Vec<Membership>> for InterfaceDependents {
    fn from(memberships: Vec<Membership>) -> Self {
        Self { memberships, egresses: Vec::new() }
    }
}

/// The cold thread that repairs memberships and outputs. Dropping this stops the thread.
#[derive(Debug)]
pub struct MembershipWatch {
    /// A byte wakes the thread; it stops when this is closed.
    stop: Option<UnixStream>,
    tasks: TaskQueue<Vec<Watched>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl MembershipWatch {
    /// Interval of comparisons besides those after a change of a link or an address.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    /// Starts the watch in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel gives no descriptors or no thread.
    pub fn start(dependents: impl Into<InterfaceDependents>, interval: Duration) -> io::Result<Self> {
        let dependents = dependents.into();
        let changes = interfaces::changes()?;
        let (stop, signals) = UnixStream::pair()?;
        stop.set_nonblocking(true)?;
        signals.set_nonblocking(true)?;
        let tasks = TaskQueue::default();
        let thread_tasks = tasks.clone();
        let thread = thread::Builder::new()
            .name("memberships".into())
            .spawn(move || watch(watched(dependents), &thread_tasks, &changes, signals, interval))?;
        Ok(Self { stop: Some(stop), tasks, thread: Some(thread) })
    }

    /// Watches these too.
    pub fn add(&self, dependents: InterfaceDependents) {
        self.run(|all| all.extend(watched(dependents)));
    }

    /// Watches these sockets no longer, so that they can close. When this returns, the thread has dropped them, unless it
    /// hangs.
    pub fn remove(&self, sockets: Vec<RawFd>) {
        self.run(move |all| all.retain(|watched| !sockets.contains(&watched.dependent.socket())));
    }

    fn run(&self, task: impl FnOnce(&mut Vec<Watched>) + Send + 'static) {
        let wake = || {
            if let Some(mut stop) = self.stop.as_ref() {
                // A full pipe has woken the thread already; a thread that has ended needs no wake-up.
                let _ = stop.write(&[0]);
            }
        };
        let _hangs = self.tasks.run_even_late(wake, task);
    }
}

impl Drop for MembershipWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A membership or an output, and whether its interface was missing at the last comparison.
#[derive(Debug)]
struct Watched {
    dependent: Dependent,
    is_missing: bool,
}

#[derive(Debug)]
enum Dependent {
    Membership(Membership),
    Egress(Egress),
}

impl Dependent {
    fn socket(&self) -> RawFd {
        match self {
            Self::Membership(membership) => membership.socket.as_raw_fd(),
            Self::Egress(egress) => egress.socket.as_raw_fd(),
        }
    }

    /// What a log line names.
    fn subject(&self) -> String {
        match self {
            Self::Membership(membership) => membership.group.to_string(),
            Self::Egress(egress) => egress.interface.to_string(),
        }
    }

    fn repair(&mut self) -> io::Result<RepairOutcome> {
        match self {
            Self::Membership(membership) => membership.repair(),
            Self::Egress(egress) => egress.repair(),
        }
    }
}

fn watched(dependents: InterfaceDependents) -> Vec<Watched> {
    let InterfaceDependents { memberships, egresses } = dependents;
    let all = memberships.into_iter().map(Dependent::Membership).chain(egresses.into_iter().map(Dependent::Egress));
    all.map(|dependent| Watched { dependent, is_missing: false }).collect()
}

fn watch(
    mut dependents: Vec<Watched>,
    tasks: &TaskQueue<Vec<Watched>>,
    changes: &OwnedFd,
    mut signals: UnixStream,
    interval: Duration,
) {
    loop {
        if let Err(error) = poll::readable([changes.as_fd(), signals.as_fd()], interval) {
            tracing::error!(%error, "interface monitoring stopped");
            return;
        }
        match signals.read(&mut [0; 64]) {
            Ok(0) => return,
            Ok(_) => tasks.run_pending(&mut dependents),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
        // The content of a notification does not matter, since the state is compared. So a notification that the kernel
        // could not store (ENOBUFS) does not matter either.
        interfaces::discard_changes(changes);
        for Watched { dependent, is_missing } in &mut dependents {
            match dependent.repair() {
                Ok(RepairOutcome::NotNeeded) => *is_missing = false,
                Ok(RepairOutcome::Repaired) => {
                    *is_missing = false;
                    let subject = dependent.subject();
                    tracing::warn!(subject, "interface is back: group rejoined or output rebound");
                }
                Err(error) if !*is_missing => {
                    *is_missing = true;
                    let subject = dependent.subject();
                    tracing::error!(subject, %error, "interface is gone");
                }
                Err(_) => {}
            }
        }
    }
}

/// Result of comparing the kernel's state with the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepairOutcome {
    NotNeeded,
    Repaired,
}

impl Membership {
    /// Joins again if the kernel no longer has the membership. An error if the interface does not exist (yet).
    fn repair(&mut self) -> io::Result<RepairOutcome> {
        let index = self.interface.as_ref().map_or(Ok(0), Interface::index)?;
        // The thread's own table: `/proc/net` would be that of the process's first thread.
        let table = fs::read_to_string("/proc/thread-self/net/igmp")?;
        if index == self.index && is_listed(&table, index, self.group) {
            return Ok(RepairOutcome::NotNeeded);
        }
        self.leave();
        self.join()?;
        Ok(RepairOutcome::Repaired)
    }
}

/// Whether the kernel's table of joined groups has this group on the interface with that index (0: on any interface).
///
/// The line of an interface begins with the interface's index. The indented lines below it are its groups, each as the
/// hexadecimal number of its four bytes in memory.
fn is_listed(table: &str, index: u32, group: Ipv4Addr) -> bool {
    let group = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let mut on_interface = false;
    table.lines().skip(1).any(|line| {
        let first = line.split_whitespace().next().unwrap_or("");
        if line.starts_with('\t') {
            return on_interface && first == group;
        }
        on_interface = index == 0 || first.parse() == Ok(index);
        false
    })
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddrV4, time::Instant};

    use super::*;
    use crate::{
        namespace,
        sockets::{OutputOptions, ReceiveOptions, open_output, open_receive},
    };

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 71, 40);
    const PORT: u16 = 9_040;
    /// Sends to wait for an arrival: more than any repair takes.
    const ATTEMPTS: usize = 2_000;

    #[test]
    fn a_joined_group_is_found_only_on_its_interface() {
        let table = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                     1\tlo        :     1      V3\n\
                     \t\t\t\t010000E0     1 0:00000000\t\t0\n\
                     12\teth0      :     2      V3\n\
                     \t\t\t\t2847FFEF     1 0:00000000\t\t0\n\
                     \t\t\t\t010000E0     1 0:00000000\t\t0\n";
        assert!(is_listed(table, 12, GROUP));
        assert!(is_listed(table, 0, GROUP), "on any");
        assert!(!is_listed(table, 1, GROUP));
        assert!(!is_listed(table, 2, GROUP), "12 is not 2");
        assert!(is_listed(table, 1, Ipv4Addr::new(224, 0, 0, 1)));
        assert!(!is_listed(table, 12, Ipv4Addr::new(239, 255, 71, 41)));
        assert!(!is_listed("", 12, GROUP));
    }

    /// Creates two linked interfaces in this namespace: packets sent on `out0` arrive on `in0`.
    fn veth_pair() {
        namespace::ip("link add in0 type veth peer name out0");
        for (name, address) in [("in0", "10.71.0.1/24"), ("out0", "10.72.0.1/24")] {
            // By default the kernel drops packets whose source is an address of this host.
            fs::write(format!("/proc/sys/net/ipv4/conf/{name}/accept_local"), "1").unwrap();
            fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0").unwrap();
            namespace::ip(&format!("addr add {address} dev {name}"));
            namespace::ip(&format!("link set {name} up"));
        }
        fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
    }

    /// Sends until a packet arrives, at most `attempts` times.
    fn arrives(receiver: &Socket, attempts: usize) -> bool {
        let destination = SocketAddrV4::new(GROUP, PORT);
        let output = open_output(&OutputOptions::new(destination, Some("out0".parse().unwrap()))).unwrap();
        let sender = Socket::from(output.socket.try_clone().unwrap());
        (0..attempts).any(|_| {
            let _ = sender.send(b"x");
            poll::readable([receiver.as_fd()], Duration::from_millis(10)).unwrap()
        })
    }

    fn drain(receiver: &Socket) {
        while receiver.recv(&mut [std::mem::MaybeUninit::uninit(); 8]).is_ok() {}
    }

    /// Injects `fault` into the interface of a receiver in a new namespace. Returns whether packets arrive again;
    /// `None`: skipped.
    fn check(sources: &'static [Ipv4Addr], dependents: bool, fault: fn()) -> Option<bool> {
        let in_namespace = move || {
            namespace::enter()?;
            veth_pair();
            let mut options = ReceiveOptions::new(SocketAddrV4::new(GROUP, PORT), Some("in0".parse().unwrap()));
            options.sources = sources.to_vec();
            let receiver = open_receive(&options).unwrap();
            let memberships = receiver.membership().into_iter().filter(|_| dependents).collect();
            let watched_now = InterfaceDependents { memberships, egresses: Vec::new() };
            let _watch = MembershipWatch::start(watched_now, MembershipWatch::INTERVAL).unwrap();
            assert!(arrives(receiver.socket(), ATTEMPTS), "before the damage");
            fault();
            drain(receiver.socket());
            Some(arrives(receiver.socket(), if dependents { ATTEMPTS } else { 10 }))
        };
        thread::spawn(in_namespace).join().unwrap()
    }

    fn recreate_interface() {
        namespace::ip("link del in0");
        veth_pair();
    }

    fn flush_address() {
        namespace::ip("addr flush dev in0");
        namespace::ip("addr add 10.71.0.1/24 dev in0");
    }

    fn bounce_link() {
        namespace::ip("link set in0 down");
        namespace::ip("link set in0 up");
    }

    #[test]
    fn groups_are_rejoined_when_their_interface_returns() {
        for fault in [recreate_interface, flush_address, bounce_link] {
            assert_ne!(check(&[], true, fault), Some(false));
        }
    }

    #[test]
    fn source_specific_joins_are_repeated_when_their_interface_returns() {
        const SOURCES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 73, 0, 1), Ipv4Addr::new(10, 72, 0, 1)];
        assert_ne!(check(&SOURCES, true, recreate_interface), Some(false));
    }

    #[test]
    fn an_output_is_bound_again_when_its_interface_returns() {
        let in_namespace = || {
            namespace::enter()?;
            veth_pair();
            let options = OutputOptions::new(SocketAddrV4::new(GROUP, PORT), Some("out0".parse().unwrap()));
            let output = open_output(&options).unwrap();
            let sender = Socket::from(output.socket.try_clone().unwrap());
            sender.send(b"x").unwrap();
            let egresses = Egress::of(&options, &output).into_iter().collect();
            let dependents = InterfaceDependents { memberships: Vec::new(), egresses };
            namespace::ip("link del in0");
            assert!(sender.send(b"x").is_err(), "interface is gone");
            let watch = MembershipWatch::start(dependents, MembershipWatch::INTERVAL).unwrap();
            veth_pair();
            let since = Instant::now();
            while let Err(error) = sender.send(b"x") {
                assert!(since.elapsed() < Duration::from_secs(60), "the output was not bound again: {error}");
                thread::yield_now();
            }
            drop(watch);
            Some(())
        };
        thread::spawn(in_namespace).join().unwrap();
    }

    #[test]
    fn without_the_membership_watch_the_group_is_not_rejoined() {
        assert_ne!(check(&[], false, recreate_interface), Some(true));
    }
}
