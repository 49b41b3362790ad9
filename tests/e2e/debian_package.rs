//! The Debian package of `ops/package`: its files, and its life in a root of its own: installed, run as the unit runs it,
//! upgraded, removed and purged. The program is the one that the tests have anyway; nothing is built, and the host is not
//! changed.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::AtomicU32,
};

use mdgw_tests::{
    process::{MdgwProcess, Signal, program},
    service_unit::{ServiceUnit, ops},
    skip::skip,
};

use super::{HOST, Host, ISOLATED, UNITS, expect_answer, expect_written, has_systemd_analyze, hold, read};

/// Date of all files of the test's packages, and its form in `dpkg-deb --contents`.
const DATE: (&str, &str) = ("1764185400", "2025-11-26 19:30");
/// Packages name no commit's tag here, so their version ends in that date.
const VERSION_END: &str = "~20251126.1930";
/// The same of the package that the first one is upgraded to.
const NEXT_VERSION_END: &str = "~20251127.0000";

/// Whether the programs that pack are installed. If not, prints that `test` is skipped.
fn can_pack(test: &str) -> bool {
    let missing = ["dpkg-deb", "dpkg-shlibdeps", "strip", "jq"].into_iter().find(|program| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    });
    if let Some(program) = missing {
        skip(test, &format!("{program} (packages dpkg-dev, binutils and jq of Debian) is not installed"));
    }
    missing.is_none()
}

