//! The sink of a program that was built without the client of NATS: it does not start.

use std::convert::Infallible;

use crate::{
    SinkError,
    config::{SinkConfig, SinkCounts},
};

/// Follows the logs of all channels into their streams. There is none in this program.
#[derive(Debug)]
pub struct Sink(Infallible);

impl Sink {
    /// Refuses to start.
    ///
    /// # Errors
    /// Always.
    pub fn start(_config: SinkConfig) -> Result<Self, SinkError> {
        Err(SinkError::NotBuilt)
    }

    /// Whether the sink has tried to connect.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self.0 {}
    }

    /// Why the sink has ended by itself.
    #[must_use]
    pub fn failure(&self) -> Option<SinkError> {
        match self.0 {}
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> SinkCounts {
        match self.0 {}
    }

    /// Ends.
    pub fn stop(self) -> SinkCounts {
        match self.0 {}
    }
}
