//! The systemd units of `ops/systemd`: their settings, and the filters of system calls that systemd derives from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use seccompiler::{BpfProgram, TargetArch};
use serde_json::{Map, Value, json};

/// A file of `ops`.
#[must_use]
pub fn ops(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops").join(path)
}

/// The settings of a unit file and its drop-ins, in order: key and value.
#[derive(Clone, Debug)]
pub struct ServiceUnit {
    /// File name of the unit.
    pub name: String,
    /// Settings in the order of the files.
    pub settings: Vec<(String, String)>,
}

impl ServiceUnit {
    /// Reads a unit of `ops/systemd`.
    ///
    /// # Panics
    /// When it can't be read.
    #[must_use]
    pub fn load(name: &str) -> Self {
        let path = ops("systemd").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let settings = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        Self {
            name: name.to_owned(),
            settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        }
    }

    /// Adds the settings of a drop-in of `ops/systemd`.
    #[must_use]
    pub fn with_drop_in(mut self, name: &str) -> Self {
        self.settings.extend(Self::load(name).settings);
        self
    }

    /// The unit with `key=value` as its last line.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// All values of a setting, in order.
    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.settings.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The value in force of a setting that the last line decides.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values(key).last()
    }

    /// Whether a boolean setting is on.
    #[must_use]
    pub fn is_on(&self, key: &str) -> bool {
        self.get(key) == Some("yes")
    }

    /// The words of all lines of a setting.
    pub fn words<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.values(key).flat_map(str::split_whitespace)
    }

    /// Directories that the unit's user may write to.
    #[must_use]
    pub fn writable(&self) -> Vec<PathBuf> {
        let kinds = [("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log")];
        let created = kinds.into_iter().filter_map(|(key, parent)| Some(Path::new(parent).join(self.get(key)?)));
        created.chain(self.words("ReadWritePaths").map(PathBuf::from)).collect()
    }

    /// The filters of system calls that systemd would install for this unit, by the setting that causes them, in the form
    /// that [`compile_filters`] reads.
    ///
    /// # Panics
    /// When the unit has a filter that this function can't express, or `systemd-analyze` can't be run.
    #[must_use]
    pub fn system_call_filters(&self) -> Value {
        let mut filters = Map::new();
        let mut deny = |setting: &str, error: i32, rules: Vec<Value>| {
            filters.insert(setting.to_owned(), filter("allow", errno(error), rules));
        };
        let families: Vec<_> = self.words("RestrictAddressFamilies").map(address_family).collect();
        if !families.is_empty() {
            let others: Vec<_> = families.iter().map(|family| argument(0, &json!("ne"), *family)).collect();
            deny("RestrictAddressFamilies", libc::EAFNOSUPPORT, vec![rule("socket", others)]);
        }
        if self.is_on("MemoryDenyWriteExecute") {
            let (both, execute) = (libc::PROT_WRITE | libc::PROT_EXEC, libc::PROT_EXEC);
            let rules = vec![
                rule("mmap", vec![bits(2, both)]),
                rule("mprotect", vec![bits(2, execute)]),
                rule("pkey_mprotect", vec![bits(2, execute)]),
                rule("shmat", vec![bits(2, libc::SHM_EXEC)]),
            ];
            deny("MemoryDenyWriteExecute", libc::EPERM, rules);
        }
        if self.is_on("RestrictNamespaces") {
            let mut rules: Vec<_> = NAMESPACES.map(|kind| rule("clone", vec![bits(0, kind)])).into();
            rules.extend(["unshare", "setns"].map(any));
            deny("RestrictNamespaces", libc::EPERM, rules);
            // Its flags are in memory, where a filter can't read them. The C library then takes clone(2).
            deny("RestrictNamespaces (clone3)", libc::ENOSYS, vec![any("clone3")]);
        }
        if self.is_on("RestrictSUIDSGID") {
            let modes = [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("mkdir", 1), ("mkdirat", 2)];
            let created = [("creat", 1), ("mknod", 1), ("mknodat", 2)];
            let rules = [libc::S_ISUID, libc::S_ISGID].into_iter().flat_map(|bit| {
                let bit = bit.cast_signed();
                let by_mode =
                    modes.into_iter().chain(created).map(move |(call, mode)| rule(call, vec![bits(mode, bit)]));
                let by_flags = [("open", 1), ("openat", 2)].into_iter();
                let by_flags = by_flags
                    .map(move |(call, flags)| rule(call, vec![bits(flags, libc::O_CREAT), bits(flags + 1, bit)]));
                by_mode.chain(by_flags)
            });
            deny("RestrictSUIDSGID", libc::EPERM, rules.collect());
            deny("RestrictSUIDSGID (openat2)", libc::ENOSYS, vec![any("openat2")]);
        }
        if self.is_on("LockPersonality") {
            // 0 is the present one, and -1 only reads.
            let others = [0, -1].map(|personality| argument(0, &json!("ne"), personality));
            deny("LockPersonality", libc::EPERM, vec![rule("personality", others.into())]);
        }
        if self.values("SystemCallFilter").next().is_some() {
            assert_eq!(self.get("SystemCallErrorNumber"), Some("EPERM"), "{}", self.name);
            let allowed: Vec<_> = self.allowed_system_calls().iter().map(|call| any(call)).collect();
            let allowed =
                json!({"mismatch_action": errno(libc::EPERM), "match_action": "allow", "filter": known(allowed)});
            filters.insert(ALLOW_LIST.to_owned(), allowed);
        }
        Value::Object(filters)
    }

    /// What the lines of `SystemCallFilter=` allow: the first line makes the list, and later ones add to it or, with `~`,
    /// take from it.
    fn allowed_system_calls(&self) -> BTreeSet<String> {
        let mut allowed = BTreeSet::new();
        for line in self.values("SystemCallFilter") {
            let removed = line.strip_prefix('~');
            assert!(removed.is_none() || !allowed.is_empty(), "{}: a list of what is denied", self.name);
            for call in removed.unwrap_or(line).split_whitespace().flat_map(expand_set) {
                if removed.is_some() {
                    allowed.remove(&call);
                } else {
                    allowed.insert(call);
                }
            }
        }
        allowed
    }
}

