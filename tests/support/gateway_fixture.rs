//! The environment of one gateway on loopback: unused addresses, a directory of its own, a configuration.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, Ordering},
};

use tempfile::TempDir;

use crate::process::{self, MdgwProcess};

/// Addresses and directory of one gateway. Dropping it removes the directory.
#[derive(Debug)]
pub struct GatewayFixture {
    directory: TempDir,
    /// The venue's lines.
    pub lines: [SocketAddrV4; 2],
    /// Multicast group and port to which the gateway publishes.
    pub output: SocketAddrV4,
    /// The venue's request server.
    pub requests: SocketAddrV4,
    /// The gateway's retransmission service.
    pub retransmission: SocketAddrV4,
    /// The gateway's node id.
    pub node: u8,
    /// Bound sockets that reserve the ports. Multicast groups need none: they differ by port.
    _reserved: Vec<UdpSocket>,
}

/// The parts of a gateway's configuration that tests vary.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Name of the feed.
    pub feed: &'static str,
    /// Threads of the pool.
    pub threads: usize,
    /// Dispatch model of the pool.
    pub dispatch: &'static str,
    /// I/O backend: `auto`, `io_uring` or `epoll`.
    pub io: &'static str,
    /// Additional lines of `[gateway]`.
    pub gateway: String,
    /// Additional lines of `[[channel]]`.
    pub channel: String,
    /// Whether gaps are requested from the venue.
    pub has_recovery: bool,
    /// Networks that the retransmission service answers.
    pub allowed: &'static str,
    /// Additional lines of `[[output]]`.
    pub output: String,
    /// More lines of the `[[output.line]]` table.
    pub output_line: &'static str,
    /// Keys of `[output.snapshots]` besides address and interface; `None`: no snapshot group.
    pub snapshot_group: Option<&'static str>,
    /// Additional lines of `[retransmission]`.
    pub retransmission: String,
    /// Size of one segment of the publication log.
    pub segment_bytes: u64,
    /// Size of the publication log.
    pub retention_bytes: u64,
    /// Additional lines of `[latency]`.
    pub latency: &'static str,
}

impl GatewayOptions {
    /// A Nasdaq channel with a request server.
    #[must_use]
    pub fn itch() -> Self {
        Self {
            feed: "nasdaq-itch-5.0",
            threads: 2,
            dispatch: "leader-followers",
            io: "auto",
            gateway: String::new(),
            // A gateway touches all of its memory when it starts, and many tests start several: the books are small. The window
            // holds what a test's venue sends in seconds: on a crowded machine its request server waits that long for a core, and a
            // full window declares the gap before the answer comes.
            channel: "orders_max = 65536\nlevels_max = 65536\ngap_timeout_us = 2000\nwindow_packets = 16384\n"
                .to_owned(),
            has_recovery: true,
            allowed: "127.0.0.0/8",
            output: String::new(),
            output_line: "",
            snapshot_group: None,
            // Tests ask for a whole day within a second.
            retransmission: "requests_per_second = 10000\nbytes_per_second = 100000000\n".to_owned(),
            segment_bytes: 4 << 20,
            retention_bytes: 256 << 20,
            latency: "",
        }
    }

    /// An IEX channel. The venue has no request server, so the gap timeout gives the other line enough time on a crowded
    /// machine.
    #[must_use]
    pub fn iex(feed: &'static str) -> Self {
        Self {
            feed,
            channel: "gap_timeout_us = 1000000\nwindow_packets = 16384\n".to_owned(),
            has_recovery: false,
            ..Self::itch()
        }
    }
}

