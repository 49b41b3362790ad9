//! `mdgw tail`: subscribes to a gateway's output.

mod row;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use dbn::{
    decode::{DecodeRecordRef as _, dbn::RecordDecoder},
    encode::EncodeRecordRef as _,
};
use mdgw_captures::dbn_file::{DbnFileOptions, DbnFileWriter};
use mdgw_feeds::{
    channel::SchemaSet,
    consumer_edge::EdgeOutput,
    drop_reason::DropReason,
    frame::FrameFlags,
    identity::{ChannelId, GroupId, Sequence},
    time::TradingDate,
};
use mdgw_runtime::config::{PUBLISHED_BYTES_MAX, Resolved, resolved::OutputLine};
use mdgw_subscriber::{
    BookState, ConsumerEdges, Item, LineAddress, Output, ReceiverConfig, StartFrom, Subscriber, SubscriberConfig,
    TagPolicy,
};
use mdgw_sys::sockets::Interface;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use super::{
    Outcome, print, protect_secrets,
    run::TsRecvArg,
    subscription::{address_of, is_refusal, line_address, senders_of, service_of},
    tag_policy, warn,
};

/// What to subscribe to: the output of a configuration, or output lines given one by one.
///
/// From a configuration, the lines, their interfaces, the retransmission service and the snapshot group are read; --line,
/// --interface, --retransmission and --snapshot-group each override it. On the gateway's own host, its output lines need `loopback = true`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("subject").required(true).multiple(true).args(["config", "lines"])))]
#[command(after_help = "\
Exit code 0: everything was received. 1: the venue's lines had gaps, messages of the gateway were lost, or packets were \
refused, for example since their epoch was forged; the counts are on standard error. 2: tail could not run, or it \
received rival epochs at its start and no retransmission service named which of them is the gateways'.

Examples:
  mdgw tail gateway.toml
  mdgw tail gateway.toml --group 2 --interface eth1
  mdgw tail gateway.toml --source 10.1.0.5 --source 10.1.0.6
  mdgw tail gateway.toml --tag-key /etc/mdgw/output.key
  mdgw tail --line 239.255.77.10:31000 --interface 127.0.0.1 --retransmission 127.0.0.1:31100
  mdgw tail --line 239.255.77.10:31000 --from-snapshot --snapshot-group 239.255.77.11:31001
  mdgw tail --line 239.1.1.1:31000 --line 239.1.1.2:31000 --interface 10.1.0.7 -o today.dbn.zst")]
