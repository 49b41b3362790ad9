//! The commands that work on files: captures, recordings, logs and tables in, an answer or other files out. One program of
//! many, as its neighbours are: to link one takes longer than most of these take to run.

mod book;
mod convert;
mod diff;
mod foreign_histograms;
mod ha_verify;
mod inspect;
mod merge;
