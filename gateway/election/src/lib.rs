//! Election: which gateway of a group publishes.
//!
//! ```text
//!   latch (what the gateway asks)     pair link, sentinel, fitness
//!        │                                  │
//!        ▼                                  ▼
//!   driver: the election thread ──► core: step(now, input) → outputs ──► fence
//!        ▲                                  │
//!        └────── backend, on its own thread ◄┘ requests
//! ```
//! - [`core`]: what every election core is: a pure state machine with time passed in, no I/O, no clock, no thread, so
//!   that the product, the simulation and the model run the same code.
//! - [`driver`]: the election thread around a core.
//! - [`emergent`]: membership without a store, which prefers availability.
//! - [`file`]: the register of one host.
//! - [`timing`]: lease, renewal, margin; refused where two leases could overlap, with the arithmetic.
//! - [`identity`], [`fitness`]: who stands, and how well it is.
//! - [`record`], [`register`]: the versioned record that decides, and the three operations a store must offer.
//! - [`lease`]: the core over a register.
//! - [`access`]: where a store is and who asks it; `etcd` and `zookeeper`, where built in, are registers over one.
//! - [`session_latch`]: the core over a line of places that sessions keep.
//! - [`peer`]: what gateways of one group say to each other beside the store.
//! - [`quorum`]: the core and the voters that need no store.
//! - [`auto_move`]: when leadership moves by itself.
//! - [`assignment`]: who should publish which group, where several gateways share several; [`placement`]: what follows for each group's
//!   election.
//! - [`auth`]: the shared key and what proves that a message is authentic and new.
//! - [`latch`]: the face towards the gateway, after the pattern that is known as leader latch.
//!
//! Invariants:
//! - The fence closes before any listener hears of it, and listeners hear before it opens.
//! - Every opening has an epoch that no opening had before, of this node or another.
//! - A deadline counts from when a request was *sent*; what has an unknown outcome never moves it.
//! - What once was lost is never revived: leadership is a function of the record, not of a sequence of events.

pub mod access;
pub mod announcement;
pub mod assignment;
pub mod auth;
pub mod auto_move;
pub mod core;
pub mod driver;
pub mod emergent;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
pub mod fitness;
pub mod identity;
pub mod latch;
pub mod lease;
pub mod peer;
pub mod placement;
pub mod quorum;
pub mod record;
pub mod record_location;
pub mod register;
pub mod sentinel;
pub mod session_latch;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub mod store_register;
pub mod timing;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

#[cfg(test)]
#[path = "../../../tests/data/formats/check.rs"]
mod formats;
