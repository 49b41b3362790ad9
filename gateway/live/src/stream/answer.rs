//! An answer of another thread: a session waits for it without taking it.

use tokio::sync::oneshot::{self, error::TryRecvError};

/// The one answer to a question.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    receiver: oneshot::Receiver<T>,
    /// What [`Self::wait`] has received. `Some(None)`: the other side has gone without an answer.
    received: Option<Option<T>>,
}

impl<T> Answer<T> {
    /// The answer that comes there.
    pub(crate) fn new(receiver: oneshot::Receiver<T>) -> Self {
        Self { receiver, received: None }
    }

    /// Waits until [`Self::take`] has something to return. May be dropped while it waits: no answer is lost.
    pub(crate) async fn wait(&mut self) {
        if self.received.is_none() {
            self.received = Some((&mut self.receiver).await.ok());
        }
    }

    /// The answer, if it has come. `Some(None)`: none will come.
    pub(crate) fn take(&mut self) -> Option<Option<T>> {
        self.received.take().or_else(|| match self.receiver.try_recv() {
            Ok(answer) => Some(Some(answer)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_while_nobody_waits_is_not_lost() {
        let (reply, receiver) = oneshot::channel();
        let mut answer = Answer::new(receiver);
        let limit = Duration::from_millis(1);
        assert!(tokio::time::timeout(limit, answer.wait()).await.is_err() && answer.take().is_none());
        reply.send(7).unwrap();
        answer.wait().await;
        // A session that was woken by something else waits again.
        answer.wait().await;
        assert_eq!(answer.take(), Some(Some(7)));
    }

    #[tokio::test]
    async fn the_end_of_the_other_side_ends_the_wait() {
        let (reply, receiver) = oneshot::channel::<u8>();
        let mut answer = Answer::new(receiver);
        drop(reply);
        answer.wait().await;
        assert_eq!(answer.take(), Some(None));
    }
}
