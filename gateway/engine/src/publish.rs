//! From frames to multicast: [`LogSink`] packs a channel's frames into entries of its publication log, [`Publisher`]
//! sends entries as packets.
//!
//! ```text
//!  frames → LogSink → publication log → Publisher → fence → kernel
//!                                          cursor: one place in the log per output line
//! ```
//! A cursor is in one of three modes:
//!
//! | mode | when | what it does |
//! | --- | --- | --- |
//! | closed | the fence lets nothing through | nothing; the log grows without it |
//! | tail | the fence has opened under a new epoch | a heartbeat, then what the log holds beyond what has been published, by this gateway or as [heard](ReceiveWatermarkShared) of the one before, flagged as retransmission and paced |
//! | live | it has caught up | each entry once it is committed |
//!
//! The fence is asked with a fresh clock at each hand-over to the kernel. What the kernel refuses is counted and tried
//! again from the cursor; nothing ever blocks or waits to be filled.

mod catch_up;
mod packet;
mod publisher;
mod sink;
mod takeover_state;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use catch_up::is_covered_by;
pub use packet::packet_header;
pub use publisher::{PublishCounts, PublishMode, Publisher, PublisherConfig};
pub use sink::{LogSink, SessionProgress, SinkCounts};
pub use takeover_state::{
    DrainAck, DrainAckShared, FenceOpening, FenceOpeningShared, Heard, OutputEndShared, ReceiveWatermarkShared,
    SentPositionShared, TakeoverShared,
};
