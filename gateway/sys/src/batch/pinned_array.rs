//! Memory at a fixed address, for pointers in kernel headers.

#![allow(unsafe_code, reason = "headers that the kernel writes through")]

use std::{fmt, ptr::NonNull};

/// Values at one address for the lifetime of this type. Handed out as raw pointers only, so that no Rust reference to
/// the whole ever invalidates a pointer in a kernel header.
pub struct PinnedArray<T> {
    first: NonNull<T>,
    count: usize,
}

impl<T> PinnedArray<T> {
    /// `count` values; the value at `index` is `value(index)`.
    pub fn new(count: usize, value: impl FnMut(usize) -> T) -> Self {
        let values: Box<[T]> = (0..count).map(value).collect();
        let first = NonNull::from(Box::leak(values)).cast();
        Self { first, count }
    }

    /// Address of one value.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn at(&self, index: usize) -> *mut T {
        assert!(index < self.count, "index {index} of {}", self.count);
        self.first.as_ptr().wrapping_add(index)
    }
}

impl<T> fmt::Debug for PinnedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedArray").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<T> Drop for PinnedArray<T> {
    fn drop(&mut self) {
        let all = std::ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.count);
        // SAFETY: `new` leaked a box of `count` values at `first`; it is taken back once, here.
        drop(unsafe { Box::from_raw(all) });
    }
}
