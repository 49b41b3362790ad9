//! The systemd units of `ops/systemd` with the shipped configurations: systemd accepts the units, their directories
//! cover the configured paths, and their programs run as the unprivileged user under the units' restrictions, filters of
//! system calls included. [`debian_package`] installs the units with all else, and runs one from there.

mod debian_package;

use std::{
    cell::RefCell,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{self as std_process, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use mdgw_sys::kernel_fence::KernelFence;
use mdgw_tests::{
    notify_socket::NotifySocket,
    process::{self, MdgwProcess, Signal, program},
    service_unit::{ServiceUnit, compile_filters, ops},
    skip::skip,
};

const UNITS: [&str; 7] = [
    "mdgw.service",
    "mdgw-sentinel.service",
    "mdgw-witness.service",
    "mdgw-live.service",
    "mdgw-journal.service",
    "mdgw-nats.service",
    "mdgw-mirror.service",
];
const KERNEL_FENCE: &str = "mdgw.service.d/kernel-fence.conf";
const LOG_READERS: &str = "mdgw.service.d/log-readers.conf";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether `systemd-analyze` is installed. If not, prints that `test` is skipped.
fn has_systemd_analyze(test: &str) -> bool {
    let is_there = Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        skip(test, "systemd-analyze (package systemd of Debian) is not installed");
    }
    is_there
}

/// Runs `systemd-analyze` on a file: whether it succeeded, and what it printed.
fn analyze(arguments: &[&str], unit: &Path) -> (bool, String) {
    let output = Command::new("systemd-analyze").args(arguments).arg(unit).output().expect("systemd-analyze runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn systemd_accepts_the_units_and_rates_their_exposure_low() {
    if !has_systemd_analyze("systemd_accepts_the_units_and_rates_their_exposure_low") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    // systemd-analyze checks that the programs of a unit exist.
    for name in UNITS {
        let text = read(&ops("systemd").join(name));
        assert!(text.contains("=/usr/bin/mdgw "), "{name}");
        let text = text.replace("/usr/bin/mdgw", program().to_str().expect("a path of UTF-8"));
        fs::write(folder.path().join(name), text).expect("a temporary file can be written");
    }
    // Exposure from 0 to 100; units without any restriction have 96.
    let exposures_max: [&str; UNITS.len()] = ["35", "46", "28", "23", "23", "23", "23"];
    for (name, exposure_max) in UNITS.into_iter().zip(exposures_max) {
        let unit = folder.path().join(name);
        let (is_valid, text) = analyze(&["verify", "--man=no"], &unit);
        assert!(is_valid && text.is_empty(), "{name}: {text}");
        let (is_below, text) = analyze(&["security", "--offline=true", "--threshold", exposure_max], &unit);
        assert!(is_below, "{name}: {text}");
    }
}

#[test]
fn what_the_units_write_is_not_for_every_user() {
    for name in UNITS {
        let unit = ServiceUnit::load(name);
        let mask = unit.get("UMask").and_then(|mask| u32::from_str_radix(mask, 8).ok());
        assert!(mask.is_some_and(|mask| mask & 0o027 == 0o027), "{name}: {mask:?}");
    }
}

#[test]
fn systemd_waits_for_the_start_of_each_unit_and_watches_the_gateway() {
    for name in UNITS {
        assert_eq!(ServiceUnit::load(name).get("Type"), Some("notify"), "{name}");
    }
    let gateway = ServiceUnit::load("mdgw.service");
    let seconds = |key: &str| gateway.get(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or_default();
    // The sentinel that the gateway starts inherits the socket.
    assert_eq!(gateway.get("NotifyAccess"), Some("main"));
    assert!((5..=30).contains(&seconds("WatchdogSec")), "{}", seconds("WatchdogSec"));
    // A stalled gateway starts again, and takes no time for a core dump.
    assert_eq!((gateway.get("Restart"), gateway.get("WatchdogSignal")), (Some("on-failure"), Some("SIGKILL")));
    // Longer than any stop with the shipped profiles: `calm` has a lease of a second, of which a group takes six.
    assert!(seconds("TimeoutStopSec") >= 20 + 6, "{}", seconds("TimeoutStopSec"));
    assert!(seconds("TimeoutStartSec") >= 60, "{}", seconds("TimeoutStartSec"));
}

#[test]
fn no_unit_keeps_the_election_from_reading_the_clock_rate() {
    for name in ["mdgw.service", "mdgw-witness.service"] {
        // This filter blocks adjtimex(2), also for reading.
        assert_eq!(ServiceUnit::load(name).get("ProtectClock"), None, "{name}");
    }
}

#[test]
fn the_directories_of_the_units_cover_the_configured_paths() {
    let services = [
        ("mdgw.service", "config/mdgw.toml"),
        ("mdgw.service", "config/quorum.toml"),
        ("mdgw-witness.service", "witness/witness.toml"),
    ];
    for (name, config) in services {
        let unit = ServiceUnit::load(name);
        assert!(unit.get("User").is_some_and(|user| user != "root"), "{name}");
        let text = read(&ops(config));
        let settings = text.lines().filter_map(|line| line.split_once(" = \"/"));
        let mut count = 0;
        for (key, rest) in settings.filter(|(key, _)| !key.starts_with('#') && !key.ends_with("key_file")) {
            let path = PathBuf::from(format!("/{}", rest.split('"').next().unwrap_or_default()));
            let is_covered = unit.writable().iter().any(|directory| path.starts_with(directory));
            assert!(is_covered, "{name}: {config}: {key} = {}", path.display());
            count += 1;
        }
        assert!(count > 0, "{config}");
    }
    let sentinel = ServiceUnit::load("mdgw-sentinel.service");
    let socket = sentinel.get("ExecStart").and_then(|start| start.split_whitespace().last()).map(PathBuf::from);
    assert!(socket.is_some_and(|socket| sentinel.writable().iter().any(|directory| socket.starts_with(directory))));
}

/// Ids of the user nobody, which owns no files here.
const USER: &str = "65534";

/// Script that creates a host: a network namespace with the interfaces and addresses of the shipped configurations, and a
/// read-only file system whose parents of the units' directories are empty. Arguments: mdgw, the program that installs
/// filters of system calls, the user.
const HOST: &str = r#"
for number in 1 2 3 4; do
    ip link add "eth$number" type veth peer name "far$number"
    ip link set "far$number" up
    ip address add "10.20.$((number % 3)).$((number + 4))/24" dev "eth$number"
    ip link set "eth$number" up
done
for host in 5 9; do ip address add "10.20.0.$host/32" dev eth3; done
ip link set lo up
mount -o remount,bind,ro /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd
# The programs may lie below /tmp and /root, which the units hide.
: >/run/mdgw.program
mount --bind "$1" /run/mdgw.program
: >/run/mdgw.restricted
mount --bind "$2" /run/mdgw.restricted
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
install -m 600 -o "$3" -g "$3" /dev/stdin /run/mdgw.key <<END
0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
END
install -m 600 -o "$3" -g "$3" /dev/stdin /run/mdgw.clients <<END
test db-unitTESTkey0123456789abcdefgh * 10
END
echo ready
exec sleep infinity
"#;

/// Script that starts a unit on the host, in a mount namespace of its own: creates the unit's directories, owned by the
/// user, below parents that are read-only and otherwise empty. Then the script switches to the user, the unit's
/// capabilities and the unit's filters of system calls, runs the unit's check, and executes the program. Arguments: user,
/// capabilities (for setpriv), filters, configuration and its path, the arguments of the check and of the start, the
/// directory of the unit's cgroup or nothing, paths that are read-only, the program, and the unit's directories.
///
/// Applied are: user and group, capabilities, `NoNewPrivileges`, `ProtectSystem`, `ProtectHome`, `PrivateTmp`,
/// `ProtectKernelTunables`, `ProtectControlGroups`, the directories, the filters of system calls (`SystemCallFilter`,
/// `SystemCallArchitectures`, `RestrictAddressFamilies`, `MemoryDenyWriteExecute`, `RestrictNamespaces`,
/// `RestrictSUIDSGID`, `LockPersonality`), and the limits as far as the machine allows. Not applied are
/// `ProtectKernelModules`, whose calls `SystemCallFilter` refuses, `PrivateDevices` and `OOMScoreAdjust`.
const START: &str = r#"
user=$1 capabilities=$2 filters=$3 config=$4 config_path=$5 check=$6 start=$7 cgroup=$8 read_only=$9 program=${10}
shift 10
for parent in /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$parent"; done
for hidden in /home /root; do mount -t tmpfs -o ro,mode=755 tmpfs "$hidden"; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
install -m 644 /dev/stdin "$config_path" <<END
$config
END
for directory in "$@"; do
    [ -d "$directory" ] || install -d -m 700 -o "$user" -g "$user" "$directory"
    # A mount of its own stays writable.
    mount --bind "$directory" "$directory"
done
[ -z "$cgroup" ] || echo $$ >"$cgroup/cgroup.procs"
# Words of the arguments are split on purpose, here and below.
for path in $read_only; do
    mount --rbind "$path" "$path"
    mount -o remount,bind,ro "$path"
done
for path in /run /var/lib /var/log; do mount -o remount,bind,ro "$path"; done
# As far as the machine allows: a container may not raise its limits.
for limit in --memlock=unlimited --nofile=65536 --rtprio=99; do prlimit --pid $$ "$limit" 2>/dev/null || true; done
become() {
    exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \
        --bounding-set "$capabilities" --inh-caps "$capabilities" --ambient-caps "$capabilities" \
        /run/mdgw.restricted "$filters" "$program" "$@"
}
[ -z "$check" ] || (become $check)
become $start
"#;

/// A host on which units start.
struct Host {
    /// Holds the namespaces.
    holder: MdgwProcess,
    /// Name or number of the units' user and group.
    user: String,
    /// Number of that user.
    uid: String,
    /// The program as the host sees it.
    program: &'static str,
    /// Whether units read their configuration where they name it. If not, they read the one that a test gives them.
    is_configured: bool,
    started: AtomicU32,
    /// Where running units send their notifications.
    managers: RefCell<Vec<NotifySocket>>,
}

impl Host {
    /// A host, if this process may create one. If not, prints that `test` is skipped.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "namespaces and another user take root");
            return None;
        }
        if !has_systemd_analyze(test) {
            return None;
        }
        let is_isolated =
            Command::new("unshare").args(ISOLATED).arg("true").status().is_ok_and(|status| status.success());
        if !is_isolated {
            skip(test, "no mount and network namespaces here");
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(ISOLATED).args(["sh", "-euc", HOST, "sh"]).arg(program());
        command.arg(env!("CARGO_BIN_EXE_restricted")).arg(USER);
        let (user, uid) = (USER.to_owned(), USER.to_owned());
        Some(Self {
            holder: hold(command),
            user,
            uid,
            program: "/run/mdgw.program",
            is_configured: false,
            started: AtomicU32::new(0),
            managers: RefCell::default(),
        })
    }

    /// Starts a unit with this configuration, after the unit's check of it. Also returns the socket for its notifications.
    fn start(&self, unit: &ServiceUnit, config: &str, cgroup: Option<&Cgroup>) -> (MdgwProcess, NotifySocket) {
        let name = &unit.name;
        let wanted: Vec<_> = unit.words("CapabilityBoundingSet").collect();
        assert!(unit.get("CapabilityBoundingSet").is_some(), "{name} limits capabilities");
        assert!(unit.words("AmbientCapabilities").eq(wanted.iter().copied()), "{name}");
        let wanted = wanted.iter().map(|capability| capability.to_lowercase().replacen("cap_", "+", 1));
        let capabilities: Vec<_> = [String::from("-all")].into_iter().chain(wanted).collect();
        let config_path = format!("/run/{name}.toml");
        // The program's path and that of the configuration are those of the scripts.
        let arguments = |key: &str| {
            let mut words = unit.get(key).unwrap_or_default().split(' ').peekable();
            if let Some(program) = words.next_if(|program| !program.is_empty()) {
                assert_eq!(program, "/usr/bin/mdgw", "{name}");
            }
            let is_replaced = |word: &str| word.starts_with("/etc/mdgw/") && !self.is_configured;
            let words = words.map(|word| if is_replaced(word) { config_path.as_str() } else { word });
            words.collect::<Vec<_>>().join(" ")
        };
        let filters = unit.system_call_filters().to_string();
        let mut read_only = Vec::new();
        if unit.is_on("ProtectKernelTunables") {
            read_only.extend(["/proc/sys".to_owned(), "/sys".to_owned()]);
        }
        if unit.is_on("ProtectControlGroups") {
            read_only.extend(cgroup_mount().map(|mount| mount.display().to_string()));
        }
        let holder = self.holder.id().to_string();
        // Where systemd has its own: an unprivileged program below a read-only /run must reach it.
        let socket = format!("/run/systemd/notify-{}", self.started.fetch_add(1, Ordering::Relaxed));
        let manager = NotifySocket::bind(&root_of(&self.holder).join(&socket[1..]));
        let mut command = Command::new("nsenter");
        command.env("NOTIFY_SOCKET", &socket);
        command.args(["--target", &holder, "--mount", "--net", "unshare", "--mount", "--propagation", "private"]);
        command.args(["sh", "-euc", START, "sh", &self.user, &capabilities.join(","), &filters, config, &config_path]);
        command.args([arguments("ExecStartPre"), arguments("ExecStart")]);
        command
            .arg(cgroup.map_or_else(|| Path::new(""), |cgroup| &cgroup.path))
            .arg(read_only.join(" "))
            .arg(self.program)
            .args(unit.writable());
        (process::spawn(command), manager)
    }

    /// Starts a unit, waits for `running` in its log, and checks that its notifications arrive and the restrictions are in force.
    fn run(&self, unit: &ServiceUnit, config: &str, cgroup: Option<&Cgroup>, running: &str) -> MdgwProcess {
        let (process, mut manager) = self.start(unit, config, cgroup);
        process.wait_for_stderr(running);
        // A gateway is ready only when its lines have been silent for their time.
        let notified = if unit.name == "mdgw.service" { "STATUS=" } else { "READY=1" };
        manager.wait_for(notified, 1);
        self.managers.borrow_mut().push(manager);
        let status = read(&Path::new("/proc").join(process.id().to_string()).join("status"));
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let uids = field("Uid:").expect("the status has the user ids");
        assert!(uids.split_whitespace().all(|uid| uid == self.uid), "{uids}");
        let filters = compile_filters(&unit.system_call_filters().to_string()).expect("filters compile");
        assert_eq!(field("Seccomp_filters:"), Some(filters.len().to_string().as_str()), "{status}");
        process
    }
}

/// Starts a script that creates a host and then waits.
fn hold(command: Command) -> MdgwProcess {
    let holder = process::spawn(command);
    holder.wait_for_stdout("ready");
    holder
}

const ISOLATED: [&str; 4] = ["--mount", "--net", "--propagation", "private"];

/// Where the hierarchy of cgroup v2 is mounted.
fn cgroup_mount() -> Option<PathBuf> {
    let mounts = read(Path::new("/proc/self/mounts"));
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.into_iter().find(|fields| fields.get(2) == Some(&"cgroup2")).map(|fields| PathBuf::from(fields[1]))
}

/// The cgroup that systemd creates for a unit with `Delegate=yes`. Dropping it removes it.
struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    fn delegated(mount: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = mount.join(format!("mdgw-unit-{}-{number}", std_process::id()));
        fs::create_dir(&path).expect("root creates a cgroup");
        let cgroup = Self { path };
        let user = USER.parse().ok();
        // As systemd.exec(5), "Delegate=", says.
        for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            std::os::unix::fs::chown(cgroup.path.join(file), user, user).expect("root may chown");
        }
        cgroup
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The gateway's own cgroup is left behind when the gateway is killed.
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let _removed = fs::remove_dir(entry.path());
        }
        let _removed = fs::remove_dir(&self.path);
    }
}

