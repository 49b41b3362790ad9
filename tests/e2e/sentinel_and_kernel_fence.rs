//! Safeguards against a faulty gateway: the sentinel kills a gateway that hangs, and the kernel fence drops the packets of a
//! gateway that was paused past its lease.

use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use mdgw_feeds::{identity::Epoch, published::packet::parse_packet};
use mdgw_sys::kernel_fence::KernelFence;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions},
    held_thread::{HeldThreads, has_strace},
    process::{self, MdgwProcess, Signal, TEST_TIMEOUT, wait_until},
    skip::skip,
};
use socket2::{Domain, Protocol, Socket, Type};

fn start(fixture: &GatewayFixture, wanted: &GatewayOptions, election: &str) -> MdgwProcess {
    let (node, peer) = (fixture.node, 3 - fixture.node);
    let text = format!(
        "{}\n[election]\nname = \"gw{node}\"\n{election}\n[[election.peer]]\nnode = {peer}\nname = \"gw{peer}\"\n",
        fixture.config_text(wanted)
    );
    let path = fixture.path("gateway.toml");
    fs::write(&path, text).expect("the configuration can be written");
    process::start([Path::new("run"), &path])
}

/// Starts one gateway of a linked pair, with a sentinel that kills it when it hangs. The lease is longer than the test, so
/// only the death notice can move leadership in time.
fn start_member(fixture: &GatewayFixture, key: &Path) -> MdgwProcess {
    // Take ports that the fixtures have reserved, so that no other process uses them.
    let address = |host: u8| format!("127.0.0.{host}:{}", fixture.output.port());
    let (own, other) = (fixture.node, 3 - fixture.node);
    let key = key.display();
    let election = format!(
        "backend = \"emergent\"\nlease_ms = 600000\nrenew_ms = 1000\nmargin_ms = 2000\n\n\
         [election.emergent]\nallow_split = true\nlisten = \"{}\"\nkey_file = \"{key}\"\nminimum_size = 1\n\
         bootstrap = {}\nseeds = [\"{}\", \"{}\"]\n\n\
         [election.link]\nlisten = \"{}\"\npeer = \"{}\"\nkey_file = \"{key}\"\nhang_limit_ms = 1000\n",
        address(10 + own),
        own == 1,
        address(11),
        address(12),
        address(20 + own),
        address(20 + other),
    );
    start(fixture, &GatewayOptions::itch(), &election)
}

#[test]
fn a_hung_gateway_is_killed_and_replaced_before_its_lease_ends() {
    let first_fixture = GatewayFixture::with_node(1);
    let second_fixture = first_fixture.peer_on_same_lines(2);
    let key = first_fixture.path("key");
    fs::write(&key, "07".repeat(32)).expect("the key can be written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the permissions can be set");

    let first = start_member(&first_fixture, &key);
    first.wait_for_stderr("INFO leads ");
    let second = start_member(&second_fixture, &key);
    second.wait_for_stderr("state=Connected");
    second.wait_for_stderr("sentinel is watching");

    first.signal(Signal::Stop);
    assert!(
        first.wait_for_stderr("gateway died: remaining threads killed, death announced").contains("Hang"),
        "{}",
        first.stderr_so_far()
    );
    second.wait_for_stderr("INFO leads ");
}

#[test]
fn a_sentinel_runs_in_its_own_cgroup() {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts can be read");
    if !rustix::process::geteuid().is_root() || !mounts.lines().any(|line| line.split(' ').nth(2) == Some("cgroup2")) {
        return skip("a_sentinel_runs_in_its_own_cgroup", "a cgroup for the sentinel takes cgroup v2 and root");
    }
    let fixture = GatewayFixture::with_node(1);
    let key = fixture.path("key");
    fs::write(&key, "07".repeat(32)).expect("the key can be written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the permissions can be set");
    let gateway = start_member(&fixture, &key);
    gateway.wait_for_stderr("sentinel is watching");
    let sentinel = gateway.only_child().to_string();
    let cgroup = |process: &str| {
        let text = fs::read_to_string(format!("/proc/{process}/cgroup")).expect("it runs");
        text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned)).expect("it is in one")
    };
    assert!(cgroup(&sentinel).ends_with(&format!("/mdgw-sentinel-{sentinel}")), "{}", cgroup(&sentinel));
    assert_ne!(cgroup(&sentinel), cgroup(&gateway.id().to_string()));
    let _ended = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Holds the gateway's sending thread between the fence check and the system call, stops the process until its deadline has
