//! Describes what a configuration would run, for `mdgw check`.

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
    path::Path,
};

use mdgw_election::{access::ZooKeeperMode, emergent::BootstrapMode, lease::OnSuspended};
use mdgw_engine::dispatch::DispatchModel;
use mdgw_feeds::{channel::SchemaSet, identity::GroupId};
use mdgw_status::quantity::Count;
use mdgw_sys::sockets::Stamps;

use super::{
    host::Findings,
    quantity::{Bytes, Nanoseconds},
    resolved::{
        Backend, ChannelSetup, DISPATCH_MODELS, ElectionConfig, OutputConfig, OutputSnapshots, PROMOTION_POLICIES,
        PoolConfig, Resolved, WAIT_POLICIES,
    },
    settings::name_of,
};

/// Writes the description.
///
/// # Errors
/// Errors of `out`.
pub fn explain(config: &Resolved, out: &mut impl Write) -> fmt::Result {
    let gateway = &config.gateway;
    writeln!(out, "gateway      node {}, state file {}", gateway.node, gateway.state_file.display())?;
    write!(
        out,
        "             publication logs in {}: {} per channel, in segments of {}, ",
        gateway.log_dir.display(),
        Bytes(gateway.retention_bytes),
        Bytes(gateway.segment_bytes)
    )?;
    match gateway.retention_ns {
        Some(age_ns) => writeln!(out, "retention {}", Nanoseconds(age_ns))?,
        None => writeln!(out, "retention by size only")?,
    }
    if let Some(group) = &gateway.log_group {
        writeln!(out, "             publication logs may be read by group {group}")?;
    }
    for (name, path) in [("audit file", &gateway.audit_file), ("control socket", &gateway.control_socket)] {
        if let Some(path) = path {
            writeln!(out, "             {name} {}", path.display())?;
        }
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
    explain_election(config, out)?;
    explain_services(config, out)?;
    explain_memory(config, out)
}

fn explain_pool(config: &Resolved, index: usize, pool: &PoolConfig, out: &mut impl Write) -> fmt::Result {
    let promotion = match pool.dispatch {
        DispatchModel::LeaderFollowers => format!(", promotion {}", name_of(pool.promotion, &PROMOTION_POLICIES)),
        DispatchModel::HalfSync | DispatchModel::Reactor => String::new(),
    };
    writeln!(
        out,
        "\npool         {}: {}, I/O {}, wait {}{}; {} events a turn, {} packets a claim",
        pool.name,
        name_of(pool.dispatch, &DISPATCH_MODELS),
        pool.io,
        name_of(pool.wait, &WAIT_POLICIES),
        promotion,
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
        "  gaps       reorder window {} packets, {}; alarm when a line is silent for {}",
        channel.window_packets,
        Nanoseconds(channel.gap_timeout_ns),
        Nanoseconds(channel.line_silence_ns)
    )?;
    match &channel.recovery {
        Some(recovery) => writeln!(
            out,
            "  recovery   {}, {} attempts of {}, up to {} messages each, {} requests at a time",
            recovery.server,
            recovery.attempts_max,
            Nanoseconds(recovery.timeout_ns),
            recovery.messages_per_request_max,
            recovery.requests_in_flight_max
        )?,
        None => writeln!(out, "  recovery   none: a gap that no line fills is declared lost")?,
    }
    write!(out, "  books      ")?;
    if channel.feed.is_by_order() {
        write!(out, "{} orders ({}), ", Count(channel.book.orders_max.into()), channel.order_store)?;
    }
    writeln!(
        out,
        "{} levels, {} instruments",
        Count(channel.book.levels_max.into()),
        Count(channel.book.instruments_max.into())
    )?;
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
    match output.tag_key_files.len() {
        0 => {}
        1 => writeln!(out, "  tags       under {}", output.tag_key_files[0].display())?,
        count => writeln!(
            out,
            "  tags       under {}; accepted under {} more",
            output.tag_key_files[0].display(),
            Count(count as u64 - 1)
        )?,
    }
    if output.accept_untagged {
        writeln!(out, "             packets without a tag are accepted too")?;
    }
    for line in &output.lines {
        let loopback = if line.loopback { ", loopback on" } else { "" };
        write!(out, "  line       {} by {}, TTL {}{loopback}", line.address, line.interface, line.ttl)?;
        if !line.sources.is_empty() {
            let sources: Vec<String> = line.sources.iter().map(ToString::to_string).collect();
            write!(out, ", received from {} only", sources.join(", "))?;
        }
        writeln!(out)?;
    }
    if let Some(snapshots) = &output.snapshots {
        let OutputSnapshots { line, interval_ns, bytes_per_second, passes } = snapshots;
        writeln!(
            out,
            "  snapshots  {} by {}, TTL {}: every {}, {passes} passes, {}/s",
            line.address,
            line.interface,
            line.ttl,
            Nanoseconds(*interval_ns),
            Bytes(*bytes_per_second)
        )?;
    }
    Ok(())
}

fn explain_election(config: &Resolved, out: &mut impl Write) -> fmt::Result {
    let Some(election) = &config.election else {
        return writeln!(out, "\nelection     none: this gateway always publishes");
    };
    let by = explain_backend(&election.backend);
    writeln!(out, "\nelection     {} (node {}), {by}; one election per group", election.name, config.gateway.node)?;
    match election.backend.session_ns() {
        Some(session_ns) => explain_session(election, session_ns, out)?,
        None => explain_lease(election, out)?,
    }
    let peers: Vec<String> = election.peers.iter().map(|peer| format!("{} (node {})", peer.name, peer.node)).collect();
    let preferred = election.preferred.map_or_else(String::new, |node| format!("; preferred leader: node {node}"));
    writeln!(out, "  peers      {}{preferred}", if peers.is_empty() { "none".to_owned() } else { peers.join(", ") })?;
    explain_groups(config, election, out)?;
    match &election.link {
        Some(link) => {
            let peers: Vec<String> = link.peers.iter().map(|peer| peer.address.to_string()).collect();
            write!(out, "  link       {} to {}; sentinel: {}", link.listen, peers.join(", "), link.sentinel)?;
            match link.hang_limit_ns {
                Some(limit_ns) => writeln!(out, ", kills a leader without progress for {}", Nanoseconds(limit_ns))?,
                None => writeln!(out)?,
            }
            let kept = Bytes(link.history_bytes as u64);
            writeln!(out, "  history    {kept} of input per channel: fills gaps of a peer, and bridges a state copy")?;
        }
        None if election.backend.session_ns().is_some() => writeln!(out, "  link       none: no death notices")?,
        None => writeln!(out, "  link       none: no planned hand-over, no promises")?,
    }
    let kernel = if election.kernel_fence {
        "drops packets sent after the deadline, also after the process was stopped (kernel_fence)"
    } else {
        "no fence: late packets of a stopped process reach receivers, which drop lower epochs"
    };
    writeln!(out, "  kernel     {kernel}")?;
    let place = election.core.map_or_else(|| "any core".to_owned(), |core| format!("core {core}"));
    write!(out, "  thread     on {place}")?;
    match election.priority {
        Some(priority) => writeln!(out, ", SCHED_FIFO {priority}")?,
        None => writeln!(out)?,
    }
    let fingerprint = config.output_fingerprint();
    writeln!(out, "  revision   {}, output {:016x}", fingerprint.revision, fingerprint.hash)
}

/// How long a leader may send, and when another gateway takes over.
fn explain_lease(election: &ElectionConfig, out: &mut impl Write) -> fmt::Result {
    let ElectionConfig { timing, .. } = election;
    writeln!(
        out,
        "  lease      {}, renewed every {}; the leader stops {} before another gateway may start",
        Nanoseconds(timing.lease_ns),
        Nanoseconds(timing.renew_ns),
        Nanoseconds(timing.margin_ns)
    )?;
    writeln!(
        out,
        "  margin     at least 2 x {} ppm of the lease + longest send {} + clock read error",
        timing.margin_rate_ppm(),
        Nanoseconds(timing.send_ns_max)
    )?;
    let (least_ns, most_ns, act) = match &election.backend {
        Backend::Emergent(_) => (timing.lease_ns, timing.lease_ns + timing.renew_ns, "a round of heartbeats"),
        Backend::Quorum(_) => (timing.lease_ns.saturating_sub(timing.renew_ns), timing.lease_ns, "a vote"),
        _ => (timing.lease_ns.saturating_sub(timing.renew_ns), timing.lease_ns, "a swap"),
    };
    writeln!(
        out,
        "  takeover   {} to {} after the last renewal, plus {act}; immediately after a release or a death notice",
        Nanoseconds(least_ns),
        Nanoseconds(most_ns)
    )?;
    let on_suspended = match (election.on_suspended, &election.backend) {
        (OnSuspended::Stop, _) => "stop publishing immediately",
        (OnSuspended::Hold, Backend::Quorum(_) | Backend::Emergent(_)) => "publish until the lease expires",
        (OnSuspended::Hold, _) => {
            "publish until the lease expires, or as long as all other candidates promise not to take over"
        }
    };
    writeln!(out, "  suspended  {on_suspended}")
}

/// Like [`explain_lease`], for a backend that orders candidates by sessions (a ZooKeeper latch).
fn explain_session(election: &ElectionConfig, session_ns: u64, out: &mut impl Write) -> fmt::Result {
    let ElectionConfig { timing, .. } = election;
    let session = Nanoseconds(session_ns);
    writeln!(
        out,
        "  session    {session}, or as granted by the ensemble; the leader writes every {}",
        Nanoseconds(timing.renew_ns)
    )?;
    writeln!(
        out,
        "  deadline   send time of the last acknowledged write + 2/3 of the session - margin {}: about {} ms",
        Nanoseconds(timing.margin_ns),
        timing.session_usable_ns(session_ns) / 1_000_000
    )?;
    writeln!(
        out,
        "  takeover   when the ensemble expires the session ({session} or more after the last heartbeat), plus one compare-and-swap; immediately after a release or a death notice"
    )?;
    let on_suspended = match election.on_suspended {
        OnSuspended::Hold => "publish until the deadline",
        OnSuspended::Stop => "stop publishing immediately",
    };
    writeln!(out, "  suspended  {on_suspended}")
}

/// The placement of the groups, if there are several.
fn explain_groups(config: &Resolved, election: &ElectionConfig, out: &mut impl Write) -> fmt::Result {
    let groups: BTreeSet<GroupId> = config.channels.iter().map(|channel| channel.group).collect();
    if groups.len() < 2 {
        return Ok(());
    }
    write!(out, "  groups     {}, ", groups.len())?;
    if election.spread && election.link.is_some() {
        let (gateways, tenure) = (election.peers.len() + 1, Nanoseconds(election.tenure_ns));
        writeln!(
            out,
            "balanced by channel count over up to {gateways} gateways; a group moves by hand-over, after at least {tenure}"
        )
    } else if election.preferred.is_some() {
        writeln!(out, "all on the preferred gateway while it is equally fit")
    } else if !election.backend.can_move_groups() {
        writeln!(out, "each stays with its leader until the leader fails")
    } else {
        writeln!(out, "each stays with its leader until the leader fails or is less fit")
    }
}

fn explain_backend(backend: &Backend) -> String {
    let (how, access, place) = match backend {
        Backend::File(directory) => return format!("records in directory {} of this host", directory.display()),
        Backend::Quorum(quorum) => {
            let voters: Vec<String> = quorum.voters.iter().map(|(node, at)| format!("node {node} at {at}")).collect();
            let count = quorum.voters.len() + 1;
            return format!(
                "{} of {count} votes: this gateway on {}, {}; vote directory {}",
                count / 2 + 1,
                quorum.listen,
                voters.join(", "),
                quorum.vote_directory.display()
            );
        }
        Backend::Emergent(membership) => {
            let seeds: Vec<String> = membership.seeds.iter().map(ToString::to_string).collect();
            let bootstraps =
                if membership.bootstrap == BootstrapMode::Bootstrap { ", bootstraps if no seed answers" } else { "" };
            return format!(
                "by membership: this gateway on {}, seeds {}{bootstraps}; the oldest of at least {} members leads. DURING A NETWORK PARTITION TWO CAN LEAD",
                membership.listen,
                if seeds.is_empty() { "none".to_owned() } else { seeds.join(", ") },
                membership.minimum_size
            );
        }
        Backend::Etcd(etcd) => {
            let how = if etcd.tls.is_some() { "records in etcd, encrypted," } else { "records in etcd" };
            (how.to_owned(), &etcd.access, format!("keys {}group-N", etcd.prefix))
        }
        Backend::ZooKeeper(zookeeper) => {
            let path = &zookeeper.path;
            match zookeeper.mode {
                ZooKeeperMode::Lease => {
                    ("records in ZooKeeper".to_owned(), &zookeeper.access, format!("nodes {path}/group-N"))
                }
                ZooKeeperMode::Latch { session } => {
                    let how = format!("ephemeral nodes in ZooKeeper, session timeout {session:?},");
                    (how, &zookeeper.access, format!("nodes {path}/line-N"))
                }
            }
        }
    };
    let user = access.login.as_ref().map_or_else(String::new, |login| format!(", user {}", login.user));
    format!("{how} at {}{user}: {place}", access.endpoints.join(", "))
}

fn explain_services(config: &Resolved, out: &mut impl Write) -> fmt::Result {
    match &config.retransmission {
        Some(service) => {
            let limits = &service.limits;
            let networks: Vec<String> = limits.allowed.iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "\nretransmit   {}, for {}: {} requests/s and {}/s per requester, up to {} packets per request",
                service.listen,
                if networks.is_empty() { "none".to_owned() } else { networks.join(", ") },
                limits.requests_per_second,
                Bytes(limits.bytes_per_second),
                limits.packets_per_request_max
            )?;
        }
        None => writeln!(out, "\nretransmit   off")?,
    }
    if let Some(service) = config.retransmission.as_ref().filter(|service| service.snapshots) {
        let rate = Bytes(service.limits.snapshot_bytes_per_second);
        writeln!(out, "snapshots    {rate}/s per requester")?;
    }
    if let Some(live) = &config.live {
        writeln!(
            out,
            "live         {}, keys {}: up to {} sessions, {} behind (mdgw live)",
            live.listen,
            live.key_file.display(),
            live.sessions_max,
            Bytes(live.queue_bytes_max)
        )?;
    }
    if let Some(journal) = &config.journal {
        let days = (journal.retention_days > 0).then(|| format!("{} days", journal.retention_days));
        let bytes = (journal.retention_bytes > 0).then(|| format!("up to {}", Bytes(journal.retention_bytes)));
        let limits: Vec<_> = [days, bytes].into_iter().flatten().collect();
        writeln!(
            out,
            "journal      {}, compression {}: kept {}, {} left free (mdgw journal)",
            journal.directory.display(),
            journal.compression.name(),
            if limits.is_empty() { "without limit".to_owned() } else { limits.join(" and ") },
            Bytes(journal.free_bytes_min)
        )?;
    }
    if let Some(nats) = &config.nats {
        writeln!(
            out,
            "nats         {}, streams {}-*, channels: {} (mdgw nats)",
            nats.servers.join(", "),
            nats.stream,
            nats.channels.len()
        )?;
    }
    if let Some(admin) = &config.admin {
        writeln!(out, "admin        {admin}: / (the page), /metrics, /live, /ready, /leader")?;
    }
    for (key, listen) in config.admin_listeners().into_iter().filter(|(key, _)| *key != "admin.listen") {
        let program = key.split('.').next().unwrap_or_default();
        writeln!(out, "admin        {listen}: /metrics, /live, /ready (mdgw {program})")?;
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
        None => writeln!(out, "latency      in memory only (no latency.directory)")?,
    }
    let log = &config.log;
    write!(out, "log          {}, format {}, each alarm ", log.level, log.format)?;
    match log.alarm_interval_ms {
        0 => writeln!(out, "whenever it is raised"),
        interval_ms => writeln!(out, "at most once in {}", Nanoseconds(interval_ms * 1_000_000)),
    }
}

