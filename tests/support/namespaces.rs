//! A network of hosts in network namespaces, joined by a switch that can drop traffic.
//!
//! A namespace has a name only while it is being opened. It lives as long as a process or a file descriptor holds it,
//! so nothing is left behind however the test ends.

use std::{
    fs::File,
    io::{self, Write as _},
    net::Ipv4Addr,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    process::{self, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::skip::skip;

/// A network namespace.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// A new namespace with only loopback.
    ///
    /// # Errors
    /// Without the permission for it.
    pub fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("mdgw-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]), "")?;
        let opened = File::open(Path::new("/run/netns").join(&name));
        run(Command::new("ip").args(["netns", "del", &name]), "")?;
        let namespace = Self(Arc::new(opened?));
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn current() -> io::Result<Self> {
        Ok(Self(Arc::new(File::open("/proc/thread-self/ns/net")?)))
    }

    /// Runs `work` in the namespace, on a new thread. Its child processes and sockets belong to the namespace.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let done = thread::scope(|scope| {
            let in_there = scope.spawn(|| {
                self.enter();
                work()
            });
            in_there.join()
        });
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into the namespace, for the rest of its life.
    ///
    /// # Panics
    /// Without the permission for it.
    pub fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).expect("the creator may enter");
    }

    fn ip(&self, arguments: &str) -> io::Result<()> {
        self.run(|| run(Command::new("ip").args(arguments.split_whitespace()), ""))
    }

    fn tc(&self, arguments: &str) -> io::Result<()> {
        self.run(|| run(Command::new("tc").args(arguments.split_whitespace()), ""))
    }
}

/// One host: its namespace and its address, on the interface [`INTERFACE`].
#[derive(Clone, Debug)]
pub struct Host {
    /// Name of the switch's port to it.
    pub name: String,
    /// Address in the network of the switch.
    pub address: Ipv4Addr,
    /// The namespace of its processes.
    pub namespace: Namespace,
}

impl Host {
    /// Limits the rate of its link. Excess packets wait first in the interface queue, then in the sockets.
    pub fn limit_rate(&self, kbit_per_second: u32) {
        let queue = format!("qdisc replace dev {INTERFACE} root tbf rate {kbit_per_second}kbit burst 4kb limit 8mb");
        self.namespace.tc(&queue).expect("the link's rate can be limited");
    }

    /// Its kernel refuses each packet to that address: the send fails.
    ///
    /// # Panics
    /// When `nft` fails.
    pub fn refuse_sends_to(&self, address: Ipv4Addr) {
        self.rules(&format!(
            "add table ip refused\n\
             add chain ip refused sent {{ type filter hook output priority 0; }}\n\
             add rule ip refused sent ip daddr {address} drop"
        ));
    }

    /// Ends [`Self::refuse_sends_to`].
    ///
    /// # Panics
    /// When `nft` fails.
    pub fn allow_sends(&self) {
        self.rules("delete table ip refused");
    }

    fn rules(&self, rules: &str) {
        let applied = self.namespace.run(|| run(Command::new("nft").args(["-f", "-"]), rules));
        applied.expect("the host takes rules");
    }

    /// Removes the rate limit. Packets in the interface queue are lost.
    pub fn remove_rate_limit(&self) {
        self.namespace.tc(&format!("qdisc del dev {INTERFACE} root")).expect("the rate was limited");
    }
}

/// Name of a host's only interface.
pub const INTERFACE: &str = "net0";

/// A switch and the links to its hosts. It floods multicast to all of them.
#[derive(Debug)]
pub struct Switch {
    namespace: Namespace,
}

