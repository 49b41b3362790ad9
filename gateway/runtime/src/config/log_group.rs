//! The group whose members may read the publication logs.

use std::io;

use mdgw_publog::ReaderGroup;
use mdgw_sys::unix_group::group_id;

use super::resolved::GatewayConfig;

/// Why the group of `log_group` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogGroupError {
    /// The host has no group of that name.
    #[error(
        "gateway.log_group = \"{0}\": this host has no such group. Make it with `groupadd --system {0}`, and add the gateway's user to it"
    )]
    Unknown(String),
    /// The host's source of groups failed.
    #[error("gateway.log_group = \"{name}\": cannot look up the group: {source}")]
    LookUp {
        /// Name of the group.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

impl GatewayConfig {
    /// The group of `log_group` on this host; `None`: not configured.
    ///
    /// # Errors
    /// When the host does not know the group.
    pub fn log_reader_group(&self) -> Result<Option<ReaderGroup>, LogGroupError> {
        let Some(name) = &self.log_group else { return Ok(None) };
        match group_id(name) {
            Ok(Some(group)) => Ok(Some(ReaderGroup(group))),
            Ok(None) => Err(LogGroupError::Unknown(name.clone())),
            Err(source) => Err(LogGroupError::LookUp { name: name.clone(), source }),
        }
    }
}
