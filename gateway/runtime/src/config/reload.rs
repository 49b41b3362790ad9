//! What a reload may change.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use mdgw_engine::dispatch::PromotionPolicy;
use mdgw_feeds::{
    channel::SchemaSet,
    identity::{ChannelId, GroupId},
};
use serde::{Deserialize, Serialize};

use super::{
    limits,
    resolved::{
        ChannelSetup, ElectionConfig, LineConfig, LogConfig, OrderStoreKind, OutputConfig, OutputLine, Resolved,
        RetransmissionLimits,
    },
    settings::{output_line_settings, output_name},
};

/// Keys that may change while the gateway runs. Besides them, whole channels and whole output lines may be added and
/// removed. All other keys are fixed at the start.
pub const RELOADABLE: [&str; 10] = [
    "log.level",
    "log.alarm_interval_ms",
    "latency.interval_ms",
    "retransmission.allowed",
    "retransmission.requests_per_second",
    "retransmission.bytes_per_second",
    "retransmission.snapshot_bytes_per_second",
    "retransmission.packets_per_request_max",
    "retransmission.requesters_max",
    REVISION,
];

/// The value of a [`Changed`] channel where the channel is there.
pub const WHOLE_CHANNEL: &str = "a channel";

/// The value of a [`Changed`] output line where the line is there.
pub const WHOLE_LINE: &str = "an output line";

/// May be raised.
pub(crate) const REVISION: &str = "election.revision";

/// The changes of a reload; `None`: unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New level and alarm interval of the log.
    pub log: Option<LogConfig>,
    /// New length of latency intervals.
    pub latency_interval_ns: Option<u64>,
    /// New limits of the retransmission service.
    pub retransmission: Option<RetransmissionLimits>,
    /// Channels of the new configuration that the old one lacks, in the file's order.
    pub added: Vec<ChannelId>,
    /// Channels of the old configuration that the new one lacks.
    pub removed: Vec<ChannelId>,
    /// Outputs whose lines change, by their groups.
    pub outputs: Vec<OutputLines>,
}

/// The lines of an output that a reload adds and removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLines {
    /// Groups of the output.
    pub groups: Vec<GroupId>,
    /// Lines that the old configuration lacks.
    pub added: Vec<OutputLine>,
    /// Lines that the new configuration lacks.
    pub removed: Vec<OutputLine>,
}

impl Changes {
    /// Whether channels or output lines change.
    #[must_use]
    pub fn has_parts(&self) -> bool {
        !(self.added.is_empty() && self.removed.is_empty() && self.outputs.is_empty())
    }
}

/// A setting, or a whole channel or output line, that a reload has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The key, as in [`Resolved::settings`]; of a whole channel, `channel.NAME`; of an output line,
    /// `output.GROUPS.line ADDRESS on INTERFACE`, since the numbers of lines change with each line that goes.
    pub key: String,
    /// The former value; `None`: it was unset.
    pub old: Option<String>,
    /// The value in effect; `None`: it is unset.
    pub new: Option<String>,
}

/// A change that needs a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The key, as in [`Changed::key`].
    pub key: String,
    /// The value in force; `None`: unset.
    pub old: Option<String>,
    /// The value in the file; `None`: unset.
    pub new: Option<String>,
    /// Why a reload cannot apply it; `None`: the key is fixed at the start, for the reason that [`why_fixed`] has.
    pub reason: Option<String>,
    /// Of a fixed key: whether two reloads can replace its channel or line, as text behind the reason. Else empty.
    pub anew: String,
}

