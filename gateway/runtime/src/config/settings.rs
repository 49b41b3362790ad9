//! Every setting in force as key and value: for `mdgw check`, for the disclosure of a latency report, and for the
//! comparison at a reload.

use std::fmt::{Debug, Display};

use mdgw_election::{
    access::{StoreAccess, ZooKeeperMode},
    emergent::BootstrapMode,
    record::ConfigVersion,
};
use mdgw_feeds::{channel::SchemaSet, published::packet::PACKET_VERSION};
use mdgw_pair::pair_link::PeerEndpoint;

use super::resolved::{
    Backend, ChannelSetup, DISPATCH_MODELS, ElectionConfig, Interface, JournalSettings, LineConfig, LiveSettings,
    NatsLogin, NatsSettings, ON_SUSPENDED, OutputConfig, OutputLine, PROMOTION_POLICIES, PoolConfig, Resolved,
    RetransmissionConfig, STAMPS, Threads, WAIT_POLICIES,
};

/// A key, such as `channel.nasdaq.line.A.group`, and its value in the file's notation.
pub(crate) type Setting = (String, String);

impl Resolved {
    /// All settings in force, in the file's order. The keys of pools, channels and lines contain their names, those of
    /// outputs their groups, so that a key keeps its meaning when the file is reordered.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let mut list = SettingList::default();
        let gateway = &self.gateway;
        list.push("gateway.node", gateway.node);
        list.push("gateway.state_file", quoted(gateway.state_file.display()));
        list.push("gateway.log_dir", quoted(gateway.log_dir.display()));
        if let Some(group) = &gateway.log_group {
            list.push("gateway.log_group", quoted(group));
        }
        for (key, path) in [("audit_file", &gateway.audit_file), ("control_socket", &gateway.control_socket)] {
            if let Some(path) = path {
                list.push(&format!("gateway.{key}"), quoted(path.display()));
            }
        }
        list.push("gateway.segment_bytes", gateway.segment_bytes);
        list.push("gateway.retention_bytes", gateway.retention_bytes);
        list.push("gateway.retention_seconds", gateway.retention_ns.unwrap_or(0) / 1_000_000_000);
        list.push("gateway.lock_memory", gateway.lock_memory);
        for pool in &self.pools {
            list.pool(pool);
        }
        for channel in &self.channels {
            list.channel(channel, &self.pools[channel.pool].name);
        }
        for output in &self.outputs {
            list.output(output);
        }
        if let Some(service) = &self.retransmission {
            list.retransmission(service);
        }
        if let Some(live) = &self.live {
            list.live(live);
        }
        if let Some(journal) = &self.journal {
            list.journal(journal);
        }
        if let Some(nats) = &self.nats {
            let names = nats.channels.iter().filter_map(|index| Some(self.channels.get(*index)?.name.as_str()));
            list.nats(nats, &names.collect::<Vec<_>>());
        }
        if let Some(listen) = &self.mirror_admin {
            list.push("mirror.admin_listen", quoted(listen));
        }
        if let Some(admin) = &self.admin {
            list.push("admin.listen", quoted(admin));
        }
        if let Some(election) = &self.election {
            list.election(election);
        }
        let latency = &self.latency;
        if let Some(directory) = &latency.directory {
            list.push("latency.directory", quoted(directory.display()));
        }
        list.push("latency.interval_ms", latency.interval_ns / 1_000_000);
        list.push("latency.significant_digits", latency.significant_digits);
        list.push("log.level", quoted(self.log.level));
        list.push("log.format", quoted(self.log.format));
        list.push("log.alarm_interval_ms", self.log.alarm_interval_ms);
        list.settings
    }
}

