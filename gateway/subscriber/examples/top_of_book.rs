//! Keeps the best bid and offer of every instrument of a group, and prints each change.
//!
//! `top_of_book GROUP LINE INTERFACE [SERVICE]`, for example `top_of_book 1 239.10.0.1:31001 10.0.0.5 10.0.0.1:31100`. The channel must
//! publish `mbp-1` (`schemas` in the gateway's configuration).

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{collections::HashMap, error::Error, time::Duration};

use dbn::{
    BidAskPair, FlagSet, Mbp1Msg,
    decode::{DecodeRecordRef as _, dbn::RecordDecoder},
    pretty::Px,
};
use mdgw_subscriber::{
    ConsumerEdges, EdgeOutput, Item, LineAddress, Subscriber, SubscriberConfig, TsRecvMode, wire::identity::GroupId,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [group, line, interface, service @ ..] = &arguments[..] else {
        return Err("usage: top_of_book GROUP LINE INTERFACE [SERVICE]".into());
    };
    let mut config = SubscriberConfig::new(vec![LineAddress::new(line.parse()?, interface.parse()?)]);
    config.receiver.group = GroupId(group.parse()?);
    config.services = service.iter().map(|service| service.parse()).collect::<Result<_, _>>()?;
    let mut subscriber = Subscriber::open(config)?;
    let mut edges = ConsumerEdges::new(TsRecvMode::Capture);
    let mut books: HashMap<u32, BidAskPair> = HashMap::new();
    loop {
        subscriber.poll(Duration::from_secs(1), &mut |output| {
            if matches!(output.item, Item::Session | Item::Lost(_)) {
                books.clear(); // what is known of them may be wrong now
            }
            edges.deliver(&output, |record| {
                let EdgeOutput::Record { bytes, .. } = record else { return };
                let mut decoder = RecordDecoder::new(bytes);
                let Ok(Some(record)) = decoder.decode_record_ref() else { return };
                let Some(change) = record.get::<Mbp1Msg>() else { return };
                let [top] = &change.levels;
                if books.insert(change.hd.instrument_id, top.clone()).as_ref() != Some(top) {
                    print_top(change.hd.instrument_id, top, change.flags);
                }
            });
        })?;
    }
}

fn print_top(instrument_id: u32, top: &BidAskPair, flags: FlagSet) {
    let (bid, ask) = (Px(top.bid_px), Px(top.ask_px));
    let doubt = if flags.is_maybe_bad_book() { " (the book may be wrong)" } else { "" };
    println!("{instrument_id}: {} at {bid}, {} at {ask}{doubt}", top.bid_sz, top.ask_sz);
}
