//! A real systemd with a real journal, as the first process of its own namespaces: it runs the units of `ops/systemd`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    process::{self, MdgwProcess, comes_true, program},
    service_unit::ops,
    skip::skip,
};

/// A booted systemd. Dropping it kills everything that it runs.
#[derive(Debug)]
pub struct Systemd {
    /// unshare(1), whose child is systemd.
    outside: MdgwProcess,
    /// Number of systemd outside of its namespaces.
    process: String,
    cgroup: Cgroup,
    _units: TempDir,
}

/// Makes a host for systemd: file systems of its own wherever the units or systemd write, and the rest read-only. Arguments:
/// mdgw, the folder with the units.
const BOOT: &str = r#"
mount -t proc proc /proc
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
: >/run/mdgw.program
mount --bind "$1" /run/mdgw.program
cp -r "$2" /run/units
for directory in /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$directory"; done
for directory in /dev/shm /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$directory"; done
mount -o remount,bind,ro /
ip link set lo up
ip link set lo multicast on
ip route add 224.0.0.0/4 dev lo
exec env -i PATH="$PATH" container=mdgw-tests SYSTEMD_UNIT_PATH=/run/units \
    /lib/systemd/systemd --system --unit=sysinit.target --log-target=journal --show-status=no
"#;

/// The units that services need by default, without what a whole host starts.
const STUBS: [&str; 2] = ["sysinit.target", "basic.target"];
/// Units of systemd itself.
const JOURNAL: [&str; 2] = ["systemd-journald.service", "systemd-journald.socket"];

impl Systemd {
    /// Boots systemd with a [`shipped_unit`]. `files` are further files of `/run/units`. If the machine cannot, prints that `test` is skipped.
    ///
    /// # Panics
    /// When systemd does not come up although the machine has what it takes.
    #[must_use]
    pub fn boot(test: &str, unit: &str, files: &[(&str, &str)]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/lib/systemd/systemd-journald").exists() {
            skip(test, "running systemd takes root, and the package systemd of Debian");
            return None;
        }
        let Some(cgroup) = Cgroup::create() else {
            skip(test, "no writable hierarchy of cgroup v2");
            return None;
        };
        let units = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            let path = units.path().join(name);
            fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder can be created");
            fs::write(path, text).expect("a file can be written");
        };
        for stub in STUBS {
            write(stub, "[Unit]\nDefaultDependencies=no\nWants=systemd-journald.socket\n");
        }
        for name in JOURNAL {
            let shipped = fs::read_to_string(Path::new("/lib/systemd/system").join(name)).expect("Debian's unit");
            write(name, &shipped);
        }
        write(unit, &shipped_unit(unit));
        files.iter().for_each(|(name, text)| write(name, text));

        let mut command = Command::new("sh");
        // The process moves itself, so systemd finds its cgroup at the root of its namespace.
        let unshare = "echo $$ >\"$0/cgroup.procs\" && exec unshare --fork --kill-child --pid --mount --net --uts --ipc \
             --cgroup --propagation private sh -euc \"$@\"";
        command.args(["-c", unshare]).arg(&cgroup.0).args([BOOT, "sh"]).arg(program()).arg(units.path());
        let outside = process::spawn(command);
        let children = format!("/proc/{0}/task/{0}/children", outside.id());
        let mut systemd = Self { outside, process: String::new(), cgroup, _units: units };
        let is_up = comes_true(|| {
            systemd.process = fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            !systemd.process.is_empty() && systemd.run(&["systemctl", "is-active", "sysinit.target"]).status.success()
        });
        assert!(is_up, "{}", systemd.outside.stderr_so_far());
        Some(systemd)
    }

    /// Runs a command in systemd's namespaces.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn run(&self, command: &[&str]) -> Output {
        let mut inside = Command::new("nsenter");
        inside.args(["--target", &self.process, "--all"]).args(command).stdin(Stdio::null());
        inside.output().expect("nsenter starts")
    }

    /// A property of a unit.
    #[must_use]
    pub fn property(&self, unit: &str, name: &str) -> String {
        let shown = self.run(&["systemctl", "show", "--value", "--property", name, unit]);
        String::from_utf8_lossy(&shown.stdout).trim().to_owned()
    }

    /// The entries of the journal that match, oldest first.
    ///
    /// # Panics
    /// When the journal's answer is not JSON.
    #[must_use]
    pub fn journal(&self, matches: &[&str]) -> Vec<Value> {
        let shown = self.run(&[&["journalctl", "--output=json", "--all"], matches].concat());
        let text = String::from_utf8_lossy(&shown.stdout);
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    /// What systemd itself wrote, for messages.
    #[must_use]
    pub fn log(&self) -> String {
        self.outside.stderr_so_far()
    }
}

/// A unit of `ops/systemd`, in which the program's path is that of mdgw, the configuration is in `/run/units`, and the user is one
/// who exists.
///
/// # Panics
/// When the unit lacks one of these.
#[must_use]
pub fn shipped_unit(unit: &str) -> String {
    let text = fs::read_to_string(ops("systemd").join(unit)).expect("a unit of ours");
    let replacements = [
        ("User=mdgw", "User=nobody"),
        ("Group=mdgw", "Group=nogroup"),
        ("/usr/bin/mdgw", "/run/mdgw.program"),
        ("/etc/mdgw/", "/run/units/"),
    ];
    replacements.into_iter().fold(text, |text, (shipped, here)| {
        assert!(text.contains(shipped), "{shipped}");
        text.replace(shipped, here)
    })
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // With the first process of the namespace all others end.
        let _killed = Command::new("kill").args(["-KILL", &self.process]).status();
        let _ended = comes_true(|| self.outside.has_ended());
        let _removed = comes_true(|| self.cgroup.remove());
    }
}

/// The cgroup in which systemd runs.
#[derive(Debug)]
struct Cgroup(PathBuf);

impl Cgroup {
    fn create() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = fields.find(|fields| fields.get(2) == Some(&"cgroup2"))?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(mount[1]).join(format!("mdgw-systemd-{}-{number}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    /// Removes it and those below; `false`: a process has not left one of them yet.
    fn remove(&self) -> bool {
        fn remove(path: &Path) -> bool {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.path().is_dir() && !remove(&entry.path()) {
                    return false;
                }
            }
            fs::remove_dir(path).is_ok()
        }
        !self.0.exists() || remove(&self.0)
    }
}
