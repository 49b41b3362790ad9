//! The network between the venue, the gateway and the receiver: loopback, or a virtual cable into a namespace.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    process::{self, Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use mdgw_sys::sockets::Interface;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Link {
    /// All on the loopback interface.
    Loopback,
    /// The gateway in a network namespace of its own, behind a veth pair; takes root.
    Veth,
}

/// Both ends of the link.
pub(super) struct Network {
    pub(super) link: Link,
    /// The interface of sender and receiver.
    pub(super) outside: Interface,
    /// The interface of the gateway or the bare loop, as an address.
    pub(super) inside: Ipv4Addr,
    /// The gateway's namespace. It ends, with the cable, when this and the last process in it have ended.
    namespace: Option<File>,
    port: u16,
}

impl Network {
    pub(super) fn open(link: Link) -> Result<Self> {
        // Other benches on this host have other ports.
        let port = PORT_MIN + u16::try_from(process::id() % u32::from(PORT_COUNT)).unwrap_or(0);
        match link {
            Link::Loopback => {
                Ok(Self { link, outside: Interface::LOOPBACK, inside: Ipv4Addr::LOCALHOST, namespace: None, port })
            }
            Link::Veth => {
                let namespace = open_namespace().context("make a network namespace (takes root)")?;
                let network = Self {
                    link,
                    outside: Interface::Address(VETH_OUTSIDE),
                    inside: VETH_INSIDE,
                    namespace: Some(namespace),
                    port,
                };
                network.connect()?;
                Ok(network)
            }
        }
    }

    /// Makes the cable and gives both ends an address.
    fn connect(&self) -> Result<()> {
        let namespace = self.namespace.as_ref().context("a namespace")?;
        let name = format!("mdgw{}", process::id());
        let inside = format!("/proc/{}/fd/{}", process::id(), namespace.as_raw_fd());
        ip(&format!("link add {name} type veth peer name {INSIDE_NAME} netns {inside}"))?;
        ip(&format!("address add {VETH_OUTSIDE}/24 dev {name}"))?;
        ip(&format!("link set {name} up"))?;
        self.run_inside(|| {
            ip("link set lo up")?;
            ip(&format!("address add {VETH_INSIDE}/24 dev {INSIDE_NAME}"))?;
            ip(&format!("link set {INSIDE_NAME} up"))
        })?
    }

    /// Runs `work` where the gateway is. Processes that it starts stay there.
    pub(super) fn run_inside<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        let Some(namespace) = &self.namespace else { return Ok(work()) };
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            inside.join().map_err(|_| anyhow!("a thread in the gateway's namespace panicked"))?
        })
    }

    /// Whether packets must be looped back to receivers on the sending host.
    pub(super) fn loopback(&self) -> bool {
        self.link == Link::Loopback
    }

    /// The group of an input line.
    pub(super) fn input_group(&self, channel: usize, line: usize) -> SocketAddrV4 {
        let octet = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        SocketAddrV4::new(Ipv4Addr::new(239, 254, octet(line + 1), octet(channel + 1)), self.port)
    }

    /// The group of the published packets.
    pub(super) fn output_group(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(239, 254, 0, 1), self.port)
    }

    /// The address of the gateway's admin listener, where the gateway is.
    pub(super) fn admin_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(super) fn description(&self) -> &'static str {
        match self.link {
            Link::Loopback => "loopback",
            Link::Veth => "veth between namespaces",
        }
    }
}

/// A namespace that has no name any more: it ends with the file.
fn open_namespace() -> Result<File> {
    let name = format!("mdgw-wire-{}", process::id());
    ip(&format!("netns add {name}"))?;
    let opened = File::open(Path::new("/run/netns").join(&name));
    ip(&format!("netns del {name}"))?;
    Ok(opened?)
}

fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    let done = command.output().with_context(|| format!("run ip {arguments}"))?;
    ensure!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}

const INSIDE_NAME: &str = "net0";
const VETH_OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 213, 77, 1);
const VETH_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 213, 77, 2);
/// Ports below the kernel's ephemeral range.
const PORT_MIN: u16 = 12_000;
const PORT_COUNT: u16 = 20_000;
