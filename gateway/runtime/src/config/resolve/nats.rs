//! `[nats]`

use std::collections::BTreeMap;

use mdgw_feeds::{channel::SchemaSet, identity::Feed};
use toml::Spanned;

use super::{NS_PER_MS, NS_PER_SECOND, Resolver, text};
use crate::config::{
    file, limits,
    resolved::{ChannelSetup, NatsLogin, NatsSettings, NatsStorage, NatsTls},
};

impl Resolver<'_> {
    pub(super) fn nats(&mut self, written: &Spanned<file::Nats>, channels: &[ChannelSetup]) -> NatsSettings {
        let (nats, table) = (written.get_ref(), written.span());
        self.required(&nats.servers, &table, "servers");
        let servers = self.nats_servers(nats);
        let login = self.nats_login(nats);
        let tls = self.nats_tls(nats);
        if !matches!(login, NatsLogin::None)
            && tls.is_none()
            && !servers.iter().all(|server| server.starts_with("tls:"))
        {
            self.warnings.push("the NATS login is sent unencrypted: neither `tls` nor `ca_file` is set".to_owned());
        }
        let takeover_ms: u64 = self.number(&nats.takeover_ms, limits::NATS_TAKEOVER_MS);
        let ack_timeout_ms: u64 = self.number(&nats.ack_timeout_ms, limits::NATS_ACK_TIMEOUT_MS);
        let window_seconds: u64 = self.number(&nats.duplicate_window_seconds, limits::NATS_DUPLICATE_WINDOW_SECONDS);
        // A gap waits for two takeovers.
        let failover_ms = 2 * takeover_ms + ack_timeout_ms;
        if let Some(window) = nats.duplicate_window_seconds.as_ref().filter(|_| window_seconds * 1_000 < failover_ms) {
            let message = format!(
                "{window_seconds}: shorter than a failover, 2 * takeover_ms + ack_timeout_ms = {failover_ms} ms"
            );
            self.add_problem(&window.span(), message);
        }
        let age_max_seconds: u64 = self.number(&nats.age_max_seconds, limits::NATS_AGE_MAX_SECONDS);
        NatsSettings {
            servers,
            admin_listen: self.admin_of_program(&nats.admin_listen, &written.span(), "nats"),
            login,
            tls,
            stream: self.nats_token(&nats.stream, "mdgw", false),
            subject_prefix: self.nats_token(&nats.subject_prefix, "mdgw", true),
            channels: self.nats_channels(written, channels),
            schemas: self.nats_schemas(nats),
            create_stream: nats.create_stream.as_ref().is_none_or(|create| *create.get_ref()),
            storage: self.one_of(nats.storage.as_ref(), NatsStorage::NAMES).unwrap_or_default(),
            replicas: self.number(&nats.replicas, limits::NATS_REPLICAS),
            bytes_max: self.number(&nats.bytes_max, limits::NATS_BYTES_MAX),
            age_max_ns: age_max_seconds * NS_PER_SECOND,
            duplicate_window_ns: window_seconds * NS_PER_SECOND,
            takeover_ns: takeover_ms * NS_PER_MS,
            ack_timeout_ns: ack_timeout_ms * NS_PER_MS,
            in_flight_max: self.number(&nats.in_flight_max, limits::NATS_IN_FLIGHT_MAX),
        }
    }

    fn nats_servers(&mut self, nats: &file::Nats) -> Vec<String> {
        let Some(list) = &nats.servers else { return Vec::new() };
        let servers = list.get_ref();
        if !(1..=limits::NATS_SERVERS_MAX).contains(&servers.len()) {
            let message = format!("{} servers: must be 1 to {}", servers.len(), limits::NATS_SERVERS_MAX);
            self.add_problem(&list.span(), message);
        }
        for server in servers {
            let address = server.get_ref().strip_prefix("nats://").or_else(|| server.get_ref().strip_prefix("tls://"));
            if !address.is_some_and(super::backend::is_endpoint) {
                let message = format!("{:?}: expected an address such as \"nats://10.0.0.1:4222\"", server.get_ref());
                self.add_problem(&server.span(), message);
            }
        }
        servers.iter().map(|server| server.get_ref().clone()).collect()
    }

    fn nats_login(&mut self, nats: &file::Nats) -> NatsLogin {
        self.check_both_set("user", &nats.user, "password_file", &nats.password_file);
        let ways = [&nats.credentials_file, &nats.token_file, &nats.user];
        let mut written = ways.into_iter().flatten();
        if let (Some(_), Some(second)) = (written.next(), written.next()) {
            self.add_problem(&second.span(), "only one of `credentials_file`, `token_file` and `user`");
        }
        if let Some(path) = text(&nats.credentials_file) {
            NatsLogin::Credentials(path.into())
        } else if let Some(path) = text(&nats.token_file) {
            NatsLogin::Token(path.into())
        } else if let Some((user, path)) = text(&nats.user).zip(text(&nats.password_file)) {
            NatsLogin::User(user.to_owned(), path.into())
        } else {
            NatsLogin::None
        }
    }

    fn nats_tls(&mut self, nats: &file::Nats) -> Option<NatsTls> {
        self.check_both_set("certificate_file", &nats.certificate_file, "key_file", &nats.key_file);
        let identity = text(&nats.certificate_file).zip(text(&nats.key_file));
        let is_wanted = nats.tls.as_ref().is_some_and(|tls| *tls.get_ref());
        let ca_file = text(&nats.ca_file).map(Into::into);
        (is_wanted || ca_file.is_some() || identity.is_some())
            .then(|| NatsTls { ca_file, identity: identity.map(|(certificate, key)| (certificate.into(), key.into())) })
    }

    /// A name that streams and subjects can have.
    fn nats_token(&mut self, written: &file::FileValue<String>, default: &str, may_have_dots: bool) -> String {
        let token = text(written).unwrap_or(default);
        let is_token =
            |token: &str| !token.is_empty() && token.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        let is_valid = if may_have_dots { token.split('.').all(is_token) } else { is_token(token) };
        if let Some(written) = written.as_ref().filter(|_| !is_valid) {
            let dots = if may_have_dots { ", with dots between tokens" } else { "" };
            self.add_problem(&written.span(), format!("{token:?}: expected letters, digits, - and _{dots}"));
        }
        token.to_owned()
    }

    fn nats_channels(&mut self, written: &Spanned<file::Nats>, channels: &[ChannelSetup]) -> Vec<usize> {
        let names: Vec<&str> = channels.iter().map(|channel| channel.name.as_str()).collect();
        let (span, chosen) = match &written.get_ref().channels {
            None => (written.span(), (0..channels.len()).collect()),
            Some(list) => {
                let mut chosen = Vec::new();
                if list.get_ref().is_empty() {
                    self.add_problem(&list.span(), "[]: must name at least one channel");
                }
                for name in list.get_ref() {
                    match names.iter().position(|known| known == name.get_ref()) {
                        Some(index) if chosen.contains(&index) => {
                            self.add_problem(&name.span(), format!("{:?}: duplicate", name.get_ref()));
                        }
                        Some(index) => chosen.push(index),
                        None => self.unknown(name, &names),
                    }
                }
                (list.span(), chosen)
            }
        };
        let mut datasets: BTreeMap<Feed, &str> = BTreeMap::new();
        for channel in chosen.iter().filter_map(|index| channels.get(*index)) {
            if let Some(other) = datasets.insert(channel.feed, &channel.name) {
                let (name, dataset) = (&channel.name, channel.feed.dataset());
                let message = format!(
                    "channels {other:?} and {name:?} both have the dataset {dataset}, and would have the same subjects: choose by `channels`"
                );
                self.add_problem(&span, message);
            }
        }
        chosen
    }

    fn nats_schemas(&mut self, nats: &file::Nats) -> Option<SchemaSet> {
        let written = nats.schemas.as_ref()?;
        if written.get_ref().is_empty() {
            self.add_problem(&written.span(), "[]: must name at least one schema");
        }
        let chosen = written.get_ref().iter().filter_map(|name| self.one_of(Some(name), &SchemaSet::NAMES));
        Some(chosen.fold(SchemaSet::default(), SchemaSet::with))
    }
}
