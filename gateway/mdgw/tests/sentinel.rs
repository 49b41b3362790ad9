//! The sentinel with real processes: gateways die in different ways, and the recipients get the death notices.
//!
//! This test program itself plays a gateway: it is started again to run only [`gateway_process`].

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, UdpSocket},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use mdgw_election::{
    announcement::Announcement,
    auth::SharedKey,
    file::{FileRegister, group_directory},
    fitness::Fitness,
    identity::{DeathNotice, Incarnation, Member, NodeId, NodeName},
    record::{ConfigVersion, Record},
    record_location::RecordLocation,
    register::{Outcome as RegisterOutcome, Register as _, RegisterEvent, RequestId, Version},
    sentinel::{
        SentinelConnection, SentinelSource,
        registration::{GroupRegistration, WatchRegistration},
        shared_page::SharedPage,
    },
};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    time::MonoNs,
};
use mdgw_sys::memory::forbid_core_dumps;
use rustix::process::{Pid, Resource, Rlimit, Signal, geteuid, kill_process, kill_process_group, setrlimit};
use skip::skip;

#[path = "../../../tests/support/skip.rs"]
mod skip;

/// Longer than any step takes on any machine; a step that takes longer hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const GROUP: GroupId = GroupId(9);
const EPOCH: Epoch = Epoch(5 << 8 | 3);

/// Directory of the key, and the socket that receives death notices.
struct Fixture {
    directory: tempfile::TempDir,
    recipient: UdpSocket,
    key: SharedKey,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "5e".repeat(32)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let recipient = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        recipient.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self { key: SharedKey::load(&path).unwrap(), directory, recipient }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Receives the next notice.
    fn notice(&self) -> Announcement {
        let mut bytes = [0; 200];
        let length = self.recipient.recv(&mut bytes).expect("a notice arrives");
        Announcement::open(&bytes[..length], &self.key).expect("signed with the key")
    }

    /// Notices that have arrived and were not read yet.
    fn notices(&self) -> Vec<Announcement> {
        self.recipient.set_nonblocking(true).unwrap();
        let mut bytes = [0; 200];
        let all = std::iter::from_fn(|| self.recipient.recv(&mut bytes).ok().map(|length| bytes[..length].to_vec()));
        let all = all.map(|bytes| Announcement::open(&bytes, &self.key).unwrap()).collect();
        self.recipient.set_nonblocking(false).unwrap();
        all
    }

    fn gateway(&self, options: Options<'_>) -> Gateway {
        let (mut gateway, watched) = self.registering_gateway(options);
        let sentinel = watched.strip_prefix("watched by ").unwrap_or_else(|| panic!("{watched}")).parse().ok();
        gateway.sentinel = sentinel.and_then(Pid::from_raw);
        gateway
    }

    /// A gateway, and how its registration with the sentinel went.
    fn registering_gateway(&self, options: Options<'_>) -> (Gateway, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["gateway_process", "--exact", "--ignored", "--nocapture"]);
        command.env("RECIPIENT", self.recipient.local_addr().unwrap().to_string()).env("KEY_FILE", self.path("key"));
        command.env("INCARNATION", options.incarnation.to_string()).env("RESIDENT_MB", options.resident_mb.to_string());
        if let Some(limit_ms) = options.hang_limit_ms {
            command.env("HANG_LIMIT_MS", limit_ms.to_string());
        }
        if let Some(records) = options.records {
            command.env("RECORDS", records);
        }
        if let Some(service) = options.service {
            command.env("SERVICE", service);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let mut gateway = Gateway {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            stderr: child.stderr.take().unwrap(),
            child,
            sentinel: None,
        };
        let watched = gateway.answer();
        (gateway, watched)
    }
}

/// Options of the gateway process.
#[derive(Clone, Copy, Default)]
struct Options<'a> {
    incarnation: u64,
    resident_mb: usize,
    hang_limit_ms: Option<u64>,
    service: Option<&'a Path>,
    records: Option<&'a Path>,
}

struct Gateway {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    sentinel: Option<Pid>,
}

