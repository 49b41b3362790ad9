//! The links between the gateways of a pair, or of more: TCP to each of the others, each message authenticated.
//!
//! ```text
//!   board (positions, windows) ──► link thread ◄──TCP──► that of each other gateway
//!   election, sentinel ◄──queues──► │   │ ◄──datagrams──►
//!                                   │   └──► mismatch watch ──► publication log
//!                                   └──► board: what the peer has published
//! ```
//! - [`message`]: what is said, as bytes. [`framing`]: one end of a connection, sealed. Neither knows a socket.
//! - [`mismatch`]: compares windows of both logs and finds the first message that differs.
//! - `copy_out`, `copy_in`: a channel's state for a gateway that joins, on a connection of its own.
//!
//! What it deliberately does not do: encrypt (positions are no secret), or decide anything.
//!
//! Of two gateways the one with the lower listening address dials. A new connection takes the place of the old one only when
//! its first message has proved the key, so nobody without it can cut a link; it also tells whose it is, by number.
//!
//! A gap is asked of one of the others, in turn among those that are far enough; all else is told to all, or to whom it is for.

mod connection;
mod copy_in;
mod copy_out;
pub mod framing;
mod handle;
mod link;
pub mod message;
pub mod mismatch;
mod position_query;

pub use copy_in::{CopyError, fetch_copy};
pub use handle::{LinkHandle, PairCounts, PeerReport};
pub use link::{ChannelSender, PairEndpoints, PairLink, PairLinkConfig, PairLinkError, PairParts, PeerEndpoint};
pub use position_query::query_positions;
