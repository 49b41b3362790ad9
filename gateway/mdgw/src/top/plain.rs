//! The view as text and as JSON, for output that is not a terminal.

use std::fmt::{self, Write};

use mdgw_feeds::time::UnixNs;
use mdgw_status::snapshot::stuck_main_thread;
use mdgw_tools::report::quantity::{Latency, Timestamp};
use serde_json::{Value, json};

use super::{draw::percent, state::Top};

/// The current snapshot as text. Control characters are replaced, so that names cannot control the terminal.
#[must_use]
pub(crate) fn text(top: &Top) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(top, &mut text);
    text.chars().map(|character| if character.is_control() && character != '\n' { '?' } else { character }).collect()
}

fn write(top: &Top, out: &mut String) -> fmt::Result {
    let Some(snapshot) = top.snapshot() else { return writeln!(out, "no data yet") };
    write!(out, "{}, {} UTC", snapshot.source, Timestamp(UnixNs(snapshot.time_ns)))?;
    match top.span_ns() {
        Some(span_ns) => write!(out, ", rates over {}", Latency(span_ns))?,
        None => write!(out, ", no rates yet (one sample)")?,
    }
    writeln!(out, ", {} datagrams dropped by the kernel", snapshot.kernel_drops)?;
    if let Some(stuck_ms) = snapshot.main_thread_stuck_ms {
        writeln!(out, "{}", stuck_main_thread(stuck_ms))?;
    }
    for pool in top.pools() {
        writeln!(
            out,
            "pool {}: busy {}, saturated {}, {:.0} turns/s",
            pool.name,
            percent(pool.busy),
            percent(pool.saturated),
            pool.turns_per_s
        )?;
        for thread in pool.threads {
            writeln!(out, "  {:<16} {:<10} {:>6}", thread.name, thread.role, percent(thread.busy))?;
        }
    }
    writeln!(
        out,
        "{:<20} {:<10} {:>10} {:>10} {:>6} {:>8} {:>8} {:<20} {:>8} {:>8} {:>8}",
        "channel", "state", "messages/s", "packets/s", "gaps", "lost", "drops", "lead", "p50", "p99", "max"
    )?;
    for row in top.channels() {
        let channel = &row.channel;
        let lead = match (&row.lead, channel.silent_lines.as_slice()) {
            (Some((line, share)), []) => format!("{} {} by {}", line.line, percent(*share), Latency(line.lead_p50_ns)),
            (None, []) => "-".to_owned(),
            (_, silent) => format!("silent {}", silent.join(" ")),
        };
        let latencies = channel.stage("wire_to_wire").map_or([const { String::new() }; 3], |stage| {
            [stage.p50_ns, stage.p99_ns, stage.max_ns].map(|ns| Latency(ns).to_string())
        });
        writeln!(
            out,
            "{:<20} {:<10} {:>10.0} {:>10.0} {:>6} {:>8} {:>8} {:<20} {:>8} {:>8} {:>8}",
            channel.name,
            channel.state,
            row.messages_per_s,
            row.datagrams_per_s,
            channel.gaps,
            channel.gap_messages,
            channel.drops,
            lead,
            latencies[0],
            latencies[1],
            latencies[2]
        )?;
        if let Some(reason) = &channel.failed {
            writeln!(out, "  out of service: {reason}")?;
        }
    }
    let subscribers = top.subscribers();
    if !subscribers.is_empty() {
        writeln!(out, "live clients {}:", subscribers.len())?;
    }
    subscribers.into_iter().try_for_each(|subscriber| writeln!(out, "  {subscriber}"))
}

/// The current snapshot with its rates.
#[must_use]
pub(crate) fn json(top: &Top) -> Value {
    let Some(snapshot) = top.snapshot() else { return Value::Null };
    let pools: Vec<Value> = top
        .pools()
        .into_iter()
        .map(|pool| {
            let threads: Vec<Value> = pool
                .threads
                .iter()
                .map(|thread| json!({ "name": thread.name, "role": thread.role, "busy": thread.busy }))
                .collect();
            json!({
                "name": pool.name,
                "busy": pool.busy,
                "saturated": pool.saturated,
                "turns_per_s": pool.turns_per_s,
                "threads": threads,
            })
        })
        .collect();
    let channels: Vec<Value> = top
        .channels()
        .into_iter()
        .map(|row| {
            let mut value = json!(row.channel);
            value["messages_per_s"] = json!(row.messages_per_s);
            value["datagrams_per_s"] = json!(row.datagrams_per_s);
            value["sent_per_s"] = json!(row.sent_per_s);
            value
        })
        .collect();
    json!({
        "source": snapshot.source,
        "time_ns": snapshot.time_ns,
        "span_ns": top.span_ns(),
        "kernel_drops": snapshot.kernel_drops,
        "main_thread_stuck_ms": snapshot.main_thread_stuck_ms,
        "pools": pools,
        "channels": channels,
        "subscribers": snapshot.subscribers,
    })
}
