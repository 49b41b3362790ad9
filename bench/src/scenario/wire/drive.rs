//! One run from outside: warm-up, measured packets, and the wait for what is still on its way.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use mdgw_sys::{affinity::pin_to, clock::unix_now};
use mdgw_telemetry::stages::Stage;

use super::{
    admin_client::AdminClient,
    case::Case,
    cores::Cores,
    input::Input,
    log_readers::LogReaders,
    matching::ChannelMatching,
    network::Network,
    outcome::Outcome,
    own_latency,
    receiver::{ReceiveCounts, Receiver},
    schedule::Schedule,
    sender::{BetweenSends, LateSender, SendTimes, Sender},
    subject::{LATENCY_DIRECTORY, POOL, RunningSubject, Settings, Subject, SubjectKind},
    thread_use::ThreadUse,
};

/// What all runs have in common.
pub(super) struct Rig {
    pub(super) network: Network,
    pub(super) settings: Settings,
    pub(super) pool_cores: Vec<usize>,
    pub(super) sender_core: Option<usize>,
    pub(super) receiver_core: Option<usize>,
    pub(super) late: LateSender,
}

impl Rig {
    pub(super) fn cores(&self, case: &Case) -> Result<Cores> {
        Cores::choose(case.threads, &self.pool_cores, self.sender_core, self.receiver_core)
    }

    /// Starts the subject, sends the warm-up and the measured packets, and ends the subject.
    pub(super) fn run(&self, subject: &Subject, case: &Case, input: &mut Input, seconds: f64) -> Result<Outcome> {
        let cores = self.cores(case)?;
        let settle_packets = packets_in(case, SETTLE_SECONDS);
        let packet_count = settle_packets + packets_in(case, seconds);
        input.grow_to(usize::try_from(packet_count)?.div_ceil(case.channels));
        let running = subject.start(case, &cores, &self.network, &self.settings)?;
        let run = Run { rig: self, subject, case, input, cores, settle_packets, packet_count };
        // The sender pins itself. Programs that are started inherit the cores of their starter, so it is a thread of
        // its own that ends with the run.
        let mut outcome = thread::scope(|scope| {
            let driver = scope.spawn(|| run.drive(&running));
            driver.join().map_err(|_| anyhow!("the sending thread panicked"))?
        })?;
        let directory = running.stop()?;
        outcome.own = own_latency::read(
            &directory.path().join(LATENCY_DIRECTORY),
            Stage::WireToWire,
            outcome.begun_ns..u64::MAX,
        )?;
        Ok(outcome)
    }
}

struct Run<'a> {
    rig: &'a Rig,
    subject: &'a Subject,
    case: &'a Case,
    input: &'a Input,
    cores: Cores,
    /// Packets before the measured ones, at the same pace. Their latencies do not count, their losses do.
    settle_packets: u64,
    packet_count: u64,
}

