//! Log lines on standard error, for long-running subcommands.

use std::io::IsTerminal as _;

use mdgw_runtime::config::resolved::LogLevel;
use tracing_subscriber::{
    Registry, filter::LevelFilter, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

/// Changes the level while the program runs.
pub(super) struct LevelHandle(reload::Handle<LevelFilter, Registry>);

/// Starts logging at this level.
pub(super) fn start(level: LogLevel) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).with_target(false);
    // A second call in one process fails, and the first subscriber stays.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
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
