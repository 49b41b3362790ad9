//! Dissects captures for people: each packet, its transport header and its messages, field by field, as the gateway's
//! own parsers read them.
//!
//! ```text
//! file ── dissect ── filter ── text │ json
//!                        └──── stats
//! ```
//! Nothing of a venue is decoded here: [`mdgw_feeds::transport`] does the framing, and [`mdgw_feeds::venue`] lists the fields. The
//! gateway's own packets are read by [`published`].

pub mod dissect;
pub mod filter;
mod json;
mod protocol;
pub mod published;
pub mod stats;
pub mod text;

pub use self::protocol::AnyMessage;
