//! What a configuration would run, in words: what `mdgw check` prints.

use std::{
    fmt::{self, Write},
    fs,
    net::{Ipv4Addr, UdpSocket},
    path::Path,
};

use mdgw_feeds::channel::SchemaSet;

use super::{
    resolved::{
        ChannelSetup, Interface, OutputConfig, PROMOTION_POLICIES, PoolConfig, Resolved, Threads, WAIT_POLICIES,
    },
    settings::name_of,
};
use crate::{net::sockets::Stamps, sys::affinity::usable_cores};

/// What this host has of what a configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Names of its network interfaces.
    pub interfaces: Vec<String>,
    /// Addresses, of those asked about, that are its own.
    pub addresses: Vec<Ipv4Addr>,
    /// Cores that this process may use.
    pub cores: Vec<usize>,
    /// `net.core.rmem_max`, bytes; `None` where it can't be read.
    pub receive_buffer_bytes_max: Option<usize>,
}

impl Host {
    /// This one.
    #[must_use]
    pub fn this(config: &Resolved) -> Self {
        let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        let rmem_max = fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
        Self {
            interfaces: names.filter_map(|entry| entry.file_name().into_string().ok()).collect(),
            // A socket can be bound to an address exactly if it is one of the host's.
            addresses: interfaces(config)
                .filter_map(|interface| if let Interface::Address(address) = interface { Some(*address) } else { None })
                .filter(|address| UdpSocket::bind((*address, 0)).is_ok())
                .collect(),
            cores: usable_cores(),
            receive_buffer_bytes_max: rmem_max.and_then(|text| text.trim().parse().ok()),
        }
    }

    fn has(&self, interface: &Interface) -> bool {
        match interface {
            Interface::Name(name) => self.interfaces.contains(name),
            Interface::Address(address) => self.addresses.contains(address),
        }
    }
}

/// Warnings of the configuration itself, and what this host lacks for it.
#[must_use]
pub fn warnings(config: &Resolved, host: &Host) -> Vec<String> {
    let mut warnings = config.warnings.clone();
    let mut missing: Vec<&Interface> = interfaces(config).filter(|interface| !host.has(interface)).collect();
    missing.sort_by_key(|interface| interface.to_string());
    missing.dedup();
    warnings.extend(missing.into_iter().map(|interface| format!("interface {interface} is not on this host")));
    for pool in &config.pools {
        let Threads::Pinned(cores) = &pool.threads else { continue };
        for core in cores.iter().filter(|core| !host.cores.contains(core)) {
            warnings.push(format!(
                "core {core} of pool {} is not usable here (usable: {:?}); the gateway would refuse to start",
                pool.name, host.cores
            ));
        }
    }
    if let Some(max) = host.receive_buffer_bytes_max {
        for channel in &config.channels {
            for line in channel.lines.iter().filter(|line| line.receive_buffer_bytes > max) {
                warnings.push(format!(
                    "line {} of channel {}: the kernel caps receive buffers at {} (net.core.rmem_max), {} are asked for; see ops/sysctl",
                    line.line,
                    channel.name,
                    Bytes(max as u64),
                    Bytes(line.receive_buffer_bytes as u64),
                ));
            }
        }
    }
    if let Some(directory) = config.gateway.state_file.parent().filter(|path| !path.as_os_str().is_empty())
        && !directory.is_dir()
    {
        warnings.push(format!("directory {} of the state file does not exist", directory.display()));
    }
    warnings
}

/// Writes what would run.
///
/// # Errors
/// What `out` says.
pub fn explain(config: &Resolved, host: &Host, out: &mut impl Write) -> fmt::Result {
    let gateway = &config.gateway;
    writeln!(out, "gateway      node {}, epochs in {}", gateway.node, gateway.state_file.display())?;
    write!(
        out,
        "             publication logs in {}: {} per channel, in segments of {}, ",
        gateway.log_dir.display(),
        Bytes(gateway.retention_bytes),
        Bytes(gateway.segment_bytes)
    )?;
    match gateway.retention_ns {
        Some(age_ns) => writeln!(out, "entries kept for {}", Nanoseconds(age_ns))?,
        None => writeln!(out, "entries kept while there is room")?,
    }
    for (index, pool) in config.pools.iter().enumerate() {
        explain_pool(config, index, pool, out)?;
    }
    for channel in &config.channels {
        explain_channel(config, channel, out)?;
    }
    for output in &config.outputs {
        explain_output(config, output, out)?;
    }
    explain_services(config, out)?;
    explain_memory(config, out)?;
    let warnings = warnings(config, host);
    if !warnings.is_empty() {
        writeln!(out)?;
    }
    warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))
}

