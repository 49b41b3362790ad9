//! Prints every trade of a group.
//!
//! `print_trades GROUP LINE INTERFACE [SERVICE]`, for example `print_trades 1 239.10.0.1:31001 10.0.0.5 10.0.0.1:31100`. The service
//! repeats what the line loses, and what the session published before the start. The channel must publish `trades` (`schemas` in
//! the gateway's configuration).

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{error::Error, time::Duration};

use dbn::{
    RecordRef, TradeMsg,
    decode::{DecodeRecordRef as _, dbn::RecordDecoder},
    pretty::Px,
};
use mdgw_subscriber::{
    ConsumerEdges, EdgeOutput, Item, LineAddress, Subscriber, SubscriberConfig, TsRecvMode, wire::identity::GroupId,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [group, line, interface, service @ ..] = &arguments[..] else {
        return Err("usage: print_trades GROUP LINE INTERFACE [SERVICE]".into());
    };
    let mut config = SubscriberConfig::new(vec![LineAddress::new(line.parse()?, interface.parse()?)]);
    config.receiver.group = GroupId(group.parse()?);
    config.services = service.iter().map(|service| service.parse()).collect::<Result<_, _>>()?;
    let mut subscriber = Subscriber::open(config)?;
    let mut edges = ConsumerEdges::new(TsRecvMode::Capture);
    loop {
        subscriber.poll(Duration::from_secs(1), &mut |output| {
            if let Item::Gap(gap) | Item::Lost(gap) = output.item {
                eprintln!("{} messages are missing", gap.count());
            }
            edges.deliver(&output, |record| {
                if let EdgeOutput::Record { bytes, .. } = record
                    && let Ok(Some(record)) = RecordDecoder::new(bytes).decode_record_ref()
                {
                    print_trade(record);
                }
            });
        })?;
    }
}

fn print_trade(record: RecordRef<'_>) {
    if let Some(trade) = record.get::<TradeMsg>() {
        println!("{} {} {} at {}", trade.hd.ts_event, trade.hd.instrument_id, trade.size, Px(trade.price));
    }
}
