//! Stores votes on a thread of its own, so that a slow disk keeps nobody from renewing.

use std::{io, sync::mpsc};

use mdgw_sys::scheduler::spawn_prompt;

use super::{
    vote_file::VoteFile,
    voter::{Kept, StoreTicket},
};

/// Where votes are handed in. Its thread ends with it.
#[derive(Debug)]
pub struct VoteStore(mpsc::Sender<(StoreTicket, Kept)>);

impl VoteStore {
    /// Starts the thread; `done` is told of each store, in order, and whether it is on disk.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(mut file: VoteFile, done: impl Fn(StoreTicket, IsStored) + Send + 'static) -> io::Result<Self> {
        let (sender, tasks) = mpsc::channel::<(StoreTicket, Kept)>();
        spawn_prompt("mdgw-votes", move || {
            for (ticket, kept) in tasks {
                let stored = file.store(kept);
                if let Err(error) = &stored {
                    tracing::error!("votes: not answered: {error}");
                }
                done(ticket, if stored.is_ok() { IsStored::Yes } else { IsStored::No });
            }
        })?;
        Ok(Self(sender))
    }

    /// Hands it in.
    pub fn store(&self, ticket: StoreTicket, kept: Kept) {
        // The thread lives as long as this sender.
        let _handed = self.0.send((ticket, kept));
    }
}

/// Whether a store is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsStored {
    /// It is.
    Yes,
    /// It may be or not.
    No,
}
