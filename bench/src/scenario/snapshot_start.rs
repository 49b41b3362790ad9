//! How long does a late start by snapshot take, and what does it cost the thread of the channel?
//!
//! One thread writes the log as the thread of a channel does: append, commit and send of a packet, at intervals, after a morning that left
//! so many orders. Two cold threads, as the gateway's, follow the log and answer requests within the default limits. *Start*: a subscriber
//! of the library, from its opening to the last part of the snapshot. *Publish*: a packet without a snapshot in progress, and while a
//! subscriber starts; the same writer, in alternating turns of one run.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use mdgw_feeds::{
    book::BookLimits,
    frame::{FrameFlags, FrameMeta},
    identity::{ChannelId, Epoch, Feed, GroupId, Sequence, Session},
    published::packet::{PACKET_BYTES_MAX, PacketFlags, PacketMeta, write_packet},
    time::{TradingDate, UnixNs},
};
use mdgw_pair::standby::KnownEpochs;
use mdgw_publog::{LogOptions, OpenedLog, Retention, SegmentMaintenance, Writer};
use mdgw_runtime::{
    config::resolved::RetransmissionLimits,
    retransmit::{Responder, ServedChannel, snapshots::SnapshotTaker},
};
use mdgw_subscriber::{Item, LineAddress, StartFrom, Subscriber, SubscriberConfig};
use mdgw_sys::{
    affinity::{pin_to, pinnable_cores},
    clock::mono_now,
    fence::Fence,
};
use serde_json::json;
use zerocopy::IntoBytes as _;

