//! Keeps the best bid and offer of every instrument of a group, and prints each change.
//!
//! `top_of_book GROUP LINE INTERFACE [SERVICE]`, for example `top_of_book 1 239.10.0.1:31001 10.0.0.5 10.0.0.1:31100`. The channel must
//! publish `mbp-1` (`schemas` in the gateway's configuration).

#![allow(clippy::print_stdout)]

use std::{collections::HashMap, error::Error};

use dbn::{
    BidAskPair, Mbp1Msg,
    decode::{DecodeRecord as _, dbn::RecordDecoder},
    pretty::Px,
};
use mdgw_subscriber::{EventKind, LineAddress, Subscriber, SubscriberConfig, TsRecvMode, wire::identity::GroupId};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [group, line, interface, service @ ..] = &arguments[..] else {
        return Err("usage: top_of_book GROUP LINE INTERFACE [SERVICE]".into());
    };
    let mut config = SubscriberConfig::new(vec![LineAddress::new(line.parse()?, interface.parse()?)]);
    config.receiver.group = GroupId(group.parse()?);
    config.services = service.iter().map(|service| service.parse()).collect::<Result<_, _>>()?;
    let mut books: HashMap<u32, BidAskPair> = HashMap::new();
    for event in Subscriber::open(config)?.events(TsRecvMode::Capture) {
        let record = match event?.kind {
            EventKind::Record(record) => record,
            EventKind::Session(_) | EventKind::Lost(_) => {
                books.clear();
                continue;
            } // what is known of them may be wrong now
            _ => continue,
        };
        let mut decoder = RecordDecoder::new(&record[..]);
        let Ok(Some(Mbp1Msg { hd, levels: [top], .. })) = decoder.decode_record() else { continue };
        if books.insert(hd.instrument_id, top.clone()).as_ref() != Some(top) {
            println!(
                "{}: {} at {}, {} at {}",
                hd.instrument_id,
                top.bid_sz,
                Px(top.bid_px),
                top.ask_sz,
                Px(top.ask_px)
            );
        }
    }
    Ok(())
}
