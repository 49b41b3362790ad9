//! How many readers of a dataset's replays run at a time: each reads the log and keeps books of its own.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::replay::Member;

/// The places of a dataset's replays. Who finds none waits, in the order of coming.
#[derive(Debug)]
pub(crate) struct ReplayPlaces {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    waiting: VecDeque<Member>,
}

impl ReplayPlaces {
    /// That many places.
    pub(crate) fn new(count: usize) -> Self {
        Self { state: Mutex::new(State { free: count, waiting: VecDeque::new() }) }
    }

    /// Adds replays that wait. Returns whether that took a place: then the caller serves [`Self::next_group`] until there is none.
    pub(crate) fn enter(&self, members: Vec<Member>) -> bool {
        let mut state = self.lock();
        state.waiting.retain(|member| !member.has_left());
        state.waiting.extend(members);
        let takes_place = state.free > 0 && !state.waiting.is_empty();
        state.free -= usize::from(takes_place);
        takes_place
    }

    /// The replay that has waited longest, and if they may share a reader, all that want the same records. Without any, the caller's
    /// place is free again.
    pub(crate) fn next_group(&self, may_share: bool) -> Option<Vec<Member>> {
        let mut state = self.lock();
        state.waiting.retain(|member| !member.has_left());
        let Some(first) = state.waiting.pop_front() else {
            state.free += 1;
            return None;
        };
        let mut group = vec![first];
        if may_share {
            for member in std::mem::take(&mut state.waiting) {
                if member.goes_with(&group[0]) { group.push(member) } else { state.waiting.push_back(member) }
            }
        }
        Some(group)
    }

    /// Whether a replay waits for a place.
    pub(crate) fn has_waiting(&self) -> bool {
        self.lock().waiting.iter().any(|member| !member.has_left())
    }

    /// Free places.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.lock().free
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete before a panic could happen.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
