//! MoldUDP64 request server: answers each request with one packet of retransmitted messages.

use std::{
    io,
    net::{SocketAddrV4, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mdgw_captures::random::Random;
use mdgw_feeds::transport::moldudp64::Request;

use super::{history::History, itch_generator::PACKET_BYTES_MAX};

/// A running server.
#[derive(Debug)]
pub(super) struct RequestServer {
    shared: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ServerState {
    stop: AtomicBool,
    answered: AtomicU64,
    unanswered: AtomicU64,
    lost: AtomicU64,
}

/// Requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedRequests {
    /// Requests answered.
    pub answered: u64,
    /// Malformed requests, and requests for messages that the exchange never sent.
    pub unanswered: u64,
    /// Answers dropped by the configured loss.
    pub lost: u64,
}

impl RequestServer {
    /// Binds the socket and starts to answer. `answer_loss` is the probability that an answer is dropped.
    pub(super) fn start(address: SocketAddrV4, history: Arc<History>, answer_loss: f64, seed: u64) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let shared = Arc::new(ServerState::default());
        let thread_shared = Arc::clone(&shared);
        let mut random = Random::new(seed ^ 0x7265_7175_6573_7473);
        let thread = std::thread::Builder::new().name("mdgw-requests".to_owned()).spawn(move || {
            let mut datagram = [0; 64];
            while !thread_shared.stop.load(Ordering::Acquire) {
                let Ok((bytes, requester)) = socket.recv_from(&mut datagram) else { continue };
                let request = datagram.get(..bytes).and_then(|request| Request::parse(request).ok());
                let answer = request.and_then(|request| history.answer(&request, PACKET_BYTES_MAX));
                let counter = match answer {
                    None => &thread_shared.unanswered,
                    Some(_) if random.chance(answer_loss) => &thread_shared.lost,
                    Some(answer) if socket.send_to(&answer, requester).is_ok() => &thread_shared.answered,
                    Some(_) => &thread_shared.lost,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn served(&self) -> ServedRequests {
        ServedRequests {
            answered: self.shared.answered.load(Ordering::Relaxed),
            unanswered: self.shared.unanswered.load(Ordering::Relaxed),
            lost: self.shared.lost.load(Ordering::Relaxed),
        }
    }
}

impl Drop for RequestServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread checks the flag twenty times a second.
            let _ = thread.join();
        }
    }
}
