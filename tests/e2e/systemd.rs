//! The shipped unit under a real systemd: the end of the start, the watchdog with its restart, the stop, and the fields in a
//! real journal. A pair of which the leader stalls.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::wait_until,
    service_unit::ops,
    systemd::{Systemd, shipped_unit},
};
use serde_json::Value;

#[test]
fn systemd_waits_for_the_start_restarts_a_stalled_gateway_and_has_its_alarms_in_the_journal() {
    let test = "systemd_waits_for_the_start_restarts_a_stalled_gateway_and_has_its_alarms_in_the_journal";
    let fixture = GatewayFixture::new();
    let itch = GatewayOptions::itch();
    let channel = format!("{}line_silence_ms = 300\n", itch.channel);
    let config = fixture.config_text(&GatewayOptions { channel, ..itch });
    // Where the unit may write.
    let directory = fixture.path("state.json");
    let directory = text(directory.parent().unwrap());
    let config = ["state.json", "latency"]
        .iter()
        .fold(config, |config, name| config.replace(&format!("{directory}/{name}"), &format!("/var/lib/mdgw/{name}")));
    let config = config.replace(&format!("{directory}/log"), "/dev/shm/mdgw");
    let config = config.replacen("[gateway]\n", "[gateway]\ncontrol_socket = \"/run/mdgw/control\"\n", 1);
    // The unit's own limit of starts would take two minutes.
    let shorter = "[Unit]\nStartLimitBurst=5\n[Service]\nWatchdogSec=2\n";
    let files = [("mdgw.toml", config.as_str()), ("mdgw.service.d/shorter.conf", shorter)];
    let Some(systemd) = Systemd::boot(test, "mdgw.service", &files) else { return };
    let property = |name: &str| systemd.property("mdgw.service", name);

    let started = systemd.run(&["systemctl", "start", "mdgw.service"]);
    let why = || format!("{started:?}\n{:#?}\n{}", systemd.journal(&[]), systemd.log());
    assert!(started.status.success(), "{}", why());
    // The command has waited until the lines were known to be silent.
    assert_eq!(property("StatusText"), "standalone; 0 of 1 channels live, one is waiting (the venue sends nothing)");
    assert_eq!(property("WatchdogUSec"), "2s");
    let mut alarms = Vec::new();
    wait_until("the alarm is in the journal", || {
        alarms = systemd.journal(&["--unit=mdgw.service", "MDGW_ALARM=line-silent", "MDGW_LINE=A"]);
        !alarms.is_empty()
    });
    let [alarm] = &alarms[..] else { panic!("{alarms:?}") };
    assert_eq!((&alarm["PRIORITY"], &alarm["MDGW_CHANNEL"]), (&"4".into(), &"one".into()), "{alarm}");
    assert_eq!(alarm["SYSLOG_IDENTIFIER"], "mdgw");
    let message = "no packet and no heartbeat within line_silence_ms alarm=\"line-silent\" channel=\"one\" line=A";
    assert_eq!(alarm["MESSAGE"], message);

    let reloaded = systemd.run(&["systemctl", "reload", "mdgw.service"]);
    assert!(reloaded.status.success(), "{}", why());
    wait_until("the reload is in the journal", || {
        systemd
            .journal(&["--unit=mdgw.service"])
            .iter()
            .any(|entry| entry["MESSAGE"].as_str().is_some_and(|message| message.starts_with("configuration reloaded")))
    });
    wait_until("the unit is active again", || property("ActiveState") == "active");
    let changed = "  retransmission.requests_per_second: 10000 -> 5000";
    let edit = |script: &str| {
        let edited = systemd.run(&["sed", "-i", script, "/run/units/mdgw.toml"]);
        assert!(edited.status.success(), "{edited:?}");
    };
    let in_journal = |text: &str| {
        let entries = systemd.journal(&["--unit=mdgw.service"]);
        entries.iter().any(|entry| entry["MESSAGE"].as_str().is_some_and(|message| message.contains(text)))
    };
    edit("s/^requests_per_second = 10000$/requests_per_second = 5000/");
    assert!(systemd.run(&["systemctl", "reload", "mdgw.service"]).status.success(), "{}", why());
    wait_until("the journal has what changed", || in_journal(changed));
    // What the gateway refuses, and what is no configuration, is a failure of the command. The gateway runs on.
    for (script, undo, reason) in [
        ("s/^threads = 2$/threads = 3/", "s/^threads = 3$/threads = 2/", "needs a restart"),
        ("s/^\\[latency\\]$/[latenzy]/", "s/^\\[latenzy\\]$/[latency]/", "latenzy"),
    ] {
        edit(script);
        let refused = systemd.run(&["systemctl", "reload", "mdgw.service"]);
        assert!(!refused.status.success(), "{script}: {}", why());
        wait_until("the journal has the reason", || in_journal("nothing changed") && in_journal(reason));
        assert_eq!((property("ActiveState"), property("NRestarts")), ("active".to_owned(), "0".to_owned()));
        edit(undo);
        assert!(systemd.run(&["systemctl", "reload", "mdgw.service"]).status.success(), "{}", why());
    }

    let first = property("MainPID");
    let stopped = systemd.run(&["kill", "-STOP", &first]);
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("the watchdog has restarted the gateway", || {
        property("NRestarts") == "1" && property("ActiveState") == "active"
    });
    assert_ne!(property("MainPID"), first);
    let failures = systemd.journal(&["UNIT=mdgw.service", "UNIT_RESULT=watchdog"]);
    assert_eq!(failures.len(), 1, "{}", why());

    let stopped = systemd.run(&["systemctl", "stop", "mdgw.service"]);
    assert!(stopped.status.success(), "{}", why());
    assert_eq!((property("ActiveState"), property("Result")), ("inactive".to_owned(), "success".to_owned()));

    // A check that fails is tried some times, and then not again until somebody says so (install.md).
    let broken = systemd.run(&["sh", "-c", "echo '[no-such-table]' >>/run/units/mdgw.toml"]);
    assert!(broken.status.success(), "{broken:?}");
    assert!(!systemd.run(&["systemctl", "start", "mdgw.service"]).status.success());
    wait_until("systemd gives up", || property("ActiveState") == "failed");
    let mended = systemd.run(&["sed", "-i", "$d", "/run/units/mdgw.toml"]);
    assert!(mended.status.success(), "{mended:?}");
    assert!(!systemd.run(&["systemctl", "start", "mdgw.service"]).status.success(), "the limit holds");
    assert!(systemd.run(&["systemctl", "reset-failed", "mdgw.service"]).status.success());
    let started = systemd.run(&["systemctl", "start", "mdgw.service"]);
    assert!(started.status.success(), "{}", why());
}

