//! Safe wrappers of system calls: sockets and batches of packets, clocks, cores and scheduling, shared memory, the
//! fence in the kernel. Also the types that all packages of the gateway share: the [`fence`], progress counters,
//! [`listener_counters`], channel indices, the list of [`alarm`]s.

pub mod affinity;
pub mod alarm;
pub mod batch;
pub mod cgroup;
pub mod clock;
pub mod clock_rate;
pub mod disk_space;
pub mod drops;
pub mod ethtool;
pub mod fence;
pub mod file_lock;
pub mod futex;
pub mod handle;
pub mod hardware_stamps;
pub mod host_memory;
pub(crate) mod interface_request;
pub mod interfaces;
pub mod kernel_fence;
pub mod listener_counters;
pub mod log_counts;
pub mod memory;
#[cfg(test)]
pub(crate) mod namespace;
pub mod packet_ring;
pub mod permissions;
pub mod pidfd;
pub mod poll;
pub mod progress;
pub mod robust_mutex;
pub mod scheduler;
pub mod shared_atomics;
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;
pub(crate) mod socket_options;
pub mod sockets;
pub mod task_queue;
pub mod unix_group;
