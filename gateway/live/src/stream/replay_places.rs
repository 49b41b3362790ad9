//! How many replays of a dataset run at a time: each reads the log and keeps books of its own.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of a dataset's replays. Who finds none waits, in the order of coming.
#[derive(Debug)]
pub(crate) struct ReplayPlaces {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl ReplayPlaces {
    /// That many places.
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), waiting: AtomicUsize::new(0) }
    }

    /// Takes a place, until it is dropped.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        let _counted = Waiting::new(&self.waiting);
        // Nobody closes the semaphore.
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    /// Whether a replay waits for a place.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Free places.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }
}

/// Counts as waiting until it is dropped, also when the waiting is given up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