impl Refused {
    /// A table that a reload cannot apply.
    pub(crate) fn table(key: String, reason: impl Into<String>) -> Self {
        Self { key, old: None, new: None, reason: Some(reason.into()), anew: String::new() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.reason {
            return write!(f, "{}: {reason}", self.key);
        }
        let [old, new] = [&self.old, &self.new].map(|value| value.as_deref().unwrap_or("unset"));
        let (key, anew) = (&self.key, &self.anew);
        write!(f, "{key}: {new} needs a restart, since {}{anew}; {old} remains in effect", why_fixed(key))
    }
}

impl Resolved {
    /// What differs, in the order of the keys. A channel that comes or goes is one entry, whose value is [`WHOLE_CHANNEL`], and an
    /// output line one with [`WHOLE_LINE`].
    #[must_use]
    pub fn changed_settings(old: &Self, new: &Self) -> Vec<Changed> {
        let lacks = |one: &Self, name: &str| one.channels.iter().all(|channel| channel.name != name);
        let of = |these: &Self, others: &Self| {
            let mut values = BTreeMap::new();
            for (key, value) in these.settings().into_iter().filter(|(key, _)| !is_of_line(key)) {
                match channel_of(&key).filter(|name| lacks(others, name)) {
                    Some(name) => values.insert(format!("channel.{name}"), WHOLE_CHANNEL.to_owned()),
                    None => values.insert(key, value),
                };
            }
            for output in &these.outputs {
                values.extend(named_lines(output, others.outputs.iter().find(|other| other.groups == output.groups)));
            }
            values
        };
        let (before, after) = (of(old, new), of(new, old));
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let changed = keys.into_iter().map(|key| Changed {
            key: key.clone(),
            old: before.get(key).cloned(),
            new: after.get(key).cloned(),
        });
        changed.filter(|changed| changed.old != changed.new).collect()
    }

    /// The changes from `old` to `new` that need no restart.
    ///
    /// # Errors
    /// Every change that needs a restart; then no change is applied.
    pub fn diff_reloadable(old: &Self, new: &Self) -> Result<Changes, Vec<Refused>> {
        let mut refused = Vec::new();
        let [added, removed] = [(new, old), (old, new)].map(|(these, others)| lacking(these, others));
        for channel in &added {
            refused.extend(refuse_added(old, new, channel));
        }
        for channel in &removed {
            refused.extend(refuse_removed(old, new, channel));
        }
        let revision = |of: &Self| of.election.as_ref().map(|election| election.revision);
        let has_new_revision = revision(new) > revision(old);
        if old.election.is_some() && !(added.is_empty() && removed.is_empty()) && !has_new_revision {
            // The other gateway has to know which of two configurations is the newer one.
            let reason =
                format!("must be above {} in a reload that adds or removes channels", revision(old).unwrap_or(0));
            refused.push(Refused::table(REVISION.to_owned(), reason));
        }
        let names: BTreeSet<&str> = added.iter().chain(&removed).map(|channel| channel.name.as_str()).collect();
        let outputs = new.outputs.iter().filter_map(|output| {
            let before = old.outputs.iter().find(|before| before.groups == output.groups)?;
            changed_lines((old, before), output, &mut refused)
        });
        let outputs: Vec<OutputLines> = outputs.collect();
        if old.election.is_some() {
            refused.extend(outputs.iter().filter_map(|output| refuse_all_lines(output, new)));
        }

        let (before, after): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (old.settings().into_iter().collect(), new.settings().into_iter().collect());
        let whole_outputs = refuse_outputs(old, new);
        refused.extend(whole_outputs.iter().cloned());
        let service_stays = old.retransmission.is_some() == new.retransmission.is_some();
        if !service_stays {
            let reason = "to add or remove it needs a restart, since the listener is opened at the start";
            refused.push(Refused::table("retransmission".to_owned(), reason));
        }
        let is_reloadable = |key: &str| {
            (RELOADABLE.contains(&key)
                && (has_new_revision || key != REVISION))
                || channel_of(key).is_some_and(|name| names.contains(name))
                // Lines were compared above. A whole output has further keys.
                || is_of_line(key)
                // These were refused as a whole.
                || whole_outputs.iter().any(|output| key.strip_prefix(&output.key).is_some_and(|rest| rest.starts_with('.')))
                || (!service_stays && key.starts_with("retransmission."))
                // Other processes read these tables.
                || key.starts_with("live.")
                || key.starts_with("journal.")
                || key.starts_with("nats.")
                || key.starts_with("mirror.")
        };
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let is_named = |key: &str| !is_reloadable(key) && !follows_another_key(old, new, key);
        refused.extend(keys.into_iter().filter(|key| before.get(*key) != after.get(*key) && is_named(key)).map(
            |key| {
                let anew = channel_of(key).map_or_else(String::new, |name| channel_anew(old, new, name));
                let (old, new) = (before.get(key).cloned(), after.get(key).cloned());
                Refused { key: key.clone(), old, new, reason: None, anew }
            },
        ));
        if !refused.is_empty() {
            return Err(refused);
        }
        let limits = |of: &Self| of.retransmission.as_ref().map(|service| service.limits.clone());
        Ok(Changes {
            log: (old.log != new.log).then_some(new.log),
            latency_interval_ns: (old.latency != new.latency).then_some(new.latency.interval_ns),
            retransmission: if limits(old) == limits(new) { None } else { limits(new) },
            added: added.iter().map(|channel| channel.id).collect(),
            removed: removed.iter().map(|channel| channel.id).collect(),
            outputs,
        })
    }

