//! Groups joined again, and outputs directed again, after their interface went away and came back.
//!
//! The kernel keeps a membership while its interface is down or without an address. It forgets it with the interface:
//! one that is removed and made again has another index and no groups. So a cold thread compares, whenever a link or an
//! address of this host changes and besides at regular intervals, what the kernel has with what it should have: the
//! interface's index with the one joined on, and the kernel's table of joined groups (`/proc/net/igmp`) with ours.
//! State is compared rather than changes followed: a change that was missed is repaired by the next comparison, and a
//! membership that is still there is not touched (leaving it would tell the switch to stop forwarding).

use std::{
    fs, io,
    net::Ipv4Addr,
    os::fd::{AsFd, OwnedFd},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use socket2::Socket;

use super::{Interface, OutputOptions};
use crate::{batch::Output, interfaces, poll, socket_options};

/// One group that one socket has joined.
#[derive(Clone, Debug)]
pub struct Membership {
    pub(super) socket: Arc<Socket>,
    pub(super) group: Ipv4Addr,
    pub(super) source: Option<Ipv4Addr>,
    pub(super) interface: Option<Interface>,
    /// Index of the interface that it is joined on; 0 where the routing table chose.
    pub(super) index: u32,
}

/// The interface by which one output socket sends to its group.
#[derive(Clone, Debug)]
pub struct Egress {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) interface: Interface,
    /// Index of the interface that the socket was told.
    pub(super) index: u32,
}

impl Egress {
    /// Of an output; `None` for unicast and where the routing table chooses.
    #[must_use]
    pub fn of(options: &OutputOptions, output: &Output) -> Option<Self> {
        let interface = options.interface.clone().filter(|_| options.destination.ip().is_multicast())?;
        let index = interface.index().unwrap_or(0);
        Some(Self { socket: Arc::clone(&output.socket), interface, index })
    }

    /// Directs the socket to the interface as it is now, if that is another one than the socket was told.
    fn restore(&mut self) -> io::Result<Restored> {
        let now = self.interface.now()?;
        if now.index == self.index {
            return Ok(Restored::Nothing);
        }
        socket_options::set_egress(&*self.socket, now.index, now.address)?;
        self.index = now.index;
        Ok(Restored::Anew)
    }
}

/// What depends on interfaces.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Groups that were joined.
    pub memberships: Vec<Membership>,
    /// Outputs to groups.
    pub egresses: Vec<Egress>,
}

impl From<Vec<Membership>> for Watched {
    fn from(memberships: Vec<Membership>) -> Self {
        Self { memberships, egresses: Vec::new() }
    }
}

/// The cold thread; it ends when this is dropped.
#[derive(Debug)]
pub struct MembershipWatch {
    stop: Option<UnixStream>,
    restored: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl MembershipWatch {
    /// Compares after every change of a link or an address, and at this interval for what could be missed.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    /// Starts watching, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel gives no descriptors or no thread.
    pub fn start(watched: impl Into<Watched>, interval: Duration) -> io::Result<Self> {
        let watched = watched.into();
        let changes = interfaces::changes()?;
        let (stop, stopped) = UnixStream::pair()?;
        let restored = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&restored);
        let thread = thread::Builder::new()
            .name("memberships".into())
            .spawn(move || watch(watched, &changes, &stopped, interval, &counter))?;
        Ok(Self { stop: Some(stop), restored, thread: Some(thread) })
    }

    /// How often a group was joined or an output directed again.
    #[must_use]
    pub fn restored(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
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

fn watch(mut watched: Watched, changes: &OwnedFd, stopped: &UnixStream, interval: Duration, restored: &AtomicU64) {
    let Watched { memberships, egresses } = &mut watched;
    let mut missing = vec![false; memberships.len() + egresses.len()];
    loop {
        if let Err(error) = poll::readable([changes.as_fd(), stopped.as_fd()], interval) {
            tracing::error!(%error, "interfaces are no longer watched");
            return;
        }
        if poll::readable([stopped.as_fd()], Duration::ZERO).unwrap_or(true) {
            return;
        }
        // What changed doesn't matter, only that it did; also when the kernel had no room to tell (ENOBUFS).
        interfaces::forget_changes(changes);
        let groups = memberships.iter_mut().map(|membership| (membership.group.to_string(), membership.restore()));
        let outputs = egresses.iter_mut().map(|egress| (egress.interface.to_string(), egress.restore()));
        for ((what, outcome), missing) in groups.chain(outputs).zip(&mut missing) {
            match outcome {
                Ok(Restored::Nothing) => *missing = false,
                Ok(Restored::Anew) => {
                    *missing = false;
                    restored.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(what, "joined or directed again: its interface came back");
                }
                Err(error) if !*missing => {
                    *missing = true;
                    tracing::error!(what, %error, "its interface is gone");
                }
                Err(_) => {}
            }
        }
    }
}

/// What had to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restored {
    Nothing,
    Anew,
}

impl Membership {
    /// Joins again if the kernel no longer has what was joined. An error when the interface is not there (yet).
    fn restore(&mut self) -> io::Result<Restored> {
        let index = self.interface.as_ref().map_or(Ok(0), Interface::index)?;
        // The thread's own table: `/proc/net` would be that of the process's first thread.
        let table = fs::read_to_string("/proc/thread-self/net/igmp")?;
        if index == self.index && is_listed(&table, index, self.group) {
            return Ok(Restored::Nothing);
        }
        self.leave();
        self.join()?;
        Ok(Restored::Anew)
    }
}

/// Whether the kernel's table of joined groups has this one on that interface (0: on any).
///
/// Lines of interfaces begin with their index; below each, indented, stand its groups as the hexadecimal number that
/// their four bytes are in memory.
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
    use std::net::SocketAddrV4;

