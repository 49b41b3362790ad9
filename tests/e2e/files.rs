//! The commands that work on files: captures, recordings, logs and tables in, an answer or other files out. Many tests
//! share one program, because linking one takes longer than most of them run.

mod book;
mod convert;
mod diff;
mod ha_verify;
mod hdrhistogram_interop;
mod inspect;
mod merge;
