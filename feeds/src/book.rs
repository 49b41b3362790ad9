//! Order books of one channel: by order and by price level, one view over both.

pub mod levels;
pub mod model;
pub mod orders;
pub mod prefetch;
