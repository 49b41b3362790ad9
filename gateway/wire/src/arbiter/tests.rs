//! Tests of the arbiter, line by line, and checked against "sort, drop duplicates, missing = gap".
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

mod properties;
mod tables;

use super::*;

/// Bytes of one message in a test's block: its own sequence, so that a wrong slice is visible.
const MESSAGE_BYTES: usize = 8;

/// A block with the messages `[first, next)`.
fn block(first: u64, next: u64) -> Vec<u8> {
    (first..next).flat_map(u64::to_le_bytes).collect()
}

/// The sequences of a delivery, read from its block.
fn messages(delivery: &Delivery<'_>) -> Vec<u64> {
    match delivery {
        Delivery::Gap(_) => Vec::new(),
        Delivery::Packet { first, from, until, block, .. } => {
            let skipped = (from.0 - first.0) as usize * MESSAGE_BYTES;
            let wanted = (until.0 - from.0) as usize * MESSAGE_BYTES;
            let bytes = block[skipped..skipped + wanted].chunks_exact(MESSAGE_BYTES);
            bytes.map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
        }
    }
}

fn recovery() -> RecoveryConfig {
    RecoveryConfig {
        request_timeout_ns: 10_000_000,
        attempts_max: 2,
        peer_timeout_ns: 1,
        peer_attempts_max: 0,
        messages_per_request_max: 100,
        requests_in_flight_max: 4,
        gap_messages_max: 1_000,
        session_messages_max: 10_000,
        answer_end: AnswerEnd::EachPacket,
    }
}

fn config() -> ArbiterConfig {
    ArbiterConfig {
        gap_timeout_ns: 20_000_000,
        datagram_bytes_max: 512,
        sequence_jump_max: 5_000,
        ..Default::default()
    }
}