    use super::*;
    use crate::{
        namespace,
        sockets::{OutputOptions, ReceiveOptions, open_output, open_receive},
    };

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 71, 40);
    const PORT: u16 = 9_040;
    /// Longer than any hand-over takes.
    const ATTEMPTS: usize = 2_000;

    #[test]
    fn groups_are_found_on_their_interface_alone() {
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

    /// Two ends of a cable in one namespace: what leaves `out0` arrives on `in0`.
    fn cable() {
        namespace::ip("link add in0 type veth peer name out0");
        for (name, address) in [("in0", "10.71.0.1/24"), ("out0", "10.72.0.1/24")] {
            // Packets come from an address of this very host.
            fs::write(format!("/proc/sys/net/ipv4/conf/{name}/accept_local"), "1").unwrap();
            fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0").unwrap();
            namespace::ip(&format!("addr add {address} dev {name}"));
            namespace::ip(&format!("link set {name} up"));
        }
        fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
    }

    /// Sends until something arrives, at most so many times.
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

    /// In a namespace of its own: `damage` is what befalls the interface.
    fn check(source: Option<Ipv4Addr>, watched: bool, damage: fn()) -> Option<bool> {
        let in_namespace = move || {
            namespace::enter()?;
            cable();
            let mut options = ReceiveOptions::new(SocketAddrV4::new(GROUP, PORT), Some("in0".parse().unwrap()));
            options.source = source;
            let receiver = open_receive(&options).unwrap();
            let memberships = receiver.membership().into_iter().filter(|_| watched).collect();
            let watched_now = Watched { memberships, egresses: Vec::new() };
            let _watch = MembershipWatch::start(watched_now, MembershipWatch::INTERVAL).unwrap();
            assert!(arrives(receiver.socket(), ATTEMPTS), "before the damage");
            damage();
            drain(receiver.socket());
            Some(arrives(receiver.socket(), if watched { ATTEMPTS } else { 10 }))
        };
        thread::spawn(in_namespace).join().unwrap()
    }

    fn made_again() {
        namespace::ip("link del in0");
        cable();
    }

    fn address_lost() {
        namespace::ip("addr flush dev in0");
        namespace::ip("addr add 10.71.0.1/24 dev in0");
    }

    fn down_and_up() {
        namespace::ip("link set in0 down");
        namespace::ip("link set in0 up");
    }

    #[test]
    fn groups_are_joined_again_when_their_interface_comes_back() {
        for damage in [made_again, address_lost, down_and_up] {
            assert_ne!(check(None, true, damage), Some(false));
        }
    }

    #[test]
    fn source_specific_joins_come_back_too() {
        assert_ne!(check(Some(Ipv4Addr::new(10, 72, 0, 1)), true, made_again), Some(false));
    }

    #[test]
    fn an_output_finds_its_interface_when_it_comes_back() {
        let in_namespace = || {
            namespace::enter()?;
            cable();
            let options = OutputOptions::new(SocketAddrV4::new(GROUP, PORT), Some("out0".parse().unwrap()));
            let output = open_output(&options).unwrap();
            let sender = Socket::from(output.socket.try_clone().unwrap());
            sender.send(b"x").unwrap();
            let egresses = Egress::of(&options, &output).into_iter().collect();
            let watched = Watched { memberships: Vec::new(), egresses };
            namespace::ip("link del in0");
            assert!(sender.send(b"x").is_err(), "its interface is gone");
            let watch = MembershipWatch::start(watched, MembershipWatch::INTERVAL).unwrap();
            cable();
            while watch.restored() == 0 {
                thread::yield_now();
            }
            sender.send(b"x").unwrap();
            Some(())
        };
        thread::spawn(in_namespace).join().unwrap();
    }

    #[test]
    fn without_the_watch_the_group_stays_lost() {
        assert_ne!(check(None, false, made_again), Some(true));
    }
}
