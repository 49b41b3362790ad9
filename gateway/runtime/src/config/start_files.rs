//! Files that the gateway reads at its start only: keys, passwords and certificates. A reload cannot apply another content, so it
//! names the files whose content has changed, and those to which others than their owner have access: the next start refuses them.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use mdgw_keys::{KeyError, SecretFile, read_owner_only};

use super::{
    reload::Refused,
    resolved::{Backend, Resolved},
    settings::output_name,
};

/// What these files held at the start. Keeps hashes under a random key, and nothing of the content.
#[derive(Debug)]
pub struct StartFiles {
    hasher: RandomState,
    /// Files that could be read, with their hashes.
    files: BTreeMap<PathBuf, u64>,
}

impl StartFiles {
    /// Reads the files of a configuration, just before the gateway does.
    #[must_use]
    pub fn read(config: &Resolved) -> Self {
        let hasher = RandomState::new();
        let hashes =
            paths(config).into_iter().filter_map(|(_, path)| Some((path.to_owned(), hash(&hasher, path).ok()?)));
        let files = hashes.collect();
        Self { hasher, files }
    }

    /// The files of the configuration in force whose content is another one than at the start, each once. A file that was removed
    /// is left out: some hosts have a key there only while a process starts. [`Self::missing`] names it.
    #[must_use]
    pub fn changed(&self, config: &Resolved) -> Vec<Refused> {
        let mut named = BTreeMap::new();
        for (key, path) in paths(config) {
            named.entry(path).or_insert(key);
        }
        let refused = self.files.iter().filter_map(|(path, before)| {
            let reason = match hash(&self.hasher, path) {
                Ok(now) if now == *before => return None,
                Ok(_) => format!(
                    "the content of {} has changed and needs a restart, since it is read at the start only; the former content remains in effect",
                    path.display()
                ),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                Err(error) => format!(
                    "{} can no longer be read ({error}), which the next start needs; the former content remains in effect",
                    path.display()
                ),
            };
            Some(Refused::table(named.remove(path.as_path())?, reason))
        });
        refused.collect()
    }

