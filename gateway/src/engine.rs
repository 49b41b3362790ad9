//! Dispatch: which thread processes which channel when.
//!
//! [`dispatch`] holds the two traits that the rest of the gateway is written against: what a channel's handler must
//! do, and what every dispatch model offers. The pool (Leader/Followers) is the model there is today.

pub mod dispatch;
pub mod roles;