impl Resolved {
    /// Hash of the settings that determine the output. Two gateways with the same hash produce the same names and
    /// content from the same input, whatever their interfaces, cores and service limits.
    #[must_use]
    pub(crate) fn output_fingerprint(&self) -> ConfigVersion {
        let affects_output = |key: &str| {
            key.starts_with("channel.") && OUTPUT_KEYS.iter().any(|name| key.rsplit('.').next() == Some(*name))
                // A line's settings determine what arrives, not how it is processed.
                && !key.contains(".line.")
        };
        let hash = self
            .settings()
            .iter()
            .filter(|(key, _)| affects_output(key))
            .flat_map(|(key, value)| key.bytes().chain([0]).chain(value.bytes()).chain([0]))
            .fold(FNV_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        ConfigVersion {
            hash,
            revision: self.election.as_ref().map_or(0, |election| election.revision),
            output_version: u32::from(PACKET_VERSION),
        }
    }
}

/// Keys of a channel that determine its output. Limits are among them: a book that exceeds a limit becomes suspect.
const OUTPUT_KEYS: [&str; 8] =
    ["id", "feed", "group", "schemas", "date", "orders_max", "levels_max", "instruments_max"];
/// FNV-1a of 64 bits.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// Name of an output in keys: its groups.
pub(super) fn output_name(output: &OutputConfig) -> String {
    output.groups.iter().map(|group| group.0.to_string()).collect::<Vec<_>>().join("+")
}

/// The settings of one output line, by keys of the line's table.
pub(super) fn output_line_settings(line: &OutputLine) -> Vec<Setting> {
    let mut list = SettingList::default();
    list.output_line(line, "");
    list.settings
}

#[derive(Default)]
struct SettingList {
    prefix: String,
    settings: Vec<Setting>,
}

impl SettingList {
    fn push(&mut self, key: &str, value: impl Display) {
        self.settings.push((format!("{}{key}", self.prefix), value.to_string()));
    }

    fn with_prefix(&mut self, prefix: String, fill: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.prefix, prefix);
        fill(self);
        self.prefix = outer;
    }

    fn pool(&mut self, pool: &PoolConfig) {
        self.with_prefix(format!("pool.{}.", pool.name), |list| {
            match &pool.threads {
                Threads::Pinned(cores) => list.push("cores", debug(cores)),
                Threads::Unpinned(count) => list.push("threads", count),
            }
            list.push("dispatch", quoted(name_of(pool.dispatch, &DISPATCH_MODELS)));
            list.push("io", quoted(pool.io));
            list.push("wait", quoted(name_of(pool.wait, &WAIT_POLICIES)));
            list.push("promotion", quoted(name_of(pool.promotion, &PROMOTION_POLICIES)));
            list.push("spin_us", pool.spin_ns / 1_000);
            list.push("quota", pool.quota_packets);
            list.push("batch", pool.batch_events);
            list.push("priority", pool.priority.unwrap_or(0));
            list.push("spare_channels", pool.spare_channels);
        });
    }

    fn channel(&mut self, channel: &ChannelSetup, pool: &str) {
        self.with_prefix(format!("channel.{}.", channel.name), |list| {
            list.push("id", channel.id.0);
            list.push("feed", quoted(channel.feed));
            list.push("group", channel.group.0);
            list.push("pool", quoted(pool));
            list.push("schemas", debug(&schema_names(channel.schemas)));
            if let Some(date) = channel.date {
                list.push("date", quoted(date));
            }
            list.push("window_packets", channel.window_packets);
            list.push("gap_timeout_us", channel.gap_timeout_ns / 1_000);
            list.push("line_silence_ms", channel.line_silence_ns / 1_000_000);
            if channel.feed.is_by_order() {
                list.push("orders_max", channel.book.orders_max);
                list.push("order_store", quoted(channel.order_store));
            }
            list.push("levels_max", channel.book.levels_max);
            list.push("instruments_max", channel.book.instruments_max);
            if let Some(recovery) = &channel.recovery {
                list.push("recovery.server", quoted(recovery.server));
                list.push("recovery.timeout_ms", recovery.timeout_ns / 1_000_000);
                list.push("recovery.attempts_max", recovery.attempts_max);
                list.push("recovery.messages_per_request_max", recovery.messages_per_request_max);
                list.push("recovery.requests_in_flight_max", recovery.requests_in_flight_max);
            }
        });
        for line in &channel.lines {
            self.line(line, &channel.name);
        }
    }

