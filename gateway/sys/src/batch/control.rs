//! Control data of a received datagram: timestamps of kernel and NIC.
//!
//! Parsed as bytes by the layout of cmsg(3): a header with length (native word), level and type, then the data, each
//! element padded to a native word. A length beyond the end stops the parser.

use mdgw_wire::time::UnixNs;

use super::StampKind;

/// Bytes for the kernel's control data of one datagram: three `timespec` take 64 bytes with their header, the rest is
/// spare.
pub(super) const CONTROL_BYTES: usize = 96;

/// Memory for control data, aligned as `cmsghdr` requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control(pub(super) [u8; CONTROL_BYTES]);

const _: () = assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());

/// The best timestamp in the control data: the NIC's if there is one, else the kernel's.
pub(super) fn stamp(mut control: &[u8]) -> (Option<UnixNs>, StampKind) {
    while let Some((level, kind, data, rest)) = next_element(control) {
        if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPING {
            // `scm_timestamping` has three entries: software, an obsolete one, raw hardware. Zero means no timestamp.
            if let Some(hardware) = timespec(data, 2) {
                return (Some(hardware), StampKind::Hardware);
            }
            if let Some(software) = timespec(data, 0) {
                return (Some(software), StampKind::Kernel);
            }
        }
        control = rest;
    }
    (None, StampKind::None)
}

/// Level, type and data of the first element, and the bytes after it.
fn next_element(control: &[u8]) -> Option<(i32, i32, &[u8], &[u8])> {
    let (length, rest) = control.split_first_chunk::<WORD>()?;
    let (level, rest) = rest.split_first_chunk::<4>()?;
    let (kind, _) = rest.split_first_chunk::<4>()?;
    let length_bytes = usize::from_ne_bytes(*length);
    let data = control.get(HEADER..length_bytes)?;
    let rest = control.get(length_bytes.next_multiple_of(WORD)..).unwrap_or(&[]);
    Some((i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), data, rest))
}

/// The `index`th `timespec` of `data`, unless it is zero or before 1970.
fn timespec(data: &[u8], index: usize) -> Option<UnixNs> {
    let at = data.get(index * 2 * WORD..)?;
    let (seconds, rest) = at.split_first_chunk::<WORD>()?;
    let (nanos, _) = rest.split_first_chunk::<WORD>()?;
    let seconds = u64::try_from(isize::from_ne_bytes(*seconds)).ok()?;
    let nanos = u64::try_from(isize::from_ne_bytes(*nanos)).ok()?;
    let ns = seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    (ns != 0).then_some(UnixNs(ns))
}

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn element(kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        bytes
    }

    fn stamps(software: (u64, u64), hardware: (u64, u64)) -> Vec<u8> {
        let values = [software.0, software.1, 0, 0, hardware.0, hardware.1];
        element(libc::SCM_TIMESTAMPING, &values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn nic_stamps_take_precedence_over_kernel_stamps() {
        assert_eq!(stamp(&stamps((5, 7), (0, 0))), (Some(UnixNs(5_000_000_007)), StampKind::Kernel));
        assert_eq!(stamp(&stamps((5, 7), (6, 8))), (Some(UnixNs(6_000_000_008)), StampKind::Hardware));
        assert_eq!(stamp(&stamps((0, 0), (0, 0))), (None, StampKind::None));
        assert_eq!(stamp(&[]), (None, StampKind::None));
    }

    #[test]
    fn other_control_data_is_skipped() {
        let mut control = element(libc::SO_RXQ_OVFL, &3_u32.to_ne_bytes());
        control.extend(stamps((1, 2), (0, 0)));
        assert_eq!(stamp(&control), (Some(UnixNs(1_000_000_002)), StampKind::Kernel));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..CONTROL_BYTES)) {
            let _ = stamp(&bytes);
        }

        #[test]
        fn truncated_control_data_yields_the_stamp_or_none(cut in 0_usize..=64) {
            let whole = stamps((9, 1), (0, 0));
            let (stamp, kind) = stamp(whole.get(..cut).unwrap_or(&whole));
            prop_assert!(stamp.is_none() == (kind == StampKind::None));
            prop_assert!(cut == 64 || stamp.is_none());
        }
    }
}
