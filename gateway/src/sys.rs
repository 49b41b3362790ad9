//! System calls that the rest of the crate wants with a safe face: clocks, cores, scheduling, futexes.

pub mod affinity;
pub mod clock;
pub mod scheduler;
