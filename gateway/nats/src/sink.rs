//! The sink as a whole: a thread that serves all channels, each with its stream.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use mdgw_sys::alarm::Alarm;

use crate::{
    SinkError,
    channel_sink::ChannelSink,
    config::{SinkConfig, SinkCounts},
    connection::Connection,
};

/// Follows the logs of all channels into their streams.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of the sink and its owner share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    is_stopping: AtomicBool,
    has_tried: AtomicBool,
    failure: Mutex<Option<SinkError>>,
    pub(crate) stored: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) gaps: AtomicU64,
    pub(crate) holes: AtomicU64,
    pub(crate) fenced: AtomicU64,
    failures: AtomicU64,
    pub(crate) writing: AtomicUsize,
}

impl Sink {
    /// Starts the thread. Neither a server nor a log need be there yet.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(config: SinkConfig) -> Result<Self, SinkError> {
        let shared = Arc::new(Shared::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SinkError::Thread)?;
        let own = Arc::clone(&shared);
        let body = move || runtime.block_on(run(config, own));
        let thread = thread::Builder::new().name("nats-sink".to_owned()).spawn(body).map_err(SinkError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether the sink has tried to connect: from then on it works, or waits for a server.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.has_tried.load(Relaxed)
    }

    /// Why the sink has ended by itself.
    #[must_use]
    pub fn failure(&self) -> Option<SinkError> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        failure.or_else(|| has_ended.then(|| SinkError::Stopped))
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> SinkCounts {
        let shared = &self.shared;
        SinkCounts {
            messages: shared.stored.load(Relaxed),
            records: shared.records.load(Relaxed),
            duplicates: shared.duplicates.load(Relaxed),
            gaps: shared.gaps.load(Relaxed),
            holes: shared.holes.load(Relaxed),
            fenced: shared.fenced.load(Relaxed),
            failures: shared.failures.load(Relaxed),
            writing: shared.writing.load(Relaxed),
        }
    }

    /// Waits for the answers to what was sent, for a time, and ends. The next start goes on behind the stream's end.
    pub fn stop(mut self) -> SinkCounts {
        self.end();
        self.counts()
    }

    fn end(&mut self) {
        self.shared.is_stopping.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by `failure`.
            let _reported = thread.join();
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Reports that the servers do not work, unless `is_failing` says that this was reported.
    pub(crate) fn report_failure(&self, is_failing: &mut bool, stream: &str, error: &SinkError) {
        if !mem::replace(is_failing, true) {
            self.failures.fetch_add(1, Relaxed);
            tracing::error!(
                alarm = Alarm::NatsUnreachable.name(),
                stream,
                %error,
                "nats: cannot write to the stream; the gateway publishes on, and the sink goes on from the log once it can"
            );
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }
}

async fn run(config: SinkConfig, shared: Arc<Shared>) {
    let mut is_failing = false;
    let connection = loop {
        let opened = Connection::open(&config.server).await;
        shared.has_tried.store(true, Relaxed);
        match opened {
            Ok(connection) => break connection,
            Err(error) if error.is_temporary() => shared.report_failure(&mut is_failing, "all", &error),
            Err(error) => {
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return;
            }
        }
        if wait(&shared, RETRY_INTERVAL).await {
            return;
        }
    };
    tracing::info!(servers = config.server.servers.join(", "), "nats: connected");
    let channels = config.channels.iter().map(|channel| {
        let sink = ChannelSink::new(channel.clone(), config.writer, config.stream, connection.clone(), &shared);
        tokio::spawn(sink.run())
    });
    let tasks: Vec<_> = channels.collect();
    for task in tasks {
        // A task that panicked is missed by its channel; the sink ends, so that its supervisor starts it again.
        if task.await.is_err() {
            return;
        }
    }
}

/// Sleeps in parts. Returns whether the sink is to stop.
pub(crate) async fn wait(shared: &Shared, duration: Duration) -> bool {
    let until = tokio::time::Instant::now() + duration;
    while !shared.is_stopping() && tokio::time::Instant::now() < until {
        tokio::time::sleep(STOP_INTERVAL.min(duration)).await;
    }
    shared.is_stopping()
}

/// Time between two attempts to connect, or to read a stream's end.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often a stop is looked for.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