    /// The same without a channel.
    fn without(&self, name: &str) -> Self {
        let mut without = self.clone();
        without.channels.retain(|channel| channel.name != name);
        without
    }

    /// The same with a channel more.
    fn with(&self, channel: &ChannelSetup) -> Self {
        let mut with = self.clone();
        with.channels.push(channel.clone());
        with
    }

    /// A number that no channel of either configuration has.
    fn free_id(&self, other: &Self) -> ChannelId {
        let is_free = |id: &ChannelId| self.channel(*id).or_else(|| other.channel(*id)).is_none();
        (0..=u16::MAX).map(ChannelId).find(is_free).unwrap_or(ChannelId(u16::MAX))
    }

    /// The channel with that number.
    #[must_use]
    pub(crate) fn channel(&self, id: ChannelId) -> Option<&ChannelSetup> {
        self.channels.iter().find(|channel| channel.id == id)
    }
}

/// Channels of `these` whose name no channel of `others` has.
fn lacking<'c>(these: &'c Resolved, others: &Resolved) -> Vec<&'c ChannelSetup> {
    let is_new = |channel: &&ChannelSetup| others.channels.iter().all(|other| other.name != channel.name);
    these.channels.iter().filter(is_new).collect()
}

/// `new` is the configuration that `added` belongs to.
fn refuse_added(old: &Resolved, new: &Resolved, added: &ChannelSetup) -> Option<Refused> {
    let refuse = |reason: String| Some(Refused::table(format!("channel.{}", added.name), reason));
    if let Some(before) = old.channel(added.id) {
        return refuse(format!(
            "its id {} is that of channel {:?}{}",
            added.id.0,
            before.name,
            instead_of_its_id(old, new, added, before)
        ));
    }
    if let Some(refused) = refuse_fixed(old, added) {
        return Some(refused);
    }
    if !old.channels.iter().any(|channel| channel.group == added.group) {
        return refuse(format!("group {} has no channel yet, and a new group needs a restart", added.group.0));
    }
    None
}

/// What works instead of a reload that replaces `before` by `added` with the same id.
fn instead_of_its_id(old: &Resolved, new: &Resolved, added: &ChannelSetup, before: &ChannelSetup) -> String {
    let without = old.without(&before.name);
    let can_go_first = refuse_removed(old, &without, before).is_none() && refuse_added(&without, new, added).is_none();
    let renumbered = ChannelSetup { id: old.free_id(new), ..added.clone() };
    let obstacle = obstacle_beside(old, new, &renumbered);
    if can_go_first {
        // Within one reload both channels have their sockets open for a while.
        let fits = obstacle.as_ref().is_none_or(|obstacle| matches!(obstacle, Obstacle::Line { is_shared: true, .. }));
        let renumber = if fits && refuse_removed(old, new, before).is_none() {
            "give the new channel another id, or "
        } else {
            ""
        };
        return format!(": {renumber}remove that one by a reload of its own first");
    }
    let restart = ", which no reload can remove first: restart the gateway";
    let both = old.with(&renumbered);
    let can_go_then = refuse_removed(&both, &both.without(&before.name), before).is_none();
    match obstacle {
        None if can_go_then => format!(
            "{restart}, or add the new channel with another id by a reload first, {IN_A_SPARE_SLOT}, and then remove {:?} by the next",
            before.name
        ),
        Some(obstacle) if can_go_then => format!("{restart} ({obstacle})"),
        _ => restart.to_owned(),
    }
}

/// The pool may have given its slots to channels that came before.
const IN_A_SPARE_SLOT: &str = "if its pool has a spare slot";

/// Why no reload adds a channel while all channels in force stay.
enum Obstacle {
    /// A configuration cannot have both channels.
    Line {
        line: LineConfig,
        /// The channel in force that has the line too.
        other: String,
        /// Both sockets can be open at a time.
        is_shared: bool,
    },
    /// The pool of that name has no slot for channels that a reload adds.
    NoSlot(String),
    /// Refused for a reason of its own.
    Refused,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no reload can add the new one first")?;
        match self {
            Self::Line { line, other, .. } => {
                write!(f, ", since its line {} on {} is that of channel {other:?}", line.group, line.interface)
            }
            Self::NoSlot(pool) => write!(f, ", since pool {pool:?} has spare_channels = 0"),
            Self::Refused => Ok(()),
        }
    }
}