impl Run<'_> {
    fn drive(&self, running: &RunningSubject) -> Result<Outcome> {
        pin_to(self.cores.sender)?;
        let Run { case, input, .. } = self;
        let network = &self.rig.network;
        let groups: Vec<Vec<_>> = (0..case.channels)
            .map(|channel| (0..case.lines).map(|line| network.input_group(channel, line)).collect())
            .collect();
        let sender = Sender::open(&groups, &network.outside, network.loopback())?;
        let mut receiver =
            Receiver::open(network.output_group(), network.outside.clone(), self.subject.output(), input)?;
        self.warm_up(&sender, &mut receiver)?;
        let logs = (0..case.channels)
            .map_while(|channel| Some((running.log_directory(channel)?, u16::try_from(channel + 1).ok()?)));
        let readers = LogReaders::start(case.log_readers, &logs.collect::<Vec<_>>())?;
        let client = running.admin_address.zip(self.subject.admin.path());
        let client =
            client.map(|(address, path)| network.run_inside(|| AdminClient::start(address, path))).transpose()?;
        let begun_ns = unix_now().0;
        let (before, begun) = (ThreadUse::of(running.process(), self.pool_prefix())?, Instant::now());
        let times = self.send_measured(&sender, &mut receiver)?;
        let threads = ThreadUse::of(running.process(), self.pool_prefix())?.since(before);
        let measured_ns = u64::try_from(begun.elapsed().as_nanos())?;
        let answers = client.map(AdminClient::stop).transpose()?.unwrap_or_default();
        let ends: Vec<u64> = self.ends(&times);
        wait_until_quiet(&mut receiver, &ends)?;
        let log_entries_read = readers.stop()?;
        let mut outcome = Outcome::new(self.achieved_per_s(&times));
        self.record(&times, receiver.channels(), &mut outcome)?;
        outcome.lost_messages = lost_messages(receiver.channels(), &ends);
        outcome.receiver_dropped = receiver.dropped()?;
        outcome.received = receiver.counts;
        outcome.threads = threads;
        outcome.log_entries_read = log_entries_read;
        outcome.answers = answers;
        outcome.begun_ns = begun_ns;
        outcome.measured_ns = measured_ns;
        Ok(outcome)
    }

    fn pool_prefix(&self) -> &'static str {
        match self.subject.kind {
            SubjectKind::Gateway => POOL,
            // All of its threads do the same.
            SubjectKind::Bare => "",
        }
    }

    /// Sends directory and book, and waits until all of that is published.
    fn warm_up(&self, sender: &Sender, receiver: &mut Receiver<'_>) -> Result<()> {
        let channels = &self.input.channels;
        let packet_count = (self.input.warm_up_packets * channels.len()) as u64;
        let schedule = Schedule { packets_per_s: WARM_UP_PACKETS_PER_S, burst: 1, packet_count, ..self.schedule() };
        sender.send_all(self.input, 0, &schedule, LateSender::CatchesUp, &mut SharedCore::new(receiver))?;
        let ends: Vec<u64> =
            channels.iter().map(|channel| channel.boundaries()[self.input.warm_up_packets - 1]).collect();
        wait_until_quiet(receiver, &ends)?;
        let lost = lost_messages(receiver.channels(), &ends);
        ensure!(
            lost == 0,
            "{}: {lost} messages of the warm-up were not published: is another program on these groups, or are the \
             receive buffers too small?",
            self.subject.name
        );
        receiver.counts = ReceiveCounts::default();
        Ok(())
    }

    /// Of the packets after the warm-up.
    fn schedule(&self) -> Schedule {
        Schedule {
            packets_per_s: self.case.packets_per_s,
            burst: self.case.burst,
            lines: self.case.lines,
            skew_ns: self.case.skew_us * 1_000,
            packet_count: self.packet_count,
        }
    }

    fn send_measured(&self, sender: &Sender, receiver: &mut Receiver<'_>) -> Result<SendTimes> {
        let schedule = self.schedule();
        let first = self.input.warm_up_packets;
        if self.cores.is_shared() {
            return sender.send_all(self.input, first, &schedule, self.rig.late, &mut SharedCore::new(receiver));
        }
        let stop = AtomicBool::new(false);
        let receiver = Mutex::new(receiver);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                pin_to(self.cores.receiver)?;
                let mut receiver = receiver.lock().map_err(|_| anyhow!("the receiver failed before"))?;
                while !stop.load(Ordering::Relaxed) {
                    if receiver.receive(usize::MAX)? == 0 {
                        // Each poll of an empty queue takes its cache line from the core that fills the queue.
                        spin_for(IDLE_POLL_NS);
                    }
                }
                anyhow::Ok(())
            });
            let times = sender.send_all(self.input, first, &schedule, self.rig.late, &mut OwnCore);
            stop.store(true, Ordering::Relaxed);
            receiving.join().map_err(|_| anyhow!("the receiving thread panicked"))??;
            times
        })
    }

    /// The first sequence after the measured packets, of each channel.
    fn ends(&self, times: &SendTimes) -> Vec<u64> {
        let sent = times.packets.len();
        let channels = self.input.channels.iter().enumerate();
        let end = |(index, channel): (usize, &super::input::ChannelInput)| {
            let packets = sent / self.case.channels + usize::from(index < sent % self.case.channels);
            channel.boundaries()[self.input.warm_up_packets + packets - 1]
        };
        channels.map(end).collect()
    }

    fn achieved_per_s(&self, times: &SendTimes) -> f64 {
        let last_ns = times.packets.last().map_or(0, |last| last.actual_ns.saturating_sub(times.start_ns));
        // The last burst's own duration: at the intended rate the next burst would begin then.
        let scheduled_ns = (self.packet_count * 1_000_000_000 / self.case.packets_per_s).max(1);
        self.packet_count as f64 * 1e9 / scheduled_ns.max(last_ns) as f64
    }

    fn record(&self, times: &SendTimes, channels: &[ChannelMatching<'_>], outcome: &mut Outcome) -> Result<()> {
        for (number, sent) in times.packets.iter().enumerate().skip(usize::try_from(self.settle_packets)?) {
            let channel = number % channels.len();
            let packet = self.input.warm_up_packets + number / channels.len();
            let result = channels[channel].outcomes().get(packet).context("an outcome for each packet")?;
            outcome.record(sent, *result);
        }
        Ok(())
    }
}

