//! Reads several sockets of one channel into one batch, with equal shares.

use std::{io, os::fd::RawFd};

use mdgw_wire::identity::Line;

use super::ReceiveBatch;
use crate::handle::LineSet;

/// Calls `recvmmsg` once for each socket. Returns the first error after all sockets were tried, so that a fault of one
/// line does not starve the others. Each socket gets an equal share of the room that the previous sockets left. So
/// lines under a burst advance together, and the reorder window holds little more than their skew.
pub fn receive_round_robin(sockets: &[(Line, RawFd)], batch: &mut ReceiveBatch) -> io::Result<LineSet> {
    let mut unfinished = LineSet::default();
    let mut fault = None;
    for (sockets_left, &(line, socket)) in
        sockets.iter().enumerate().map(|(place, socket)| (sockets.len() - place, socket))
    {
        match receive_skipping_send_errors(line, socket, batch.room().div_ceil(sockets_left), batch) {
            Ok(true) => unfinished = unfinished.with(line),
            Ok(false) => {}
            Err(error) => fault = fault.or(Some(error)),
        }
    }
    fault.map_or(Ok(unfinished), Err)
}

/// Reads a socket and skips errors of earlier sends: a connected socket (to a retransmission server) returns their ICMP
/// errors before its datagrams, each once.
fn receive_skipping_send_errors(
    line: Line,
    socket: RawFd,
    packets_max: usize,
    batch: &mut ReceiveBatch,
) -> io::Result<bool> {
    for _ in 0..SEND_ERRORS_MAX {
        match batch.receive_many(line, socket, packets_max) {
            Err(error) if is_past_send_error(&error) => {}
            other => return other,
        }
    }
    Ok(true)
}

/// Whether the error belongs to an earlier send and was cleared by being reported.
pub fn is_past_send_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable | Interrupted)
}

/// Most errors that one call skips; after that the socket counts as unfinished.
const SEND_ERRORS_MAX: usize = 4;