use crate::report::Spread;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SnapshotStartOptions {
    /// Resting orders.
    #[arg(long, default_value_t = 1_000_000)]
    orders: u32,
    /// Time between two packets, us.
    #[arg(long, default_value_t = 20)]
    interval_us: u64,
    /// Length of the turns without a snapshot, ms.
    #[arg(long, default_value_t = 2_000)]
    turn_ms: u64,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The start of 1,000,000 orders, and publishing while it lasts over publishing without.
const START_NS_MAX: f64 = 2e9;
const P99_RATIO_MAX: f64 = 1.2;

pub(crate) fn run(options: &SnapshotStartOptions) -> Result<()> {
    let cores = pinnable_cores();
    let (cold_core, writer_core) = (cores[0], *cores.last().context("a core")?);
    ensure!(cold_core != writer_core, "the writer and the cold threads need a core each");
    let mut channel = TestChannel::new(options.orders)?;
    let stop = AtomicBool::new(false);
    let (mut starts, mut alone, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    thread::scope(|scope| -> Result<()> {
        let _stops_the_threads = StopOnDrop(&stop);
        let mut maintenance = channel.maintenance.take().context("maintenance is idle")?;
        let (stop, service) = (&stop, Service::new(&channel, options.orders)?);
        let address = service.address()?;
        scope.spawn(move || {
            let _shares_a_core = pin_to(cold_core);
            while !stop.load(Acquire) {
                maintenance.run_once(mono_now().0);
                thread::sleep(Duration::from_millis(1));
            }
        });
        service.spawn(scope, stop, cold_core);
        pin_to(writer_core)?;
        channel.write_morning(options.orders)?;
        // The first start waits until the snapshot thread has read the morning: it is not measured.
        channel.publish_while_starting(options, address, cold_core)?;
        for _ in 0..options.rounds {
            alone.push(channel.publish_for(options, cold_core)?);
            let (start_ns, times) = channel.publish_while_starting(options, address, cold_core)?;
            starts.push(start_ns);
            beside.push(times);
        }
        Ok(())
    })?;
    report(options, starts, &alone, &beside)
}

fn report(
    options: &SnapshotStartOptions,
    starts: Vec<f64>,
    alone: &[Histogram<u64>],
    beside: &[Histogram<u64>],
) -> Result<()> {
    let p99 = |histogram: &Histogram<u64>| histogram.value_at_percentile(99.0) as f64;
    let start = Spread::of(starts);
    let without = Spread::of(alone.iter().map(p99).collect());
    let during = Spread::of(beside.iter().map(p99).collect());
    let ratio = Spread::of(alone.iter().zip(beside).map(|(alone, beside)| p99(beside) / p99(alone)).collect());
    if options.json {
        println!(
            "{}",
            json!({
                "scenario": "snapshot-start", "orders": options.orders, "start_ns": start.to_json(),
                "publish_p99_ns": without.to_json(), "during_p99_ns": during.to_json(), "ratio": ratio.to_json(),
            })
        );
        return Ok(());
    }
    println!(
        "late start with {} orders: {:.3} s ({:.3} to {:.3}); for 1,000,000 at most {:.1} s",
        options.orders,
        start.median / 1e9,
        start.min / 1e9,
        start.max / 1e9,
        START_NS_MAX / 1e9
    );
    println!(
        "publish p99: {:.0} ns alone, {:.0} ns while a subscriber starts, ratio {:.3} ({:.3} to {:.3}); at most {P99_RATIO_MAX}",
        without.median, during.median, ratio.median, ratio.min, ratio.max
    );
    Ok(())
}

/// Sets the flag when it is dropped, so that an error ends the other threads too.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// The channel as its thread has it.
struct TestChannel {
    directory: tempfile::TempDir,
    writer: Writer,
    maintenance: Option<SegmentMaintenance>,
    session: Session,
    next: u64,
    /// The line, sent by unicast: its receiver, when there is one.
    line: SocketAddrV4,
    socket: UdpSocket,
}

impl TestChannel {
    fn new(orders: u32) -> Result<Self> {
        let directory = tempfile::tempdir_in("/dev/shm")?;
        let bytes_max = u64::from(orders) * 128 + (256 << 20);
        let options = LogOptions {
            segment_bytes: 16 << 20,
            retention: Retention { bytes_max, age_ns_max: None, protected_bytes_max: bytes_max },
            ..LogOptions::new(directory.path(), CHANNEL.0)
        };
        let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, 0)?;
        let date = TradingDate::from_yyyymmdd(20_260_102).context("a date")?;
        let session = Session { feed: Feed::NasdaqItch, date, restart: 0 };
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // A port that is free now. Without a subscriber nobody receives, and sending fails.
        let SocketAddr::V4(line) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()? else {
            anyhow::bail!("an IPv4 address was bound")
        };
        Ok(Self { directory, writer, maintenance: Some(maintenance), session, next: 1, line, socket })
    }

    /// Orders of 8,000 instruments, some messages in an entry.
    fn write_morning(&mut self, orders: u32) -> Result<()> {
        const MESSAGES_PER_ENTRY: u64 = 12;
        let last = u64::from(orders);
        while self.next <= last {
            // Maintenance shares its core with all cold threads: it needs the time to make the next segment.
            if self.writer.counts().entries.is_multiple_of(1_000) {
                thread::sleep(Duration::from_millis(10));
            }
            let next = (self.next + MESSAGES_PER_ENTRY).min(last + 1);
            self.writer.begin(self.session.to_bytes(), self.next);
            for sequence in self.next..next {
                ensure!(self.writer.append(&frame(sequence, b'A', sequence)?), "a packet has room");
            }
            let count = u16::try_from(next - self.next)?;
            let position = self.writer.commit(next, count, 0, self.next).context("an open entry")?;
            self.writer.release_before(position);
            self.next = next;
        }
        let lost = self.writer.counts().entries_private;
        ensure!(lost == 0, "{lost} entries are missing from the log: no segment was ready");
        Ok(())
    }

    /// One message: it adds an order, and the next one cancels it. Commits its entry, and sends its packet.
    fn publish(&mut self) -> Result<()> {
        let (action, order) = if self.next.is_multiple_of(2) { (b'C', self.next - 1) } else { (b'A', self.next) };
        let frame = frame(self.next, action, order)?;
        self.writer.begin(self.session.to_bytes(), self.next);
        ensure!(self.writer.append(&frame), "a packet has room");
        let position = self.writer.commit(self.next + 1, 1, 0, self.next).context("an open entry")?;
        self.writer.release_before(position);
        let meta = PacketMeta {
            flags: PacketFlags::default(),
            group: GROUP,
            channel: CHANNEL,
            epoch: EPOCH,
            session: self.session,
            first: Sequence(self.next),
            next: Sequence(self.next + 1),
            send_time_ns: 0,
        };
        let mut packet = [0; PACKET_BYTES_MAX];
        let length = write_packet(&meta, &frame, &mut packet).context("a packet has room")?;
        let _nobody_receives = self.socket.send_to(&packet[..length], self.line);
        self.next += 1;
        Ok(())
    }

    /// Publishes at intervals until `is_over`.
    fn publish_until(&mut self, interval_us: u64, mut is_over: impl FnMut() -> bool) -> Result<Histogram<u64>> {
        let mut times = Histogram::new(3)?;
        let mut due = mono_now().0;
        while !is_over() {
            while mono_now().0 < due {
                std::hint::spin_loop();
            }
            let begin = mono_now().0;
            self.publish()?;
            let end = mono_now().0;
            times.record(end - begin)?;
            due = end + interval_us * 1_000;
        }
        Ok(times)
    }

    /// Publishes while a receiver that needs no snapshot takes the packets: a send without one is cheaper.
    fn publish_for(&mut self, options: &SnapshotStartOptions, core: usize) -> Result<Histogram<u64>> {
        let receiver = UdpSocket::bind(self.line).context("receive the line")?;
        receiver.set_read_timeout(Some(Duration::from_millis(5)))?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stops_the_receiver = StopOnDrop(&stop);
            scope.spawn(|| {
                let _shares_a_core = pin_to(core);
                let mut packet = [0; PACKET_BYTES_MAX];
                while !stop.load(Acquire) {
                    let _timed_out = receiver.recv(&mut packet);
                }
            });
            let until = mono_now().0 + options.turn_ms * 1_000_000;
            self.publish_until(options.interval_us, || mono_now().0 >= until)
        })
    }

    /// Publishes while a subscriber starts. Returns how long the start took, ns.
    fn publish_while_starting(
        &mut self,
        options: &SnapshotStartOptions,
        service: SocketAddrV4,
        core: usize,
    ) -> Result<(f64, Histogram<u64>)> {
        let (line, orders) = (self.line, u64::from(options.orders));
        thread::scope(|scope| {
            let subscriber = scope.spawn(move || start_subscriber(line, service, orders, core));
            let times = self.publish_until(options.interval_us, || subscriber.is_finished())?;
            let start_ns = subscriber.join().map_err(|_| anyhow::anyhow!("the subscriber panicked"))??;
            Ok((start_ns, times))
        })
    }
}

