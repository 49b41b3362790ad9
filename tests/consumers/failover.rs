//! Receivers in Rust, Python and C through a failover of a pair, each on a host of its own that loses packets on both output lines.
//! What they deliver is the same, byte for byte.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use mdgw_subscriber::{Item, LineAddress, StartFrom, Subscriber, SubscriberConfig, TagPolicy, load_tag_key};
use mdgw_tests::{
    namespaces::Host,
    pair::GROUP,
    process::wait_until,
    skip::skip,
    testbed::{
        OUTPUT, SECOND_OUTPUT, Testbed,
        plan::{ElectionBackend, Plan},
        services,
    },
};

use super::{c, data_files, text};

const LINES: [SocketAddrV4; 2] = [OUTPUT, SECOND_OUTPUT];
const GATEWAYS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
/// Share of the packets that each line loses on its way to a receiver, percent.
const LOSS_PERCENT: u32 = 15;

#[test]
fn receivers_in_three_languages_deliver_the_same_through_a_failover() {
    let test = "receivers_in_three_languages_deliver_the_same_through_a_failover";
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("output.key");
    // Not the key of the gateways' link.
    fs::write(&key, "6b".repeat(32)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let mut plan = Plan::relaxed(ElectionBackend::File);
    plan.has_second_output = true;
    plan.output = format!("tag_key_files = [\"{}\"]\n", key.display());
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip(test, "python3 is not installed");
    }
    let Some(example) = c::compile_example(test, folder.path()) else { return };
    let Some(mut testbed) = Testbed::start(test, plan) else { return };
    let host = |name: &str, number: u8| {
        let host = testbed.switch.host(name, Ipv4Addr::new(10, 77, 0, number));
        LINES.iter().for_each(|line| testbed.switch.drop_randomly(*line.ip(), &host, LOSS_PERCENT));
        host
    };
    let hosts = [host("rust", 31), host("python", 32), host("c", 33), host("late", 34)];
    let [rust_host, python_host, c_host, late_host] = &hosts;

    let rust = thread::spawn({
        let (host, key) = (rust_host.clone(), key.clone());
        move || receive(&host, &key)
    });
    let python = Consumer::start(python_host, python_command(python_host, &key), &folder.path().join("python"));
    let c = Consumer::start(c_host, c_command(&example, c_host, &key), &folder.path().join("c"));
    testbed.start_session();
    testbed.wait_for_more_deliveries(1_000);
    let (leader, epoch) = (testbed.leader(), testbed.epoch());
    let _killed_at = testbed.kill(leader);
    let _epoch = testbed.wait_for_content_after(epoch);
    testbed.start_gateway(leader);
    testbed.wait_until_eligible(leader);
    let late = Consumer::start(late_host, python_command(late_host, &key), &folder.path().join("late"));
    testbed.wait_for_more_deliveries(2_000);
    testbed.end_session_everywhere();

    let rust = rust.join().unwrap();
    assert!(rust.iter().filter(|line| line.starts_with("message ")).count() > 3_000);
    assert!(
        !rust.iter().any(|line| line.starts_with("lost ") || line.starts_with("gap ")),
        "the receiver in Rust lost messages"
    );
    for (name, consumer) in [("Python", python), ("C", c), ("late Python", late)] {
        let (found, stderr) = consumer.finish();
        let place = (0..).zip(found.iter().zip(&rust)).find(|(_, (found, expected))| found != expected);
        assert!(place.is_none(), "{name} delivers something else: {place:?}\n{stderr}");
        assert_eq!(found.len(), rust.len(), "{name}\n{stderr}");
    }
    testbed.finish().assert_no_errors();
}

/// What every receiver must deliver alike. States, and definitions of a late start, depend on when a receiver started and on what it
/// lost.
fn is_compared(line: &str) -> bool {
    ["session ", "message ", "gap ", "lost ", "end "].iter().any(|kind| line.starts_with(kind))
}

/// Receives with the subscriber library until the session ends.
fn receive(host: &Host, key: &Path) -> Vec<String> {
    let lines = LINES.iter().map(|line| LineAddress::new(*line, host.address)).collect();
    let mut config = SubscriberConfig::new(lines);
    config.services = services(2, 0);
    config.sources = GATEWAYS.to_vec();
    config.receiver.group = GROUP;
    config.receiver.start = StartFrom::OldestOfDay;
    config.receiver.tags = TagPolicy { keys: vec![load_tag_key(key).unwrap()], accepts_untagged: false };
    let mut subscriber = host.namespace.run(|| Subscriber::open(config).unwrap());
    let mut delivered = Vec::new();
    let mut has_ended = false;
    while !has_ended {
        let poll = subscriber.poll(Duration::from_millis(50), &mut |output| {
            has_ended |= matches!(output.item, Item::EndOfSession);
            delivered.push(text::item(&output));
        });
        let _count = poll.unwrap();
    }
    assert!(subscriber.statistics().requests > 0, "nothing was missing");
    delivered.retain(|line| is_compared(line));
    delivered
}

fn python_command(host: &Host, key: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(data_files::repository_path("gateway/subscriber/python/mdgw_subscriber.py"));
    LINES.iter().for_each(|line| _ = command.args(["--line", &line.to_string()]));
    services(2, 1).iter().for_each(|service| _ = command.args(["--retransmission", &service.to_string()]));
    GATEWAYS.iter().for_each(|source| _ = command.args(["--source", &source.to_string()]));
    command.args(["--group", &GROUP.0.to_string(), "--interface", &host.address.to_string(), "--until-ended"]);
    command.arg("--tag-key").arg(key);
    command
}

fn c_command(example: &Path, host: &Host, key: &Path) -> Command {
    let mut command = Command::new(example);
    command.args([GROUP.0.to_string(), host.address.to_string()]).args(LINES.map(|line| line.to_string()));
    services(2, 0).iter().for_each(|service| _ = command.args(["--service", &service.to_string()]));
    GATEWAYS.iter().for_each(|source| _ = command.args(["--source", &source.to_string()]));
    command.arg("--until-ended").arg("--key").arg(key);
    command
}

/// A receiver as a process. Killed when it is dropped.
struct Consumer {
    child: Child,
    /// Standard output and standard error.
    files: [PathBuf; 2],
}

impl Consumer {
    /// Starts it on that host and waits until it has joined.
    fn start(host: &Host, mut command: Command, files: &Path) -> Self {
        let files = ["out", "err"].map(|ending| files.with_extension(ending));
        let [stdout, stderr] = [0, 1].map(|index| File::create(&files[index]).unwrap());
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let child = host.namespace.run(|| command.spawn().unwrap());
        let consumer = Self { child, files };
        wait_until("a receiver has joined", || consumer.text(1).contains("receiving"));
        consumer
    }

    /// Waits for its end. Returns the lines that are compared, and its standard error.
    fn finish(mut self) -> (Vec<String>, String) {
        wait_until("a receiver gets the end of the session", || self.child.try_wait().unwrap().is_some());
        let (stdout, stderr) = (self.text(0), self.text(1));
        let code = self.child.wait().unwrap().code();
        assert_eq!(code, Some(0), "{stderr}");
        (stdout.lines().filter(|line| is_compared(line)).map(str::to_owned).collect(), stderr)
    }

    fn text(&self, index: usize) -> String {
        fs::read_to_string(&self.files[index]).unwrap()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}
