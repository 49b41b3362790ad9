//! The summary of a gateway's run, available after it has stopped.

use mdgw_engine::{
    dispatch::roles::Gauges,
    pipeline::{ChannelPipeline, StampCounts},
    publish::PublishCounts,
};
use mdgw_feeds::{
    channel::{ChannelCounters, ChannelState},
    drop_reason::{DropCounts, DropReason},
    identity::{ChannelId, Epoch, Line},
};
use mdgw_pair::standby::ListenerCounts;
use mdgw_publog::WriterCounts;

use crate::latency_thread::LatencyResult;

/// The whole summary.
#[derive(Debug)]
pub struct GatewayReport {
    /// Epoch of this start of the gateway.
    pub epoch: Epoch,
    /// One report per configured channel.
    pub channels: Vec<ChannelReport>,
    /// Gauges of each pool, with its threads.
    pub gauges: Vec<Gauges>,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub kernel_drops: u64,
    /// Counts of the peers' output, if the gateway received it.
    pub listener_counts: Option<ListenerCounts>,
    /// Latencies of the whole run, and the logs that were written.
    pub latency: LatencyResult,
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
        let mut drops = DropCounts::default();
        for counts in [pipeline.socket_drops(), channel.drops(), channel.arbiter_drops()] {
            for &reason in DropReason::ALL {
                drops.count_many(reason, counts.get(reason));
            }
        }
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
            drops,
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
