//! Conditions of a measurement: configuration, host, clocks, build. A latency means nothing without them. They are
//! collected by the machine and carried in every log.

use std::{fs, path::Path};

/// Key and value pairs, in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disclosure {
    entries: Vec<(String, String)>,
}

impl Disclosure {
    /// Conditions of this process on this machine now. `stamps` names the source of receive times, such as `kernel
    /// software`.
    #[must_use]
    pub fn of_this_host(stamps: &str) -> Self {
        let mut disclosure = Self::default();
        let profile = if cfg!(debug_assertions) { "debug build: latencies are not meaningful" } else { "release" };
        disclosure.push("version", concat!("mdgw ", env!("CARGO_PKG_VERSION")));
        disclosure.push("build", &format!("{profile}, {}", std::env::consts::ARCH));
        disclosure.push("receive timestamps", stamps);
        for (key, value) in host(Path::new("/")) {
            disclosure.push(key, &value);
        }
        disclosure
    }

    /// Adds all settings in force, as `config.KEY`.
    #[must_use]
    pub fn with_settings(mut self, settings: impl IntoIterator<Item = (String, String)>) -> Self {
        for (key, value) in settings {
            self.push(&format!("config.{key}"), &value);
        }
        self
    }

    /// Adds an entry; line breaks become spaces.
    pub fn push(&mut self, key: &str, value: &str) {
        let line = |text: &str| text.split(['\n', '\r']).map(str::trim).collect::<Vec<_>>().join(" ");
        self.entries.push((line(key), line(value)));
    }

    /// Replaces the value of a key, or adds the entry.
    pub fn set(&mut self, key: &str, value: &str) {
        self.entries.retain(|(known, _)| known != key);
        self.push(key, value);
    }

    /// All entries, in order.
    #[must_use]
    pub(crate) fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// The value of a key.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

/// Reads the kernel's description of the machine below `root`. An entry that the kernel does not report says so.
fn host(root: &Path) -> Vec<(&'static str, String)> {
    let files = [
        ("host", "proc/sys/kernel/hostname"),
        ("kernel", "proc/sys/kernel/osrelease"),
        ("kernel command line", "proc/cmdline"),
        ("clock source", "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ("CPUs online", "sys/devices/system/cpu/online"),
        ("CPUs isolated", "sys/devices/system/cpu/isolated"),
        ("CPUs without tick", "sys/devices/system/cpu/nohz_full"),
        ("SMT", "sys/devices/system/cpu/smt/control"),
        ("frequency governor", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        ("turbo off", "sys/devices/system/cpu/intel_pstate/no_turbo"),
    ];
    let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let is_guest = field("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    let mut entries = vec![
        ("CPU", field("model name").unwrap_or_else(|| NOT_REPORTED.to_owned())),
        ("virtual machine", if is_guest { "yes: other guests can steal CPU time" } else { "no" }.to_owned()),
    ];
    entries.extend(files.map(|(key, file)| {
        let value = fs::read_to_string(root.join(file)).map(|text| text.trim().to_owned());
        let value = value.unwrap_or_else(|_| NOT_REPORTED.to_owned());
        (key, if value.is_empty() { "none".to_owned() } else { value })
    }));
    entries
}

const NOT_REPORTED: &str = "not reported by the kernel";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disclosure_of_this_host_is_complete() {
        let disclosure = Disclosure::of_this_host("kernel software");
        for key in [
            "version",
            "build",
            "receive timestamps",
            "CPU",
            "kernel",
            "clock source",
            "CPUs isolated",
            "frequency governor",
        ] {
            assert!(disclosure.get(key).is_some_and(|value| !value.is_empty()), "{key}");
        }
        assert!(disclosure.get("build").unwrap().starts_with("debug"), "tests are no release build");
    }

    #[test]
    fn values_the_kernel_does_not_report_are_marked() {
        let empty = tempfile::tempdir().unwrap();
        let host = host(empty.path());
        assert!(host.iter().filter(|(_, value)| value == NOT_REPORTED).count() > 8, "{host:?}");
    }

    #[test]
    fn values_stay_on_one_line() {
        let mut disclosure = Disclosure::default();
        disclosure.push("note", "two\nlines");
        assert_eq!(disclosure.get("note"), Some("two lines"));
    }
}