impl GatewayFixture {
    /// Reserves unused addresses and creates the directory.
    ///
    /// # Panics
    /// When no address is free, or no temporary directory can be created.
    #[must_use]
    pub fn new() -> Self {
        let reserved: Vec<_> = (0..3).map(|_| bind_free_port()).collect();
        let [a, b, output] = [0, 1, 2].map(|number| group(port(&reserved[number])));
        let [requests, retransmission] = [free_address(), free_address()];
        Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            lines: [a, b],
            output,
            requests,
            retransmission,
            node: 0,
            _reserved: reserved,
        }
    }

    /// A new fixture for a gateway with that node id.
    #[must_use]
    pub fn with_node(node: u8) -> Self {
        Self { node, ..Self::new() }
    }

    /// The fixture of another gateway that publishes to the same group and has its own lines.
    #[must_use]
    pub fn peer(&self, node: u8) -> Self {
        Self { output: self.output, node, ..Self::new() }
    }

    /// The fixture of another gateway that publishes to the same group, from the same lines.
    #[must_use]
    pub fn peer_on_same_lines(&self, node: u8) -> Self {
        Self { lines: self.lines, requests: self.requests, ..self.peer(node) }
    }

    /// The snapshot group that belongs to the published group.
    #[must_use]
    pub fn snapshot_group(&self) -> SocketAddrV4 {
        let [_, _, high, low] = self.output.ip().octets();
        SocketAddrV4::new(Ipv4Addr::new(239, 254, high, low), self.output.port())
    }

    /// Path of that file or directory of the fixture.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The configuration's text.
    #[must_use]
    pub fn config_text(&self, options: &GatewayOptions) -> String {
        let GatewayOptions { feed, threads, dispatch, io, channel, has_recovery, allowed, retransmission, .. } =
            options;
        let GatewayOptions { gateway, segment_bytes, retention_bytes, output, output_line, latency, .. } = options;
        let directory = self.directory.path().display();
        // Programs of other versions, which tests/mixed_versions runs, may not know the key.
        let dispatch =
            if *dispatch == "leader-followers" { String::new() } else { format!("dispatch = \"{dispatch}\"\n") };
        let mut text = format!(
            "[gateway]\nnode = {}\nstate_file = \"{directory}/state.json\"\nlog_dir = \"{directory}/log\"\n\
             segment_bytes = {segment_bytes}\nretention_bytes = {retention_bytes}\n{gateway}\n\
             [[pool]]\nname = \"main\"\nthreads = {threads}\n{dispatch}io = \"{io}\"\nwait = \"park\"\n\n\
             [[channel]]\nid = 1\nname = \"one\"\nfeed = \"{feed}\"\n{channel}\n",
            self.node
        );
        for (name, line) in ["A", "B"].iter().zip(self.lines) {
            let _ = writeln!(
                text,
                "[[channel.line]]\nname = \"{name}\"\ngroup = \"{line}\"\ninterface = \"127.0.0.1\"\n\
                 receive_buffer_bytes = 4194304\n"
            );
        }
        if *has_recovery {
            // Some tests lose answers, and threads wait long for a core on a crowded machine. With 20 attempts no gap is
            // declared by chance.
            let _ = writeln!(text, "[channel.recovery]\nserver = \"{}\"\nattempts_max = 20\n", self.requests);
        }
        let snapshots = options.snapshot_group.map(|keys| {
            let address = self.snapshot_group();
            format!("[output.snapshots]\naddress = \"{address}\"\ninterface = \"127.0.0.1\"\nloopback = true\n{keys}\n")
        });
        let snapshots = snapshots.unwrap_or_default();
        let _ = write!(
            text,
            "[[output]]\ngroups = [1]\nheartbeat_ms = 100\n{output}\n\
             [[output.line]]\naddress = \"{}\"\ninterface = \"127.0.0.1\"\nloopback = true\n{output_line}\n{snapshots}\
             [retransmission]\nlisten = \"{}\"\nallowed = [\"{allowed}\"]\n{retransmission}\n\
             [latency]\ndirectory = \"{directory}/latency\"\n{latency}\n[log]\nlevel = \"info\"\n",
            self.output, self.retransmission
        );
        text
    }

    /// The configuration of the first fixture's gateway with a channel for the lines of each fixture: `one`, `two` and `three`. It
    /// publishes on the output lines of the first two.
    ///
    /// # Panics
    /// With fewer than two fixtures.
    #[must_use]
    pub fn config_of_channels(fixtures: &[Self], options: &GatewayOptions) -> String {
        let texts: Vec<_> = fixtures.iter().map(|fixture| fixture.config_text(options)).collect();
        let at = |text: &str, table: &str| text.find(table).expect("the configuration has the table");
        let (before, output) = texts[0].split_at(at(&texts[0], "[[output]]"));
        let (lines, rest) = output.split_at(at(output, "[retransmission]"));
        let channel = |(text, (id, name)): (&String, (&str, &str))| {
            let channel = &text[at(text, "[[channel]]")..at(text, "[[output]]")];
            channel.replace("id = 1", id).replace("name = \"one\"", name)
        };
        let more = [("id = 2", "name = \"two\""), ("id = 3", "name = \"three\"")];
        let channels: String = texts[1..].iter().zip(more).map(channel).collect();
        let second = &texts[1][at(&texts[1], "[[output.line]]")..at(&texts[1], "[retransmission]")];
        [before, &channels, lines, second, rest].concat()
    }

    /// Writes the configuration. Returns its path.
    ///
    /// # Panics
    /// When it can't be written.
    #[must_use]
    pub fn config(&self, options: &GatewayOptions) -> PathBuf {
        let path = self.path("gateway.toml");
        fs::write(&path, self.config_text(options)).expect("the configuration can be written");
        path
    }

    /// Starts the gateway and waits until it listens.
    ///
    /// # Panics
    /// When it doesn't start.
    #[must_use]
    pub fn gateway(&self, options: &GatewayOptions, arguments: &[&str]) -> MdgwProcess {
        let gateway = self.start_gateway(options, arguments);
        gateway.wait_for_stderr("gateway running");
        gateway
    }

    /// Starts the gateway with a control socket and latency intervals of 100 ms. Waits until it runs and listens on the
    /// socket. Returns the socket's path.
    ///
    /// # Panics
    /// When it doesn't.
    #[must_use]
    pub fn controlled_gateway(&self, options: &GatewayOptions, arguments: &[&str]) -> (MdgwProcess, PathBuf) {
        let socket = self.path("run/control");
        let keys = format!("[gateway]\ncontrol_socket = \"{}\"", text(&socket));
        let config = self.config_text(options).replacen("[gateway]", &keys, 1);
        let config = config.replacen("[latency]", "[latency]\ninterval_ms = 100", 1);
        let path = self.path("with_control.toml");
        fs::write(&path, config).expect("a configuration can be written");
        let gateway = process::start(["run", text(&path)].into_iter().chain(arguments.iter().copied()));
        gateway.wait_for_stderr("gateway running");
        process::wait_until("the gateway opens its control socket", || socket.exists());
        (gateway, socket)
    }

    /// Starts the gateway.
    #[must_use]
    pub fn start_gateway(&self, options: &GatewayOptions, arguments: &[&str]) -> MdgwProcess {
        let config = self.config(options);
        process::start([text(&config)].into_iter().chain(arguments.iter().copied()).fold(vec!["run"], with))
    }

    /// Starts a subscriber and waits until it has joined the published group.
    ///
    /// # Panics
    /// When it doesn't.
    #[must_use]
    pub fn tail(&self, arguments: &[&str]) -> MdgwProcess {
        let tail = self.start_tail(self.output, arguments);
        wait_until_joined(self.output, 1);
        tail
    }

    /// Starts a subscriber to that group.
    #[must_use]
    pub fn start_tail(&self, output: SocketAddrV4, arguments: &[&str]) -> MdgwProcess {
        let (line, service) = (output.to_string(), self.retransmission.to_string());
        let fixed = ["tail", "--line", &line, "--interface", "127.0.0.1", "--retransmission", &service];
        process::start(fixed.into_iter().chain(arguments.iter().copied()))
    }

    /// Starts an exchange simulator on both lines.
    #[must_use]
    pub fn sim(&self, arguments: &[&str]) -> MdgwProcess {
        let [a, b] = self.lines.map(|line| line.to_string());
        let fixed = ["sim", "--line", &a, "--line", &b, "--interface", "127.0.0.1", "--json"];
        process::start(fixed.into_iter().chain(arguments.iter().copied()))
    }
}

