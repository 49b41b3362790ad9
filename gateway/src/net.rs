//! Sockets and the ways to wait for them: the handle set behind one trait, with its backends.

pub mod batch;
pub mod drops;
pub mod epoll;
pub mod handle_set;
pub mod probe;
pub mod ring;
pub mod sockets;
#[cfg(test)]
mod suite;
