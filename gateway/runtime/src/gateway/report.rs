//! What a gateway did, told when it has stopped.

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

/// All of it.
#[derive(Debug)]
pub struct GatewayReport {
    /// The epoch that it published under.
    pub epoch: Epoch,
    /// Its channels.
    pub channels: Vec<ChannelReport>,
    /// Its pools' threads.
    pub gauges: Vec<Gauges>,
    /// Datagrams that the kernel dropped for want of room.
    pub kernel_drops: u64,
    /// What was heard of the other gateway, if it listened.
    pub listener_counts: Option<ListenerCounts>,
    /// Latencies.
    pub latency: LatencyResult,
}

/// One channel.
#[derive(Debug)]
pub struct ChannelReport {
    /// Its number.
    pub id: ChannelId,
    /// Its name.
    pub name: String,
    /// Where it stood at the end.
    pub state: ChannelState,
    /// What it saw and made.
    pub counters: ChannelCounters,
    /// What was refused, wherever it was refused, by reason.
    pub drops: DropCounts,
    /// Faults of its books.
    pub book_faults: u64,
    /// Its lines.
    pub lines: Vec<LineReport>,
    /// Requests to the venue's retransmission server.
    pub requests: u64,
    /// Whose receive stamps its datagrams carried.
    pub stamps: StampCounts,
    /// What went out.
    pub published: PublishCounts,
    /// What went into its publication log.
    pub log: WriterCounts,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// One line.
#[derive(Debug)]
pub struct LineReport {
    /// Which.
    pub line: Line,
    /// Datagrams with messages.
    pub packets: u64,
    /// Messages of which this line's copy was the one used.
    pub won_messages: u64,
    /// Messages that another line had brought.
    pub duplicate_messages: u64,
}

impl ChannelReport {
    pub(super) fn of(pipeline: &ChannelPipeline, id: ChannelId, name: String) -> Self {
        let channel = pipeline.channel();
        let mut drops = DropCounts::default();
        for counts in [pipeline.socket_drops(), channel.drops(), channel.arbiter_drops()] {
            for reason in DropReason::ALL {
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
