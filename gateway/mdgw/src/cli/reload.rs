//! `mdgw reload`: makes a running gateway, or `mdgw live`, read its configuration again, and reports the result.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use mdgw_runtime::config::{Changed, Resolved, WHOLE_CHANNEL, WHOLE_LINE};
use mdgw_status::control::{ControlError, Request, Wait, send_request_and_wait};
use serde_json::Value;

use super::{Outcome, print, quantity::parse_duration_ns, refused, warn};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A reload is applied as a whole, or not at all. SIGHUP does the same, and leaves the result in the log alone.

A gateway builds large books during a reload, which can take long. It reloads also if this command has ended \
meanwhile, after --timeout or by a signal: its log then has the result.

Exit code 0: applied. 1: refused, with the reasons; nothing changed. 2: the configuration is invalid, or no gateway \
listens; nothing changed. 3: no answer within --timeout, or the gateway has ended: the result is unknown.
With --json, a refusal is {\"refused\":[\"REASON\", ...]} on standard output. What ends with 2 or 3 is text on standard \
error.

Examples:
  mdgw reload gateway.toml
  mdgw reload --socket /run/mdgw/control --timeout 5m
  mdgw reload --live gateway.toml")]
pub(super) struct Args {
    /// Configuration file of the gateway, which names the control socket.
    #[arg(required_unless_present = "socket")]
    config: Option<PathBuf>,
    /// Control socket, instead of that of the configuration file.
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Make `mdgw live` read its clients' keys again (live.key_file), at live.control_socket.
    #[arg(long)]
    live: bool,
    /// Longest wait for the result. The gateway may still carry the reload out.
    #[arg(long, value_name = "TIME", value_parser = parse_duration_ns, default_value = ANSWER_TIMEOUT)]
    timeout: u64,
    /// One line of JSON instead of text, also of a refusal.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let socket = args.socket()?;
    // The working directory of the gateway may be another one.
    let config = args.config.as_ref().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
    let mut notice = || warn(&unanswered(&socket, args.live));
    let mut wait = Wait { limit: Duration::from_nanos(args.timeout), notice: Some((NOTICE_AFTER, &mut notice)) };
    let answer = match send_request_and_wait(&socket, &Request::Reload { config }, &mut wait) {
        Ok(answer) => answer,
        Err(ControlError::Refused(reasons)) if reasons.contains(UNKNOWN_REQUEST) => {
            let reason = format!("{} runs an earlier version, which reloads at SIGHUP only", socket.display());
            return refused(args.json, &reason, &reason);
        }
        Err(ControlError::Refused(reasons)) => {
            let text = format!("reload refused, nothing changed:\n{}", indented(&reasons));
            return refused(args.json, &reasons, &text);
        }
        Err(error @ (ControlError::Io { .. } | ControlError::NoAnswer { .. })) => {
            let log = if args.live { "mdgw live" } else { "the gateway, which may still carry the reload out" };
            warn(&format!("reload: the result is unknown, see the log of {log}: {error}"));
            return Ok(Outcome::Unknown);
        }
        Err(error @ ControlError::Connect { .. }) => return Err(error).context("reload: nothing changed"),
    };
    print(&if args.json { format!("{answer}\n") } else { text(&answer)? })?;
    Ok(Outcome::Done)
}

/// What an operator may look at meanwhile.
fn unanswered(socket: &Path, is_live: bool) -> String {
    let (socket, seconds) = (socket.display(), NOTICE_AFTER.as_secs());
    if is_live {
        return format!("reload: {socket} has not answered for {seconds} s, still waiting: see the log of mdgw live");
    }
    format!(
        "reload: the gateway at {socket} has not answered for {seconds} s, still waiting: it builds a channel, or its main thread is \
         stuck (mdgw ha status --socket {socket} says so; runbook main-thread-stall)"
    )
}

impl Args {
    /// Where the process to reload listens.
    fn socket(&self) -> anyhow::Result<PathBuf> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let Some(path) = &self.config else { bail!("reload: neither a configuration nor a socket is given") };
        let config = Resolved::load(path).context("reload: nothing changed")?;
        let (key, socket) = if self.live {
            ("live.control_socket", config.live.and_then(|live| live.control_socket))
        } else {
            ("gateway.control_socket", config.gateway.control_socket)
        };
        socket.ok_or_else(|| {
            anyhow!(
                "reload: nothing changed: {key} is not set in {}, so the process cannot be asked; SIGHUP reloads it, and its log has \
                 the result",
                path.display()
            )
        })
    }
}