/// What keeps a reload from adding a channel of `new`, with an id that is not in use, and removing none.
fn obstacle_beside(old: &Resolved, new: &Resolved, added: &ChannelSetup) -> Option<Obstacle> {
    let pool_name = &new.pools[added.pool].name;
    // A pool that has no channel may not run.
    let pool = old.channels.iter().map(|channel| &old.pools[channel.pool]).find(|pool| pool.name == *pool_name);
    let Some(pool) = pool.filter(|_| refuse_added(old, new, added).is_none()) else { return Some(Obstacle::Refused) };
    if pool.spare_channels == 0 {
        return Some(Obstacle::NoSlot(pool.name.clone()));
    }
    let of_others = || old.channels.iter().flat_map(|other| other.lines.iter().map(move |line| (other, line)));
    let same = added.lines.iter().filter_map(|line| {
        let (other, _) = of_others().find(|(_, of_other)| line.receives_the_same_as(of_other))?;
        let is_shared = line.group.ip().is_multicast();
        Some(Obstacle::Line { line: line.clone(), other: other.name.clone(), is_shared })
    });
    same.min_by_key(|obstacle| matches!(obstacle, Obstacle::Line { is_shared: true, .. }))
}

fn refuse_removed(old: &Resolved, new: &Resolved, removed: &ChannelSetup) -> Option<Refused> {
    let refuse = |reason: String| Some(Refused::table(format!("channel.{}", removed.name), reason));
    if let Some(refused) = refuse_fixed(old, removed) {
        return Some(refused);
    }
    let is_old = |channel: &ChannelSetup| old.channels.iter().any(|before| before.name == channel.name);
    let of_group = |channel: &&ChannelSetup| channel.group == removed.group;
    if new.channels.iter().filter(of_group).any(is_old) {
        return None;
    }
    let last = format!("it is the last channel of group {}", removed.group.0);
    let takes_its_place = |channel: &&ChannelSetup| of_group(channel) && old.channel(channel.id).is_none();
    let replacing = new.channels.iter().filter(takes_its_place);
    let obstacles: Vec<_> = replacing.map(|channel| obstacle_beside(old, new, channel)).collect();
    refuse(if obstacles.iter().any(Option::is_none) {
        format!("{last}: add the new one by a reload first, {IN_A_SPARE_SLOT}, then remove this one by the next")
    } else if let Some(obstacle) = obstacles.into_iter().flatten().next() {
        format!("{last}: restart the gateway to replace it ({obstacle})")
    } else {
        format!("{last}: keep the channel, or restart the gateway to end the group")
    })
}

/// Whether a channel can take its new settings by two reloads.
fn channel_anew(old: &Resolved, new: &Resolved, name: &str) -> String {
    let of_name = |config: &Resolved| config.channels.iter().find(|channel| channel.name == name).cloned();
    let (Some(before), Some(mut after)) = (of_name(old), of_name(new)) else { return String::new() };
    let pool = &new.pools[after.pool].name;
    // A pool that has no channel may not run.
    let running = |channel: &&ChannelSetup| old.pools[channel.pool].name == *pool;
    let Some(running) = old.channels.iter().find(running) else {
        return no_reload(&format!("pool {pool:?} has no channel, and may not run"));
    };
    after.pool = running.pool;
    let without = old.without(name);
    match refuse_removed(old, &without, &before).or_else(|| refuse_added(&without, old, &after)) {
        None => BY_TWO_RELOADS.to_owned(),
        // What comes behind is the way to another aim.
        Some(refused) => no_reload(refused.reason.unwrap_or_default().split(": ").next().unwrap_or_default()),
    }
}

/// Whether a line of that output can take its new settings by two reloads.
fn line_anew(old: &Resolved, output: &OutputConfig) -> String {
    if old.election.as_ref().is_some_and(|election| election.kernel_fence) {
        no_reload("with the kernel fence no reload adds a line")
    } else if output.lines.len() < 2 {
        no_reload("it is the only line of its output")
    } else {
        BY_TWO_RELOADS.to_owned()
    }
}

/// The way that works for whole channels and lines.
const BY_TWO_RELOADS: &str = " (remove it by one reload and add it with the new value by the next)";

