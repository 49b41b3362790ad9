//! One pass of one variant, so that a tool can count what it executes.

use anyhow::Result;
use clap::ValueEnum;
use mdgw_feeds::book::{
    orders::OrderBooks,
    store::{HashStore, WindowStore},
};

use super::{book, decode, line};
use crate::{Options, hop, input::Day, reference::ReferenceBooks};

/// What can be run once.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Variant {
    Hop,
    Decode,
    Reference,
    Hash,
    HashAhead,
    Window,
    WindowAhead,
    Arbitrate,
    Line,
}

pub(crate) fn run(variant: Variant, options: &Options) -> Result<()> {
    let day = Day::load(options)?;
    let result = match variant {
        Variant::Hop => hop::sum_fields(&day.bytes),
        Variant::Decode => decode::sum_fields(&day.bytes),
        Variant::Reference => book::run_reference(&mut ReferenceBooks::new(), &day),
        Variant::Hash => book::run_plain(&mut OrderBooks::<HashStore>::new(book::LIMITS), &day),
        Variant::HashAhead => book::run_ahead(&mut OrderBooks::<HashStore>::new(book::LIMITS), &day),
        Variant::Window => book::run_plain(&mut OrderBooks::<WindowStore>::new(book::LIMITS), &day),
        Variant::WindowAhead => book::run_ahead(&mut OrderBooks::<WindowStore>::new(book::LIMITS), &day),
        Variant::Arbitrate => line::arbitrate_day(&day)?,
        Variant::Line => line::carry_day(&day)?,
    };
    println!("{} messages, {result:x}", day.message_count);
    Ok(())
}