    fn line(&mut self, line: &LineConfig, channel: &str) {
        self.with_prefix(format!("channel.{channel}.line.{}.", line.line), |list| {
            list.push("group", quoted(line.group));
            list.interface(&line.interface);
            if !line.sources.is_empty() {
                list.push("source", debug(&line.sources.iter().map(ToString::to_string).collect::<Vec<_>>()));
            }
            list.push("receive_buffer_bytes", line.receive_buffer_bytes);
            list.push(
                "stamps",
                quoted(STAMPS.iter().find(|(known, _)| *known == line.stamps).map_or("none", |(_, name)| *name)),
            );
            list.push("busy_poll_us", line.busy_poll_us.unwrap_or(0));
        });
    }

    fn output(&mut self, output: &OutputConfig) {
        let groups: Vec<u16> = output.groups.iter().map(|group| group.0).collect();
        let name = output_name(output);
        self.with_prefix(format!("output.{name}."), |list| {
            list.push("groups", debug(&groups));
            list.push("payload_bytes_max", output.payload_bytes_max);
            list.push("heartbeat_ms", output.heartbeat_ns / 1_000_000);
            if !output.tag_key_files.is_empty() {
                list.push("tag_key_files", debug(&output.tag_key_files));
                list.push("accept_untagged", output.accept_untagged);
            }
        });
        for (index, line) in output.lines.iter().enumerate() {
            self.output_line(line, &format!("output.{name}.line[{index}]."));
        }
        if let Some(snapshots) = &output.snapshots {
            let prefix = format!("output.{name}.snapshots.");
            self.output_line(&snapshots.line, &prefix);
            self.with_prefix(prefix, |list| {
                list.push("interval_ms", snapshots.interval_ns / 1_000_000);
                list.push("bytes_per_second", snapshots.bytes_per_second);
                list.push("passes", snapshots.passes);
            });
        }
    }

    fn output_line(&mut self, line: &OutputLine, prefix: &str) {
        self.with_prefix(prefix.to_owned(), |list| {
            list.push("address", quoted(line.address));
            list.interface(&line.interface);
            list.push("ttl", line.ttl);
            list.push("loopback", line.loopback);
            if !line.sources.is_empty() {
                list.push("source", debug(&line.sources.iter().map(ToString::to_string).collect::<Vec<_>>()));
            }
        });
    }

    fn retransmission(&mut self, service: &RetransmissionConfig) {
        self.with_prefix("retransmission.".to_owned(), |list| {
            let limits = &service.limits;
            list.push("listen", quoted(service.listen));
            list.push("allowed", debug(&limits.allowed.iter().map(ToString::to_string).collect::<Vec<_>>()));
            list.push("requests_per_second", limits.requests_per_second);
            list.push("bytes_per_second", limits.bytes_per_second);
            list.push("snapshots", service.snapshots);
            list.push("snapshot_bytes_per_second", limits.snapshot_bytes_per_second);
            list.push("packets_per_request_max", limits.packets_per_request_max);
            list.push("requesters_max", limits.requesters_max);
        });
    }

    fn live(&mut self, live: &LiveSettings) {
        self.with_prefix("live.".to_owned(), |list| {
            list.push("listen", quoted(live.listen));
            list.push("key_file", quoted(live.key_file.display()));
            if let Some(path) = &live.control_socket {
                list.push("control_socket", quoted(path.display()));
            }
            if let Some(listen) = &live.admin_listen {
                list.push("admin_listen", quoted(listen));
            }
            list.push("sessions_max", live.sessions_max);
            list.push("handshakes_max", live.handshakes_max);
            list.push("handshakes_per_second", live.handshakes_per_second);
            list.push("handshake_timeout_ms", live.handshake_timeout_ns / 1_000_000);
            list.push("failures_per_minute", live.failures_per_minute);
            list.push("line_bytes_max", live.line_bytes_max);
            list.push("symbols_max", live.symbols_max);
            list.push("queue_bytes_max", live.queue_bytes_max);
            list.push("journal_days_max", live.journal_days_max);
            list.push("replays_max", live.replays_max);
            list.push("stall_seconds", live.stall_ns / 1_000_000_000);
            list.push("threads", live.threads);
        });
    }

