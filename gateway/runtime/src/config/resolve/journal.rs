//! `[journal]`

use toml::Spanned;

use super::{NS_PER_MS, Resolver};
use crate::config::{
    file, limits,
    resolved::{JournalCompression, JournalSettings},
};

impl Resolver<'_> {
    pub(super) fn journal(&mut self, written: &Spanned<file::Journal>) -> JournalSettings {
        let (journal, table) = (written.get_ref(), written.span());
        let directory = self.required(&journal.directory, &table, "directory").map(Into::into).unwrap_or_default();
        let flush_ms: u64 = self.number(&journal.flush_ms, limits::JOURNAL_FLUSH_MS);
        JournalSettings {
            directory,
            admin_listen: self.admin_of_program(&journal.admin_listen, &table, "journal"),
            compression: self.one_of(journal.compression.as_ref(), JournalCompression::NAMES).unwrap_or_default(),
            flush_ns: flush_ms * NS_PER_MS,
            retention_days: self.number(&journal.retention_days, limits::JOURNAL_RETENTION_DAYS),
            retention_bytes: self.number(&journal.retention_bytes, limits::JOURNAL_RETENTION_BYTES),
            free_bytes_min: self.number(&journal.free_bytes_min, limits::JOURNAL_FREE_BYTES_MIN),
        }
    }
}
