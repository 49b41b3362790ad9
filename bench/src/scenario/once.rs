//! One pass of one variant, so that a tool can count its instructions.

use anyhow::Result;
use clap::ValueEnum;
use mdgw_feeds::book::{
    orders::OrderBooks,
    store::{HashStore, WindowStore},
};

use super::{book, decode, end_to_end};
use crate::{Options, decode_baseline, input::SyntheticDay, reference::ReferenceBooks};

/// A variant to run once.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Variant {
    DecodeBaseline,
    Decode,
    Reference,
    Hash,
    HashPrefetch,
    Window,
    WindowPrefetch,
    Arbitrate,
    EndToEnd,
}

pub(crate) fn run(variant: Variant, options: &Options) -> Result<()> {
    let day = SyntheticDay::load(options)?;
    let result = match variant {
        Variant::DecodeBaseline => decode_baseline::sum_fields(&day.bytes),
        Variant::Decode => decode::sum_fields(&day.bytes),
        Variant::Reference => book::run_reference(&mut ReferenceBooks::new(), &day),
        Variant::Hash => book::run_plain(&mut OrderBooks::<HashStore>::new(day.limits), &day),
        Variant::HashPrefetch => book::run_prefetch_in_replay(&mut OrderBooks::<HashStore>::new(day.limits), &day),
        Variant::Window => book::run_plain(&mut OrderBooks::<WindowStore>::new(day.limits), &day),
        Variant::WindowPrefetch => book::run_prefetch_in_replay(&mut OrderBooks::<WindowStore>::new(day.limits), &day),
        Variant::Arbitrate => end_to_end::arbitrate_day(&day)?,
        Variant::EndToEnd => end_to_end::run_day(&day)?,
    };
    println!("{} messages, {result:x}", day.message_count);
    Ok(())
}
