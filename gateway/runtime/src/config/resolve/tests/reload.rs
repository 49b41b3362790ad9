//! What a reload may change.

use mdgw_engine::dispatch::DispatchModel;
use mdgw_feeds::identity::{ChannelId, GroupId};

use super::{MINIMAL, load, with_edit, with_file_election};
use crate::config::{
    Changes, OutputLines, Resolved,
    resolved::{LogLevel, OutputLine},
};

#[test]
fn a_reload_changes_only_reloadable_keys() {
    let old = load(MINIMAL).unwrap();
    assert_eq!(Resolved::diff_reloadable(&old, &old), Ok(Changes::default()));
    let new = load(&format!(
        "{}[log]\nlevel = \"debug\"\n[latency]\ninterval_ms = 500\n",
        with_edit("127.0.0.0/8", "10.0.0.0/8")
    ))
    .unwrap();
    let changes = Resolved::diff_reloadable(&old, &new).unwrap();
    assert_eq!(
        (changes.log.map(|log| log.level), changes.latency_interval_ns),
        (Some(LogLevel::Debug), Some(500_000_000))
    );
    assert_eq!(changes.retransmission.unwrap().allowed, ["10.0.0.0/8".parse().unwrap()]);

    let new = load(&with_edit("cores = [2]", "cores = [3]").replace("[\"127.0.0.0/8\"]", "[]")).unwrap();
    let refused = Resolved::diff_reloadable(&old, &new).unwrap_err();
    let refused: Vec<String> =
        refused.iter().map(|change| format!("{} {:?} {:?}", change.key, change.old, change.new)).collect();
    assert_eq!(refused, ["pool.main.cores Some(\"[2]\") Some(\"[3]\")"]);
}

/// Other processes read these tables.
#[test]
fn a_reload_ignores_the_tables_of_other_programs() {
    let tables = "[live]\nlisten = \"127.0.0.1:13000\"\nkey_file = \"/k\"\n[mirror]\nadmin_listen = \"/run/m\"\n[journal]\ndirectory = \"/j\"\n";
    let [without, with] = [MINIMAL.to_owned(), format!("{MINIMAL}{tables}")].map(|text| load(&text).unwrap());
    let changed = load(&format!("{MINIMAL}{}retention_days = 3\n", tables.replace("/k", "/l"))).unwrap();
    for [old, new] in [[&without, &with], [&with, &changed], [&changed, &without]] {
        assert_eq!(Resolved::diff_reloadable(old, new), Ok(Changes::default()));
    }
}

/// [`MINIMAL`] with a second channel of these numbers in its group.
fn with_channel(id: u16, group: u16) -> String {
    format!(
        "{MINIMAL}\n[[channel]]\nid = {id}\nname = \"more\"\nfeed = \"iex-tops-1.6\"\ngroup = {group}\n\
         [[channel.line]]\ngroup = \"233.54.12.77:26477\"\ninterface = \"lo\"\n"
    )
}

fn refusals(old: &Resolved, new: &Resolved) -> Vec<String> {
    let refused = Resolved::diff_reloadable(old, new).unwrap_err();
    refused.iter().map(ToString::to_string).collect()
}

#[test]
fn a_reload_adds_and_removes_whole_channels() {
    let one = load(MINIMAL).unwrap();
    let (id, group) = (one.channels[0].id.0, one.channels[0].group.0);
    let two = load(&with_channel(id + 1, group)).unwrap();
    let added = Changes { added: vec![ChannelId(id + 1)], ..Changes::default() };
    assert_eq!(Resolved::diff_reloadable(&one, &two), Ok(added));
    let removed = Changes { removed: vec![ChannelId(id + 1)], ..Changes::default() };
    assert_eq!(Resolved::diff_reloadable(&two, &one), Ok(removed));

    for fixed in [DispatchModel::HalfSync, DispatchModel::Reactor] {
        let [one, two] = [&one, &two].map(|config| {
            let mut config = config.clone();
            config.pools[0].dispatch = fixed;
            config
        });
        for refused in [refusals(&one, &two), refusals(&two, &one)] {
            assert_eq!(
                refused,
                ["channel.more: the channels of pool \"main\" are fixed at the start, by its key `dispatch`"]
            );
        }
    }

    let mut renamed = one.clone();
    renamed.channels[0].name = "other".to_owned();
    let refused = refusals(&one, &renamed);
    assert!(refused.iter().any(|text| text.contains("channel.other: its id")), "{refused:?}");
    let last = format!("it is the last channel of group {group}: ");
    assert!(refused.iter().any(|text| text.contains(&format!("{last}keep the channel, or restart"))), "{refused:?}");
    let mut replaced = two.clone();
    replaced.channels.remove(0);
    let reason = format!(
        "channel.{}: {last}add the new one by a reload first, then remove this one by the next",
        one.channels[0].name
    );
    assert_eq!(refusals(&one, &replaced), [reason]);
    let refused = refusals(&one, &load(&with_channel(id + 1, group + 1)).unwrap());
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("channel.more: group") && refused[0].contains("needs a restart"), "{refused:?}");
    let refused = refusals(&two, &load(&with_channel(id + 2, group)).unwrap());
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("channel.more.id: "), "{refused:?}");
}

