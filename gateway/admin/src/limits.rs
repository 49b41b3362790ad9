//! What a client may cost.

use std::time::Duration;

/// Connections that wait for their request at a time. A further one displaces the oldest of the address that holds most.
pub const WAITING_MAX: usize = 32;
/// Answers at a time but those about health. Further requests get status 503.
pub const ANSWERS_MAX: usize = 16;
/// Of these, answers to one address that is not on loopback.
pub const ANSWERS_PER_PEER_MAX: usize = 8;
/// Bytes of a request's line and headers together. No request has a body.
pub const REQUEST_BYTES_MAX: usize = 8_192;
/// Headers of a request.
pub const HEADERS_MAX: usize = 32;
/// How long the headers of a request may take.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may take, its answer included.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Metrics are collected at most once in this time; requests in between get the same text.
pub const METRICS_AGE_MAX: Duration = Duration::from_millis(100);
/// A status is made at most once in this time; requests in between get the same text, however many pages are open.
pub const STATUS_AGE_MAX: Duration = Duration::from_millis(500);
