//! Writes capture files for measurements from outside.

use std::{fs::File, io::BufWriter, path::Path};

use anyhow::{Context, Result};
use mdgw_captures::capture_file::PcapWriter;

use super::end_to_end::{LINE_B_DELAY_NS, LINES, SOURCE, for_each_packet};
use crate::{Options, input::SyntheticDay};

/// Each line lacks one packet in this many, each line a different one.
const DROP_PERIOD: u64 = 1_000;
const DROPPED_AT: [u64; 2] = [250, 750];

pub(crate) fn run(directory: &Path, options: &Options) -> Result<()> {
    let day = SyntheticDay::load(options)?;
    let create = |name| {
        let path = directory.join(name);
        File::create(&path).with_context(|| format!("create {}", path.display()))
    };
    let mut writers = [PcapWriter::new(writer(create("a.pcap")?))?, PcapWriter::new(writer(create("b.pcap")?))?];
    let mut number = 0_u64;
    for_each_packet(&day, |time_ns, payload| {
        number += 1;
        for (line, writer) in writers.iter_mut().enumerate() {
            let is_dropped = number % DROP_PERIOD == DROPPED_AT[line];
            if !is_dropped {
                writer.datagram(time_ns + line as u64 * LINE_B_DELAY_NS, SOURCE, LINES[line], payload)?;
            }
        }
        Ok(())
    })?;
    for writer in writers {
        writer.finish()?;
    }
    println!("{} messages in {number} packets, some lacking on each line", day.message_count);
    Ok(())
}

fn writer(file: File) -> BufWriter<File> {
    BufWriter::with_capacity(1 << 20, file)
}
