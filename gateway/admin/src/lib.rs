//! The admin listener: metrics in the OpenMetrics format, and health by status codes. Read-only.
//!
//! | path | answers |
//! | --- | --- |
//! | `/metrics` | all metrics |
//! | `/live`, `/ready`, `/leader` | 200 or 503, with the reason as text |
//!
//! This package knows no gateway: [`Sources`] are two functions, which are called on the listener's only thread. Each request
//! has a connection of its own. What a client can cost is bounded by [`limits`].

#![forbid(unsafe_code)]

pub mod limits;
pub mod metric;
mod server;

pub use server::{AdminServer, Health, Listener, Probe, Sources};