    fn journal(&mut self, journal: &JournalSettings) {
        self.with_prefix("journal.".to_owned(), |list| {
            list.push("directory", quoted(journal.directory.display()));
            if let Some(listen) = &journal.admin_listen {
                list.push("admin_listen", quoted(listen));
            }
            list.push("compression", quoted(journal.compression.name()));
            list.push("flush_ms", journal.flush_ns / 1_000_000);
            list.push("retention_days", journal.retention_days);
            list.push("retention_bytes", journal.retention_bytes);
            list.push("free_bytes_min", journal.free_bytes_min);
        });
    }

    fn nats(&mut self, nats: &NatsSettings, channels: &[&str]) {
        self.with_prefix("nats.".to_owned(), |list| {
            list.push("servers", debug(&nats.servers));
            if let Some(listen) = &nats.admin_listen {
                list.push("admin_listen", quoted(listen));
            }
            match &nats.login {
                NatsLogin::None => {}
                NatsLogin::Credentials(path) => list.push("credentials_file", quoted(path.display())),
                NatsLogin::Token(path) => list.push("token_file", quoted(path.display())),
                NatsLogin::User(user, path) => {
                    list.push("user", quoted(user));
                    list.push("password_file", quoted(path.display()));
                }
            }
            list.push("tls", nats.tls.is_some());
            if let Some(tls) = &nats.tls {
                if let Some(path) = &tls.ca_file {
                    list.push("ca_file", quoted(path.display()));
                }
                if let Some((certificate, key)) = &tls.identity {
                    list.push("certificate_file", quoted(certificate.display()));
                    list.push("key_file", quoted(key.display()));
                }
            }
            list.push("stream", quoted(&nats.stream));
            list.push("subject_prefix", quoted(&nats.subject_prefix));
            list.push("channels", debug(&channels));
            if let Some(schemas) = nats.schemas {
                list.push("schemas", debug(&schema_names(schemas)));
            }
            list.push("create_stream", nats.create_stream);
            list.push("storage", quoted(nats.storage.name()));
            list.push("replicas", nats.replicas);
            list.push("bytes_max", nats.bytes_max);
            list.push("age_max_seconds", nats.age_max_ns / 1_000_000_000);
            list.push("duplicate_window_seconds", nats.duplicate_window_ns / 1_000_000_000);
            list.push("takeover_ms", nats.takeover_ns / 1_000_000);
            list.push("ack_timeout_ms", nats.ack_timeout_ns / 1_000_000);
            list.push("in_flight_max", nats.in_flight_max);
        });
    }

