//! What a reload may change.

use mdgw_election::identity::NodeId;
use mdgw_engine::dispatch::DispatchModel;
use mdgw_feeds::identity::{ChannelId, GroupId};

use super::{MINIMAL, load, with_edit, with_file_election};
use crate::config::{
    Changed, Changes, OutputLines, Refused, Resolved, WHOLE_LINE,
    resolved::{Backend, ChannelSetup, ElectionConfig, LineConfig, LogLevel, OutputLine},
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
    // Beside another channel of the group, the old one may go first.
    let mut renamed_of_two = two.clone();
    renamed_of_two.channels[1].name = "other".to_owned();
    let [of_two] = &refusals(&two, &renamed_of_two)[..] else { panic!() };
    assert!(
        of_two.ends_with("give the new channel another id, or remove that one by a reload of its own first"),
        "{of_two}"
    );
    let last = format!("it is the last channel of group {group}: ");
    assert!(refused.iter().any(|text| text.contains(&format!("{last}keep the channel, or restart"))), "{refused:?}");
    let mut replaced = two.clone();
    replaced.channels.remove(0);
    let reason = format!(
        "channel.{}: {last}add the new one by a reload first, if its pool has a spare slot, then remove this one by the next",
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

/// The configuration of `old` beside the channels of `added`, and then without the channel called `removed`.
fn is_done_by_two_reloads(old: &Resolved, added: &ChannelSetup, removed: &str) -> bool {
    let mut both = old.clone();
    both.channels.push(added.clone());
    let mut last = both.clone();
    last.channels.retain(|channel| channel.name != removed);
    let is_shared = |line: &LineConfig| {
        old.channels.iter().flat_map(|channel| &channel.lines).any(|of_old| of_old.receives_the_same_as(line))
    };
    // `mdgw check` refuses a file with two such lines.
    !added.lines.iter().any(is_shared)
        && Resolved::diff_reloadable(old, &both).is_ok()
        && Resolved::diff_reloadable(&both, &last).is_ok()
}

#[test]
fn the_only_channel_of_a_group_is_renamed_by_a_restart_unless_its_lines_differ() {
    let one = load(MINIMAL).unwrap();
    let renamed = |change: fn(&mut ChannelSetup)| {
        let mut config = one.clone();
        config.channels[0].name = "other".to_owned();
        change(&mut config.channels[0]);
        config
    };
    let advice = |old: &Resolved, new: &Resolved, channel: &str| {
        let table = format!("channel.{channel}: ");
        let refused = refusals(old, new);
        let found = refused.iter().find_map(|text| text.strip_prefix(&table));
        found.unwrap_or_else(|| panic!("{refused:?}")).to_owned()
    };
    let with_id_9 = |config: &Resolved| ChannelSetup { id: ChannelId(9), ..config.channels[0].clone() };
    let other_line = |channel: &mut ChannelSetup| channel.lines[0].group.set_port(26_478);

    let taken = "its id 1 is that of channel \"nasdaq\", which no reload can remove first: restart the gateway";
    let because =
        "no reload can add the new one first, since its line 233.54.12.111:26477 on lo is that of channel \"nasdaq\"";
    let same_lines = renamed(|_| {});
    assert_eq!(advice(&one, &same_lines, "other"), format!("{taken} ({because})"));
    assert!(!is_done_by_two_reloads(&one, &with_id_9(&same_lines), "nasdaq"));
    let other_lines = renamed(other_line);
    assert_eq!(
        advice(&one, &other_lines, "other"),
        format!(
            "{taken}, or add the new channel with another id by a reload first, if its pool has a spare slot, and then remove \
             \"nasdaq\" by the next"
        )
    );
    assert!(is_done_by_two_reloads(&one, &with_id_9(&other_lines), "nasdaq"));

    // With another id: the refusal is that of the channel that goes.
    let last = "it is the last channel of group 1: ";
    let same_lines = renamed(|channel| channel.id = ChannelId(9));
    assert_eq!(advice(&one, &same_lines, "nasdaq"), format!("{last}restart the gateway to replace it ({because})"));
    let mut other_lines = same_lines.clone();
    other_line(&mut other_lines.channels[0]);
    let way = "add the new one by a reload first, if its pool has a spare slot, then remove this one by the next";
    assert_eq!(advice(&one, &other_lines, "nasdaq"), format!("{last}{way}"));
    assert!(is_done_by_two_reloads(&one, &other_lines.channels[0], "nasdaq"));
    // Either line of a venue is enough to be in the way, and disjoint senders are two lines.
    let mut sources = same_lines.clone();
    sources.channels[0].lines[0].sources = vec!["192.0.2.1".parse().unwrap()];
    assert!(advice(&one, &sources, "nasdaq").contains("restart the gateway to replace it"));
    let mut of_sender = one.clone();
    of_sender.channels[0].lines[0].sources = vec!["192.0.2.2".parse().unwrap()];
    assert_eq!(advice(&of_sender, &sources, "nasdaq"), format!("{last}{way}"));

    // No slot, so no reload adds a channel.
    let without_slots = |config: &Resolved| {
        let mut config = config.clone();
        config.pools[0].spare_channels = 0;
        config
    };
    let why = "(no reload can add the new one first, since pool \"main\" has spare_channels = 0)";
    let refused = advice(&without_slots(&one), &without_slots(&other_lines), "nasdaq");
    assert_eq!(refused, format!("{last}restart the gateway to replace it {why}"));
    let other_lines = renamed(other_line);
    let refused = advice(&without_slots(&one), &without_slots(&other_lines), "other");
    assert_eq!(refused, format!("{taken} {why}"));
}

/// Each way is tried that the refusal of a channel with a used id names.
#[test]
fn a_channel_that_takes_the_id_of_another_gets_only_advice_that_works() {
    let (id, more) = (load(MINIMAL).unwrap().channels[0].id.0 + 1, "more");
    let two = load(&with_channel(id, 1)).unwrap();
    let renamed = |address: &str| {
        let mut config = two.clone();
        config.channels[1].name = "other".to_owned();
        config.channels[1].lines[0].group = address.parse().unwrap();
        config
    };
    let [of_more, unicast] = ["233.54.12.77:26477", "127.0.0.1:26477"];
    let remove = "remove that one by a reload of its own first";
    let text = |old: &Resolved, new: &Resolved| {
        let [refused] = &refusals(old, new)[..] else { panic!() };
        refused.strip_prefix("channel.other: its id 2 is that of channel \"more\": ").unwrap().to_owned()
    };
    assert_eq!(text(&two, &renamed(of_more)), format!("give the new channel another id, or {remove}"));
    let mut with_unicast = two.clone();
    with_unicast.channels[1].lines[0].group = unicast.parse().unwrap();
    // The reload would bind the address while the other channel has it.
    assert_eq!(text(&with_unicast, &renamed(unicast)), remove);
    let without = Resolved { channels: vec![two.channels[0].clone()], ..two.clone() };
    assert!(Resolved::diff_reloadable(&with_unicast, &without).is_ok());
    assert!(Resolved::diff_reloadable(&without, &renamed(unicast)).is_ok());
    let mut another_id = renamed(of_more);
    another_id.channels[1].id = ChannelId(9);
    let changes = Resolved::diff_reloadable(&two, &another_id).unwrap();
    assert_eq!((changes.added, changes.removed), (vec![ChannelId(9)], vec![two.channels[1].id]), "{more}");
}

/// The defaults of some keys follow from other keys.
#[test]
fn a_refused_reload_names_no_key_that_only_follows_another() {
    let keys = |old: &str, new: &str| {
        let refused = Resolved::diff_reloadable(&load(old).unwrap(), &load(new).unwrap()).unwrap_err();
        refused.into_iter().map(|refused| refused.key).collect::<Vec<_>>()
    };
    let with_wait = |wait: &str| with_edit("wait = \"spin\"", wait);
    let [spin, park] = [MINIMAL.to_owned(), with_wait("wait = \"park\"")];
    let values = [&spin, &park].map(|text| load(text).unwrap().pools[0].promotion);
    assert_ne!(values[0], values[1], "the default follows `wait`");
    assert_eq!(keys(&spin, &park), ["pool.main.wait"]);
    // Both are named where the file has both.
    let written = with_wait("wait = \"park\"\npromotion = \"strict\"");
    let eager = with_wait("wait = \"park\"\npromotion = \"lazy\"");
    assert_eq!(keys(&written, &eager), ["pool.main.promotion"]);

    let dispatch = with_wait("wait = \"spin\"\ndispatch = \"reactor\"");
    assert_eq!(keys(&spin, &dispatch), ["pool.main.dispatch"]);
    let two_slots = with_wait("wait = \"spin\"\nspare_channels = 3");
    assert_eq!(keys(&two_slots, &dispatch), ["pool.main.dispatch", "pool.main.spare_channels"]);
    let feed = with_edit("nasdaq-itch-5.0", "iex-tops-1.6");
    assert_eq!(keys(&spin, &feed), ["channel.nasdaq.feed"]);
    let [election, margin] = [with_file_election("margin_ms = 10"), with_file_election("margin_ms = 12")];
    assert_eq!(keys(&election, &margin), ["election.margin_ms"]);
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
    assert!(
        refused[0].starts_with("output.1.line 239.1.1.1:31000 on lo.ttl: 2 needs a restart, since a line keeps"),
        "{refused:?}"
    );
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
        "needs a restart, since a running channel keeps its settings, and two reloads cannot remove it and add it again: it is the last channel of group 1; ",
        "since its files and its memory are opened at the start",
        "needs a restart, since the other gateway and receivers rely on it",
        "since the pool's threads and their buffers are made at the start; 2 remains in effect",
    ];
    assert_eq!(refused.len(), reasons.len(), "{refused:#?}");
    for (text, reason) in refused.iter().zip(reasons) {
        assert!(text.contains(reason) && text.contains("needs a restart, since "), "{text}");
    }
}

/// The only refusal of a reload from `old` to the same with `change`.
fn refusal_of(old: &Resolved, change: impl FnOnce(&mut Resolved)) -> String {
    let mut new = old.clone();
    change(&mut new);
    let mut refused = refusals(old, &new);
    assert_eq!(refused.len(), 1, "{refused:#?}");
    refused.remove(0)
}

const BY_TWO_RELOADS: &str = "(remove it by one reload and add it with the new value by the next)";

#[test]
fn the_way_by_two_reloads_is_named_only_where_it_works() {
    let one = load(MINIMAL).unwrap();
    let (id, group) = (one.channels[0].id.0, one.channels[0].group);
    let two = load(&with_channel(id + 1, group.0)).unwrap();
    let orders = |config: &mut Resolved| config.channels[0].book.orders_max += 1;
    let refused = refusal_of(&two, orders);
    assert!(refused.contains(&format!("keeps its settings {BY_TWO_RELOADS}; ")), "{refused}");
    // The way that is named.
    let without = Resolved { channels: vec![two.channels[1].clone()], ..two.clone() };
    let mut again = two.clone();
    orders(&mut again);
    assert!(Resolved::diff_reloadable(&two, &without).is_ok() && Resolved::diff_reloadable(&without, &again).is_ok());

    let no_way = |refused: &str, reason: &str| {
        let text = format!("keeps its settings, and two reloads cannot remove it and add it again: {reason}; ");
        assert!(refused.contains(&text) && !refused.contains(BY_TWO_RELOADS), "{refused}");
    };
    no_way(&refusal_of(&one, orders), "it is the last channel of group 1");
    let refused = refusal_of(&two, |config| config.channels[1].group = GroupId(7));
    no_way(&refused, "group 7 has no channel yet, and a new group needs a restart");
    let mut fixed = two.clone();
    fixed.pools[0].dispatch = DispatchModel::Reactor;
    no_way(&refusal_of(&fixed, orders), "the channels of pool \"main\" are fixed at the start, by its key `dispatch`");
    let mut pools = two.clone();
    pools.pools.push(pools.pools[0].clone());
    pools.pools[1].name = "idle".to_owned();
    no_way(&refusal_of(&pools, |config| config.channels[0].pool = 1), "pool \"idle\" has no channel, and may not run");

    let ttl = |config: &mut Resolved| config.outputs[0].lines[0].ttl += 1;
    no_way(&refusal_of(&one, ttl), "it is the only line of its output");
    let further = |config: &Resolved| {
        let mut config = config.clone();
        let line = OutputLine { address: "239.77.7.7:7007".parse().unwrap(), ..config.outputs[0].lines[0].clone() };
        config.outputs[0].lines.push(line);
        config
    };
    let refused = refusal_of(&further(&one), ttl);
    assert!(refused.contains(&format!("a line keeps its settings {BY_TWO_RELOADS}; ")), "{refused}");
    let mut fenced = further(&load(&with_file_election("")).unwrap());
    fenced.election.as_mut().unwrap().kernel_fence = true;
    no_way(&refusal_of(&fenced, ttl), "with the kernel fence no reload adds a line");
}

#[test]
fn each_key_of_an_election_is_refused_for_its_own_reason() {
    let old = load(&with_file_election("")).unwrap();
    let reason = |change: fn(&mut ElectionConfig)| {
        let refused = refusal_of(&old, |config| change(config.election.as_mut().unwrap()));
        let (_, reason) = refused.split_once(" needs a restart, since ").unwrap();
        reason.split(';').next().unwrap().to_owned()
    };
    let promised = "the gateway has made promises to the others by it";
    let taken = "the election takes it at its start";
    assert_eq!(reason(|election| election.timing.lease_ns += 1_000_000), promised);
    assert_eq!(reason(|election| election.backend = Backend::File("/other".into())), promised);
    assert_eq!(reason(|election| election.tenure_ns += 1_000_000), taken);
    assert_eq!(reason(|election| election.preferred = Some(NodeId(7))), taken);
    assert_eq!(reason(|election| election.spread = !election.spread), taken);
    assert_eq!(reason(|election| election.core = Some(9)), "the threads of the election are started with it");
    assert_eq!(reason(|election| election.kernel_fence = true), "the kernel fence is attached at the start");
    for (key, expected) in [
        ("election.link.hang_limit_ms", "the sentinel takes it at the start"),
        ("election.link.listen", "the connections to the other gateways are opened at the start"),
        ("election.link.key_file", "it is read at the start only"),
        ("election.etcd.endpoints", "the connection to the store is opened at the start"),
        ("election.quorum.voter.3.address", promised),
        ("election.peer.2.name", promised),
        ("gateway.node", "the other gateway and receivers know this one by it"),
    ] {
        let refused = Refused { key: key.to_owned(), old: None, new: None, reason: None, anew: String::new() };
        assert_eq!(
            refused.to_string(),
            format!("{key}: unset needs a restart, since {expected}; unset remains in effect")
        );
    }
}

/// The number of a line changes when another line goes.
#[test]
fn output_lines_that_come_and_go_are_named_by_their_address() {
    let mut two = load(MINIMAL).unwrap();
    let first = two.outputs[0].lines[0].clone();
    let further = OutputLine { address: "239.77.7.7:7007".parse().unwrap(), ..first.clone() };
    two.outputs[0].lines.push(further.clone());
    let mut removed = two.clone();
    removed.outputs[0].lines.remove(0);
    let entry = |line: &OutputLine, old: Option<&str>, new: Option<&str>| Changed {
        key: format!("output.1.line {} on {}", line.address, line.interface),
        old: old.map(str::to_owned),
        new: new.map(str::to_owned),
    };
    assert_eq!(Resolved::changed_settings(&two, &removed), [entry(&first, Some(WHOLE_LINE), None)]);
    assert_eq!(Resolved::changed_settings(&removed, &two), [entry(&first, None, Some(WHOLE_LINE))]);
    let mut swapped = two.clone();
    swapped.outputs[0].lines.reverse();
    assert_eq!(Resolved::changed_settings(&two, &swapped), []);
    let mut lower = two.clone();
    lower.outputs[0].lines[1].ttl += 1;
    let [changed] = Resolved::changed_settings(&two, &lower).try_into().unwrap();
    assert_eq!(changed.key, format!("{}.ttl", entry(&further, None, None).key));
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
