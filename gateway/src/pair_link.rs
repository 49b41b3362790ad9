//! The link between the two gateways of a pair: TCP, each message authenticated.
//!
//! ```text
//!   board (positions, windows) ──► link thread ◄──TCP──► the other gateway's
//!   election, sentinel ◄──queues──► │   │ ◄──datagrams──►
//!                                   │   └──► mismatch watch ──► publication log
//!                                   └──► board: what the peer has published
//! ```
//! - [`message`]: what is said, as bytes. [`framing`]: one end of a connection, sealed. Neither knows a socket.
//! - [`mismatch`]: compares windows of both logs and finds the first message that differs.
//!
//! What it deliberately does not do: encrypt (positions are no secret), or decide anything.
//!
//! The gateway with the lower listening address dials. A new connection takes the place of the old one only when its first
//! message has proved the key, so nobody without it can cut the link.

mod desk;
pub mod framing;
mod link;
pub mod message;
pub mod mismatch;
mod question;

pub use desk::{PairCounts, PairDesk, PeerChannel};
pub use link::{Channels, PairEnds, PairLink, PairLinkConfig, PairLinkError, PairParts};
pub use question::ask_positions;
