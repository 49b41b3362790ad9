//! System calls that the rest of the crate wants with a safe face: clocks, cores, scheduling, futexes, socket options.

pub mod affinity;
pub mod clock;
pub mod file_lock;
pub mod futex;
pub mod hardware_stamps;
pub mod interfaces;
#[cfg(test)]
pub(crate) mod namespace;
pub mod poll;
pub mod scheduler;
pub mod socket_options;
