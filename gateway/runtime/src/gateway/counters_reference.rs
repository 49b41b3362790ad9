//! The reference of all counters, `ops/guide/counters.md`: made from their declarations. For tests alone; `UPDATE=1` writes
//! the document.

use std::{env, fmt::Write as _, fs};

use mdgw_engine::{dispatch::roles::Counts, pipeline::PipelineCounters};
use mdgw_feeds::{book::BookFault, drop_reason::DropReason};
use mdgw_pair::{pair_link::PairCounts, standby::ReceiveCounts};
use mdgw_sys::listener_counters::Refusal;
use mdgw_telemetry::{
    channel_metrics::{ChannelCounts, LineCounts},
    counters::{CounterBlock, Descriptor, Unit},
};

use super::{
    log_maintenance::LogCounters,
    programs::{JournalMetrics, LiveMetrics, MirrorChannelMetrics, MirrorGroupMetrics, NatsMetrics},
    takeovers::TakeoverCounters,
};
use crate::retransmit::{
    RetransmissionCounts,
    snapshot_group::SnapshotsSent,
    snapshots::{SnapshotAnswers, SnapshotsTaken},
};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/guide/counters.md");

fn markdown() -> String {
    let mut text = "# Counters\n\n\
        Made from the declarations in the code by `UPDATE=1 cargo test -p mdgw-runtime --lib counters_reference`: change a \
        declaration, not this page.\n\n\
        A counter only grows, from the start of its gateway. A gauge takes any value.\n\n\
        Where a value appears:\n\
        - `mdgw top` and the control socket: of a channel `state`, `datagrams`, `messages`, `records`, `packets_sent`, `gaps`, \
        `gap_messages`, `drops` (and its reasons), `book_faults` and its silent lines; of a pool `turns`, `busy_channel_posts` and `saturation_ns`.\n\
        - The log, when it grows, checked once a second: `gaps`, `frames_refused`, `output_overruns`, `log_entries_missing`, \
        `sends_refused`, `sends_failed`, `sends_slow`, `book_faults`, `drops`, and the counters of the publication log.\n\
        - The [admin listener](metrics.md): all of them.\n\
        - The latency logs and `mdgw report`: the blocks named after the latency log.\n\
        - `mdgw ha status --json`: takeovers, in `details`; what listeners have refused, in `listeners`.\n\
        - `mdgw top --json`: what listeners have refused, in `listeners`; drop reasons of each channel, in `drop_reasons`; `late_starts` and `input_incomplete` of each channel, also shown by the [page](metrics.md#the-page); snapshots of its books, in `book_snapshots`.\n\
        - The table at the end of `mdgw run`: totals of each channel, and each drop reason except `duplicate` and `answer_unrequested`.\n\n\
        What the kernel dropped at a full socket is no counter of a block: alarm [`kernel-drops`](../runbooks/kernel-drops.md), \
        the heading of `mdgw top`, `kernel_drops` of `mdgw top --json`, `mdgw_kernel_drops_total` of the admin listener, and the table at the end of `mdgw run`.\n\n\
        `expected_sequence` of a channel is `next_sequence` of the snapshot. `messages_refused`, `sessions`, `recovery_requests` and `peer_reports_given_up` are shown by the admin listener alone.\n"
        .to_owned();
    let blocks = [
        ("Channel", "One block for each channel.", PipelineCounters::DESCRIPTORS),
        ("Publication log", "One block for each channel's log.", LogCounters::DESCRIPTORS),
        ("Takeovers", "One block for each group.", TakeoverCounters::DESCRIPTORS),
        (
            "Pool",
            "Sums over the threads of a pool. Words: [glossary](../../ARCHITECTURE.md#glossary).",
            Counts::DESCRIPTORS,
        ),
        ("Retransmission service", "One block, if the gateway has the service.", RetransmissionCounts::DESCRIPTORS),
        (
            "Snapshots: taken",
            "One block for each channel, if the service has snapshots or the output a snapshot group.",
            SnapshotsTaken::DESCRIPTORS,
        ),
        (
            "Snapshots: answers",
            "One block for each channel, if the service has snapshots.",
            SnapshotAnswers::DESCRIPTORS,
        ),
        (
            "Snapshots: group",
            "One block for each channel of an output with a snapshot group.",
            SnapshotsSent::DESCRIPTORS,
        ),
        ("Pair link", "One block, if the gateway has a pair link.", PairCounts::DESCRIPTORS),
        (
            "Standby",
            "One block for each channel of an elected gateway: what the gateway receives of the others' output.",
            ReceiveCounts::DESCRIPTORS,
        ),
        ("Live clients", "One block, of `mdgw live`.", LiveMetrics::DESCRIPTORS),
        ("Journal", "One block, of `mdgw journal`.", JournalMetrics::DESCRIPTORS),
        ("NATS sink", "One block, of `mdgw nats`.", NatsMetrics::DESCRIPTORS),
        (
            "Mirror: channel",
            "One block for each channel, of `mdgw mirror`; and the counters of the [publication log](#publication-log).",
            MirrorChannelMetrics::DESCRIPTORS,
        ),
        ("Mirror: group", "One block for each group, of `mdgw mirror`.", MirrorGroupMetrics::DESCRIPTORS),
        ("Latency log: channel", "Written for each interval of a channel.", ChannelCounts::DESCRIPTORS),
        ("Latency log: line", "Written for each interval of a line.", LineCounts::DESCRIPTORS),
    ];
    for (title, about, descriptors) in blocks {
        let _ =
            write!(text, "\n## {title}\n{about}\n\n| counter | kind | unit | meaning |\n| --- | --- | --- | --- |\n");
        for Descriptor { name, kind, unit, help } in descriptors {
            let kind = format!("{kind:?}").to_lowercase();
            let unit = if *unit == Unit::None { String::new() } else { format!("{unit:?}").to_lowercase() };
            let _ = writeln!(text, "| `{name}` | {kind} | {unit} | {help} |");
        }
    }
    let drops = DropReason::ALL.iter().map(|reason| (reason.name(), reason.help()));
    let faults = BookFault::ALL.iter().map(|fault| (fault.name(), fault.help()));
    reasons(&mut text, "Drop reasons", "Why a packet or a message was not used; each is counted.", drops);
    reasons(
        &mut text,
        "Refusals of listeners",
        "Why a listener beside the data path (pair link, votes, members, retransmission service, admin listener) did not use a datagram or a \
         connection. The listener of the output groups uses the drop reasons. The log has them at once and then once a minute, \
         `mdgw run` at its end, and a witness at its end.",
        Refusal::ALL.iter().map(|refusal| (refusal.name(), refusal.help())),
    );
    reasons(&mut text, "Book faults", "Why a book no longer matches its venue's; counted in messages.", faults);
    text
}

fn reasons<'a>(text: &mut String, title: &str, about: &str, reasons: impl Iterator<Item = (&'a str, &'a str)>) {
    let _ = write!(text, "\n## {title}\n{about}\n\n| reason | meaning |\n| --- | --- |\n");
    for (name, help) in reasons {
        let _ = writeln!(text, "| `{name}` | {help} |");
    }
}

#[test]
fn the_committed_reference_is_current() {
    let generated = markdown();
    if env::var_os("UPDATE").is_some() {
        fs::write(DOCUMENT, &generated).expect("the guide can be written");
    }
    let committed = fs::read_to_string(DOCUMENT).unwrap_or_default();
    assert!(
        committed == generated,
        "ops/guide/counters.md is not current: UPDATE=1 cargo test -p mdgw-runtime --lib counters_reference"
    );
}
