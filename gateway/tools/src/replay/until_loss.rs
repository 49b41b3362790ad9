//! Replays at a rate that increases step by step until a receiver loses a packet.
//!
//! A loss is a packet that the kernel counts as dropped at the receiver's sockets, or that was sent and not received.
//! The receiver is a sink in this process, or the programs of this host that listen on the destinations. For other
//! programs only the kernel's counters are available (`/proc/net/udp`), so there is no latency. A gateway is also
//! queried for its declared gaps and its latencies.

mod gateway;
mod host;
mod sink;

use std::{
    cell::RefCell, collections::BTreeSet, fmt::Write as _, io, net::SocketAddrV4, ops::ControlFlow, path::PathBuf,
};

use hdrhistogram::Histogram;
use mdgw_captures::{
    capture_file::CaptureError,
    pacer::{Pace, Rising},
};
use mdgw_feeds::time::MonoNs;
use mdgw_status::quantity::Count;
use mdgw_sys::{
    clock::mono_now,
    sockets::{Interface, SocketError},
};
use serde::Serialize;

use self::{gateway::GatewayLosses, host::HostDrops, sink::ReceiverSink};
use super::{
    capture_merge::CaptureMerge,
    wire::{self, Lateness, WireError, WireOptions},
};

/// Receiver of the packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A sink in this process, which joins groups on this interface.
    Sink(Option<Interface>),
    /// Other programs on this host.
    Host,
    /// The gateway on this host with this control socket.
    Gateway(PathBuf),
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UntilLoss {
    /// All steps, the slowest first.
    pub steps: Vec<Step>,
    /// Packets per second, as sent, of the last step before the one with a loss or a limit.
    pub highest_rate_without_loss: Option<f64>,
    /// Reason for the end.
    pub stopped_by: StoppedBy,
    /// Packets that were neither received nor dropped by a socket; known with a sink only.
    pub lost_in_transit: u64,
    /// Counters from which loss is computed.
    pub counts_source: &'static str,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Step {
    /// Requested rate, packets per second.
    pub rate_requested: f64,
    /// Rate reached, packets per second.
    pub rate_sent: f64,
    /// Packets sent.
    pub sent: u64,
    /// Packets dropped by the receivers' sockets.
    pub dropped: u64,
    /// Messages in gaps declared by the gateway; only with a gateway.
    pub gap_messages: Option<u64>,
    /// Delay of packets after their intended time, when handed to the kernel.
    pub send_lateness: Option<Lateness>,
    /// From a packet's intended time until the sink received it.
    pub latency: Option<Lateness>,
    /// Wire to wire latency in the gateway: the worst 99th percentile among its channels and those intervals of its
    /// latency log that lie within the step. `None` if no interval fits.
    pub gateway_latency: Option<Lateness>,
}

/// Reason why the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// A packet was lost.
    Loss,
    /// The sender fell behind: the rate exceeds what this host can send.
    SenderLimit,
    /// End of the captures.
    EndOfCaptures,
    /// The caller interrupted the search.
    Interrupted,
}

