//! `mdgw ha status`, `history`, `hand-over`, `pin`, `unpin`, `admit`: requests to the control socket of a running gateway.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

use mdgw_status::{
    control::{ControlError, Request, send_request},
    snapshot::{ListenerSnapshot, SubscriberSnapshot, stuck_main_thread},
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::cli::{
    Outcome, print, refused,
    subscribers::{LiveClients, LiveSocket},
    warn,
};

/// How to reach the gateway, and how to print its answer.
#[derive(Debug, clap::Args)]
pub(super) struct Socket {
    /// Control socket of the gateway (gateway.control_socket).
    #[arg(long, value_name = "SOCKET", default_value = "/run/mdgw/control")]
    pub(super) socket: PathBuf,
    /// One line of JSON instead of a table, also of a refusal.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    socket: Socket,
    #[command(flatten)]
    live: LiveSocket,
}

#[derive(Debug, clap::Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    socket: Socket,
    /// Number of audit entries to show, newest last.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    count: usize,
}

#[derive(Debug, clap::Args)]
pub(super) struct GroupArgs {
    #[command(flatten)]
    pub(super) socket: Socket,
    /// Group; required if the gateway has several.
    #[arg(long, value_name = "N")]
    pub(super) group: Option<u16>,
}

#[derive(Debug, clap::Args)]
pub(super) struct HandOverArgs {
    #[command(flatten)]
    group_args: GroupArgs,
    /// Node number of the next leader. Default: the fittest candidate.
    #[arg(long, value_name = "NODE")]
    to: Option<u8>,
}

#[derive(Debug, clap::Args)]
pub(super) struct AdmitArgs {
    #[command(flatten)]
    group_args: GroupArgs,
    /// The gateway's node number.
    #[arg(long, value_name = "NODE")]
    node: u8,
    /// The gateway's name.
    #[arg(long, value_name = "NAME")]
    name: String,
}

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<Outcome> {
    let live = args.live.read();
    let add_live_clients = |value: &mut Value| match live {
        Ok(None) => {}
        Ok(Some(LiveClients { subscribers, listener })) => {
            value["subscribers"] = json!(subscribers);
            if let (Some(listeners), Some(listener)) = (value["listeners"].as_array_mut(), listener) {
                listeners.push(json!(listener));
            }
        }
        Err(problem) => warn(&problem),
    };
    print_completed(&args.socket, &Request::Status {}, add_live_clients, |value, text| {
        if value["groups"].as_array().is_none_or(Vec::is_empty) {
            writeln!(text, "node {} runs standalone: no election is configured", value["node"])?;
        } else {
            write_groups(value, text)?;
        }
        if let Some(stuck_ms) = value["main_thread_stuck_ms"].as_u64() {
            writeln!(text, "{}", stuck_main_thread(stuck_ms))?;
        }
        write_refusals(value, text)?;
        write_subscribers(value, text)
    })
}

/// Writes one line for each listener that has refused something. A gateway of an earlier version reports none.
fn write_refusals(value: &Value, text: &mut String) -> anyhow::Result<()> {
    let listeners: Vec<ListenerSnapshot> = serde_json::from_value(value["listeners"].clone()).unwrap_or_default();
    for listener in listeners.iter().filter(|listener| !listener.refused.is_empty()) {
        writeln!(text, "listener {listener}")?;
    }
    Ok(())
}

/// Writes one line for each session of a live client.
fn write_subscribers(value: &Value, text: &mut String) -> anyhow::Result<()> {
    let subscribers: Vec<SubscriberSnapshot> = serde_json::from_value(value["subscribers"].clone()).unwrap_or_default();
    for subscriber in &subscribers {
        writeln!(text, "live client {subscriber}")?;
    }
    Ok(())
}

