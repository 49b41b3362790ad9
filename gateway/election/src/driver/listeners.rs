//! Listeners, told on a thread of their own, so that a slow one stops nobody else's fence.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use mdgw_feeds::identity::Epoch;

use crate::{
    core::{CloseReason, ConnectionState},
    latch::{Listener, ListenerId},
};

/// What they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Gained(Epoch),
    Lost(Epoch, CloseReason),
    Connection(Epoch, ConnectionState),
}

/// Who listens, and the thread that tells them, started with the first of them.
#[derive(Default)]
pub(super) struct Listeners(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    listeners: Vec<(ListenerId, Arc<dyn Listener>)>,
    count: u64,
    teller: Option<mpsc::Sender<Task>>,
    has_ended: bool,
}

struct Task {
    told: Told,
    to: Vec<(ListenerId, Arc<dyn Listener>)>,
    /// Dropped when all have been told.
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

    /// Tells them in order, after all that was told before. With a limit: returns when all of them have returned, or
    /// after the limit, and they go on meanwhile.
    pub(super) fn tell(&self, told: Told, limit: Option<Duration>) {
        let (done, all_told) = mpsc::channel();
        {
            let mut inner = self.inner();
            if inner.listeners.is_empty() || inner.has_ended {
                return;
            }
            let to = inner.listeners.clone();
            let task = Task { told, to, done: limit.is_some().then_some(done) };
            let Some(teller) = inner.teller() else { return };
            // Its thread lives as long as this sender.
            let _told = teller.send(task);
        }
        if let Some(limit) = limit
            && all_told.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout)
        {
            tracing::warn!(?told, limit_ms = limit.as_millis(), "listeners are slow; not waited for any longer");
        }
    }

    /// The thread ends when all has been told.
    pub(super) fn end(&self) {
        let mut inner = self.inner();
        inner.has_ended = true;
        inner.teller = None;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn teller(&mut self) -> Option<&mpsc::Sender<Task>> {
        if self.teller.is_none() {
            let (sender, tasks) = mpsc::channel::<Task>();
            let thread = std::thread::Builder::new().name("mdgw-listeners".to_owned());
            let run = move || tasks.into_iter().for_each(|task| task.run());
            match thread.spawn(run) {
                Ok(_detached) => self.teller = Some(sender),
                Err(error) => tracing::error!(%error, "listeners are not told: no thread"),
            }
        }
        self.teller.as_ref()
    }
}

impl Task {
    fn run(self) {
        for (_, listener) in &self.to {
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match self.told {
                Told::Gained(epoch) => listener.gained(epoch),
                Told::Lost(epoch, reason) => listener.lost(epoch, reason),
                Told::Connection(epoch, state) => listener.connection(epoch, state),
            }));
            if told.is_err() {
                tracing::error!(told = ?self.told, "a listener panicked");
            }
        }
        drop(self.done);
    }
}
