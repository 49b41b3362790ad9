//! The data path allocates nothing after warm-up: the gateway's own pipeline, from its sockets to the multicast output,
//! on every backend of the handle set; and the channels of all feeds, through gaps and duplicates.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsFd as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_queue::ArrayQueue;
use mdgw_captures::{impairment::LossPolicy, pacer::Pace};
use mdgw_engine::{
    dispatch::{ChannelHandler as _, TurnContext},
    handle_set::{
        Event, HandleSet, ThreadIo as _, Wait,
        backend_choice::{self, Backend, LeaderWait},
        epoll::EpollSet,
        ring::{MultishotSet, RingSet},
    },
    pipeline::{ChannelPipeline, LineSocket, PeerGapRequests, PipelineLocal, PipelineParts, RecoverySocket},
    publish::{LogSink, Publisher, PublisherConfig},
};
use mdgw_feeds::{
    arbiter::RecoveryConfig,
    channel::{Channel, ChannelConfig, ChannelCounters, ChannelState, Datagram},
    drop_reason::DropReason,
    identity::{ChannelId, Epoch, Feed, GroupId, Line},
    published::tag::TagKey,
    time::{MonoNs, TradingDate, UnixNs},
    transport::iextp::{PROTOCOL_DEEP_1_0, PROTOCOL_TOPS_1_6},
    venue::iex::{deep::PriceLevelUpdate, tops::QuoteUpdate},
};
use mdgw_publog::{LogOptions, OpenedLog, Retention, SegmentMaintenance};
use mdgw_simulator::{
    exchange::{Exchange, ExchangeConfig, ExchangeLine},
    source::FeedSource,
};
use mdgw_sys::{
    batch::{OutputIndex, Outputs, ReceiveBatch, SendBuffers},
    clock::{mono_now, unix_now},
    fence::Fence,
    handle::{ChannelIndex, Handle, LineSet},
    sockets::{Interface, OutputOptions, ReceiveOptions, SourceFilter, open_output, open_receive},
};
use mdgw_telemetry::{channel_metrics::channel_recorder_pair, counters::Registry, stages::stage_recorder_pair};
use mdgw_tests::{
    captures,
    counting_allocator::{CountingAllocator, allocations_in},
    feeds::{self, DAMAGE, MIDNIGHT_NS, Packet, SESSION},
    gateway_fixture::GatewayFixture,
    process::TEST_TIMEOUT,
    skip::skip,
};
use zerocopy::{FromZeros as _, IntoBytes as _};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn the_fence_check_allocates_nothing() {
    assert!(allocations_in(|| drop(black_box(Box::new(1_u64)))) > 0, "the allocator counts");
    let fence = Fence::closed();
    fence.open(Epoch::new(1, 1), MonoNs(u64::MAX));
    let checks = || (0..1_000).all(|_| black_box(&fence).epoch_if_open(mono_now()) == Some(Epoch::new(1, 1)));
    assert_eq!(allocations_in(|| assert!(checks())), 0);
}

#[test]
fn the_pipeline_on_epoll_allocates_nothing() {
    run_pipeline(EpollSet::new().unwrap(), || {}).assert_allocates_nothing();
}

#[test]
fn the_pipeline_on_rings_allocates_nothing() {
    match backend_choice::choose_backend(backend_choice::IoChoice::IoUring, 2, LeaderWait::Blocking) {
        Ok(Backend::Ring(wait)) => run_pipeline(RingSet::new(wait).unwrap(), || {}).assert_allocates_nothing(),
        other => skip("the_pipeline_on_rings_allocates_nothing", &format!("{other:?}")),
    }
}

#[test]
fn the_pipeline_on_a_multishot_ring_allocates_nothing() {
    match backend_choice::choose_backend(backend_choice::IoChoice::IoUring, 1, LeaderWait::Blocking) {
        Ok(Backend::Multishot) => {
            run_pipeline(MultishotSet::new(MultishotSet::BUFFERS).unwrap(), || {}).assert_allocates_nothing();
        }
        other => skip("the_pipeline_on_a_multishot_ring_allocates_nothing", &format!("{other:?}")),
    }
}

#[test]
fn an_allocation_per_call_is_detected() {
    let run = run_pipeline(EpollSet::new().unwrap(), || drop(black_box(Box::new(7))));
    assert!(run.calls > 10 && run.allocations >= run.calls, "{run:?}");
}

