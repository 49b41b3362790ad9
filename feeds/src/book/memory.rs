//! Memory of the books: prefaulted before the session, and on huge pages where the kernel has them.
//!
//! An old order's slot is at a random position in its table. With 4 KB pages nearly every access to one also misses
//! the TLB. Measured gain: see the rows of huge pages in `bench/RESULTS.md`.
#![allow(unsafe_code, reason = "advice about memory is a system call")]

use core::mem::MaybeUninit;

/// A vector of `len` times `value`, with all pages present: no first write takes a page fault.
pub(super) fn prefaulted<T: Copy>(value: T, len: usize) -> Vec<T> {
    let mut elements = Vec::with_capacity(len);
    advise_huge_pages(elements.spare_capacity_mut());
    elements.resize(len, value);
    elements
}

/// A hint only: a kernel without free huge pages uses pages of the usual size.
#[cfg(target_os = "linux")]
fn advise_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    const HUGE_PAGE_BYTES: usize = 2 << 20;
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
