//! Receive and send buffers: fixed, reused, filled by one system call or submission for many packets. (to come)

/// Datagrams of one channel with line, bytes, kernel stamp.
#[derive(Debug)]
pub struct ReceiveBatch {}

/// Packets to hand over: header, body, destination.
#[derive(Debug)]
pub struct SendBatch<'a> {
    _packets: &'a [u8],
}
