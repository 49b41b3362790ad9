//! One file per question.

pub(crate) mod book;
pub(crate) mod decode;
pub(crate) mod line;
pub(crate) mod once;
pub(crate) mod turn;