    /// The files of the configuration in force that are no longer there, each once, as warnings.
    #[must_use]
    pub fn missing(&self, config: &Resolved) -> Vec<String> {
        let mut named = BTreeMap::new();
        for (key, path) in paths(config) {
            named.entry(path).or_insert(key);
        }
        let is_missing = |path: &Path| {
            self.files.contains_key(path) && path.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let missing = named.into_iter().filter(|(path, _)| is_missing(path));
        let warning = |(path, key): (&Path, String)| {
            let path = path.display();
            format!(
                "{key}: {path} is no longer there, and the next start needs it; the former content remains in effect"
            )
        };
        missing.map(warning).collect()
    }

    /// The secret files of a configuration to which others than their owner have access, each once. The next start, and `mdgw check`,
    /// refuse them.
    #[must_use]
    pub fn exposed(config: &Resolved) -> Vec<Refused> {
        let mut named = BTreeMap::new();
        for (key, path) in paths(config).into_iter().chain(private_key(config)) {
            named.entry(path).or_insert(key);
        }
        let refused = named.into_iter().filter_map(|(path, key)| {
            let kind = match () {
                () if key.ends_with("password_file") => SecretFile::Password,
                () if key.starts_with("election.etcd.") => SecretFile::PrivateKey,
                () => SecretFile::Key,
            };
            match read_owner_only(kind, path, FILE_BYTES_MAX) {
                Err(error @ KeyError::TooPermissive { .. }) => {
                    Some(Refused::table(key, format!("{error}: the next start would be refused")))
                }
                _ => None,
            }
        });
        refused.collect()
    }
}

/// The key of our certificate at etcd. It may be renewed with the certificate.
fn private_key(config: &Resolved) -> Option<(String, &Path)> {
    let Backend::Etcd(etcd) = &config.election.as_ref()?.backend else { return None };
    let (_, key) = etcd.tls.as_ref()?.identity.as_ref()?;
    Some(("election.etcd.key_file".to_owned(), key))
}

/// Each file with the key that names it. Certificates are left out: they are renewed while a gateway runs, which must not keep it from
/// a reload.
fn paths(config: &Resolved) -> Vec<(String, &Path)> {
    let mut paths: Vec<(String, &Path)> = Vec::new();
    for output in &config.outputs {
        let key = format!("output.{}.tag_key_files", output_name(output));
        paths.extend(output.tag_key_files.iter().map(|path| (key.clone(), path.as_path())));
    }
    let Some(election) = &config.election else { return paths };
    let mut named: Vec<(&str, &Path)> = Vec::new();
    if let Some(link) = &election.link {
        named.push(("link.key_file", &link.key_file));
    }
    match &election.backend {
        Backend::File(_) => {}
        Backend::Quorum(quorum) => named.push(("quorum.key_file", &quorum.key_file)),
        Backend::Emergent(membership) => named.push(("emergent.key_file", &membership.key_file)),
        Backend::Etcd(etcd) => {
            if let Some(login) = &etcd.access.login {
                named.push(("etcd.password_file", &login.password_file));
            }
        }
        Backend::ZooKeeper(zookeeper) => {
            if let Some(login) = &zookeeper.access.login {
                named.push(("zookeeper.password_file", &login.password_file));
            }
        }
    }
    paths.extend(named.into_iter().map(|(key, path)| (format!("election.{key}"), path)));
    paths
}

fn hash(hasher: &RandomState, path: &Path) -> io::Result<u64> {
    let mut content = Vec::new();
    mdgw_keys::open_regular(path)?.take(FILE_BYTES_MAX).read_to_end(&mut content)?;
    Ok(hasher.hash_one(content))
}

/// Far more than any of these files has.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn texts(refused: &[Refused]) -> Vec<String> {
        refused.iter().map(ToString::to_string).collect()
    }

    fn resolved(text: &str) -> Resolved {
        Resolved::from_text(Path::new("gateway.toml"), text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The shipped configuration, with its files in that folder.
    fn quorum_config(folder: &Path) -> Resolved {
        resolved(&include_str!("../../../../ops/config/quorum.toml").replace("/etc/mdgw", folder.to_str().unwrap()))
    }

    #[test]
    fn a_key_file_whose_content_changed_since_the_start_is_named_once_with_the_need_of_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = quorum_config(folder.path());
        config.outputs[0].tag_key_files = vec![at("tag"), at("tag-old")];
        for name in ["key", "tag", "tag-old"] {
            fs::write(at(name), name).unwrap();
        }
        let start = StartFiles::read(&config);
        assert_eq!(texts(&start.changed(&config)), [""; 0]);

        fs::write(at("key"), "another").unwrap();
        fs::write(at("tag-old"), "tag").unwrap();
        let needs_restart = |key: &str, name: &str| {
            format!(
                "{key}: the content of {} has changed and needs a restart, since it is read at the start only; the former content remains in effect",
                at(name).display()
            )
        };
        // The link and the votes share the key.
        assert_eq!(
            texts(&start.changed(&config)),
            [needs_restart("election.link.key_file", "key"), needs_restart("output.1.tag_key_files", "tag-old")]
        );

        // Removed since, the former content again, and something that cannot be read.
        fs::remove_file(at("key")).unwrap();
        fs::write(at("tag-old"), "tag-old").unwrap();
        assert_eq!(texts(&start.changed(&config)), [""; 0]);
        let missing = format!(
            "election.link.key_file: {} is no longer there, and the next start needs it; the former content remains in effect",
            at("key").display()
        );
        assert_eq!(start.missing(&config), [missing]);
        fs::create_dir(at("key")).unwrap();
        assert_eq!(start.missing(&config), [""; 0]);
        let unreadable = texts(&start.changed(&config));
        assert!(unreadable.len() == 1 && unreadable[0].contains("can no longer be read"), "{unreadable:?}");
    }

    /// Content is not read for it, so it may be anything.
    #[test]
    fn a_secret_file_to_which_others_have_access_is_named_as_the_next_start_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = quorum_config(folder.path());
        config.outputs[0].tag_key_files = vec![at("tag"), at("missing")];
        let set = |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        for name in ["key", "tag"] {
            fs::write(at(name), name).unwrap();
            set(name, 0o600);
        }
        assert_eq!(texts(&StartFiles::exposed(&config)), [""; 0]);
        set("tag", 0o400);
        set("key", 0o644);
        let path = at("key").display().to_string();
        let expected = format!(
            "election.link.key_file: key file {path}: mode 644 allows access by group or others: chmod 600 {path}: the next start would be refused"
        );
        assert_eq!(texts(&StartFiles::exposed(&config)), [expected], "once for the link and the votes");
        set("tag", 0o440);
        assert_eq!(StartFiles::exposed(&config).len(), 2);
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn the_secret_files_of_a_store_are_named_too() {
        let folder = tempfile::tempdir().unwrap();
        let [password, key] = ["password", "key"].map(|name| folder.path().join(name));
        for path in [&password, &key] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let etcd = format!(
            "[election]\nbackend = \"etcd\"\nname = \"gw1\"\n[election.etcd]\nendpoints = [\"a:1\"]\nuser = \"u\"\npassword_file = \"{}\"\n\
             ca_file = \"/ca\"\ncertificate_file = \"/certificate\"\nkey_file = \"{}\"\n",
            password.display(),
            key.display()
        );
        let config = resolved(&format!("{}\n{etcd}", include_str!("../../../../ops/config/loopback.toml")));
        let [private_key, password] = &*texts(&StartFiles::exposed(&config)) else { panic!("two files") };
        assert!(private_key.starts_with("election.etcd.key_file: private key "), "{private_key}");
        assert!(password.starts_with("election.etcd.password_file: password file "), "{password}");
    }

    #[cfg(all(feature = "etcd", feature = "zookeeper"))]
    #[test]
    fn the_password_file_of_a_store_is_read_at_the_start_and_certificates_may_be_renewed() {
        let etcd = "[election]\nbackend = \"etcd\"\nname = \"gw1\"\n[election.etcd]\nendpoints = [\"a:1\"]\nuser = \"u\"\npassword_file = \"/p\"\n\
                    ca_file = \"/ca\"\ncertificate_file = \"/certificate\"\nkey_file = \"/key\"\n";
        let zookeeper = "[election]\nbackend = \"zookeeper\"\nname = \"gw1\"\n[election.zookeeper]\nendpoints = [\"a:1\"]\npath = \"/m\"\nuser = \"u\"\n\
                         password_file = \"/p\"\n";
        let shipped = include_str!("../../../../ops/config/loopback.toml");
        for (election, expected) in [(etcd, &["/p"][..]), (zookeeper, &["/p"]), ("", &[])] {
            let text = format!("{shipped}\n{election}");
            let config = resolved(&text);
            let named = paths(&config);
            assert_eq!(named.iter().map(|(_, path)| path.to_str().unwrap()).collect::<Vec<_>>(), expected);
            let settings = config.settings();
            for (key, _) in named {
                assert!(settings.iter().any(|(setting, _)| *setting == key), "no setting {key}");
            }
        }
    }
}
