//! System calls that the rest of the crate wants with a safe face: clocks, cores, scheduling, locked memory, futexes, socket options.

pub mod affinity;
pub mod cgroup;
pub mod clock;
pub mod file_lock;
pub mod futex;
pub mod hardware_stamps;
pub mod interfaces;
pub mod kernel_fence;
pub mod memory;
#[cfg(test)]
pub(crate) mod namespace;
pub mod packet_ring;
pub mod pidfd;
pub mod poll;
pub mod robust_mutex;
pub mod scheduler;
pub mod shared_words;
pub mod socket_options;