/// passed, and continues it. Returns how many packets of the old epoch arrive then.
fn packets_sent_after_deadline(kernel_fence: bool) -> usize {
    let fixture = GatewayFixture::with_node(1);
    let listener = listener(&fixture);
    let wanted = GatewayOptions { io: "epoll", threads: 1, ..GatewayOptions::itch() };
    let records = fixture.path("records");
    let election = format!(
        "backend = \"file\"\nprofile = \"calm\"\nkernel_fence = {kernel_fence}\n\n[election.file]\ndirectory = \"{}\"\n",
        records.display()
    );
    let gateway = start(&fixture, &wanted, &election);
    gateway.wait_for_stderr("INFO leads ");
    // For longer than any trial takes.
    let _exchange = fixture.sim(&["--messages", "1000000", "--stocks", "20", "--rate", "1000"]);
    let old = next_epoch(&listener);

    let held = HeldThreads::all(gateway.id(), "sendmmsg");
    // A thread that has just sent also shows sendmmsg(2) for a moment.
    let mut observations = 0;
    wait_until("a thread is held in sendmmsg(2)", || {
        observations = if threads(&gateway).iter().any(ThreadStatus::is_sending) { observations + 1 } else { 0 };
        observations == 200
    });
    gateway.signal(Signal::Stop);
    wait_until("all threads are stopped", || threads(&gateway).iter().all(ThreadStatus::is_stopped));
    // The stopped process cannot renew, so the deadline is less than a lease away.
    let over = Instant::now() + Duration::from_millis(1_200);
    while Instant::now() < over {
        std::thread::sleep(over.saturating_duration_since(Instant::now()));
    }
    let epochs_before_deadline = epochs(&listener);
    assert!(epochs_before_deadline.iter().all(|epoch| *epoch == old), "{epochs_before_deadline:?}");
    assert!(threads(&gateway).iter().any(ThreadStatus::is_sending), "the thread is still held");

    held.release();
    wait_until("the held thread has sent and stopped", || {
        threads(&gateway).iter().all(|thread| thread.state == STOPPED)
    });
    gateway.signal(Signal::Continue);
    let mut late = 0;
    loop {
        match next_epoch(&listener) {
            epoch if epoch == old => late += 1,
            epoch => {
                assert!(epoch > old, "a later leadership has a higher epoch");
                return late;
            }
        }
    }
}

#[test]
fn the_kernel_fence_drops_sends_after_the_deadline() {
    if let Err(error) = KernelFence::probe() {
        return skip("the_kernel_fence_drops_sends_after_the_deadline", &error.to_string());
    }
    if !has_strace() {
        return skip("the_kernel_fence_drops_sends_after_the_deadline", "no strace");
    }
    assert_eq!(packets_sent_after_deadline(true), 0);
    let leaks_without_fence = (0..3).any(|_| packets_sent_after_deadline(false) > 0);
    assert!(leaks_without_fence, "without the kernel fence the packets are sent");
}

struct ThreadStatus {
    /// As in proc(5).
    state: char,
    system_call: String,
}

impl ThreadStatus {
    fn is_stopped(&self) -> bool {
        [STOPPED, TRACED].contains(&self.state)
    }

    fn is_sending(&self) -> bool {
        self.state == TRACED && self.system_call.split(' ').next() == Some(&libc::SYS_sendmmsg.to_string())
    }
}

const STOPPED: char = 'T';
const TRACED: char = 't';

fn threads(gateway: &MdgwProcess) -> Vec<ThreadStatus> {
    let tasks = fs::read_dir(format!("/proc/{}/task", gateway.id())).expect("the gateway runs");
    let thread = |path: &Path| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        Some(ThreadStatus { state, system_call: fs::read_to_string(path.join("syscall")).unwrap_or_default() })
    };
    tasks.flatten().filter_map(|task| thread(&task.path())).collect()
}

fn listener(fixture: &GatewayFixture) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
    socket.set_reuse_address(true).expect("the address can be shared");
    socket.bind(&fixture.output.into()).expect("the group's port");
    socket.join_multicast_v4(fixture.output.ip(), &Ipv4Addr::LOCALHOST).expect("loopback is an interface");
    socket.into()
}

fn next_epoch(listener: &UdpSocket) -> Epoch {
    listener.set_nonblocking(false).expect("the socket option can be set");
    listener.set_read_timeout(Some(TEST_TIMEOUT)).expect("the socket option can be set");
    next_packet_epoch(listener).expect("something is published")
}

/// Epochs of all packets received so far.
fn epochs(listener: &UdpSocket) -> Vec<Epoch> {
    listener.set_nonblocking(true).expect("the socket option can be set");
    std::iter::from_fn(|| next_packet_epoch(listener)).collect()
}

/// Epoch of the next packet. Skips output probes, which are sent to the same group.
fn next_packet_epoch(listener: &UdpSocket) -> Option<Epoch> {
    let mut datagram = [0; 2_048];
    loop {
        let length = listener.recv(&mut datagram).ok()?;
        if let Ok(packet) = parse_packet(&datagram[..length]) {
            return Some(packet.meta.epoch);
        }
    }
}
