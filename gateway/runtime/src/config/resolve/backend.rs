//! The election's backend and how to reach it: `election.backend` and the tables of the stores.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use mdgw_election::{
    access::{EtcdConfig, EtcdTls, Login, StoreAccess, ZooKeeperConfig, ZooKeeperMode},
    emergent::{BootstrapMode, EmergentConfigError},
    identity::NodeId,
    timing::LeaseTiming,
};
use toml::Spanned;

use super::{Resolver, UNREADABLE_ADDRESS, text};
use crate::config::{
    file::{self, FileValue},
    limits,
    resolved::{Backend, MembershipConfig, PeerConfig, QuorumConfig},
};

/// Keys that the tables of all stores have.
struct StoreKeys<'a> {
    table: Range<usize>,
    endpoints: &'a Option<Spanned<Vec<Spanned<String>>>>,
    request_timeout_ms: &'a FileValue<i64>,
    user: &'a FileValue<String>,
    password_file: &'a FileValue<String>,
}

impl Resolver<'_> {
    /// The backend; `None` if it is invalid.
    pub(super) fn backend(&mut self, written: &Spanned<file::Election>) -> Option<Backend> {
        let (election, table) = (written.get_ref(), written.span());
        let name = self.required_text(&election.backend, &table, "backend")?;
        let kind = self.one_of(Some(name), &BACKENDS)?;
        self.check_backend_table(kind, Kind::File, election.file.as_ref().map(Spanned::span));
        self.check_backend_table(kind, Kind::Etcd, election.etcd.as_ref().map(Spanned::span));
        self.check_backend_table(kind, Kind::ZooKeeper, election.zookeeper.as_ref().map(Spanned::span));
        self.check_backend_table(kind, Kind::Quorum, election.quorum.as_ref().map(Spanned::span));
        self.check_backend_table(kind, Kind::Emergent, election.emergent.as_ref().map(Spanned::span));
        if !kind.is_built_in() {
            let kind = kind.name();
            self.add_problem(
                &name.span(),
                format!("{kind:?}: not included in this build; rebuild with `--features {kind}`"),
            );
        }
        Some(match kind {
            Kind::File => {
                let directory = election.file.as_ref().and_then(|store| text(&store.get_ref().directory));
                Backend::File(directory.unwrap_or(DIRECTORY).into())
            }
            Kind::Quorum => Backend::Quorum(self.quorum(election.quorum.as_ref(), &table)?),
            Kind::Emergent => Backend::Emergent(self.emergent(election.emergent.as_ref(), &table)?),
            Kind::Etcd => Backend::Etcd(self.etcd(election.etcd.as_ref(), &table)?),
            Kind::ZooKeeper => Backend::ZooKeeper(self.zookeeper(election.zookeeper.as_ref(), &table)?),
        })
    }

    fn quorum(&mut self, written: Option<&Spanned<file::Quorum>>, election: &Range<usize>) -> Option<QuorumConfig> {
        let Some(written) = written else {
            self.add_problem(election, "`[election.quorum]` is missing");
            return None;
        };
        let (quorum, table) = (written.get_ref(), written.span());
        let listen = self.listen_address(&quorum.listen, &table, "election.quorum");
        let mut voters = BTreeMap::new();
        for voter in &quorum.voter {
            let (voter, span) = (voter.get_ref(), voter.span());
            let node = NodeId(self.required_number(&voter.node, limits::NODE, &span, "node"));
            let address = self.address(&voter.address, &span, "address");
            if voters.values().any(|known| *known == address) || voters.insert(node, address).is_some() {
                self.add_problem(
                    &span,
                    format!("node {node} at {address}: duplicate number or address among the voters"),
                );
            }
            if address == listen && address != UNREADABLE_ADDRESS {
                self.add_problem(&span, format!("node {node} at {address}: is this gateway's own `listen`"));
            }
        }
        // The gateway's own vote makes their number odd: an even number could split into two equal halves.
        if voters.is_empty() || !voters.len().is_multiple_of(2) || voters.len() > VOTERS_MAX {
            let count = voters.len() + 1;
            self.add_problem(
                &table,
                format!("{count} voters with this gateway: must be 3, 5, 7 or 9, one [[election.quorum.voter]] for each other"),
            );
        }
        let key_file = self.required(&quorum.key_file, &table, "key_file")?;
        let vote_directory = self.required(&quorum.vote_directory, &table, "vote_directory")?;
        Some(QuorumConfig { listen, key_file: key_file.into(), vote_directory: vote_directory.into(), voters })
    }

    fn emergent(
        &mut self,
        written: Option<&Spanned<file::Emergent>>,
        election: &Range<usize>,
    ) -> Option<MembershipConfig> {
        let Some(written) = written else {
            self.add_problem(election, "`[election.emergent]` is missing");
            return None;
        };
        let (emergent, table) = (written.get_ref(), written.span());
        if !emergent.allow_split.as_ref().is_some_and(|allowed| *allowed.get_ref()) {
            let span = emergent.allow_split.as_ref().map_or_else(|| table.clone(), Spanned::span);
            self.add_problem(&span, EmergentConfigError::SplitNotAllowed.to_string());
        }
        let listen = self.listen_address(&emergent.listen, &table, "election.emergent");
        if let Some(written) = &emergent.listen
            && listen.ip().is_unspecified()
        {
            self.add_problem(
                &written.span(),
                format!(
                    "{listen}: this address is advertised to the other members, so it must be an address of this host"
                ),
            );
        }
        let seeds: Vec<_> = emergent.seeds.iter().flat_map(|list| list.get_ref()).collect();
        let seeds: Vec<_> = seeds.into_iter().map(|seed| self.address(&Some(seed.clone()), &table, "seeds")).collect();
        let bootstraps = emergent.bootstrap.as_ref().is_some_and(|bootstrap| *bootstrap.get_ref());
        if !bootstraps && seeds.iter().all(|seed| *seed == listen) {
            self.add_problem(
                &table,
                "a gateway without `bootstrap = true` needs `seeds` with the address of at least one other gateway",
            );
        }
        self.required(&emergent.minimum_size, &table, "minimum_size");
        let minimum_size = self.number(&emergent.minimum_size, limits::MINIMUM_SIZE);
        let key_file = self.required(&emergent.key_file, &table, "key_file")?;
        Some(MembershipConfig {
            listen,
            key_file: key_file.into(),
            seeds,
            bootstrap: if bootstraps { BootstrapMode::Bootstrap } else { BootstrapMode::JoinOnly },
            minimum_size,
            join_attempts: self.number(&emergent.join_attempts, limits::JOIN_ATTEMPTS),
        })
    }

    /// Refuses a minimum size above the number of gateways, which could never be reached.
    pub(super) fn check_minimum_size(
        &mut self,
        written: &Spanned<file::Election>,
        backend: Option<&Backend>,
        peers: &[PeerConfig],
    ) {
        let Some(Backend::Emergent(MembershipConfig { minimum_size, .. })) = backend else { return };
        let gateways = peers.len() + 1;
        if *minimum_size > gateways {
            let emergent = written.get_ref().emergent.as_ref();
            let span = emergent.and_then(|table| table.get_ref().minimum_size.as_ref()).map(Spanned::span);
            let message =
                format!("{minimum_size}: exceeds the number of gateways ({gateways}): no gateway could ever lead");
            self.add_problem(&span.unwrap_or_else(|| written.span()), message);
        }
    }

    /// Checks that each gateway of the election is a voter, and that this gateway is not listed as another voter.
    pub(super) fn check_voters(
        &mut self,
        written: &Spanned<file::Election>,
        backend: Option<&Backend>,
        peers: &[PeerConfig],
        own: NodeId,
    ) {
        let Some(Backend::Quorum(quorum)) = backend else { return };
        if quorum.voters.contains_key(&own) {
            self.add_problem(
                &written.span(),
                format!("[[election.quorum.voter]] node {own} is this gateway; name the others"),
            );
        }
        for peer in peers.iter().filter(|peer| !quorum.voters.contains_key(&peer.node)) {
            let node = peer.node;
            self.add_problem(
                &written.span(),
                format!("[[election.peer]] node {node} has no [[election.quorum.voter]]: each gateway votes"),
            );
        }
    }

    /// Refuses a session so short that a gateway with these times would never be eligible.
    pub(super) fn check_session_timeout(
        &mut self,
        written: &Spanned<file::Election>,
        backend: Option<&Backend>,
        timing: &LeaseTiming,
    ) {
        let Some(session_ns) = backend.and_then(Backend::session_ns) else { return };
        if let Err(error) = timing.check_session(session_ns) {
            let table = written.get_ref().zookeeper.as_ref();
            let span =
                table.map(|table| table.get_ref().session_ms.as_ref().map_or_else(|| table.span(), Spanned::span));
            self.add_problem(&span.unwrap_or_else(|| written.span()), error.to_string());
        }
    }

    fn etcd(&mut self, written: Option<&Spanned<file::Etcd>>, election: &Range<usize>) -> Option<EtcdConfig> {
        let Some(written) = written else {
            self.add_problem(election, "`[election.etcd]` is missing");
            return None;
        };
        let (etcd, table) = (written.get_ref(), written.span());
        let prefix = text(&etcd.prefix).unwrap_or("/mdgw/");
        let access = self.store(&StoreKeys {
            table: table.clone(),
            endpoints: &etcd.endpoints,
            request_timeout_ms: &etcd.request_timeout_ms,
            user: &etcd.user,
            password_file: &etcd.password_file,
        });
        self.check_both_set("certificate_file", &etcd.certificate_file, "key_file", &etcd.key_file);
        let identity = text(&etcd.certificate_file).zip(text(&etcd.key_file));
        let tls = text(&etcd.ca_file).map(|ca_file| EtcdTls {
            ca_file: ca_file.into(),
            identity: identity.map(|(certificate, key)| (certificate.into(), key.into())),
        });
        if let (None, Some(certificate)) = (&tls, &etcd.certificate_file) {
            self.add_problem(&certificate.span(), "a client certificate needs `ca_file`");
        }
        if access.login.is_some() && tls.is_none() {
            self.warnings.push("the etcd password is sent unencrypted: `ca_file` is not set".to_owned());
        }
        Some(EtcdConfig { access, prefix: prefix.to_owned(), tls })
    }

    fn zookeeper(
        &mut self,
        written: Option<&Spanned<file::ZooKeeper>>,
        election: &Range<usize>,
    ) -> Option<ZooKeeperConfig> {
        let Some(written) = written else {
            self.add_problem(election, "`[election.zookeeper]` is missing");
            return None;
        };
        let (zookeeper, table) = (written.get_ref(), written.span());
        let access = self.store(&StoreKeys {
            table,
            endpoints: &zookeeper.endpoints,
            request_timeout_ms: &zookeeper.request_timeout_ms,
            user: &zookeeper.user,
            password_file: &zookeeper.password_file,
        });
        if access.login.is_some() {
            self.warnings.push(
                "the ZooKeeper password is sent unencrypted, since there is no TLS: let only the gateways' network reach the ensemble"
                    .to_owned(),
            );
        }
        let path = text(&zookeeper.path).unwrap_or("/mdgw");
        let is_path = path.starts_with('/')
            && path
                .split('/')
                .skip(1)
                .all(|part| !part.is_empty() && part.chars().all(is_plain) && !part.starts_with('.'));
        if let Some(written) = &zookeeper.path
            && !is_path
        {
            self.add_problem(
                &written.span(),
                format!("{path:?}: expected a path such as \"/mdgw\" of letters, digits, -, _ and ."),
            );
        }
        let modes = [(false, "lease"), (true, "latch")];
        let is_latch = self.one_of(zookeeper.mode.as_ref(), &modes).unwrap_or(false);
        let session_ms = self.number(&zookeeper.session_ms, limits::STORE_SESSION_MS);
        if let Some(written) = &zookeeper.session_ms
            && !is_latch
        {
            self.add_problem(&written.span(), "only for `mode = \"latch\"`: a lease has no session");
        }
        let latch = ZooKeeperMode::Latch { session: Duration::from_millis(session_ms) };
        let mode = if is_latch { latch } else { ZooKeeperMode::Lease };
        Some(ZooKeeperConfig { access, path: path.to_owned(), mode })
    }

    fn store(&mut self, keys: &StoreKeys<'_>) -> StoreAccess {
        self.required(keys.endpoints, &keys.table, "endpoints");
        let written = keys.endpoints.as_ref();
        let endpoints: &[Spanned<String>] = written.map_or(&[], |list| list.get_ref());
        if let Some(list) = written
            && !(1..=limits::STORE_NODES_MAX).contains(&endpoints.len())
        {
            self.add_problem(
                &list.span(),
                format!("{} nodes: must be 1 to {}", endpoints.len(), limits::STORE_NODES_MAX),
            );
        }
        for (index, endpoint) in endpoints.iter().enumerate() {
            let name = endpoint.get_ref();
            if !is_endpoint(name) {
                self.add_problem(
                    &endpoint.span(),
                    format!("{name:?}: expected host and port, such as \"10.0.0.1:2379\""),
                );
            } else if endpoints[..index].iter().any(|other| other.get_ref() == name) {
                self.add_problem(&endpoint.span(), format!("{name:?}: duplicate"));
            }
        }
        self.check_both_set("user", keys.user, "password_file", keys.password_file);
        let login = text(keys.user).zip(text(keys.password_file));
        let request_timeout_ms = self.number(keys.request_timeout_ms, limits::STORE_REQUEST_TIMEOUT_MS);
        StoreAccess {
            endpoints: endpoints.iter().map(|endpoint| endpoint.get_ref().clone()).collect(),
            request_timeout: Duration::from_millis(request_timeout_ms),
            login: login.map(|(user, file)| Login { user: user.to_owned(), password_file: file.into() }),
        }
    }

    /// Refuses a table for another backend than the configured one.
    fn check_backend_table(&mut self, used: Kind, owner: Kind, table: Option<Range<usize>>) {
        if let Some(table) = table
            && used != owner
        {
            let (owner, used) = (owner.name(), used.name());
            self.add_problem(&table, format!("only for `backend = {owner:?}`; this configuration has {used:?}"));
        }
    }

    /// Refuses one of the two keys without the other.
    pub(super) fn check_both_set(
        &mut self,
        name: &str,
        written: &FileValue<String>,
        other_name: &str,
        other: &FileValue<String>,
    ) {
        for (there, missing) in [
            (written.as_ref().filter(|_| other.is_none()), other_name),
            (other.as_ref().filter(|_| written.is_none()), name),
        ] {
            if let Some(there) = there {
                self.add_problem(&there.span(), format!("`{missing}` is missing: both belong together"));
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Etcd,
    ZooKeeper,
    Quorum,
    Emergent,
}

const BACKENDS: [(Kind, &str); 5] = [
    (Kind::File, "file"),
    (Kind::Etcd, "etcd"),
    (Kind::ZooKeeper, "zookeeper"),
    (Kind::Quorum, "quorum"),
    (Kind::Emergent, "emergent"),
];

/// Most voters besides this gateway. More voters make a vote slower and no safer.
const VOTERS_MAX: usize = 8;

/// Default directory of the backend `file`. It is in memory: its content is lost when the host stops.
const DIRECTORY: &str = "/dev/shm/mdgw-election";

impl Kind {
    /// Name of the backend in the configuration, and of the cargo feature that builds it in.
    fn name(self) -> &'static str {
        BACKENDS.iter().find(|(kind, _)| *kind == self).map_or("unnamed", |(_, name)| name)
    }

    fn is_built_in(self) -> bool {
        match self {
            Self::File | Self::Quorum | Self::Emergent => true,
            Self::Etcd => cfg!(feature = "etcd"),
            Self::ZooKeeper => cfg!(feature = "zookeeper"),
        }
    }
}

pub(super) fn is_endpoint(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && host.chars().all(|c| is_plain(c) || "[]:".contains(c))
            && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}
