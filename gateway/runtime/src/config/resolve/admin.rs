//! `[admin]`

use std::ops::Range;

use toml::Spanned;

use super::{Resolver, text};
use crate::config::{
    file::{self, FileValue},
    resolved::AdminListen,
};

impl Resolver<'_> {
    pub(super) fn admin(&mut self, written: &Spanned<file::Admin>) -> AdminListen {
        let (admin, table) = (written.get_ref(), written.span());
        self.admin_listener(&admin.listen, &table, ("admin", "listen"))
    }

    /// The admin listener of a program beside the gateway.
    pub(super) fn admin_of_program(
        &mut self,
        written: &FileValue<String>,
        table: &Range<usize>,
        owner: &str,
    ) -> Option<AdminListen> {
        written.is_some().then(|| self.admin_listener(written, table, (owner, "admin_listen")))
    }

    fn admin_listener(
        &mut self,
        written: &FileValue<String>,
        table: &Range<usize>,
        (owner, key): (&str, &str),
    ) -> AdminListen {
        if let Some(path) = text(written).filter(|path| path.contains('/')) {
            return AdminListen::Unix(path.into());
        }
        let address = self.address(written, table, key);
        if address.ip().is_multicast() {
            self.add_problem(table, format!("{key}: a multicast address cannot accept connections"));
        } else if !address.ip().is_loopback() {
            let shows = if owner == "admin" { "metrics, health and the page" } else { "metrics and health" };
            self.warnings.push(format!(
                "{owner}.{key} {address} is not on loopback: every host that reaches it reads {shows}; let the packet filter admit monitoring hosts and operators only"
            ));
        }
        AdminListen::Tcp(address)
    }
}