/// A shipped configuration with what this machine may lack replaced. Each text must be there.
fn adapted(config: &str, replacements: &[(&str, &str)]) -> String {
    replacements.iter().fold(read(&ops(config)), |text, (shipped, here)| {
        assert!(text.contains(shipped), "{config}: {shipped}");
        text.replace(shipped, here)
    })
}

/// The shipped cores may not exist here, and spinning threads would occupy all cores.
const POOL: [(&str, &str); 2] = [("cores = [2, 3]", "threads = 2"), ("wait = \"spin\"", "wait = \"park\"")];
/// The script's key, since nothing can be created below the read-only `/etc`.
const KEY: (&str, &str) = ("\"/etc/mdgw/key\"", "\"/run/mdgw.key\"");

/// Where the file system is that the process sees, in a mount namespace of its own.
fn root_of(process: &MdgwProcess) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root", process.id()))
}

/// Checks that the process has written these files.
fn expect_written(process: &MdgwProcess, files: &[&str]) {
    for written in files {
        assert!(root_of(process).join(written).exists(), "{written}");
    }
}

/// Checks that the gateway answers as `node` on its control socket.
fn expect_answer(gateway: &MdgwProcess, node: u8) {
    let socket = root_of(gateway).join("run/mdgw/control");
    process::wait_until("the control socket is there", || socket.exists());
    let socket = socket.to_str().expect("a path of digits and letters");
    let answer = process::run(["ha", "status", "--json", "--socket", socket]).expect_code(0).json();
    assert_eq!(answer["node"], node, "{answer}");
}

