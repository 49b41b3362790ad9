//! What the thread of the sink and its owner share.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use mdgw_sys::alarm::Alarm;

use crate::{SinkError, config::SinkCounts};

/// Counts and signals. The sink's thread writes the counts.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) is_stopping: AtomicBool,
    pub(crate) has_tried: AtomicBool,
    failure: Mutex<Option<SinkError>>,
    pub(crate) stored: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) gaps: AtomicU64,
    pub(crate) holes: AtomicU64,
    pub(crate) fenced: AtomicU64,
    failures: AtomicU64,
    pub(crate) disconnects: Arc<AtomicU64>,
    pub(crate) writing: AtomicUsize,
    failing: AtomicUsize,
}

impl Progress {
    /// Notes why the sink ends.
    pub(crate) fn fail(&self, error: SinkError) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Takes what [`Self::fail`] noted.
    pub(crate) fn take_failure(&self) -> Option<SinkError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn counts(&self) -> SinkCounts {
        SinkCounts {
            messages: self.stored.load(Relaxed),
            records: self.records.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            gaps: self.gaps.load(Relaxed),
            holes: self.holes.load(Relaxed),
            fenced: self.fenced.load(Relaxed),
            failures: self.failures.load(Relaxed),
            disconnects: self.disconnects.load(Relaxed),
            writing: self.writing.load(Relaxed),
            failing: self.failing.load(Relaxed),
        }
    }

    /// Reports that the servers do not work, unless `is_failing` says that this was reported.
    pub(crate) fn report_failure(&self, is_failing: &mut bool, stream: &str, error: &SinkError) {
        if !mem::replace(is_failing, true) {
            self.failures.fetch_add(1, Relaxed);
            self.failing.fetch_add(1, Relaxed);
            tracing::error!(
                alarm = Alarm::NatsUnreachable.name(),
                stream,
                %error,
                "nats: cannot write to the stream; the gateway publishes on, and the sink goes on from the log once it can"
            );
        }
    }

    /// The servers work. Returns whether `is_failing` said that they did not.
    pub(crate) fn end_failure(&self, is_failing: &mut bool) -> bool {
        let was_failing = mem::take(is_failing);
        if was_failing {
            self.failing.fetch_sub(1, Relaxed);
        }
        was_failing
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }
}

/// Sleeps in parts. Returns whether the sink is to stop.
pub(crate) async fn wait(progress: &Progress, duration: Duration) -> bool {
    let until = tokio::time::Instant::now() + duration;
    while !progress.is_stopping() && tokio::time::Instant::now() < until {
        tokio::time::sleep(STOP_INTERVAL.min(duration)).await;
    }
    progress.is_stopping()
}

/// Time between two attempts to connect, or to read a stream's end.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often a stop is looked for.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