fn explain_pool(config: &Resolved, index: usize, pool: &PoolConfig, out: &mut impl Write) -> fmt::Result {
    writeln!(
        out,
        "\npool         {}: I/O {}, wait {}, promotion {}; {} events a turn, {} packets a claim",
        pool.name,
        pool.io,
        name_of(pool.wait, &WAIT_POLICIES),
        name_of(pool.promotion, &PROMOTION_POLICIES),
        pool.batch_events,
        pool.quota_packets
    )?;
    for thread in 0..pool.threads.count() {
        let place = pool.threads.core(thread).map_or_else(|| "any core".to_owned(), |core| format!("core {core}"));
        write!(out, "  thread     {} on {place}", pool.thread_name(thread))?;
        match pool.priority {
            Some(priority) => writeln!(out, ", SCHED_FIFO {priority}")?,
            None => writeln!(out)?,
        }
    }
    let channels: Vec<&str> = config.channels.iter().filter(|c| c.pool == index).map(|c| c.name.as_str()).collect();
    writeln!(out, "  channels   {}", if channels.is_empty() { "none".to_owned() } else { channels.join(", ") })
}

fn explain_channel(config: &Resolved, channel: &ChannelSetup, out: &mut impl Write) -> fmt::Result {
    writeln!(
        out,
        "\nchannel {:<4} {}: {}, group {}, pool {}",
        channel.id.0, channel.name, channel.feed, channel.group.0, config.pools[channel.pool].name
    )?;
    for line in &channel.lines {
        write!(out, "  line {}     {} on {}", line.line, line.group, line.interface)?;
        if !line.sources.is_empty() {
            let sources: Vec<String> = line.sources.iter().map(ToString::to_string).collect();
            write!(out, " from {}", sources.join(", "))?;
        }
        write!(out, ", receive buffer {}", Bytes(line.receive_buffer_bytes as u64))?;
        if line.stamps == Stamps::Hardware {
            write!(out, ", NIC stamps")?;
        }
        match line.busy_poll_us {
            Some(us) => writeln!(out, ", busy poll {us} us")?,
            None => writeln!(out)?,
        }
    }
    writeln!(
        out,
        "  gaps       {} packets wait up to {}; a line silent for {} is an alarm",
        channel.window_packets,
        Nanoseconds(channel.gap_timeout_ns),
        Nanoseconds(channel.line_silence_ns)
    )?;
    match &channel.recovery {
        Some(recovery) => writeln!(
            out,
            "  recovery   {}, {} attempts of {}, up to {} messages each",
            recovery.server,
            recovery.attempts_max,
            Nanoseconds(recovery.timeout_ns),
            recovery.messages_per_request_max
        )?,
        None => writeln!(out, "  recovery   none: a gap that no line fills is declared")?,
    }
    write!(out, "  books      ")?;
    if channel.feed.is_by_order() {
        write!(out, "{} orders ({}), ", Count(channel.book.orders_max), channel.order_store)?;
    }
    writeln!(out, "{} levels, {} instruments", Count(channel.book.levels_max), Count(channel.book.instruments_max))?;
    let schemas = SchemaSet::NAMES.into_iter().filter(|(schema, _)| channel.schemas.contains(*schema));
    write!(out, "  publishes  {}", schemas.map(|(_, name)| name).collect::<Vec<_>>().join(", "))?;
    match channel.date {
        Some(date) => writeln!(out, ", as of {date}"),
        None => writeln!(out),
    }
}