/// Checks that the gateway answers as `node` on its control socket and has written these files, and stops it.
fn expect_gateway(gateway: MdgwProcess, node: u8, files: &[&str]) {
    expect_answer(&gateway, node);
    expect_written(&gateway, files);
    let _ended = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn the_gateway_starts_as_the_unit_runs_it_and_answers_on_its_control_socket() {
    let Some(host) = Host::new("the_gateway_starts_as_the_unit_runs_it_and_answers_on_its_control_socket") else {
        return;
    };
    let unit = ServiceUnit::load("mdgw.service");
    let gateway = host.run(&unit, &adapted("config/mdgw.toml", &POOL), None, "gateway running");
    expect_gateway(gateway, 0, &["var/lib/mdgw/state", "dev/shm/mdgw"]);
}

#[test]
fn the_live_gateway_reads_the_logs_of_a_gateway_as_the_units_run_both() {
    let Some(host) = Host::new("the_live_gateway_reads_the_logs_of_a_gateway_as_the_units_run_both") else { return };
    // The commented table of the shipped configuration, with an address and a key file of this host.
    let live = [
        ("# [live]", "[live]"),
        ("#   listen = \"10.20.0.5:13000\"", "listen = \"10.20.0.5:13000\""),
        ("#   key_file = \"/etc/mdgw/client_keys\"", "key_file = \"/run/mdgw.clients\""),
    ];
    let config = adapted("config/mdgw.toml", &[&POOL[..], &live].concat());
    let gateway = host.run(&ServiceUnit::load("mdgw.service"), &config, None, "gateway running");
    let live = host.run(&ServiceUnit::load("mdgw-live.service"), &config, None, "live: ready");
    let ended = live.stop_with(Signal::Terminate).expect_code(0);
    assert!(!ended.stderr.contains("WARN"), "{}", ended.stderr);
    expect_gateway(gateway, 0, &["dev/shm/mdgw"]);
}

#[test]
fn the_journal_writes_to_its_state_directory_as_the_units_run_both() {
    let Some(host) = Host::new("the_journal_writes_to_its_state_directory_as_the_units_run_both") else { return };
    // The commented table of the shipped configuration; the file system of this host may be small.
    let journal = [
        ("# [journal]", "[journal]"),
        ("#   directory = \"/var/lib/mdgw-journal\"", "directory = \"/var/lib/mdgw-journal\""),
        ("#   free_bytes_min = 10737418240", "free_bytes_min = 0"),
    ];
    let config = adapted("config/mdgw.toml", &[&POOL[..], &journal].concat());
    let gateway = host.run(&ServiceUnit::load("mdgw.service"), &config, None, "gateway running");
    let journal = host.run(&ServiceUnit::load("mdgw-journal.service"), &config, None, "journal: ready");
    expect_written(&journal, &["var/lib/mdgw-journal/writer.lock"]);
    let ended = journal.stop_with(Signal::Terminate).expect_code(0);
    assert!(!ended.stderr.contains("WARN") && !ended.stderr.contains("ERROR"), "{}", ended.stderr);
    expect_gateway(gateway, 0, &["dev/shm/mdgw"]);
}

#[test]
fn the_nats_sink_reaches_for_its_server_as_the_units_run_both() {
    let Some(host) = Host::new("the_nats_sink_reaches_for_its_server_as_the_units_run_both") else { return };
    let nats = [("# [nats]", "[nats]"), ("#   servers =", "servers =")];
    let config = adapted("config/mdgw.toml", &[&POOL[..], &nats].concat());
    let gateway = host.run(&ServiceUnit::load("mdgw.service"), &config, None, "gateway running");
    // No server is there: it waits, with an alarm, and is stopped in order.
    let sink = host.run(&ServiceUnit::load("mdgw-nats.service"), &config, None, "nats: ready");
    let ended = sink.stop_with(Signal::Terminate).expect_code(0);
    assert!(
        ended.stderr.contains("alarm=\"nats-unreachable\"") && ended.stderr.contains("refused"),
        "{}",
        ended.stderr
    );
    expect_gateway(gateway, 0, &["dev/shm/mdgw"]);
}

#[test]
fn the_mirror_makes_its_logs_as_the_unit_runs_it() {
    let Some(host) = Host::new("the_mirror_makes_its_logs_as_the_unit_runs_it") else { return };
    let config = read(&ops("config/mdgw.toml"));
    let mirror = host.run(&ServiceUnit::load("mdgw-mirror.service"), &config, None, "mirror: ready");
    expect_written(&mirror, &["dev/shm/mdgw/1/writer.lock"]);
    let ended = mirror.stop_with(Signal::Terminate).expect_code(0);
    assert!(!ended.stderr.contains("WARN") && !ended.stderr.contains("ERROR"), "{}", ended.stderr);
}

/// `ops/config/quorum.toml` with these replacements and those that this machine takes.
fn quorum_config(replacements: &[(&str, &str)]) -> String {
    adapted("config/quorum.toml", &[&POOL[..], &[KEY, ("\ncore = 1\n", "\n")], replacements].concat())
}

fn witness_config() -> String {
    adapted("witness/witness.toml", &[KEY])
}

#[test]
fn the_gateway_of_a_quorum_pair_starts_as_the_unit_runs_it() {
    let Some(host) = Host::new("the_gateway_of_a_quorum_pair_starts_as_the_unit_runs_it") else { return };
    let gateway = host.run(&ServiceUnit::load("mdgw.service"), &quorum_config(&[]), None, "gateway running");
    expect_gateway(gateway, 1, &["var/lib/mdgw/state", "var/lib/mdgw/votes", "dev/shm/mdgw"]);
}

#[test]
fn the_witness_starts_as_the_unit_runs_it() {
    let Some(host) = Host::new("the_witness_starts_as_the_unit_runs_it") else { return };
    let witness = host.run(&ServiceUnit::load("mdgw-witness.service"), &witness_config(), None, "witness: ready");
    expect_written(&witness, &["var/lib/mdgw/votes"]);
    let _ended = witness.stop_with(Signal::Terminate).expect_code(0);
}

/// What `ops/config/quorum.toml` says about the kernel fence, and the line that switches the fence on.
const FENCE: (&str, &str) = ("# kernel_fence = true ", "kernel_fence = true ");

#[test]
fn a_leader_with_a_witness_a_sentinel_and_the_kernel_fence_runs_under_the_units() {
    let test = "a_leader_with_a_witness_a_sentinel_and_the_kernel_fence_runs_under_the_units";
    let Some(host) = Host::new(test) else { return };
    let (Ok(()), Some(mount)) = (KernelFence::probe(), cgroup_mount()) else {
        return skip(test, "no fence in the kernel here");
    };
    let sentinel = ServiceUnit::load("mdgw-sentinel.service");
    let sentinel = host.run(&sentinel, "", None, "sentinel: ready");
    let witness = host.run(&ServiceUnit::load("mdgw-witness.service"), &witness_config(), None, "witness: ready");

    let cgroup = Cgroup::delegated(&mount);
    let sentinel_socket = ("[election.link]\n", "[election.link]\nsentinel = \"/run/mdgw-sentinel/socket\"\n");
    let config = quorum_config(&[FENCE, sentinel_socket]);
    let unit = ServiceUnit::load("mdgw.service").with_drop_in(KERNEL_FENCE);
    let gateway = host.run(&unit, &config, Some(&cgroup), "INFO leads ");
    gateway.wait_for_stderr("sentinel is watching");
    let own = read(&Path::new("/proc").join(gateway.id().to_string()).join("cgroup"));
    assert!(own.lines().any(|line| line.ends_with(&format!("/mdgw-fence-{}", gateway.id()))), "{own}");

    // A service that a signal for a reload ends is not started again.
    sentinel.signal(Signal::HangUp);
    gateway.signal(Signal::Kill);
    let announced = sentinel.wait_for_stderr("gateway died: remaining threads killed, death announced");
    assert!(announced.contains("refused=0"), "{announced}");
    drop(gateway);
    let _ended = witness.stop_with(Signal::Terminate).expect_code(0);
    let _ended = sentinel.stop_with(Signal::Terminate);
}

#[test]
fn a_unit_whose_filter_lacks_a_needed_system_call_does_not_start() {
    let Some(host) = Host::new("a_unit_whose_filter_lacks_a_needed_system_call_does_not_start") else { return };
    let gateway = ServiceUnit::load("mdgw.service");
    let with_fence = gateway.clone().with_drop_in(KERNEL_FENCE);
    let [_, sentinel, witness, _live, _journal, _nats, _mirror] = UNITS.map(ServiceUnit::load);
    let fenced = quorum_config(&[FENCE]);
    let cases = [
        (&gateway, "adjtimex clock_adjtime", quorum_config(&[]), "adjtimex: Operation not permitted"),
        (&with_fence, "bpf", fenced, "kernel_fence: cannot create a BPF map: Operation not permitted"),
        (&sentinel, "listen", String::new(), "listen on /run/mdgw-sentinel/socket: Operation not permitted"),
        (&witness, "bind", witness_config(), "10.20.0.9:27500: Operation not permitted"),
    ];
    for (unit, needed, config, error) in cases {
        let without = unit.clone().with("SystemCallFilter", &format!("~{needed}"));
        let (process, _manager) = host.start(&without, &config, None);
        let ended = process.end();
        // A check writes its answer to standard output.
        let text = ended.stdout + &ended.stderr;
        assert!(ended.code != Some(0) && text.contains(error), "{}: {text}", unit.name);
    }
}

/// The group of the user nobody, to whom the units' users are changed here.
fn group_of_nobody() -> Option<String> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    let line = groups.lines().find(|line| line.split(':').nth(2) == Some(USER))?;
    line.split(':').next().map(str::to_owned)
}

