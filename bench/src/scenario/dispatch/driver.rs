//! One run of one subject: starts it, sends, and reads its report and what the kernel counts of it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use mdgw_sys::clock::mono_now;
use rustix::process::{Pid, Signal, kill_process};

use super::{Case, DispatchOptions, Load, Mode, peers::Subject};

/// Result of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) packets_per_second: f64,
    pub(super) cpu_ns: f64,
    /// Context switches per packet.
    pub(super) voluntary: f64,
    pub(super) involuntary: f64,
    /// Latency at 0.5, 0.99 and 0.999, us.
    pub(super) latency_us: [f64; 3],
    /// Promotions without a follower, per packet.
    pub(super) without_follower: f64,
    pub(super) lost: u64,
}

pub(super) fn run(subject: &Subject, case: &Case, options: &DispatchOptions) -> Result<Outcome> {
    run_once(subject, case, options).with_context(|| format!("running {:?} under {case:?}", subject.name))
}

fn run_once(subject: &Subject, case: &Case, options: &DispatchOptions) -> Result<Outcome> {
    let Case { sockets, threads, work_ns, .. } = case;
    let mut command = subject.command()?;
    let numbers = [u64::from(*sockets), *threads as u64, *work_ns, options.packets];
    command.args(numbers.map(|number| number.to_string())).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Running(command.spawn().with_context(|| format!("start {command:?}"))?);
    let lines = process.lines()?;
    let ports = lines.recv_timeout(START_LIMIT).context("the subject does not start")?;
    let ports = ports.split_whitespace().map(str::parse).collect::<Result<Vec<u16>, _>>()?;
    ensure!(ports.len() == usize::try_from(*sockets)?, "{} sockets", ports.len());
    let sender = Sender::new(&ports, case.load)?;
    // Threads that were just started go to sleep.
    thread::sleep(SETTLE);
    let (before, begun_at) = match case.mode {
        Mode::Capacity => {
            process.signal(Signal::STOP)?;
            sender.send_all(options.packets)?;
            let before = Usage::of(process.0.id())?;
            let begun_at = mono_now();
            process.signal(Signal::CONT)?;
            (before, begun_at)
        }
        Mode::Paced => {
            let before = Usage::of(process.0.id())?;
            let begun_at = mono_now();
            sender.send_paced(options)?;
            (before, begun_at)
        }
    };
    let limit = match case.mode {
        Mode::Capacity => Duration::from_nanos(options.packets * (case.work_ns + CAPACITY_NS_MAX)),
        Mode::Paced => DRAIN_LIMIT,
    };
    let early_report = lines.recv_timeout(limit);
    // Before its input ends: then it ends too.
    let after = Usage::of(process.0.id())?;
    let report = early_report.or_else(|_| {
        // Datagrams were lost: the subject reports those that it has handled.
        drop(process.0.stdin.take());
        lines.recv_timeout(START_LIMIT).context("the subject does not report")
    })?;
    let report = Report::parse(&report)?;
    ensure!(report.packets > 0, "the subject handled no datagram");
    let packets = report.packets as f64;
    Ok(Outcome {
        packets_per_second: packets * 1e9 / report.last_ns.saturating_sub(begun_at.0).max(1) as f64,
        cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / packets,
        voluntary: after.voluntary.saturating_sub(before.voluntary) as f64 / packets,
        involuntary: after.involuntary.saturating_sub(before.involuntary) as f64 / packets,
        latency_us: [500, 990, 999].map(|permille| report.latency_ns(permille) as f64 / 1e3),
        without_follower: report.without_follower as f64 / packets,
        lost: options.packets.saturating_sub(report.packets),
    })
}

/// A subject's process. It ends with this value.
struct Running(Child);

