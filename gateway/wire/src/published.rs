//! Our own output as one more feed: the published packet, the retransmission protocol, and a receiver for both.
//!
//! - [`packet`]: the datagram on the wire, checked once.
//! - [`probe`]: what a gateway sends to its own output groups to see whether it receives them.
//! - [`tag`]: proof that a holder of a key sent a packet.
//! - [`position`]: the position of a channel's published stream.
//! - [`request`]: requests to the retransmission service, and the form of its answers.
//! - [`snapshot`]: a channel's state at one position, in numbered chunks.
//! - [`receiver`]: turns the datagrams of one group into whole messages, each once, in order. No sockets. It also does so for the
//!   entries of a publication log.
//! - [`records`]: the records of delivered messages, with local times filled in.

mod crc32;
pub mod packet;
pub mod position;
pub mod probe;
pub mod receiver;
pub mod records;
pub mod request;
pub mod snapshot;
pub mod tag;
