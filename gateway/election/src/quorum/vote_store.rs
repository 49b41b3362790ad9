//! Stores votes on a thread of its own, so that a slow disk keeps nobody from renewing.

use std::{io, sync::mpsc};

use mdgw_sys::scheduler::spawn_short_slice;

use super::{
    vote_file::VoteFile,
    voter::{DurableVote, VoteWriteId},
};

/// Where votes are handed in. Its thread ends with it.
#[derive(Debug)]
pub struct VoteStore(mpsc::Sender<(VoteWriteId, DurableVote)>);

impl VoteStore {
    /// Starts the thread; `done` is told of each store, in order, and whether it is on disk.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(mut file: VoteFile, done: impl Fn(VoteWriteId, WriteResult) + Send + 'static) -> io::Result<Self> {
        let (sender, tasks) = mpsc::channel::<(VoteWriteId, DurableVote)>();
        spawn_short_slice("mdgw-votes", move || {
            for (write_id, durable) in tasks {
                let stored = file.store(durable);
                if let Err(error) = &stored {
                    tracing::error!("votes: not answered: {error}");
                }
                done(write_id, if stored.is_ok() { WriteResult::Durable } else { WriteResult::Failed });
            }
        })?;
        Ok(Self(sender))
    }

    /// Hands it in.
    pub fn store(&self, write_id: VoteWriteId, durable: DurableVote) {
        // The thread lives as long as this sender.
        let _handed = self.0.send((write_id, durable));
    }
}

/// Whether a store is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// It is.
    Durable,
    /// It may be or not.
    Failed,
}