fn no_reload(reason: &str) -> String {
    format!(", and two reloads cannot remove it and add it again: {reason}")
}

/// Outputs that one of the configurations lacks. An output with other groups is another one.
fn refuse_outputs(old: &Resolved, new: &Resolved) -> Vec<Refused> {
    let lacking = |these: &Resolved, others: &Resolved, reason: &str| -> Vec<Refused> {
        let is_lacked = |output: &&OutputConfig| others.outputs.iter().all(|other| other.groups != output.groups);
        let lacked = these.outputs.iter().filter(is_lacked);
        lacked.map(|output| Refused::table(format!("output.{}", output_name(output)), reason)).collect()
    };
    let mut refused =
        lacking(old, new, "a reload neither removes an output nor changes its groups: restart the gateway for that");
    refused.extend(lacking(new, old, "a new output, or one with other groups, needs a restart"));
    refused
}

/// The pool of a channel may have a dispatch model that gives each channel to one thread at the start.
fn refuse_fixed(old: &Resolved, channel: &ChannelSetup) -> Option<Refused> {
    let pool = old.pools.get(channel.pool).filter(|pool| !pool.dispatch.has_spare_slots())?;
    let reason = format!("the channels of pool {:?} are fixed at the start, by its key `dispatch`", pool.name);
    Some(Refused::table(format!("channel.{}", channel.name), reason))
}

/// In a pair one line has to stay: the gateways reload one after the other, and each must receive the other's output.
fn refuse_all_lines(output: &OutputLines, new: &Resolved) -> Option<Refused> {
    let after = new.outputs.iter().find(|after| after.groups == output.groups)?;
    let replaces_all = after.lines.iter().all(|line| output.added.contains(line));
    replaces_all.then(|| {
        let reason = "in a pair at least one line must stay: add the new line on both gateways, then remove the old one by another reload";
        Refused::table(format!("output.{}.line", output_name(after)), reason)
    })
}

/// Whether a setting that differs is the default in both configurations: the default follows from another key, which differs too and
/// is named. The file need not have this one.
fn follows_another_key(old: &Resolved, new: &Resolved, key: &str) -> bool {
    let Some((table, key)) = key.rsplit_once('.') else { return false };
    let is_default = |config: &Resolved| {
        let pool = || config.pools.iter().find(|pool| table == format!("pool.{}", pool.name));
        let channel = || config.channels.iter().find(|channel| table == format!("channel.{}", channel.name));
        let election = config.election.as_ref().filter(|_| table == "election");
        match key {
            "promotion" => pool().is_some_and(|pool| pool.promotion == PromotionPolicy::default_for(pool.wait)),
            "spare_channels" => pool().is_some_and(|pool| {
                !pool.dispatch.has_spare_slots()
                    || i64::try_from(pool.spare_channels) == Ok(limits::SPARE_CHANNELS.default)
            }),
            "schemas" => channel().is_some_and(|channel| channel.schemas == SchemaSet::default_for(channel.feed)),
            "orders_max" => channel().is_some_and(|channel| {
                !channel.feed.is_by_order() || i64::from(channel.book.orders_max) == limits::ORDERS_MAX.default
            }),
            "order_store" => channel()
                .is_some_and(|channel| !channel.feed.is_by_order() || channel.order_store == OrderStoreKind::default()),
            "send_us_max" => {
                election.is_some_and(|election| election.timing.send_ns_max == election.timing.margin_ns / 2)
            }
            "spread" => election.is_some_and(|election| {
                let has_preferred = election.preferred.is_some();
                election.spread
                    == ElectionConfig::default_spread(&election.backend, election.peers.len(), has_preferred)
            }),
            _ => false,
        }
    };
    is_default(old) && is_default(new)
}

/// A line is the same if these are.
fn is_same(a: &OutputLine, b: &OutputLine) -> bool {
    (a.address, &a.interface) == (b.address, &b.interface)
}

/// An output line in what a reload reports. The numbers of lines change with each line that comes or goes.
fn line_name(output: &OutputConfig, line: &OutputLine) -> String {
    format!("output.{}.line {} on {}", output_name(output), line.address, line.interface)
}

