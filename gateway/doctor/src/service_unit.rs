//! What the unit of the service grants to the gateway, read from the files that systemd reads.

use std::collections::BTreeMap;

use crate::files::Files;

/// Where systemd looks for units, the first folder first.
const FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Settings of the section `[Service]` of a unit and of its drop-ins, in the order in which they apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceUnit {
    settings: Vec<(String, String)>,
}

impl ServiceUnit {
    /// The unit `mdgw.service`, if it runs a gateway with that configuration; without a configuration, with any.
    pub(crate) fn of_gateway(files: &Files, config: Option<&str>) -> Option<Self> {
        let unit = Self::read(files, "mdgw.service")?;
        let starts = unit.values("ExecStart");
        let is_of_config = |start: &&str| match config {
            Some(config) => start.split_whitespace().any(|word| files.is_same_file(word, config)),
            None => !start.is_empty(),
        };
        starts.iter().any(is_of_config).then_some(unit)
    }

    fn read(files: &Files, name: &str) -> Option<Self> {
        let mut texts = vec![FOLDERS.iter().find_map(|folder| files.text(&format!("{folder}/{name}")).ok())?];
        // Of several drop-ins with one name that of the first folder counts.
        let mut drop_ins = BTreeMap::new();
        for folder in FOLDERS.iter().rev().map(|folder| format!("{folder}/{name}.d")) {
            let names = files.names(&folder).unwrap_or_default();
            drop_ins
                .extend(names.into_iter().filter(|name| name.ends_with(".conf")).map(|name| (name, folder.clone())));
        }
        texts.extend(drop_ins.iter().filter_map(|(name, folder)| files.text(&format!("{folder}/{name}")).ok()));
        Some(Self { settings: texts.iter().flat_map(|text| settings(text)).collect() })
    }

    /// The values of a key since it was reset by an empty one, which comes first.
    fn values(&self, key: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for (_, value) in self.settings.iter().filter(|(known, _)| known == key) {
            if value.is_empty() {
                values.clear();
            }
            values.push(value.as_str());
        }
        values
    }

    /// Whether the gateway starts with that capability, such as `CAP_NET_ADMIN`.
    pub(crate) fn grants(&self, capability: &str) -> bool {
        let user = self.values("User").last().copied().unwrap_or_default();
        let is_root = ["", "root", "0"].contains(&user);
        let may_have = has_capability(&self.values("CapabilityBoundingSet"), capability, true);
        may_have && (is_root || has_capability(&self.values("AmbientCapabilities"), capability, false))
    }
}

/// Whether a set of capabilities has one, by systemd.exec(5): lines are merged, `~` takes away, an empty line empties the set.
fn has_capability(lines: &[&str], capability: &str, by_default: bool) -> bool {
    let lists = |list: &str| list.split_whitespace().any(|name| name.eq_ignore_ascii_case(capability));
    let mut has = None;
    for line in lines {
        has = Some(match line.strip_prefix('~') {
            Some("") => true,
            Some(taken) => has.unwrap_or(true) && !lists(taken),
            None if line.is_empty() => false,
            None => has.unwrap_or(false) || lists(line),
        });
    }
    has.unwrap_or(by_default)
}

/// Keys and values of the section `[Service]`.
fn settings(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut is_service = false;
    let is_comment = |line: &&str| line.starts_with(['#', ';']);
    let text = text.lines().map(str::trim).filter(|line| !is_comment(line)).collect::<Vec<_>>().join("\n");
    // A line that ends with a backslash goes on.
    for line in text.replace("\\\n", " ").lines() {
        if line.starts_with('[') {
            is_service = line == "[Service]";
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_service) {
            found.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SHIPPED: &str = include_str!("../../../ops/systemd/mdgw.service");

    fn unit(text: &str) -> ServiceUnit {
        ServiceUnit { settings: settings(text) }
    }

    #[test]
    fn the_shipped_unit_grants_what_it_says() {
        let shipped = unit(SHIPPED);
        assert!(shipped.grants("CAP_NET_ADMIN") && shipped.grants("CAP_SYS_NICE") && !shipped.grants("CAP_BPF"));
    }

    #[test]
    fn capabilities_are_merged_reset_and_taken_away_as_systemd_does_it() {
        for (lines, expected) in [
            ("", true),
            ("User=root\n", true),
            ("User=root\nCapabilityBoundingSet=~CAP_NET_ADMIN\n", false),
            ("User=root\nCapabilityBoundingSet=CAP_SYS_NICE\n", false),
            ("User=root\nCapabilityBoundingSet=\nCapabilityBoundingSet=~\n", true),
            ("User=mdgw\n", false),
            ("User=mdgw\nAmbientCapabilities=CAP_SYS_NICE\nAmbientCapabilities=cap_net_admin\n", true),
            ("User=mdgw\nAmbientCapabilities=CAP_SYS_NICE \\\n  CAP_NET_ADMIN\n", true),
            ("User=mdgw\nAmbientCapabilities=CAP_NET_ADMIN\nAmbientCapabilities=\n", false),
            ("User=mdgw\nAmbientCapabilities=~CAP_SYS_NICE\n", true),
            ("User=mdgw\n# AmbientCapabilities=CAP_NET_ADMIN\n", false),
            ("User=mdgw\n[Unit]\nAmbientCapabilities=CAP_NET_ADMIN\n", false),
            ("User=mdgw\nAmbientCapabilities=CAP_NET_ADMIN\nCapabilityBoundingSet=CAP_SYS_NICE\n", false),
        ] {
            assert_eq!(unit(&format!("[Service]\n{lines}")).grants("CAP_NET_ADMIN"), expected, "{lines}");
        }
    }

    #[test]
    fn the_unit_of_another_configuration_says_nothing() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let files = Files::new(root.path());
        let grants = |config| ServiceUnit::of_gateway(&files, config).map(|unit| unit.grants("CAP_NET_ADMIN"));
        assert_eq!(grants(None), None);
        write("usr/lib/systemd/system/mdgw.service", SHIPPED);
        let ours = Some("/etc/mdgw/mdgw.toml");
        assert_eq!([grants(None), grants(ours), grants(Some("/etc/mdgw/other.toml"))], [Some(true), Some(true), None]);
        let drop_in =
            |folder: &str, text: &str| write(&format!("{folder}/systemd/system/mdgw.service.d/own.conf"), text);
        drop_in("usr/lib", "[Service]\nAmbientCapabilities=\n");
        assert_eq!(grants(ours), Some(false));
        drop_in("etc", "[Service]\nExecStart=\nExecStart=/usr/bin/mdgw run /etc/mdgw/other.toml\n");
        assert_eq!([grants(ours), grants(Some("/etc/mdgw/other.toml"))], [None, Some(true)]);
        // A unit that is masked.
        write("etc/systemd/system/mdgw.service", "");
        fs::remove_dir_all(root.path().join("etc/systemd/system/mdgw.service.d")).unwrap();
        assert_eq!([grants(None), grants(ours)], [None, None]);
    }
}