fn packets_in(case: &Case, seconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of packets")]
    let packets = (case.packets_per_s as f64 * seconds) as u64;
    // Whole bursts, and at least one packet for each channel.
    packets.max(case.channels as u64).next_multiple_of(case.burst)
}

fn lost_messages(channels: &[ChannelMatching<'_>], ends: &[u64]) -> u64 {
    channels.iter().zip(ends).map(|(channel, end)| channel.lost_messages(*end)).sum()
}

/// Receives until all is covered, or nothing arrives any more. Counts polls and not time: while the whole machine is suspended,
/// the subject is too.
fn wait_until_quiet(receiver: &mut Receiver<'_>, ends: &[u64]) -> Result<()> {
    let (mut progress, mut idle_polls) = (receiver.progress(), 0);
    while idle_polls < IDLE_POLLS_MAX {
        while receiver.receive(usize::MAX)? > 0 {}
        if receiver.channels().iter().zip(ends).all(|(channel, end)| channel.is_covered_through(*end)) {
            break;
        }
        idle_polls += 1;
        if receiver.progress() != progress {
            (progress, idle_polls) = (receiver.progress(), 0);
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn spin_for(duration_ns: u64) {
    let start = unix_now().0;
    while unix_now().0.saturating_sub(start) < duration_ns {
        std::hint::spin_loop();
    }
}

/// The sender has its core for itself.
struct OwnCore;

impl BetweenSends for OwnCore {
    fn wait(&mut self, _now_ns: u64, _slack_ns: u64) -> Result<()> {
        std::hint::spin_loop();
        Ok(())
    }

    fn sent(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The sender receives too, in the time until the next packet is due. Stamps are the kernel's, so it does not matter
/// when it receives, as long as the socket's buffer has room.
struct SharedCore<'r, 'a> {
    receiver: &'r mut Receiver<'a>,
    next_receive_ns: u64,
    sends_since_receive: usize,
}

impl<'r, 'a> SharedCore<'r, 'a> {
    fn new(receiver: &'r mut Receiver<'a>) -> Self {
        Self { receiver, next_receive_ns: 0, sends_since_receive: 0 }
    }
}

impl BetweenSends for SharedCore<'_, '_> {
    fn wait(&mut self, now_ns: u64, slack_ns: u64) -> Result<()> {
        let packets_max = usize::try_from(slack_ns / RECEIVE_NS_PER_PACKET)?.min(RECEIVE_BATCH);
        if now_ns < self.next_receive_ns || packets_max < 2 {
            std::hint::spin_loop();
            return Ok(());
        }
        let received = self.receiver.receive(packets_max)?;
        self.sends_since_receive = 0;
        // Rarely while nothing arrives: each poll takes the queue's cache line from the core that fills the queue.
        self.next_receive_ns = if received == packets_max { 0 } else { now_ns + IDLE_POLL_NS };
        Ok(())
    }

    fn sent(&mut self) -> Result<()> {
        self.sends_since_receive += 1;
        if self.sends_since_receive >= SENDS_WITHOUT_RECEIVE_MAX {
            self.sends_since_receive = 0;
            for _ in 0..SENDS_WITHOUT_RECEIVE_MAX.div_ceil(RECEIVE_BATCH) {
                self.receiver.receive(RECEIVE_BATCH)?;
            }
        }
        Ok(())
    }
}

/// Time at the measured pace before the first measured packet.
const SETTLE_SECONDS: f64 = 0.2;
const WARM_UP_PACKETS_PER_S: u64 = 5_000;
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Together longer than a heartbeat interval and the gap timeout.
const IDLE_POLLS_MAX: u32 = 500;
const IDLE_POLL_NS: u64 = 20_000;
/// What receiving one packet takes at most, usually; so the next send is not late.
const RECEIVE_NS_PER_PACKET: u64 = 2_000;
const RECEIVE_BATCH: usize = 64;
/// A sender that is late and never waits receives after this many sends, late as it is: packets that overflow the
/// receiver's buffer would count as lost. More than a burst, which is to be sent at once.
const SENDS_WITHOUT_RECEIVE_MAX: usize = 256;
