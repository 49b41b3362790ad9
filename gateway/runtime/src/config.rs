//! Configuration: TOML as written, then checked values with units in their types.
//!
//! [`Resolved::load`] reads a file, refuses unknown keys and values that cannot work, and fills in the defaults. Each
//! problem names file, line, key, value and the allowed range. All problems are reported at once, if the file is valid
//! TOML. Bounds and defaults are in one table, [`limits`], with the reason for each.
//!
//! In a reload only [`RELOADABLE`](reload::RELOADABLE) keys may change; [`Resolved::diff_reloadable`] returns the
//! changes.

pub(crate) mod error;
pub mod explain;
pub(crate) mod file;
pub mod host;
pub mod host_needs;
pub(crate) mod limits;
pub(crate) mod log_group;
pub(crate) mod memory;
mod quantity;
#[cfg(test)]
mod reference;
pub(crate) mod reload;
mod resolve;
pub mod resolved;
pub(crate) mod settings;
mod source;
pub(crate) mod start_files;
pub(crate) mod tag_keys;

pub use error::{ConfigError, Problem};
pub use limits::PUBLISHED_BYTES_MAX;
pub use log_group::LogGroupError;
pub use reload::{Changed, Changes, OutputLines, RELOADABLE, Refused, WHOLE_CHANNEL, WHOLE_LINE};
pub use resolved::Resolved;
pub use start_files::StartFiles;
pub use tag_keys::TagKeyError;