fn explain_output(config: &Resolved, output: &OutputConfig, out: &mut impl Write) -> fmt::Result {
    let groups: Vec<String> = output.groups.iter().map(|group| group.0.to_string()).collect();
    let channels = config.channels.iter().filter(|channel| output.groups.contains(&channel.group));
    writeln!(
        out,
        "\noutput       group {}: {}; {} bytes a packet, heartbeat {}",
        groups.join(", "),
        channels.map(|channel| channel.name.as_str()).collect::<Vec<_>>().join(", "),
        output.payload_bytes_max,
        Nanoseconds(output.heartbeat_ns)
    )?;
    for line in &output.lines {
        let loopback = if line.loopback { ", heard on this host" } else { "" };
        writeln!(out, "  line       {} by {}, TTL {}{loopback}", line.address, line.interface, line.ttl)?;
    }
    Ok(())
}

fn explain_services(config: &Resolved, out: &mut impl Write) -> fmt::Result {
    match &config.retransmission {
        Some(service) => {
            let limits = &service.limits;
            let networks: Vec<String> = limits.allowed.iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "\nretransmit   {}, answers {}: {} requests and {} a second each, up to {} packets a request",
                service.listen,
                if networks.is_empty() { "nobody".to_owned() } else { networks.join(", ") },
                limits.requests_per_second,
                Bytes(limits.bytes_per_second),
                limits.packets_per_request_max
            )?;
        }
        None => writeln!(out, "\nretransmit   not served")?,
    }
    let latency = &config.latency;
    match &latency.directory {
        Some(directory) => writeln!(
            out,
            "latency      every {} to {}, {} significant digits",
            Nanoseconds(latency.interval_ns),
            directory.display(),
            latency.significant_digits
        )?,
        None => writeln!(out, "latency      measured, not written")?,
    }
    writeln!(out, "log          {}", config.log.level)
}

fn explain_memory(config: &Resolved, out: &mut impl Write) -> fmt::Result {
    let memory = config.memory();
    let rows = [
        ("books", memory.books_bytes as u64),
        ("reorder windows", memory.windows_bytes as u64),
        ("publication logs", memory.logs_bytes),
        ("latency histograms", memory.histograms_bytes as u64),
        ("socket buffers", memory.sockets_bytes as u64),
        ("together", memory.total_bytes()),
    ];
    writeln!(out, "\nmemory, about")?;
    rows.into_iter().try_for_each(|(name, bytes)| writeln!(out, "  {name:<20} {:>10}", Bytes(bytes).to_string()))
}

fn interfaces(config: &Resolved) -> impl Iterator<Item = &Interface> {
    let inputs = config.channels.iter().flat_map(|channel| &channel.lines).map(|line| &line.interface);
    inputs.chain(config.outputs.iter().flat_map(|output| &output.lines).map(|line| &line.interface))
}

/// The file as messages name it, with what stands in it.
#[must_use]
pub fn headline(path: &Path, warning_count: usize) -> String {
    match warning_count {
        0 => format!("{}: in order\n", path.display()),
        1 => format!("{}: in order, 1 warning\n", path.display()),
        count => format!("{}: in order, {count} warnings\n", path.display()),
    }
}

/// Bytes in the largest binary unit that leaves a whole number or two digits.
struct Bytes(u64);

impl fmt::Display for Bytes {
    #[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) if self.0.is_multiple_of(size) => write!(f, "{} {unit}", self.0 / size),
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Nanoseconds in the largest unit that leaves a whole number.
struct Nanoseconds(u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (3_600_000_000_000, "h"),
            (60_000_000_000, "min"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
            (1, "ns"),
        ];
        let fits = units.into_iter().find(|(size, _)| self.0 >= *size && self.0.is_multiple_of(*size));
        let (size, unit) = fits.unwrap_or((1, "ns"));
        write!(f, "{} {unit}", self.0 / size)
    }
}

