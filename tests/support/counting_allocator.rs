//! A counting allocator, for tests that assert no allocation, or a bound on it. A test binary installs it:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//! ```
//! Counts are per thread, so that other tests and the test runner don't affect them.

#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ptr,
};

/// The system allocator, with a count of the calling thread's allocations, and a limit where the thread has set one.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// How often the calling thread has allocated or grown memory so far. Always 0 where the allocator isn't installed:
/// begin with a control that allocates ([`allocations_in`] of a `Box::new`).
#[must_use]
pub fn allocation_count() -> u64 {
    ALLOCATION_COUNT.try_with(Cell::get).unwrap_or(0)
}

/// Number of allocations of the calling thread in `work`.
pub fn allocations_in(work: impl FnOnce()) -> u64 {
    let before = allocation_count();
    work();
    allocation_count() - before
}

/// Runs `work`, in which the calling thread may hold at most that many bytes more than before. A larger allocation fails,
/// which ends the process: code that takes so much has no bound.
pub fn with_memory_limit<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    /// Removes the limit, after a panic too.
    struct LimitGuard;
    impl Drop for LimitGuard {
        fn drop(&mut self) {
            LIMIT_BYTES.set(i64::MAX);
        }
    }
    LIMIT_BYTES.set(ALLOCATED_BYTES.get().saturating_add_unsigned(bytes as u64));
    let _guard = LimitGuard;
    work()
}

thread_local! {
    // Constant and without destructor, so that reading it allocates nothing.
    static ALLOCATION_COUNT: Cell<u64> = const { Cell::new(0) };
    /// Bytes allocated minus bytes freed. The thread may free memory of other threads, so it can be negative.
    static ALLOCATED_BYTES: Cell<i64> = const { Cell::new(0) };
    static LIMIT_BYTES: Cell<i64> = const { Cell::new(i64::MAX) };
}

/// Whether that allocation is within the thread's limit.
fn count_allocation(bytes: usize) -> bool {
    // A thread that ends has no counter any more; what it then frees is not counted.
    let _ = ALLOCATION_COUNT.try_with(|count| count.set(count.get() + 1));
    let held = ALLOCATED_BYTES.try_with(|held| {
        let more = held.get().saturating_add_unsigned(bytes as u64);
        let may = LIMIT_BYTES.try_with(|limit| more <= limit.get()).unwrap_or(true);
        if may {
            held.set(more);
        }
        may
    });
    held.unwrap_or(true)
}

fn count_free(bytes: usize) {
    let _ = ALLOCATED_BYTES.try_with(|held| held.set(held.get().saturating_sub_unsigned(bytes as u64)));
}

// SAFETY: every call is handed to `System`, which keeps the contract of `GlobalAlloc`, with the caller's own arguments;
// counting touches thread-local numbers and neither allocates nor unwinds. A refusal is a null pointer, as the contract says.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !count_allocation(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller vouches for `layout`, as `System` demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !count_allocation(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller vouches for `layout`, as `System` demands.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !count_allocation(size) {
            return ptr::null_mut();
        }
        count_free(layout.size());
        // SAFETY: `pointer` came from this allocator, so from `System`, with `layout`; the caller vouches for `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count_free(layout.size());
        // SAFETY: `pointer` came from this allocator, so from `System`, with `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
