//! Dissects captures for people: each packet, its transport header and its messages, field by field, as the gateway's
//! own parsers read them.
//!
//! ```text
//! file ── dissect ── filter ── text │ json
//!                        └──── stats
//! ```
//! Nothing is decoded here: [`mdgw_feeds::transport`] does the framing, and [`mdgw_feeds::venue`] lists the fields.

pub mod dissect;
pub mod filter;
mod json;
mod protocol;
pub mod stats;
pub mod text;

pub use self::protocol::AnyMessage;
