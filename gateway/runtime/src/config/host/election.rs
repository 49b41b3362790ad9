//! What an election and the pair links need of this host: readable keys and passwords, local addresses, directories, a
//! listening sentinel.

use std::{
    net::{SocketAddrV4, UdpSocket},
    path::Path,
};

use mdgw_election::{
    access::{EtcdTls, Login},
    auth::SharedKey,
};
use mdgw_sys::clock_rate::check_readable;

use super::Refusals;
use crate::config::resolved::{Backend, ElectionConfig, SentinelChoice};

/// Faults that would prevent the start, except for [`directory`].
pub(super) fn refusals(election: &ElectionConfig, found: &mut Refusals) {
    for error in election.key_files().into_iter().filter_map(|path| SharedKey::load(path).err()) {
        found.refused(&error, error.to_string());
    }
    if let Err(error) = check_readable() {
        let text = format!(
            "the kernel does not report how it corrects the clock, so this gateway could not lead: adjtimex: {error}"
        );
        found.refused(&error, text);
    }
    let (login, tls) = store_access(&election.backend);
    let of_login = login.and_then(|login| login.password().err());
    for error in of_login.into_iter().chain(tls.into_iter().flat_map(EtcdTls::check_files)) {
        found.refused(&error, error.to_string());
    }
    for (owner, listen) in addresses(election) {
        // Any port: a running gateway may use the configured one.
        if let Err(error) = UdpSocket::bind(SocketAddrV4::new(*listen.ip(), 0)) {
            found.refused(&error, format!("election.{owner} cannot listen on {listen}: {error}"));
        }
    }
}

/// Whether the sentinel or the kernel fence is configured: each has one slot per group, so the number of groups is
/// limited.
pub(super) fn has_group_slots(election: &ElectionConfig) -> bool {
    let has_sentinel = election.link.as_ref().is_some_and(|link| link.sentinel != SentinelChoice::None);
    has_sentinel || election.kernel_fence
}

/// The fault text if the service manager must create the sentinel's socket, and the socket does not exist yet.
pub(super) fn missing_sentinel(election: &ElectionConfig) -> Option<String> {
    let SentinelChoice::Service(socket) = &election.link.as_ref()?.sentinel else { return None };
    let is_missing = socket.try_exists().is_ok_and(|there| !there);
    is_missing.then(|| {
        format!(
            "no sentinel listens on {} (mdgw-sentinel.service): the gateway will not start without it",
            socket.display()
        )
    })
}

/// Directory that the backend writes to, preceded by what it holds.
pub(super) fn directory(backend: &Backend) -> Option<(&'static str, &Path)> {
    match backend {
        Backend::File(directory) => Some(("election's records", directory.as_path())),
        Backend::Quorum(quorum) => Some(("votes", quorum.vote_directory.as_path())),
        Backend::Etcd(_) | Backend::ZooKeeper(_) | Backend::Emergent(_) => None,
    }
}

fn store_access(backend: &Backend) -> (Option<&Login>, Option<&EtcdTls>) {
    match backend {
        Backend::Etcd(etcd) => (etcd.access.login.as_ref(), etcd.tls.as_ref()),
        Backend::ZooKeeper(zookeeper) => (zookeeper.access.login.as_ref(), None),
        Backend::File(_) | Backend::Quorum(_) | Backend::Emergent(_) => (None, None),
    }
}

