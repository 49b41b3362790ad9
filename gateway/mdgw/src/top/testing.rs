//! Two snapshots of a gateway, one second apart.

use std::collections::BTreeMap;

use mdgw_status::snapshot::{
    BookSnapshots, ChannelSnapshot, LineSnapshot, PoolSnapshot, Snapshot, StageSnapshot, ThreadSnapshot,
};

/// A gateway with one pool and four channels, one in each of three states and two that are live.
pub(super) fn earlier_snapshot() -> Snapshot {
    let thread = |number: usize, role: &str, busy_ns| ThreadSnapshot {
        name: format!("main-{number}"),
        role: role.to_owned(),
        busy_ns,
    };
    let pool = PoolSnapshot {
        name: "main".to_owned(),
        threads: vec![
            thread(0, "leader", 5_000_000_000),
            thread(1, "processing", 4_000_000_000),
            thread(2, "parked", 0),
            thread(3, "parked", 0),
        ],
        turns: 700_000,
        busy_channel_posts: 12,
        saturation_ns: 9_000_000,
    };
    Snapshot {
        source: "gateway 1, epoch 7".to_owned(),
        time_ns: 1_548_858_605_000_000_000,
        clock_ns: 60_000_000_000,
        progress: None,
        kernel_drops: 0,
        main_thread_stuck_ms: None,
        pools: vec![pool],
        channels: vec![
            channel(1, "nasdaq", "live", 9_000_000),
            channel(2, "bx", "recovering", 800_000),
            channel(3, "iex-deep", "live", 400_000),
            channel(4, "iex-tops", "failed", 60_000),
        ],
        listeners: Vec::new(),
        subscribers: Vec::new(),
    }
}

/// The same gateway one second after [`earlier_snapshot`].
pub(super) fn later_snapshot() -> Snapshot {
    let mut snapshot = earlier_snapshot();
    snapshot.time_ns += 1_000_000_000;
    snapshot.clock_ns += 1_000_000_000;
    let pool = &mut snapshot.pools[0];
    pool.turns += 41_500;
    pool.saturation_ns += 1_000_000;
    pool.threads[0].busy_ns += 120_000_000;
    pool.threads[1].busy_ns += 250_000_000;
    for (channel, messages) in snapshot.channels.iter_mut().zip([123_456, 8_000, 950, 0]) {
        channel.messages += messages;
        channel.datagrams += messages / 3 - messages / 900;
        channel.packets_sent += messages / 2;
    }
    snapshot.channels[0].datagrams = earlier_snapshot().channels[0].datagrams + 41_000;
    snapshot
}

fn channel(id: u16, name: &str, state: &str, messages: u64) -> ChannelSnapshot {
    let line = |line: &str, lead_count, lead_p50_ns| LineSnapshot {
        line: line.to_owned(),
        lead_count,
        lead_p50_ns,
        lead_p99_ns: 9 * lead_p50_ns,
    };
    let is_failed = state == "failed";
    let is_recovering = state == "recovering";
    let scale = u64::from(5 - id);
    ChannelSnapshot {
        id,
        name: name.to_owned(),
        pool: "main".to_owned(),
        state: state.to_owned(),
        failed: is_failed.then(|| "cannot read a line's socket".to_owned()),
        datagrams: messages / 3,
        messages,
        next_sequence: messages + 1,
        records: messages + messages / 5,
        packets_sent: messages / 2,
        gaps: if is_recovering { 2 } else { 0 },
        gap_messages: if is_recovering { 37 } else { 0 },
        drops: if is_failed { 4 } else { 0 },
        drop_reasons: BTreeMap::new(),
        book_faults: 0,
        late_starts: 0,
        input_incomplete: is_recovering,
        silent_lines: if is_failed { vec!["B".to_owned()] } else { Vec::new() },
        lines: if is_failed { Vec::new() } else { vec![line("A", 75, 12_300), line("B", 25, 31_000)] },
        stages: if is_failed {
            Vec::new()
        } else {
            vec![StageSnapshot {
                stage: "wire_to_wire".to_owned(),
                begin_ns: 0,
                end_ns: 0,
                count: 900,
                p50_ns: 1_160 * scale,
                p99_ns: 6_800 * scale,
                p999_ns: 19_000 * scale,
                max_ns: 90_000 * scale,
            }]
        },
        book_snapshots: BookSnapshots::default(),
    }
}