/// Writes one line per group, its abnormal conditions below it, and at the end the load of each leader. At most 80
/// columns, but for conditions.
fn write_groups(value: &Value, text: &mut String) -> anyhow::Result<()> {
    let mut loads: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    writeln!(text, "{:<6} {:<24} {:>7} {:>8}  {:<10} connection", "group", "leader", "epoch", "channels", "here")?;
    let groups = value["groups"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    for group in groups {
        let channels = group["details"]["channels"].as_array().map_or(0, Vec::len);
        let unknown = why_leader_is_unknown(group);
        let leader_name = if unknown.is_some() { "unknown".to_owned() } else { leader(&group["leader"]) };
        writeln!(
            text,
            "{:<6} {leader_name:<24} {:>7} {channels:>8}  {:<10} {}{}",
            plain_text(&group["group"]),
            plain_text(&group["epoch"]["count"]),
            if has_lost_lease(group) { "no lease".to_owned() } else { plain_text(&group["role"]) },
            plain_text(&group["connection"]),
            if group["pinned"] == true { ", pinned" } else { "" }
        )?;
        if has_lost_lease(group) {
            writeln!(
                text,
                "       was the leader: the fence is closed, since its lease ended or its election thread is stuck"
            )?;
        } else if let Some(reason) = unknown {
            let last = &group["last_leader"];
            let last = if last.is_object() {
                format!("; the last one known here was {}", leader(last))
            } else {
                String::new()
            };
            writeln!(text, "       the leader is unknown here: {reason}{last}")?;
        } else if group["last_leader"].is_object() {
            let last = leader(&group["last_leader"]);
            if group["last_leader"]["node"] == value["node"] {
                writeln!(text, "       no leader: this gateway was the last one, and its fence is closed")?;
            } else {
                writeln!(
                    text,
                    "       no leader: the lease of {last}, the last one, has ended as far as this gateway knows; its \
                     fence is closed or its state unknown"
                )?;
            }
        }
        if group["election_stalled"] == true {
            writeln!(
                text,
                "       the election thread here is stuck: what is shown of the group is old, and whether its voters answer is unknown"
            )?;
        }
        if let Some(reason) = field(group, "ineligible_reason", "obstacle").as_str() {
            writeln!(text, "       not eligible: {reason}")?;
        }
        for voter in group["voters"].as_array().into_iter().flatten().filter(|voter| voter["answers"] == false) {
            let (name, node) = (plain_text(&voter["name"]), &voter["node"]);
            match voter["answered_ms_ago"].as_u64() {
                Some(ms) => writeln!(text, "       voter {name} (node {node}): last answered {} s ago", ms / 1_000)?,
                None => writeln!(text, "       voter {name} (node {node}): has not answered")?,
            }
        }
        write_condition(&group["details"], text)?;
        let load = loads.entry(leader_name).or_default();
        *load = (load.0 + 1, load.1 + channels);
    }
    if groups.len() > 1 {
        writeln!(text)?;
        for (leader, (groups, channels)) in loads {
            writeln!(text, "{leader:<31} groups: {groups}, channels: {channels}")?;
        }
    }
    Ok(())
}

/// Why a gateway that names no leader cannot know who leads. A gateway of an earlier version does not say so itself.
fn why_leader_is_unknown(group: &Value) -> Option<&str> {
    let is_stuck = group["leader"].is_null() && group["election_stalled"] == true;
    group["leader_unknown"].as_str().or_else(|| is_stuck.then_some("the election thread here is stuck"))
}

/// Whether the gateway was the leader when its election thread last turned, and its fence has closed since.
fn has_lost_lease(group: &Value) -> bool {
    group["role"] == "leader" && group["has_leadership"] == false
}

/// Writes abnormal conditions. Writes nothing if the gateway is eligible and fit and the election allows one leader
/// only.
fn write_condition(details: &Value, text: &mut String) -> anyhow::Result<()> {
    if *field(details, "allows_split_brain", "may_split") == true {
        writeln!(
            text,
            "       split brain is allowed (backend emergent): during a network partition two gateways can lead; \
             receivers accept the higher epoch"
        )?;
    }
    let joining = &details["joining"];
    if matches!(field(joining, "eligibility", "standing").as_str(), Some("joining" | "joins")) {
        writeln!(
            text,
            "       joining: {} messages behind its peer, {} channels missing, caught up for {} ms",
            joining["behind_messages"],
            joining["channels_missing"],
            field(joining, "caught_up_ms", "level_ms")
        )?;
        let mismatch_ms = field(joining, "content_mismatch_ms", "unlike_ms");
        if mismatch_ms.as_u64().is_some_and(|ms| ms > 0) {
            writeln!(text, "       content differs from its peer's for {} ms: its books are suspect", mismatch_ms)?;
        }
        if joining["awaits_output"] == true {
            writeln!(text, "       holds its candidacy until it has received the output up to its state copy")?;
        }
    }
    if let Some(class) = details["fitness"].as_str().filter(|class| *class != "fit") {
        writeln!(text, "       fitness reduced: {class}")?;
    }
    for channel in details["channels"].as_array().into_iter().flatten() {
        if !matches!(channel["state"].as_str(), Some("live" | "ended" | "waiting")) {
            writeln!(text, "       channel {}: {}", channel["channel"], plain_text(&channel["state"]))?;
        }
        if *field(field(channel, "input_history", "kept"), "is_truncated", "is_cut") == true {
            writeln!(
                text,
                "       channel {}: the input history no longer covers the whole session (history_bytes): a peer that \
                 rejoins must copy the state",
                channel["channel"]
            )?;
        }
    }
    Ok(())
}

pub(super) fn history(args: &HistoryArgs) -> anyhow::Result<Outcome> {
    print_answer(&args.socket, &Request::History { count: args.count }, |value, text| {
        for entry in value["entries"].as_array().into_iter().flatten() {
            let Some(fields) = entry.as_object() else { continue };
            let epoch = format!("{}.{}", entry["epoch_count"], entry["epoch_node"]);
            let (number, time, group) = (&entry["number"], time_text(&entry["time_ns"]), &entry["group"]);
            let event = plain_text(&entry["event"]).replace('_', " ");
            write!(text, "{number:>6} {time} group {group} epoch {epoch:<8} {event:<12}")?;
            for (key, value) in fields.iter().filter(|(key, _)| !COLUMN_KEYS.contains(&key.as_str())) {
                write!(text, " {key}: {}", plain_text(value))?;
            }
            writeln!(text)?;
            for channel in entry["channels"].as_array().into_iter().flatten() {
                writeln!(text, "{:>6} {}", "", channel_text(channel))?;
            }
        }
        Ok(())
    })
}

/// A field by its name, or by the name that version 0.1.0 gives it in answers and audit files.
fn field<'a>(value: &'a Value, name: &str, old_name: &str) -> &'a Value {
    value.get(name).unwrap_or_else(|| &value[old_name])
}

