//! The claim: one thread at a time processes a channel, nobody waits for it, and no edge is lost.
//!
//! Whoever brings work leaves marks (which lines are ready, whether a deadline passed) and then adds itself to a pending
//! count. The one who finds zero there holds the channel; the others go their way. The holder reads the count, takes
//! the marks, does what they say, and takes off what it had read: if that was not all, somebody came meanwhile and left
//! marks, so it looks again.
//!
//! ```text
//!   bring:   marks |= m;  pending += 1          was 0: hold        else: the holder will see m
//!   hold:    seen = pending;  m = take marks;   process m
//!   release: pending -= seen                     was seen: free     else: hold on
//! ```
//! A mark is set before its count, and the count is read before the marks are taken: so whatever count the holder takes
//! off, the marks that go with it have been processed. A claim can be laid by with work left over ([`Held::lay_by`]) and
//! taken up by another thread; in between nobody else can take it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::sync::{AtomicU32, AtomicU64, UnsafeCell};
use crate::net::handle_set::LineSet;

/// A value that one thread at a time may touch, and the work that waits for it.
#[derive(Debug)]
pub(super) struct Claim<T> {
    pending: AtomicU64,
    marks: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `Held` alone. A `Held` exists for the thread that raised `pending` from zero, or
// that was given the ticket of a claim laid by, until `pending` is back at zero: never two at a time. The value moves
// between threads that way, hence `T: Send`; it is never shared, so it need not be `Sync`.
unsafe impl<T: Send> Sync for Claim<T> {}

impl<T> Claim<T> {
    pub(super) fn new(value: T) -> Self {
        Self { pending: AtomicU64::new(0), marks: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Leaves marks; the claim, if nobody holds it. Otherwise its holder sees the marks before it lets go.
    pub(super) fn bring(&self, marks: Marks) -> Option<Held<'_, T>> {
        // Ordered before the count by the Release in it.
        self.marks.fetch_or(marks.0, Relaxed);
        // Acquire pairs with the Release of the last `release`: we see the value as its last holder left it.
        let before = self.pending.fetch_add(1, AcqRel);
        (before == 0).then_some(Held { claim: self, seen: 0 })
    }

    /// Takes up a claim that was laid by.
    pub(super) fn take_up(&self, ticket: Ticket) -> Held<'_, T> {
        assert_eq!(ticket.claim, std::ptr::from_ref(self).addr(), "a ticket is good for the claim that issued it");
        Held { claim: self, seen: 0 }
    }

    /// The value, when all threads are gone.
    pub(super) fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// The right to process. To drop it is to keep it for ever.
#[derive(Debug)]
#[must_use = "a claim that is neither released nor laid by is never free again"]
pub(super) struct Held<'a, T> {
    claim: &'a Claim<T>,
    /// The count when the marks were last taken.
    seen: u64,
}

impl<'a, T> Held<'a, T> {
    /// Takes what there is to do. The count is read first: what it counts, the marks contain.
    pub(super) fn take_marks(&mut self) -> Marks {
        // Acquire pairs with the Release of each `bring` and of `lay_by`.
        self.seen = self.claim.pending.load(Acquire);
        Marks(self.claim.marks.swap(0, AcqRel))
    }

    /// Touches the value.
    pub(super) fn with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        self.claim.value.with_mut(|value| {
            // SAFETY: `self` is the only `Held` of this claim (see `Sync` above) and is borrowed for the call, so no
            // other reference to the value exists while `f` runs.
            let value = unsafe { &mut *value };
            f(value)
        })
    }

    /// Lets go, unless somebody brought work since [`Self::take_marks`]: then the claim comes back.
    pub(super) fn release(self) -> Result<(), Self> {
        // Release publishes the value to the next holder; Acquire, when the claim comes back, the marks left meanwhile.
        let before = self.claim.pending.fetch_sub(self.seen, AcqRel);
        if before == self.seen { Ok(()) } else { Err(Self { claim: self.claim, seen: 0 }) }
    }

    /// Leaves the rest of the work to whoever takes up the ticket. The claim stays taken meanwhile.
    pub(super) fn lay_by(self, rest: Marks) -> Ticket {
        self.claim.marks.fetch_or(rest.0, Relaxed);
        // Release publishes the value and the rest to the thread that takes the claim up and reads the count. The count
        // was above zero and stays there.
        self.claim.pending.fetch_add(1, Release);
        Ticket { claim: std::ptr::from_ref(self.claim).addr() }
    }
}

/// A claim laid by: whoever has this, and nobody else, may take it up.
#[derive(Debug)]
#[must_use = "a claim that is laid by and not taken up is never free again"]
pub(super) struct Ticket {
    claim: usize,
}

/// What there is to do on a channel: lines that are ready, lines whose datagrams are here, a deadline, messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(u32);

impl Marks {
    pub(super) const NONE: Self = Self(0);
    pub(super) const DEADLINE: Self = Self(1 << 8);
    pub(super) const MESSAGE: Self = Self(1 << 9);

    pub(super) fn ready(lines: LineSet) -> Self {
        Self(u32::from(lines.0))
    }

    pub(super) fn lent(lines: LineSet) -> Self {
        Self(u32::from(lines.0) << LENT_SHIFT)
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn ready_lines(self) -> LineSet {
        let [ready, ..] = self.0.to_le_bytes();
        LineSet(ready)
    }

    pub(super) fn lent_lines(self) -> LineSet {
        let [_, _, lent, _] = self.0.to_le_bytes();
        LineSet(lent)
    }
}

const LENT_SHIFT: u32 = 16;