/// The drop-in for readers of the logs, copied to the folder of the mirror's unit.
#[test]
fn the_mirror_gives_its_logs_to_the_readers_with_the_drop_in() {
    // A group of Debian that the user is not in.
    const GROUP: &str = "users";
    let test = "the_mirror_gives_its_logs_to_the_readers_with_the_drop_in";
    let fixture = GatewayFixture::new();
    let keys = format!("log_group = \"{GROUP}\"\n");
    let config = fixture.config_text(&GatewayOptions { gateway: keys, ..GatewayOptions::itch() });
    let config = config.replace(text(&fixture.path("log")), "/dev/shm/mdgw");
    let config = format!("{config}[mirror]\nadmin_listen = \"/run/mdgw-mirror/admin\"\n");
    let drop_in = fs::read_to_string(ops("systemd/mdgw.service.d/log-readers.conf")).unwrap();
    let drop_in = drop_in.replace("mdgw-readers", GROUP);
    let files = [("mdgw.toml", config.as_str()), ("mdgw-mirror.service.d/log-readers.conf", &drop_in)];
    let Some(systemd) = Systemd::boot(test, "mdgw-mirror.service", &files) else { return };
    let started = systemd.run(&["systemctl", "start", "mdgw-mirror.service"]);
    assert!(started.status.success(), "{started:?}\n{:#?}\n{}", systemd.journal(&[]), systemd.log());
    let paths = ["/dev/shm/mdgw", "/dev/shm/mdgw/1", "/run/mdgw-mirror/admin"];
    let shown = systemd.run(&[&["stat", "--format=%U %G %a"], &paths[..]].concat());
    let expected = format!("nobody {GROUP} 750\nnobody {GROUP} 750\nnobody nogroup 600\n");
    assert_eq!(String::from_utf8_lossy(&shown.stdout), expected);
    let stopped = systemd.run(&["systemctl", "stop", "mdgw-mirror.service"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(systemd.property("mdgw-mirror.service", "Result"), "success");
}

/// The units of a pair on one host: each has directories of its own.
const PAIR_UNITS: [&str; 2] = ["mdgw.service", "mdgw2.service"];

/// The configuration of a gateway of the pair, with its files where its unit may write.
fn config_of_unit(pair: &ElectedPair, node: u8) -> String {
    let own = pair.gateways.fixture(node).path("");
    let first = pair.gateways.fixture(1).path("");
    let unit = PAIR_UNITS[usize::from(node) - 1].trim_end_matches(".service");
    let state = ["state.json", "audit.jsonl", "latency"].map(|name| (name, format!("/var/lib/{unit}/{name}")));
    let others = [("control", format!("/run/{unit}/control")), ("log", format!("/dev/shm/{unit}"))];
    let config = pair.config_text(node);
    let shared = [("records", "/dev/shm/records"), ("key", "/run/units/key")];
    let config = shared.iter().fold(config, |config, (name, path)| config.replace(text(&first.join(name)), path));
    let config = state.iter().chain(&others).fold(config, |config, (name, path)| {
        let written = format!("\"{}\"", text(&own.join(name)));
        assert!(config.contains(&written), "{written}: {config}");
        config.replace(&written, &format!("\"{path}\""))
    });
    assert!(!config.contains(text(&own)), "a file where the unit may not write: {config}");
    config
}

#[test]
fn a_stalled_leader_is_restarted_by_its_watchdog_and_its_peer_leads() {
    let test = "a_stalled_leader_is_restarted_by_its_watchdog_and_its_peer_leads";
    let itch = GatewayOptions::itch();
    let channel = format!("{}line_silence_ms = 300\n", itch.channel);
    let pair = ElectedPair::new(GatewayOptions { channel, ..itch });
    let configs = [1, 2].map(|node| config_of_unit(&pair, node));
    let second = ["Runtime", "State", "Logs"].iter().fold(shipped_unit("mdgw.service"), |unit, kind| {
        let directory = format!("{kind}Directory=mdgw\n");
        assert!(unit.contains(&directory), "{unit}");
        unit.replace(&directory, &format!("{kind}Directory=mdgw2\n"))
    });
    let second = second.replace("/run/units/mdgw.toml", "/run/units/mdgw2.toml");
    let key = fs::read_to_string(pair.gateways.fixture(1).path("key")).unwrap();
    let watchdog = "[Service]\nWatchdogSec=2\n";
    let files = [
        ("mdgw.toml", configs[0].as_str()),
        ("mdgw2.toml", &configs[1]),
        ("mdgw2.service", &second),
        ("mdgw.service.d/watchdog.conf", watchdog),
        ("mdgw2.service.d/watchdog.conf", watchdog),
        ("key", &key),
    ];
    let Some(systemd) = Systemd::boot(test, PAIR_UNITS[0], &files) else { return };
    let prepared = systemd.run(&["sh", "-c", "chown nobody /run/units/key && chmod 600 /run/units/key"]);
    assert!(prepared.status.success(), "{prepared:?}");
    let started = systemd.run(&[["systemctl", "start"], PAIR_UNITS].concat());
    assert!(started.status.success(), "{started:?}\n{:#?}", systemd.journal(&[]));

    let role = |unit: &str| {
        let socket = format!("/run/{}/control", unit.trim_end_matches(".service"));
        let status = systemd.run(&["/run/mdgw.program", "ha", "status", "--json", "--socket", &socket]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        status["groups"][0]["role"].as_str().unwrap_or_default().to_owned()
    };
    let mut roles = [String::new(), String::new()];
    wait_until("one leads and the other could", || {
        roles = PAIR_UNITS.map(role);
        let mut sorted = roles.clone();
        sorted.sort_unstable();
        sorted == ["candidate", "leader"]
    });
    let [leader, standby] = if roles[0] == "leader" { PAIR_UNITS } else { [PAIR_UNITS[1], PAIR_UNITS[0]] };

    let stalled = systemd.property(leader, "MainPID");
    let stopped = systemd.run(&["kill", "-STOP", &stalled]);
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("the peer leads", || role(standby) == "leader");
    wait_until("the watchdog has restarted the former leader, which could lead again", || {
        systemd.property(leader, "NRestarts") == "1" && role(leader) == "candidate"
    });
    assert_ne!(systemd.property(leader, "MainPID"), stalled);
    let failures = systemd.journal(&[&format!("UNIT={leader}"), "UNIT_RESULT=watchdog"]);
    assert_eq!(failures.len(), 1, "{failures:#?}");
    assert_eq!((role(standby).as_str(), systemd.property(standby, "NRestarts").as_str()), ("leader", "0"));

    // The stop of a leader: its sentinel watches until the hand-over is done.
    let stopped = systemd.run(&["systemctl", "stop", standby]);
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("the other gateway leads again", || role(leader) == "leader");
    let entries = systemd.journal(&[]);
    let count = |text: &str| {
        let messages = entries.iter().filter_map(|entry| entry["MESSAGE"].as_str());
        messages.filter(|message| message.contains(text)).count()
    };
    assert!(count("sentinel: watching gateway") >= 2, "each gateway has started one");
    assert_eq!(count("sentinel lost"), 0, "{:#?}", systemd.journal(&["MDGW_ALARM=no-sentinel"]));
}