/// The answer as text.
fn text(answer: &Value) -> anyhow::Result<String> {
    let file = answer["config"].as_str().unwrap_or_default();
    if let Some(count) = answer["keys"].as_u64() {
        let keys = if count == 1 { "key" } else { "keys" };
        return Ok(format!("reloaded {file}: {count} {keys}\n"));
    }
    let changed: Vec<Changed> = serde_json::from_value(answer["changed"].clone()).context("read the answer")?;
    let mut text = format!("reloaded {file}:{}\n", if changed.is_empty() { " no setting differs" } else { "" });
    for Changed { key, old, new } in &changed {
        let is_whole = [old, new].into_iter().flatten().all(|value| value == WHOLE_CHANNEL || value == WHOLE_LINE);
        match (old, new) {
            (None, Some(_)) if is_whole => writeln!(text, "  {key}: added")?,
            (Some(_), None) if is_whole => writeln!(text, "  {key}: removed")?,
            _ => {
                let [old, new] = [old, new].map(|value| value.as_deref().unwrap_or("unset"));
                writeln!(text, "  {key}: {old} -> {new}{}", reader(key))?;
            }
        }
    }
    // A gateway of an earlier version does not say.
    for program in answer["restart"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        writeln!(text, "restart {program}: it does not know an added channel before")?;
    }
    for program in answer["restart_if_newer"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        writeln!(text, "restart {program} only if it was started while an added channel was removed")?;
    }
    for warning in answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        writeln!(text, "warning: {warning}")?;
    }
    Ok(text)
}

/// The channels that reloads have added and removed. The programs beside this gateway know the channels of their own start only.
#[derive(Debug, Default)]
pub(super) struct ReloadedChannels {
    /// Not there at the gateway's start: a program may not know them, whatever the advice was.
    added: BTreeSet<String>,
    /// The others that are removed, with their settings.
    removed: BTreeMap<String, Vec<(String, String)>>,
}

/// The programs beside this gateway that need a restart after a reload.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ToRestart {
    /// They do not know an added channel.
    pub(super) all: Vec<&'static str>,
    /// They know each added channel, as it was removed before with the same settings, unless they were started in between.
    pub(super) if_newer: Vec<&'static str>,
}

impl ReloadedChannels {
    /// Takes the changes of a reload from `old` to `new`.
    pub(super) fn after(&mut self, (old, new): (&Resolved, &Resolved), changed: &[Changed]) -> ToRestart {
        let is_whole = |value: &Option<String>| value.as_deref() == Some(WHOLE_CHANNEL);
        let (mut has_new, mut has_known) = (false, false);
        for Changed { key, old: before, new: after } in changed {
            match (before, after) {
                (None, after) if is_whole(after) => {
                    let removed = self.removed.remove(key);
                    if removed.is_some_and(|removed| removed == settings_of(new, key)) {
                        has_known = true;
                    } else {
                        has_new = true;
                        self.added.insert(key.clone());
                    }
                }
                (before, None) if is_whole(before) && !self.added.contains(key) => {
                    self.removed.insert(key.clone(), settings_of(old, key));
                }
                _ => {}
            }
        }
        let programs = [
            ("mdgw live", new.live.is_some()),
            ("mdgw journal", new.journal.is_some()),
            ("mdgw nats", new.nats.is_some()),
        ];
        let configured = programs.into_iter().filter(|(_, is_configured)| *is_configured);
        let configured = configured.map(|(program, _)| program).collect();
        match (has_new, has_known) {
            (true, _) => ToRestart { all: configured, if_newer: Vec::new() },
            (false, true) => ToRestart { all: Vec::new(), if_newer: configured },
            (false, false) => ToRestart::default(),
        }
    }
}

/// Settings of a channel, which is named as in [`Changed::key`].
fn settings_of(config: &Resolved, channel: &str) -> Vec<(String, String)> {
    let is_of_channel = |key: &str| key.strip_prefix(channel).is_some_and(|rest| rest.starts_with('.'));
    config.settings().into_iter().filter(|(key, _)| is_of_channel(key)).collect()
}

/// The gateway reads no table of another process, so it cannot refuse a change there.
fn reader(key: &str) -> &'static str {
    match key.split_once('.') {
        Some(("live", _)) => " (for the next start of mdgw live)",
        Some(("journal", _)) => " (for the next start of mdgw journal)",
        Some(("nats", _)) => " (for the next start of mdgw nats)",
        Some(("mirror", _)) => " (for the next start of mdgw mirror)",
        _ => "",
    }
}