/// The lines of an output for [`Resolved::changed_settings`]. A line that `other` lacks is one entry.
fn named_lines(output: &OutputConfig, other: Option<&OutputConfig>) -> Vec<(String, String)> {
    let mut named = Vec::new();
    for line in &output.lines {
        let name = line_name(output, line);
        if other.is_some_and(|other| other.lines.iter().any(|of_other| is_same(of_other, line))) {
            let settings = output_line_settings(line).into_iter();
            named.extend(settings.map(|(key, value)| (format!("{name}.{key}"), value)));
        } else {
            named.push((name, WHOLE_LINE.to_owned()));
        }
    }
    named
}

/// Compares the lines of one output, by their address and interface. `None`: no line is added or removed. `old` is the configuration
/// of `before`.
fn changed_lines(
    (old, before): (&Resolved, &OutputConfig),
    after: &OutputConfig,
    refused: &mut Vec<Refused>,
) -> Option<OutputLines> {
    let anew = line_anew(old, before);
    for line in &after.lines {
        let Some(old) = before.lines.iter().find(|old| is_same(old, line)) else { continue };
        let (old, new) = (output_line_settings(old), output_line_settings(line));
        let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) = (old.into_iter().collect(), new.into_iter().collect());
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        refused.extend(keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).map(|key| Refused {
            key: format!("{}.{key}", line_name(after, line)),
            old: old.get(key).cloned(),
            new: new.get(key).cloned(),
            reason: None,
            anew: anew.clone(),
        }));
    }
    let lacking = |these: &OutputConfig, others: &OutputConfig| -> Vec<OutputLine> {
        let is_new = |line: &&OutputLine| !others.lines.iter().any(|other| is_same(other, line));
        these.lines.iter().filter(is_new).cloned().collect()
    };
    let (added, removed) = (lacking(after, before), lacking(before, after));
    let is_changed = !(added.is_empty() && removed.is_empty());
    is_changed.then(|| OutputLines { groups: after.groups.clone(), added, removed })
}

/// Why a reload cannot change this key, to be read after "since".
fn why_fixed(key: &str) -> &'static str {
    let (table, rest) = key.split_once('.').unwrap_or((key, ""));
    match table {
        _ if key == REVISION => "it can only be raised",
        "channel" => "a running channel keeps its settings",
        "output" if is_of_line(key) => "a line keeps its settings",
        "output" => "the other gateway and receivers rely on it as long as this one publishes",
        "pool" => "the pool's threads and their buffers are made at the start",
        "election" => why_election_fixed(rest),
        "gateway" if rest == "node" => "the other gateway and receivers know this one by it",
        "gateway" => "its files and its memory are opened at the start",
        "log" | "latency" => "the log is opened at the start",
        "retransmission" | "admin" => "the listener is opened at the start",
        _ => "it is read at the start only",
    }
}

/// Why a reload cannot change this key of the table `election`.
fn why_election_fixed(key: &str) -> &'static str {
    match key {
        "backend"
        | "name"
        | "lease_ms"
        | "margin_ms"
        | "rate_error_ppm"
        | "file.directory"
        | "etcd.prefix"
        | "zookeeper.path"
        | "zookeeper.mode"
        | "zookeeper.session_ms"
        | "quorum.vote_directory"
        | "emergent.minimum_size" => PROMISED,
        _ if key.starts_with("quorum.voter.") || (key.starts_with("peer.") && key.ends_with(".name")) => PROMISED,
        _ if key.ends_with("key_file") || key.ends_with("password_file") => "it is read at the start only",
        "link.sentinel" | "link.hang_limit_ms" => "the sentinel takes it at the start",
        "link.history_bytes" => "its memory is allocated at the start",
        "core" | "priority" => "the threads of the election are started with it",
        "kernel_fence" => "the kernel fence is attached at the start",
        _ if key.starts_with("etcd.") || key.starts_with("zookeeper.") => {
            "the connection to the store is opened at the start"
        }
        _ if ["link.", "peer.", "quorum.", "emergent."].iter().any(|table| key.starts_with(table)) => {
            "the connections to the other gateways are opened at the start"
        }
        _ => "the election takes it at its start",
    }
}

const PROMISED: &str = "the gateway has made promises to the others by it";

/// Whether a key is of a line of an output, by its number or as [`line_name`] names it.
fn is_of_line(key: &str) -> bool {
    key.starts_with("output.") && [".line[", ".line "].iter().any(|line| key.contains(line))
}

/// Name of the channel that a key is of.
fn channel_of(key: &str) -> Option<&str> {
    Some(key.strip_prefix("channel.")?.split_once('.')?.0)
}
