//! CRC-32 (IEEE 802.3), as zlib and Ethernet compute it: a receiver in any language has it at hand. A library for it would make the
//! build of a consumer 30 packages; fewer is promised.

/// The checksum of the bytes so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crc32(u32);

impl Default for Crc32 {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc32 {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        let mut state = self.0;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let folded = u64::from_le_bytes(*word) ^ u64::from(state);
            // Byte 0 is followed by seven bytes, so it takes the last table.
            state = folded
                .to_le_bytes()
                .iter()
                .zip(TABLES.iter().rev())
                .fold(0, |sum, (byte, table)| sum ^ entry(table, *byte));
        }
        for byte in rest {
            let [low, ..] = state.to_le_bytes();
            state = entry(&TABLES[0], low ^ byte) ^ state >> 8;
        }
        self.0 = state;
    }

    pub(super) fn value(self) -> u32 {
        !self.0
    }
}

fn entry(table: &[u32; 256], byte: u8) -> u32 {
    table.get(usize::from(byte)).copied().unwrap_or_default()
}

const POLYNOMIAL: u32 = 0xedb8_8320;

/// Table `n` has the effect of a byte that is followed by `n` others.
static TABLES: [[u32; 256]; 8] = tables();

#[allow(
    clippy::indexing_slicing,
    reason = "constant evaluation has no iterators, and checks each index at compile time"
)]
#[allow(clippy::cast_possible_truncation, reason = "the index of a table is below 256")]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 { POLYNOMIAL ^ state >> 1 } else { state >> 1 };
            bit += 1;
        }
        tables[0][byte] = state;
        byte += 1;
    }
    let mut byte = 0;
    while byte < 256 {
        let mut table = 1;
        while table < 8 {
            let before = tables[table - 1][byte];
            tables[table][byte] = tables[0][(before & 0xff) as usize] ^ before >> 8;
            table += 1;
        }
        byte += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib_however_the_bytes_are_cut() {
        for (bytes, expected) in [
            (b"".as_slice(), 0),
            (b"123456789", 0xcbf4_3926),
            (b"The quick brown fox jumps over the lazy dog", 0x414f_a339),
        ] {
            for cut in 0..=bytes.len() {
                let mut checksum = Crc32::default();
                checksum.update(&bytes[..cut]);
                checksum.update(&bytes[cut..]);
                assert_eq!(checksum.value(), expected, "cut at {cut}");
            }
        }
    }
}