#[test]
fn publication_logs_are_given_to_a_group_of_readers_with_the_drop_in_and_not_without() {
    let test = "publication_logs_are_given_to_a_group_of_readers_with_the_drop_in_and_not_without";
    let Some(host) = Host::new(test) else { return };
    let Some(group) = group_of_nobody() else { return skip(test, "the user nobody has no group of its own") };
    let unit = ServiceUnit::load("mdgw.service");
    let config = quorum_config(&[("state_file = ", &format!("log_group = \"{group}\"\nstate_file = "))]);
    let (refused, _manager) = host.start(&unit, &config, None);
    let refused = refused.end();
    let text = refused.stdout + &refused.stderr;
    assert!(refused.code != Some(0) && text.contains("this user cannot give files to the group"), "{text}");

    let gateway = host.run(&unit.with_drop_in(LOG_READERS), &config, None, "gateway running");
    expect_for_readers(&gateway);
    expect_gateway(gateway, 1, &["dev/shm/mdgw"]);
}

/// The logs that the process has made are for the group of readers.
fn expect_for_readers(process: &MdgwProcess) {
    for (path, mode) in [("dev/shm/mdgw", 0o750), ("dev/shm/mdgw/1", 0o750)] {
        let path = root_of(process).join(path);
        let metadata = fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(metadata.mode() & 0o7777, mode, "{}", path.display());
    }
}

