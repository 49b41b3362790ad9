//! `mdgw capture`: records lines to pcapng files.

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4},
    ops::ControlFlow,
    path::PathBuf,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;
use mdgw_feeds::identity::Feed;
use mdgw_runtime::config::Resolved;
use mdgw_status::quantity::Count;
use mdgw_sys::sockets::{Interface, Stamps};
use mdgw_tools::capture::{
    Capture, CaptureLine, CaptureOptions, CaptureProgress, OutputFiles, Tap, TriggerOptions, Triggers, WatchedChannel,
    is_standard_output,
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use super::{
    Outcome, error_chain, is_closed_pipe, print,
    quantity::{parse_bytes, parse_duration_ns},
    replay::parse_feed,
    warn,
};

/// What to capture: the lines of a configuration, or multicast groups given one by one.
///
/// Times are kernel or NIC timestamps in nanoseconds. Each line is an interface in the file, under its own name; the
/// kernel's drop count is in the interface statistics. SIGINT and SIGTERM end the capture cleanly. After a crash the
/// file lacks at most the last 0.1 s and can still be opened.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
mdgw capture [OPTIONS] --out <OUT.pcapng[.zst]> <CONFIG>
       mdgw capture [OPTIONS] --out <OUT.pcapng[.zst]> --group <[NAME=]ADDR:PORT>...")]
#[command(after_help = "\
Examples:
  mdgw capture gateway.toml -o lines.pcapng.zst
  mdgw capture --group A=239.1.1.1:26477 --group B=239.1.1.2:26477 --interface eth1 -o day.pcapng
  mdgw capture gateway.toml --raw -o day.pcapng.zst --rotate-size 1GB --files 24
  mdgw capture gateway.toml --trigger gap,fault --before 10s --after 5s -o gap.pcapng")]
pub(super) struct Args {
    /// Configuration file; its lines are captured.
    #[arg(required_unless_present = "group", conflicts_with = "group")]
    config: Option<PathBuf>,
    /// Only this channel of the configuration; repeat it for several.
    #[arg(long, value_name = "NAME", conflicts_with = "group")]
    channel: Vec<String>,
    /// IPv4 multicast group (or address of this host) and port of a line; repeat for each line. NAME= in front names
    /// the line.
    #[arg(long, value_name = "[NAME=]ADDR:PORT")]
    group: Vec<NamedGroup>,
    /// Interface (name or address) on which groups are joined.
    #[arg(long, value_name = "INTERFACE", conflicts_with = "config")]
    interface: Option<Interface>,
    /// Join for this source only (IGMPv3); repeat for more sources.
    #[arg(long, value_name = "ADDR", conflicts_with = "config")]
    source: Vec<Ipv4Addr>,
    /// Timestamp source: kernel, or NIC where it supports timestamps. With a configuration the source is set per line.
    #[arg(long, value_enum, default_value_t = StampsArg::Kernel, conflicts_with = "config")]
    stamps: StampsArg,
    /// Whole frames by AF_PACKET instead of payloads by sockets; takes CAP_NET_RAW.
    #[arg(long)]
    raw: bool,
    /// Kernel buffer for each line (socket buffer or packet ring). Default: 16MiB, or the line's setting in the
    /// configuration.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    buffer: Option<u64>,
    /// File to write, compressed if it ends in .zst; - is standard output. With rotation or a trigger, number and time
    /// are inserted before the extension. An existing file is never overwritten.
    #[arg(short, long, value_name = "OUT.pcapng[.zst]")]
    out: PathBuf,
    /// Start a new file before the current file exceeds this size (uncompressed).
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    rotate_size: Option<u64>,
    /// Start a new file after this duration.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    rotate_time: Option<u64>,
    /// Keep only the last N files of this capture.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    files: Option<u16>,
    /// Stop after this many packets.
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// Stop after this duration.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    duration: Option<u64>,
    /// Print the summary as one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trigger: TriggerArgs,
}

/// Write only the packets around a gap or fault.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Trigger")]
struct TriggerArgs {
    /// Write nothing until a trigger: gap (messages that no line delivered) or fault (packets that cannot be decoded,
    /// or that the kernel dropped). The groups must be the lines of one channel, A first.
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    trigger: Vec<TriggerArg>,
    /// Keep this much time before the trigger in memory, and write it when the trigger fires.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration_ns, requires = "trigger")]
    before: u64,
    /// Write this much time after the trigger, too.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration_ns, requires = "trigger")]
    after: u64,
    /// Memory for the packets before the trigger; when it is full the oldest packets are discarded.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes, requires = "trigger")]
    memory: u64,
    /// Feed of the groups, where the packets do not identify it.
    #[arg(long, value_name = "FEED", value_parser = parse_feed, requires = "trigger", conflicts_with = "config")]
    feed: Option<Feed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TriggerArg {
    Gap,
    Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StampsArg {
    Kernel,
    Hardware,
}

/// A line of the command line: `A=239.1.1.1:26477`, or the address without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedGroup {
    name: Option<String>,
    address: SocketAddrV4,
}

impl FromStr for NamedGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, address) = match text.split_once('=') {
            Some(("", _)) => return Err("expected a name before =".to_owned()),
            Some((name, address)) => (Some(name.to_owned()), address),
            None => (None, text),
        };
        let address = address.parse().map_err(|_| "expected ADDR:PORT of IPv4, or NAME=ADDR:PORT".to_owned())?;
        Ok(Self { name, address })
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let options = args.options()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
    }
    let capture = Capture::open(&options)?;
    for (line, requested, granted) in capture.capped_buffers() {
        warn(&format!(
            "line {line}: the kernel granted a buffer of {granted} bytes instead of {requested}; raise \
             net.core.rmem_max or grant CAP_NET_ADMIN"
        ));
    }
    let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let mut shown = Instant::now();
    let captured = capture.run(&mut |progress| {
        if shown.elapsed() >= SHOW_INTERVAL {
            shown = Instant::now();
            bar.set_message(progress_line(progress));
            bar.tick();
        }
        if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    let summary = match captured.map_err(anyhow::Error::from) {
        Ok(summary) => summary,
        Err(error) if is_closed_pipe(&error) => return Err(error),
        Err(error) => bail!("{} (everything before this point was kept)", error_chain(&error)),
    };
    let text = if args.json { format!("{}\n", summary.to_json()) } else { summary.to_table() };
    // If packets go to standard output, the summary goes to standard error.
    if is_standard_output(&args.out) {
        io::stderr().write_all(text.as_bytes())?
    } else {
        print(&text)?
    }
    Ok(Outcome::Done)
}

/// Interval between updates of the progress line.
const SHOW_INTERVAL: Duration = Duration::from_millis(250);

fn progress_line(progress: CaptureProgress) -> String {
    let CaptureProgress { packets, dropped, files } = progress;
    format!("{} packets, {} dropped, {} files", Count(packets), Count(dropped), Count(files))
}

impl Args {
    fn options(&self) -> anyhow::Result<CaptureOptions> {
        let (lines, channels) = match &self.config {
            Some(path) => self.lines_of_config(&Resolved::load(path)?)?,
            None => self.lines_of_groups()?,
        };
        let triggers = Triggers {
            gap: self.trigger.trigger.contains(&TriggerArg::Gap),
            fault: self.trigger.trigger.contains(&TriggerArg::Fault),
        };
        let has_trigger = !self.trigger.trigger.is_empty();
        let files = OutputFiles {
            path: self.out.clone(),
            bytes_max: self.rotate_size,
            span_ns_max: self.rotate_time,
            files_max: self.files.map(usize::from),
        };
        files.check(has_trigger).context("capture")?;
        Ok(CaptureOptions {
            lines,
            tap: if self.raw { Tap::Raw } else { Tap::Sockets },
            files,
            trigger: has_trigger.then(|| TriggerOptions {
                triggers,
                channels,
                before_ns: self.trigger.before,
                after_ns: self.trigger.after,
                memory_bytes: usize::try_from(self.trigger.memory).unwrap_or(usize::MAX),
            }),
            packets_max: self.packets,
            duration_ns_max: self.duration,
        })
    }

    /// The lines of the configuration, or only of the channels given by `--channel`.
    fn lines_of_config(&self, config: &Resolved) -> anyhow::Result<(Vec<CaptureLine>, Vec<WatchedChannel>)> {
        let names: Vec<&str> = config.channels.iter().map(|channel| channel.name.as_str()).collect();
        if let Some(unknown) = self.channel.iter().find(|name| !names.contains(&name.as_str())) {
            bail!(
                "capture: there is no channel {unknown} in {}; there are {}",
                config.path.display(),
                names.join(", ")
            );
        }
        let (mut lines, mut channels) = (Vec::new(), Vec::new());
        for channel in &config.channels {
            if !self.channel.is_empty() && !self.channel.contains(&channel.name) {
                continue;
            }
            let first = lines.len();
            lines.extend(channel.lines.iter().map(|line| CaptureLine {
                name: format!("{}.{}", channel.name, line.line),
                address: line.group,
                interface: Some(line.interface.clone()),
                sources: line.sources.clone(),
                buffer_bytes: self.buffer_bytes(line.receive_buffer_bytes),
                stamps: line.stamps,
            }));
            let of_channel = (first..lines.len()).collect();
            channels.push(WatchedChannel::configured(channel.name.clone(), channel.channel_config(), of_channel));
        }
        Ok((lines, channels))
    }

    /// The groups of the command line; with a trigger, they are the lines of one channel.
    fn lines_of_groups(&self) -> anyhow::Result<(Vec<CaptureLine>, Vec<WatchedChannel>)> {
        let mut lines: Vec<CaptureLine> = Vec::new();
        for group in &self.group {
            let name = group.name.clone().unwrap_or_else(|| group.address.to_string());
            ensure!(!lines.iter().any(|line| line.name == name), "capture: two lines are named {name}");
            lines.push(CaptureLine {
                name,
                address: group.address,
                interface: self.interface.clone(),
                sources: self.source.clone(),
                buffer_bytes: self.buffer_bytes(BUFFER_BYTES),
                stamps: match self.stamps {
                    StampsArg::Kernel => Stamps::Kernel,
                    StampsArg::Hardware => Stamps::Hardware,
                },
            });
        }
        let lines_max = 7;
        let has_trigger = !self.trigger.trigger.is_empty();
        ensure!(
            !has_trigger || lines.len() <= lines_max,
            "capture: with --trigger, give the lines of one channel, at most {lines_max}; a configuration describes \
             several channels"
        );
        let name = "of the groups".to_owned();
        let channel = WatchedChannel { name, config: None, feed: self.trigger.feed, lines: (0..lines.len()).collect() };
        Ok((lines, vec![channel]))
    }

    fn buffer_bytes(&self, otherwise: usize) -> usize {
        self.buffer.map_or(otherwise, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// Default receive buffer. Twice that of a gateway line, since a disk can stall for longer than a decoder.
const BUFFER_BYTES: usize = 16 << 20;
