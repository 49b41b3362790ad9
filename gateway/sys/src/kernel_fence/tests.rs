//! Each test runs a gateway in a child process, inside a network namespace and a cgroup that end with it, since only
//! the kernel can decide about its packets.

#![allow(unsafe_code, reason = "system calls")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};

use mdgw_wire::{
    identity::{ChannelId, Feed, Sequence, Session},
    published::{
        packet::{PacketFlags, PacketHeader, PacketMeta},
        probe,
    },
    time::TradingDate,
};
use rustix::process::{Pid, Signal, kill_process};
use zerocopy::IntoBytes as _;

use super::*;
use crate::{clock::mono_now, namespace, skip::skip};

const GROUPS: [GroupId; 2] = [GroupId(3), GroupId(0x1234)];
const OUTPUT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 72, 1), 9_100);
const SECOND_OUTPUT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), 9_101);
const OTHER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), 9_102);
const FAR_NS: u64 = 3_600_000_000_000;
/// Longer than a child process takes from a command to its check, ns.
const SHORT_NS: u64 = 1_000_000_000;

/// A gateway in a child process. It runs one command for each line on standard input, and answers with a line.
struct Gateway {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    cgroup: PathBuf,
}

impl Gateway {
    /// Starts in the calling thread's network namespace. `None`: fences are not permitted here; the reason has been
    /// printed.
    fn start() -> Option<Self> {
        let program = std::env::current_exe().unwrap();
        let part = "kernel_fence::tests::gateway_process";
        let mut child = Command::new(program)
            .args([part, "--exact", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut gateway = Self { child, to, from, cgroup: PathBuf::new() };
        let answer = gateway.answer();
        if let Some(why) = answer.strip_prefix("not permitted: ") {
            skip(std::thread::current().name().unwrap_or("a test"), why);
            return None;
        }
        gateway.cgroup = PathBuf::from(answer.strip_prefix("fenced in ").unwrap_or_else(|| panic!("{answer}")));
        Some(gateway)
    }

    fn command(&mut self, send_command: &str) -> String {
        self.send_command(send_command);
        self.answer()
    }

    fn send_command(&mut self, send_command: &str) {
        writeln!(self.to, "{send_command}").unwrap();
    }

    /// The next answer; output of the test harness in between is skipped.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the gateway has ended");
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The next start would remove the directory of the killed process.
        let _ = fs::remove_dir(&self.cgroup);
    }
}

#[test]
#[ignore = "the gateway's part of the other tests"]
fn gateway_process() {
    #[allow(clippy::print_stdout, reason = "the protocol of these tests")]
    let reply = |text: String| println!("> {text}");
    let cgroup = match FenceCgroup::enter() {
        Ok(cgroup) => cgroup,
        Err(error) => return reply(format!("not permitted: no cgroup: {error}")),
    };
    let fence = match KernelFence::attach(cgroup.path(), &GROUPS, &[OUTPUT, SECOND_OUTPUT]) {
        Ok(fence) => fence,
        Err(error) if error.is_not_permitted() => return reply(format!("not permitted: {error}")),
        Err(error) => return reply(error.to_string()),
    };
    reply(format!("fenced in {}", cgroup.path().display()));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut closer = None;
    for send_command in io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = send_command.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let index = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            // Arguments: index of the group, count of the epoch, time from now to the deadline in ns.
            "open" => fence.group(index(1)).open(Epoch::new(number(2), 1), mono_now().plus(number(3))),
            "close" => fence.group(index(1)).close(),
            "shut-by-copies" => {
                let copies = fence.descriptors().map(|descriptor| descriptor.try_clone_to_owned().unwrap());
                let opened = FenceCloser::open(copies, GROUPS.len()).unwrap();
                opened.shut();
                closer = Some(opened);
            }
            "panic" => panic!("as ordered"),
            "leave" => break,
            "sleep-past-deadline" => {
                let deadline = MonoNs(fence.group(index(1)).deadline.load(Ordering::Acquire));
                while mono_now() < deadline {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            // Arguments: destination, index of the group, count of the epoch. The process stops itself between the
            // check and the send, like a process that lost its core.
            "check-stop-send" => {
                let deadline = MonoNs(fence.group(index(2)).deadline.load(Ordering::Acquire));
                assert!(mono_now() < deadline, "the check in the process passes");
                // SAFETY: raise(3) takes no pointer. It signals this thread, so that the thread stops before it
                // continues.
                assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
                reply(send(&socket, words[1], GROUPS[index(2)], number(3)));
                continue;
            }
            "send" => {
                reply(send(&socket, words[1], GROUPS[index(2)], number(3)));
                continue;
            }
            "send-unknown-group" => {
                reply(send(&socket, words[1], GroupId(77), number(2)));
                continue;
            }
            "send-plain" => {
                let destination: SocketAddrV4 = words[1].parse().unwrap();
                reply(send_outcome(socket.send_to(b"no packet of ours", destination)));
                continue;
            }
            // Arguments: destination, time to live.
            "send-probe" => {
                let destination: SocketAddrV4 = words[1].parse().unwrap();
                socket.set_multicast_ttl_v4(words[2].parse().unwrap()).unwrap();
                reply(send_outcome(socket.send_to(&probe::to_bytes(1), destination)));
                socket.set_multicast_ttl_v4(1).unwrap();
                continue;
            }
            other => panic!("{other}"),
        }
        reply("done".to_owned());
    }
    drop(closer);
    drop(fence);
    drop(cgroup);
    reply("left".to_owned());
}

fn send(socket: &UdpSocket, destination: &str, group: GroupId, epoch_count: u64) -> String {
    let destination: SocketAddrV4 = destination.parse().unwrap();
    send_outcome(socket.send_to(&packet(group, Epoch::new(epoch_count, 1)), destination))
}

fn send_outcome(sent: io::Result<usize>) -> String {
    match sent {
        Ok(_) => "sent".to_owned(),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => "refused".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn packet(group: GroupId, epoch: Epoch) -> Vec<u8> {
    let session = Session { feed: Feed::IexDeep, date: TradingDate::from_yyyymmdd(20_170_425).unwrap(), restart: 1 };
    let meta = PacketMeta {
        flags: PacketFlags::HEARTBEAT,
        group,
        channel: ChannelId(1),
        epoch,
        session,
        first: Sequence(1),
        next: Sequence(1),
        send_time_ns: 1,
    };
    PacketHeader::new(&meta, 0, 0).as_bytes().to_vec()
}

/// Opens a socket that receives the first output. Routes multicast groups of this namespace to the loopback interface.
fn listener() -> UdpSocket {
    namespace::ip("link set lo multicast on");
    namespace::ip("route add 239.0.0.0/8 dev lo");
    let socket = UdpSocket::bind(OUTPUT).unwrap();
    socket.join_multicast_v4(OUTPUT.ip(), &Ipv4Addr::LOCALHOST).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Number of packets that have arrived. On the loopback interface a packet has arrived when its send returns.
fn arrived(listener: &UdpSocket) -> usize {
    let mut bytes = [0; 2_000];
    std::iter::from_fn(|| listener.recv(&mut bytes).ok()).count()
}

#[test]
fn packets_pass_only_before_the_deadline_and_under_its_epoch() {
    let Some(()) = namespace::enter() else { return };
    let listener = listener();
    let Some(mut gateway) = Gateway::start() else { return };
    let send =
        |gateway: &mut Gateway, group: u64, epoch: u64| gateway.command(&format!("send {OUTPUT} {group} {epoch}"));
    assert_eq!(send(&mut gateway, 0, 5), "refused", "closed from the start");
    gateway.command(&format!("open 0 5 {FAR_NS}"));
    assert_eq!(send(&mut gateway, 0, 5), "sent");
    assert_eq!(arrived(&listener), 1);
    assert_eq!(send(&mut gateway, 0, 4), "refused", "epoch has ended");
    assert_eq!(send(&mut gateway, 0, 6), "refused", "epoch was never opened");
    assert_eq!(send(&mut gateway, 1, 5), "refused", "the other group is closed");
    gateway.command(&format!("open 1 9 {FAR_NS}"));
    assert_eq!(send(&mut gateway, 1, 9), "sent");
    assert_eq!(gateway.command(&format!("send {SECOND_OUTPUT} 1 9")), "sent", "the second line is fenced too");
    assert_eq!(gateway.command(&format!("send {SECOND_OUTPUT} 1 8")), "refused");
    gateway.command("close 0");
    assert_eq!(send(&mut gateway, 0, 5), "refused");
    assert_eq!(send(&mut gateway, 1, 9), "sent", "closing one group leaves the other open");
    gateway.command("open 0 7 20000000");
    gateway.command("sleep-past-deadline 0");
    assert_eq!(send(&mut gateway, 0, 7), "refused", "the deadline passes by itself");
    assert_eq!(arrived(&listener), 2, "refused packets did not arrive");
}

#[test]
fn a_process_stopped_between_check_and_send_is_refused() {
    let Some(()) = namespace::enter() else { return };
    let listener = listener();
    let Some(mut gateway) = Gateway::start() else { return };
    gateway.command(&format!("open 0 5 {SHORT_NS}"));
    gateway.send_command(&format!("check-stop-send {OUTPUT} 0 5"));
    while gateway.state() != 'T' {
        std::thread::yield_now();
    }
    // The deadline was set before this time.
    let until = mono_now().plus(SHORT_NS);
    while mono_now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(gateway.id(), Signal::CONT).unwrap();
    assert_eq!(gateway.answer(), "refused");
    assert_eq!(arrived(&listener), 0);
    // Control: stopped for the same time, with a deadline that is still far off.
    gateway.command(&format!("open 0 6 {FAR_NS}"));
    gateway.send_command(&format!("check-stop-send {OUTPUT} 0 6"));
    while gateway.state() != 'T' {
        std::thread::yield_now();
    }
    kill_process(gateway.id(), Signal::CONT).unwrap();
    assert_eq!(gateway.answer(), "sent");
    assert_eq!(arrived(&listener), 1);
}

#[test]
fn unrelated_traffic_passes() {
    let Some(()) = namespace::enter() else { return };
    let listener = listener();
    let Some(mut gateway) = Gateway::start() else { return };
    assert_eq!(gateway.command(&format!("send-plain {OTHER}")), "sent", "another destination");
    assert_eq!(
        gateway.command(&format!("send {OTHER} 0 5")),
        "sent",
        "a published packet to another destination: an answer"
    );
    let other_port = SocketAddrV4::new(*OUTPUT.ip(), OUTPUT.port() + 1);
    assert_eq!(gateway.command(&format!("send-plain {other_port}")), "sent", "another port of the group's address");
    assert_eq!(gateway.command(&format!("send-plain {OUTPUT}")), "refused", "not a published packet, to the group");
    assert_eq!(gateway.command(&format!("send-unknown-group {OUTPUT} 5")), "refused");
    // This process is not in the gateway's cgroup.
    let outside_socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    outside_socket.send_to(&packet(GROUPS[0], Epoch::new(5, 1)), OUTPUT).unwrap();
    assert_eq!(arrived(&listener), 1);
}

#[test]
fn a_closed_fence_lets_host_local_probes_pass() {
    let Some(()) = namespace::enter() else { return };
    let listener = listener();
    let Some(mut gateway) = Gateway::start() else { return };
    assert_eq!(gateway.command(&format!("send-probe {OUTPUT} 0")), "sent");
    assert_eq!(arrived(&listener), 1, "through the kernel, on this host alone");
    assert_eq!(gateway.command(&format!("send-probe {OUTPUT} 1")), "refused", "it would leave the host");
    gateway.command(&format!("open 0 5 {FAR_NS}"));
    assert_eq!(gateway.command(&format!("send-probe {OUTPUT} 0")), "sent");
    assert_eq!(arrived(&listener), 1);
}

#[test]
fn the_sentinels_descriptors_close_the_fence_and_keep_it_attached() {
    let Some(()) = namespace::enter() else { return };
    let _listener = listener();
    let Some(mut gateway) = Gateway::start() else { return };
    gateway.command(&format!("open 0 5 {FAR_NS}"));
    assert_eq!(gateway.command(&format!("send {OUTPUT} 0 5")), "sent");
    gateway.command("shut-by-copies");
    assert_eq!(gateway.command(&format!("send {OUTPUT} 0 5")), "refused");
}

/// Other threads of a gateway whose election thread died run until the kernel delivers the kill.
#[test]
fn deadlines_stored_after_the_sentinel_shut_the_fence_open_nothing() {
    let Some(()) = namespace::enter() else { return };
    let _listener = listener();
    let Some(mut gateway) = Gateway::start() else { return };
    gateway.command(&format!("open 0 5 {FAR_NS}"));
    gateway.command("close 0");
    gateway.command(&format!("open 0 6 {FAR_NS}"));
    assert_eq!(
        gateway.command(&format!("send {OUTPUT} 0 6")),
        "sent",
        "control: the gateway itself opens again what it closed"
    );
    gateway.command("shut-by-copies");
    for (group, epoch) in [(0, 6), (0, 7), (1, 9)] {
        gateway.command(&format!("open {group} {epoch} {FAR_NS}"));
        assert_eq!(
            gateway.command(&format!("send {OUTPUT} {group} {epoch}")),
            "refused",
            "group {group}, epoch {epoch}"
        );
    }
}

#[test]
fn the_kernel_fence_is_removed_however_the_gateway_ends() {
    let Some(()) = namespace::enter() else { return };
    let listener = listener();
    for end in ["leave", "panic", "kill"] {
        let Some(mut gateway) = Gateway::start() else { return };
        let cgroup = gateway.cgroup.clone();
        assert!(cgroup.exists());
        if end == "kill" {
            gateway.child.kill().unwrap();
        } else {
            gateway.send_command(end);
        }
        gateway.child.wait().unwrap();
        // After a kill no process was left to remove the directory; the next start does.
        assert_eq!(cgroup.exists(), end == "kill", "{end}");
        let Some(next) = Gateway::start() else { return };
        assert!(!cgroup.exists(), "{end}");
        drop(next);
    }
    let outside_socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    outside_socket.send_to(b"free", OUTPUT).unwrap();
    assert_eq!(arrived(&listener), 1);
}

#[test]
fn a_missing_privilege_error_names_what_the_fence_requires() {
    let refused =
        |number| KernelFenceError { action: "load a BPF program", source: io::Error::from_raw_os_error(number) };
    let error = refused(libc::EPERM);
    assert!(error.is_not_permitted() && error.to_string().contains("CAP_BPF"), "{error}");
    assert!(refused(libc::EINVAL).to_string().contains("CONFIG_CGROUP_BPF"));
    assert!(KernelFence::attach(Path::new("/"), &[], &[OUTPUT]).is_err());
    assert!(KernelFence::attach(Path::new("/"), &GROUPS, &[]).is_err());
}
