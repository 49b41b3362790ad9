//! Groups joined again after their interface went away and came back.
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

use super::Interface;
use crate::sys::{interfaces, poll};

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

/// The cold thread; it ends when this is dropped.
#[derive(Debug)]
pub struct MembershipWatch {
    stop: Option<UnixStream>,
    rejoined: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl MembershipWatch {
    /// Compares after every change of a link or an address, and at this interval for what could be missed.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    /// Starts watching, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel gives no descriptors or no thread.
    pub fn start(memberships: Vec<Membership>, interval: Duration) -> io::Result<Self> {
        let changes = interfaces::changes()?;
        let (stop, stopped) = UnixStream::pair()?;
        let rejoined = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&rejoined);
        let thread = thread::Builder::new()
            .name("memberships".into())
            .spawn(move || watch(memberships, &changes, &stopped, interval, &counter))?;
        Ok(Self { stop: Some(stop), rejoined, thread: Some(thread) })
    }

    /// How often a group was joined again.
    #[must_use]
    pub fn rejoined(&self) -> u64 {
        self.rejoined.load(Ordering::Relaxed)
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

fn watch(
    mut memberships: Vec<Membership>,
    changes: &OwnedFd,
    stopped: &UnixStream,
    interval: Duration,
    rejoined: &AtomicU64,
) {
    let mut missing = vec![false; memberships.len()];
    loop {
        if let Err(error) = poll::readable([changes.as_fd(), stopped.as_fd()], interval) {
            tracing::error!(%error, "groups are no longer watched");
            return;
        }
        if poll::readable([stopped.as_fd()], Duration::ZERO).unwrap_or(true) {
            return;
        }
        // What changed doesn't matter, only that it did; also when the kernel had no room to tell (ENOBUFS).
        interfaces::forget_changes(changes);
        for (membership, missing) in memberships.iter_mut().zip(&mut missing) {
            match restore(membership) {
                Ok(Restored::Nothing) => {}
                Ok(Restored::Joined) => {
                    rejoined.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(group = %membership.group, "group joined again: its interface came back");
                }
                Err(error) if !*missing => {
                    *missing = true;
                    tracing::error!(group = %membership.group, %error, "group not joined");
                    continue;
                }
                Err(_) => continue,
            }
            *missing = false;
        }
    }
}

/// What [`restore`] had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restored {
    Nothing,
    Joined,
}

/// Joins again if the kernel no longer has what was joined. An error when the interface is not there (yet).
fn restore(membership: &mut Membership) -> io::Result<Restored> {
    let index = membership.interface.as_ref().map_or(Ok(0), Interface::index)?;
    // The thread's own table: `/proc/net` would be that of the process's first thread.
    let table = fs::read_to_string("/proc/thread-self/net/igmp")?;
    if index == membership.index && is_listed(&table, index, membership.group) {
        return Ok(Restored::Nothing);
    }
    membership.leave();
    membership.join()?;
    Ok(Restored::Joined)
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
        net::sockets::{OutputOptions, ReceiveOptions, open_output, open_receive},
        sys::namespace,
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
            let _watch = MembershipWatch::start(memberships, MembershipWatch::INTERVAL).unwrap();
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
    fn without_the_watch_the_group_stays_lost() {
        assert_ne!(check(None, false, made_again), Some(true));
    }
}
