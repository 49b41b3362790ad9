//! Where events are written, and how.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
};

use log::{Record, kv::Key};
use mdgw_runtime::config::resolved::LogFormat;
use serde::Serialize;
use serde_json::{Map, Value};
use systemd_journal_logger::{JournalLog, connected_to_journal};
use tracing::Level;

use super::event::LogEvent;

/// A destination of the log.
#[derive(Clone, Copy)]
pub(super) enum Output {
    /// Lines of text on standard error, with colours on a terminal.
    Text { is_coloured: bool },
    /// Lines of JSON on standard error.
    Json,
    /// Entries of the journal.
    Journald(&'static JournalLog),
}

impl Output {
    /// The output in that format. Without a journal, text.
    pub(super) fn choose(format: LogFormat) -> Self {
        let is_plain = env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
        let text = Self::Text { is_coloured: io::stderr().is_terminal() && !is_plain };
        match format {
            LogFormat::Text => text,
            LogFormat::Json => Self::Json,
            LogFormat::Auto if !connected_to_journal() => text,
            LogFormat::Auto | LogFormat::Journald => match JournalLog::empty() {
                // One for each process, which lasts as long as it.
                Ok(journal) => Self::Journald(Box::leak(Box::new(journal.with_syslog_identifier("mdgw".to_owned())))),
                Err(error) => {
                    super::super::warn(&format!("cannot send the log to journald, text instead: {error}"));
                    text
                }
            },
        }
    }

    /// Whether programs read each line.
    pub(super) fn is_structured(self) -> bool {
        !matches!(self, Self::Text { .. })
    }

    /// Writes an event. There is no other place to report a failure.
    pub(super) fn write(self, event: &LogEvent) {
        let line = match self {
            Self::Text { is_coloured } => text_line(event, is_coloured),
            Self::Json => json_line(event),
            Self::Journald(journal) => match send(journal, event) {
                Ok(()) => return,
                Err(_) => text_line(event, false),
            },
        };
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

fn text_line(event: &LogEvent, is_coloured: bool) -> String {
    let LogEvent { time, level, .. } = event;
    let [colour, plain] = if is_coloured { [level_colour(*level), "\x1b[0m"] } else { [""; 2] };
    format!("{time} {colour}{:>5}{plain} {}\n", level.as_str(), event.text())
}

fn level_colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    }
}

/// A line of JSON. The event's fields follow these.
#[derive(Serialize)]
struct JsonLine<'a> {
    time: &'a str,
    level: String,
    target: &'a str,
    message: &'a str,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// Keys that a field of the same name must not write over.
const JSON_KEYS: [&str; 4] = ["time", "level", "target", "message"];

fn json_line(event: &LogEvent) -> String {
    let LogEvent { time, level, target, message, fields, at: _ } = event;
    let key = |name: &str| if JSON_KEYS.contains(&name) { format!("field_{name}") } else { name.to_owned() };
    let fields = fields.iter().map(|(name, value)| (key(name), value.json())).collect();
    let level = level.as_str().to_lowercase();
    let line = JsonLine { time, level, target, message, fields };
    let text = serde_json::to_string(&line).unwrap_or_else(|_| unreachable!("all keys are text"));
    text + "\n"
}

/// Sends an entry: the line of text as `MESSAGE`, so that `journalctl` shows the fields, each field as `MDGW_NAME`, and the event's own
/// time. The journal's is later for an alarm that was held back.
fn send(journal: &JournalLog, event: &LogEvent) -> io::Result<()> {
    let time = ("mdgw_time".to_owned(), event.time.clone());
    let fields = event.fields.iter().map(|(name, value)| (format!("mdgw_{name}"), value.text()));
    let fields: Vec<_> = [time].into_iter().chain(fields).collect();
    let pairs: Vec<(Key<'_>, &str)> =
        fields.iter().map(|(name, value)| (Key::from_str(name), value.as_str())).collect();
    let level = match event.level {
        Level::ERROR => log::Level::Error,
        Level::WARN => log::Level::Warn,
        Level::INFO => log::Level::Info,
        Level::DEBUG => log::Level::Debug,
        Level::TRACE => log::Level::Trace,
    };
    let text = event.text();
    let pairs = pairs.as_slice();
    journal.journal_send(
        &Record::builder().level(level).target(event.target).args(format_args!("{text}")).key_values(&pairs).build(),
    )
}

#[cfg(test)]
mod tests {
    use mdgw_sys::alarm::Alarm;
    use serde_json::json;

    use super::{super::event::tests::logged, *};

    fn event() -> LogEvent {
        let mut event = logged(|| {
            tracing::warn!(alarm = Alarm::GapDeclared.name(), channel = "one", more = 3, level = "x", "gaps")
        })
        .remove(0);
        event.time = "2026-11-20T08:00:00.000000Z".to_owned();
        event.target = "mdgw_runtime";
        event
    }

    #[test]
    fn a_line_of_text_has_time_level_message_and_fields() {
        let line = text_line(&event(), false);
        assert_eq!(
            line,
            "2026-11-20T08:00:00.000000Z  WARN gaps alarm=\"gap-declared\" channel=\"one\" more=3 level=\"x\"\n"
        );
        let coloured = text_line(&event(), true);
        assert_eq!(coloured.replace("\x1b[33m", "").replace("\x1b[0m", ""), line);
    }

    #[test]
    fn a_line_of_json_is_one_object_and_no_field_is_lost() {
        let line = json_line(&event());
        assert!(line.ends_with("}\n") && line.starts_with("{\"time\":"), "{line}");
        let expected = json!({
            "time": "2026-11-20T08:00:00.000000Z", "level": "warn", "target": "mdgw_runtime", "message": "gaps",
            "alarm": "gap-declared", "channel": "one", "more": 3, "field_level": "x",
        });
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
    }
}
