//! The sink as a whole: a thread that serves all channels, each with its stream.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
};

use crate::{
    SinkError,
    channel_sink::ChannelSink,
    config::{SinkConfig, SinkCounts},
    connection::Connection,
    progress::{Progress, RETRY_INTERVAL, wait},
};

/// Follows the logs of all channels into their streams.
#[derive(Debug)]
pub struct Sink {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts the thread. Neither a server nor a log need be there yet.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(config: SinkConfig) -> Result<Self, SinkError> {
        let progress = Arc::new(Progress::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SinkError::Thread)?;
        let own = Arc::clone(&progress);
        let body = move || runtime.block_on(run(config, own));
        let thread = thread::Builder::new().name("nats-sink".to_owned()).spawn(body).map_err(SinkError::Thread)?;
        Ok(Self { progress, thread: Some(thread) })
    }

    /// Whether the sink has tried to connect: from then on it works, or waits for a server.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.progress.has_tried.load(Relaxed)
    }

    /// Why the sink has ended by itself.
    #[must_use]
    pub fn failure(&self) -> Option<SinkError> {
        let failure = self.progress.take_failure();
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        failure.or_else(|| has_ended.then_some(SinkError::Stopped))
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> SinkCounts {
        self.progress.counts()
    }

    /// Waits for the answers to what was sent, for a time, and ends. The next start goes on behind the stream's end.
    pub fn stop(mut self) -> SinkCounts {
        self.end();
        self.counts()
    }

    fn end(&mut self) {
        self.progress.is_stopping.store(true, Relaxed);
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

async fn run(config: SinkConfig, progress: Arc<Progress>) {
    let mut is_failing = false;
    let connection = loop {
        let opened = Connection::open(&config.server, &progress.disconnects).await;
        progress.has_tried.store(true, Relaxed);
        match opened {
            Ok(connection) => break connection,
            Err(error) if error.is_temporary() => progress.report_failure(&mut is_failing, "all", &error),
            Err(error) => {
                progress.fail(error);
                return;
            }
        }
        if wait(&progress, RETRY_INTERVAL).await {
            return;
        }
    };
    progress.end_failure(&mut is_failing);
    tracing::info!(servers = config.server.servers.join(", "), "nats: connected");
    let channels = config.channels.iter().map(|channel| {
        let sink = ChannelSink::new(channel.clone(), config.writer, config.stream, connection.clone(), &progress);
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