/// A frame with one mbo record.
fn frame(sequence: u64, action: u8, order: u64) -> Result<Vec<u8>> {
    let mut record = [0_u8; 56];
    (record[0], record[1], record[2]) = (14, 0xa0, 2);
    record[4..8].copy_from_slice(&u32::try_from(order % 8_000)?.to_le_bytes());
    record[16..24].copy_from_slice(&order.to_le_bytes());
    let price = 1_000_000_000 * (100 + order / 8_000 % 200);
    record[24..32].copy_from_slice(&price.to_le_bytes());
    record[32..36].copy_from_slice(&100_u32.to_le_bytes());
    // LAST, and a bid.
    (record[36], record[38], record[39]) = (1 << 7, action, b'B');
    let mut meta = FrameMeta::message(Sequence(sequence), UnixNs(sequence), 0);
    meta.flags = FrameFlags::FIRST_PART.with(FrameFlags::LAST_PART);
    Ok([meta.header(1, &record).as_bytes(), &record].concat())
}

/// Starts a subscriber and waits for the last part of its snapshot. Returns how long that took, ns.
fn start_subscriber(line: SocketAddrV4, service: SocketAddrV4, orders: u64, core: usize) -> Result<f64> {
    let _shares_a_core = pin_to(core);
    let begin = mono_now();
    let mut config = SubscriberConfig::new(vec![LineAddress::new(line, Ipv4Addr::UNSPECIFIED)]);
    config.services = vec![service];
    (config.receiver.group, config.receiver.start) = (GROUP, StartFrom::Snapshot);
    let mut subscriber = Subscriber::open(config)?;
    let (mut records, mut is_complete, mut is_live) = (0, false, false);
    while !is_complete {
        subscriber.poll(Duration::from_millis(100), &mut |output| match output.item {
            Item::Snapshot { header, .. } => {
                records += u64::from(header.record_count.get());
                is_complete |= FrameFlags(header.flags).contains(FrameFlags::LAST_PART);
            }
            Item::Message { .. } => is_live |= !is_complete,
            _ => {}
        })?;
        ensure!(!is_live, "no service had a snapshot");
        ensure!(mono_now().since(begin) < START_NS_LIMIT, "no snapshot came");
    }
    let start_ns = mono_now().since(begin) as f64;
    ensure!(records >= orders, "{records} records for {orders} orders");
    Ok(start_ns)
}

