//! `mdgw tail`: receives what a gateway publishes.

mod row;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
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
    identity::{ChannelId, GroupId, Sequence},
    time::TradingDate,
};
use mdgw_subscriber::{
    ConsumerEdges, Item, LineAddress, Output, ReceiverConfig, StartFrom, Subscriber, SubscriberConfig,
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use super::{Outcome, print, run::TsRecvArg, warn};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw tail --line 239.255.77.10:31000 --interface 127.0.0.1 --retransmission 127.0.0.1:31100
  mdgw tail --line 239.1.1.1:31000 --line 239.1.1.2:31000 --interface 10.1.0.7 -o today.dbn.zst")]
pub(super) struct Args {
    /// Output line of the gateway (address:port); once for each.
    #[arg(long = "line", required = true, value_name = "ADDR:PORT")]
    lines: Vec<SocketAddrV4>,
    /// Address of the interface to join on.
    #[arg(long, default_value = "0.0.0.0", value_name = "ADDR")]
    interface: Ipv4Addr,
    /// Retransmission service of a gateway; once for each gateway of the group: where one doesn't answer, the next is asked.
    #[arg(long, value_name = "ADDR:PORT")]
    retransmission: Vec<SocketAddrV4>,
    /// Group to receive.
    #[arg(long, default_value_t = 1, value_name = "N")]
    group: u16,
    /// Channels to receive; all by default.
    #[arg(long, value_delimiter = ',', value_name = "N")]
    channel: Vec<u16>,
    /// TestCli these schemas: mbo, mbp-1, mbp-10, trades, status, definition, imbalance, statistics.
    #[arg(long, value_delimiter = ',', value_parser = parse_schema, value_name = "SCHEMA")]
    schema: Vec<SchemaSet>,
    /// TestCli sessions of this trading date (YYYY-MM-DD).
    #[arg(long, value_name = "DATE")]
    date: Option<TradingDate>,
    /// Receive time of the records: the gateway's, or none, which makes the output a function of the feed alone.
    #[arg(long, value_enum, default_value = "capture")]
    ts_recv: TsRecvArg,
    /// Begin with what is published now instead of the oldest that the gateway still holds of the trading day, its earlier
    /// sessions included.
    #[arg(long)]
    from_now: bool,
    /// Write a DBN file, compressed if it ends in .zst; - is standard output. Without it records are printed.
    #[arg(short, long, value_name = "OUT.dbn[.zst]")]
    out: Option<PathBuf>,
    /// Print records as JSON, one on a line.
    #[arg(long, conflicts_with = "out")]
    json: bool,
    /// End after so many records; what comes after them is nobody's loss.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End when nothing new has come for so long, counted from the start.
    #[arg(long, value_name = "S")]
    exit_idle_s: Option<f64>,
    /// End when every channel's session has ended.
    #[arg(long)]
    until_ended: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
    }
    let mut config =
        SubscriberConfig::new(args.lines.iter().map(|address| LineAddress::new(*address, args.interface)).collect());
    config.services.clone_from(&args.retransmission);
    config.receiver = ReceiverConfig {
        group: GroupId(args.group),
        channels: args.channel.iter().copied().map(ChannelId).collect(),
        start: if args.from_now { StartFrom::Live } else { StartFrom::OldestOfDay },
        ..ReceiverConfig::default()
    };
    let mut subscriber = Subscriber::open(config).context("subscribe")?;
    let mut tail = Tail::new(args)?;
    let mut last_new = Instant::now();
    let mut seen = 0;
    while !stop.load(Ordering::Relaxed) && !tail.is_complete(args) {
        subscriber.poll(POLL, &mut |output| tail.take(&output)).context("receive")?;
        tail.check()?;
        if tail.items != seen {
            (seen, last_new) = (tail.items, Instant::now());
        }
        let idle = args.exit_idle_s.map(Duration::from_secs_f64);
        if idle.is_some_and(|idle| last_new.elapsed() >= idle) {
            break;
        }
    }
    subscriber.finish(&mut |output| tail.take(&output));
    for channel in subscriber.receiver().channels() {
        if channel.statistics().starts_unanswered > 0 {
            let id = channel.id().0;
            warn(&format!(
                "channel {id}: no retransmission service answered, so it begins where it was heard first, without definitions \
                 (does [retransmission] of the gateway allow this host?)"
            ));
        }
    }
    tail.finish()
}

