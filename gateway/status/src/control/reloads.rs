//! Reloads that clients ask for. A connection's thread waits for the result; the thread that drives the process applies the reload
//! between two other things that it does.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, Sender, SyncSender},
};

use serde_json::Value;

use super::Response;

/// Makes both ends of a queue of requested reloads. At most as many requests wait as the server has connections.
#[must_use]
pub fn reload_queue() -> (ReloadRequester, ReloadQueue) {
    let (sender, receiver) = mpsc::channel();
    (ReloadRequester(sender), ReloadQueue(receiver))
}

/// The end of the threads that answer clients.
#[derive(Clone, Debug)]
pub struct ReloadRequester(Sender<RequestedReload>);

impl ReloadRequester {
    /// Requests a reload and waits for its result, however long it takes. Refused once the [`ReloadQueue`] is gone.
    #[must_use]
    pub fn reload(&self, config: Option<PathBuf>) -> Response {
        let (answer, answered) = mpsc::sync_channel(1);
        // A queue that is dropped drops its requests, and with each request the end that would answer. So does a failed send.
        let _ = self.0.send(RequestedReload { config, answer });
        match answered.recv() {
            Ok(outcome) => Response::from(outcome),
            Err(_) => Response::Refused("not reloaded: the process is stopping".to_owned()),
        }
    }
}

/// The end of the thread that applies reloads. Dropping it refuses what waits and what comes.
#[derive(Debug)]
pub struct ReloadQueue(Receiver<RequestedReload>);

impl ReloadQueue {
    /// The oldest request that waits.
    #[must_use]
    pub fn next(&self) -> Option<RequestedReload> {
        self.0.try_recv().ok()
    }
}

/// A client that waits for the result of a reload.
#[derive(Debug)]
pub struct RequestedReload {
    config: Option<PathBuf>,
    answer: SyncSender<Result<Value, String>>,
}

impl RequestedReload {
    /// The file that the client takes for the configuration in use, if the client named one.
    #[must_use]
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Ends the wait. `Err`: nothing was changed, with the reasons.
    pub fn answer(self, outcome: Result<Value, String>) {
        // A client that has gone waits no longer.
        let _ = self.answer.send(outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_waits_for_the_result_of_its_reload() {
        let (requester, queue) = reload_queue();
        assert!(queue.next().is_none());
        let asking = |config: Option<&str>| {
            let (requester, config) = (requester.clone(), config.map(PathBuf::from));
            thread::spawn(move || requester.reload(config))
        };
        let next = || loop {
            if let Some(request) = queue.next() {
                break request;
            }
            thread::yield_now();
        };
        let asked = asking(Some("/etc/a.toml"));
        let request = next();
        assert_eq!(request.config(), Some(Path::new("/etc/a.toml")));
        assert!(!asked.is_finished());
        request.answer(Ok(json!({ "changed": [] })));
        assert_eq!(asked.join().unwrap(), Response::Ok(json!({ "changed": [] })));

        let asked = asking(None);
        next().answer(Err("node: 2 needs a restart".to_owned()));
        assert_eq!(asked.join().unwrap(), Response::Refused("node: 2 needs a restart".to_owned()));
    }

    #[test]
    fn a_process_that_stops_refuses_the_reloads_that_wait_and_those_that_come() {
        let (requester, queue) = reload_queue();
        let refused = Response::Refused("not reloaded: the process is stopping".to_owned());
        let waiting = {
            let requester = requester.clone();
            thread::spawn(move || requester.reload(None))
        };
        let request = loop {
            if let Some(request) = queue.next() {
                break request;
            }
            thread::yield_now();
        };
        drop(request);
        assert_eq!(waiting.join().unwrap(), refused);
        drop(queue);
        assert_eq!(requester.reload(None), refused);
    }
}