impl Switch {
    /// A switch without hosts. `None`, with a message on standard error, without the permission for it: `test` is then skipped.
    ///
    /// # Panics
    /// When it has the permission, and `ip` or `nft` fail.
    #[must_use]
    pub fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "network namespaces take root");
            return None;
        }
        if Command::new("nft").arg("--version").stdout(Stdio::null()).status().is_err() {
            skip(test, "nftables (package of Debian) is not installed");
            return None;
        }
        let namespace = match Namespace::new() {
            Ok(namespace) => namespace,
            Err(error) => {
                skip(test, &format!("no network namespaces here ({error})"));
                return None;
            }
        };
        let switch = Self { namespace };
        switch.ip("link add switch type bridge mcast_snooping 0 forward_delay 0");
        switch.ip("link set switch up");
        switch.rules("add table bridge cuts\nadd chain bridge cuts forward { type filter hook forward priority 0; }");
        Some(switch)
    }

    /// Adds a host behind a port of that name.
    ///
    /// # Panics
    /// When the name is taken or too long for an interface.
    #[must_use]
    pub fn host(&self, name: &str, address: Ipv4Addr) -> Host {
        let namespace = Namespace::new().expect("a second namespace can be made");
        // Both ends are made in the host. One is then moved to the switch, whose namespace is named by its open descriptor.
        let switch = format!("/proc/{}/fd/{}", process::id(), self.namespace.0.as_raw_fd());
        let veth_command = format!("link add {INTERFACE} type veth peer name {name} netns {switch}");
        namespace.ip(&veth_command).expect("the link is made");
        self.ip(&format!("link set {name} master switch up"));
        let host = |arguments: &str| namespace.ip(arguments).expect("a host has an interface");
        host(&format!("address add {address}/24 dev {INTERFACE}"));
        host(&format!("link set {INTERFACE} up"));
        Host { name: name.to_owned(), address, namespace }
    }

    /// Drops what `from` sends to `to`, in this direction only, from now on.
    pub fn drop_traffic(&self, from: &Host, to: &Host) {
        self.add_drop_rule(&format!("iifname {} oifname {}", from.name, to.name));
    }

    /// Drops the TCP connections' packets from `from` to `to`.
    pub fn drop_tcp(&self, from: &Host, to: &Host) {
        self.add_drop_rule(&format!("iifname {} oifname {} ip protocol tcp", from.name, to.name));
    }

    /// Drops packets from that host to that address.
    pub fn drop_to_address(&self, from: &Host, address: Ipv4Addr) {
        self.add_drop_rule(&format!("iifname {} ip daddr {address}", from.name));
    }

    /// Drops packets from that host to that address after `copies` copies have passed. The switch makes a copy of each
    /// packet for each host.
    pub fn drop_to_address_after(&self, from: &Host, address: Ipv4Addr, copies: u64) {
        let after_copies = format!("numgen inc mod 1000000000 >= {copies} counter");
        self.add_drop_rule(&format!("iifname {} ip daddr {address} {after_copies}", from.name));
    }

    /// Whether [`Self::drop_to_address_after`] has dropped a packet yet.
    ///
    /// # Panics
    /// When `nft` fails.
    #[must_use]
    pub fn has_dropped(&self) -> bool {
        let mut list = Command::new("nft");
        list.args(["list", "chain", "bridge", "cuts", "forward"]);
        let listed = self.namespace.run(|| list.output()).expect("nft runs");
        let text = String::from_utf8_lossy(&listed.stdout);
        text.contains("counter packets") && !text.contains("counter packets 0 ")
    }

    /// Randomly drops that percentage of the packets to that address on their way to one host.
    pub fn drop_randomly(&self, address: Ipv4Addr, to: &Host, percent: u32) {
        self.add_drop_rule(&format!("oifname {} ip daddr {address} numgen random mod 100 < {percent}", to.name));
    }

    /// Drops all packets to that address on their way to one host.
    pub fn drop_to_host(&self, address: Ipv4Addr, to: &Host) {
        self.add_drop_rule(&format!("oifname {} ip daddr {address}", to.name));
    }

    /// Removes all drop rules.
    pub fn heal(&self) {
        self.rules("flush chain bridge cuts forward");
    }

    fn add_drop_rule(&self, what: &str) {
        self.rules(&format!("add rule bridge cuts forward {what} drop"));
    }

    fn rules(&self, rules: &str) {
        let applied = self.namespace.run(|| run(Command::new("nft").args(["-f", "-"]), rules));
        applied.expect("the switch takes rules");
    }

    fn ip(&self, arguments: &str) {
        self.namespace.ip(arguments).expect("a switch is made by ip");
    }
}

/// Runs a program to its end with `input` on its standard input.
fn run(command: &mut Command, input: &str) -> io::Result<()> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?} {input}: {}", String::from_utf8_lossy(&done.stderr))))
}
