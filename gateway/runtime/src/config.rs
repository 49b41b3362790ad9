//! Configuration: TOML as written, then checked values with units in their types.
//!
//! [`Resolved::load`] reads a file, refuses what it does not know or cannot run, and fills in the defaults. Every
//! refusal names file, line, key, value and what is allowed; all of them are reported at once where the file can be
//! read at all. Bounds and defaults stand in one table, [`limits`], with the reason for each.
//!
//! On SIGHUP only [`RELOADABLE`](reload::RELOADABLE) keys may change; [`Resolved::diff_reloadable`] says what did.

pub mod error;
pub mod explain;
pub mod file;
pub mod host;
pub mod limits;
pub mod memory;
mod quantity;
#[cfg(test)]
mod reference;
pub mod reload;
mod resolve;
pub mod resolved;
pub mod settings;
mod source;

pub use error::{ConfigError, Problem};
pub use reload::{Changes, Refused};
pub use resolved::Resolved;