pub(super) struct Args {
    /// Configuration file of the gateway; its output is received.
    config: Option<PathBuf>,
    /// Output line of the gateway (address:port); repeat for each line.
    #[arg(long = "line", value_name = "ADDR:PORT")]
    lines: Vec<SocketAddrV4>,
    /// Interface to join on (name or address). Default: the configured interface of each line, or the kernel's choice.
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<Interface>,
    /// Address of a gateway; repeat for each gateway. Other senders are not received (source-specific join, IGMPv3).
    /// Default: `source` of the configured lines, or any sender.
    #[arg(long = "source", value_name = "ADDR")]
    sources: Vec<Ipv4Addr>,
    /// Key file of packet tags; repeat for each key that is accepted. Packets without a valid tag are refused.
    /// Default: `tag_key_files` of the configured output, or no tags.
    #[arg(long = "tag-key", value_name = "FILE")]
    tag_keys: Vec<PathBuf>,
    /// Retransmission service of a gateway; repeat for each gateway of the group. If one service does not answer, the
    /// next is asked.
    #[arg(long, value_name = "ADDR:PORT")]
    retransmission: Vec<SocketAddrV4>,
    /// Group to receive. Default: the first group of the configuration's first output, or 1.
    #[arg(long, value_name = "N")]
    group: Option<u16>,
    /// Channels to receive; all by default.
    #[arg(long, value_delimiter = ',', value_name = "N")]
    channel: Vec<u16>,
    /// Only these schemas: mbo, mbp-1, mbp-10, trades, status, definition, imbalance, statistics.
    #[arg(long, value_delimiter = ',', value_parser = parse_schema, value_name = "SCHEMA")]
    schema: Vec<SchemaSet>,
    /// Only sessions of this trading date (YYYY-MM-DD).
    #[arg(long, value_name = "DATE")]
    date: Option<TradingDate>,
    /// Receive time of the records: the gateway's, or none (then the output depends on the feed only).
    #[arg(long, value_enum, default_value = "capture")]
    ts_recv: TsRecvArg,
    /// Start with the current message instead of the oldest message of the trading day that the gateway still holds.
    #[arg(long)]
    from_now: bool,
    /// Start with a snapshot of the books, then with the messages behind it. Needs a service with `snapshots = true`, or the
    /// snapshot group, which is used where no service has a snapshot.
    #[arg(long, conflicts_with = "from_now")]
    from_snapshot: bool,
    /// After a loss, write a snapshot of the books again, and the messages behind it once more, with the flag SNAPSHOT.
    /// Needs a service with `snapshots = true`, or the snapshot group.
    #[arg(long)]
    rebuild: bool,
    /// Snapshot group of the gateways (address:port), joined while a snapshot is needed. Default: `address` of the
    /// configured `[output.snapshots]`, or none.
    #[arg(long, value_name = "ADDR:PORT")]
    snapshot_group: Option<SocketAddrV4>,
    /// Write a DBN file, compressed if it ends in .zst; - is standard output. Without it records are printed.
    #[arg(short, long, value_name = "OUT.dbn[.zst]")]
    out: Option<PathBuf>,
    /// Print records as JSON, one on a line.
    #[arg(long, conflicts_with = "out")]
    json: bool,
    /// Exit after this many records.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Exit when nothing new was received for this many seconds.
    #[arg(long, value_name = "S")]
    exit_idle_s: Option<f64>,
    /// Exit when the session of every channel has ended.
    #[arg(long)]
    until_ended: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
    }
    let mut subscriber = Subscriber::open(args.subscription()?).context("subscribe")?;
    let mut tail = Tail::new(args)?;
    let begun = Instant::now();
    let mut last_new = begun;
    let mut seen = 0;
    let mut has_warned = false;
    let mut ended = Ok(());
    while !stop.load(Ordering::Relaxed) && !tail.is_complete(args) {
        if let Err(error) = subscriber.poll(POLL, &mut |output| tail.accept(&output)) {
            // The summary below says what was refused until now.
            ended = Err(error).context("receive");
            break;
        }
        tail.check()?;
        if tail.items != seen {
            (seen, last_new) = (tail.items, Instant::now());
        }
        if !has_warned && subscriber.receiver().packets() == 0 && begun.elapsed() >= SILENCE_MAX {
            has_warned = true;
            warn(NO_PACKET);
        }
        let idle = args.exit_idle_s.map(Duration::from_secs_f64);
        if idle.is_some_and(|idle| last_new.elapsed() >= idle) {
            break;
        }
    }
    subscriber.finish(&mut |output| tail.accept(&output));
    if !has_warned && subscriber.receiver().packets() == 0 {
        warn(NO_PACKET);
    }
    for channel in subscriber.receiver().channels() {
        if channel.statistics().starts_unanswered > 0 {
            let id = channel.id().0;
            warn(&format!(
                "channel {id}: no retransmission service answered; starting at the first packet received, without \
                 definitions (does [retransmission].allowed of the gateway include this host?)"
            ));
        }
    }
    for channel in subscriber.receiver().channels().filter(|channel| channel.statistics().snapshots_unavailable > 0) {
        let id = channel.id().0;
        warn(&format!(
            "channel {id}: no snapshot that could be used came (is [retransmission].snapshots true, or [output.snapshots] there, and are \
             the gateway's own books right?)"
        ));
    }
    let lacking: u64 =
        subscriber.receiver().channels().map(|channel| channel.statistics().definitions_incomplete).sum();
    if lacking > 0 {
        warn(&format!("at {lacking} starts a retransmission service did not send all of its definitions"));
    }
    let mut refused: Vec<(DropReason, u64)> =
        subscriber.receiver().drops().iter().filter(|(reason, count)| *count > 0 && is_refusal(*reason)).collect();
    let sources_refused = subscriber.statistics().sources_refused;
    if sources_refused > 0 {
        refused.push((DropReason::SourceUnexpected, sources_refused));
    }
    for (reason, count) in &refused {
        warn(&format!("refused {count} packets: {} ({})", reason.name(), reason.help()));
    }
    let incomplete: u64 =
        subscriber.receiver().channels().map(|channel| channel.statistics().sessions_incomplete).sum();
    if incomplete > 0 {
        warn(&format!(
            "{incomplete} sessions were left although no retransmission service knew where they ended: messages may be missing"
        ));
    }
    let outcome = tail.finish()?;
    ended?;
    Ok(if refused.is_empty() && incomplete == 0 { outcome } else { Outcome::No })
}

