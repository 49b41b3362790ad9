//! The systemd units of `ops/systemd` with the shipped configurations: systemd accepts the units, their directories
//! cover the configured paths, and the gateway starts as the unprivileged user under the unit's restrictions.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use mdgw_tests::{
    process::{self, MdgwProcess, Signal, program},
    skip::skip,
};

const UNITS: [&str; 3] = ["mdgw.service", "mdgw-sentinel.service", "mdgw-witness.service"];

fn ops(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The settings of a unit file, in order: key and value.
struct Unit(Vec<(String, String)>);

impl Unit {
    fn load(name: &str) -> Self {
        let text = read(&ops("systemd").join(name));
        let settings = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        Self(settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Directories that the unit's user may write to.
    fn writable(&self) -> Vec<PathBuf> {
        let kinds = [("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log")];
        let created = kinds.into_iter().filter_map(|(key, parent)| Some(Path::new(parent).join(self.get(key)?)));
        let granted = self.get("ReadWritePaths").into_iter().flat_map(str::split_whitespace).map(PathBuf::from);
        created.chain(granted).collect()
    }
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
    for (name, exposure_max) in UNITS.into_iter().zip(["45", "60", "40"]) {
        let unit = folder.path().join(name);
        let (is_valid, text) = analyze(&["verify", "--man=no"], &unit);
        assert!(is_valid && text.is_empty(), "{name}: {text}");
        let (is_below, text) = analyze(&["security", "--offline=true", "--threshold", exposure_max], &unit);
        assert!(is_below, "{name}: {text}");
    }
}

#[test]
fn no_unit_keeps_the_election_from_reading_the_clock_rate() {
    for name in UNITS {
        // This filter blocks adjtimex(2), also for reading.
        assert_eq!(Unit::load(name).get("ProtectClock"), None, "{name}");
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
        let unit = Unit::load(name);
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
    let sentinel = Unit::load("mdgw-sentinel.service");
    let socket = sentinel.get("ExecStart").and_then(|start| start.split_whitespace().last()).map(PathBuf::from);
    assert!(socket.is_some_and(|socket| sentinel.writable().iter().any(|directory| socket.starts_with(directory))));
}

/// Ids of the user nobody, which owns no files here.
const USER: &str = "65534";

/// Script that creates the unit's environment: a network namespace with the interfaces and addresses of the shipped
/// configurations, a read-only file system, and the unit's directories, owned by the user, below otherwise empty
/// parents. Then the script switches to the user and the unit's capabilities, runs the unit's check, and executes the
/// program. Arguments: user, capabilities (for setpriv), configuration, program, the arguments of the check and of the
/// start (both are followed by the configuration's path), directories.
///
/// Applied are: user and group, capabilities, `NoNewPrivileges`, `ProtectSystem`, `PrivateTmp`, the directories, and the
/// limits as far as the machine allows. Not applied are the unit's filters of system calls (`RestrictAddressFamilies`,
/// `SystemCallArchitectures`, `MemoryDenyWriteExecute`, `RestrictNamespaces`, `RestrictSUIDSGID`, `LockPersonality`),
/// `ProtectHome`, `ProtectKernelModules`, `ProtectKernelTunables`, `ProtectControlGroups`, `PrivateDevices` and
/// `OOMScoreAdjust`.
const START: &str = r#"
user=$1 capabilities=$2 config=$3 program=$4 check=$5 start=$6
shift 6
for number in 1 2 3 4; do
    ip link add "eth$number" type veth peer name "far$number"
    ip link set "far$number" up
    ip address add "10.20.$((number % 3)).$((number + 4))/24" dev "eth$number"
    ip link set "eth$number" up
done
for host in 5 9; do ip address add "10.20.0.$host/32" dev eth3; done
ip link set lo up
mount -o remount,bind,ro /
for parent in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$parent"; done
# The program may lie below /tmp, which the unit's private /tmp hides.
: >/run/mdgw.program
mount --bind "$program" /run/mdgw.program
for parent in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$parent"; done
install -m 644 /dev/stdin /run/mdgw.toml <<END
$config
END
install -m 600 -o "$user" -g "$user" /dev/stdin /run/mdgw.key <<END
0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
END
for directory in "$@"; do
    case $directory in
    /dev/shm) ;;
    *) install -d -m 700 -o "$user" -g "$user" "$directory" ;;
    esac
done
# As far as the machine allows: a container may not raise its limits.
for limit in --memlock=unlimited --nofile=65536 --rtprio=99; do prlimit --pid $$ "$limit" 2>/dev/null || true; done
become() {
    exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \
        --bounding-set "$capabilities" --inh-caps "$capabilities" --ambient-caps "$capabilities" \
        /run/mdgw.program "$@"
}
# Words of the arguments are split on purpose.
(become $check /run/mdgw.toml)
become $start /run/mdgw.toml
"#;

/// Whether this process may create what [`START`] needs. If not, prints that `test` is skipped.
fn can_isolate(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip(test, "namespaces and another user take root");
        return false;
    }
    let is_isolated = Command::new("unshare").args(ISOLATED).arg("true").status().is_ok_and(|status| status.success());
    if !is_isolated {
        skip(test, "no mount and network namespaces here");
    }
    is_isolated
}

const ISOLATED: [&str; 4] = ["--mount", "--net", "--propagation", "private"];

/// Starts a unit with this configuration, after the unit's check of it, and waits for `running` in its log.
fn start(name: &str, config: &str, running: &str) -> MdgwProcess {
    let unit = Unit::load(name);
    let bounding = unit.get("CapabilityBoundingSet").expect("the unit limits capabilities");
    assert_eq!(unit.get("AmbientCapabilities").unwrap_or_default(), bounding, "{name}");
    let wanted = bounding.split_whitespace().map(|capability| capability.to_lowercase().replacen("cap_", "+", 1));
    let capabilities: Vec<_> = [String::from("-all")].into_iter().chain(wanted).collect();
    // The program's path and that of the configuration are those of the script.
    let arguments = |key: &str| {
        let line = unit.get(key).expect("the unit starts a program");
        let words: Vec<_> = line.split(' ').collect();
        let [program, arguments @ .., config] = &words[..] else { panic!("{name}: {line}") };
        assert_eq!(*program, "/usr/bin/mdgw", "{name}");
        assert!(config.starts_with("/etc/mdgw/"), "{name}: {line}");
        arguments.join(" ")
    };
    let mut command = Command::new("unshare");
    command.args(ISOLATED).args(["sh", "-euc", START, "sh", USER, &capabilities.join(","), config]);
    command.arg(program()).args([arguments("ExecStartPre"), arguments("ExecStart")]).args(unit.writable());
    let process = process::spawn(command);
    process.wait_for_stderr(running);

    let status = read(&Path::new("/proc").join(process.id().to_string()).join("status"));
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("the status has the user ids");
    assert!(uids.split_whitespace().all(|uid| uid == USER), "{uids}");
    process
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

/// Checks that the gateway answers as `node` on its control socket and has written these files, and stops it.
fn expect_gateway(gateway: MdgwProcess, node: u8, files: &[&str]) {
    let socket = root_of(&gateway).join("run/mdgw/control");
    process::wait_until("the control socket is there", || socket.exists());
    let socket = socket.to_str().expect("a path of digits and letters");
    let answer = process::run(["ha", "status", "--json", "--socket", socket]).expect_code(0).json();
    assert_eq!(answer["node"], node, "{answer}");
    expect_written(&gateway, files);
    let _ended = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn the_gateway_starts_as_the_unit_runs_it_and_answers_on_its_control_socket() {
    if !can_isolate("the_gateway_starts_as_the_unit_runs_it_and_answers_on_its_control_socket") {
        return;
    }
    let gateway = start("mdgw.service", &adapted("config/mdgw.toml", &POOL), "gateway running");
    expect_gateway(gateway, 0, &["var/lib/mdgw/state", "dev/shm/mdgw"]);
}

#[test]
fn the_gateway_of_a_quorum_pair_starts_as_the_unit_runs_it() {
    if !can_isolate("the_gateway_of_a_quorum_pair_starts_as_the_unit_runs_it") {
        return;
    }
    let interfaces = [("\"feed-a\"", "\"eth1\""), ("\"feed-b\"", "\"eth2\""), ("\"out-a\"", "\"eth3\"")];
    let replacements = [&POOL[..], &interfaces, &[KEY, ("\ncore = 1\n", "\n")]].concat();
    let gateway = start("mdgw.service", &adapted("config/quorum.toml", &replacements), "gateway running");
    expect_gateway(gateway, 1, &["var/lib/mdgw/state", "var/lib/mdgw/votes", "dev/shm/mdgw"]);
}

#[test]
fn the_witness_starts_as_the_unit_runs_it() {
    if !can_isolate("the_witness_starts_as_the_unit_runs_it") {
        return;
    }
    let witness = start("mdgw-witness.service", &adapted("witness/witness.toml", &[KEY]), "witness: ready");
    expect_written(&witness, &["var/lib/mdgw/votes"]);
    let _ended = witness.stop_with(Signal::Terminate).expect_code(0);
}

/// The drop-in adds what `mdgw.service` lacks for the kernel fence, and takes away nothing else.
#[test]
fn the_drop_in_of_the_kernel_fence_adds_its_capability_and_a_cgroup() {
    let drop_in = Unit::load("mdgw.service.d/kernel-fence.conf");
    let expected = [
        ("AmbientCapabilities", "CAP_BPF"),
        ("CapabilityBoundingSet", "CAP_BPF"),
        ("Delegate", "yes"),
        ("ProtectControlGroups", "no"),
    ];
    assert!(drop_in.0.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(expected));
    let unit = Unit::load("mdgw.service");
    assert!(unit.get("AmbientCapabilities").is_some_and(|capabilities| capabilities.contains("CAP_NET_ADMIN")));
    // Without the drop-in the unit's check refuses the key.
    let is_set = |path: &str| read(&ops(path)).lines().any(|line| line.starts_with("kernel_fence = true"));
    assert!(!is_set("config/mdgw.toml") && !is_set("config/quorum.toml"));
}
