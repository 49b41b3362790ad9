//! Reactor per thread: the channels are distributed over the threads, and each thread waits on a handle set of its own.
//!
//! Channel `c` of `T` threads belongs to thread `c % T` for ever. There is no token and no hand-off, so a packet costs the
//! least where the load is even. A thread never helps another one: a hot channel delays the other channels of its thread
//! while the other threads idle. With one thread this is the one-thread pool of Leader/Followers.
//!
//! Each thread is a pool of one ([`Pool`]), so what a turn does is the same code. A set may deliver datagrams.

use std::{io, os::fd::BorrowedFd, sync::Arc};

use mdgw_sys::handle::{ChannelIndex, Handle};

use super::{
    pool::{Pool, worker},
    pool_state::check_cores,
    roles::Gauges,
};
use crate::{
    dispatch::{ChannelHandler, Dispatch, DispatchConfig, FailReason, StartError},
    handle_set::HandleSet,
};

/// One pool of one thread for each thread of the configuration.
pub struct Reactor<S: HandleSet + 'static, H: ChannelHandler> {
    pools: Vec<Pool<S, H>>,
    channel_count: usize,
}

impl<S: HandleSet + 'static, H: ChannelHandler> Dispatch<S, H> for Reactor<S, H> {
    fn set_count(thread_count: usize) -> usize {
        thread_count
    }

    fn start(
        config: &DispatchConfig,
        sets: Vec<Arc<S>>,
        channels: Vec<H>,
        local: impl Fn(usize) -> H::Local + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        if config.threads.is_empty() || sets.len() != config.threads.len() {
            return Err(StartError::InvalidSetting("a reactor needs at least one thread, and a handle set for each"));
        }
        check_cores(&config.threads)?;
        let channel_count = channels.len();
        let mut channels_of: Vec<Vec<H>> = sets.iter().map(|_| Vec::new()).collect();
        for (index, channel) in channels.into_iter().enumerate() {
            channels_of[index % sets.len()].push(channel);
        }
        let local = Arc::new(local);
        let mut pools = Vec::with_capacity(sets.len());
        for (number, (set, channels)) in sets.into_iter().zip(channels_of).enumerate() {
            let one = DispatchConfig { threads: vec![config.threads[number]], ..config.clone() };
            let local = Arc::clone(&local);
            pools.push(Pool::set_up(&one, number, set, channels, move |shared, index, signal| {
                let mut worker = worker(shared, index, signal.number(), &*local)?;
                if signal.is_opened() {
                    worker.run();
                }
                Ok(())
            })?);
        }
        pools.iter_mut().for_each(Pool::begin);
        Ok(Self { pools, channel_count })
    }

    fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        let Some((pool, channel)) = self.owner(handle.channel) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no thread has such a channel"));
        };
        pool.add(socket, Handle { channel, ..handle })
    }

    fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // The socket is in one set; the others refuse.
        let mut refused = io::ErrorKind::NotFound.into();
        for pool in &self.pools {
            match pool.remove(socket) {
                Ok(()) => return Ok(()),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn send(&self, channel: ChannelIndex, message: H::Message) -> Result<(), H::Message> {
        match self.owner(channel) {
            Some((pool, channel)) => pool.send(channel, message),
            None => Err(message),
        }
    }

    fn failed(&self, channel: ChannelIndex) -> Option<FailReason> {
        let (pool, channel) = self.owner(channel)?;
        pool.failed(channel)
    }

    /// A thread that cannot go on ends the others at the next call: half of the channels are no working gateway.
    fn fault(&self) -> Option<String> {
        let fault = self.pools.iter().find_map(Pool::fault)?;
        self.pools.iter().for_each(Pool::stop);
        Some(fault)
    }

    fn gauges(&self) -> Gauges {
        Gauges::sum(self.pools.iter().map(Pool::gauges))
    }

    fn shutdown(self) -> Vec<H> {
        self.pools.iter().for_each(Pool::stop);
        let mut channels_of: Vec<_> = self.pools.into_iter().map(|pool| pool.shutdown().into_iter()).collect();
        let thread_count = channels_of.len();
        (0..self.channel_count).filter_map(|index| channels_of[index % thread_count].next()).collect()
    }
}

impl<S: HandleSet + 'static, H: ChannelHandler> Reactor<S, H> {
    /// The pool of a channel, and the channel's index in it.
    fn owner(&self, channel: ChannelIndex) -> Option<(&Pool<S, H>, ChannelIndex)> {
        let index = usize::try_from(channel.0).ok()?;
        let pool = self.pools.get(index % self.pools.len())?;
        // The quotient is not larger than the index.
        let within = u32::try_from(index / self.pools.len()).ok()?;
        Some((pool, ChannelIndex(within)))
    }
}
