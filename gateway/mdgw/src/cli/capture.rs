//! `mdgw capture`: lines to pcapng files.

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
use mdgw_sys::sockets::{Interface, Stamps};
use mdgw_tools::{
    capture::{
        Capture, CaptureLine, CaptureOptions, CaptureProgress, OutputFiles, Tap, TriggerOptions, Triggers,
        WatchedChannel, is_standard_output,
    },
    replay::summary::grouped,
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

/// Lines of a configuration, or groups that are named one by one.
///
/// Times are nanoseconds by the stamps of the kernel or the NIC; each line is an interface of the file, with its name,
/// and the kernel's count of drops stands in its statistics. SIGINT and SIGTERM end the capture in order; a file that a
/// crash cut lacks the last tenth of a second and opens.
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
    /// Configuration whose lines are captured.
    #[arg(required_unless_present = "group", conflicts_with = "group")]
    config: Option<PathBuf>,
    /// Only this channel of the configuration; repeat it for several.
    #[arg(long, value_name = "NAME", conflicts_with = "group")]
    channel: Vec<String>,
    /// Group (or address of this host) and port of a line, by IPv4 as all lines; repeat it. NAME= before it names the line.
    #[arg(long, value_name = "[NAME=]ADDR:PORT")]
    group: Vec<NamedGroup>,
    /// Interface (name or address) on which groups are joined.
    #[arg(long, value_name = "INTERFACE", conflicts_with = "config")]
    interface: Option<Interface>,
    /// Join for this source alone.
    #[arg(long, value_name = "ADDR", conflicts_with = "config")]
    source: Option<Ipv4Addr>,
    /// Whose stamps: the kernel's, or the NIC's where it makes them. A configuration says so for each line.
    #[arg(long, value_enum, default_value_t = StampsArg::Kernel, conflicts_with = "config")]
    stamps: StampsArg,
    /// Whole frames by AF_PACKET instead of payloads by sockets; takes CAP_NET_RAW.
    #[arg(long)]
    raw: bool,
    /// Room in the kernel for each line: of its socket, or of its ring. Default: 16MiB, or what the line's
    /// configuration says.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    buffer: Option<u64>,
    /// File to write, compressed if it ends in .zst; - is standard output. With rotation or a trigger, number and time
    /// stand before the ending. A file that is there is never written over.
    #[arg(short, long, value_name = "OUT.pcapng[.zst]")]
    out: PathBuf,
    /// A file is followed by the next before it grows beyond that, counted before compression.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    rotate_size: Option<u64>,
    /// A file is followed by the next when it has packets of so long.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    rotate_time: Option<u64>,
    /// Of the files of this capture, only the last N stay.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    files: Option<u16>,
    /// End after so many packets.
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// End after so long.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    duration: Option<u64>,
    /// End with one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trigger: TriggerArgs,
}

/// Only what stands around a gap or a fault.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Trigger")]
struct TriggerArgs {
    /// Write nothing until this is seen: gap (messages that no line brought), fault (packets that can't be understood,
    /// or that the kernel dropped). Groups are then the lines of one channel, A first.
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    trigger: Vec<TriggerArg>,
    /// Packets of so long before it are kept in memory, and written when it is seen.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration_ns, requires = "trigger")]
    before: u64,
    /// Packets of so long after it are written too.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration_ns, requires = "trigger")]
    after: u64,
    /// Memory for what is kept; when it is full the oldest packets go.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes, requires = "trigger")]
    memory: u64,
    /// Feed of the groups, where their packets don't tell it.
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

/// `A=239.1.1.1:26477`, or the address alone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedGroup {
    name: Option<String>,
    address: SocketAddrV4,
}

impl FromStr for NamedGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, address) = match text.split_once('=') {
            Some(("", _)) => return Err("a name stands before =".to_owned()),
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
            "line {line}: the kernel gives a buffer of {granted} bytes, not {requested}; raise net.core.rmem_max or give \
             CAP_NET_ADMIN"
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
        Err(error) => bail!("{} (everything before was kept)", error_chain(&error)),
    };
    let text = if args.json { format!("{}\n", summary.to_json()) } else { summary.to_table() };
    // Where packets go to standard output, the summary must not.
    if is_standard_output(&args.out) {
        io::stderr().write_all(text.as_bytes())?
    } else {
        print(&text)?
    }
    Ok(Outcome::Done)
}

/// How often a terminal is told how it goes.
const SHOW_INTERVAL: Duration = Duration::from_millis(250);

fn progress_line(progress: CaptureProgress) -> String {
    let CaptureProgress { packets, dropped, files } = progress;
    format!("{} packets, {} dropped, {} files", grouped(packets), grouped(dropped), grouped(files))
}

impl Args {
    fn options(&self) -> anyhow::Result<CaptureOptions> {
        let (lines, channels) = match &self.config {
            Some(path) => self.configured(&Resolved::load(path)?)?,
            None => self.grouped()?,
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

    /// The lines of a configuration, or of those of its channels that were named.
    fn configured(&self, config: &Resolved) -> anyhow::Result<(Vec<CaptureLine>, Vec<WatchedChannel>)> {
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
                // One source can be joined by itself; several are joined for any.
                source: if let [source] = line.sources.as_slice() { Some(*source) } else { None },
                buffer_bytes: self.buffer_bytes(line.receive_buffer_bytes),
                stamps: line.stamps,
            }));
            let of_channel = (first..lines.len()).collect();
            channels.push(WatchedChannel::configured(channel.name.clone(), channel.channel_config(), of_channel));
        }
        Ok((lines, channels))
    }

    /// The groups of the command line; where something is looked for in them, the lines of one channel.
    fn grouped(&self) -> anyhow::Result<(Vec<CaptureLine>, Vec<WatchedChannel>)> {
        let mut lines: Vec<CaptureLine> = Vec::new();
        for group in &self.group {
            let name = group.name.clone().unwrap_or_else(|| group.address.to_string());
            ensure!(!lines.iter().any(|line| line.name == name), "capture: two lines are called {name}");
            lines.push(CaptureLine {
                name,
                address: group.address,
                interface: self.interface.clone(),
                source: self.source,
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
            "capture: with --trigger the groups are the lines of one channel, at most {lines_max}; a configuration \
             names several channels"
        );
        let name = "of the groups".to_owned();
        let channel = WatchedChannel { name, config: None, feed: self.trigger.feed, lines: (0..lines.len()).collect() };
        Ok((lines, vec![channel]))
    }

    fn buffer_bytes(&self, otherwise: usize) -> usize {
        self.buffer.map_or(otherwise, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// Twice what a line of the gateway has: a disk may stall for longer than a decoder.
const BUFFER_BYTES: usize = 16 << 20;
