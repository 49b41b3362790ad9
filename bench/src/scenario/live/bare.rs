//! The bare loop: threads that write the same bytes to sockets, in writes of the size that `mdgw live` has.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};

use super::receive::Receiver;

/// Writes the bytes to that many sockets, from as many threads as `mdgw live` has for its sessions; each thread writes to its sockets in
/// turn. Returns the records received, and how long that took.
pub(super) fn send_to_all(bytes: &[u8], sessions: usize) -> Result<(u64, Duration)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..sessions {
        clients.push(TcpStream::connect(address).context("connect to the bare loop")?);
        let (server, _) = listener.accept()?;
        server.set_nodelay(true)?;
        servers.push(server);
    }
    let mut receiver = Receiver::new(clients)?;
    let share = sessions.div_ceil(THREADS);
    let begin = Instant::now();
    let records = thread::scope(|scope| {
        let writers: Vec<_> =
            servers.chunks_mut(share).map(|own| scope.spawn(move || write_in_turn(bytes, own))).collect();
        let received = receiver.receive_each(bytes.len() as u64);
        if received.is_err() {
            // Its sockets close, which ends writers that wait.
            drop(receiver);
        }
        for writer in writers {
            writer.join().map_err(|_| anyhow!("a writer of the bare loop panicked"))??;
        }
        received
    })?;
    Ok((records, begin.elapsed()))
}

fn write_in_turn(bytes: &[u8], sockets: &mut [TcpStream]) -> Result<()> {
    for piece in bytes.chunks(WRITE_BYTES) {
        for socket in sockets.iter_mut() {
            socket.write_all(piece)?;
        }
    }
    Ok(())
}

/// The default of `live.threads`.
const THREADS: usize = 2;
/// A batch of `mdgw live`: the chunks that all sessions share have that many bytes.
const WRITE_BYTES: usize = 64 << 10;
