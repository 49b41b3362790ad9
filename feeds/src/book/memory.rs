//! Memory of the books: on huge pages where the kernel has them, and by default prefaulted before the session.
//!
//! An old order's slot is at a random position in its table. With 4 KB pages nearly every access to one also misses
//! the TLB. Measured gain: see *huge pages* in `feeds/DECISIONS.md`.
#![allow(unsafe_code, reason = "advice about memory is a system call")]

use core::{mem::MaybeUninit, slice};

use zerocopy::FromZeros;

/// A vector of `len` times `value`, with all pages present: no first write takes a page fault.
pub(super) fn prefaulted<T: Copy>(value: T, len: usize) -> Vec<T> {
    let mut elements = Vec::with_capacity(len);
    advise_huge_pages(elements.spare_capacity_mut());
    elements.resize(len, value);
    elements
}

/// A vector of `len` zeroed elements. With `prefault` all pages are present. Otherwise a page becomes present when it is
/// first used: a replay of a small capture uses few of them.
pub(super) fn zeroed<T: Copy + FromZeros>(len: usize, prefault: bool) -> Vec<T> {
    let mut elements = Vec::with_capacity(len);
    advise_huge_pages(elements.spare_capacity_mut());
    if !prefault && zero_on_demand(elements.spare_capacity_mut()) {
        // SAFETY: the capacity is at least `len`, all of its bytes are 0 now, and zero bytes are a `T`.
        unsafe { elements.set_len(len) };
    }
    elements.resize(len, T::new_zeroed());
    elements
}

/// A hint only: a kernel without free huge pages uses pages of the usual size.
#[cfg(target_os = "linux")]
fn advise_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let bytes = memory.as_mut_ptr_range();
    let start = bytes.start.addr().next_multiple_of(HUGE_PAGE_BYTES);
    let end = bytes.end.addr() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if start < end {
        // SAFETY: the range is whole pages of memory that is borrowed for writing, and this advice changes no content.
        let _refused =
            unsafe { libc::madvise(memory.as_mut_ptr().with_addr(start).cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages<T>(_memory: &mut [MaybeUninit<T>]) {}

/// Makes all bytes 0 without touching the pages that lie wholly inside. Returns `false`, and leaves the content undefined,
/// if the memory is small or the kernel refuses (locked pages).
#[cfg(target_os = "linux")]
fn zero_on_demand<T>(memory: &mut [MaybeUninit<T>]) -> bool {
    // SAFETY: sysconf(3) reads and writes no memory of ours.
    let Ok(page_bytes) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return false };
    // SAFETY: the bytes of `memory`, which is borrowed for writing; any byte may be uninitialised.
    let bytes =
        unsafe { slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<MaybeUninit<u8>>(), size_of_val(memory)) };
    if bytes.len() < HUGE_PAGE_BYTES || !page_bytes.is_power_of_two() {
        return false;
    }
    let (head, rest) = bytes.split_at_mut(bytes.as_ptr().align_offset(page_bytes));
    let (pages, tail) = rest.split_at_mut(rest.len() / page_bytes * page_bytes);
    // SAFETY: the range is whole pages that are borrowed for writing and hold no values. They are private and anonymous, as
    // all memory of the allocator, so each reads as zeros from now on (madvise(2)).
    if unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), libc::MADV_DONTNEED) } != 0 {
        return false;
    }
    head.fill(MaybeUninit::new(0));
    tail.fill(MaybeUninit::new(0));
    true
}

#[cfg(not(target_os = "linux"))]
fn zero_on_demand<T>(_memory: &mut [MaybeUninit<T>]) -> bool {
    false
}

#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Pages of the vector that are present.
    fn present_pages(elements: &[u64]) -> usize {
        let start = elements.as_ptr().addr().next_multiple_of(4_096);
        let pages = (elements.as_ptr_range().end.addr() - start) / 4_096;
        let mut present = vec![0; pages];
        // SAFETY: the range is whole pages of `elements`, and `present` has a byte for each of them.
        let result = unsafe {
            libc::mincore(elements.as_ptr().with_addr(start).cast_mut().cast(), pages * 4_096, present.as_mut_ptr())
        };
        assert_eq!(result, 0);
        present.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn pages_are_present_at_once_only_if_prefaulted() {
        let len = 8 << 20;
        let on_demand: Vec<u64> = zeroed(len, false);
        assert_eq!((on_demand.len(), present_pages(&on_demand)), (len, 0));
        assert_eq!(on_demand.iter().sum::<u64>(), 0);
        let prefault: Vec<u64> = zeroed(len, true);
        assert_eq!((prefault.len(), present_pages(&prefault)), (len, (len * 8) / 4_096 - 1));
    }

    #[test]
    fn memory_that_held_other_values_is_zeroed() {
        // After the first free the allocator of the C library maps no memory of this size, but hands out freed memory again.
        let len = (3 << 20) / 8;
        for _ in 0..3 {
            drop(vec![0x5a5a_5a5a_u64; len]);
        }
        let on_demand: Vec<u64> = zeroed(len, false);
        assert!(on_demand.iter().all(|value| *value == 0));
    }
}
