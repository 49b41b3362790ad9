//! An allocator that counts, for tests that promise to allocate nothing. A test binary installs it:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//! ```
//! Counts are kept per thread, so that other tests and the test runner don't disturb.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator, with a count of what the calling thread asks of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// How often the calling thread has allocated or grown memory so far. Always 0 where the allocator isn't installed:
/// begin with a control that allocates ([`allocations_in`] of a `Box::new`).
#[must_use]
pub fn allocation_count() -> u64 {
    COUNT.try_with(Cell::get).unwrap_or(0)
}

/// How often the calling thread allocates in `work`.
pub fn allocations_in(work: impl FnOnce()) -> u64 {
    let before = allocation_count();
    work();
    allocation_count() - before
}

thread_local! {
    // Constant and without destructor, so that looking at it allocates nothing.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no count any more; what it frees then is of no interest.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is handed to `System`, which keeps the contract of `GlobalAlloc`, with the caller's own arguments;
// counting touches a thread-local number and neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller vouches for `layout`, as `System` demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller vouches for `layout`, as `System` demands.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `pointer` came from this allocator, so from `System`, with `layout`; the caller vouches for `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from this allocator, so from `System`, with `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
