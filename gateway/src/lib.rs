//! Market-data gateway: exchange feeds in, one gap-free normalised stream out.
//!
//! Read [`pipeline`] first: the straight line from socket to multicast, in one function.

pub mod audit;
pub mod book_view;
pub mod capture;
pub mod capture_file;
pub mod cli;
pub mod config;
pub mod control;
pub mod convert;
pub mod dbn_file;
pub mod dbn_input;
pub mod demo;
pub mod diff;
pub mod election;
pub mod engine;
pub mod fence;
pub mod gateway;
pub mod inspect;
pub mod merge;
pub mod net;
pub mod observe;
pub mod output_file;
pub mod pair_link;
pub mod pipeline;
pub mod publish;
pub mod replay;
pub mod report;
pub mod retransmit;
pub mod sentinel;
pub mod standby;
pub mod standin;
pub mod state_file;
pub mod sys;
pub mod top;
pub mod verify;
