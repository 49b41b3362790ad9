//! What is read of a venue's packets against its specification and its real captures.

mod iex;
mod nasdaq;
mod recognition;
