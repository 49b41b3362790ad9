//! The session protocol without I/O: lines of the client in, requests out.
//!
//! ```text
//!          greeting, challenge        auth=…            success=1          start_session
//!  connect ─────────────────► Greeted ──────► (server decides) ─────► Ready ──────────────► Started
//!                                │ anything else: Refuse                  subscribe, unsubscribe in both
//! ```
//! [`Session`] keeps the state, joins the lines of a request and checks the order. [`LineBuffer`] cuts bytes into bounded
//! lines. [`auth`] computes and compares answers to a challenge. What a request means for records is not known here.

pub mod auth;
mod lines;
mod request;
mod session;
#[cfg(test)]
mod tests;

pub use lines::{LineBuffer, LineTooLong};
pub use request::{AuthRequest, Compression, SlowReader, SubscribeRequest, SymbolType, Symbols, UnsubscribeRequest};
pub use session::{ProtocolLimits, Session, Step};

/// The lines that the server sends when a client connects.
#[must_use]
pub fn greeting(challenge: &str) -> String {
    format!("lsg_version=mdgw-{}\ncram={challenge}\n", env!("CARGO_PKG_VERSION"))
}

/// The answer to a request that was authenticated. No other field may stand in it.
#[must_use]
pub fn success(session_id: u64) -> String {
    format!("success=1|session_id={session_id}\n")
}

/// The answer to a refused authentication request. The server closes after it.
#[must_use]
pub fn failure(reason: &str) -> String {
    let is_plain = |c: &char| !matches!(c, '|' | '\n' | '\r');
    format!("success=0|error={}\n", reason.chars().filter(is_plain).collect::<String>())
}