/// One channel of a takeover entry as a line of text.
fn channel_text(channel: &Value) -> String {
    let position_text = |position: &Value| match position {
        Value::Null => "nothing".to_owned(),
        _ => format!("{} of {}", position["sequence"], plain_text(&position["session"])),
    };
    let blackout = match channel["blackout_ns"].as_u64() {
        Some(ns) => format!("blackout {}.{:03} ms", ns / 1_000_000, ns / 1_000 % 1_000),
        None => "blackout unknown".to_owned(),
    };
    format!(
        "channel {}: {blackout}; old leader's output received through {}, own input through {}, {} packets republished",
        channel["channel"],
        position_text(field(channel, "received_through", "heard")),
        position_text(field(channel, "resumed_at", "ready")),
        field(channel, "republished_packets", "sent_again_packets")
    )
}

/// Date and time, UTC, with milliseconds.
fn time_text(time_ns: &Value) -> String {
    let Some(ns) = time_ns.as_i64() else { return time_ns.to_string() };
    let Ok(time) = OffsetDateTime::from_unix_timestamp(ns.div_euclid(1_000_000_000)) else { return ns.to_string() };
    let (date, (hour, minute, second)) = (time.date(), time.to_hms());
    let ms = ns.rem_euclid(1_000_000_000) / 1_000_000;
    format!("{date} {hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

pub(super) fn hand_over(args: &HandOverArgs) -> anyhow::Result<Outcome> {
    print_answer(
        &args.group_args.socket,
        &Request::HandOver { group: args.group_args.group, target: args.to },
        |value, text| Ok(writeln!(text, "group {}: leader is {}", value["group"], leader(&value["leader"]))?),
    )
}

pub(super) fn set_pin(args: &GroupArgs, is_pinned: bool) -> anyhow::Result<Outcome> {
    let group = args.group;
    let request = if is_pinned { Request::Pin { group } } else { Request::Unpin { group } };
    print_answer(&args.socket, &request, |value, text| {
        let state = if is_pinned { "is pinned (no automatic moves)" } else { "is unpinned (automatic moves allowed)" };
        Ok(writeln!(text, "leadership of group(s) {} {state}", value["groups"])?)
    })
}

pub(super) fn admit(args: &AdmitArgs) -> anyhow::Result<Outcome> {
    warn("an admitted gateway can become leader: make sure that no other gateway has this name or number");
    let request = Request::Admit { group: args.group_args.group, node: args.node, name: args.name.clone() };
    print_answer(&args.group_args.socket, &request, |_, text| {
        Ok(writeln!(text, "node {} {} is admitted", args.node, args.name)?)
    })
}

/// Sends the request and prints the answer, or [that it was refused](refused).
fn print_answer(
    args: &Socket,
    request: &Request,
    table: impl FnOnce(&Value, &mut String) -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    print_completed(args, request, |_| {}, table)
}

/// [`print_answer`] for an answer that `complete` adds to.
fn print_completed(
    args: &Socket,
    request: &Request,
    complete: impl FnOnce(&mut Value),
    table: impl FnOnce(&Value, &mut String) -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let mut value = match send_request(&args.socket, request) {
        Ok(value) => value,
        Err(ControlError::Refused(reason)) => return refused(args.json, &reason, &reason),
        Err(error) => return Err(error.into()),
    };
    complete(&mut value);
    let mut text = String::new();
    if args.json {
        writeln!(text, "{value}")?;
    } else {
        table(&value, &mut text)?;
    }
    print(&text)?;
    Ok(Outcome::Done)
}

pub(super) fn leader(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        member => format!("{} (node {})", plain_text(&member["name"]), member["node"]),
    }
}

/// A JSON value as table text: strings without quotes, null as empty text.
fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

/// Keys of an audit entry that are printed in columns of their own.
const COLUMN_KEYS: [&str; 8] = ["number", "time_ns", "group", "node", "epoch_count", "epoch_node", "event", "channels"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_groups_are_listed_with_leaders_and_loads_within_80_columns() {
        let group = |group: u16, node: u8, role: &str, channels: usize| {
            json!({
                "group": group, "role": role, "epoch": { "count": 1_234 + u64::from(group), "node": node },
                "leader": { "name": format!("gateway-{node}"), "node": node }, "connection": "reconnected",
                "pinned": group == 2, "ineligible_reason": (group == 3).then_some("it takes over state from its peer"),
                "details": { "channels": vec![json!({ "channel": 1, "state": "live" }); channels], "fitness": "fit" },
            })
        };
        let value = json!({
            "node": 1, "groups": [group(1, 1, "leader", 3), group(2, 2, "candidate", 1), group(3, 2, "ineligible", 12)],
        });
        let mut text = String::new();
        write_groups(&value, &mut text).unwrap();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect_test::expect![[r#"
            group  leader                     epoch channels  here       connection
            1      gateway-1 (node 1)          1235        3  leader     reconnected
            2      gateway-2 (node 2)          1236        1  candidate  reconnected, pinned
            3      gateway-2 (node 2)          1237       12  ineligible reconnected
                   not eligible: it takes over state from its peer

            gateway-1 (node 1)              groups: 1, channels: 3
            gateway-2 (node 2)              groups: 2, channels: 13
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_leader_whose_fence_has_closed_knows_no_leader_and_blames_no_voter() {
        let group = json!({
            "group": 1, "role": "leader", "has_leadership": false, "epoch": { "count": 7, "node": 1 }, "leader": null,
            "connection": "connected", "pinned": false, "details": { "channels": [], "fitness": "fit" },
            "election_stalled": true,
            "voters": [{ "node": 3, "name": "witness-3", "answers": null, "answered_ms_ago": 30_000 }],
        });
        let mut text = String::new();
        write_groups(&json!({ "node": 1, "groups": [group] }), &mut text).unwrap();
        expect_test::expect![[r#"
            group  leader                     epoch channels  here       connection
            1      unknown                        7        0  no lease   connected
                   was the leader: the fence is closed, since its lease ended or its election thread is stuck
                   the election thread here is stuck: what is shown of the group is old, and whether its voters answer is unknown
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_leader_whose_lease_has_ended_is_none_and_named_as_the_last_one() {
        let group = json!({
            "group": 1, "role": "ineligible", "has_leadership": false, "epoch": { "count": 7, "node": 2 }, "leader": null,
            "last_leader": { "name": "gw2", "node": 2 }, "connection": "connected", "pinned": false,
            "ineligible_reason": "the output is not received", "details": { "channels": [], "fitness": "fit" },
        });
        let shown = |node: u8| {
            let mut text = String::new();
            write_groups(&json!({ "node": node, "groups": [group] }), &mut text).unwrap();
            text
        };
        assert!(shown(2).contains("no leader: this gateway was the last one, and its fence is closed\n"));
        expect_test::expect![[r#"
            group  leader                     epoch channels  here       connection
            1      none                           7        0  ineligible connected
                   no leader: the lease of gw2 (node 2), the last one, has ended as far as this gateway knows; its fence is closed or its state unknown
                   not eligible: the output is not received
        "#]]
        .assert_eq(&shown(1));
    }

    #[test]
    fn a_standby_that_cannot_know_the_leader_says_why() {
        let shown = |reason: Option<&str>| {
            let group = json!({
                "group": 1, "role": "candidate", "has_leadership": false, "epoch": { "count": 7, "node": 1 }, "leader": null,
                "last_leader": { "name": "gw1", "node": 1 }, "leader_unknown": reason, "connection": "suspended",
                "pinned": false, "ineligible_reason": null, "details": { "channels": [], "fitness": "fit" },
            });
            let mut text = String::new();
            write_groups(&json!({ "node": 2, "groups": [group] }), &mut text).unwrap();
            text
        };
        expect_test::expect![[r#"
            group  leader                     epoch channels  here       connection
            1      unknown                        7        0  candidate  suspended
                   the leader is unknown here: this gateway is not connected to its election; the last one known here was gw1 (node 1)
        "#]]
        .assert_eq(&shown(Some("this gateway is not connected to its election")));
        assert!(shown(None).contains(" none "), "nobody leads");
    }

    #[test]
    fn a_takeover_entry_is_printed_as_text() {
        let position = json!({ "session": "nasdaq-itch-5.0 2019-01-30 #0", "sequence": 17, "part": 0 });
        let channel = json!({
            "channel": 3, "received_through": position, "resumed_at": position, "blackout_ns": 84_893_530,
            "republished_packets": 2,
        });
        assert_eq!(
            channel_text(&channel),
            "channel 3: blackout 84.893 ms; old leader's output received through 17 of nasdaq-itch-5.0 2019-01-30 #0, \
             own input through 17 of nasdaq-itch-5.0 2019-01-30 #0, 2 packets republished"
        );
        let nothing = json!({ "channel": 1, "republished_packets": 0 });
        assert!(channel_text(&nothing).contains("blackout unknown; old leader's output received through nothing"));
        let old_names = json!({
            "channel": 3, "heard": position, "ready": position, "blackout_ns": 84_893_530, "sent_again_packets": 2,
        });
        assert_eq!(channel_text(&old_names), channel_text(&channel), "audit files of version 0.1.0");
    }

    #[test]
    fn a_status_lists_abnormal_conditions() {
        let conditions = |details: &Value| {
            let mut text = String::new();
            write_condition(details, &mut text).unwrap();
            text
        };
        let channel = |is_truncated: bool| json!({ "channel": 3, "state": "live", "input_history": { "is_truncated": is_truncated } });
        let well = json!({ "fitness": "fit", "allows_split_brain": false, "channels": [channel(false)] });
        assert_eq!(conditions(&well), "");
        for name in ["allows_split_brain", "may_split"] {
            assert!(conditions(&json!({ name: true })).contains("split brain is allowed (backend emergent)"), "{name}");
        }
        assert!(
            conditions(&json!({ "channels": [channel(true)] }))
                .contains("channel 3: the input history no longer covers the whole session (history_bytes)")
        );
        let joining = json!({
            "eligibility": "joining", "behind_messages": 0, "channels_missing": 0, "caught_up_ms": 900,
            "content_mismatch_ms": 0, "awaits_output": true,
        });
        assert_eq!(
            conditions(&json!({ "joining": joining })),
            "       joining: 0 messages behind its peer, 0 channels missing, caught up for 900 ms\n       \
             holds its candidacy until it has received the output up to its state copy\n"
        );
    }

    #[test]
    fn a_status_lists_what_listeners_have_refused() {
        let refusals = |value: &Value| {
            let mut text = String::new();
            write_refusals(value, &mut text).unwrap();
            text
        };
        let listeners = json!([
            { "name": "votes", "received": 9, "refused": { "forged": 2, "malformed": 3 } },
            { "name": "pair_link", "received": 1, "refused": {} },
        ]);
        let shown = refusals(&json!({ "node": 1, "listeners": listeners }));
        assert_eq!(shown, "listener votes: 9 received, 5 refused: 2 forged, 3 malformed\n");
        assert_eq!(refusals(&json!({ "node": 1 })), "");
    }

    #[test]
    fn times_are_printed_in_utc() {
        assert_eq!(time_text(&json!(1_548_835_200_123_456_789_i64)), "2019-01-30 08:00:00.123Z");
        assert_eq!(time_text(&json!("?")), "\"?\"");
    }
}
