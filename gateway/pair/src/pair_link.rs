//! The links between the gateways of a pair or of a larger group: one TCP connection to each peer, each message
//! authenticated.
//!
//! ```text
//!   status table (positions, windows) ──► link thread ◄──TCP──► link thread of each peer
//!   election, sentinel ◄──queues────────► │   │ ◄──datagrams──►
//!                                         │   └──► window comparison ──► publication log
//!                                         └──► status table: what the peer has published
//! ```
//! - [`message`]: the messages as bytes. [`framing`]: one end of a connection, with authentication. Neither uses a
//!   socket.
//! - [`mismatch`]: compares windows of both logs and finds the first message that differs.
//! - `copy_out`, `copy_in`: a channel's state for a gateway that joins, on a separate connection.
//! - `log_out`, `log_in`: entries of a channel's log for a gateway that joins, on a separate connection.
//!
//! The link deliberately does not encrypt (positions are not secret), and it makes no decisions.
//!
//! Of two gateways, the one with the lower listening address dials. A new connection replaces the old one only after
//! its first message has proved the key. So a host without the key cannot cut a link. The first message also names the
//! peer's node number.
//!
//! The gateway requests a gap from one peer at a time; peers that hold the range take turns. All other messages go to
//! all peers, or to the peer that they address.

mod connection;
mod copy_in;
mod copy_out;
pub mod framing;
mod handle;
mod link;
mod log_in;
mod log_out;
pub mod message;
pub mod mismatch;
mod pending;
mod position_query;
mod reported_epochs;
mod requester;

pub use copy_in::{CopyError, fetch_copy};
pub use handle::{LinkHandle, PairCounts, PeerReport};
pub use link::{ChannelSender, PairEndpoints, PairLink, PairLinkConfig, PairLinkError, PairParts, PeerEndpoint};
pub use log_in::fetch_log;
pub use mismatch::ChannelLogs;
pub use position_query::query_positions;
pub use reported_epochs::{LinkedGroup, ReportedEpochs};
pub use requester::SilenceLimit;