/// Name of the row with the input history. Only gateways of a linked pair have an input history.
const PEER_INPUT_ROW: &str = "input history";
const SNAPSHOTS_ROW: &str = "snapshots";
/// Rows that are left out where they are 0.
const OPTIONAL_ROWS: [&str; 2] = [PEER_INPUT_ROW, SNAPSHOTS_ROW];

fn explain_memory(config: &Resolved, out: &mut impl Write) -> fmt::Result {
    let memory = config.memory();
    let rows = [
        ("books", memory.books_bytes as u64),
        (SNAPSHOTS_ROW, memory.snapshots_bytes),
        ("reorder windows", memory.windows_bytes as u64),
        ("publication logs", memory.logs_bytes),
        ("latency histograms", memory.histograms_bytes as u64),
        ("socket buffers", memory.sockets_bytes as u64),
        (PEER_INPUT_ROW, memory.history_bytes),
        ("total", memory.total_bytes()),
    ];
    let locked = if config.gateway.lock_memory { " (locked if permitted)" } else { "" };
    writeln!(out, "\nmemory, estimated{locked}")?;
    let mut rows = rows.into_iter().filter(|(name, bytes)| *bytes > 0 || !OPTIONAL_ROWS.contains(name));
    rows.try_for_each(|(name, bytes)| writeln!(out, "  {name:<20} {:>10}", Bytes(bytes).to_string()))
}

