//! Accepted sources of a line.

use std::net::{Ipv4Addr, SocketAddrV4};

use mdgw_wire::drop_reason::DropReason;

/// The expected sources of a line. Empty: any source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFilter {
    sources: Box<[Ipv4Addr]>,
}

impl SourceFilter {
    /// A filter of the configured sources.
    #[must_use]
    pub fn new(sources: &[Ipv4Addr]) -> Self {
        Self { sources: sources.into() }
    }

    /// Checks the source of a datagram.
    ///
    /// # Errors
    /// [`DropReason::SourceUnexpected`], to be counted.
    pub fn check(&self, source: SocketAddrV4) -> Result<(), DropReason> {
        if self.sources.is_empty() || self.sources.contains(source.ip()) {
            Ok(())
        } else {
            Err(DropReason::SourceUnexpected)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configured_sources_pass_and_an_empty_filter_passes_all() {
        let filter = SourceFilter::new(&[Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)]);
        let from = |last, port| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), port);
        assert_eq!(filter.check(from(1, 9)), Ok(()));
        assert_eq!(filter.check(from(2, 10)), Ok(()));
        assert_eq!(filter.check(from(3, 9)), Err(DropReason::SourceUnexpected));
        assert_eq!(SourceFilter::default().check(from(3, 9)), Ok(()));
    }
}