#[test]
fn an_itch_channel_allocates_nothing_through_gaps_and_duplicates() {
    let packets = feeds::itch_packets(feeds::itch_day(30_000, 3), SESSION, MIDNIGHT_NS);
    channel(Feed::NasdaqItch, &feeds::evenly_spaced(&packets, 10_000)).assert_allocates_nothing();
}

#[test]
fn a_deep_channel_allocates_nothing_through_gaps_and_duplicates() {
    let updates: Vec<_> = (0..30_000).map(deep_update).collect();
    let messages = updates.iter().map(PriceLevelUpdate::as_bytes);
    channel(Feed::IexDeep, &feeds::iex_packets(PROTOCOL_DEEP_1_0, 1, MIDNIGHT_NS, messages)).assert_allocates_nothing();
}

#[test]
fn a_tops_channel_allocates_nothing_through_gaps_and_duplicates() {
    let updates: Vec<_> = (0..30_000).map(tops_update).collect();
    let messages = updates.iter().map(QuoteUpdate::as_bytes);
    channel(Feed::IexTops, &feeds::iex_packets(PROTOCOL_TOPS_1_6, 1, MIDNIGHT_NS, messages)).assert_allocates_nothing();
}

#[test]
fn real_captures_allocate_nothing() {
    let Some(root) = captures::root("the long captures") else { return };
    for (feed, name) in
        [(Feed::IexDeep, "deep-1.0-20170425/DEEP10.pcap.gz"), (Feed::IexTops, "tops-1.6-20170710/TOPS16.pcap.gz")]
    {
        let packets = feeds::evenly_spaced(&feeds::capture_packets(&root.join("iex").join(name)), 10_000);
        channel(feed, &packets).assert_allocates_nothing();
    }
}

/// Counts of a run after its warm-up.
#[derive(Debug, Default)]
struct AllocationRun {
    allocations: u64,
    /// Number of handler calls.
    calls: u64,
    packets: usize,
    counters: ChannelCounters,
    requests: u64,
    duplicates: u64,
    packets_sent: u64,
}

impl AllocationRun {
    fn assert_allocates_nothing(&self) {
        assert_eq!(self.allocations, 0, "{self:?}");
        assert!(self.packets > 1_000 && self.counters.records > 1_000 && self.duplicates > 100, "it ran: {self:?}");
        assert_eq!(self.counters.gaps, 0, "all gaps were filled: {self:?}");
    }
}

/// Packets of the warm-up, after which every buffer has been used and the fence is open.
const WARM_UP: usize = 300;
/// Packets per call: few, so that a run also makes many calls on a crowded machine.
const QUOTA: usize = 16;

