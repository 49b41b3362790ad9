//! Captures taken apart for people: each packet, its transport header, its messages, field by field, as the gateway's own
//! parsers see them.
//!
//! ```text
//! file ── dissect ── filter ── text │ json
//!                        └──── stats
//! ```
//! Nothing is decoded here: framing is [`mdgw_feeds::transport`]'s business, fields are those that
//! [`mdgw_feeds::venue`] lists.

pub mod dissect;
pub mod filter;
mod json;
mod protocol;
pub mod stats;
pub mod text;

pub use self::protocol::AnyMessage;