/// The result of `mdgw check` in one line: the file, and the numbers of faults and warnings.
#[must_use]
pub fn verdict_line(path: &Path, findings: &Findings) -> String {
    let count = |count: usize, noun: &str| match count {
        0 => String::new(),
        1 => format!(", 1 {noun}"),
        count => format!(", {count} {noun}s"),
    };
    let verdict = if findings.faults.is_empty() { "OK" } else { "FAILED: cannot run on this host" };
    let (faults, warnings) = (count(findings.faults.len(), "fault"), count(findings.warnings.len(), "warning"));
    format!("{}: {verdict}{faults}{warnings}\n", path.display())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_shipped_configuration_is_explained() {
        let mut text = String::new();
        explain(&Resolved::shipped(), &mut text).unwrap();
        expect![[r#"
            gateway      node 0, state file /var/lib/mdgw/state
                         publication logs in /dev/shm/mdgw: 256 MiB per channel, in segments of 64 MiB, retention 1 h
                         audit file /var/lib/mdgw/audit.jsonl
                         control socket /run/mdgw/control

            pool         main: leader-followers, I/O auto, wait spin, promotion strict; 32 events a turn, 64 packets a claim
              thread     main-0 on core 2
              thread     main-1 on core 3
              channels   nasdaq, iex-deep

            channel 1    nasdaq: nasdaq-itch-5.0, group 1, pool main
              line A     233.54.12.111:26477 on eth1 from 206.200.43.72, receive buffer 16 MiB
              line B     233.49.196.111:26477 on eth2 from 206.200.43.72, receive buffer 16 MiB
              gaps       reorder window 1024 packets, 2 ms; alarm when a line is silent for 3 s
              recovery   207.251.255.168:18300, 3 attempts of 20 ms, up to 1000 messages each, 16 requests at a time
              books      2,097,152 orders (hash), 1,048,576 levels, 16,384 instruments
              publishes  mbo, status, definition, imbalance, statistics

            channel 2    iex-deep: iex-deep-1.0, group 2, pool main
              line A     233.215.21.4:10378 on eth1, receive buffer 16 MiB
              line B     233.215.21.132:10378 on eth2, receive buffer 16 MiB
              gaps       reorder window 1024 packets, 2 ms; alarm when a line is silent for 3 s
              recovery   none: a gap that no line fills is declared lost
              books      1,048,576 levels, 16,384 instruments
              publishes  mbp-10, trades, status, definition

            output       group 1, 2: nasdaq, iex-deep; 1472 bytes a packet, heartbeat 1 s
              line       239.66.1.1:31000 by eth3, TTL 1
              line       239.66.1.2:31000 by eth4, TTL 1

            election     none: this gateway always publishes

            retransmit   10.20.0.5:31100, for 10.20.0.0/16: 1000 requests/s and 11.9 MiB/s per requester, up to 256 packets per request
            latency      every 10 s to /var/log/mdgw, 2 significant digits
            log          info, format auto, each alarm at most once in 10 s

            memory, estimated (locked if permitted)
              books                 320.4 MiB
              reorder windows         7.1 MiB
              publication logs        512 MiB
              latency histograms      1.6 MiB
              socket buffers           64 MiB
              total                 905.1 MiB"#]].assert_eq(text.trim_end());
    }

    #[test]
    fn the_limits_of_journals_are_explained_each_once() {
        let shipped = include_str!("../../../../ops/config/mdgw.toml");
        for (keys, expected) in [
            ("", "kept without limit"),
            ("retention_days = 30\n", "kept 30 days"),
            ("retention_bytes = 1073741824\n", "kept up to 1 GiB"),
            ("retention_days = 30\nretention_bytes = 1073741824\n", "kept 30 days and up to 1 GiB"),
        ] {
            let text = format!("{shipped}\n[journal]\ndirectory = \"/j\"\n{keys}");
            let config = Resolved::from_text(Path::new("mdgw.toml"), &text).unwrap();
            let mut explained = String::new();
            explain(&config, &mut explained).unwrap();
            let line = explained.lines().find(|line| line.starts_with("journal ")).unwrap();
            assert!(line.contains(&format!("compression none: {expected}, 1 GiB left free")), "{line}");
        }
    }

    #[test]
    fn the_verdict_line_counts_faults_and_warnings() {
        let line = |faults: usize, warnings: usize| {
            let findings = Findings { faults: vec![String::new(); faults], warnings: vec![String::new(); warnings] };
            verdict_line(Path::new("x.toml"), &findings)
        };
        assert_eq!(line(0, 0), "x.toml: OK\n");
        assert_eq!(line(0, 1), "x.toml: OK, 1 warning\n");
        assert_eq!(line(2, 1), "x.toml: FAILED: cannot run on this host, 2 faults, 1 warning\n");
    }
}