/// Runs a command to its end. Its standard output, once it succeeds.
#[track_caller]
fn output_of(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// The program without its symbols, which would only make the packages larger.
fn stripped_program(folder: &Path) -> PathBuf {
    let stripped = folder.join("mdgw");
    output_of(Command::new("strip").arg("-o").arg(&stripped).arg(program()));
    stripped
}

/// Packs `program` with `ops/package`. The package's path.
fn pack(program: &Path, folder: &Path) -> PathBuf {
    let mut command = Command::new(ops("package"));
    command.args(["--format", "deb", "--program"]).arg(program).arg("--output").arg(folder);
    // Compression takes the most time, and is dpkg-deb's.
    output_of(command.env("SOURCE_DATE_EPOCH", DATE.0).env("DPKG_DEB_COMPRESSOR_TYPE", "none"));
    let files = fs::read_dir(folder).expect("ops/package made the folder");
    let mut packages = files.map(|entry| entry.expect("the folder can be read").path());
    packages.find(|path| path.extension().is_some_and(|end| end == "deb")).expect("ops/package made a package")
}

/// A field of a package's control file.
fn field(package: &Path, name: &str) -> String {
    output_of(Command::new("dpkg-deb").arg("--field").arg(package).arg(name)).trim().to_owned()
}

#[test]
fn a_package_has_its_files_and_the_same_bytes_each_time() {
    if !can_pack("a_package_has_its_files_and_the_same_bytes_each_time") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    let program = stripped_program(folder.path());
    let [package, again] = ["first", "second"].map(|name| pack(&program, &folder.path().join(name)));
    assert!(fs::read(&package).expect("a package") == fs::read(&again).expect("a package"), "two runs differ");
    assert_eq!(package.file_name(), again.file_name());
    let sum = format!("{}.sha256", package.display());
    output_of(Command::new("sha256sum").args(["--check", &sum]).current_dir(package.parent().expect("a folder")));

    assert_eq!(field(&package, "Package"), "mdgw");
    assert!(field(&package, "Version").contains(VERSION_END));
    let needed = field(&package, "Depends");
    assert!(needed.starts_with("adduser, ") && needed.contains("libc6 (>= "), "{needed}");
    let conffiles = output_of(Command::new("dpkg-deb").arg("--info").arg(&package).arg("conffiles"));
    assert_eq!(conffiles, "/etc/mdgw/mdgw.toml\n");

    let contents = output_of(Command::new("dpkg-deb").arg("--contents").arg(&package).env("TZ", "UTC"));
    let mut found = BTreeSet::new();
    for line in contents.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [mode, owner, _size, day, time, path, ..] = words[..] else { panic!("{line}") };
        assert_eq!(owner, "root/root", "{line}");
        assert_eq!(format!("{day} {time}"), DATE.1, "{line}");
        assert!(
            mode.starts_with('l') || mode[7..] == *"r-x" || mode[7..] == *"r--" || path.contains("/etc/mdgw"),
            "{line}"
        );
        found.insert(format!("{mode} {}", path.trim_start_matches('.')));
    }
    let [file, program, private, private_folder, link] =
        ["-rw-r--r--", "-rwxr-xr-x", "-rw-r-----", "drwxr-x---", "lrwxrwxrwx"];
    let wireshark = output_of(Command::new("dpkg-architecture").args(["-q", "DEB_HOST_MULTIARCH"]));
    let wireshark = format!("/usr/lib/{}/wireshark/plugins/mdgw.lua", wireshark.trim());
    let expected = [
        (program, "/usr/bin/mdgw"),
        (private_folder, "/etc/mdgw/"),
        (private, "/etc/mdgw/mdgw.toml"),
        (file, wireshark.as_str()),
        (file, "/usr/share/bash-completion/completions/mdgw"),
        (file, "/usr/share/zsh/vendor-completions/_mdgw"),
        (file, "/usr/share/fish/vendor_completions.d/mdgw.fish"),
        (file, "/usr/share/man/man1/mdgw.1.gz"),
        (file, "/usr/share/man/man1/mdgw-run.1.gz"),
        (file, "/usr/share/mdgw/README.md"),
        (file, "/usr/share/mdgw/ops/guide/upgrade.md"),
        (file, "/usr/share/mdgw/ops/grafana/mdgw.json"),
        (file, "/usr/share/mdgw/ops/prometheus/mdgw.rules.yml"),
        (file, "/usr/share/mdgw/ops/runbooks/README.md"),
        (file, "/usr/share/mdgw/ops/sysctl/60-mdgw.conf"),
        (file, "/usr/share/mdgw/ops/systemd/mdgw.service.d/kernel-fence.conf"),
        (file, "/usr/share/mdgw/ops/systemd/mdgw.service.d/log-readers.conf"),
        (file, "/usr/share/mdgw/ops/witness/witness.toml"),
        (file, "/usr/share/mdgw/log-reader/c/mdgw_log.c"),
        (file, "/usr/share/mdgw/subscriber/c/mdgw_subscriber.c"),
        (file, "/usr/share/mdgw/subscriber/python/mdgw_subscriber.py"),
        (file, "/usr/share/mdgw/tests/data/output/packets.txt"),
        (file, "/usr/share/doc/mdgw/copyright"),
        (file, "/usr/share/doc/mdgw/changelog.gz"),
        (file, "/usr/share/doc/mdgw/third-party-notices.txt.gz"),
        (link, "/usr/share/doc/mdgw/ops"),
    ];
    let units = UNITS.map(|unit| format!("/usr/lib/systemd/system/{unit}"));
    let expected = expected.into_iter().chain(units.iter().map(|unit| (file, unit.as_str())));
    let missing: Vec<_> =
        expected.map(|(mode, path)| format!("{mode} {path}")).filter(|wanted| !found.contains(wanted)).collect();
    assert!(missing.is_empty(), "{missing:?} not in\n{contents}");
    // Settings of the kernel and the drop-in are the operator's choice: a package that installs them has chosen.
    let chosen = ["/sysctl.d/", "/system/mdgw.service.d/", "/etc/systemd/"];
    assert!(!chosen.iter().any(|folder| contents.contains(folder)), "{contents}");
    expect_notices(&package, folder.path());
}

