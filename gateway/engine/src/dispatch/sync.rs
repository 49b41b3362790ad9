//! The atomics, the cell and the futex that the pool's protocols use: the real ones, or those of the model checker,
//! which tries every interleaving and every value that the memory model allows.

pub(super) use imp::{AtomicU32, AtomicU64, Futex, UnsafeCell};

#[cfg(not(all(test, feature = "loom")))]
mod imp {
    pub(in crate::dispatch) use std::sync::atomic::{AtomicU32, AtomicU64};

    use std::sync::atomic::Ordering;

    use mdgw_sys::futex;

    /// A 32-bit atomic to sleep on.
    #[derive(Debug)]
    pub(in crate::dispatch) struct Futex(AtomicU32);

    impl Futex {
        pub(in crate::dispatch) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        pub(in crate::dispatch) fn word(&self) -> &AtomicU32 {
            &self.0
        }

        /// Sleeps until woken, if the value still is `expected`.
        pub(in crate::dispatch) fn wait(&self, expected: u32) {
            futex::wait(&self.0, expected);
        }

        pub(in crate::dispatch) fn wake(&self, count: u32) {
            futex::wake(&self.0, count);
        }

        /// The value, for a wait that must not spin.
        pub(in crate::dispatch) fn load(&self, ordering: Ordering) -> u32 {
            self.0.load(ordering)
        }
    }

    /// A cell with the model checker's interface.
    #[derive(Debug)]
    pub(in crate::dispatch) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(in crate::dispatch) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(in crate::dispatch) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }

        pub(in crate::dispatch) fn into_inner(self) -> T {
            self.0.into_inner()
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod imp {
    pub(in crate::dispatch) use loom::{
        cell::UnsafeCell,
        sync::atomic::{AtomicU32, AtomicU64},
    };

    use std::sync::atomic::Ordering;

    use loom::sync::{Condvar, Mutex};

    /// The kernel's futex for the model checker: comparing and falling asleep are one step, as a waking thread sees it.
    #[derive(Debug)]
    pub(in crate::dispatch) struct Futex {
        word: AtomicU32,
        bucket: Mutex<()>,
        sleepers: Condvar,
    }

    impl Futex {
        pub(in crate::dispatch) fn new(value: u32) -> Self {
            Self { word: AtomicU32::new(value), bucket: Mutex::new(()), sleepers: Condvar::new() }
        }

        pub(in crate::dispatch) fn word(&self) -> &AtomicU32 {
            &self.word
        }

        pub(in crate::dispatch) fn wait(&self, expected: u32) {
            let bucket = self.bucket.lock().unwrap();
            if self.word.load(Ordering::Relaxed) == expected {
                drop(self.sleepers.wait(bucket).unwrap());
            }
        }

        pub(in crate::dispatch) fn wake(&self, count: u32) {
            let _bucket = self.bucket.lock().unwrap();
            for _ in 0..count {
                self.sleepers.notify_one();
            }
        }

        pub(in crate::dispatch) fn load(&self, ordering: Ordering) -> u32 {
            self.word.load(ordering)
        }
    }
}
