//! A running pool of channels, independent of the backend of its handle set. The data path of every backend is compiled here,
//! once; packages that start a pool compile none of it.

use std::{
    fmt, io,
    marker::PhantomData,
    os::fd::BorrowedFd,
    sync::{Arc, PoisonError, RwLock},
};

use mdgw_sys::handle::{ChannelIndex, Handle};

use crate::{
    dispatch::{
        Dispatch, DispatchConfig, DispatchModel, FailReason, StartError, half_sync::HalfSync, pool::Pool,
        reactor::Reactor, roles::Gauges,
    },
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

/// Starts a pool of that model on that backend.
///
/// # Errors
/// When the handle set cannot be made, or the threads cannot be started.
pub fn start(
    model: DispatchModel,
    backend: Backend,
    config: &DispatchConfig,
    channels: Vec<ChannelPipeline>,
    local: MakeLocal,
) -> Result<Arc<dyn ChannelPool>, PoolError> {
    match backend {
        Backend::Epoll => start_on(model, backend, EpollSet::new, config, channels, local),
        Backend::Ring(wait) => start_on(model, backend, || RingSet::new(wait), config, channels, local),
        Backend::Multishot => {
            start_on(model, backend, || MultishotSet::new(MultishotSet::BUFFERS), config, channels, local)
        }
    }
}

fn start_on<S: HandleSet + 'static>(
    model: DispatchModel,
    backend: Backend,
    make_set: impl Fn() -> io::Result<S>,
    config: &DispatchConfig,
    channels: Vec<ChannelPipeline>,
    local: MakeLocal,
) -> Result<Arc<dyn ChannelPool>, PoolError> {
    let make_set = || make_set().map_err(|source| PoolError::HandleSet { backend, source });
    Ok(match model {
        DispatchModel::LeaderFollowers => start_model::<S, Pool<_, _>>(make_set, config, channels, local)?,
        DispatchModel::HalfSync => start_model::<S, HalfSync<_, _>>(make_set, config, channels, local)?,
        DispatchModel::Reactor => start_model::<S, Reactor<_, _>>(make_set, config, channels, local)?,
    })
}

fn start_model<S: HandleSet + 'static, D: Dispatch<S, ChannelPipeline> + Send + Sync + 'static>(
    make_set: impl Fn() -> Result<S, PoolError>,
    config: &DispatchConfig,
    channels: Vec<ChannelPipeline>,
    local: MakeLocal,
) -> Result<Arc<dyn ChannelPool>, PoolError> {
    let set_count = D::set_count(config.threads.len());
    let sets = (0..set_count).map(|_| make_set().map(Arc::new)).collect::<Result<_, _>>()?;
    let pool = D::start(config, sets, channels, local)?;
    Ok(Arc::new(LockedPool::<S, D> { pool: RwLock::new(Some(pool)), set: PhantomData }))
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

/// A pool of one model over one kind of handle set. Only cold threads take the lock. The only writer is the shutdown.
struct LockedPool<S, D> {
    pool: RwLock<Option<D>>,
    set: PhantomData<fn() -> S>,
}

impl<S, D> LockedPool<S, D> {
    fn with_pool<T>(&self, query: impl FnOnce(&D) -> T) -> Option<T> {
        self.pool.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(query)
    }
}

impl<S, D> fmt::Debug for LockedPool<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockedPool").finish_non_exhaustive()
    }
}

impl<S: HandleSet + 'static, D: Dispatch<S, ChannelPipeline> + Send + Sync> ChannelPool for LockedPool<S, D> {
    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.with_pool(|pool| pool.add(socket, handle)).unwrap_or_else(|| Err(is_shut_down()))
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.with_pool(|pool| pool.remove(socket)).unwrap_or_else(|| Err(is_shut_down()))
    }

    fn insert(&self, channel: Box<ChannelPipeline>) -> Result<(), Box<ChannelPipeline>> {
        let guard = self.pool.read().unwrap_or_else(PoisonError::into_inner);
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
        self.with_pool(D::gauges).unwrap_or_default()
    }

    fn fault(&self) -> Option<String> {
        self.with_pool(D::fault).flatten()
    }

    fn failed(&self, index: usize) -> Option<FailReason> {
        self.with_pool(|pool| pool.failed(channel_index(index))).flatten()
    }

    fn send(&self, index: usize, message: ChannelMessage) -> Result<(), ChannelMessage> {
        let guard = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        match guard.as_ref() {
            Some(pool) => pool.send(channel_index(index), message),
            None => Err(message),
        }
    }

    fn shutdown(&self) -> Vec<ChannelPipeline> {
        let pool = self.pool.write().unwrap_or_else(PoisonError::into_inner).take();
        pool.map(D::shutdown).unwrap_or_default()
    }
}

fn is_shut_down() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the pool is shut down")
}

fn channel_index(index: usize) -> ChannelIndex {
    // A pool has far fewer slots; none has the last number.
    ChannelIndex(u32::try_from(index).unwrap_or(u32::MAX))
}