/// The notices list each crate that the program links, with a licence, and a text of each licence that asks for one.
fn expect_notices(package: &Path, folder: &Path) {
    let tree = folder.join("notices");
    output_of(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&tree));
    let path = tree.join("usr/share/doc/mdgw/third-party-notices.txt.gz");
    let notices = output_of(Command::new("gzip").args(["--decompress", "--stdout"]).arg(path));
    let (list, texts) = notices.split_once("\n==== text 1 ====\n").expect("texts follow the list");
    let listed: BTreeSet<_> =
        list.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split_once(": ")).collect();
    assert!(listed.iter().all(|(_, licence)| !licence.is_empty()), "{list}");
    let listed: BTreeSet<_> = listed.into_iter().map(|(name, _)| name.to_owned()).collect();
    // Asked of the lock file, and not of what made the list: every crate of a registry that normal dependencies reach.
    let mut tree_of = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    tree_of.args([
        "tree",
        "--quiet",
        "--locked",
        "--offline",
        "-p",
        "mdgw",
        "--features",
        "etcd,zookeeper,parquet,nats",
    ]);
    tree_of.args(["-e", "normal,no-proc-macro", "--prefix", "none"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let is_ours = |name: &str| name.starts_with("mdgw");
    let linked: BTreeSet<_> = output_of(&mut tree_of)
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .filter(|(name, _)| !is_ours(name))
        .map(|(name, rest)| format!("{name} {}", rest.split(' ').next().unwrap_or_default()))
        .collect();
    assert!(linked.len() > 100, "only {} crates", linked.len());
    assert_eq!(listed, linked);
    for part in ["Permission is hereby granted, free of charge", "Apache License", "Redistribution and use in source"] {
        assert!(texts.contains(part), "no licence text with {part:?}");
    }
    let count = texts.matches("\n==== text ").count();
    assert!(count > 50 && texts.matches("\n==== text 2 ====\n").count() == 1, "{count} texts");
}

/// Script that makes a root of its own: the host's files, and changes that stay in memory. Arguments: an empty folder, and
/// the folder that is `/mnt` there. `systemctl` of that root writes down what it is asked for.
const ROOT: &str = r#"
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for system in proc sys dev; do mount --rbind "/$system" "$1/root/$system"; done
mount --bind "$2" "$1/root/mnt"
cd "$1/root"
mkdir -p host run/systemd/system
pivot_root . host
umount -l /host
install -m 755 /dev/stdin /usr/bin/systemctl <<'END'
#!/bin/sh
echo "$*" >>/run/systemctl.calls
END
rm -f /usr/sbin/policy-rc.d
echo ready
exec sleep infinity
"#;

/// A root in which a package is installed.
struct PackageRoot {
    /// Holds the mount namespace.
    holder: MdgwProcess,
}

impl PackageRoot {
    /// A root with `packages` at `/mnt`, if this process may make one. If not, prints that `test` is skipped.
    fn new(test: &str, folder: &Path, packages: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "a root of its own and an installation take root");
            return None;
        }
        if !Command::new("dpkg").arg("--status").arg("adduser").output().is_ok_and(|output| output.status.success()) {
            skip(test, "adduser of Debian is not installed");
            return None;
        }
        let mut probe = Command::new("unshare");
        probe.args(ISOLATED).args(["sh", "-euc", ROOT.trim_end().trim_end_matches("exec sleep infinity"), "sh"]);
        let made = probe.arg(folder).arg(packages).output().expect("unshare runs");
        if !made.status.success() {
            skip(test, &format!("no overlay over this root: {}", String::from_utf8_lossy(&made.stderr)));
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(ISOLATED).args(["sh", "-euc", ROOT, "sh"]).arg(folder).arg(packages);
        Some(Self { holder: hold(command) })
    }

    /// A command in this root.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--mount"]);
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Runs a script. Its standard output, once it succeeds.
    #[track_caller]
    fn run(&self, script: &str) -> String {
        output_of(self.enter().args(["sh", "-euc", script]))
    }

    /// Whether this root has a file or link of that path.
    fn has(&self, path: &str) -> bool {
        let found = self.enter().args(["sh", "-c", "test -e \"$1\" || test -L \"$1\"", "sh", path]).status();
        found.expect("nsenter runs").success()
    }

    /// Runs dpkg, without the triggers of other packages. What it printed, and what it asked of `systemctl`.
    #[track_caller]
    fn dpkg(&self, arguments: &str) -> (String, Vec<String>) {
        let printed =
            self.run(&format!(": >/run/systemctl.calls; dpkg --no-triggers --force-confold {arguments} 2>&1"));
        let calls = self.run("cat /run/systemctl.calls").lines().map(str::to_owned).collect();
        (printed, calls)
    }

    /// Mode, owner and group of files of this root.
    #[track_caller]
    fn modes(&self, paths: &str) -> String {
        self.run(&format!("stat --format '%a %U %G' {paths}"))
    }

    /// A host with the interfaces of the shipped configuration, on which the installed units start.
    fn host(&self) -> Host {
        let mut command = self.enter();
        command.arg("unshare").args(ISOLATED).args([
            "sh",
            "-euc",
            HOST,
            "sh",
            "/usr/bin/mdgw",
            "/mnt/restricted",
            "mdgw",
        ]);
        let uid = self.run("id -u mdgw").trim().to_owned();
        let user = "mdgw".to_owned();
        Host {
            holder: hold(command),
            user,
            uid,
            program: "/usr/bin/mdgw",
            is_configured: true,
            started: AtomicU32::new(0),
            managers: RefCell::default(),
        }
    }
}

