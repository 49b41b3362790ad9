//! Nasdaq and its sister markets BX and PSX.

pub mod itch50;
