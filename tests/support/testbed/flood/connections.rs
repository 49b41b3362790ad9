//! Connections to a pair link by a host that holds no key.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use mdgw_election::{
    auth::{Nonce, SharedKey},
    identity::Incarnation,
};
use mdgw_pair::pair_link::{framing::LinkStream, message::LinkIdentity};

use crate::process::wait_until;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Sends 128 KiB that follow no protocol.
    Garbage,
    /// Sends nothing.
    Silent,
    /// Sends the first half of a hello.
    HalfHello,
    /// Sends a hello, byte by byte.
    Slow,
    /// Sends a hello and a message under another key.
    ForeignKey,
    /// Sends one byte and closes: a connection without a byte is a health check, and not refused.
    Closes,
}

const KINDS: [Kind; 6] = [Kind::Garbage, Kind::Silent, Kind::HalfHello, Kind::Slow, Kind::ForeignKey, Kind::Closes];

impl Kind {
    /// Reasons for which the link may refuse the connection. Any of them may have to make room for another one.
    fn reasons(self) -> &'static [&'static str] {
        match self {
            Self::Garbage => &["malformed", "displaced"],
            Self::Silent | Self::HalfHello | Self::Slow => &["silent", "displaced"],
            Self::ForeignKey => &["forged", "displaced"],
            // A reset may come before the gateway has read anything.
            Self::Closes => &["disconnected", "displaced"],
        }
    }
}

/// A connection that the gateway has not closed yet.
struct Open {
    kind: Kind,
    socket: TcpStream,
    hello: Vec<u8>,
    sent_bytes: usize,
}

/// Opens connections at that rate until `stop`, and waits until the gateway has closed every one. `on_sent` takes the reasons
/// for which each may be refused, and the bytes that it has sent.
pub(super) fn flood(to: SocketAddrV4, per_second: u64, stop: &AtomicBool, on_sent: impl Fn(&[&'static str], u64)) {
    let mut open: Vec<Open> = Vec::new();
    let (begun, mut number) = (Instant::now(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let elapsed_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let due = elapsed_us.saturating_mul(per_second) / 1_000_000;
        while number < due && open.len() < OPEN_MAX {
            let kind = KINDS[usize::try_from(number).unwrap_or_default() % KINDS.len()];
            number += 1;
            let Ok(socket) = TcpStream::connect_timeout(&to.into(), CONNECT_TIMEOUT) else { continue };
            let bytes = act(kind, socket, &mut open);
            on_sent(kind.reasons(), bytes);
        }
        number = due;
        open.retain_mut(Open::is_open);
        std::thread::sleep(Duration::from_millis(1));
    }
    wait_until("the gateway has closed every connection", || {
        open.retain_mut(Open::is_open);
        open.is_empty()
    });
}

/// Lets the connection do what its kind does, and keeps it until the gateway closes it. Returns the bytes that were meant for
/// the gateway.
fn act(kind: Kind, mut socket: TcpStream, open: &mut Vec<Open>) -> u64 {
    let identity = LinkIdentity { node: 77, incarnation: Incarnation(1) };
    let mut stream = LinkStream::new(SharedKey::new(&[9; 32]), identity, Nonce::random().expect("random bytes"));
    let hello = stream.hello().to_vec();
    socket.set_read_timeout(Some(CONNECT_TIMEOUT)).expect("a time-out can be set");
    socket.set_write_timeout(Some(CONNECT_TIMEOUT)).expect("a time-out can be set");
    // The gateway may close the connection in the midst of anything: no write has to succeed.
    let bytes = match kind {
        Kind::Garbage => {
            let _refused = socket.write_all(&[0x55; GARBAGE_BYTES]);
            GARBAGE_BYTES as u64
        }
        Kind::Silent => 0,
        Kind::HalfHello => {
            let half = &hello[..hello.len() / 2];
            let _refused = socket.write_all(half);
            half.len() as u64
        }
        Kind::Slow => hello.len() as u64,
        Kind::ForeignKey => {
            let _refused = socket.write_all(&hello);
            let mut theirs = [0; 36];
            if socket.read_exact(&mut theirs).is_ok() {
                stream.push(&theirs);
                let _none = stream.next_message();
            }
            let message = [&200_u32.to_le_bytes()[..], &[0x55; 200]].concat();
            let _refused = socket.write_all(&message);
            (hello.len() + message.len()) as u64
        }
        Kind::Closes => return u64::from(socket.write_all(&hello[..1]).is_ok()),
    };
    socket.set_nonblocking(true).expect("the socket can be set");
    open.push(Open { kind, socket, hello, sent_bytes: 0 });
    bytes
}

impl Open {
    /// Whether the gateway has not closed the connection. A slow one sends its next byte.
    fn is_open(&mut self) -> bool {
        if self.kind == Kind::Slow
            && let Some(byte) = self.hello.get(self.sent_bytes).filter(|_| self.sent_bytes + 1 < self.hello.len())
        {
            self.sent_bytes += usize::from(self.socket.write(&[*byte]).is_ok());
        }
        let mut bytes = [0; 4_096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        }
    }
}

const GARBAGE_BYTES: usize = 128 << 10;
/// Most connections to one gateway at a time: many more than may wait there.
const OPEN_MAX: usize = 200;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