/// Plays a day on damaged lines. The calling thread acts as the only pool thread: it waits, calls the pipeline's handlers
/// as the pool would, and counts their allocations. `between_calls` runs between the handler calls and is not counted.
fn run_pipeline<S: HandleSet>(set: S, between_calls: impl Fn()) -> AllocationRun {
    let fixture = GatewayFixture::new();
    let registry = Registry::default();
    let (recorder, mut collector) = stage_recorder_pair(1, 2);
    let (metrics, mut metrics_collector) = channel_recorder_pair(&[Line::A, Line::B]);
    let (sink, mut maintenance) = log(&fixture.path("log"));
    let interface = || Some(Interface::LOOPBACK);
    let output = open_output(&OutputOptions::new(fixture.output, interface())).unwrap();
    let publisher = PublisherConfig {
        group: GroupId(1),
        channel: ChannelId(1),
        outputs: vec![OutputIndex(0)],
        heartbeat_ns: 10_000_000,
        catch_up_packets_per_s: 20_000,
        send_ns_max: 10_000_000,
        log_directory: fixture.path("log"),
        tag_key: Some(TagKey::new(&[7; 32])),
    };
    let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let lines = [Line::A, Line::B].into_iter().zip(fixture.lines).map(|(line, group)| LineSocket {
        line,
        socket: open_receive(&ReceiveOptions::new(group, interface())).unwrap(),
        filter: SourceFilter::new(&[]),
    });
    let mut pipeline = ChannelPipeline::new(PipelineParts {
        index: ChannelIndex(0),
        channel: Channel::new(config(Feed::NasdaqItch, Some(RecoveryConfig::default()))),
        lines: lines.collect(),
        recovery: Some(RecoverySocket {
            socket: open_receive(&ReceiveOptions::new(any, None)).unwrap(),
            server: fixture.requests,
        }),
        peer_gap_requests: Arc::new(PeerGapRequests::new(1)),
        publisher: Publisher::new(publisher, &sink, Arc::default()),
        sink,
        fence: Arc::new(Fence::standalone(Epoch::new(1, 0))),
        counters: registry.register("one"),
        drop_counters: registry.register("one"),
        book_fault_counters: registry.register("one"),
        metrics,
        sessions: Arc::new(ArrayQueue::new(4)),
    });
    for (line, socket) in pipeline.sockets() {
        set.add(socket.socket().as_fd(), Handle { channel: ChannelIndex(0), line }).unwrap();
    }
    let mut io = set.thread_io().unwrap();
    let batch = ReceiveBatch::new(QUOTA, 2_048);
    let mut local = PipelineLocal::new(batch, SendBuffers::new(Outputs::new(vec![output])), recorder);

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                maintenance.run_once(unix_now().0);
                collector.collect(|_| {});
                metrics_collector.collect(|_| {});
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let exchange = exchange(&fixture);
        let mut events = Vec::with_capacity(32);
        let mut lines = LineSet::default();
        let mut run = AllocationRun::default();
        let mut packets = 0;
        let deadline = Instant::now() + TEST_TIMEOUT;
        while pipeline.channel().state() != ChannelState::Ended && Instant::now() < deadline {
            events.clear();
            let wait_allocations = allocations_in(|| io.wait(Wait::Poll, 32, &mut events).unwrap());
            let now = mono_now();
            let mut context = TurnContext { io: &mut io, local: &mut local, now, woken_at: unix_now(), thread: 0 };
            let mut provided = None;
            for event in &events {
                match event {
                    Event::Ready(handle) => lines = lines.with(handle.line),
                    Event::Provided(handle) => provided = Some(*handle),
                    Event::Timer | Event::Wake => {}
                }
            }
            let is_due = pipeline.next_deadline().is_some_and(|due| due <= now);
            if lines.is_empty() && provided.is_none() && !is_due {
                continue;
            }
            let mut done = 0;
            let call_allocations = allocations_in(|| {
                if !lines.is_empty() {
                    let progress = pipeline.on_ready(lines, QUOTA, &mut context).unwrap();
                    (done, lines) = (progress.packets, progress.unfinished_lines);
                }
                if let Some(handle) = provided {
                    done += pipeline.on_provided(handle, &mut context).unwrap().packets;
                }
                if is_due {
                    pipeline.on_deadline(now, &mut context).unwrap();
                }
                between_calls();
            });
            if packets >= WARM_UP {
                run.calls += 1;
                run.allocations += wait_allocations + call_allocations;
                run.packets += done;
            }
            packets += done;
        }
        stop.store(true, Ordering::Release);
        let report = exchange.stop().unwrap();
        assert_eq!(pipeline.channel().counters().messages, report.messages, "{report:?}");
        run.counters = *pipeline.channel().counters();
        run.requests = pipeline.requests().0;
        run.duplicates = pipeline.channel().arbiter_drops().get(DropReason::Duplicate);
        run.packets_sent = pipeline.publisher().counts().packets;
        assert!(run.requests > 0 && run.packets_sent > 1_000, "{run:?}");
        run
    })
}

fn exchange(fixture: &GatewayFixture) -> Exchange {
    let lines = fixture.lines.iter().zip(DAMAGE);
    Exchange::start(&ExchangeConfig {
        feed: FeedSource::Itch(feeds::itch_day(20_000, 4)),
        lines: lines.map(|(destination, impairment)| ExchangeLine { destination: *destination, impairment }).collect(),
        loss_policy: LossPolicy::Independent,
        seed: 4,
        pace: Pace::Rate(4_000.0),
        interface: Some(Interface::LOOPBACK),
        request_server: Some(fixture.requests),
        answer_loss: 0.0,
    })
    .unwrap()
}

