//! Rewrites the destination addresses of a replay.

use std::{
    net::{IpAddr, SocketAddr, SocketAddrV4},
    str::FromStr,
};

/// Rewrites captured addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// Destinations of datagrams that no rewrite covers: none (as captured), one address, or one for each file.
    pub to: Vec<SocketAddrV4>,
    /// Rewrites; the first that matches an address applies.
    pub map: Vec<AddressRewrite>,
}

/// Datagrams captured for `from` go to `to`. Without a port: any port, and it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRewrite {
    from: (IpAddr, Option<u16>),
    to: (IpAddr, Option<u16>),
}

impl AddressMap {
    /// Destination of a datagram of that file.
    #[must_use]
    pub(crate) fn rewrite(&self, file: usize, dst: SocketAddr) -> SocketAddr {
        if let Some(rewritten) = self.map.iter().find_map(|rewrite| rewrite.apply(dst)) {
            return rewritten;
        }
        match self.to.as_slice() {
            [] => dst,
            [only] => SocketAddr::V4(*only),
            each => each.get(file).map_or(dst, |address| SocketAddr::V4(*address)),
        }
    }
}

impl AddressRewrite {
    fn apply(&self, dst: SocketAddr) -> Option<SocketAddr> {
        let (ip, port) = self.from;
        let covers = dst.ip() == ip && port.is_none_or(|port| dst.port() == port);
        covers.then(|| SocketAddr::new(self.to.0, self.to.1.unwrap_or_else(|| dst.port())))
    }
}

impl FromStr for AddressRewrite {
    type Err = InvalidRewrite;

    fn from_str(text: &str) -> Result<Self, InvalidRewrite> {
        let (from, to) = text.split_once('=').ok_or(InvalidRewrite)?;
        Ok(Self { from: parse_address(from)?, to: parse_address(to)? })
    }
}

/// Text that is not a rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected OLD=NEW, each ADDR or ADDR:PORT")]
pub struct InvalidRewrite;

fn parse_address(text: &str) -> Result<(IpAddr, Option<u16>), InvalidRewrite> {
    match text.parse::<SocketAddr>() {
        Ok(address) => Ok((address.ip(), Some(address.port()))),
        Err(_) => text.parse().map(|ip| (ip, None)).map_err(|_| InvalidRewrite),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(addresses: &AddressMap, file: usize, dst: &str) -> String {
        addresses.rewrite(file, dst.parse().unwrap()).to_string()
    }

    #[test]
    fn rewrites_precede_the_common_address_and_the_first_match_wins() {
        let map = ["233.1.1.1:10=239.0.0.1:20", "233.1.1.1=239.0.0.2", "233.1.1.1:11=239.0.0.3"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let addresses = AddressMap { to: vec!["127.0.0.1:9000".parse().unwrap()], map };
        assert_eq!(rewrite(&addresses, 0, "233.1.1.1:10"), "239.0.0.1:20");
        assert_eq!(rewrite(&addresses, 0, "233.1.1.1:11"), "239.0.0.2:11");
        assert_eq!(rewrite(&addresses, 3, "233.9.9.9:1"), "127.0.0.1:9000");
        assert_eq!(rewrite(&AddressMap::default(), 0, "233.9.9.9:1"), "233.9.9.9:1");
    }

    #[test]
    fn several_addresses_apply_one_per_file() {
        let to = vec!["239.0.0.1:1".parse().unwrap(), "239.0.0.2:2".parse().unwrap()];
        let addresses = AddressMap { to, map: vec![] };
        assert_eq!(rewrite(&addresses, 0, "233.9.9.9:1"), "239.0.0.1:1");
        assert_eq!(rewrite(&addresses, 1, "233.9.9.9:1"), "239.0.0.2:2");
    }

    #[test]
    fn invalid_rewrites_are_refused() {
        for text in ["", "=", "1.2.3.4", "1.2.3.4=", "1.2.3.4:x=1.1.1.1", "host=1.1.1.1", "1.1.1.1=2.2.2.2=3.3.3.3"] {
            assert_eq!(text.parse::<AddressRewrite>(), Err(InvalidRewrite), "{text}");
        }
    }
}
