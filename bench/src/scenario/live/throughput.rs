//! Sessions that replay the whole log, beside the bare loop with the same bytes.

use std::{
    fmt::Write as _,
    io::Read as _,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{
    LiveOptions, PartResult, bare,
    client::{Client, Wanted},
    log::FilledLog,
    program::LiveServer,
    ratios,
    receive::Receiver,
    record_counter::{METADATA_BYTES, records},
    text,
};
use crate::report::Spread;

/// Least ratio of records per second to the bare loop: of one session, of a hundred.
const RATIO_MIN: [(usize, f64); 2] = [(1, 0.7), (100, 0.5)];

/// Millions of records per second in each round, for one number of sessions.
struct Row {
    sessions: usize,
    live: Vec<f64>,
    bare: Vec<f64>,
}

pub(super) fn run(options: &LiveOptions, program: &Path, log: &FilledLog) -> Result<PartResult> {
    let server = LiveServer::start(program, &log.directory())?;
    let stream = replayed_stream(server.address)?;
    let mut rows: Vec<_> = options
        .sessions
        .iter()
        .map(|sessions| Row { sessions: *sessions, live: Vec::new(), bare: Vec::new() })
        .collect();
    for _ in 0..options.rounds {
        for row in &mut rows {
            let (records, time) = replay_in_all(server.address, stream.len() as u64, row.sessions)?;
            row.live.push(millions_per_s(records, time));
            let (bare_records, time) = bare::send_to_all(&stream, row.sessions)?;
            row.bare.push(millions_per_s(bare_records, time));
            ensure!(records == bare_records, "the bare loop sends the same records");
        }
    }
    server.program.stop()?;
    Ok(report(&rows, stream.len()))
}

fn report(rows: &[Row], bytes: usize) -> PartResult {
    let (mut lines, mut values) = (String::new(), Vec::new());
    for row in rows {
        let (live, bare) = (Spread::of(row.live.clone()), Spread::of(row.bare.clone()));
        let ratio = ratios(&row.live, &row.bare);
        let goal = RATIO_MIN.iter().find(|(sessions, _)| *sessions == row.sessions).map(|(_, goal)| *goal);
        let _ = writeln!(
            lines,
            "replay in {} sessions: {} million records/s; bare loop {}; ratio {}{}",
            row.sessions,
            text(live, 2),
            text(bare, 2),
            text(ratio, 2),
            goal.map_or_else(String::new, |goal| format!("; at least {goal}")),
        );
        values.push(json!({
            "sessions": row.sessions, "live_million_records_per_s": live.to_json(),
            "bare_million_records_per_s": bare.to_json(), "ratio": ratio.to_json(),
        }));
    }
    PartResult { text: lines, json: json!({ "bytes_per_session": bytes, "rows": values }) }
}

fn millions_per_s(records: u64, time: Duration) -> f64 {
    records as f64 / 1e6 / time.as_secs_f64()
}

/// What a session gets until its replay is complete.
pub(super) fn replayed_stream(address: SocketAddr) -> Result<Vec<u8>> {
    let mut client = Client::connect(address)?;
    client.subscribe(Wanted::Replay)?;
    let mut stream = client.start()?;
    let (mut bytes, mut buffer, mut whole) = (Vec::new(), vec![0; 256 << 10], METADATA_BYTES);
    loop {
        let received = stream.read(&mut buffer)?;
        ensure!(received > 0, "mdgw live ended the session in its replay");
        bytes.extend_from_slice(&buffer[..received]);
        let mut is_complete = false;
        for (begin, record) in records(&bytes, whole) {
            whole = begin + record.len();
            ensure!(record[1] != ERROR, "mdgw live answers with an error");
            is_complete |= record[1] == SYSTEM && record.last() == Some(&REPLAY_COMPLETED);
        }
        if is_complete {
            ensure!(whole == bytes.len(), "records follow the end of the replay, although the log is idle");
            return Ok(bytes);
        }
    }
}

/// The time from the start of all sessions to the last byte of the last one.
fn replay_in_all(address: SocketAddr, bytes: u64, sessions: usize) -> Result<(u64, Duration)> {
    let mut clients = Vec::new();
    for _ in 0..sessions {
        let mut client = Client::connect(address)?;
        client.subscribe(Wanted::Replay)?;
        clients.push(client);
    }
    let begin = Instant::now();
    let streams = clients.into_iter().map(Client::start).collect::<Result<_>>()?;
    let records = Receiver::new(streams)?.receive_each(bytes)?;
    Ok((records, begin.elapsed()))
}

/// Types of control records, and the code of a completed replay, which is the record's last byte.
const ERROR: u8 = 0x15;
const SYSTEM: u8 = 0x17;
const REPLAY_COMPLETED: u8 = 3;
