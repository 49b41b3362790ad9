//! Prints what a gateway on this host publishes: `follow_log LOG_DIR CHANNEL`, for example `follow_log /dev/shm/mdgw 1`.
#![allow(clippy::print_stdout)]

use std::{error::Error, time::Duration};

use mdgw_log_reader::{ConsumerEdges, EdgeOutput, Item, LogChannel, LogReader, LogReaderConfig, TsRecvMode, wire};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [log_dir, channel] = &arguments[..] else { return Err("usage: follow_log LOG_DIR CHANNEL".into()) };
    let channel = LogChannel::new(log_dir, wire::identity::ChannelId(channel.parse()?));
    let mut reader = LogReader::open(LogReaderConfig::new(vec![channel]))?;
    let mut edges = ConsumerEdges::new(TsRecvMode::Capture);
    loop {
        reader.poll(Duration::from_secs(1), &mut |output| {
            if let Item::Gap(gap) | Item::Lost(gap) = output.item {
                println!("{} messages are missing", gap.count());
            }
            edges.deliver(&output, |record| {
                if let EdgeOutput::Record { rtype, bytes } = record {
                    println!("record of type {rtype}, {} bytes", bytes.len());
                }
            });
        })?;
    }
}
