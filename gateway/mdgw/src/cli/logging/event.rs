//! An event as it waits to be written: values, not yet lines.

use std::{
    fmt::{self, Debug},
    time::Instant,
};

use serde_json::Value;
use tracing::{
    Event, Level,
    field::{Field, Visit},
};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime as _, SystemTime},
};

/// An event of the log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LogEvent {
    /// UTC, as RFC 3339 writes it, with microseconds.
    pub(super) time: String,
    /// The same moment, for the order of events: the wall clock may step.
    pub(super) at: Instant,
    pub(super) level: Level,
    /// The module that logged the event.
    pub(super) target: &'static str,
    pub(super) message: String,
    /// Without the message.
    pub(super) fields: Vec<(&'static str, FieldValue)>,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FieldValue {
    /// A number or a truth value.
    Plain(Value),
    /// Text, which is quoted in lines.
    Quoted(String),
    /// Text of a value that shows itself, not quoted in lines.
    Shown(String),
}

impl FieldValue {
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Plain(value) => value.clone(),
            Self::Quoted(text) | Self::Shown(text) => Value::String(text.clone()),
        }
    }

    /// Without quotes.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Plain(value) => value.to_string(),
            Self::Quoted(text) | Self::Shown(text) => text.clone(),
        }
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(value) => write!(f, "{value}"),
            Self::Quoted(text) => write!(f, "{text:?}"),
            Self::Shown(text) => f.write_str(text),
        }
    }
}

impl LogEvent {
    /// The event, at this moment.
    pub(super) fn of(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut values = Values::default();
        event.record(&mut values);
        let Values { message, fields } = values;
        let level = *metadata.level();
        Self { time: time_now(), at: Instant::now(), level, target: metadata.target(), message, fields }
    }

    /// An event with a message alone.
    pub(super) fn plain(level: Level, message: &str) -> Self {
        let (message, fields) = (message.to_owned(), Vec::new());
        Self { time: time_now(), at: Instant::now(), level, target: "mdgw", message, fields }
    }

    pub(super) fn field(&self, name: &str) -> Option<&FieldValue> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    /// Message and fields as one line of text, without time and level.
    pub(super) fn text(&self) -> String {
        let mut text = self.message.clone();
        for (name, value) in &self.fields {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&format!("{name}={value}"));
        }
        // A line is one event, also where a value has several lines.
        text.replace('\n', "\\n")
    }
}

fn time_now() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Collects the values of an event.
#[derive(Default)]
struct Values {
    message: String,
    fields: Vec<(&'static str, FieldValue)>,
}

impl Values {
    fn add(&mut self, field: &Field, value: FieldValue) {
        if field.name() == "message" {
            self.message = value.text();
        } else {
            self.fields.push((field.name(), value));
        }
    }
}

impl Visit for Values {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, FieldValue::Plain(value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, FieldValue::Plain(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, FieldValue::Plain(value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, FieldValue::Plain(value.into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, FieldValue::Quoted(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, FieldValue::Shown(format!("{value:?}")));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use mdgw_sys::alarm::Alarm;
    use tracing_subscriber::{
        Layer,
        layer::{Context, SubscriberExt as _},
    };

    use super::*;

    struct Collector(Arc<Mutex<Vec<LogEvent>>>);

    impl<S: tracing::Subscriber> Layer<S> for Collector {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().unwrap().push(LogEvent::of(event));
        }
    }

    /// The events that a function logs.
    pub(in super::super) fn logged(log: impl FnOnce()) -> Vec<LogEvent> {
        let events = Arc::new(Mutex::new(Vec::new()));
        let subscriber = tracing_subscriber::registry().with(Collector(Arc::clone(&events)));
        tracing::subscriber::with_default(subscriber, log);
        std::mem::take(&mut *events.lock().unwrap())
    }

    #[test]
    fn an_event_keeps_its_values_and_is_one_line_of_text() {
        let line = 'A';
        let events = logged(|| {
            tracing::warn!(alarm = Alarm::LineSilent.name(), channel = "o\"ne", %line, group = 3, ratio = 0.5, ok = true, why = ?Some("a\nb"), "no\tpacket");
            tracing::info!(number = u64::MAX, low = i64::MIN, text = "two\nlines");
        });
        assert_eq!(
            events[0].text(),
            "no\tpacket alarm=\"line-silent\" channel=\"o\\\"ne\" line=A group=3 ratio=0.5 ok=true why=Some(\"a\\nb\")"
        );
        assert_eq!(events[0].level, Level::WARN);
        assert!(events[0].target.ends_with("event::tests") && events[0].time.ends_with('Z'), "{:?}", events[0]);
        assert_eq!(events[0].field("channel").unwrap().json(), "o\"ne");
        assert_eq!(events[0].field("group").unwrap().json(), 3);
        assert_eq!(events[1].text(), "number=18446744073709551615 low=-9223372036854775808 text=\"two\\nlines\"");
    }
}
