//! From frames to multicast: [`LogSink`] packs a channel's frames into entries of its publication log, [`Publisher`]
//! sends entries as packets.
//!
//! ```text
//!  frames → LogSink → publication log → Publisher → fence → kernel
//!                                          cursor: one place in the log per output line
//! ```
//! A publisher is in one of three modes:
//!
//! | mode | when | action |
//! | --- | --- | --- |
//! | closed | the fence is closed | nothing; the log grows |
//! | catch-up | the fence has opened under a new epoch | a heartbeat, then the entries not yet published by this gateway or, by its [receive watermark](ReceiveWatermarkShared), by the previous leader; flagged as retransmission and paced |
//! | live | the catch-up is complete | sends each entry once it is committed |
//!
//! The publisher checks the fence with a fresh clock at each hand-over to the kernel. A send that the kernel refuses is
//! counted and retried from the cursor. No send blocks, and no packet waits for input that is not at hand.

mod catch_up;
mod packet;
mod packet_tags;
mod publisher;
mod sink;
mod takeover_state;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use catch_up::is_covered_by;
pub use packet::packet_header;
pub use publisher::{BlockedLines, PublishCounts};
pub use publisher::{OUTPUT_LINES_MAX, Publisher, PublisherConfig};
pub use sink::{FINAL_POSITION, LogSink, PeerEntries, PeerEntry, PeerEntryFault, SessionProgress, SinkCounts};
pub use takeover_state::{
    DrainAck, DrainAckShared, FenceOpening, FenceOpeningShared, ReceiveWatermark, ReceiveWatermarkShared,
    SentPositionShared, TakeoverShared,
};
