//! The scenarios: one file per question.

pub(crate) mod book;
pub(crate) mod captures;
pub(crate) mod death_notice;
pub(crate) mod decode;
pub(crate) mod dispatch;
pub(crate) mod end_to_end;
pub(crate) mod kernel_fence;
pub(crate) mod live;
pub(crate) mod once;
pub(crate) mod shared_memory;
pub(crate) mod snapshot_start;
pub(crate) mod turn;
pub(crate) mod wire;
