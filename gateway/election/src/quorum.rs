//! The backend `quorum`: no store. Both gateways and a witness vote, or any odd number of voters.
//!
//! ```text
//!   candidate ── poll: would you vote for me? ──► voters      spends no generation, so it disturbs no leader
//! ── vote: epoch (generation, node) ─► voters      each: one vote per generation, on disk before the answer
//!   leader    ── renew, every R ────────────────► voters      each: promises to vote for no other for L
//!             ── release ───────────────────────► voters      the promise ends: others need not wait
//!             ── prepare ──► target ── stamp ──► leader ── hand over ──► voters ── granted ──► target
//! ```
//! - [`message`]: the messages, [`wire`]: their form in a datagram.
//! - [`voter`]: the promises of a voter; pure. In each gateway and in each witness.
//! - [`candidate`]: a gateway's part, its own voter included; pure. It is a [`Core`](super::core::Core).
//! - [`link`], [`vote_file`], [`vote_store`]: socket and disk; [`backend`]: both for a gateway's election threads;
//!   [`witness`]: both around voters alone; [`voter_query`]: asks voters whether they answer.
//!
//! The generation is the count of the epoch; the low bits name the node that the vote is for. Why no two candidates
//! lead at once (section 10 of `gateway/election/SAFETY.md`):
//! - Two majorities share a voter. That voter promised the first leader L on its own clock, at or after the moment from
//!   which the leader counts L − M. It kept that promise, or waited as long after a restart, and voted for another
//!   candidate only then.
//! - A voter votes once per generation, and never for a lower one than before, so the later leader has the higher
//!   epoch.
//! - A *renewal* comes from the winner of its generation. All promises under lower generations had ended for a majority
//!   by then. So a voter may follow the winner at once and without a vote of its own; a renewal extends a promise but
//!   never makes a leader.

pub mod backend;
pub mod candidate;
pub mod link;
pub mod message;
pub mod vote_file;
pub(crate) mod vote_store;
pub mod voter;
pub mod voter_query;
pub(crate) mod wire;
pub mod witness;
