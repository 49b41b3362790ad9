//! Probes: datagrams by which a gateway checks whether it receives its own output group. They have TTL 0, so only programs on
//! the gateway's own host get them. They are no packets.
//!
//! ```text
//! 0     4      5          8
//! ┌─────┬──────┬──────────┐
//! │MDGP │ node │ zero × 3 │
//! └─────┴──────┴──────────┘
//! ```

/// Prefix of a probe.
pub const PROBE_MAGIC: &[u8; 4] = b"MDGP";

/// The probe of a node.
#[must_use]
pub fn to_bytes(node: u8) -> [u8; 8] {
    let [m, d, g, p] = *PROBE_MAGIC;
    [m, d, g, p, node, 0, 0, 0]
}

/// The node that sent the probe; `None` if the bytes are not a probe.
#[must_use]
pub fn node_of(datagram: &[u8]) -> Option<u8> {
    match datagram {
        [magic @ .., node, 0, 0, 0] if magic == PROBE_MAGIC => Some(*node),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_probe_decodes_to_its_senders_node() {
        assert_eq!(node_of(&to_bytes(7)), Some(7));
        for other in [&b""[..], b"MDGP", b"MDGW\x07\0\0\0", b"MDGP\x07\0\0\x01", b"MDGP\x07\0\0\0\0"] {
            assert_eq!(node_of(other), None);
        }
    }
}