/// A package of a higher version, whose configuration was changed.
fn next_version(package: &Path, folder: &Path) -> PathBuf {
    let [tree, next] = ["tree", "packages/next.deb"].map(|name| folder.join(name));
    output_of(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(&tree));
    let [control, config] = ["DEBIAN/control", "etc/mdgw/mdgw.toml"].map(|path| tree.join(path));
    let text = read(&control).replace(VERSION_END, NEXT_VERSION_END);
    fs::write(&control, text).expect("the control file can be written");
    fs::write(&config, format!("{}# Of the next version.\n", read(&config))).expect("the configuration can be written");
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "--build"]).arg(&tree).arg(&next).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    output_of(&mut command);
    next
}

/// What this host has of the package's most prominent files: device, inode and time of change of each that is there.
fn host_files() -> Vec<Option<(u64, u64, i64)>> {
    let files =
        ["/usr/bin/mdgw", "/etc/mdgw", "/etc/mdgw/mdgw.toml", "/usr/share/mdgw", "/etc/passwd", "/var/lib/mdgw"];
    let found = files.map(|path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino(), file.ctime())));
    found.to_vec()
}

#[test]
fn a_package_is_installed_run_upgraded_removed_and_purged() {
    let test = "a_package_is_installed_run_upgraded_removed_and_purged";
    if !can_pack(test) || !has_systemd_analyze(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    let [mount_point, packages] = ["root", "packages"].map(|name| folder.path().join(name));
    for path in [&mount_point, &packages] {
        fs::create_dir(path).expect("a temporary directory can be created");
    }
    let before = host_files();
    let package = pack(&stripped_program(folder.path()), &packages);
    next_version(&package, folder.path());
    let name = package.file_name().expect("a package has a name").to_str().expect("a name of ASCII");
    fs::copy(env!("CARGO_BIN_EXE_restricted"), packages.join("restricted")).expect("the program can be copied");
    let Some(root) = PackageRoot::new(test, &mount_point, &packages) else { return };

    // Installed: a user, a configuration that this user can read, and no service that runs or will.
    let (printed, calls) = root.dpkg(&format!("--install /mnt/{name}"));
    assert!(printed.contains("mdgw: no service is enabled or started"), "{printed}");
    assert_eq!(calls, ["daemon-reload"]);
    assert_eq!(root.modes("/etc/mdgw /etc/mdgw/mdgw.toml"), "750 root mdgw\n640 root mdgw\n");
    let user = root.run("getent passwd mdgw");
    assert!(user.trim_end().ends_with(":/var/lib/mdgw:/usr/sbin/nologin"), "{user}");
    assert!(field(&package, "Version").starts_with(root.run("mdgw --version").split_whitespace().nth(1).unwrap()));
    assert_eq!(root.run("dpkg --verify mdgw"), "");
    for unit in UNITS {
        let installed = root.run(&format!("cat /usr/lib/systemd/system/{unit}"));
        assert_eq!(installed, read(&ops("systemd").join(unit)), "{unit}");
    }
    expect_dissected(test, &root);

    // Run, with what the operator has changed.
    root.run("sed -i -e 's/^cores = .*/threads = 2/; s/^wait = .*/wait = \"park\"/' /etc/mdgw/mdgw.toml");
    let edited = root.run("cat /etc/mdgw/mdgw.toml");
    let host = root.host();
    let gateway = host.run(&ServiceUnit::load("mdgw.service"), "", None, "gateway running");
    expect_answer(&gateway, 0);
    expect_written(&gateway, &["var/lib/mdgw/state", "dev/shm/mdgw"]);

    // Upgraded: the gateway runs on, and the operator's configuration stays.
    let (printed, calls) = root.dpkg("--install /mnt/next.deb");
    let running = format!("Processes that run the previous program: {} ", gateway.id());
    assert!(printed.contains("mdgw: nothing was restarted") && printed.contains(&running), "{printed}");
    assert!(!printed.contains("no service is enabled"), "{printed}");
    assert_eq!(calls, ["daemon-reload"]);
    assert!(root.run("dpkg-query --show mdgw").contains(NEXT_VERSION_END));
    assert_eq!(root.run("cat /etc/mdgw/mdgw.toml"), edited);
    assert_eq!(root.modes("/etc/mdgw /etc/mdgw/mdgw.toml"), "750 root mdgw\n640 root mdgw\n");
    assert!(root.run("cat /etc/mdgw/mdgw.toml.dpkg-dist").ends_with("# Of the next version.\n"));
    expect_answer(&gateway, 0);

    // Removed: the services stop first, and what the operator has written stays. This gateway is not systemd's, so it runs on.
    root.run("mkdir -p /var/lib/mdgw /var/log/mdgw; echo votes >/var/lib/mdgw/votes; echo key >/etc/mdgw/key");
    let (_, calls) = root.dpkg("--remove mdgw");
    let stopped: Vec<_> = calls.iter().filter_map(|call| call.split_once("stop ")).map(|(_, unit)| unit).collect();
    assert_eq!(
        stopped,
        [
            "mdgw-live.service",
            "mdgw-journal.service",
            "mdgw-nats.service",
            "mdgw-mirror.service",
            "mdgw.service",
            "mdgw-sentinel.service",
            "mdgw-witness.service"
        ]
    );
    assert_eq!(calls.last().map(String::as_str), Some("daemon-reload"));
    assert_eq!(root.run("cat /etc/mdgw/mdgw.toml"), edited);
    assert_eq!(root.run("cat /var/lib/mdgw/votes"), "votes\n");
    for removed in ["/usr/bin/mdgw", "/usr/share/mdgw", "/usr/lib/systemd/system/mdgw.service"] {
        assert!(!root.has(removed), "{removed}");
    }

    // Purged while the gateway runs: its state stays. Purged again: it goes, and the operator's own files stay.
    let (printed, _) = root.dpkg("--purge mdgw");
    assert!(printed.contains(&format!("which processes may use: {}", gateway.id())), "{printed}");
    assert!(root.has("/var/lib/mdgw/votes") && !root.has("/etc/mdgw/mdgw.toml"));
    expect_answer(&gateway, 0);
    let _ended = gateway.stop_with(Signal::Terminate).expect_code(0);
    root.dpkg(&format!("--install /mnt/{name}"));
    let wanted = "/etc/systemd/system/multi-user.target.wants/mdgw.service";
    root.run(&format!("mkdir -p $(dirname {wanted}); ln -s /usr/lib/systemd/system/mdgw.service {wanted}"));
    let (printed, _) = root.dpkg("--purge mdgw");
    assert!(printed.contains("mdgw: kept are keys") && printed.contains("; the user mdgw; "), "{printed}");
    for removed in ["/var/lib/mdgw", "/var/log/mdgw", "/etc/mdgw/mdgw.toml", wanted] {
        assert!(!root.has(removed), "{removed}");
    }
    let of_yours = "keys and other files of yours in /etc/mdgw";
    assert!(root.has("/etc/mdgw/key") && printed.contains(of_yours), "{printed}");
    // Without such files the directory goes, and nothing else is said of it.
    root.run("rm /etc/mdgw/key");
    root.dpkg(&format!("--install /mnt/{name}"));
    let (printed, _) = root.dpkg("--purge mdgw");
    assert!(printed.contains("mdgw: kept are the user mdgw; journals in"), "{printed}");
    assert!(!root.has("/etc/mdgw") && !printed.contains("/etc/mdgw"), "{printed}");
    root.run("getent passwd mdgw");
    assert_eq!(host_files(), before, "the host itself has changed");
}

/// The installed dissector is read without an option.
fn expect_dissected(test: &str, root: &PackageRoot) {
    if !root.enter().args(["tshark", "--version"]).output().is_ok_and(|output| output.status.success()) {
        return skip(test, "tshark is not installed: the dissector");
    }
    let shown = root.run("tshark -r /usr/share/mdgw/tests/data/output/sample.pcap -Y mdgw.frame.kind -c 4 2>/dev/null");
    assert!(shown.lines().count() > 0 && shown.lines().all(|line| line.contains(" MDGW ")), "{shown}");
}
