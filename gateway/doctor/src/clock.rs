//! Clock source, and how well the wall clock is kept.

use crate::{
    facts::Facts,
    files::{Files, shortened},
    report::{Check, Group, Item},
};

pub(crate) fn items(files: &Files, facts: &Facts) -> Vec<Item> {
    vec![source(files), offset(files, facts)]
}

/// Clock sources that are read without a system call.
const FAST: [&str; 4] = ["tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"];

fn source(files: &Files) -> Item {
    let check = Check::new(
        Group::Clock,
        "clock source",
        "With another source each reading of the clock is a system call of about a microsecond: several for each packet.",
    );
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match files.text(path) {
        Ok(source) => {
            let is_fast = FAST.contains(&source.as_str());
            check.ok_if(is_fast, shortened(&source), || format!("echo tsc > {path}"))
        }
        Err(error) => check.unknown(error),
    }
}

/// Programs that keep the wall clock.
const DAEMONS: [&str; 6] = ["chronyd", "ptp4l", "phc2sys", "ntpd", "ntpd-rs", "systemd-timesyn"];
/// Largest offset that does not spoil a comparison of two hosts' latencies, ns.
const OFFSET_NS_MAX: u64 = 100_000;

fn offset(files: &Files, facts: &Facts) -> Item {
    let check = Check::new(
        Group::Clock,
        "PTP or chrony",
        "Receive stamps are compared with the venue's times, and with those of the peer: an offset looks like latency.",
    );
    let clock = match &facts.clock {
        Ok(clock) => clock,
        Err(error) => return check.unknown(format!("adjtimex: {error}")),
    };
    let running = files.processes().unwrap_or_default();
    let daemons: Vec<_> = DAEMONS.into_iter().filter(|name| running.iter().any(|process| process == name)).collect();
    let daemons = if daemons.is_empty() { "no time daemon seen".to_owned() } else { daemons.join(", ") };
    if !clock.is_synchronised {
        let command = "apt install chrony && systemctl enable --now chrony".to_owned();
        return check.warn(format!("the clock is not synchronised; {daemons}"), [command]);
    }
    let read = format!("offset {} ns, error at most {} us; {daemons}", clock.offset_ns, clock.error_us_max);
    let is_close = clock.offset_ns.unsigned_abs() <= OFFSET_NS_MAX;
    check.ok_if(is_close, read, || {
        "chronyc makestep    # before the gateway starts: a step disturbs its stamps".to_owned()
    })
}
