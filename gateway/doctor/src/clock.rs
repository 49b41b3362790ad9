//! Clock source, and how well the wall clock is kept.

use crate::{
    facts::Facts,
    files::{Files, shortened},
    report::{Check, Group, Item},
    time_daemon::DaemonReport,
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
            let folder = "/sys/devices/system/clocksource/clocksource0";
            let available = files.text(&format!("{folder}/available_clocksource")).unwrap_or_default();
            let has_tsc = available.split_whitespace().any(|name| name == "tsc");
            let why = "dmesg | grep -i -e clocksource -e tsc    # why the kernel does not offer tsc";
            check.ok_if(is_fast, shortened(&source), || {
                if has_tsc { format!("echo tsc > {path}") } else { why.to_owned() }
            })
        }
        Err(error) => check.unknown(error),
    }
}

/// Programs that keep the wall clock.
const DAEMONS: [&str; 6] = ["chronyd", "ptp4l", "phc2sys", "ntpd", "ntpd-rs", "systemd-timesyn"];
/// Largest offset that does not spoil a comparison of two hosts' latencies, ns.
const OFFSET_NS_MAX: u64 = 100_000;
/// Largest error by source and network, ns. A nearby source keeps below it; one across the internet does not.
const ERROR_NS_MAX: u64 = 1_000_000;

fn offset(files: &Files, facts: &Facts) -> Item {
    let check = Check::new(
        Group::Clock,
        "PTP or chrony",
        "Receive stamps are compared with the venue's times, and with those of the peer: an offset looks like latency.",
    );
    let running = files.processes().unwrap_or_default();
    let daemons: Vec<_> = DAEMONS.into_iter().filter(|name| running.iter().any(|process| process == name)).collect();
    match (&facts.time_daemon, &facts.clock) {
        (Some(Ok(report)), Ok(clock))
            if report.program == "pmc" && report.is_synchronised && !clock.is_synchronised =>
        {
            let read = "ptp4l keeps the card's clock, but nothing keeps the system's: is phc2sys dead?";
            check.warn(read, ["systemctl status 'phc2sys*' && journalctl -n 50 -u 'phc2sys*'".to_owned()])
        }
        (Some(Ok(report)), _) => judge(check, report),
        (Some(Err(error)), _) => check.unknown(error),
        (None, Err(error)) => check.unknown(format!("adjtimex: {error}")),
        (None, Ok(clock)) if daemons == ["phc2sys"] && clock.is_synchronised => {
            check.unknown("phc2sys runs, and tells its offset to its log alone: journalctl -u phc2sys")
        }
        (None, Ok(clock)) => {
            let of_kernel = DaemonReport {
                program: daemons.first().unwrap_or(if running.is_empty() {
                    &"no process can be seen, so no time daemon either"
                } else {
                    &"no time daemon seen"
                }),
                is_synchronised: clock.is_synchronised,
                offset_ns: clock.offset_ns.unsigned_abs(),
                error_ns_max: Some(clock.error_us_max.saturating_mul(1_000)),
            };
            judge(check, &of_kernel)
        }
    }
}

fn judge(check: Check, report: &DaemonReport) -> Item {
    let DaemonReport { program, is_synchronised, offset_ns, error_ns_max } = *report;
    let command = |of_chrony: &str| match program {
        "pmc" => "pmc -u -b 0 'GET PORT_DATA_SET' && journalctl -n 50 -u 'ptp4l*' -u 'phc2sys*'".to_owned(),
        "chronyc" => of_chrony.to_owned(),
        // In place of another daemon: the package of chrony removes it.
        _ => "apt install chrony && systemctl enable --now chrony && chronyc -n sources -v".to_owned(),
    };
    if !is_synchronised {
        return check.warn(format!("the clock is not synchronised; {program}"), [command("chronyc -n sources -v")]);
    }
    let error = error_ns_max.map(|error_ns| format!(", error at most {} us", error_ns / 1_000)).unwrap_or_default();
    let read = format!("offset {offset_ns} ns{error}; {program}");
    if offset_ns > OFFSET_NS_MAX {
        check.warn(read, [command("chronyc makestep    # before the gateway starts: a step disturbs its stamps")])
    } else if error_ns_max.is_some_and(|error_ns| error_ns > ERROR_NS_MAX) {
        check.warn(read, [command("chronyc -n sources -v    # then name a nearer source in /etc/chrony/chrony.conf")])
    } else {
        check.ok(read)
    }
}