/// The filter that is applied last: it may refuse what installs a filter.
const ALLOW_LIST: &str = "SystemCallFilter";

/// The programs of [`ServiceUnit::system_call_filters`], in the order in which a process installs them.
///
/// # Errors
/// When `filters` are not of that form.
pub fn compile_filters(filters: &str) -> seccompiler::Result<Vec<BpfProgram>> {
    let mut programs = seccompiler::compile_from_json(filters.as_bytes(), target()?)?;
    let last = programs.remove(ALLOW_LIST);
    Ok(programs.into_values().chain(last).collect())
}

fn target() -> seccompiler::Result<TargetArch> {
    Ok(TargetArch::try_from(std::env::consts::ARCH)?)
}

/// The calls of a set (`@name`), also of the sets in it; any other word is a call itself.
fn expand_set(word: &str) -> Vec<String> {
    if !word.starts_with('@') {
        return vec![word.to_owned()];
    }
    let members = system_call_sets().get(word).unwrap_or_else(|| panic!("systemd knows no {word}"));
    members.iter().flat_map(|member| expand_set(member)).collect()
}

/// What `systemd-analyze` says about its sets: the name of each, and its calls and further sets.
fn system_call_sets() -> &'static BTreeMap<String, Vec<String>> {
    static SETS: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    SETS.get_or_init(|| {
        let output = Command::new("systemd-analyze").arg("syscall-filter").output().expect("systemd-analyze runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut sets = BTreeMap::new();
        let mut members: &mut Vec<String> = &mut Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // Members and comments are indented below the name of their set.
            match line.trim() {
                name if name.starts_with('@') && line.starts_with('@') => {
                    members = sets.entry(name.to_owned()).or_default()
                }
                member if !member.is_empty() && !member.starts_with('#') => members.push(member.to_owned()),
                _ => {}
            }
        }
        sets
    })
}

const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

fn address_family(name: &str) -> i32 {
    match name {
        "AF_INET" => libc::AF_INET,
        "AF_INET6" => libc::AF_INET6,
        "AF_NETLINK" => libc::AF_NETLINK,
        "AF_UNIX" => libc::AF_UNIX,
        _ => panic!("the number of {name}"),
    }
}

fn errno(error: i32) -> Value {
    json!({ "errno": error })
}

fn filter(mismatch_action: &str, match_action: Value, rules: Vec<Value>) -> Value {
    json!({"mismatch_action": mismatch_action, "match_action": match_action, "filter": known(rules)})
}

/// Matches a call whose arguments meet all conditions.
fn rule(system_call: &str, conditions: Vec<Value>) -> Value {
    json!({"syscall": system_call, "args": conditions})
}

/// Matches a call whatever its arguments are.
fn any(system_call: &str) -> Value {
    json!({ "syscall": system_call })
}

/// The lower half of an argument meets `operation` with `value`.
fn argument(index: u8, operation: &Value, value: i32) -> Value {
    json!({"index": index, "type": "dword", "op": operation, "val": value.cast_unsigned()})
}

/// All these bits are set in an argument.
fn bits(index: u8, mask: i32) -> Value {
    argument(index, &json!({"masked_eq": mask.cast_unsigned()}), mask)
}

/// Leaves out the calls of other architectures, as systemd does.
fn known(rules: Vec<Value>) -> Vec<Value> {
    let compiles = |rule: &Value| {
        let alone = json!({"one": {"mismatch_action": "allow", "match_action": "trap", "filter": [rule]}});
        target().and_then(|target| seccompiler::compile_from_json(alone.to_string().as_bytes(), target)).is_ok()
    };
    rules.into_iter().filter(compiles).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(settings: &[(&str, &str)]) -> ServiceUnit {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ServiceUnit { name: "test".to_owned(), settings }
    }

    #[test]
    fn later_lines_of_the_filter_add_and_remove_calls() {
        let lines =
            [("SystemCallFilter", "read write bpf"), ("SystemCallFilter", "~bpf write"), ("SystemCallFilter", "bpf")];
        assert!(unit(&lines).allowed_system_calls().iter().eq(["bpf", "read"]));
    }

    #[test]
    fn a_denied_list_alone_is_not_taken_for_an_allowed_one() {
        let denied = unit(&[("SystemCallFilter", "~bpf")]);
        assert!(std::panic::catch_unwind(|| denied.allowed_system_calls()).is_err());
    }

    #[test]
    fn each_restricting_setting_has_a_filter_that_compiles() {
        let settings = [
            ("RestrictAddressFamilies", "AF_INET AF_UNIX"),
            ("MemoryDenyWriteExecute", "yes"),
            ("RestrictNamespaces", "yes"),
            ("RestrictSUIDSGID", "yes"),
            ("LockPersonality", "yes"),
            ("SystemCallFilter", "read of_another_architecture"),
            ("SystemCallErrorNumber", "EPERM"),
        ];
        let filters = unit(&settings).system_call_filters();
        // Two settings have a second filter, with another error number.
        assert_eq!(compile_filters(&filters.to_string()).expect("a filter").len(), 8);
        assert_eq!(filters[ALLOW_LIST]["filter"], json!([{"syscall": "read"}]));
        assert_eq!(unit(&[]).system_call_filters(), json!({}));
    }
}
