//! `[admin]`

use toml::Spanned;

use super::{Resolver, text};
use crate::config::{file, resolved::AdminListen};

impl Resolver<'_> {
    pub(super) fn admin(&mut self, written: &Spanned<file::Admin>) -> AdminListen {
        let (admin, table) = (written.get_ref(), written.span());
        if let Some(path) = text(&admin.listen).filter(|path| path.contains('/')) {
            return AdminListen::Unix(path.into());
        }
        let address = self.address(&admin.listen, &table, "listen");
        if address.ip().is_multicast() {
            self.add_problem(&table, "listen: a multicast address cannot accept connections");
        } else if !address.ip().is_loopback() {
            self.warnings.push(format!(
                "admin.listen {address} is not on loopback: every host that reaches it reads metrics, health and the page; let the packet filter admit monitoring hosts and operators only"
            ));
        }
        AdminListen::Tcp(address)
    }
}