/// The same drop-in, copied to the mirror's folder.
#[test]
fn mirrored_logs_are_given_to_a_group_of_readers_with_the_drop_in_and_not_without() {
    let test = "mirrored_logs_are_given_to_a_group_of_readers_with_the_drop_in_and_not_without";
    let Some(host) = Host::new(test) else { return };
    let Some(group) = group_of_nobody() else { return skip(test, "the user nobody has no group of its own") };
    let unit = ServiceUnit::load("mdgw-mirror.service");
    let log_group = format!("log_group = \"{group}\"");
    let config = adapted("config/mdgw.toml", &[("# log_dir = \"/dev/shm/mdgw\"", log_group.as_str())]);
    let (refused, _manager) = host.start(&unit, &config, None);
    let refused = refused.end();
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("Operation not permitted"), "{}", refused.stderr);

    let mirror = host.run(&unit.with_drop_in(LOG_READERS), &config, None, "mirror: ready");
    expect_for_readers(&mirror);
    let _ended = mirror.stop_with(Signal::Terminate).expect_code(0);
}

/// The drop-in adds what `mdgw.service` lacks for the kernel fence, and takes away nothing else.
#[test]
fn the_drop_in_of_the_kernel_fence_adds_its_capability_and_a_cgroup() {
    let drop_in = ServiceUnit::load(KERNEL_FENCE);
    let expected = [
        ("AmbientCapabilities", "CAP_BPF"),
        ("CapabilityBoundingSet", "CAP_BPF"),
        ("SystemCallFilter", "bpf"),
        ("Delegate", "yes"),
        ("ProtectControlGroups", "no"),
    ];
    assert!(drop_in.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(expected));
    let unit = ServiceUnit::load("mdgw.service");
    assert!(unit.words("AmbientCapabilities").any(|capability| capability == "CAP_NET_ADMIN"));
    // Without the drop-in the unit's check refuses the key.
    let is_set = |path: &str| read(&ops(path)).lines().any(|line| line.starts_with("kernel_fence = true"));
    assert!(!is_set("config/mdgw.toml") && !is_set("config/quorum.toml"));
}
