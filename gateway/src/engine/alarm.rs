//! One timer for the deadlines of all channels.
//!
//! Each channel has a deadline, written by the holder of its claim; the alarm is set no later than the earliest of
//! them. A deadline that moves later costs no system call: the alarm goes off at the old moment, finds nothing due and is set
//! anew. Going off, it takes each deadline that has passed away from its channel, so that the holder, who writes the
//! next one, knows that the alarm doesn't count on this one any more.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use mdgw_feeds::time::MonoNs;

use super::sync::AtomicU64;

/// The deadline of one channel.
#[derive(Debug)]
pub(super) struct Deadline(AtomicU64);

impl Deadline {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

/// What the timer is set to.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Alarm {
    armed: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { armed: AtomicU64::new(NEVER) }
    }

    /// The holder of a channel writes its next deadline. `set_timer` is called if the timer would be late.
    pub(super) fn publish(&self, deadline: &Deadline, at: Option<MonoNs>, set_timer: impl Fn(MonoNs)) {
        let at_ns = at.map_or(NEVER, |at| at.0);
        // Only holders write anything but NEVER, and this thread holds the claim: an equal value is this channel's own,
        // or it has been taken away since, and then a mark has been left that brings us here once more.
        if deadline.0.load(Relaxed) == at_ns {
            return;
        }
        // AcqRel, against the exchange in `go_off`: either that one sees the new deadline, or this one sees that the old
        // one is gone.
        let before_ns = deadline.0.swap(at_ns, AcqRel);
        if at_ns < before_ns {
            self.lower(at_ns, set_timer);
        }
    }

    /// The timer went off: calls `due` for each channel whose deadline has passed and sets the timer for the others.
    /// Called by the leader.
    pub(super) fn go_off<'a>(
        &self,
        now: MonoNs,
        deadlines: impl Iterator<Item = (usize, &'a Deadline)>,
        mut due: impl FnMut(usize),
        set_timer: impl Fn(MonoNs),
    ) {
        // From here on whoever lowers a deadline sets the timer itself. Acquire: what was lowered before is seen below.
        self.armed.swap(NEVER, AcqRel);
        let mut earliest_ns = NEVER;
        for (index, deadline) in deadlines {
            let mut at_ns = deadline.0.load(Acquire);
            while at_ns <= now.0 {
                match deadline.0.compare_exchange(at_ns, NEVER, AcqRel, Acquire) {
                    Ok(_) => {
                        due(index);
                        at_ns = NEVER;
                    }
                    Err(written) => at_ns = written,
                }
            }
            earliest_ns = earliest_ns.min(at_ns);
        }
        if earliest_ns != NEVER {
            self.lower(earliest_ns, set_timer);
        }
    }

    /// Two threads may set the timer in the wrong order; the one that finds another moment agreed on than the one it set
    /// sets it again.
    fn lower(&self, at_ns: u64, set_timer: impl Fn(MonoNs)) {
        if self.armed.fetch_min(at_ns, AcqRel) <= at_ns {
            return;
        }
        let mut set_ns = at_ns;
        loop {
            set_timer(MonoNs(set_ns));
            let agreed_ns = self.armed.load(Acquire);
            if agreed_ns == set_ns || agreed_ns == NEVER {
                return;
            }
            set_ns = agreed_ns;
        }
    }
}

const NEVER: u64 = u64::MAX;
