//! Which commit the program was built from, for its metrics and its page.

use std::sync::OnceLock;

static COMMIT: OnceLock<&'static str> = OnceLock::new();

/// To be called by the program, which knows the commit, before it starts anything. The first call counts.
pub fn set_commit(commit: &'static str) {
    let _earlier = COMMIT.set(commit);
}

/// Short hash of the commit; empty if it is unknown, as in a build from an archive of the sources.
pub(crate) fn commit() -> &'static str {
    COMMIT.get().copied().unwrap_or_default()
}
