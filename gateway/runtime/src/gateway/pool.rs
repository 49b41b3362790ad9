//! A running pool, whichever backend its handle set has.

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

/// What the gateway's cold threads want of a pool once it runs. The backend was chosen at the start and is not asked
/// for again.
pub(super) trait RunningPool: fmt::Debug + Send + Sync {
    fn gauges(&self) -> Gauges;
    fn fault(&self) -> Option<String>;
    fn failed(&self, index: usize) -> Option<FailReason>;
    /// The message comes back when the channel's inbox is full, or the pool is shut down.
    fn send(&self, index: usize, message: ChannelMessage) -> Result<(), ChannelMessage>;
    /// Nothing, when it was shut down before.
    fn shutdown(&self) -> Vec<ChannelPipeline>;
}

/// A pool over one kind of handle set. The lock is taken by cold threads alone, and for writing once, at the end.
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