/// Where the pair link and the backend listen, with their tables below `election`.
pub(super) fn addresses(election: &ElectionConfig) -> impl Iterator<Item = (&'static str, SocketAddrV4)> {
    let of_backend = match &election.backend {
        Backend::Quorum(quorum) => Some(("quorum", quorum.listen)),
        Backend::Emergent(membership) => Some(("emergent", membership.listen)),
        Backend::File(_) | Backend::Etcd(_) | Backend::ZooKeeper(_) => None,
    };
    election.link.iter().map(|link| ("link", link.listen)).chain(of_backend)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use mdgw_election::access::{EtcdConfig, StoreAccess};

    use super::*;
    use crate::config::{Resolved, host::Host, tag_keys::tests::write_key};

    /// The shipped configuration for `quorum`, with a link, its files in `folder` and its own address `address`.
    fn voting(folder: &Path, address: &str) -> Resolved {
        let folder = folder.display().to_string();
        let text = include_str!("../../../../../ops/config/quorum.toml")
            .replace("10.20.0.7", address)
            .replace("/etc/mdgw", &folder)
            .replace("/var/lib/mdgw", &folder);
        Resolved::from_text(Path::new("quorum.toml"), &text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn election(config: &Resolved) -> &ElectionConfig {
        config.election.as_ref().unwrap()
    }

    fn refusals(election: &ElectionConfig) -> Vec<String> {
        let mut found = Refusals::of_attempts();
        super::refusals(election, &mut found);
        found.faults
    }

    #[test]
    fn a_pair_needs_a_key_and_addresses_of_this_host() {
        let folder = tempfile::tempdir().unwrap();
        let here = voting(folder.path(), "127.0.0.1");
        let key = folder.path().join("key");
        let missing = refusals(election(&here));
        assert!(missing.len() == 1 && missing[0].contains("openssl rand -hex 32"), "once for both: {missing:?}");
        write_key(&key, "0a");
        assert!(refusals(election(&here))[0].contains("2 characters found"));
        write_key(&key, &"0a".repeat(32));
        assert_eq!(refusals(election(&here)), Vec::<String>::new());
        // 192.0.2.0/24 is for documentation: no host has it.
        let elsewhere = refusals(election(&voting(folder.path(), "192.0.2.7")));
        let begins =
            ["election.link cannot listen on 192.0.2.7:31200", "election.quorum cannot listen on 192.0.2.7:27500"];
        assert!(elsewhere.iter().zip(begins).all(|(faults, begin)| faults.starts_with(begin)), "{elsewhere:?}");
        assert_eq!(elsewhere.len(), 2);
    }

    #[test]
    fn an_unwritable_vote_directory_is_a_fault() {
        let faults = Host::this(&voting(Path::new("/proc"), "127.0.0.1")).refused;
        assert!(faults.iter().any(|fault| fault.starts_with("directory /proc/votes of the votes")), "{faults:?}");
    }

    #[test]
    fn a_sentinel_that_is_not_there_yet_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = voting(folder.path(), "127.0.0.1");
        let socket = folder.path().join("socket");
        if let Some(link) = config.election.as_mut().and_then(|election| election.link.as_mut()) {
            link.sentinel = SentinelChoice::Service(socket.clone());
        }
        let warning = missing_sentinel(election(&config)).unwrap();
        assert!(warning.contains("no sentinel listens on") && warning.contains("socket"), "{warning}");
        let host = Host { not_yet_present: vec![warning.clone()], ..Host::default() };
        assert!(host.findings(&config).warnings.contains(&warning));
        fs::write(&socket, "").unwrap();
        assert_eq!(missing_sentinel(election(&config)), None);
    }

    #[test]
    fn every_credential_file_of_a_store_must_be_readable() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = voting(folder.path(), "127.0.0.1");
        write_key(&at("key"), &"0a".repeat(32));
        let access = StoreAccess {
            endpoints: vec!["etcd:2379".to_owned()],
            request_timeout: std::time::Duration::from_secs(1),
            login: Some(Login { user: "mdgw".to_owned(), password_file: at("password") }),
        };
        let tls = EtcdTls { ca_file: at("ca"), identity: Some((at("certificate"), at("certificate_key"))) };
        if let Some(election) = &mut config.election {
            election.backend = Backend::Etcd(EtcdConfig { access, prefix: "/".to_owned(), tls: Some(tls) });
        }
        let faults = refusals(election(&config));
        assert_eq!(faults.len(), 4, "{faults:?}");
        for (faults, name) in faults.iter().zip(["password", "ca", "certificate", "certificate_key"]) {
            assert!(faults.contains(&at(name).display().to_string()), "{faults}");
            write_key(&at(name), "");
        }
        assert_eq!(refusals(election(&config)), Vec::<String>::new());
        for name in ["password", "ca", "certificate", "certificate_key"] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let faults = refusals(election(&config));
        assert_eq!(faults.len(), 2, "certificates are no secrets: {faults:?}");
        for (fault, name) in faults.iter().zip(["password", "certificate_key"]) {
            assert!(fault.contains(&at(name).display().to_string()) && fault.contains("chmod 600"), "{fault}");
        }
    }
}
