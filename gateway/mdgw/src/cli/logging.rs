//! The log of long-running subcommands. A thread that logs puts an event into a bounded queue. A thread of its own (`mdgw-log`)
//! writes the events as text, as JSON or to journald, so a log that is slow or stuck delays no election. Alarms are counted whether or not
//! their lines are written.

mod alarm_limiter;
mod event;
mod output;
mod writer;

use std::{
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use mdgw_runtime::config::resolved::{LogConfig, LogLevel};
use mdgw_sys::{alarm::Alarm, clock::unix_now};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, Targets},
    layer::{Context, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

use self::{
    event::LogEvent,
    output::Output,
    writer::{LogWriter, QueueEnd, start_writer},
};

/// The running log. Dropping it writes what waits.
#[must_use = "dropping it ends the log"]
pub(super) struct Log {
    level: reload::Handle<Targets, Registry>,
    alarm_interval_ms: Arc<AtomicU64>,
    _writer: Option<LogWriter>,
}

/// How this process writes its log, for errors that are reported without the queue.
static OUTPUT: OnceLock<Output> = OnceLock::new();

/// Starts the log. Its thread keeps to `cores`, if there are any.
pub(super) fn start(config: &LogConfig, cores: Vec<usize>) -> Log {
    let output = Output::choose(config.format);
    let alarm_interval_ms = Arc::new(AtomicU64::new(config.alarm_interval_ms));
    let (level_filter, level) = reload::Layer::new(filter(config.level));
    let started = start_writer(output, Arc::clone(&alarm_interval_ms), cores);
    let (queue, writer) = match started {
        Ok((queue, writer)) => (Some(queue), Some(writer)),
        Err(error) => {
            super::warn(&format!("start the log's thread: {error}"));
            (None, None)
        }
    };
    let subscriber = tracing_subscriber::registry()
        .with(queue.map(|queue| Lines { queue }.with_filter(level_filter)))
        // Alarms are warnings and errors; the level of the lines does not hide them from the count.
        .with(AlarmCounter.with_filter(LevelFilter::WARN));
    // A second call in one process fails, and the first subscriber stays.
    let _ = subscriber.try_init();
    if OUTPUT.set(output).is_ok() && output.is_structured() {
        // Other programs read each line.
        std::panic::set_hook(Box::new(move |panic| output.write(&LogEvent::plain(Level::ERROR, &panic.to_string()))));
    }
    Log { level, alarm_interval_ms, _writer: writer }
}

/// Reports an error at once, in the form of this process's log; `false`: it has none, or a log of plain text.
pub(super) fn report(text: &str) -> bool {
    let structured = OUTPUT.get().filter(|output| output.is_structured());
    structured.inspect(|output| output.write(&LogEvent::plain(Level::ERROR, text))).is_some()
}

impl Log {
    /// Applies what may change while the program runs.
    pub(super) fn set(&self, config: &LogConfig) {
        let _ = self.level.reload(filter(config.level));
        self.alarm_interval_ms.store(config.alarm_interval_ms, Relaxed);
    }
}

/// Which events become lines. A library's events below a warning do so at `trace` only: its debug text is for its authors, and
/// some libraries log each attempt to connect as information.
fn filter(level: LogLevel) -> Targets {
    let (own, of_libraries) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::WARN),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_target(OWN_TARGETS, own).with_default(of_libraries)
}

/// What the names of the project's own crates begin with.
const OWN_TARGETS: &str = "mdgw";

/// Puts events into the queue.
struct Lines {
    queue: QueueEnd,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.queue.push(LogEvent::of(event));
    }
}

/// Counts the events that have a field `alarm`.
struct AlarmCounter;

impl<S: Subscriber> Layer<S> for AlarmCounter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut name = AlarmName(None);
        event.record(&mut name);
        if let AlarmName(Some(alarm)) = name {
            alarm.count_raised(unix_now());
        }
    }
}

/// The alarm that an event names.
struct AlarmName(Option<Alarm>);

impl Visit for AlarmName {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "alarm" {
            self.0 = Alarm::by_name(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::fmt;

    use super::*;

    #[test]
    fn a_library_logs_warnings_and_the_programs_own_crates_what_is_configured() {
        let is_written = |level, target, of_event| filter(level).would_enable(target, &of_event);
        for own in ["mdgw", "mdgw_nats::connection", "mdgw_runtime::gateway"] {
            assert!(is_written(LogLevel::Info, own, Level::INFO) && !is_written(LogLevel::Info, own, Level::DEBUG));
            assert!(is_written(LogLevel::Debug, own, Level::DEBUG) && !is_written(LogLevel::Error, own, Level::WARN));
        }
        for level in [LogLevel::Warn, LogLevel::Info, LogLevel::Debug] {
            assert!(is_written(level, "async_nats", Level::WARN) && !is_written(level, "async_nats", Level::INFO));
        }
        assert!(is_written(LogLevel::Trace, "async_nats", Level::TRACE));
        assert!(!is_written(LogLevel::Error, "async_nats", Level::WARN));
    }

    #[test]
    fn an_alarm_is_counted_once_at_every_level_of_the_log() {
        let before = Alarm::StoreSlow.raised();
        // A test of the writer loses lines meanwhile.
        let all = || Alarm::ALL.iter().filter(|alarm| **alarm != Alarm::LogLinesLost);
        let others = || all().map(|alarm| alarm.raised().count).sum::<u64>();
        let sum_before = others();
        for level in [LevelFilter::OFF, LevelFilter::ERROR, LevelFilter::TRACE] {
            let silent = fmt::layer().with_writer(std::io::sink).with_filter(level);
            let subscriber =
                tracing_subscriber::registry().with(silent).with(AlarmCounter.with_filter(LevelFilter::WARN));
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(alarm = Alarm::StoreSlow.name(), other = "line-silent", "slow");
                tracing::warn!(channel = "store-slow", "no alarm");
            });
        }
        let after = Alarm::StoreSlow.raised();
        assert_eq!((after.count - before.count, others() - sum_before), (3, 3));
        assert!(after.last > before.last);
    }
}