/// Feeds two damaged lines into a channel with its log. Log maintenance runs between datagrams and is not counted.
fn channel(feed: Feed, packets: &[Packet]) -> AllocationRun {
    let folder = tempfile::tempdir().unwrap();
    let (mut sink, mut maintenance) = log(folder.path());
    let mut channel = Channel::new(config(feed, None));
    let [a, b] = feeds::damaged(packets, DAMAGE, 5);
    let mut arrivals: Vec<_> = [(Line::A, a), (Line::B, b)]
        .into_iter()
        .flat_map(|(line, packets)| packets.into_iter().map(move |(time_ns, bytes)| (time_ns, line, bytes)))
        .collect();
    arrivals.sort_by_key(|(time_ns, line, _)| (*time_ns, line.0));

    let mut run = AllocationRun::default();
    for (number, (time_ns, line, bytes)) in arrivals.iter().enumerate() {
        maintenance.run_once(*time_ns);
        let now = MonoNs(*time_ns);
        let count = allocations_in(|| {
            sink.begin(UnixNs(*time_ns));
            if channel.next_deadline().is_some_and(|due| due <= now) {
                channel.on_deadline(now, &mut sink);
            }
            channel.accept(Datagram { line: *line, bytes, ts_recv: UnixNs(*time_ns) }, now, &mut sink);
            sink.flush();
        });
        if number >= WARM_UP {
            run.calls += 1;
            run.packets += 1;
            run.allocations += count;
        }
    }
    run.counters = *channel.counters();
    run.duplicates = channel.arbiter_drops().get(DropReason::Duplicate);
    run
}

fn config(feed: Feed, recovery: Option<RecoveryConfig>) -> ChannelConfig {
    let mut config = ChannelConfig::new(ChannelId(1), feed);
    config.date = feed.is_by_order().then(|| TradingDate::from_yyyymmdd(20_190_130).unwrap());
    config.books.orders_max = 262_144;
    config.books.levels_max = 262_144;
    config.arbiter.window_packets = 1_024;
    config.arbiter.gap_timeout_ns = 2_000_000;
    config.arbiter.recovery = recovery;
    config
}

/// A log small enough that the run goes through several segments.
fn log(directory: &Path) -> (LogSink, SegmentMaintenance) {
    let mut options = LogOptions::new(directory, 1);
    options.segment_bytes = 1 << 20;
    options.ready_segments = 2;
    options.retention = Retention { bytes_max: 4 << 20, ..Retention::default() };
    let OpenedLog { writer, maintenance, .. } = mdgw_publog::open(options, MIDNIGHT_NS).unwrap();
    (LogSink::new(writer), maintenance)
}

/// A DEEP level update. The updates add, change and remove levels of 40 symbols.
fn deep_update(number: u32) -> PriceLevelUpdate {
    let mut update = PriceLevelUpdate::new_zeroed();
    let is_buy = number.is_multiple_of(2);
    update.message_type = if is_buy { b'8' } else { b'5' };
    update.event_flags = u8::from(!number.is_multiple_of(3));
    update.timestamp_ns.set(MIDNIGHT_NS.cast_signed() + i64::from(number));
    update.symbol = symbol(number / 2 % 40);
    update.size.set(number % 7 * 100);
    let ticks = i64::from(number.wrapping_mul(2_654_435_761) >> 20 & 0x1ff);
    update.price_e4.set(if is_buy { 100_0000 - ticks * 100 } else { 100_0100 + ticks * 100 });
    update
}

/// A TOPS quote update. The updates are of 40 symbols.
fn tops_update(number: u32) -> QuoteUpdate {
    let mut update = QuoteUpdate::new_zeroed();
    update.message_type = b'Q';
    update.timestamp_ns.set(MIDNIGHT_NS.cast_signed() + i64::from(number));
    update.symbol = symbol(number % 40);
    update.bid_size.set(100 + number % 5 * 100);
    update.bid_price_e4.set(100_0000 - i64::from(number % 11) * 100);
    update.ask_price_e4.set(100_0100 + i64::from(number % 13) * 100);
    update.ask_size.set(100 + number % 3 * 100);
    update
}

fn symbol(number: u32) -> [u8; 8] {
    let mut symbol = [b' '; 8];
    let text = format!("T{number}");
    symbol[..text.len()].copy_from_slice(text.as_bytes());
    symbol
}
