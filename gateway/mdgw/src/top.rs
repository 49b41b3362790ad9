//! What `mdgw top` shows: threads and channels of a running gateway, or of a replay, as they go.
//!
//! ```text
//! gateway ─┐
//!          ├─ control socket ─► Snapshot ─► Top (state, keys) ─► rows ─► screen, text, JSON, picture
//! replay ──┘
//! ```
//! Nothing here reads a clock, a key or a socket, and nothing prints: the command line does.

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
