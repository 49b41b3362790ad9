//! Dispatch: which thread processes which channel when.
//!
//! [`dispatch`] holds the two traits that the rest of the gateway is written against: what a channel's handler must
//! do, and what every dispatch model offers. [`pool`] is the model there is: Leader/Followers.
//!
//! ```text
//!   follower --promoted--> leader: wait, claim what is ready, promote one --> processing: drain the claimed channels
//!      ^                                                                                     |
//!      +------------- token held, nothing laid by <------------------------------------------+
//! ```
//! Invariants, each with its module and model-checked there:
//! - At most one thread leads, and a free token is always seen by somebody (`token`).
//! - At most one thread touches a channel, and whatever was brought to it is processed by its holder or the next
//!   (`claim`).
//! - The timer goes off no later than the earliest deadline of any channel that nobody holds (`alarm`).
//!
//! What is absent: no lock is held while a channel is processed, and no thread ever waits for a channel.

pub mod dispatch;
pub mod pool;
pub mod progress;
pub mod roles;

mod alarm;
mod claim;
mod park;
mod shared;
mod sync;
mod token;
mod turn;

#[cfg(all(test, feature = "loom"))]
mod models;
#[cfg(all(test, not(feature = "loom")))]
mod switches;
#[cfg(all(test, not(feature = "loom")))]
mod testing;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
