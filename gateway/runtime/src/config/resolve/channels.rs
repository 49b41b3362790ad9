//! `[[channel]]`, `[[channel.line]]` and `[channel.recovery]`

use std::net::Ipv4Addr;

use mdgw_feeds::{
    book::BookLimits,
    channel::SchemaSet,
    identity::{ChannelId, Feed, GroupId, Line},
};
use toml::Spanned;

use super::{NS_PER_MS, NS_PER_US, Resolver};
use crate::config::{
    file, limits,
    resolved::{ChannelSetup, LineConfig, OrderStoreKind, PoolConfig, RecoveryConfig, STAMPS},
};

impl Resolver<'_> {
    pub(super) fn channels(&mut self, file: &file::File, pools: &[PoolConfig]) -> Vec<ChannelSetup> {
        if file.channel.is_empty() {
            self.add_problem(&(0..0), "there must be at least one [[channel]]");
        }
        let mut channels: Vec<ChannelSetup> = Vec::new();
        for written in &file.channel {
            let channel = self.channel(written, pools);
            self.check_unique(written, &channel, &channels);
            channels.push(channel);
        }
        channels
    }

    fn channel(&mut self, written: &Spanned<file::Channel>, pools: &[PoolConfig]) -> ChannelSetup {
        let (channel, table) = (written.get_ref(), written.span());
        if let Some(name) = &channel.name {
            self.check_plain_name(name);
        }
        let feeds = Feed::ALL.map(|feed| (feed, feed.name()));
        self.required(&channel.feed, &table, "feed");
        let feed = self.one_of(channel.feed.as_ref(), &feeds).unwrap_or(Feed::NasdaqItch);
        let pool = self.pool_of(channel, &table, pools);
        let lines = self.lines(written);
        let window_packets: usize = self.number(&channel.window_packets, limits::WINDOW_PACKETS);
        if let Some(pool) = pools.get(pool) {
            let drain_packets = pool.quota_packets * lines.len();
            if window_packets <= drain_packets {
                let span = channel.window_packets.as_ref().map_or_else(|| table.clone(), Spanned::span);
                self.add_problem(
                    &span,
                    format!(
                        "window_packets = {window_packets}: must exceed one drain: quota {} of pool {:?} x {} lines = {drain_packets} packets",
                        pool.quota_packets,
                        pool.name,
                        lines.len(),
                    ),
                );
            }
        }
        ChannelSetup {
            id: ChannelId(self.required_number(&channel.id, limits::CHANNEL_ID, &table, "id")),
            name: self.required(&channel.name, &table, "name").cloned().unwrap_or_default(),
            feed,
            group: GroupId(self.number(&channel.group, limits::GROUP_ID)),
            pool,
            schemas: self.schemas(channel, feed),
            date: channel.date.as_ref().and_then(|date| self.parsed(date, "a day, such as \"2019-01-30\"")),
            window_packets,
            gap_timeout_ns: self.number::<u64>(&channel.gap_timeout_us, limits::GAP_TIMEOUT_US) * NS_PER_US,
            line_silence_ns: self.number::<u64>(&channel.line_silence_ms, limits::LINE_SILENCE_MS) * NS_PER_MS,
            book: self.book(channel, feed),
            order_store: self.one_of(channel.order_store.as_ref(), OrderStoreKind::NAMES).unwrap_or_default(),
            lines,
            recovery: channel.recovery.as_ref().map(|written| self.recovery(written, feed)),
        }
    }

    /// Index of the channel's pool: the named one, or the only one.
    fn pool_of(&mut self, channel: &file::Channel, table: &std::ops::Range<usize>, pools: &[PoolConfig]) -> usize {
        let Some(name) = &channel.pool else {
            if pools.len() > 1 {
                self.add_problem(table, format!("`pool` is missing: there are {} pools", pools.len()));
            }
            return 0;
        };
        let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        names.iter().position(|known| known == name.get_ref()).unwrap_or_else(|| {
            self.unknown(name, &names);
            usize::MAX
        })
    }

    fn schemas(&mut self, channel: &file::Channel, feed: Feed) -> SchemaSet {
        let Some(written) = &channel.schemas else { return SchemaSet::default_for(feed) };
        if written.get_ref().is_empty() {
            self.add_problem(&written.span(), "[]: must name at least one schema");
        }
        let mut schemas = SchemaSet::default();
        for name in written.get_ref() {
            let Some(schema) = self.one_of(Some(name), &SchemaSet::NAMES) else { continue };
            if schemas.contains(schema) {
                self.add_problem(&name.span(), format!("{:?}: duplicate", name.get_ref()));
            }
            if !SchemaSet::of_feed(feed).contains(schema) {
                let available = SchemaSet::of_feed(feed);
                self.add_problem(
                    &name.span(),
                    format!("{:?}: not available from {feed}; available: {available}", name.get_ref()),
                );
            }
            schemas = schemas.with(schema);
        }
        schemas
    }

    fn book(&mut self, channel: &file::Channel, feed: Feed) -> BookLimits {
        let by_order_only =
            [channel.orders_max.as_ref().map(Spanned::span), channel.order_store.as_ref().map(Spanned::span)];
        if !feed.is_by_order() {
            for span in by_order_only.into_iter().flatten() {
                self.add_problem(&span, format!("{feed} carries no individual orders, so this key does not apply"));
            }
        }
        BookLimits {
            orders_max: self.number(&channel.orders_max, limits::ORDERS_MAX),
            levels_max: self.number(&channel.levels_max, limits::LEVELS_MAX),
            instruments_max: self.number(&channel.instruments_max, limits::INSTRUMENTS_MAX),
            ..BookLimits::default()
        }
    }

    fn lines(&mut self, written: &Spanned<file::Channel>) -> Vec<LineConfig> {
        let lines = &written.get_ref().line;
        if lines.is_empty() || lines.len() > limits::LINES_MAX {
            self.add_problem(
                &written.span(),
                format!("{} lines: must have 1 to {} [[channel.line]]", lines.len(), limits::LINES_MAX),
            );
        }
        let mut resolved: Vec<LineConfig> = Vec::new();
        for (index, written) in lines.iter().take(limits::LINES_MAX).enumerate() {
            let line = self.line(written, index);
            if resolved.iter().any(|other| other.line == line.line) {
                let span = written.get_ref().name.as_ref().map_or_else(|| written.span(), Spanned::span);
                self.add_problem(&span, format!("\"{}\": another line of this channel has this name", line.line));
            }
            resolved.push(line);
        }
        resolved.sort_by_key(|line| line.line);
        resolved
    }

    fn line(&mut self, written: &Spanned<file::Line>, index: usize) -> LineConfig {
        let (line, table) = (written.get_ref(), written.span());
        let names = ["A", "B", "C", "D", "E", "F", "G"];
        let numbers: Vec<(u8, &str)> = (0..).zip(names).collect();
        let by_position = numbers.get(index).map_or(0, |(number, _)| *number);
        let busy_poll_us: u32 = self.number(&line.busy_poll_us, limits::BUSY_POLL_US);
        let sources = self.sources(line.source.as_ref());
        LineConfig {
            line: Line(self.one_of(line.name.as_ref(), &numbers).unwrap_or(by_position)),
            group: self.address(&line.group, &table, "group"),
            interface: self.interface(&line.interface, &table),
            sources,
            receive_buffer_bytes: self.number(&line.receive_buffer_bytes, limits::RECEIVE_BUFFER_BYTES),
            stamps: self.one_of(line.stamps.as_ref(), &STAMPS).unwrap_or_default(),
            busy_poll_us: (busy_poll_us > 0).then_some(busy_poll_us),
        }
    }

    /// A list of senders, each once.
    pub(super) fn sources(&mut self, written: Option<&Spanned<Vec<Spanned<String>>>>) -> Vec<Ipv4Addr> {
        let mut sources = Vec::new();
        for text in written.iter().flat_map(|list| list.get_ref()) {
            let Some(source) = self.parsed::<Ipv4Addr>(text, "the IPv4 address of a sender") else { continue };
            if source.is_multicast() || source.is_unspecified() || source.is_broadcast() {
                self.add_problem(&text.span(), format!("{source}: not the address of a sender"));
            } else if sources.contains(&source) {
                self.add_problem(&text.span(), format!("{source}: twice in the list"));
            } else {
                sources.push(source);
            }
        }
        sources
    }

    fn recovery(&mut self, written: &Spanned<file::Recovery>, feed: Feed) -> RecoveryConfig {
        let (recovery, table) = (written.get_ref(), written.span());
        if !feed.is_by_order() {
            self.add_problem(&table, format!("{feed} has no retransmission server; remove this table"));
        }
        RecoveryConfig {
            server: self.address(&recovery.server, &table, "server"),
            timeout_ns: self.number::<u64>(&recovery.timeout_ms, limits::RECOVERY_TIMEOUT_MS) * NS_PER_MS,
            attempts_max: self.number(&recovery.attempts_max, limits::ATTEMPTS_MAX),
            messages_per_request_max: self.number(&recovery.messages_per_request_max, limits::MESSAGES_PER_REQUEST_MAX),
            requests_in_flight_max: self.number(&recovery.requests_in_flight_max, limits::REQUESTS_IN_FLIGHT_MAX),
        }
    }

    /// Numbers, names and sockets are each used once.
    fn check_unique(&mut self, written: &Spanned<file::Channel>, channel: &ChannelSetup, others: &[ChannelSetup]) {
        let span_or_channel = |span: Option<std::ops::Range<usize>>| span.unwrap_or_else(|| written.span());
        let file = written.get_ref();
        if let Some(other) = others.iter().find(|other| other.id == channel.id) {
            let message = format!("{}: duplicate number, used by channel {:?}", channel.id.0, other.name);
            self.add_problem(&span_or_channel(file.id.as_ref().map(Spanned::span)), message);
        }
        if others.iter().any(|other| other.name == channel.name) {
            let message = format!("{:?}: duplicate channel name", channel.name);
            self.add_problem(&span_or_channel(file.name.as_ref().map(Spanned::span)), message);
        }
        for (index, line) in channel.lines.iter().enumerate() {
            let same_channel = channel.lines.iter().take(index).map(|other| (channel, other));
            let others = others.iter().flat_map(|other| other.lines.iter().map(move |line| (other, line)));
            if let Some((other, other_line)) =
                others.chain(same_channel).find(|(_, other)| line.receives_the_same_as(other))
            {
                let mut written_group = file.line.iter().filter_map(|line| line.get_ref().group.as_ref());
                let span = written_group.rfind(|text| text.get_ref().parse() == Ok(line.group)).map(Spanned::span);
                self.add_problem(
                    &span_or_channel(span),
                    format!(
                        "{} on {}: already used by line {} of channel {:?}; each line needs its own group and port",
                        line.group, line.interface, other_line.line, other.name
                    ),
                );
            }
        }
    }
}

impl LineConfig {
    /// Whether two lines would receive the same packets. No configuration has two such lines.
    pub(in crate::config) fn receives_the_same_as(&self, other: &Self) -> bool {
        let sources_disjoint = !self.sources.is_empty()
            && !other.sources.is_empty()
            && !self.sources.iter().any(|source| other.sources.contains(source));
        self.group == other.group && self.interface == other.interface && !sources_disjoint
    }
}