#[test]
fn a_reload_adds_and_removes_output_lines_but_changes_none() {
    let one = load(MINIMAL).unwrap();
    let [old_line] = one.outputs[0].lines.as_slice() else { panic!("one line") };
    let further = OutputLine { address: "239.77.7.7:7007".parse().unwrap(), ..old_line.clone() };
    let with_lines = |lines: &[&OutputLine]| {
        let mut config = one.clone();
        config.outputs[0].lines = lines.iter().map(|line| (*line).clone()).collect();
        config
    };
    let changed = |new: &Resolved| Resolved::diff_reloadable(&one, new).unwrap().outputs;
    let groups = one.outputs[0].groups.clone();
    let lines = |added: &[&OutputLine], removed: &[&OutputLine]| {
        let [added, removed] = [added, removed].map(|lines| lines.iter().map(|line| (*line).clone()).collect());
        vec![OutputLines { groups: groups.clone(), added, removed }]
    };
    assert_eq!(changed(&with_lines(&[&further, old_line])), lines(&[&further], &[]), "whatever the order");
    assert_eq!(changed(&with_lines(&[&further])), lines(&[&further], &[old_line]));
    let both = with_lines(&[old_line, &further]);
    assert_eq!(Resolved::diff_reloadable(&both, &one).unwrap().outputs, lines(&[], &[&further]));

    let refused = refusals(&one, &with_lines(&[&OutputLine { ttl: old_line.ttl + 1, ..old_line.clone() }]));
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains(".line[0].ttl: "), "{refused:?}");
    let mut other_group = one.clone();
    other_group.outputs[0].groups.push(GroupId(99));
    let refused = refusals(&one, &other_group);
    let of = |prefix: &str| refused.iter().filter(|text| text.starts_with(prefix)).count();
    assert_eq!(
        (refused.len(), of("output.1: a reload neither removes"), of("output.1+99: a new output")),
        (2, 1, 1),
        "{refused:?}"
    );
}

#[test]
fn a_key_that_is_fixed_at_the_start_is_refused_with_the_reason() {
    let one = load(MINIMAL).unwrap();
    let mut other = one.clone();
    other.channels[0].book.orders_max += 1;
    other.outputs[0].heartbeat_ns += 1_000_000;
    other.pools[0].spare_channels += 1;
    other.gateway.retention_bytes += 1;
    let refused = refusals(&one, &other);
    let reasons = [
        "needs a restart, since a running channel keeps its settings (remove it by one reload",
        "since its files and its memory are opened at the start",
        "needs a restart, since the other gateway and receivers rely on it",
        "since the pool's threads and their buffers are made at the start; 2 remains in effect",
    ];
    assert_eq!(refused.len(), reasons.len(), "{refused:#?}");
    for (text, reason) in refused.iter().zip(reasons) {
        assert!(text.contains(reason) && text.contains("needs a restart, since "), "{text}");
    }
}

#[test]
fn in_a_pair_a_reload_of_channels_raises_the_revision_and_one_output_line_stays() {
    let loaded = |revision: u64, channel: &str| {
        let text = with_file_election(&format!("revision = {revision}"));
        load(&format!("{text}\n{channel}")).unwrap()
    };
    let channel = with_channel(2, 1).split_once(MINIMAL).unwrap().1.to_owned();
    let (one, two) = (loaded(3, ""), loaded(3, &channel));
    let refused = refusals(&one, &two);
    assert_eq!(refused, ["election.revision: must be above 3 in a reload that adds or removes channels"]);
    assert_eq!(Resolved::diff_reloadable(&one, &loaded(4, &channel)).unwrap().added, [ChannelId(2)]);
    assert_eq!(Resolved::diff_reloadable(&two, &loaded(4, "")).unwrap().removed, [ChannelId(2)]);
    assert!(Resolved::diff_reloadable(&one, &loaded(4, "")).is_ok());
    assert!(
        refusals(&one, &loaded(2, ""))[0]
            .starts_with("election.revision: 2 needs a restart, since it can only be raised")
    );

    let mut moved = one.clone();
    moved.outputs[0].lines[0].address = "239.77.7.7:7007".parse().unwrap();
    assert!(refusals(&one, &moved)[0].contains("at least one line must stay"));
    moved.outputs[0].lines.push(one.outputs[0].lines[0].clone());
    assert_eq!(Resolved::diff_reloadable(&one, &moved).unwrap().outputs.len(), 1);
}

#[test]
fn a_reload_neither_starts_nor_ends_the_retransmission_service() {
    let old = load(MINIMAL).unwrap();
    let new = load(MINIMAL.split_once("[retransmission]").unwrap().0).unwrap();
    assert!(Resolved::diff_reloadable(&old, &new).is_err());
    assert!(Resolved::diff_reloadable(&new, &old).is_err());
}
