//! A running pool, independent of the backend of its handle set.

use std::{
    fmt,
    sync::{PoisonError, RwLock},
};

use mdgw_engine::{
    dispatch::{Dispatch, FailReason, pool::Pool, roles::Gauges},
    handle_set::HandleSet,
    pipeline::{ChannelMessage, ChannelPipeline},
};
use mdgw_sys::handle::ChannelIndex;

/// The cold threads' access to a running pool. The backend is fixed at the start.
pub(super) trait RunningPool: fmt::Debug + Send + Sync {
    fn gauges(&self) -> Gauges;
    fn fault(&self) -> Option<String>;
    fn failed(&self, index: usize) -> Option<FailReason>;
    /// Sends a message to a channel. Returns the message if the channel's inbox is full or the pool is shut down.
    fn send(&self, index: usize, message: ChannelMessage) -> Result<(), ChannelMessage>;
    /// Stops the threads and returns the channels; empty if the pool was already shut down.
    fn shutdown(&self) -> Vec<ChannelPipeline>;
}

/// A pool over one kind of handle set. Only cold threads take the lock. The only writer is the shutdown.
pub(super) struct LockedPool<S: HandleSet + 'static>(RwLock<Option<Pool<S, ChannelPipeline>>>);

impl<S: HandleSet + 'static> LockedPool<S> {
    pub(super) fn new(pool: Pool<S, ChannelPipeline>) -> Self {
        Self(RwLock::new(Some(pool)))
    }

    fn with_pool<T>(&self, query: impl FnOnce(&Pool<S, ChannelPipeline>) -> T) -> Option<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(query)
    }
}

impl<S: HandleSet + 'static> fmt::Debug for LockedPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolOf").finish_non_exhaustive()
    }
}

impl<S: HandleSet + 'static> RunningPool for LockedPool<S> {
    fn gauges(&self) -> Gauges {
        self.with_pool(Pool::gauges).unwrap_or_default()
    }

    fn fault(&self) -> Option<String> {
        self.with_pool(Pool::fault).flatten()
    }

    fn failed(&self, index: usize) -> Option<FailReason> {
        let index = ChannelIndex(u32::try_from(index).ok()?);
        self.with_pool(|pool| pool.failed(index)).flatten()
    }

    fn send(&self, index: usize, message: ChannelMessage) -> Result<(), ChannelMessage> {
        let index = ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX));
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match guard.as_ref() {
            Some(pool) => pool.send(index, message),
            None => Err(message),
        }
    }

    fn shutdown(&self) -> Vec<ChannelPipeline> {
        let pool = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        pool.map(Pool::shutdown).unwrap_or_default()
    }
}