impl Gateway {
    fn order(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the gateway has ended");
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Standard error of gateway and sentinel. Blocks until both have ended.
    fn stderr_text(&mut self) -> String {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A sentinel that still watches notices the death and exits; a stopped one must be resumed first.
        if let Some(sentinel) = self.sentinel {
            let _ = kill_process(sentinel, Signal::CONT);
        }
    }
}

#[test]
#[ignore = "the gateway process of the other tests"]
fn gateway_process() {
    #[allow(clippy::print_stdout, reason = "the protocol of these tests")]
    let answer = |text: String| println!("> {text}");
    let variable = |name: &str| std::env::var(name).ok();
    let number = |name: &str| variable(name).and_then(|text| text.parse::<u64>().ok());
    forbid_core_dumps().unwrap();
    let page = Arc::new(SharedPage::create().unwrap());
    let (orders, ordered) = mpsc::channel::<&str>();
    let (holds, held) = mpsc::channel();
    let election_page = Arc::clone(&page);
    let election = thread::spawn(move || {
        election_page.hold().unwrap();
        election_page.group(0).open(EPOCH, MonoNs(u64::MAX));
        holds.send(()).unwrap();
        loop {
            election_page.thread(0).mark_busy();
            match ordered.recv_timeout(Duration::from_millis(1)) {
                Ok("close") => return election_page.close().unwrap(),
                Ok("end-the-thread") => return,
                // The thread stays alive but makes no progress.
                Ok("hang") => loop {
                    thread::park();
                },
                Ok(other) => panic!("{other}"),
                Err(_) => {}
            }
        }
    });
    held.recv().unwrap();
    let registration = WatchRegistration {
        member: Member {
            node: NodeId(3),
            name: NodeName::new("gw3").unwrap(),
            incarnation: Incarnation(number("INCARNATION").unwrap()),
        },
        groups: vec![GroupRegistration { group: GROUP.0, lease_ns: 100_000_000 }],
        records: variable("RECORDS").map(|path| RecordLocation::File(path.into())),
        thread_count: 1,
        recipients: vec![variable("RECIPIENT").unwrap().parse().unwrap()],
        key_file: variable("KEY_FILE").unwrap().into(),
        hang_limit_ns: number("HANG_LIMIT_MS").map(|limit_ms| limit_ms * 1_000_000),
    };
    let source = variable("SERVICE").map_or_else(
        || SentinelSource::Start { program: env!("CARGO_BIN_EXE_mdgw").into(), priority: 50, logs_json: false },
        |path| SentinelSource::Service(path.into()),
    );
    let resident = vec![1_u8; usize::try_from(number("RESIDENT_MB").unwrap()).unwrap() << 20];
    let mut sentinel = match SentinelConnection::start(&source, &registration, &page, None) {
        Ok(sentinel) => sentinel,
        Err(error) => return answer(error.to_string()),
    };
    answer(format!("watched by {}", sentinel.process_id().map_or_else(|| "a service".to_owned(), |id| id.to_string())));
    for order in std::io::stdin().lines().map_while(Result::ok) {
        match order.as_str() {
            "abort" => std::process::abort(),
            "exit" => std::process::exit(resident.first().map_or(1, |byte| i32::from(*byte))),
            "run-out-of-memory" => run_out_of_memory(),
            "end-the-thread" => orders.send("end-the-thread").unwrap(),
            "hang" => orders.send("hang").unwrap(),
            "close" => {
                orders.send("close").unwrap();
                return election.join().unwrap();
            }
            "fault" => loop {
                if let Some(fault) = sentinel.fault() {
                    break answer(fault);
                }
                thread::yield_now();
            },
            other => panic!("{other}"),
        }
    }
}

/// Allocates more memory than the limit allows: the allocator fails, and Rust aborts the process.
fn run_out_of_memory() {
    let little = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    setrlimit(Resource::As, little).unwrap();
    let much = std::hint::black_box(Vec::<u64>::with_capacity(1 << 30));
    panic!("there was room for {}", much.capacity());
}

fn death_of(incarnation: u64) -> Announcement {
    let notice = DeathNotice { holder: NodeId(3), incarnation: Incarnation(incarnation), epoch: EPOCH };
    Announcement { group: GROUP, notice }
}

/// Starts a gateway and ends it with `die`. Asserts that its death is announced three times, and nothing else. Returns
/// the log of gateway and sentinel.
fn check(options: Options<'_>, die: impl FnOnce(&mut Gateway)) -> String {
    let fixture = Fixture::new();
    let mut gateway = fixture.gateway(options);
    assert_eq!(fixture.notices(), [], "no notice while the gateway lives");
    die(&mut gateway);
    assert_eq!([(); 3].map(|()| fixture.notice()), [death_of(options.incarnation); 3]);
    let log = gateway.stderr_text();
    assert_eq!(fixture.notices(), [], "{log}");
    assert!(!gateway.child.wait().unwrap().success(), "{log}");
    log
}

fn with_incarnation(incarnation: u64) -> Options<'static> {
    Options { incarnation, ..Options::default() }
}