impl Default for GatewayFixture {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes a key for the links of gateways, with the required permissions.
///
/// # Panics
/// When it can't be written.
pub fn write_key(path: &Path) {
    write_key_of(path, 0x5a);
}

/// Writes another key that only its owner may read: this byte, 32 times.
///
/// # Panics
/// When it can't be written.
pub fn write_key_of(path: &Path, byte: u8) {
    write_secret(path, &format!("{byte:02x}").repeat(32));
}

/// Writes a file that only its owner may read.
///
/// # Panics
/// When it can't be written.
pub fn write_secret(path: &Path, content: &str) {
    fs::write(path, content).expect("the file can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("the permissions can be set");
}

/// A path as an argument.
///
/// # Panics
/// When it isn't UTF-8.
#[must_use]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// Waits until that many sockets of this machine are members of the group.
///
/// # Panics
/// When [`process::TEST_TIMEOUT`] ends before.
pub fn wait_until_joined(address: SocketAddrV4, sockets: u32) {
    // The kernel does not announce joins, so this polls.
    process::wait_until("the sockets join their group", || members(*address.ip()) >= sockets);
}

/// How many sockets are members of a group, on all interfaces: column `Users` of `/proc/net/igmp` in the namespace of the calling thread.
fn members(group: Ipv4Addr) -> u32 {
    let wanted = format!("{:08X}", u32::from_le_bytes(group.octets()));
    let table = fs::read_to_string("/proc/thread-self/net/igmp").expect("the memberships can be read");
    let mut rows = table.lines().map(str::split_whitespace);
    rows.by_ref().filter_map(|mut row| (row.next()? == wanted).then(|| row.next()?.parse::<u32>().ok()).flatten()).sum()
}

/// Datagrams that each socket of that address has dropped: its buffer was full.
///
/// # Panics
/// When the kernel's table cannot be read.
#[must_use]
pub fn dropped_datagrams(address: SocketAddrV4) -> Vec<u64> {
    let wanted = format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port());
    let table = fs::read_to_string("/proc/thread-self/net/udp").expect("the sockets can be read");
    let rows = table.lines().filter(|row| row.split_whitespace().nth(1) == Some(&wanted));
    rows.filter_map(|row| row.split_whitespace().last()?.parse().ok()).collect()
}

fn with<'a>(mut all: Vec<&'a str>, one: &'a str) -> Vec<&'a str> {
    all.push(one);
    all
}

/// An unused address on loopback with a port outside the kernel's ephemeral range. So the kernel assigns it neither to a
/// socket of another test nor to the local end of a gateway's own connection attempt.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_address() -> SocketAddrV4 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests in several processes start at different ports.
    let begin = u16::try_from(std::process::id() % 100 * 200).expect("below 20,000");
    for _ in 0..PORT_COUNT {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORT_COUNT;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT_MIN + offset);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
    panic!("all of {PORT_COUNT} ports are in use");
}

/// First port of the tests. Their ports are below the kernel's ephemeral range.
const PORT_MIN: u16 = 12_000;
const PORT_COUNT: u16 = 20_000;

fn bind_free_port() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port on loopback")
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("a bound socket has a port").port()
}

/// The administratively scoped multicast group that belongs to that port alone.
fn group(port: u16) -> SocketAddrV4 {
    let [high, low] = port.to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(239, 255, high, low), port)
}
