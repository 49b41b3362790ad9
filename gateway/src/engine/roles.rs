//! What the threads of a pool are doing and have done.

/// What a pool shows of itself: sums over its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {}
