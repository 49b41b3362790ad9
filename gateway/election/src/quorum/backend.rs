//! The backend `quorum` of a gateway: one socket for all of its groups, one vote file for each.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use mdgw_feeds::identity::GroupId;
use mdgw_sys::scheduler::spawn_prompt;

use super::{
    candidate::{QuorumEvent, QuorumRequest},
    link::{Received, VoteLink},
    store::{IsStored, VoteStore},
    vote_file::VoteFile,
    wire::DATAGRAM_BYTES_MAX,
};
use crate::{
    core::Input,
    driver::{Backend, Inbox},
};

/// A gateway's socket for votes and the thread that hands on what comes.
#[derive(Debug)]
pub struct QuorumBackends {
    link: Arc<VoteLink>,
    inboxes: Arc<Inboxes>,
    stop: Arc<AtomicBool>,
}

type Inboxes = Mutex<BTreeMap<GroupId, Inbox<QuorumEvent>>>;

impl QuorumBackends {
    /// Begins to receive.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(link: VoteLink) -> io::Result<Self> {
        let (link, inboxes, stop) = (Arc::new(link), Arc::<Inboxes>::default(), Arc::new(AtomicBool::new(false)));
        let receiver = Receiver { link: Arc::clone(&link), inboxes: Arc::clone(&inboxes), stop: Arc::clone(&stop) };
        spawn_prompt("mdgw-quorum", move || receiver.run())?;
        Ok(Self { link, inboxes, stop })
    }

    /// The backend of one group's election, which `inbox` belongs to.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn backend(
        self: &Arc<Self>,
        group: GroupId,
        file: VoteFile,
        inbox: &Inbox<QuorumEvent>,
    ) -> io::Result<QuorumBackend> {
        let to_election = inbox.clone();
        let store = VoteStore::start(file, move |ticket, is_stored| {
            let event = match is_stored {
                IsStored::Yes => QuorumEvent::Stored(ticket),
                IsStored::No => QuorumEvent::NotStored(ticket),
            };
            to_election.tell(Input::Backend(event));
        })?;
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(group, inbox.clone());
        Ok(QuorumBackend { all: Arc::clone(self), store })
    }

    /// The socket.
    #[must_use]
    pub fn link(&self) -> &VoteLink {
        &self.link
    }
}

impl Drop for QuorumBackends {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What one election asks. The socket stays open as long as one of them is there.
#[derive(Debug)]
pub struct QuorumBackend {
    all: Arc<QuorumBackends>,
    store: VoteStore,
}

impl Backend<QuorumRequest> for QuorumBackend {
    fn ask(&mut self, request: QuorumRequest) {
        match request {
            QuorumRequest::Send(message) => self.all.link.send(&message),
            QuorumRequest::Store { ticket, kept } => self.store.store(ticket, kept),
        }
    }
}

struct Receiver {
    link: Arc<VoteLink>,
    inboxes: Arc<Inboxes>,
    stop: Arc<AtomicBool>,
}

impl Receiver {
    fn run(self) {
        let mut buffer = Box::new([0; DATAGRAM_BYTES_MAX]);
        while !self.stop.load(Ordering::Relaxed) {
            match self.link.receive(&mut buffer) {
                Ok(Some(received)) => self.hand_on(received),
                Ok(None) => {}
                Err(error) => {
                    // Without votes the lease ends by itself; nothing here could do better.
                    tracing::error!(%error, "votes: the socket failed, nothing is received any more");
                    return;
                }
            }
        }
    }

    fn hand_on(&self, received: Received) {
        let (group, input) = match received {
            Received::Message(message) => (message.group, Input::Backend(QuorumEvent::Received(message))),
            Received::Death(announcement) => (announcement.group, Input::Died(announcement.notice)),
        };
        let inbox = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&group).cloned();
        if let Some(inbox) = inbox {
            inbox.tell(input);
        }
    }
}
