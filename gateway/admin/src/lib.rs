//! The admin listener: metrics in the OpenMetrics format, health by status codes, and a page for a browser. Read-only.
//!
//! | path | answers |
//! | --- | --- |
//! | `/` | the page |
//! | `/status.json`, `/history.json` | what the page shows |
//! | `/runbooks/NAME.md` | a runbook; the table of all is `README` |
//! | `/metrics` | all metrics |
//! | `/live`, `/ready`, `/leader` | 200 or 503, with the reason as text |
//!
//! Without [`PageSources`] there are `/metrics`, `/live` and `/ready` alone.
//!
//! This package knows no gateway: [`Sources`] are functions, which are called on the listener's only thread. Each request
//! has a connection of its own. What a client can cost is bounded by [`limits`].

#![forbid(unsafe_code)]

mod host;
pub mod limits;
pub mod metric;
mod page;
mod places;
mod runbooks;
mod server;

pub use runbooks::runbook;
pub use server::{AdminServer, Health, Listener, Observed, PageSources, Probe, Sources};
