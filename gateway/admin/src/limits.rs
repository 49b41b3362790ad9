//! What a client may cost.

use std::time::Duration;

/// Connections at a time. Further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 16;
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
