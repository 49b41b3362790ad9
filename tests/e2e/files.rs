//! The commands that work on files: captures, recordings, logs and tables in, an answer or other files out. One program of
//! many, as its neighbours are: to link one takes longer than most of these take to run.

mod book;
mod convert;
mod diff;
mod ha_verify;
mod hdrhistogram_interop;
mod inspect;
mod merge;
