//! The summary of a gateway's run, available after it has stopped.

use mdgw_engine::{
    dispatch::roles::Gauges,
    pipeline::{ChannelPipeline, StampCounts},
    publish::PublishCounts,
};
use mdgw_feeds::{
    channel::{ChannelCounters, ChannelState},
    drop_reason::DropCounts,
    identity::{ChannelId, Epoch, Line},
};
use mdgw_pair::standby::ListenerCounts;
use mdgw_publog::WriterCounts;
use mdgw_status::snapshot::ListenerSnapshot;
use mdgw_sys::drops::ReceiveBufferUse;

use crate::latency_thread::LatencyResult;

/// What a gateway counted from its start to its end, as `mdgw run` prints it.
#[derive(Debug)]
pub struct GatewayReport {
    /// Epoch of this start of the gateway.
    pub epoch: Epoch,
    /// One report per configured channel.
    pub channels: Vec<ChannelReport>,
    /// Gauges of each pool, with its threads.
    pub gauges: Vec<Gauges>,
    /// How loaded the gateway was.
    pub load: LoadReport,
    /// Counts of the peers' output, if the gateway received it.
    pub listener_counts: Option<ListenerCounts>,
    /// What each listener beside the data path has received and refused.
    pub listeners: Vec<ListenerSnapshot>,
    /// Latencies of the whole run, and the logs that were written.
    pub latency: LatencyResult,
}

/// How loaded a gateway was, and what it dropped for it. A window is about a second.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadReport {
    /// One per pool.
    pub pools: Vec<PoolLoad>,
    /// Packets per second that arrived in the window with the most of them: those that the pools took, and those that the
    /// kernel dropped. 0 for a run that is shorter than a window.
    pub peak_arrived_per_s: u64,
    /// Packets per second that the pools took in that window.
    pub peak_taken_per_s: u64,
    /// Mean processing time of a packet in the whole run, ns.
    pub ns_per_packet: u64,
    /// Highest use of a receive buffer, of the readings.
    pub receive_buffers: ReceiveBufferUse,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub kernel_drops: u64,
    /// Datagrams that were dropped in the worst run of consecutive windows with drops. A receive buffer with room for so many more would
    /// have dropped none.
    pub worst_drop_run: u64,
}

/// The load of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolLoad {
    /// Name of the pool, as configured.
    pub name: String,
    /// Number of its threads.
    pub threads: usize,
    /// Share of its threads' time that was spent in processing, 0 to 1.
    pub busy_share: f64,
    /// The same in its busiest window.
    pub busiest_share: f64,
}

impl LoadReport {
    /// Cores that would have processed all packets of the busiest window within it.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "an estimate that is printed")]
    pub fn cores_at_peak(&self) -> f64 {
        self.peak_arrived_per_s as f64 * self.ns_per_packet as f64 / 1e9
    }
}

/// One channel.
#[derive(Debug)]
pub struct ChannelReport {
    /// The channel's number.
    pub id: ChannelId,
    /// The channel's name.
    pub name: String,
    /// State of the channel when the gateway stopped.
    pub state: ChannelState,
    /// Input and output counts.
    pub counters: ChannelCounters,
    /// Dropped packets and messages of all stages, by reason.
    pub drops: DropCounts,
    /// Messages that contradicted a book of the channel.
    pub book_faults: u64,
    /// One report per configured line of the channel.
    pub lines: Vec<LineReport>,
    /// Number of requests to the venue's retransmission server.
    pub requests: u64,
    /// Source of the receive timestamps of its datagrams.
    pub stamps: StampCounts,
    /// Counts of the publisher.
    pub published: PublishCounts,
    /// Counts of its publication log.
    pub log: WriterCounts,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// One line.
#[derive(Debug)]
pub struct LineReport {
    /// Index of the line in the channel: 0 is line A.
    pub line: Line,
    /// Datagrams with messages.
    pub packets: u64,
    /// Messages of which this line's copy was used.
    pub won_messages: u64,
    /// Messages that another line had delivered before.
    pub duplicate_messages: u64,
}

impl ChannelReport {
    pub(super) fn of(pipeline: &ChannelPipeline, id: ChannelId, name: String) -> Self {
        let channel = pipeline.channel();
        let lines = pipeline
            .sockets()
            .map(|(line, _)| {
                let statistics = channel.line_statistics(line);
                LineReport {
                    line,
                    packets: statistics.packets,
                    won_messages: statistics.won_messages,
                    duplicate_messages: statistics.duplicate_messages,
                }
            })
            .collect();
        Self {
            id,
            name,
            state: channel.state(),
            counters: *channel.counters(),
            drops: pipeline.drop_counts(),
            book_faults: channel.book_faults().total(),
            lines,
            requests: pipeline.requests().0,
            stamps: pipeline.stamps(),
            published: *pipeline.publisher().counts(),
            log: *pipeline.sink().writer().counts(),
            failed: pipeline.failed().map(ToString::to_string),
        }
    }
}