/// A number with separators.
struct Count(u32);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn shipped() -> Resolved {
        let text = include_str!("../../../ops/config/mdgw.toml");
        Resolved::from_text(Path::new("mdgw.toml"), text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn full_host() -> Host {
        Host {
            interfaces: ["lo", "eth1", "eth2", "eth3", "eth4"].map(str::to_owned).to_vec(),
            addresses: Vec::new(),
            cores: vec![0, 1, 2, 3],
            receive_buffer_bytes_max: Some(1 << 30),
        }
    }

    #[test]
    fn the_shipped_configuration_is_explained() {
        let mut text = String::new();
        explain(&shipped(), &full_host(), &mut text).unwrap();
        let text = text.replace("warning: directory /var/lib/mdgw of the state file does not exist\n", "");
        expect![[r#"
            gateway      node 0, epochs in /var/lib/mdgw/state
                         publication logs in /dev/shm/mdgw: 256 MiB per channel, in segments of 64 MiB, entries kept for 1 h

            pool         main: I/O auto, wait spin, promotion strict; 32 events a turn, 64 packets a claim
              thread     main-0 on core 2
              thread     main-1 on core 3
              channels   nasdaq, iex-deep

            channel 1    nasdaq: nasdaq-itch-5.0, group 1, pool main
              line A     233.54.12.111:26477 on eth1 from 206.200.43.72, receive buffer 16 MiB
              line B     233.49.196.111:26477 on eth2 from 206.200.43.72, receive buffer 16 MiB
              gaps       1024 packets wait up to 2 ms; a line silent for 3 s is an alarm
              recovery   207.251.255.168:18300, 3 attempts of 20 ms, up to 1000 messages each
              books      2,097,152 orders (hash), 1,048,576 levels, 16,384 instruments
              publishes  mbo, status, definition, imbalance, statistics

            channel 2    iex-deep: iex-deep-1.0, group 2, pool main
              line A     233.215.21.4:10378 on eth1, receive buffer 16 MiB
              line B     233.215.21.132:10378 on eth2, receive buffer 16 MiB
              gaps       1024 packets wait up to 2 ms; a line silent for 3 s is an alarm
              recovery   none: a gap that no line fills is declared
              books      1,048,576 levels, 16,384 instruments
              publishes  mbp-10, trades, status, definition

            output       group 1, 2: nasdaq, iex-deep; 1472 bytes a packet, heartbeat 1 s
              line       239.66.1.1:31000 by eth3, TTL 1
              line       239.66.1.2:31000 by eth4, TTL 1

            retransmit   10.20.0.5:31100, answers 10.20.0.0/16: 1000 requests and 11.9 MiB a second each, up to 256 packets a request
            latency      every 10 s to /var/log/mdgw, 2 significant digits
            log          info

            memory, about
              books                 320.4 MiB
              reorder windows         7.1 MiB
              publication logs        512 MiB
              latency histograms    724.9 KiB
              socket buffers           64 MiB
              together              904.2 MiB"#]].assert_eq(text.trim_end());
    }

    #[test]
    fn what_the_host_lacks_is_a_warning() {
        let host = Host {
            interfaces: vec!["lo".to_owned()],
            cores: vec![0, 1, 2],
            receive_buffer_bytes_max: Some(212_992),
            ..Host::default()
        };
        let warnings = warnings(&shipped(), &host).join("\n");
        for expected in
            ["interface eth1 is not", "interface eth4 is not", "core 3 of pool main", "caps receive buffers at 208 KiB"]
        {
            assert!(warnings.contains(expected), "{expected} in:\n{warnings}");
        }
        assert!(!warnings.contains("core 2 "), "{warnings}");
    }

    #[test]
    fn this_host_has_its_loopback() {
        let host = Host::this(&shipped());
        assert!(host.interfaces.contains(&"lo".to_owned()) && !host.cores.is_empty());
    }

    #[test]
    fn quantities_are_written_for_people() {
        let bytes = [1_023, 1_024, 1 << 20, 3 << 29, 212_992].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(bytes, ["1023 B", "1 KiB", "1 MiB", "1.5 GiB", "208 KiB"]);
        let times = [0, 999, 2_000_000, 90_000_000_000].map(|ns| Nanoseconds(ns).to_string());
        assert_eq!(times, ["0 ns", "999 ns", "2 ms", "90 s"]);
        assert_eq!([7, 1_000, 2_097_152].map(|count| Count(count).to_string()), ["7", "1,000", "2,097,152"]);
    }
}