#[test]
fn a_killed_gateway_is_announced() {
    check(with_incarnation(1), |gateway| gateway.child.kill().unwrap());
}

#[test]
fn a_large_gateway_is_announced_before_its_memory_is_freed() {
    let options = Options { resident_mb: 300, ..with_incarnation(2) };
    let log = check(options, |gateway| gateway.child.kill().unwrap());
    assert!(log.contains("cause=Mutex"), "{log}");
}

#[test]
fn an_aborted_gateway_is_announced() {
    check(with_incarnation(3), |gateway| gateway.order("abort"));
}

#[test]
fn a_gateway_out_of_memory_is_announced() {
    check(with_incarnation(4), |gateway| gateway.order("run-out-of-memory"));
}

#[test]
fn a_gateway_that_exits_without_closing_is_announced() {
    check(with_incarnation(5), |gateway| gateway.order("exit"));
}

#[test]
fn a_gateway_without_its_election_thread_is_killed_and_announced() {
    // Without the sentinel's kill, the other threads of the gateway would run on.
    check(with_incarnation(6), |gateway| gateway.order("end-the-thread"));
}

#[test]
fn signals_to_the_gateway_process_group_spare_the_sentinel() {
    check(with_incarnation(7), |gateway| kill_process_group(gateway.id(), Signal::KILL).unwrap());
}

/// The unit's stop sends SIGTERM to the sentinel too, while the gateway still hands over.
#[test]
fn a_sentinel_outlives_the_signals_of_a_stop() {
    check(with_incarnation(8), |gateway| {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            kill_process(gateway.sentinel.unwrap(), signal).unwrap();
        }
        kill_process(gateway.id(), Signal::KILL).unwrap();
    });
}

#[test]
fn a_stopped_gateway_is_killed_only_with_a_hang_limit() {
    let limited = Options { hang_limit_ms: Some(50), ..with_incarnation(8) };
    let unlimited = Fixture::new();
    let mut unlimited_gateway = unlimited.gateway(with_incarnation(9));
    kill_process(unlimited_gateway.id(), Signal::STOP).unwrap();
    let log = check(limited, |gateway| kill_process(gateway.id(), Signal::STOP).unwrap());
    assert!(log.contains("Hang"), "{log}");
    // The unlimited gateway has been stopped for longer than the limited one.
    assert_eq!(unlimited.notices(), []);
    kill_process(unlimited_gateway.id(), Signal::CONT).unwrap();
    unlimited_gateway.order("close");
    assert!(unlimited_gateway.child.wait().unwrap().success(), "the gateway continues normally");
    assert_eq!(unlimited.notices(), []);
}

#[test]
fn a_thread_that_makes_no_progress_is_a_hang() {
    let limited = Options { hang_limit_ms: Some(50), ..with_incarnation(10) };
    let log = check(limited, |gateway| gateway.order("hang"));
    assert!(log.contains("Hang"), "{log}");
}

#[test]
fn a_record_not_taken_over_is_released_on_behalf() {
    let directory = tempfile::tempdir().unwrap();
    let (sender, events) = mpsc::channel();
    let mut register =
        FileRegister::open(group_directory(directory.path(), GROUP), Arc::new(move |event| drop(sender.send(event))))
            .unwrap();
    let answered = || {
        events.iter().find_map(|event| match event {
            RegisterEvent::Answer { outcome, .. } => Some(outcome),
            _ => None,
        })
    };
    let holder = Member { node: NodeId(3), name: NodeName::new("gw3").unwrap(), incarnation: Incarnation(16) };
    let held = Record {
        epoch: EPOCH,
        candidates: [(holder.node, holder.name.clone())].into(),
        holder: Some(holder),
        renewal: 4,
        lease_ns: 100_000_000,
        fitness: Fitness::default(),
        successor: None,
        automatic_moves: 0,
        pinned: false,
        configuration: ConfigVersion::default(),
    };
    register.compare_and_swap(RequestId(1), Version::NONE, &held);
    assert!(matches!(answered(), Some(RegisterOutcome::Swapped(_))));
    let options = Options { records: Some(directory.path()), ..with_incarnation(16) };
    let log = check(options, |gateway| gateway.child.kill().unwrap());
    assert!(log.contains("Released"), "{log}");
    register.read(RequestId(2));
    let Some(RegisterOutcome::Read(Some(left))) = answered() else { panic!("the register must hold a record") };
    assert_eq!(left.record, Record { holder: None, ..held });
}

