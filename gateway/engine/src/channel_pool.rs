//! A running pool of channels, independent of the backend of its handle set. The data path of every backend is compiled here,
//! once; packages that start a pool compile none of it.

use std::{
    fmt, io,
    os::fd::BorrowedFd,
    sync::{Arc, PoisonError, RwLock},
};

use mdgw_sys::handle::{ChannelIndex, Handle};

use crate::{
    dispatch::{Dispatch, DispatchConfig, FailReason, StartError, pool::Pool, roles::Gauges},
    handle_set::{
        HandleSet,
        backend_choice::Backend,
        epoll::EpollSet,
        ring::{MultishotSet, RingSet},
    },
    pipeline::{ChannelMessage, ChannelPipeline, PipelineLocal},
};

/// The cold threads' access to a running pool. The backend is fixed at the start.
pub trait ChannelPool: fmt::Debug + Send + Sync {
    /// Starts to watch a socket of a channel, and wakes the waiting thread.
    ///
    /// # Errors
    /// As [`HandleSet::add`]; `InvalidInput` for a channel that does not exist, or if the pool is shut down.
    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()>;
    /// Stops watching a socket.
    ///
    /// # Errors
    /// As [`HandleSet::remove`]; `InvalidInput` if the pool is shut down.
    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()>;
    /// Puts a channel into the vacant slot that its pipeline names: see [`Dispatch::insert`].
    ///
    /// # Errors
    /// Returns the channel if that slot does not exist or is not vacant, or if the pool is shut down.
    fn insert(&self, channel: Box<ChannelPipeline>) -> Result<(), Box<ChannelPipeline>>;
    /// Takes a channel out of service for good: see [`Dispatch::retire`].
    fn retire(&self, index: usize);
    /// A retired channel that no thread touches any more: see [`Dispatch::take_retired`].
    fn take_retired(&self, index: usize) -> Option<Box<ChannelPipeline>>;
    /// The gauges of the pool; zeros once it is shut down.
    fn gauges(&self) -> Gauges;
    /// Why the pool has stopped without a request, if it has.
    fn fault(&self) -> Option<String>;
    /// Why a channel is out of service; `None` while it is in service.
    fn failed(&self, index: usize) -> Option<FailReason>;
    /// Sends a message to a channel.
    ///
    /// # Errors
    /// Returns the message if the channel's inbox is full or the pool is shut down.
    fn send(&self, index: usize, message: ChannelMessage) -> Result<(), ChannelMessage>;
    /// Stops the threads and returns the channels; empty if the pool was already shut down.
    fn shutdown(&self) -> Vec<ChannelPipeline>;
}

/// Makes what the thread with that number needs for itself. Called once for each thread, on that thread.
pub type MakeLocal = Box<dyn Fn(usize) -> PipelineLocal + Send + Sync>;

/// Starts a pool on that backend.
///
/// # Errors
/// When the handle set cannot be made, or the threads cannot be started.
pub fn start(
    backend: Backend,
    config: &DispatchConfig,
    channels: Vec<ChannelPipeline>,
    local: MakeLocal,
) -> Result<Arc<dyn ChannelPool>, PoolError> {
    match backend {
        Backend::Epoll => start_on(EpollSet::new().map_err(PoolError::set(backend))?, config, channels, local),
        Backend::Ring(wait) => start_on(RingSet::new(wait).map_err(PoolError::set(backend))?, config, channels, local),
        Backend::Multishot => {
            let set = MultishotSet::new(MultishotSet::BUFFERS).map_err(PoolError::set(backend))?;
            start_on(set, config, channels, local)
        }
    }
}

fn start_on<S: HandleSet + 'static>(
    set: S,
    config: &DispatchConfig,
    channels: Vec<ChannelPipeline>,
    local: MakeLocal,
) -> Result<Arc<dyn ChannelPool>, PoolError> {
    let pool = Pool::start(config, Arc::new(set), channels, local)?;
    Ok(Arc::new(LockedPool(RwLock::new(Some(pool)))))
}

/// Why a pool could not start.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The kernel refused the handle set.
    #[error("cannot create the handle set ({backend}): {source}")]
    HandleSet {
        /// The kind of handle set that was chosen for the pool.
        backend: Backend,
        /// The kernel's error.
        source: io::Error,
    },
    /// The threads cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl PoolError {
    fn set(backend: Backend) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::HandleSet { backend, source }
    }
}

/// A pool over one kind of handle set. Only cold threads take the lock. The only writer is the shutdown.
struct LockedPool<S: HandleSet + 'static>(RwLock<Option<Pool<S, ChannelPipeline>>>);

impl<S: HandleSet + 'static> LockedPool<S> {
    fn with_pool<T>(&self, query: impl FnOnce(&Pool<S, ChannelPipeline>) -> T) -> Option<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(query)
    }
}

impl<S: HandleSet + 'static> fmt::Debug for LockedPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockedPool").finish_non_exhaustive()
    }
}

impl<S: HandleSet + 'static> ChannelPool for LockedPool<S> {
    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.with_pool(|pool| pool.add(socket, handle)).unwrap_or_else(|| Err(is_shut_down()))
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.with_pool(|pool| pool.remove(socket)).unwrap_or_else(|| Err(is_shut_down()))
    }

    fn insert(&self, channel: Box<ChannelPipeline>) -> Result<(), Box<ChannelPipeline>> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match guard.as_ref() {
            Some(pool) => pool.insert(channel.index(), *channel).map_err(Box::new),
            None => Err(channel),
        }
    }

    fn retire(&self, index: usize) {
        let _is_shut_down = self.with_pool(|pool| pool.retire(channel_index(index)));
    }

    fn take_retired(&self, index: usize) -> Option<Box<ChannelPipeline>> {
        self.with_pool(|pool| pool.take_retired(channel_index(index))).flatten().map(Box::new)
    }

    fn gauges(&self) -> Gauges {
        self.with_pool(Pool::gauges).unwrap_or_default()
    }

    fn fault(&self) -> Option<String> {
        self.with_pool(Pool::fault).flatten()
    }

    fn failed(&self, index: usize) -> Option<FailReason> {
        self.with_pool(|pool| pool.failed(channel_index(index))).flatten()
    }

    fn send(&self, index: usize, message: ChannelMessage) -> Result<(), ChannelMessage> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match guard.as_ref() {
            Some(pool) => pool.send(channel_index(index), message),
            None => Err(message),
        }
    }

    fn shutdown(&self) -> Vec<ChannelPipeline> {
        let pool = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        pool.map(Pool::shutdown).unwrap_or_default()
    }
}

fn is_shut_down() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the pool is shut down")
}

fn channel_index(index: usize) -> ChannelIndex {
    // A pool has far fewer slots; none has the last number.
    ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX))
}
