//! Cache prefetch. This module and [`memory`](super::memory) hold the crate's only unsafe code.
#![allow(unsafe_code, reason = "the prefetch instruction has no safe form in the standard library")]

/// Prefetches the cache line of `slice[index]` for a write soon. Beyond the end, the prefetch has no effect on the
/// program. Measured gain: see the look-ahead rows of `feeds/DECISIONS.md`.
#[inline(always)]
pub(crate) fn element<T>(slice: &[T], index: usize) {
    line(slice.as_ptr().wrapping_add(index));
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn line<T>(address: *const T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads no memory that the program can observe and never faults; SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn line<T>(_address: *const T) {}
