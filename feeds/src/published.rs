//! Our own output as one more feed: the published packet, the retransmission protocol, and the receiver of both.
//!
//! - [`packet`]: the datagram on the wire, checked once.
//! - [`position`]: how far a channel's stream has got.
//! - [`request`]: what is asked of the retransmission service, and how its answers look.
//! - [`receiver`]: from datagrams of one group to whole messages, each once, in order. No sockets.

pub mod packet;
pub mod position;
pub mod receiver;
pub mod request;
