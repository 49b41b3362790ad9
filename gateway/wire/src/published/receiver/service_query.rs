//! A query to the services, repeated until it is answered or given up.

use crate::time::MonoNs;

use super::{ServiceConfig, log_extents::LogExtents};

#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceQuery {
    config: ServiceConfig,
    attempt: u16,
    deadline: MonoNs,
    is_due: bool,
}

impl ServiceQuery {
    pub(super) fn new(config: ServiceConfig, now: MonoNs) -> Self {
        Self { config, attempt: 1, deadline: now.plus(config.request_timeout_ns), is_due: true }
    }

    pub(super) fn deadline(&self) -> MonoNs {
        self.deadline
    }

    /// Whether the query is due to be sent.
    pub(super) fn take_due(&mut self) -> bool {
        core::mem::take(&mut self.is_due)
    }

    /// Part of the answer arrived: the rest gets a new timeout, and new attempts if the part had anything new. Otherwise a
    /// service that only ever sends its beginning would be asked for ever.
    pub(super) fn on_progress(&mut self, is_any_new: bool, now: MonoNs) {
        if is_any_new {
            self.attempt = 1;
        }
        self.deadline = now.plus(self.config.request_timeout_ns);
    }

    /// The answer ended early: asks the same service for the rest.
    pub(super) fn request_next_piece(&mut self, now: MonoNs) {
        self.deadline = now.plus(self.config.request_timeout_ns);
        self.is_due = true;
    }

    /// Sends the same query to the next service.
    pub(super) fn query_next_service(&mut self, now: MonoNs) {
        self.attempt = self.attempt.saturating_add(1);
        self.deadline = now.plus(self.config.request_timeout_ns);
        self.is_due = true;
    }

    /// Handles an expired deadline. Returns `false` if the query is given up.
    pub(super) fn on_deadline(&mut self, now: MonoNs) -> bool {
        if self.deadline <= now {
            self.query_next_service(now);
        }
        self.attempt <= self.config.attempts_max.max(1)
    }

    /// Whether the reports suffice: every service has answered or was queried often enough.
    pub(super) fn is_satisfied_by(&self, log_extents: &LogExtents) -> bool {
        log_extents.all_reported() || log_extents.any_reported() && self.has_asked_enough()
    }

    /// Whether every service was queried [`ServiceConfig::unanswered_rounds_max`] times.
    pub(super) fn has_asked_enough(&self) -> bool {
        self.attempt > self.config.unanswered_rounds_max.saturating_mul(self.config.service_count.into())
    }
}
