//! Election: which gateway of a group publishes.
//!
//! ```text
//!   latch (the gateway's interface)   pair link, sentinel, fitness
//!        │                                  │
//!        ▼                                  ▼
//!   driver: the election thread ──► core: step(now, input) → outputs ──► fence
//!        ▲                                  │
//!        └────── backend, on its own thread ◄┘ requests
//! ```
//! - [`core`]: the interface of every election core: a pure state machine without I/O, clock or thread. The caller
//!   passes the time in, so that the product, the simulation and the model run the same code.
//! - [`driver`]: the election thread around a core.
//! - [`emergent`]: membership without a store, which prefers availability.
//! - [`mod@file`]: the register of one host.
//! - [`timing`]: lease, renewal and margin. Times under which two leases could overlap are refused, with the
//!   arithmetic.
//! - [`identity`], [`fitness`]: the gateways of an election, whether each is eligible, and how fit it is.
//! - [`record`], [`register`]: the versioned record that decides, and the three operations that a store must offer.
//! - [`lease`]: the core over a register.
//! - [`access`]: how a store is reached, and with which credentials. The registers over one are in `mdgw-stores`.
//! - [`session_latch`]: the core over a queue of ephemeral nodes, each bound to a gateway's session.
//! - [`peer`]: the messages between gateways of one group, beside the store.
//! - [`quorum`]: the core and the voters that need no store.
//! - [`auto_move`]: when leadership moves automatically.
//! - [`assignment`]: which gateway should publish which group, where several gateways share several groups;
//!   [`placement`]: the resulting preferences for each group's election.
//! - [`auth`]: the shared key, and the proof that a message is authentic and new.
//! - [`latch`]: the interface towards the gateway, after the leader-latch pattern.
//!
//! Invariants:
//! - The fence closes before any listener is notified of it. Listeners are notified before the fence opens.
//! - Every opening has an epoch that no opening had before, of this node or another.
//! - A deadline counts from when a request was *sent*. A request of unknown outcome never moves the deadline.
//! - Lost leadership is never revived: leadership is a function of the record, not of a sequence of events.
//!
//! `gateway/election/SAFETY.md` argues why at most one gateway of a group publishes. It lists each rule, the execution
//! that breaks without the rule, and the check that finds the missing rule.

#![forbid(unsafe_code)]

pub mod access;
pub mod announcement;
pub(crate) mod assignment;
pub mod auth;
pub mod auto_move;
pub mod core;
pub mod driver;
pub mod emergent;
pub mod file;
pub mod fitness;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod identity;
pub mod latch;
pub mod lease;
mod outstanding_sends;
pub mod peer;
pub mod placement;
pub mod quorum;
pub mod record;
pub mod record_location;
pub mod register;
pub mod sentinel;
pub mod session_latch;
pub mod timing;

#[cfg(test)]
#[path = "../../../tests/data/formats/check.rs"]
mod formats;
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;
