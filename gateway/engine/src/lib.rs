//! The data plane of the gateway: handle sets, the Leader/Followers pool, and the data path that its threads run.
//!
//! Read [`pipeline`] first: from socket to multicast, in one function.

pub mod channel_pool;
pub mod dispatch;
pub mod handle_set;
pub mod pipeline;
pub mod publish;
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;
