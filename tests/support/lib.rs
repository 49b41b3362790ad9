//! Shared support of end-to-end and conformance tests.

pub mod bound_child;
pub mod captures;
pub mod conformance;
pub mod counting_allocator;
pub mod elected_pair;
pub mod failover;
pub mod feeds;
pub mod gateway_fixture;
pub mod gateways;
pub mod groups;
pub mod json;
pub mod memory_cgroup;
pub mod namespaces;
pub mod pair;
pub mod process;
pub mod python;
pub mod relay;
pub mod service_unit;
pub mod skip;
pub mod stalling_relay;
pub mod storage;
pub mod stores;
pub mod tap;
pub mod testbed;
pub mod tmpfs;
pub mod trading_day;
