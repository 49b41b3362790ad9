//! The other gateway of a pair, as this one hears it: so that it can go on where that one stops.
//!
//! ```text
//!  leader's output ──► listener ──► epochs (believed or not) ──► tracker ──► ReceiveWatermarkShared ──► publisher, when the fence opens
//!                         ▲                                        ▲
//!  own publication log ───┘ follower: how far this gateway is      └── what the peer has told over the pair link
//! ```
//! All of it runs on one cold thread. It decides nothing: the fence does, and who writes that is the election.
//!
//! A position too low costs repeated packets, which receivers drop; one too high loses messages. So whatever is in doubt
//! counts as not heard: what lies beyond the own input (anybody may write to a multicast group), what came under an epoch
//! that nobody vouches for, and all that follows a hole, for a while.

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
    ChannelGauges, ChannelStatus, ListenerCounts, MonitoredChannel, MonitoredInput, MonitoredOutput, Standby,
    StandbyConfig, StandbyError, StatusTable,
};
pub use probe::ReceivePath;
pub use tracker::{ReceiveTracker, TrackerCounts};
