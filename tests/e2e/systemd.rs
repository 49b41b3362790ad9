//! The shipped unit under a real systemd: the end of the start, the watchdog with its restart, the stop, and the fields in a
//! real journal.
#![allow(clippy::unwrap_used, reason = "tests")]

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, text},
    process::wait_until,
    systemd::Systemd,
};

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
    let watchdog = "[Service]\nWatchdogSec=2\n";
    let files = [("mdgw.toml", config.as_str()), ("mdgw.service.d/watchdog.conf", watchdog)];
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
}