    fn election(&mut self, election: &ElectionConfig) {
        if let Some(link) = &election.link {
            self.push("election.link.listen", quoted(link.listen));
            for PeerEndpoint { node, address } in &link.peers {
                match node {
                    Some(node) => self.push(&format!("election.peer.{node}.link"), quoted(address)),
                    None => self.push("election.link.peer", quoted(address)),
                }
            }
            self.push("election.link.key_file", quoted(link.key_file.display()));
            self.push("election.link.sentinel", quoted(&link.sentinel));
            self.push("election.link.hang_limit_ms", link.hang_limit_ns.unwrap_or(0) / 1_000_000);
            self.push("election.link.history_bytes", link.history_bytes);
        }
        match &election.backend {
            Backend::File(directory) => {
                self.push("election.backend", quoted("file"));
                self.push("election.file.directory", quoted(directory.display()));
            }
            Backend::Quorum(quorum) => {
                self.push("election.backend", quoted("quorum"));
                self.with_prefix("election.quorum.".to_owned(), |list| {
                    list.push("listen", quoted(quorum.listen));
                    list.push("key_file", quoted(quorum.key_file.display()));
                    list.push("vote_directory", quoted(quorum.vote_directory.display()));
                    for (node, address) in &quorum.voters {
                        list.push(&format!("voter.{node}.address"), quoted(address));
                    }
                });
            }
            Backend::Emergent(membership) => {
                self.push("election.backend", quoted("emergent"));
                self.with_prefix("election.emergent.".to_owned(), |list| {
                    list.push("allow_split", true);
                    list.push("listen", quoted(membership.listen));
                    list.push("key_file", quoted(membership.key_file.display()));
                    list.push("seeds", debug(&membership.seeds.iter().map(ToString::to_string).collect::<Vec<_>>()));
                    list.push("bootstrap", membership.bootstrap == BootstrapMode::Bootstrap);
                    list.push("minimum_size", membership.minimum_size);
                    list.push("join_attempts", membership.join_attempts);
                });
            }
            Backend::Etcd(etcd) => {
                self.push("election.backend", quoted("etcd"));
                self.with_prefix("election.etcd.".to_owned(), |list| {
                    list.store(&etcd.access);
                    list.push("prefix", quoted(&etcd.prefix));
                    let Some(tls) = &etcd.tls else { return };
                    list.push("ca_file", quoted(tls.ca_file.display()));
                    if let Some((certificate, key)) = &tls.identity {
                        list.push("certificate_file", quoted(certificate.display()));
                        list.push("key_file", quoted(key.display()));
                    }
                });
            }
            Backend::ZooKeeper(zookeeper) => {
                self.push("election.backend", quoted("zookeeper"));
                self.with_prefix("election.zookeeper.".to_owned(), |list| {
                    list.store(&zookeeper.access);
                    list.push("path", quoted(&zookeeper.path));
                    match zookeeper.mode {
                        ZooKeeperMode::Lease => list.push("mode", quoted("lease")),
                        ZooKeeperMode::Latch { session } => {
                            list.push("mode", quoted("latch"));
                            list.push("session_ms", session.as_millis());
                        }
                    }
                });
            }
        }
        self.with_prefix("election.".to_owned(), |list| {
            list.push("name", quoted(&election.name));
            let timing = &election.timing;
            list.push("lease_ms", timing.lease_ns / 1_000_000);
            list.push("renew_ms", timing.renew_ns / 1_000_000);
            list.push("margin_ms", timing.margin_ns / 1_000_000);
            list.push("send_us_max", timing.send_ns_max / 1_000);
            list.push("rate_error_ppm", timing.rate_error_ppm);
            list.push("on_suspended", quoted(name_of(election.on_suspended, &ON_SUSPENDED)));
            list.push("revision", election.revision);
            if let Some(node) = election.preferred {
                list.push("preferred_leader", node);
            }
            list.push("spread", election.spread);
            if election.backend.can_move_groups() {
                list.push("tenure_ms_min", election.tenure_ns / 1_000_000);
            }
            if let Some(core) = election.core {
                list.push("core", core);
            }
            list.push("priority", election.priority.unwrap_or(0));
            list.push("listener_timeout_ms", election.listener_timeout_ns / 1_000_000);
            list.push("kernel_fence", election.kernel_fence);
            for peer in &election.peers {
                list.push(&format!("peer.{}.name", peer.node), quoted(&peer.name));
            }
        });
    }

    fn store(&mut self, access: &StoreAccess) {
        self.push("endpoints", debug(&access.endpoints));
        self.push("request_timeout_ms", access.request_timeout.as_millis());
        if let Some(login) = &access.login {
            self.push("user", quoted(&login.user));
            self.push("password_file", quoted(login.password_file.display()));
        }
    }

    fn interface(&mut self, interface: &Interface) {
        self.push("interface", quoted(interface));
    }
}

/// The name of `value` in a table of names.
pub(super) fn name_of<T: PartialEq>(value: T, names: &[(T, &'static str)]) -> &'static str {
    names.iter().find(|(known, _)| *known == value).map_or("unnamed", |(_, name)| name)
}

fn quoted(value: impl Display) -> String {
    format!("{:?}", value.to_string())
}

fn schema_names(schemas: SchemaSet) -> Vec<&'static str> {
    SchemaSet::NAMES.into_iter().filter(|(schema, _)| schemas.contains(*schema)).map(|(_, name)| name).collect()
}

fn debug(value: &impl Debug) -> String {
    format!("{value:?}")
}
