//! Prints every trade of a group.
//!
//! `print_trades GROUP LINE INTERFACE [SERVICE]`, for example `print_trades 1 239.10.0.1:31001 10.0.0.5 10.0.0.1:31100`. The service
//! repeats what the line loses, and what the session published before the start. The channel must publish `trades` (`schemas` in
//! the gateway's configuration).

#![allow(clippy::print_stdout, clippy::print_stderr)]

use dbn::{
    TradeMsg,
    decode::{DecodeRecord as _, dbn::RecordDecoder},
    pretty::Px,
};
use mdgw_subscriber::{EventKind, LineAddress, Subscriber, SubscriberConfig, TsRecvMode, wire::identity::GroupId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [group, line, interface, service @ ..] = &arguments[..] else {
        return Err("usage: print_trades GROUP LINE INTERFACE [SERVICE]".into());
    };
    let mut config = SubscriberConfig::new(vec![LineAddress::new(line.parse()?, interface.parse()?)]);
    config.receiver.group = GroupId(group.parse()?);
    config.services = service.iter().map(|service| service.parse()).collect::<Result<_, _>>()?;
    for event in Subscriber::open(config)?.events(TsRecvMode::Capture) {
        match event?.kind {
            EventKind::Record(record) => {
                if let Ok(Some(trade)) = RecordDecoder::new(&record[..]).decode_record::<TradeMsg>() {
                    println!("{} {} {} at {}", trade.hd.ts_event, trade.hd.instrument_id, trade.size, Px(trade.price));
                }
            }
            EventKind::Gap(gap) | EventKind::Lost(gap) => eprintln!("{} messages are missing", gap.count()),
            _ => {}
        }
    }
    Ok(())
}
