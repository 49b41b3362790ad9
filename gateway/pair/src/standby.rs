//! What this gateway receives of its peers' output, so that it can take over at the right position.
//!
//! ```text
//!  leader's output ──► listener ──► epochs (accepted or not) ──► tracker ──► ReceiveWatermarkShared ──► publisher, when the fence opens
//!                         ▲                                        ▲
//!  local publication log ─┘ log follower: this gateway's position   └── reports over the pair link: they confirm, and lift nothing
//! ```
//! All of it runs on one cold thread. It makes no decisions: the fence gates sending, and the election writes the
//! fence.
//!
//! A position too low costs repeated packets, which receivers drop. A position too high loses messages. So only packets
//! that arrived here count, whatever the leader reports to have sent, and the tracker
//! does not count unconfirmed packets as received: packets beyond the local input (any host may write to a multicast
//! group), packets of an epoch that no trusted source confirms, and, for a while, packets after a hole.

mod epochs;
pub mod fitness;
mod history;
pub mod join;
mod listener;
mod log_follower;
mod probe;
mod tracker;
pub mod windows;

pub use epochs::KnownEpochs;
pub use history::{HistoryExtent, InputHistory};
pub use listener::{
    ChannelGauges, ChannelStatus, ClosedSockets, ListenerCounts, MonitoredChannel, MonitoredInput, MonitoredOutput,
    Standby, StandbyConfig, StandbyError, StatusTable,
};
pub use probe::ReceivePath;
pub use tracker::{ReceiveCounts, ReceiveTracker};