/// Each line below the heading.
fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Longest wait for the result: below `TimeoutStartSec=` of the unit, which limits `ExecReload=` too. A channel with large books or
/// a peer's state takes longest.
const ANSWER_TIMEOUT: &str = "110s";
/// A reload that adds no channel is applied within a second.
const NOTICE_AFTER: Duration = Duration::from_secs(5);
/// How a gateway of an earlier version refuses the request.
const UNKNOWN_REQUEST: &str = "unknown variant `reload`";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_answer_names_what_changed_and_what_waits_for_another_process() {
        let value = |text: &str| Some(text.to_owned());
        let changed = [
            ("channel.two", None, value(WHOLE_CHANNEL)),
            ("channel.three", value(WHOLE_CHANNEL), None),
            ("output.1.line 239.192.7.10:30100 on eth3", value(WHOLE_LINE), None),
            ("latency.interval_ms", value("1000"), value("100")),
            ("live.listen", None, value("127.0.0.1:13000")),
        ]
        .map(|(key, old, new)| Changed { key: key.to_owned(), old, new });
        let answer = json!({ "config": "/etc/mdgw/mdgw.toml", "changed": changed, "restart": ["mdgw journal"] });
        expect_test::expect![[r"
            reloaded /etc/mdgw/mdgw.toml:
              channel.two: added
              channel.three: removed
              output.1.line 239.192.7.10:30100 on eth3: removed
              latency.interval_ms: 1000 -> 100
              live.listen: unset -> 127.0.0.1:13000 (for the next start of mdgw live)
            restart mdgw journal: it does not know an added channel before
        "]]
        .assert_eq(&text(&answer).unwrap());
        let same = json!({ "config": "/etc/mdgw/mdgw.toml", "changed": [] });
        assert_eq!(text(&same).unwrap(), "reloaded /etc/mdgw/mdgw.toml: no setting differs\n");
        let warned = json!({ "config": "/c", "changed": [], "warnings": ["election.link.key_file: gone"] });
        assert_eq!(text(&warned).unwrap(), "reloaded /c: no setting differs\nwarning: election.link.key_file: gone\n");
        let keys = json!({ "config": "/etc/mdgw/keys", "keys": 3 });
        assert_eq!(text(&keys).unwrap(), "reloaded /etc/mdgw/keys: 3 keys\n");
    }

    #[test]
    fn a_channel_that_is_added_again_is_new_to_no_program_unless_it_has_changed() {
        let text = include_str!("../../../../ops/config/mdgw.toml");
        let text = format!("{text}\n[journal]\ndirectory = \"/j\"\n");
        let with = Resolved::from_text(Path::new("mdgw.toml"), &text).unwrap();
        let mut without = with.clone();
        let name = without.channels.pop().unwrap().name;
        let mut other = with.clone();
        other.channels.last_mut().unwrap().window_packets += 1;
        let change = |is_added: bool| {
            let [old, new] = [!is_added, is_added].map(|is_there| is_there.then(|| WHOLE_CHANNEL.to_owned()));
            [Changed { key: format!("channel.{name}"), old, new }]
        };
        let journal = || vec!["mdgw journal"];
        let all = || ToRestart { all: journal(), ..ToRestart::default() };
        let mut channels = ReloadedChannels::default();
        assert_eq!(channels.after((&with, &without), &change(false)), ToRestart::default());
        let if_newer = ToRestart { if_newer: journal(), ..ToRestart::default() };
        assert_eq!(channels.after((&without, &with), &change(true)), if_newer);
        assert_eq!(channels.after((&with, &without), &change(false)), ToRestart::default());
        assert_eq!(channels.after((&without, &other), &change(true)), all(), "with another setting");
        assert_eq!(channels.after((&other, &without), &change(false)), ToRestart::default());
        assert_eq!(channels.after((&without, &other), &change(true)), all(), "nobody may have followed the advice");
        let answer = json!({ "config": "/c", "changed": change(true), "restart_if_newer": ["mdgw journal"] });
        let shown = super::text(&answer).unwrap();
        assert!(
            shown.ends_with("restart mdgw journal only if it was started while an added channel was removed\n"),
            "{shown}"
        );
    }

    #[test]
    fn an_earlier_version_refuses_the_request_in_these_words() {
        let unknown = serde_json::from_str::<Request>(r#"{"command":"fly"}"#).unwrap_err().to_string();
        assert!(unknown.contains("unknown variant `fly`"), "{unknown}");
    }

    #[test]
    fn the_wait_ends_before_the_unit_ends_the_command() {
        let unit = include_str!("../../../../ops/systemd/mdgw.service");
        let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStartSec="));
        let wait_s = parse_duration_ns(ANSWER_TIMEOUT).unwrap() / 1_000_000_000;
        assert!(limit.and_then(|limit| limit.parse().ok()).is_some_and(|limit: u64| limit > wait_s));
    }
}
