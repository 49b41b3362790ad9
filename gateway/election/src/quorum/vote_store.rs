//! Stores votes on a thread of its own, so that a slow disk delays no renewal.

use std::{io, sync::mpsc};

use mdgw_sys::scheduler::spawn_short_slice;

use super::{
    vote_file::VoteFile,
    voter::{DurableVote, VoteWriteId},
};

/// Accepts votes to store. Its thread ends with this value.
#[derive(Debug)]
pub(crate) struct VoteStore(mpsc::Sender<(VoteWriteId, DurableVote)>);

impl VoteStore {
    /// Starts the thread. `done` is called for each write, in order, with its result.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(
        mut file: VoteFile,
        done: impl Fn(VoteWriteId, WriteResult) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, tasks) = mpsc::channel::<(VoteWriteId, DurableVote)>();
        spawn_short_slice("mdgw-votes", move || {
            for (write_id, durable) in tasks {
                let stored = file.store(durable);
                if let Err(error) = &stored {
                    tracing::error!("votes: request not answered: {error}");
                }
                done(write_id, if stored.is_ok() { WriteResult::Durable } else { WriteResult::Failed });
            }
        })?;
        Ok(Self(sender))
    }

    /// Submits a write.
    pub(crate) fn store(&self, write_id: VoteWriteId, durable: DurableVote) {
        // The receiving thread lives as long as this sender.
        let _handed = self.0.send((write_id, durable));
    }
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    /// The vote is on disk.
    Durable,
    /// The vote may be on disk or not.
    Failed,
}
