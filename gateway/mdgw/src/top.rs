//! The view of `mdgw top`: threads and channels of a running gateway or replay.
//!
//! ```text
//! gateway ─┐
//!          ├─ control socket ─► Snapshot ─► Top (state, keys) ─► rows ─► screen, text, JSON, SVG
//! replay ──┘
//! ```
//! This module reads no clock, key or socket and prints nothing; `cli::top` does.

mod draw;
mod plain;
mod rows;
mod state;
mod svg_screen;
#[cfg(test)]
mod testing;

pub(crate) use self::{
    draw::draw,
    plain::{json, text},
    rows::SortBy,
    state::{Flow, Key, Top},
    svg_screen::svg,
};

#[cfg(test)]
mod tests;
