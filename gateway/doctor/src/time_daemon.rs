//! The offset of the wall clock as the program that keeps it reports it.
//!
//! The kernel does not know it: chronyd and phc2sys steer the clock by its rate and leave the kernel's own offset at 0.
//! chronyd is asked by `chronyc -n -c tracking`, ptp4l by `pmc -u -b 0 'GET TIME_STATUS_NP'`; both only read.

use std::process::{Command, Stdio};

use crate::files::Files;

/// What a time daemon says of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaemonReport {
    /// The command that was asked.
    pub program: &'static str,
    /// Whether it follows a source.
    pub is_synchronised: bool,
    /// Present or usual distance from its source, the larger of both, ns.
    pub offset_ns: u64,
    /// Largest error against true time that its source and the network allow, ns; `None` if it does not say.
    pub error_ns_max: Option<u64>,
}

impl DaemonReport {
    /// Asks chronyd or ptp4l, whichever runs; `None` if neither does.
    pub(crate) fn read() -> Option<Result<Self, String>> {
        let running = Files::new(std::path::Path::new("/")).processes().ok()?;
        let runs = |daemon: &str| running.iter().any(|name| name == daemon);
        // Where both run, chronyd keeps the system's clock, with the card's as its source.
        if runs("chronyd") {
            return Some(answer("chronyc", &["-n", "-c", "tracking"], Self::of_chronyc));
        }
        runs("ptp4l").then(|| answer("pmc", &["-u", "-b", "0", "GET TIME_STATUS_NP"], Self::of_pmc))
    }

    /// A line of comma-separated values: reference (2), stratum, time of reference, offset, last offset, RMS offset, three rates,
    /// root delay, root dispersion, interval, leap status. Times are seconds.
    fn of_chronyc(text: &str) -> Option<Self> {
        let fields: Vec<_> = text.lines().next()?.split(',').collect();
        let [_, _, _, _, offset, _, rms, _, _, _, delay, dispersion, _, leap] = fields.as_slice() else { return None };
        let [offset, rms, delay, dispersion] =
            [offset, rms, delay, dispersion].map(|field| nanoseconds(field.parse().ok()?));
        Some(Self {
            program: "chronyc",
            is_synchronised: *leap != "Not synchronised",
            offset_ns: offset?.max(rms?),
            error_ns_max: Some(offset?.saturating_add(delay? / 2).saturating_add(dispersion?)),
        })
    }

    /// Lines of name and value, among them `master_offset` in ns and `gmPresent`.
    fn of_pmc(text: &str) -> Option<Self> {
        let value = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
        let offset_ns: i64 = value("master_offset")?.parse().ok()?;
        Some(Self {
            program: "pmc",
            is_synchronised: value("gmPresent")? == "true",
            offset_ns: offset_ns.unsigned_abs(),
            error_ns_max: None,
        })
    }
}

/// Runs a command that answers within some seconds, and reads its answer.
fn answer(
    program: &'static str,
    arguments: &[&str],
    read: impl FnOnce(&str) -> Option<DaemonReport>,
) -> Result<DaemonReport, String> {
    let mut command = Command::new("timeout");
    command.args(["3", program]).args(arguments).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("timeout: {}", crate::files::cause(&error)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let mut complaint = complaint.lines().chain(text.lines().filter(|line| !line.starts_with("sending: ")));
        let complaint = complaint.next().unwrap_or("no answer").trim();
        format!("{program}: {}", complaint.chars().take(80).filter(|letter| !letter.is_control()).collect::<String>())
    })
}

/// The size of a time in seconds; `None` if it is no number.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; larger ones become the largest"
)]
fn nanoseconds(seconds: f64) -> Option<u64> {
    seconds.is_finite().then(|| (seconds.abs() * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_chronyd_is_the_larger_of_present_and_usual() {
        let line = "C0000201,192.0.2.1,2,1764240000.123456789,-0.000004321,0.000001500,0.000021000,-12.345,0.001,0.020,0.000300000,0.000050000,64.2,Normal\n";
        let report = DaemonReport::of_chronyc(line).unwrap();
        let expected =
            DaemonReport { program: "chronyc", is_synchronised: true, offset_ns: 21_000, error_ns_max: Some(204_321) };
        assert_eq!(report, expected);
        let without = "00000000,,0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised\n";
        assert!(!DaemonReport::of_chronyc(without).unwrap().is_synchronised);
    }

    #[test]
    fn the_offset_of_ptp4l_is_that_from_the_grandmaster() {
        let text = "sending: GET TIME_STATUS_NP\n\t02aabb.fffe.ccddee-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP \n\
                    \t\tmaster_offset              -250\n\t\tingress_time               1764240000000000000\n\
                    \t\tgmPresent                  true\n\t\tgmIdentity                 02aabb.fffe.ccdd00\n";
        let expected = DaemonReport { program: "pmc", is_synchronised: true, offset_ns: 250, error_ns_max: None };
        assert_eq!(DaemonReport::of_pmc(text), Some(expected));
        assert!(!DaemonReport::of_pmc(&text.replace("true", "false")).unwrap().is_synchronised);
    }

    #[test]
    fn other_texts_are_no_report() {
        for text in ["", "506 Cannot talk to daemon\n", "sending: GET TIME_STATUS_NP\n", ",,,,,,,,,,,,,", "\u{0},\n"] {
            assert_eq!(DaemonReport::of_chronyc(text), None, "{text}");
            assert_eq!(DaemonReport::of_pmc(text), None, "{text}");
        }
        for odd in ["nan", "inf", "-", "1e999", "x"] {
            let line = format!("A,b,1,0,{odd},0,0,0,0,0,0,0,0,Normal");
            assert_eq!(DaemonReport::of_chronyc(&line), None, "{odd}");
        }
        let huge = DaemonReport::of_chronyc("A,b,1,0,-1e300,0,1e300,0,0,0,1e300,1e300,0,Normal").unwrap();
        assert_eq!((huge.offset_ns, huge.error_ns_max), (u64::MAX, Some(u64::MAX)));
    }

    #[test]
    fn a_program_that_is_not_there_or_does_not_answer_is_an_error_with_its_reason() {
        let error = answer("mdgw-no-such-program", &[], DaemonReport::of_chronyc).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
        assert_eq!(answer("true", &[], DaemonReport::of_pmc), Err("true: no answer".to_owned()));
    }
}
