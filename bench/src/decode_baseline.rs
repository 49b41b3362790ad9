//! The baseline for decoding: steps from frame to frame and loads the same fields, at offsets written by hand. It
//! trusts every length, and checks only that the bytes exist. Do not change it: older results would no longer be
//! comparable.

/// Sum over all fields of all messages, each field as a big-endian number.
#[inline(never)]
pub(crate) fn sum_fields(mut block: &[u8]) -> u64 {
    let mut sum = 0_u64;
    while let Some((length, rest)) = block.split_first_chunk::<2>() {
        let Some((message, rest)) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length))) else { break };
        block = rest;
        sum = sum.wrapping_add(sum_message(message));
    }
    sum
}

#[inline]
fn sum_message(message: &[u8]) -> u64 {
    match message.first() {
        Some(b'A') => message.first_chunk::<36>().map_or(0, |m| prefix(m) + add(m)),
        Some(b'F') => message.first_chunk::<40>().map_or(0, |m| prefix(m) + add(m) + u32_at(m, 36)),
        Some(b'E') => message.first_chunk::<31>().map_or(0, |m| prefix(m) + executed(m)),
        Some(b'C') => {
            message.first_chunk::<36>().map_or(0, |m| prefix(m) + executed(m) + u64::from(m[31]) + u32_at(m, 32))
        }
        Some(b'X') => message.first_chunk::<23>().map_or(0, |m| prefix(m) + u64_at(m, 11) + u32_at(m, 19)),
        Some(b'D') => message.first_chunk::<19>().map_or(0, |m| prefix(m) + u64_at(m, 11)),
        Some(b'U') => message
            .first_chunk::<35>()
            .map_or(0, |m| prefix(m) + u64_at(m, 11) + u64_at(m, 19) + u32_at(m, 27) + u32_at(m, 31)),
        Some(b'P') => message.first_chunk::<44>().map_or(0, |m| prefix(m) + add(m) + u64_at(m, 36)),
        Some(_) => message.first_chunk::<11>().map_or(0, prefix),
        None => 0,
    }
}

/// A 64-bit field without its lowest four bits, so that a sum of a few fields does not overflow.
#[inline]
fn u64_at<const N: usize>(message: &[u8; N], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&message[offset..offset + 8]);
    u64::from_be_bytes(bytes) >> 4
}

#[inline]
fn u32_at<const N: usize>(message: &[u8; N], offset: usize) -> u64 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&message[offset..offset + 4]);
    u64::from(u32::from_be_bytes(bytes))
}

/// Sum of type, stock locate, tracking number and timestamp, which every message has.
#[inline]
fn prefix<const N: usize>(m: &[u8; N]) -> u64 {
    let time = u64::from_be_bytes([0, 0, m[5], m[6], m[7], m[8], m[9], m[10]]);
    u64::from(m[0]) + u64::from(u16::from_be_bytes([m[1], m[2]])) + u64::from(u16::from_be_bytes([m[3], m[4]])) + time
}

/// Sum of an added order's reference number, side, shares, stock and price.
#[inline]
fn add<const N: usize>(m: &[u8; N]) -> u64 {
    u64_at(m, 11) + u64::from(m[19]) + u32_at(m, 20) + u64_at(m, 24) + u32_at(m, 32)
}

/// Sum of an execution's order reference number, shares and match number.
#[inline]
fn executed<const N: usize>(m: &[u8; N]) -> u64 {
    u64_at(m, 11) + u32_at(m, 19) + u64_at(m, 23)
}