impl Args {
    /// Lines, services and group of the configuration, if one is given; each is overridden by its option.
    fn subscription(&self) -> anyhow::Result<SubscriberConfig> {
        let configured = self.config.as_deref().map(|path| self.configured(path)).transpose()?;
        let Configured { group, lines: configured_lines, services, snapshot_group, sources, tags } =
            configured.unwrap_or_default();
        let interface = self.interface.as_ref().map(address_of).transpose()?.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let lines = if self.lines.is_empty() {
            configured_lines
        } else {
            self.lines.iter().map(|address| LineAddress::new(*address, interface)).collect()
        };
        let snapshot_group =
            self.snapshot_group.map_or(snapshot_group, |address| Some(LineAddress::new(address, interface)));
        let mut config = SubscriberConfig::new(lines);
        config.snapshot_group = snapshot_group.filter(|_| self.from_snapshot || self.rebuild);
        config.services = if self.retransmission.is_empty() { services } else { self.retransmission.clone() };
        config.sources = if self.sources.is_empty() { sources } else { self.sources.clone() };
        let tags = if self.tag_keys.is_empty() { tags } else { tag_policy(&self.tag_keys)? };
        config.receiver = ReceiverConfig {
            tags,
            packet_bytes_max: usize::try_from(PUBLISHED_BYTES_MAX)?,
            group: self.group.map_or(group, GroupId),
            channels: self.channel.iter().copied().map(ChannelId).collect(),
            start: match (self.from_now, self.from_snapshot) {
                (true, _) => StartFrom::Live,
                (_, true) => StartFrom::Snapshot,
                _ => StartFrom::OldestOfDay,
            },
            rebuilds_books: self.rebuild,
            ..ReceiverConfig::default()
        };
        Ok(config)
    }

    /// The configured output that carries the group.
    fn configured(&self, path: &Path) -> anyhow::Result<Configured> {
        let config = Resolved::load(path)?;
        let Some(group) =
            self.group.map(GroupId).or_else(|| config.outputs.iter().find_map(|output| output.groups.first().copied()))
        else {
            bail!("tail: {} has no [[output]]", path.display());
        };
        let Some(output) = config.outputs.iter().find(|output| output.groups.contains(&group)) else {
            let known = config.outputs.iter().flat_map(|output| &output.groups);
            let known: Vec<String> = known.map(|group| group.0.to_string()).collect();
            bail!("tail: no output of {} carries group {}; groups: {}", path.display(), group.0, known.join(", "));
        };
        let lines = if self.lines.is_empty() { output.lines.as_slice() } else { &[] };
        let group_line = output.snapshots.as_ref().map(|snapshots| &snapshots.line);
        let group_line = group_line.filter(|_| self.snapshot_group.is_none() && (self.from_snapshot || self.rebuild));
        let sources = senders_of(lines.iter().chain(group_line));
        let address = |line: &OutputLine| line_address(line, self.interface.as_ref());
        let snapshot_group = group_line.map(address).transpose()?;
        let lines = lines.iter().map(address).collect::<anyhow::Result<_>>()?;
        let tags = if self.tag_keys.is_empty() {
            if !output.tag_key_files.is_empty() {
                protect_secrets()?;
            }
            output.tag_policy()?
        } else {
            TagPolicy::default()
        };
        Ok(Configured {
            group,
            lines,
            services: service_of(&config).into_iter().collect(),
            snapshot_group,
            sources,
            tags,
        })
    }
}

