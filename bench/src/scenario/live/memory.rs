//! What an idle session takes of the memory of `mdgw live`: the slope between few and many sessions.

use std::{
    fs,
    io::Read as _,
    net::{SocketAddr, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    LiveOptions, PartResult,
    client::{Client, Wanted},
    log::FilledLog,
    program::LiveServer,
    record_counter::{METADATA_BYTES, records},
    text,
    throughput::replayed_stream,
};
use crate::report::Spread;

/// Most user memory of an idle session, KiB.
const SESSION_KIB_MAX: f64 = 64.0;

/// Memory of a process, KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessMemory {
    /// Heap and stacks: what no file backs.
    anonymous: u64,
    /// All resident pages, those of the program and of the log included.
    resident: u64,
}

pub(super) fn run(options: &LiveOptions, program: &Path, log: &FilledLog) -> Result<PartResult> {
    let [few, many] = [options.idle_sessions[0], options.idle_sessions[1]];
    let (mut anonymous, mut resident) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        // A process of its own: one that has served before takes the memory of former sessions again.
        let server = LiveServer::start(program, &log.directory())?;
        let symbol = first_symbol(&replayed_stream(server.address)?).context("the day names instruments")?;
        server.program.stop()?;
        let server = LiveServer::start(program, &log.directory())?;
        let mut sessions = Vec::new();
        let mut at = [few, many].into_iter().map(|count| {
            while sessions.len() < count {
                sessions.push(idle_session(server.address, &symbol)?);
            }
            // Buffers of the answers are released at the next turn of each session.
            thread::sleep(SETTLE_TIME);
            ProcessMemory::of(server.program.id())
        });
        let (before, after) = (at.next().context("few")??, at.next().context("many")??);
        drop(at);
        let added = (many - few) as f64;
        anonymous.push((after.anonymous as f64 - before.anonymous as f64) / added);
        resident.push((after.resident as f64 - before.resident as f64) / added);
        drop(sessions);
        server.program.stop()?;
    }
    let (anonymous, resident) = (Spread::of(anonymous), Spread::of(resident));
    let lines = format!(
        "memory of an idle session, from {few} to {many} sessions of one symbol, without the kernel's socket buffers: anonymous {} KiB, \
         at most {SESSION_KIB_MAX}; resident {} KiB\n",
        text(anonymous, 1),
        text(resident, 1),
    );
    let value = json!({
        "sessions": [few, many], "anonymous_kib_per_session": anonymous.to_json(),
        "resident_kib_per_session": resident.to_json(),
    });
    Ok(PartResult { text: lines, json: value })
}

/// A session of one symbol that has had everything there is: metadata, acknowledgement, mapping.
fn idle_session(address: SocketAddr, symbol: &str) -> Result<TcpStream> {
    let mut client = Client::connect(address)?;
    client.subscribe(Wanted::Symbol(symbol))?;
    let mut stream = client.start()?;
    let mut bytes = [0; METADATA_BYTES + SYSTEM_BYTES + MAPPING_BYTES];
    stream.read_exact(&mut bytes)?;
    let last = records(&bytes, METADATA_BYTES).last().map(|(_, record)| record);
    ensure!(last.is_some_and(|record| record[1] == MAPPING), "the session begins with its mapping");
    Ok(stream)
}

/// The symbol of the first mapping in a stream.
fn first_symbol(stream: &[u8]) -> Option<String> {
    let mapping = records(stream, METADATA_BYTES).map(|(_, record)| record).find(|record| record[1] == MAPPING)?;
    let symbol = mapping.get(SYMBOL_AT..)?.split(|byte| *byte == 0).next()?;
    Some(std::str::from_utf8(symbol).ok()?.to_owned())
}

impl ProcessMemory {
    fn of(process: u32) -> Result<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?)
    }

    fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
            kib.with_context(|| format!("smaps_rollup has no {name}"))
        };
        Ok(Self { anonymous: field("Anonymous:")?, resident: field("Rss:")? })
    }
}

const SETTLE_TIME: Duration = Duration::from_millis(500);
const SYSTEM_BYTES: usize = 320;
const MAPPING_BYTES: usize = 176;
/// Type of a symbol mapping, and the offset of its outgoing symbol.
const MAPPING: u8 = 0x16;
const SYMBOL_AT: usize = 89;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_by_name_and_a_missing_field_is_an_error() {
        let text = "5581 kB [rollup]\nRss:               12 kB\nPss_Anon:      7 kB\nAnonymous:      8 kB\n";
        assert_eq!(ProcessMemory::parse(text).unwrap(), ProcessMemory { anonymous: 8, resident: 12 });
        assert!(ProcessMemory::parse("Rss: 12 kB\n").is_err());
        let own = ProcessMemory::of(std::process::id()).unwrap();
        assert!(own.anonymous > 0 && own.resident >= own.anonymous, "{own:?}");
    }

    #[test]
    fn the_first_mapping_gives_the_symbol() {
        let mut stream = vec![0; METADATA_BYTES];
        let mut order = [0; 56];
        (order[0], order[1]) = (14, 0xa0);
        let mut mapping = [0; MAPPING_BYTES];
        (mapping[0], mapping[1]) = (44, MAPPING);
        mapping[SYMBOL_AT..SYMBOL_AT + 4].copy_from_slice(b"AAPL");
        stream.extend(order);
        assert_eq!(first_symbol(&stream), None);
        stream.extend(mapping);
        assert_eq!(first_symbol(&stream).as_deref(), Some("AAPL"));
    }
}