/// A subscriber that has no snapshot by then has failed, ns.
const START_NS_LIMIT: u64 = 120_000_000_000;

/// The cold threads that serve snapshots.
struct Service {
    socket: UdpSocket,
    responder: Responder,
    taker: SnapshotTaker,
}

impl Service {
    fn new(channel: &TestChannel, orders: u32) -> Result<Self> {
        let books = BookLimits { orders_max: orders + 1_000, levels_max: 1 << 21, ..BookLimits::default() };
        let served = vec![ServedChannel {
            group: GROUP,
            channel: CHANNEL,
            name: "one".to_owned(),
            log_directory: channel.directory.path().to_owned(),
            frame_bytes_max: PACKET_BYTES_MAX - 80,
            tag_key: None,
            fence: Arc::new(Fence::standalone(EPOCH)),
            epochs: Arc::new(KnownEpochs::new(EPOCH, 1)),
            books,
            initial: None,
        }];
        let limits = RetransmissionLimits {
            allowed: vec!["127.0.0.0/8".parse().map_err(|_| anyhow::anyhow!("a network"))?],
            requests_per_second: 1_000,
            bytes_per_second: 12_500_000,
            snapshot_bytes_per_second: 62_500_000,
            packets_per_request_max: 256,
            requesters_max: 8,
        };
        let taker = SnapshotTaker::new(&served, &Arc::default())?;
        let mut responder = Responder::new(limits, served)?;
        responder.serve_snapshots(Arc::clone(taker.store()));
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(5)))?;
        Ok(Self { socket, responder, taker })
    }

    fn address(&self) -> Result<SocketAddrV4> {
        let SocketAddr::V4(address) = self.socket.local_addr()? else { anyhow::bail!("an IPv4 address was bound") };
        Ok(address)
    }

    /// One thread takes the snapshots, and one answers requests.
    fn spawn<'scope>(self, scope: &'scope thread::Scope<'scope, '_>, stop: &'scope AtomicBool, core: usize) {
        let Self { socket, mut responder, mut taker } = self;
        scope.spawn(move || {
            let _shares_a_core = pin_to(core);
            while !stop.load(Acquire) {
                if !taker.turn(mono_now()) {
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
        scope.spawn(move || {
            let _shares_a_core = pin_to(core);
            let mut request = [0; 64];
            while !stop.load(Acquire) {
                responder.follow();
                let Ok((length, SocketAddr::V4(requester))) = socket.recv_from(&mut request) else { continue };
                responder.answer(&request[..length], *requester.ip(), mono_now(), &mut |parts| {
                    socket.send_to(&parts.concat(), requester)
                });
            }
        });
    }
}

const GROUP: GroupId = GroupId(1);
const CHANNEL: ChannelId = ChannelId(1);
const EPOCH: Epoch = Epoch(7 << 8 | 1);
