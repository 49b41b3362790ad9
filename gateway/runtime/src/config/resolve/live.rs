//! `[live]`

use toml::Spanned;

use super::{NS_PER_MS, NS_PER_SECOND, Resolver, text};
use crate::config::{file, limits, resolved::LiveSettings};

impl Resolver<'_> {
    pub(super) fn live(&mut self, written: &Spanned<file::Live>) -> LiveSettings {
        let (live, table) = (written.get_ref(), written.span());
        let key_file = self.required(&live.key_file, &table, "key_file").map(Into::into).unwrap_or_default();
        let timeout_ms: u64 = self.number(&live.handshake_timeout_ms, limits::LIVE_HANDSHAKE_TIMEOUT_MS);
        let stall_seconds: u64 = self.number(&live.stall_seconds, limits::LIVE_STALL_SECONDS);
        LiveSettings {
            listen: self.listen_address(&live.listen, &table, "live"),
            key_file,
            control_socket: text(&live.control_socket).map(Into::into),
            admin_listen: self.admin_of_program(&live.admin_listen, &table, "live"),
            sessions_max: self.number(&live.sessions_max, limits::LIVE_SESSIONS_MAX),
            handshakes_max: self.number(&live.handshakes_max, limits::LIVE_HANDSHAKES_MAX),
            handshakes_per_second: self.number(&live.handshakes_per_second, limits::LIVE_HANDSHAKES_PER_SECOND),
            handshake_timeout_ns: timeout_ms * NS_PER_MS,
            failures_per_minute: self.number(&live.failures_per_minute, limits::LIVE_FAILURES_PER_MINUTE),
            line_bytes_max: self.number(&live.line_bytes_max, limits::LIVE_LINE_BYTES_MAX),
            symbols_max: self.number(&live.symbols_max, limits::LIVE_SYMBOLS_MAX),
            queue_bytes_max: self.number(&live.queue_bytes_max, limits::LIVE_QUEUE_BYTES_MAX),
            journal_days_max: self.number(&live.journal_days_max, limits::LIVE_JOURNAL_DAYS_MAX),
            replays_max: self.number(&live.replays_max, limits::LIVE_REPLAYS_MAX),
            stall_ns: stall_seconds * NS_PER_SECOND,
            threads: self.number(&live.threads, limits::LIVE_THREADS),
        }
    }
}