fn parse_schema(text: &str) -> Result<SchemaSet, String> {
    SchemaSet::from_name(text).ok_or_else(|| {
        let names: Vec<_> = SchemaSet::NAMES.iter().map(|(_, name)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// How long a wait may last before the ends are looked for.
const POLL: Duration = Duration::from_millis(50);

/// Where records go.
#[derive(Debug)]
struct Tail {
    edges: ConsumerEdges,
    schemas: Option<SchemaSet>,
    date: Option<TradingDate>,
    /// Most records wanted.
    count: Option<u64>,
    writer: Option<DbnFileWriter>,
    /// Of the file.
    dataset: Option<&'static str>,
    is_json: bool,
    /// What instruments are called, by channel and number.
    symbols: BTreeMap<(ChannelId, u32), String>,
    /// Everything that came, to tell silence from activity.
    items: u64,
    records: u64,
    gaps: u64,
    lost: u64,
    /// Sessions under way and ended, by channel.
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
            gaps: 0,
            lost: 0,
            open_sessions: Vec::new(),
            failure: None,
        })
    }

    fn take(&mut self, output: &Output<'_>) {
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
                            "channel {} is of {dataset}, and a DBN file holds one dataset: choose with --channel",
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
                let text = format!("gap [{}, {}): the venue's lines did not bring it", gap.first().0, gap.next().0);
                self.report(&format!("channel {}: {text}", output.channel.0))
            }
            Item::Lost(gap) => {
                self.lost += gap.count();
                let text = format!("lost [{}, {}) on the way from the gateway", gap.first().0, gap.next().0);
                self.report(&format!("channel {}: {text}", output.channel.0))
            }
            Item::State(state) => self.report(&format!("channel {}: {state:?}", output.channel.0)),
            Item::Message { .. } | Item::Definition { .. } | Item::Snapshot { .. } => self.records_of(output),
        }
    }

    fn records_of(&mut self, output: &Output<'_>) -> anyhow::Result<()> {
        // Definitions told again at a late start name instruments; as records they stand at their own place.
        let is_repeated_definition = matches!(output.item, Item::Definition { .. });
        let Self { edges, writer, schemas, count, records, is_json, symbols, .. } = self;
        let mut outcome = Ok(());
        let mut index = 0;
        edges.deliver(output, |handed| {
            if outcome.is_err() {
                return;
            }
            match handed {
                EdgeOutput::Mapping { id, symbol } => {
                    symbols.insert((output.channel, id.0), String::from_utf8_lossy(symbol).into_owned());
                    if let Some(writer) = writer {
                        writer.mapping(symbol, id, output.session.date);
                    }
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

    fn set_session_open(&mut self, channel: ChannelId, is_under_way: bool) {
        match self.open_sessions.iter_mut().find(|(known, _)| *known == channel) {
            Some((_, state)) => *state = is_under_way,
            None => self.open_sessions.push((channel, is_under_way)),
        }
    }

    /// What isn't a record goes where it can't get between them.
    #[allow(clippy::unnecessary_wraps, reason = "one arm among others that can fail")]
    fn report(&self, text: &str) -> anyhow::Result<()> {
        warn(text);
        Ok(())
    }

    fn is_complete(&self, args: &Args) -> bool {
        let has_ended =
            !self.open_sessions.is_empty() && self.open_sessions.iter().all(|(_, is_under_way)| !is_under_way);
        (args.until_ended && has_ended) || self.is_full()
    }

    fn is_full(&self) -> bool {
        self.count.is_some_and(|count| self.records >= count)
    }

    fn check(&mut self) -> anyhow::Result<()> {
        self.failure.take().map_or(Ok(()), Err)?;
        // A file without room for more is finished: its error says what is kept.
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
            bail!("{} messages were lost on the way from the gateway", self.lost);
        }
        // A gap of the venue's is told in the stream; the answer to "all of it?" is no.
        Ok(if self.gaps > 0 { Outcome::No } else { Outcome::Done })
    }
}

/// One record as a line of the table, the first one under its heading.
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

/// One record as an object on a line, after the name that it was published under.
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

/// The input sequence that an item with records is named by.
fn sequence(output: &Output<'_>) -> Sequence {
    match output.item {
        Item::Message { header, .. } | Item::Definition { header, .. } | Item::Snapshot { header, .. } => {
            Sequence(header.sequence.get())
        }
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
                tail.take(&Output { channel: ChannelId(channel), session, item: Item::Session });
            }
            let outcome = tail.check().map_err(|error| error.to_string());
            assert_eq!(outcome.is_err(), is_refused, "{outcome:?}");
            assert!(outcome.err().is_none_or(|text| text.contains("channel 3 is of IEXG.TOPS")));
        }
    }
}
