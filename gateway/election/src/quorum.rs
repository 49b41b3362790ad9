//! The backend `quorum`: no store. Both gateways and a witness vote, or any odd number of voters.
//!
//! ```text
//!   candidate ── poll: would you vote for me? ──► voters      spends no generation, so it disturbs nobody
//!             ── vote: epoch (generation, node) ─► voters      each: one vote per generation, on disk before the answer
//!   leader    ── renew, every R ────────────────► voters      each: promises to vote for nobody else for L
//!             ── release ───────────────────────► voters      the promise ends: nobody has to wait
//!             ── prepare ──► target ── stamp ──► leader ── hand over ──► voters ── granted ──► target
//! ```
//! - [`message`]: what is said, [`wire`]: how it stands in a datagram.
//! - [`voter`]: whom a voter promised what; pure. In each gateway and in each witness.
//! - [`candidate`]: a gateway's part, its own voter included; pure. What drives it is a [`Core`](super::core::Core).
//! - [`link`], [`vote_file`], [`vote_store`]: socket and disk; [`backend`]: both for a gateway's election threads;
//!   [`witness`]: both around voters alone.
//!
//! The generation is the count of the epoch, the node in its low bits is whom the vote is for. Why no two lead at once:
//! - Two majorities share a voter. It promised the first leader L on its own clock, at or after the moment from which
//!   that leader counts L − M on its own, kept or sat out that promise over a restart, and voted for another only then.
//! - It votes once per generation, and never for a lower one than it voted for, so the later leader has the higher epoch.
//! - A *renewal* comes from who has won its generation. Whatever a voter promised under lower ones was over by then for
//!   a majority, so it may follow the winner at once and without a vote of its own: it makes a promise, no leader.

pub mod backend;
pub mod candidate;
pub mod link;
pub mod message;
pub mod vote_file;
pub mod vote_store;
pub mod voter;
pub mod wire;
pub mod witness;
