//! Log lines on standard error, for long-running subcommands. Alarms are counted whether or not their lines are written.

use std::{fmt::Debug, io::IsTerminal as _};

use mdgw_runtime::config::resolved::LogLevel;
use mdgw_sys::{alarm::Alarm, clock::unix_now};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer, Registry,
    filter::LevelFilter,
    fmt,
    layer::{Context, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

/// Changes the level while the program runs.
pub(super) struct LevelHandle(reload::Handle<LevelFilter, Registry>);

/// Starts logging at this level.
pub(super) fn start(level: LogLevel) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).with_target(false);
    let subscriber = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        // Alarms are warnings and errors; the level of the lines does not hide them from the count.
        .with(AlarmCounter.with_filter(LevelFilter::WARN));
    // A second call in one process fails, and the first subscriber stays.
    let _ = subscriber.try_init();
    LevelHandle(handle)
}

impl LevelHandle {
    /// Changes the level from now on.
    pub(super) fn set(&self, level: LogLevel) {
        let _ = self.0.reload(filter(level));
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
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
    use super::*;

    #[test]
    fn an_alarm_is_counted_once_at_every_level_of_the_log() {
        let before = Alarm::StoreSlow.raised();
        let others = || Alarm::ALL.iter().map(|alarm| alarm.raised().count).sum::<u64>();
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