/// Errors of a search.
#[derive(Debug, thiserror::Error)]
pub enum UntilLossError {
    /// Sending failed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A socket of the sink failed.
    #[error("replay: cannot open a socket of the sink")]
    Socket(#[from] SocketError),
    /// A thread, or reading the kernel's counters, failed.
    #[error("replay: cannot {act}")]
    Io {
        /// The operation that failed.
        act: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// No program listens on this destination.
    #[error("replay: no program on this host listens on {0}: start it first, or omit --receiver host and --gateway")]
    NoListener(String),
}

/// Replays the captures at increasing rates to these destinations until something is lost. `is_over` may break off.
///
/// # Errors
/// See [`UntilLossError`].
pub fn run(
    open: impl Fn() -> Result<CaptureMerge, CaptureError>,
    options: &WireOptions,
    ramp: Rising,
    receiver: &Receiver,
    destinations: &BTreeSet<SocketAddrV4>,
    is_over: &mut dyn FnMut() -> bool,
) -> Result<UntilLoss, UntilLossError> {
    let io = |act| move |source| UntilLossError::Io { act, source };
    let counts: Box<dyn LossCounter> = match receiver {
        Receiver::Sink(interface) => Box::new(ReceiverSink::open(destinations, interface.as_ref())?),
        Receiver::Host => {
            let drops = HostDrops::of(destinations).map_err(io("read /proc/net/udp"))?;
            if let Some(destination_without_listener) = drops.destination_without_listener() {
                return Err(UntilLossError::NoListener(destination_without_listener.to_string()));
            }
            Box::new(drops)
        }
        Receiver::Gateway(socket) => {
            let losses = GatewayLosses::of(socket, destinations).map_err(io("query the gateway's losses"))?;
            if let Some(destination_without_listener) = losses.destination_without_listener() {
                return Err(UntilLossError::NoListener(destination_without_listener.to_string()));
            }
            Box::new(losses)
        }
    };
    let options = WireOptions { pace: Pace::Rising(ramp), ..options.clone() };
    let search = RefCell::new(Search::new(counts, ramp));
    let mut stopped_by = StoppedBy::EndOfCaptures;
    let summary = wire::run_observed(
        open,
        &options,
        &mut |_| {
            let found = search.borrow_mut().check_loss();
            stopped_by = match found {
                Some(found) => found,
                None if is_over() => StoppedBy::Interrupted,
                None => return ControlFlow::Continue(()),
            };
            ControlFlow::Break(())
        },
        &mut |destination, intended| search.borrow_mut().sent(destination, intended),
    )?;
    let mut search = search.into_inner();
    let latencies = search.counts.finish_counting(summary.packets).map_err(io("count received packets"))?;
    if search.check_loss() == Some(StoppedBy::Loss) {
        stopped_by = StoppedBy::Loss;
    }
    if let Some(source) = search.fault.take() {
        return Err(UntilLossError::Io { act: "count dropped packets", source });
    }
    let lost_in_transit = latencies
        .as_ref()
        .map_or(0, |arrived| summary.packets.saturating_sub(arrived.packets).saturating_sub(search.dropped));
    if lost_in_transit > 0 {
        stopped_by = StoppedBy::Loss;
    }
    let counts_source = search.counts.description();
    let steps = search.step_results(latencies.as_ref());
    // The last step was interrupted; it counts if nothing was wrong with it.
    let lossless_steps = match stopped_by {
        StoppedBy::Loss | StoppedBy::SenderLimit => steps.len().saturating_sub(1),
        StoppedBy::EndOfCaptures | StoppedBy::Interrupted => steps.len(),
    };
    let lossless_steps = if lost_in_transit > 0 { &[] } else { steps.get(..lossless_steps).unwrap_or_default() };
    let highest =
        lossless_steps.iter().take_while(|step| step.dropped == 0 && step.gap_messages.unwrap_or(0) == 0).last();
    Ok(UntilLoss {
        highest_rate_without_loss: highest.map(|step| step.rate_sent),
        stopped_by,
        lost_in_transit,
        counts_source,
        steps,
    })
}

/// Loss and latency counters of a receiver.
trait LossCounter {
    /// A packet of this step was sent; it was due at `intended`.
    fn sent(&mut self, destination: SocketAddrV4, intended: MonoNs, step: u32);

    /// Packets dropped by sockets since the beginning.
    ///
    /// # Errors
    /// Reading the kernel's counters fails.
    fn dropped(&mut self) -> io::Result<u64>;

    /// Messages in gaps declared since the beginning; 0 without a gateway.
    ///
    /// # Errors
    /// The gateway does not answer.
    fn gap_messages(&mut self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// The gateway's latency intervals between these times.
    fn gateway_latency(&self, _begin: MonoNs, _end: MonoNs) -> Option<Lateness> {
        None
    }

    /// Waits until `sent` packets have arrived, or no more arrive. Returns the number received, if the receiver can
    /// count.
    ///
    /// # Errors
    /// The counting thread has ended.
    fn finish_counting(&mut self, sent: u64) -> io::Result<Option<SinkTotals>>;

    /// Source of the counts.
    fn description(&self) -> &'static str;
}

/// Packets received by a sink.
#[derive(Debug)]
struct SinkTotals {
    packets: u64,
    /// Latencies of each step, ns.
    steps: Vec<Histogram<u64>>,
}

struct Search {
    counts: Box<dyn LossCounter>,
    ramp: Rising,
    /// Intended time of the first packet.
    origin: Option<MonoNs>,
    steps: Vec<StepProgress>,
    dropped: u64,
    gap_messages: u64,
    fault: Option<io::Error>,
}

struct StepProgress {
    sent: u64,
    /// Intended time of its latest packet, ns from the beginning of the step.
    schedule_ns: u64,
    dropped: u64,
    gap_messages: Option<u64>,
    late_ns: Histogram<u64>,
    first: MonoNs,
    last: MonoNs,
}

impl Search {
    fn new(counts: Box<dyn LossCounter>, ramp: Rising) -> Self {
        Self { counts, ramp, origin: None, steps: Vec::new(), dropped: 0, gap_messages: 0, fault: None }
    }

    fn sent(&mut self, destination: SocketAddrV4, intended: MonoNs) {
        let now = mono_now();
        let origin = *self.origin.get_or_insert(intended);
        let (step, schedule_ns) =
            (intended.since(origin) / self.ramp.step_ns, intended.since(origin) % self.ramp.step_ns);
        while self.steps.len() as u64 <= step {
            self.steps.push(StepProgress {
                sent: 0,
                schedule_ns: 0,
                dropped: 0,
                gap_messages: None,
                late_ns: histogram(),
                first: now,
                last: now,
            });
        }
        if let Some(step) = self.steps.last_mut() {
            step.sent += 1;
            step.schedule_ns = schedule_ns;
            step.late_ns.saturating_record(now.since(intended));
            step.last = now;
        }
        self.counts.sent(destination, intended, u32::try_from(step).unwrap_or(u32::MAX));
    }

    /// The reason to end the search, if there is one.
    fn check_loss(&mut self) -> Option<StoppedBy> {
        let counted = self.counts.dropped().and_then(|dropped| Ok((dropped, self.counts.gap_messages()?)));
        match counted {
            Ok((dropped, gap_messages)) => {
                let new = dropped - std::mem::replace(&mut self.dropped, dropped).min(dropped);
                if let Some(step) = self.steps.last_mut() {
                    step.dropped += new;
                    if let Some(lost) = gap_messages {
                        let new = lost - std::mem::replace(&mut self.gap_messages, lost).min(lost);
                        *step.gap_messages.get_or_insert(0) += new;
                    }
                }
                if dropped > 0 || gap_messages.is_some_and(|lost| lost > 0) {
                    return Some(StoppedBy::Loss);
                }
            }
            Err(error) => {
                self.fault = Some(error);
                return Some(StoppedBy::Interrupted);
            }
        }
        // The sender is not judged before half of the step was sent or the step's time has passed: a host that was busy
        // for a moment catches up.
        let step_ns = self.ramp.step_ns;
        let behind = self.steps.last().is_some_and(|step| {
            step.sent >= PACKETS_BEFORE_JUDGING
                && (step.schedule_ns >= step_ns / 2 || step.last.since(step.first) >= step_ns)
                && step.late_ns.value_at_quantile(0.5) > step_ns / 20
        });
        behind.then_some(StoppedBy::SenderLimit)
    }

    fn step_results(&self, arrived: Option<&SinkTotals>) -> Vec<Step> {
        let latencies = |step: usize| arrived.and_then(|arrived| arrived.steps.get(step)).and_then(lateness);
        let steps = (0..).zip(&self.steps).enumerate();
        let begin = |step: u32| self.origin.unwrap_or_default().plus(u64::from(step).saturating_mul(self.ramp.step_ns));
        steps
            .map(|(index, (step, progress))| Step {
                rate_requested: self.ramp.rate_at_step(step),
                rate_sent: rate(progress),
                sent: progress.sent,
                dropped: progress.dropped,
                gap_messages: progress.gap_messages,
                send_lateness: lateness(&progress.late_ns),
                latency: latencies(index),
                gateway_latency: self.counts.gateway_latency(begin(step), begin(step + 1)),
            })
            .collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(step: &StepProgress) -> f64 {
    let elapsed_ns = step.last.since(step.first).max(1);
    step.sent.saturating_sub(1) as f64 * 1e9 / elapsed_ns as f64
}

/// Packets of a step before the sender's rate is judged.
const PACKETS_BEFORE_JUDGING: u64 = 100;

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3)
        .unwrap_or_else(|error| unreachable!("the bounds are constants that are allowed: {error}"))
}

fn lateness(histogram: &Histogram<u64>) -> Option<Lateness> {
    (!histogram.is_empty()).then(|| Lateness {
        p50_ns: histogram.value_at_quantile(0.5),
        p99_ns: histogram.value_at_quantile(0.99),
        p999_ns: histogram.value_at_quantile(0.999),
        max_ns: histogram.max(),
    })
}

impl UntilLoss {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Table for the terminal.
    #[must_use]
    pub fn to_table(&self) -> String {
        let of_gateway = self.steps.iter().any(|step| step.gap_messages.is_some());
        let measured = if of_gateway { "wire to wire us p50 / p99 / max" } else { "latency us p50 / p99 / max" };
        let mut text = format!(
            "{:>12}  {:>12}  {:>10}  {:>8}  {:>8}  {:>12}  {measured:>31}\n",
            "target /s", "sent /s", "packets", "dropped", "in gaps", "delay p99 us"
        );
        for step in &self.steps {
            let us = |ns: u64| format!("{}.{}", ns / 1_000, ns % 1_000 / 100);
            let late = step.send_lateness.map_or_else(String::new, |late| us(late.p99_ns));
            let in_gaps = step.gap_messages.map_or_else(|| "-".to_owned(), |count| Count(count).to_string());
            let latency = step.latency.or(step.gateway_latency).map_or_else(
                || "-".to_owned(),
                |latency| format!("{} / {} / {}", us(latency.p50_ns), us(latency.p99_ns), us(latency.max_ns)),
            );
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:>12.0}  {:>12.0}  {:>10}  {:>8}  {in_gaps:>8}  {late:>12}  {latency:>31}",
                step.rate_requested,
                step.rate_sent,
                Count(step.sent),
                Count(step.dropped)
            );
        }
        let why = match self.stopped_by {
            StoppedBy::Loss => "next step lost packets",
            StoppedBy::SenderLimit => "the sender could not keep the rate of the next step; no loss seen",
            StoppedBy::EndOfCaptures => "end of the captures; no loss seen",
            StoppedBy::Interrupted => "interrupted; no loss seen",
        };
        let _ = match (self.highest_rate_without_loss, self.stopped_by) {
            (Some(rate), _) => writeln!(text, "highest rate without loss: {rate:.0} packets/s ({why})"),
            (None, StoppedBy::Loss) => writeln!(text, "every step had losses"),
            (None, StoppedBy::SenderLimit) => {
                writeln!(text, "the sender could not keep the rate of the first step; start with a lower --rate")
            }
            (None, StoppedBy::EndOfCaptures | StoppedBy::Interrupted) => writeln!(text, "no step was played: {why}"),
        };
        if self.lost_in_transit > 0 {
            let _ =
                writeln!(text, "{} packets were not received, and no socket dropped them", Count(self.lost_in_transit));
        }
        let _ = writeln!(text, "target counts packets of the captures; sent counts their copies on all lines");
        let _ = writeln!(text, "loss is counted from: {}", self.counts_source);
        if of_gateway {
            let lacks = self.steps.iter().all(|step| step.gateway_latency.is_none());
            let _ = writeln!(
                text,
                "wire to wire: worst interval within the step, as reported by the gateway{}",
                if lacks { "; no interval fits: reduce latency.interval_ms or increase --step" } else { "" }
            );
        }
        text
    }
}

#[cfg(test)]
mod tests;