impl Running {
    /// Its output, line by line.
    fn lines(&mut self) -> Result<mpsc::Receiver<String>> {
        let output = BufReader::new(self.0.stdout.take().context("no output")?);
        let (line, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
        Ok(lines)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).context("a process id")?;
        Ok(kill_process(id, signal)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Sends datagrams to a subject's sockets.
struct Sender {
    socket: UdpSocket,
    targets: Vec<SocketAddrV4>,
    load: Load,
}

impl Sender {
    fn new(ports: &[u16], load: Load) -> Result<Self> {
        let targets = ports.iter().map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, *port)).collect();
        Ok(Self { socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, targets, load })
    }

    fn target(&self, packet: u64) -> SocketAddrV4 {
        let others = &self.targets[1.min(self.targets.len() - 1)..];
        let of = |targets: &[SocketAddrV4], turn: u64| {
            let place = usize::try_from(turn % targets.len() as u64);
            targets[place.unwrap_or(0)] // the remainder of a length is an index
        };
        match self.load {
            Load::Even => of(&self.targets, packet),
            Load::Hot if packet.is_multiple_of(2) => self.targets[0],
            Load::Hot => of(others, packet / 2),
        }
    }

    fn send(&self, packet: u64, at_ns: u64) -> Result<()> {
        let mut payload = [0; PAYLOAD_BYTES];
        payload[..8].copy_from_slice(&at_ns.to_le_bytes());
        self.socket.send_to(&payload, self.target(packet))?;
        Ok(())
    }

    fn send_all(&self, packets: u64) -> Result<()> {
        (0..packets).try_for_each(|packet| self.send(packet, mono_now().0))
    }

    fn send_paced(&self, options: &DispatchOptions) -> Result<()> {
        let begun_at = mono_now();
        for packet in 0..options.packets {
            let burst = packet - packet % options.burst.max(1);
            let at = begun_at.plus(burst * 1_000_000_000 / options.rate);
            // Sleeps where it can: the cores are the subject's.
            let early_ns = at.0.saturating_sub(mono_now().0);
            if early_ns > SLEEP_MARGIN_NS {
                thread::sleep(Duration::from_nanos(early_ns - SLEEP_MARGIN_NS));
            }
            while mono_now() < at {
                std::hint::spin_loop();
            }
            self.send(packet, at.0)?;
        }
        Ok(())
    }
}

/// What the kernel counts of all threads of a process.
#[derive(Default)]
struct Usage {
    cpu_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Usage {
    fn of(process: u32) -> Result<Self> {
        let mut usage = Self::default();
        for task in fs::read_dir(format!("/proc/{process}/task"))? {
            let task = task?.path();
            let times = fs::read_to_string(task.join("schedstat"))?;
            usage.cpu_ns += times.split_whitespace().next().context("an empty schedstat")?.parse::<u64>()?;
            let status = fs::read_to_string(task.join("status"))?;
            let count = |name: &str| -> Result<u64> {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no count of switches")?;
                Ok(line.trim().parse()?)
            };
            usage.voluntary += count("voluntary_ctxt_switches:")?;
            usage.involuntary += count("nonvoluntary_ctxt_switches:")?;
        }
        Ok(usage)
    }
}

/// A subject's report: `PACKETS LAST-NS PROMOTIONS-WITHOUT-FOLLOWER BUCKET:COUNT...`
struct Report {
    packets: u64,
    last_ns: u64,
    without_follower: u64,
    latency: Vec<(usize, u64)>,
}

impl Report {
    fn parse(line: &str) -> Result<Self> {
        let mut fields = line.split_whitespace();
        let mut number = || -> Result<u64> { Ok(fields.next().context("a short report")?.parse()?) };
        let (packets, last_ns, without_follower) = (number()?, number()?, number()?);
        let mut latency = Vec::new();
        for field in fields {
            let Some((bucket, count)) = field.split_once(':') else { bail!("{field}: no bucket") };
            latency.push((bucket.parse()?, count.parse()?));
        }
        Ok(Self { packets, last_ns, without_follower, latency })
    }

    fn latency_ns(&self, permille: u64) -> u64 {
        let total: u64 = self.latency.iter().map(|(_, count)| count).sum();
        let rank = (total * permille).div_ceil(1_000);
        let mut seen = 0;
        for (bucket, count) in &self.latency {
            seen += count;
            if seen >= rank {
                return super::subject::bucket_ns(*bucket);
            }
        }
        0
    }
}

/// Payload of each datagram.
const PAYLOAD_BYTES: usize = 120;
const START_LIMIT: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_millis(30);
/// How long datagrams may be under way after the last was sent.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// A subject that takes longer than this for a datagram, beside its work, has lost some.
const CAPACITY_NS_MAX: u64 = 100_000;
/// A sleep ends late by less than this, usually.
const SLEEP_MARGIN_NS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_with_its_percentiles() {
        let report = Report::parse("4 77 1 10:2 40:1 2047:1").unwrap();
        assert_eq!((report.packets, report.last_ns, report.without_follower), (4, 77, 1));
        assert_eq!(report.latency_ns(500), 10);
        assert_eq!(report.latency_ns(750), 40);
        assert!(Report::parse("4 77").is_err());
    }

    #[test]
    fn a_hot_load_sends_every_second_datagram_to_the_first_socket() {
        let sender = Sender::new(&[1, 2, 3], Load::Hot).unwrap();
        let ports: Vec<u16> = (0..6).map(|packet| sender.target(packet).port()).collect();
        assert_eq!(ports, [1, 2, 1, 3, 1, 2]);
        let sender = Sender::new(&[1], Load::Hot).unwrap();
        assert_eq!((sender.target(0).port(), sender.target(1).port()), (1, 1));
    }
}
