//! One file per question.

pub(crate) mod book;
pub(crate) mod captures;
pub(crate) mod decode;
pub(crate) mod kernel_fence;
pub(crate) mod line;
pub(crate) mod notice;
pub(crate) mod once;
pub(crate) mod turn;
