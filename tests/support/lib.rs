//! Shared support of end-to-end and conformance tests.

pub mod captures;
pub mod conformance;
pub mod counting_allocator;
pub mod elected_pair;
pub mod failover;
pub mod feeds;
pub mod gateways;
pub mod groups;
pub mod json;
pub mod memory_cgroup;
pub mod namespaces;
pub mod pair;
pub mod process;
pub mod python;
pub mod relay;
pub mod site;
pub mod stalling_relay;
pub mod stores;
pub mod tap;
pub mod tmpfs;
pub mod trading_day;
pub mod world;
