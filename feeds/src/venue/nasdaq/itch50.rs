//! Nasdaq TotalView-ITCH 5.0, as spoken by Nasdaq, BX and PSX. Big-endian.

/// Length of the message of that type.
#[must_use]
pub fn length_of(message_type: u8) -> Option<usize> {
    Some(match message_type {
        b'S' => 12,
        b'R' => 39,
        b'H' => 25,
        b'Y' => 20,
        b'L' => 26,
        b'V' => 35,
        b'W' => 12,
        b'K' => 28,
        b'J' => 35,
        b'h' => 21,
        b'A' | b'C' => 36,
        b'F' | b'Q' => 40,
        b'E' => 31,
        b'X' => 23,
        b'B' | b'D' => 19,
        b'U' => 35,
        b'P' => 44,
        b'I' => 50,
        b'N' => 20,
        b'O' => 48,
        _ => return None,
    })
}

/// Whether the bytes have a type of this protocol and the length that goes with it.
#[must_use]
pub fn fits(message: &[u8]) -> bool {
    message.first().is_some_and(|message_type| length_of(*message_type) == Some(message.len()))
}