/// What a configuration says about the subscription.
#[derive(Debug)]
struct Configured {
    group: GroupId,
    lines: Vec<LineAddress>,
    services: Vec<SocketAddrV4>,
    snapshot_group: Option<LineAddress>,
    sources: Vec<Ipv4Addr>,
    tags: TagPolicy,
}

impl Default for Configured {
    fn default() -> Self {
        let tags = TagPolicy::default();
        let (lines, services, sources) = (Vec::new(), Vec::new(), Vec::new());
        Self { group: GroupId(1), lines, services, snapshot_group: None, sources, tags }
    }
}

fn parse_schema(text: &str) -> Result<SchemaSet, String> {
    SchemaSet::from_name(text).ok_or_else(|| {
        let names: Vec<_> = SchemaSet::NAMES.iter().map(|(_, name)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Longest wait for packets before the exit conditions are checked.
const POLL: Duration = Duration::from_millis(50);
/// How long nothing may arrive at the start. A leader sends a heartbeat each second, unless configured otherwise.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const NO_PACKET: &str =
    "no packet has arrived on any line: check the addresses, the interface, and whether a gateway sends from --source";

/// Writes or prints the received records, and counts gaps and losses.
#[derive(Debug)]
struct Tail {
    edges: ConsumerEdges,
    schemas: Option<SchemaSet>,
    date: Option<TradingDate>,
    /// Stop after this many records.
    count: Option<u64>,
    writer: Option<DbnFileWriter>,
    /// Dataset of the DBN file, set by the first session.
    dataset: Option<&'static str>,
    is_json: bool,
    /// Symbols by channel and instrument id.
    symbols: BTreeMap<(ChannelId, u32), String>,
    /// All items received, for `--exit-idle-s`.
    items: u64,
    records: u64,
    /// Records of another length than their type has: neither text nor a DBN file has a form for them.
    skipped_records: u64,
    gaps: u64,
    lost: u64,
    /// Whether the session of a channel is still open, by channel.
    open_sessions: Vec<(ChannelId, bool)>,
    failure: Option<anyhow::Error>,
}

impl Tail {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let schemas = args.schema.iter().copied().reduce(SchemaSet::with);
        let schema = match args.schema.as_slice() {
            [only] => SchemaSet::NAMES.iter().find(|(known, _)| known == only).and_then(|(_, name)| name.parse().ok()),
            _ => None,
        };
        let writer = args
            .out
            .as_ref()
            .map(|path| {
                DbnFileWriter::create(path, DbnFileOptions { dataset: String::new(), schema })
                    .with_context(|| format!("write {}", path.display()))
            })
            .transpose()?;
        Ok(Self {
            edges: ConsumerEdges::new(args.ts_recv.into()),
            schemas,
            date: args.date,
            count: args.count,
            writer,
            dataset: None,
            is_json: args.json,
            symbols: BTreeMap::new(),
            items: 0,
            records: 0,
            skipped_records: 0,
            gaps: 0,
            lost: 0,
            open_sessions: Vec::new(),
            failure: None,
        })
    }

    fn accept(&mut self, output: &Output<'_>) {
        self.items += 1;
        if self.failure.is_none()
            && let Err(error) = self.try_accept(output)
        {
            self.failure = Some(error);
        }
    }

    fn try_accept(&mut self, output: &Output<'_>) -> anyhow::Result<()> {
        if self.is_full() || self.date.is_some_and(|date| date != output.session.date) {
            return Ok(());
        }
        match output.item {
            Item::Session => {
                self.set_session_open(output.channel, true);
                if let Some(writer) = &mut self.writer {
                    let dataset = output.session.feed.dataset();
                    if *self.dataset.get_or_insert(dataset) != dataset {
                        bail!(
                            "channel {} belongs to dataset {dataset}; a DBN file holds one dataset: choose with \
                             --channel",
                            output.channel.0
                        );
                    }
                    writer.set_dataset(dataset);
                }
                self.report(&format!("channel {}: session {}", output.channel.0, output.session))
            }
            Item::EndOfSession => {
                self.set_session_open(output.channel, false);
                self.report(&format!("channel {}: session {} has ended", output.channel.0, output.session))
            }
            Item::Gap(gap) => {
                self.gaps += gap.count();
                let text =
                    format!("gap [{}, {}): not received on any of the venue's lines", gap.first().0, gap.next().0);
                self.report(&format!("channel {}: {text}", output.channel.0))
            }
            Item::Lost(gap) => {
                self.lost += gap.count();
                let text =
                    format!("lost [{}, {}): published by the gateway, not received here", gap.first().0, gap.next().0);
                self.report(&format!("channel {}: {text}", output.channel.0))
            }
            Item::Books(BookState::Suspect) => self.report(&format!("channel {}: books are suspect", output.channel.0)),
            Item::Books(BookState::Right) => {
                self.report(&format!("channel {}: books are right again, from a snapshot", output.channel.0))
            }
            Item::State(state) => self.report(&format!("channel {}: {state:?}", output.channel.0)),
            Item::Snapshot { header, .. } => {
                if FrameFlags(header.flags).contains(FrameFlags::FIRST_PART) {
                    let (channel, next) = (output.channel.0, header.sequence.get());
                    self.report(&format!("channel {channel}: snapshot of the state before message {next}"))?;
                }
                self.records_of(output)
            }
            Item::Message { .. } | Item::Definition { .. } | Item::Repeated { .. } => self.records_of(output),
        }
    }

    fn records_of(&mut self, output: &Output<'_>) -> anyhow::Result<()> {
        // Definitions repeated at a late start only name instruments: as records they appear at their own position.
        let is_repeated_definition = matches!(output.item, Item::Definition { .. });
        let Self { edges, writer, schemas, count, records, skipped_records, is_json, symbols, .. } = self;
        let mut outcome = Ok(());
        let mut index = 0;
        edges.deliver(output, |edge_output| {
            if outcome.is_err() {
                return;
            }
            match edge_output {
                EdgeOutput::Mapping { id, symbol } => {
                    symbols.insert((output.channel, id.0), String::from_utf8_lossy(symbol).into_owned());
                    if let Some(writer) = writer {
                        writer.mapping(symbol, id, output.session.date);
                    }
                }
                EdgeOutput::OtherLength { .. } => {
                    index += 1;
                    *skipped_records += 1;
                }
                EdgeOutput::Record { rtype, bytes } => {
                    let position = index;
                    index += 1;
                    let schema = SchemaSet::of_rtype(rtype);
                    let is_wanted = schema.is_some_and(|schema| schemas.is_none_or(|wanted| wanted.contains(schema)));
                    if !is_wanted || is_repeated_definition || count.is_some_and(|count| *records >= count) {
                        return;
                    }
                    *records += 1;
                    outcome = match writer {
                        Some(writer) => {
                            writer.record(bytes);
                            Ok(())
                        }
                        None if *is_json => show_json(output, position, bytes),
                        None => show(output, position, symbols, *records == 1, bytes),
                    };
                }
            }
        });
        outcome
    }

    fn set_session_open(&mut self, channel: ChannelId, is_open: bool) {
        match self.open_sessions.iter_mut().find(|(known, _)| *known == channel) {
            Some((_, state)) => *state = is_open,
            None => self.open_sessions.push((channel, is_open)),
        }
    }

    /// Prints events to standard error, so that they do not mix with records.
    #[allow(clippy::unnecessary_wraps, reason = "one arm among others that can fail")]
    fn report(&self, text: &str) -> anyhow::Result<()> {
        warn(text);
        Ok(())
    }

    fn is_complete(&self, args: &Args) -> bool {
        let has_ended = !self.open_sessions.is_empty() && self.open_sessions.iter().all(|(_, is_open)| !is_open);
        (args.until_ended && has_ended) || self.is_full()
    }

    fn is_full(&self) -> bool {
        self.count.is_some_and(|count| self.records >= count)
    }

    fn check(&mut self) -> anyhow::Result<()> {
        self.failure.take().map_or(Ok(()), Err)?;
        // After a write error the file is finished, and its error names what was kept.
        let failed = self.writer.take_if(|writer| writer.has_failed());
        Ok(failed.map_or(Ok(()), |writer| writer.finish().map(drop))?)
    }

    fn finish(mut self) -> anyhow::Result<Outcome> {
        self.check()?;
        if let Some(writer) = self.writer.take() {
            let written = writer.finish()?;
            warn(&format!("wrote {} records of {} instruments", written.record_count, written.symbol_count));
        }
        if self.lost > 0 {
            warn(&format!("{} messages published by the gateway were not received here", self.lost));
        }
        if self.skipped_records > 0 {
            warn(&format!("skipped {} records of another length than their type has", self.skipped_records));
        }
        // Gaps of the venue's lines are part of the stream; exit code 1 reports them too.
        Ok(if self.gaps > 0 || self.lost > 0 { Outcome::No } else { Outcome::Done })
    }
}

/// Prints one record as a table row; the heading comes before the first row.
fn show(
    output: &Output<'_>,
    index: u64,
    symbols: &BTreeMap<(ChannelId, u32), String>,
    is_first: bool,
    record: &[u8],
) -> anyhow::Result<()> {
    let mut decoder = RecordDecoder::new(record);
    let Some(record) = decoder.decode_record_ref().context("read a record")? else { return Ok(()) };
    let symbol = symbols.get(&(output.channel, record.header().instrument_id)).map(String::as_str);
    let Output { channel, session, .. } = *output;
    let name = row::RowName { channel, session, sequence: sequence(output), index, symbol };
    let mut text = if is_first { row::HEADING.to_owned() } else { String::new() };
    row::write(&name, record, &mut text)?;
    print(&text)
}

/// Prints one record as a JSON object on one line: first the name that it was published under, then the fields.
fn show_json(output: &Output<'_>, index: u64, record: &[u8]) -> anyhow::Result<()> {
    let mut decoder = RecordDecoder::new(record);
    let Some(record) = decoder.decode_record_ref().context("read a record")? else { return Ok(()) };
    let mut bytes = Vec::new();
    dbn::encode::json::Encoder::new(&mut bytes, false, true, true)
        .encode_record_ref(record)
        .context("write a record as JSON")?;
    let text = String::from_utf8(bytes).context("write a record as JSON")?;
    let (channel, session) = (output.channel.0, output.session);
    let name = format!(
        "\"channel\":{channel},\"session\":\"{session}\",\"input_sequence\":{},\"index\":{index}",
        sequence(output).0
    );
    print(&text.replacen('{', &format!("{{{name},"), 1))
}

/// Input sequence of an item with records; 0 for other items.
fn sequence(output: &Output<'_>) -> Sequence {
    match output.item {
        Item::Message { header, .. }
        | Item::Definition { header, .. }
        | Item::Snapshot { header, .. }
        | Item::Repeated { header, .. } => Sequence(header.sequence.get()),
        _ => Sequence(0),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use mdgw_feeds::identity::{Feed, Session};

    use super::*;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    fn subscription(more: &[&str]) -> anyhow::Result<SubscriberConfig> {
        let typed = std::iter::once("tail").chain(more.iter().copied());
        TestCli::try_parse_from(typed)?.args.subscription()
    }

    /// A shipped configuration.
    fn shipped(name: &str) -> String {
        format!("{}/../../ops/config/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn a_configuration_gives_lines_interfaces_service_and_group() {
        let config = subscription(&[&shipped("loopback.toml")]).unwrap();
        let line = LineAddress::new("239.255.77.10:31000".parse().unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(config.lines, [line], "the name lo is resolved to its address");
        assert_eq!(config.services, ["127.0.0.1:31100".parse().unwrap()]);
        assert_eq!(config.receiver.group, GroupId(1));
    }

    #[test]
    fn options_override_the_configuration_each_on_its_own() {
        let path = shipped("mdgw.toml");
        // Interfaces of the shipped configuration do not exist here, and with --interface they need not.
        let config = subscription(&[&path, "--interface", "10.1.0.7", "--group", "2"]).unwrap();
        let interface = Ipv4Addr::new(10, 1, 0, 7);
        let lines = ["239.66.1.1:31000", "239.66.1.2:31000"].map(|a| LineAddress::new(a.parse().unwrap(), interface));
        assert_eq!((config.lines.as_slice(), config.receiver.group), (&lines[..], GroupId(2)));
        assert_eq!(config.services, ["10.20.0.5:31100".parse().unwrap()]);
        let by_name = subscription(&[&path, "--interface", "lo"]).unwrap().lines;
        assert!(by_name.iter().all(|line| line.interface == Ipv4Addr::LOCALHOST), "{by_name:?}");
        let missing = subscription(&["--line", "239.1.1.1:7", "--interface", "nosuch0"]).unwrap_err();
        assert!(format!("{missing:#}").contains("no interface nosuch0; available: "), "{missing:#}");

        let config = subscription(&[&path, "--line", "239.1.1.1:7", "--retransmission", "10.0.0.9:8"]).unwrap();
        assert_eq!(config.lines, [LineAddress::new("239.1.1.1:7".parse().unwrap(), Ipv4Addr::UNSPECIFIED)]);
        assert_eq!(config.services, ["10.0.0.9:8".parse().unwrap()]);
    }

    #[test]
    fn the_snapshot_group_is_received_where_a_snapshot_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("with_group.toml");
        let table = "[output.snapshots]\naddress = \"239.255.77.12:31000\"\ninterface = \"lo\"\n[retransmission]";
        let text = std::fs::read_to_string(shipped("loopback.toml")).unwrap().replacen("[retransmission]", table, 1);
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let group = |more: &[&str]| subscription(&[&[path], more].concat()).unwrap().snapshot_group;
        let configured = LineAddress::new("239.255.77.12:31000".parse().unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(group(&["--from-snapshot"]), Some(configured));
        assert_eq!(group(&["--rebuild"]), Some(configured));
        assert_eq!(group(&[]), None);
        let named = ["--rebuild", "--snapshot-group", "239.1.1.5:7", "--interface", "10.1.0.7"];
        let address = LineAddress::new("239.1.1.5:7".parse().unwrap(), Ipv4Addr::new(10, 1, 0, 7));
        assert_eq!(group(&named), Some(address));
    }

    #[test]
    fn without_a_configuration_the_group_is_1_and_a_line_is_required() {
        let config = subscription(&["--line", "239.1.1.1:7"]).unwrap();
        assert_eq!((config.receiver.group, config.services.len()), (GroupId(1), 0));
        assert!(subscription(&[]).is_err());
    }

    #[test]
    fn a_group_that_no_output_carries_is_refused() {
        let error = subscription(&[&shipped("mdgw.toml"), "--group", "7"]).unwrap_err().to_string();
        assert!(error.contains("carries group 7; groups: 1, 2"), "{error}");
    }

    #[test]
    fn a_dbn_file_holds_one_dataset_and_the_table_any() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.dbn");
        for (more, is_refused) in [(vec!["-o", out.to_str().unwrap()], true), (vec![], false)] {
            let line = ["tail", "--line", "239.1.1.1:5000"];
            let mut tail = Tail::new(&TestCli::parse_from(line.into_iter().chain(more)).args).unwrap();
            for (channel, feed) in [(1, Feed::NasdaqItch), (2, Feed::NasdaqItch), (3, Feed::IexTops)] {
                let date = TradingDate::from_yyyymmdd(20_190_130).unwrap();
                let session = Session { feed, date, restart: 0 };
                assert!(tail.failure.is_none());
                let (channel, reported_through) = (ChannelId(channel), Sequence(0));
                tail.accept(&Output { channel, session, reported_through, item: Item::Session });
            }
            let outcome = tail.check().map_err(|error| error.to_string());
            assert_eq!(outcome.is_err(), is_refused, "{outcome:?}");
            assert!(outcome.err().is_none_or(|text| text.contains("channel 3 belongs to dataset IEXG.TOPS")));
        }
    }
}
