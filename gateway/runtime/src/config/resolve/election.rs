//! `[election]` and its tables

use mdgw_election::{
    identity::{NodeId, NodeName},
    lease::OnSuspended,
    timing::LeaseTiming,
};
use mdgw_pair::pair_link::PeerEndpoint;
use toml::Spanned;

use super::{NS_PER_MS, NS_PER_US, Resolver};
use crate::config::{
    file,
    limits::{self, Bound},
    resolved::{
        Backend, ElectionConfig, GatewayConfig, LinkConfig, ON_SUSPENDED, PeerConfig, PoolConfig, SentinelChoice,
        Threads,
    },
};

impl Resolver<'_> {
    pub(super) fn election(
        &mut self,
        written: &Spanned<file::Election>,
        gateway: &GatewayConfig,
        pools: &[PoolConfig],
    ) -> Option<ElectionConfig> {
        let (election, table) = (written.get_ref(), written.span());
        let backend = self.backend(written);
        let name = self.node_name(&election.name, &table);
        let peers = self.peers(&election.peer, (NodeId(gateway.node), &name));
        self.check_voters(written, backend.as_ref(), &peers, NodeId(gateway.node));
        self.check_minimum_size(written, backend.as_ref(), &peers);
        let preferred =
            election.preferred_leader.as_ref().map(|_| NodeId(self.number(&election.preferred_leader, limits::NODE)));
        if let (Some(node), Some(span)) = (preferred, &election.preferred_leader)
            && node.0 != gateway.node
            && !peers.iter().any(|peer| peer.node == node)
        {
            self.add_problem(
                &span.span(),
                format!("{node}: not the number of this gateway or of an [[election.peer]]"),
            );
        }
        if peers.is_empty() {
            self.warnings.push("election without [[election.peer]]: no gateway can take over".to_owned());
        } else {
            self.warn_of_missing_pair_settings(election, gateway);
        }
        let listener_timeout_ms: u64 = self.number(&election.listener_timeout_ms, limits::LISTENER_TIMEOUT_MS);
        let link = match &election.link {
            Some(written) => self.link(written, &election.peer, listener_timeout_ms),
            None => {
                for linked in election.peer.iter().filter_map(|peer| peer.get_ref().link.as_ref()) {
                    self.add_problem(&linked.span(), "`[election.link]` is missing: this gateway's own end");
                }
                None
            }
        };
        let spread = self.spread(election, backend.as_ref());
        let on_suspended = self.on_suspended(election, backend.as_ref());
        self.check_moves(election, backend.as_ref());
        let tenure_ms_min: u64 = self.number(&election.tenure_ms_min, limits::TENURE_MS_MIN);
        let priority: u8 = self.number(&election.priority, limits::PRIORITY);
        let timing = self.timing(written);
        self.check_session_timeout(written, backend.as_ref(), &timing);
        let listener_timeout_ns = listener_timeout_ms * NS_PER_MS;
        // If the listeners used up the lease before its fence opens, every renewal would be too late.
        let usable_ns = timing.lease_ns.saturating_sub(timing.margin_ns);
        if 2 * listener_timeout_ns > usable_ns {
            let span = election.listener_timeout_ms.as_ref().map_or_else(|| table.clone(), Spanned::span);
            self.add_problem(
                &span,
                format!(
                    "{} ms: must be at most half of lease - margin = {} ms / 2",
                    listener_timeout_ns / NS_PER_MS,
                    usable_ns / NS_PER_MS
                ),
            );
        }
        Some(ElectionConfig {
            backend: backend?,
            name,
            peers,
            link,
            timing,
            on_suspended,
            revision: self.number(&election.revision, limits::REVISION),
            preferred,
            spread,
            tenure_ns: tenure_ms_min * NS_PER_MS,
            core: self.election_core(election, pools),
            priority: (priority > 0).then_some(priority),
            listener_timeout_ns,
            kernel_fence: election.kernel_fence.as_ref().is_some_and(|wanted| *wanted.get_ref()),
        })
    }

    /// The value of `spread`. Its default is true with more than two gateways, unless a preferred leader is configured.
    fn spread(&mut self, election: &file::Election, backend: Option<&Backend>) -> bool {
        let has_preferred = election.preferred_leader.is_some();
        let Some(written) = &election.spread else {
            let default = |backend| ElectionConfig::default_spread(backend, election.peer.len(), has_preferred);
            return backend.is_some_and(default);
        };
        let can_be = backend.is_none_or(Backend::can_move_groups);
        let is_wanted = *written.get_ref();
        if is_wanted && !can_be {
            self.add_problem(&written.span(), NO_AUTOMATIC_MOVES);
        }
        if is_wanted && has_preferred {
            self.add_problem(
                &written.span(),
                "conflicts with `preferred_leader`, which puts all groups on one gateway",
            );
        }
        is_wanted
    }

    /// Refuses the keys of automatic hand-overs for backends that make none.
    fn check_moves(&mut self, election: &file::Election, backend: Option<&Backend>) {
        if backend.is_none_or(Backend::can_move_groups) {
            return;
        }
        for written in [&election.preferred_leader, &election.tenure_ms_min].into_iter().flatten() {
            self.add_problem(&written.span(), NO_AUTOMATIC_MOVES);
        }
    }

    /// The value of `on_suspended`. Refuses `stop` for a backend without a store: only a connection to a store can be
    /// suspended.
    fn on_suspended(&mut self, election: &file::Election, backend: Option<&Backend>) -> OnSuspended {
        let wanted = self.one_of(election.on_suspended.as_ref(), &ON_SUSPENDED).unwrap_or_default();
        if let (Some(written), Some(Backend::Quorum(_) | Backend::Emergent(_)), OnSuspended::Stop) =
            (&election.on_suspended, backend, wanted)
        {
            self.add_problem(
                &written.span(),
                "\"stop\": only for backends with a store; without one, a leader that loses its majority publishes until its lease expires",
            );
        }
        wanted
    }

    fn link(
        &mut self,
        written: &Spanned<file::Link>,
        peers: &[Spanned<file::Peer>],
        listener_timeout_ms: u64,
    ) -> Option<LinkConfig> {
        let (link, table) = (written.get_ref(), written.span());
        let key_file = self.required(&link.key_file, &table, "key_file")?;
        let listen = self.listen_address(&link.listen, &table, "election.link");
        let peers = self.peer_endpoints(written, peers);
        if peers.iter().any(|peer| peer.address == listen) {
            self.add_problem(&table, format!("{listen}: `listen` and `peer` are the same"));
        }
        let sentinel = match link.sentinel.as_ref().map(|written| (written, written.get_ref().as_str())) {
            // `started` is the value of version 0.1.0.
            None | Some((_, "spawn" | "started")) => SentinelChoice::Started,
            Some((_, "none")) => SentinelChoice::None,
            Some((_, path)) if path.starts_with('/') => SentinelChoice::Service(path.into()),
            Some((written, other)) => {
                self.add_problem(
                    &written.span(),
                    format!("{other:?}: must be \"spawn\", \"none\" or the path of a socket"),
                );
                SentinelChoice::None
            }
        };
        let hang_limit_ns = self.hang_limit(link, &sentinel, listener_timeout_ms);
        let history_bytes = self.number(&link.history_bytes, limits::HISTORY_BYTES);
        Some(LinkConfig { listen, peers, key_file: key_file.into(), sentinel, hang_limit_ns, history_bytes })
    }

    /// Link addresses of the peers. A single peer may have its address in `peer`; several peers have it in `link`.
    fn peer_endpoints(&mut self, written: &Spanned<file::Link>, peers: &[Spanned<file::Peer>]) -> Vec<PeerEndpoint> {
        let (link, table) = (written.get_ref(), written.span());
        if let Some(span) = link.peer.as_ref().map(Spanned::span)
            && peers.len() > 1
        {
            self.add_problem(&span, "only for a single peer; with several [[election.peer]], give each a `link`");
            return Vec::new();
        }
        let is_linked = |peer: &Spanned<file::Peer>| peer.get_ref().link.is_some();
        if peers.len() < 2 && !peers.iter().any(is_linked) {
            return vec![PeerEndpoint { node: None, address: self.address(&link.peer, &table, "peer") }];
        }
        if let Some(span) = link.peer.as_ref().map(Spanned::span) {
            self.add_problem(&span, "conflicts with `link` of the [[election.peer]]");
        }
        let mut ends: Vec<PeerEndpoint> = Vec::new();
        for peer in peers {
            let (peer, table) = (peer.get_ref(), peer.span());
            let node: u8 = self.number(&peer.node, limits::NODE);
            let address = self.address(&peer.link, &table, "link");
            if ends.iter().any(|other| other.address == address) && peer.link.is_some() {
                self.add_problem(&table, format!("{address}: duplicate address; each gateway needs its own"));
            }
            ends.push(PeerEndpoint { node: Some(node), address });
        }
        ends
    }

    fn warn_of_missing_pair_settings(&mut self, election: &file::Election, gateway: &GatewayConfig) {
        let missing = [
            (
                election.link.is_none(),
                "[election.link] is missing: a takeover waits for the lease to expire; no planned hand-over, no gap fill from the peer, no state copy for a restarted gateway",
            ),
            (gateway.audit_file.is_none(), "gateway.audit_file is not set: changes of leadership are not recorded"),
            (
                gateway.control_socket.is_none(),
                "gateway.control_socket is not set: `mdgw ha` and `mdgw top` cannot reach this gateway",
            ),
        ];
        self.warnings
            .extend(missing.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, text)| text.to_owned()));
    }

    fn hang_limit(&mut self, link: &file::Link, sentinel: &SentinelChoice, listener_timeout_ms: u64) -> Option<u64> {
        let limit_ms: u64 = self.number(&link.hang_limit_ms, limits::HANG_LIMIT_MS);
        let span = link.hang_limit_ms.as_ref().filter(|_| limit_ms > 0)?.span();
        let least_ms = limits::HANG_LIMIT_MS_MIN + listener_timeout_ms;
        if limit_ms < least_ms {
            let message = format!(
                "{limit_ms}: must be 0 or at least {} + listener_timeout_ms = {least_ms}",
                limits::HANG_LIMIT_MS_MIN
            );
            self.add_problem(&span, message);
        }
        if *sentinel == SentinelChoice::None {
            self.add_problem(&span, "needs a sentinel, but `sentinel = \"none\"`");
        }
        Some(limit_ms * NS_PER_MS)
    }

    /// The profile with the overriding keys. An unsafe combination is refused, with the arithmetic in the message.
    fn timing(&mut self, written: &Spanned<file::Election>) -> LeaseTiming {
        let election = written.get_ref();
        let profiles = LeaseTiming::PROFILES.map(|(name, timing)| (timing, name));
        let profile = self.one_of(election.profile.as_ref(), &profiles).unwrap_or_default();
        let mut set_or_default = |value: &file::FileValue<i64>, bound: Bound, unit_ns: u64, default_ns: u64| {
            value.as_ref().map_or(default_ns, |_| self.number::<u64>(value, bound) * unit_ns)
        };
        let lease_ns = set_or_default(&election.lease_ms, limits::LEASE_MS, NS_PER_MS, profile.lease_ns);
        let renew_ns = set_or_default(&election.renew_ms, limits::RENEW_MS, NS_PER_MS, profile.renew_ns);
        let margin_ns = set_or_default(&election.margin_ms, limits::MARGIN_MS, NS_PER_MS, profile.margin_ns);
        let send_ns_max = set_or_default(&election.send_us_max, limits::SEND_US_MAX, NS_PER_US, margin_ns / 2);
        let rate_error_ppm = self.number(&election.rate_error_ppm, limits::RATE_ERROR_PPM);
        let timing = LeaseTiming { lease_ns, renew_ns, margin_ns, send_ns_max, rate_error_ppm };
        if let Err(error) = timing.check() {
            let set = [&election.margin_ms, &election.renew_ms, &election.lease_ms, &election.send_us_max];
            let span = super::first_span(set).unwrap_or_else(|| written.span());
            self.add_problem(&span, error.to_string());
        }
        timing
    }

    fn peers(&mut self, written: &[Spanned<file::Peer>], own: (NodeId, &NodeName)) -> Vec<PeerConfig> {
        let mut peers: Vec<PeerConfig> = Vec::new();
        for peer in written {
            let (peer, table) = (peer.get_ref(), peer.span());
            let node = NodeId(self.required_number(&peer.node, limits::NODE, &table, "node"));
            let name = self.node_name(&peer.name, &table);
            let others = peers.iter().map(|other| (other.node, &other.name));
            if others.chain([own]).any(|(of, named)| of == node || *named == name) {
                self.add_problem(
                    &table,
                    format!("node {node} {name}: duplicate number or name; each gateway needs its own"),
                );
            }
            peers.push(PeerConfig { node, name });
        }
        if peers.len() > limits::PEERS_MAX
            && let Some(last) = written.last()
        {
            self.add_problem(&last.span(), format!("{} peers: must be at most {}", peers.len(), limits::PEERS_MAX));
        }
        peers
    }

    fn node_name(&mut self, written: &file::FileValue<String>, table: &std::ops::Range<usize>) -> NodeName {
        self.required(written, table, "name");
        let name = written.as_ref().and_then(|name| NodeName::new(name.get_ref()));
        if let (Some(written), None) = (written, &name) {
            let message = format!("{:?}: must be 1 to 64 letters, digits, -, _ or .", written.get_ref());
            self.add_problem(&written.span(), message);
        }
        name.unwrap_or_else(|| NodeName::new("unnamed").unwrap_or_else(|| unreachable!("a sound name")))
    }

    /// Core of the election threads. Refuses a core of a pool, since a busy pool would delay renewals.
    fn election_core(&mut self, election: &file::Election, pools: &[PoolConfig]) -> Option<usize> {
        let written = election.core.as_ref()?;
        let core: usize = self.number(&election.core, limits::CORE);
        let owner = pools.iter().find(|pool| match &pool.threads {
            Threads::Pinned(cores) => cores.contains(&core),
            Threads::Unpinned(_) => false,
        });
        if let Some(pool) = owner {
            let message = format!("{core}: belongs to pool {}, whose load would delay lease renewals", pool.name);
            self.add_problem(&written.span(), message);
        }
        Some(core)
    }
}

const NO_AUTOMATIC_MOVES: &str = "this backend makes no automatic hand-overs";

impl ElectionConfig {
    /// Value of `spread` where the key is absent.
    pub(in crate::config) fn default_spread(backend: &Backend, peer_count: usize, has_preferred: bool) -> bool {
        backend.can_move_groups() && peer_count > 1 && !has_preferred
    }
}