#[test]
fn an_orderly_stop_is_not_announced() {
    let fixture = Fixture::new();
    let mut gateway = fixture.gateway(with_incarnation(11));
    gateway.order("close");
    assert!(gateway.child.wait().unwrap().success());
    let log = gateway.stderr_text();
    assert!(log.contains("gateway stopped cleanly"), "{log}");
    assert_eq!(fixture.notices(), []);
}

#[test]
fn a_gateway_survives_its_sentinel_and_reports_the_loss() {
    let fixture = Fixture::new();
    let mut gateway = fixture.gateway(with_incarnation(12));
    kill_process(gateway.sentinel.unwrap(), Signal::KILL).unwrap();
    gateway.order("fault");
    let fault = gateway.answer();
    assert!(fault.contains("sentinel"), "{fault}");
    gateway.order("close");
    assert!(gateway.child.wait().unwrap().success());
    assert_eq!(fixture.notices(), []);
}

/// A gateway of root reaches the socket of a service that runs under another user.
#[test]
fn a_sentinel_that_may_not_kill_the_gateway_refuses_to_watch_it() {
    if !geteuid().is_root() {
        return skip(
            "a_sentinel_that_may_not_kill_the_gateway_refuses_to_watch_it",
            "only root can become another user",
        );
    }
    let fixture = Fixture::new();
    // The other user may be unable to reach the program where it was built, and the directory of temporary files.
    let reachable = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(reachable.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = reachable.path().join("mdgw");
    fs::copy(env!("CARGO_BIN_EXE_mdgw"), &program).unwrap();
    let socket = reachable.path().join("sentinel.socket");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let mut service = sentinel_service(command, &socket);
    let (mut gateway, answer) = fixture.registering_gateway(Options { service: Some(&socket), ..with_incarnation(17) });
    assert!(answer.contains("may not kill the gateway"), "{answer}");
    gateway.child.wait().unwrap();
    assert_eq!(fixture.notices(), []);
    service.kill().unwrap();
    service.wait().unwrap();
}

/// Starts `command sentinel` on that socket, and waits until it listens.
fn sentinel_service(mut command: Command, socket: &Path) -> Child {
    command.args(["sentinel", "--priority", "0", "--socket"]).arg(socket).stderr(Stdio::piped());
    let mut service = command.spawn().unwrap();
    let stderr = service.stderr.as_mut().unwrap();
    BufReader::new(stderr)
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("ready"))
        .expect("the sentinel must listen");
    service
}

#[test]
fn a_sentinel_service_watches_gateways_in_sequence_and_in_parallel() {
    let fixture = Fixture::new();
    let socket = fixture.path("sentinel.socket");
    let mut service = Command::new(env!("CARGO_BIN_EXE_mdgw"))
        .args(["sentinel", "--priority", "0", "--socket"])
        .arg(&socket)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(service.stderr.take().unwrap()).lines().map_while(Result::ok);
    log.find(|line| line.contains("ready")).expect("the sentinel must listen");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let options = |incarnation| Options { service: Some(&socket), ..with_incarnation(incarnation) };
    let mut first = fixture.gateway(options(13));
    let mut second = fixture.gateway(options(14));
    for (gateway, incarnation) in [(&mut second, 14), (&mut first, 13)] {
        gateway.child.kill().unwrap();
        assert_eq!([(); 3].map(|()| fixture.notice()), [death_of(incarnation); 3]);
    }
    assert_eq!(fixture.notices(), []);
    let mut third = fixture.gateway(options(15));
    third.order("close");
    log.find(|line| line.contains("gateway stopped cleanly")).expect("the sentinel must watch the third gateway");
    assert_eq!(fixture.notices(), []);
    service.kill().unwrap();
    service.wait().unwrap();
}
