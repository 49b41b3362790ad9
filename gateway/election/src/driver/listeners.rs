//! Listeners, notified on a thread of their own, so that a slow listener does not delay a fence.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use mdgw_wire::identity::Epoch;

use crate::{
    core::{CloseReason, ConnectionState},
    latch::{Listener, ListenerId},
};

/// What listeners are notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerEvent {
    Gained(Epoch),
    Raised(Epoch),
    Lost(Epoch, CloseReason),
    Connection(Epoch, ConnectionState),
}

/// The listeners, and the thread that notifies them, started with the first listener.
#[derive(Default)]
pub(super) struct Listeners(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    listeners: Vec<(ListenerId, Arc<dyn Listener>)>,
    count: u64,
    notifier: Option<mpsc::Sender<Notification>>,
    has_ended: bool,
}

struct Notification {
    event: ListenerEvent,
    to: Vec<(ListenerId, Arc<dyn Listener>)>,
    /// Dropped when all listeners have returned: this ends the wait in [`Listeners::notify`].
    done: Option<mpsc::Sender<()>>,
}

impl Listeners {
    pub(super) fn add(&self, listener: Arc<dyn Listener>) -> ListenerId {
        let mut inner = self.inner();
        inner.count += 1;
        let id = ListenerId(inner.count);
        inner.listeners.push((id, listener));
        id
    }

    pub(super) fn remove(&self, id: ListenerId) {
        self.inner().listeners.retain(|(listener, _)| *listener != id);
    }

    /// Notifies the listeners in order, after all earlier events. With a limit: returns when all listeners have
    /// returned, or after the limit, while they continue.
    pub(super) fn notify(&self, event: ListenerEvent, limit: Option<Duration>) {
        let (done, all_notified) = mpsc::channel();
        {
            let mut inner = self.inner();
            if inner.listeners.is_empty() || inner.has_ended {
                return;
            }
            let to = inner.listeners.clone();
            let task = Notification { event, to, done: limit.is_some().then_some(done) };
            let Some(notifier) = inner.notifier() else { return };
            // The receiving thread lives as long as this sender.
            let _sent = notifier.send(task);
        }
        if let Some(limit) = limit
            && all_notified.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout)
        {
            tracing::warn!(
                ?event,
                limit_ms = limit.as_millis(),
                "leadership listeners did not finish in time; continuing without them"
            );
        }
    }

    /// The thread ends after all pending notifications.
    pub(super) fn end(&self) {
        let mut inner = self.inner();
        inner.has_ended = true;
        inner.notifier = None;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn notifier(&mut self) -> Option<&mpsc::Sender<Notification>> {
        if self.notifier.is_none() {
            let (sender, tasks) = mpsc::channel::<Notification>();
            let thread = std::thread::Builder::new().name("mdgw-listeners".to_owned());
            let run = move || tasks.into_iter().for_each(|task| task.run());
            match thread.spawn(run) {
                Ok(_detached) => self.notifier = Some(sender),
                Err(error) => tracing::error!(%error, "cannot start the thread that notifies leadership listeners"),
            }
        }
        self.notifier.as_ref()
    }
}

impl Notification {
    fn run(self) {
        for (_, listener) in &self.to {
            let event = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match self.event {
                ListenerEvent::Gained(epoch) => listener.gained(epoch),
                ListenerEvent::Raised(epoch) => listener.raised(epoch),
                ListenerEvent::Lost(epoch, reason) => listener.lost(epoch, reason),
                ListenerEvent::Connection(epoch, state) => listener.connection(epoch, state),
            }));
            if event.is_err() {
                tracing::error!(event = ?self.event, "a leadership listener panicked");
            }
        }
        drop(self.done);
    }
}
