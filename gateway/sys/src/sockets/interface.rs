//! An interface as configured, and its present state.

use std::{convert::Infallible, fmt, io, net::Ipv4Addr, str::FromStr};

use crate::interfaces::{InterfaceAddress, interfaces};

/// An interface as configured: by one of its addresses or by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Interface {
    /// One of its IPv4 addresses.
    Address(Ipv4Addr),
    /// Name of the interface, such as `eth0`.
    Name(String),
}

impl Interface {
    /// The interface of 127.0.0.1.
    pub const LOOPBACK: Self = Self::Address(Ipv4Addr::LOCALHOST);

    /// The present index of the interface; a removed and recreated interface has another.
    ///
    /// # Errors
    /// If there is no such interface; the text lists the available ones.
    pub fn index(&self) -> io::Result<u32> {
        self.lookup().map(|entry| entry.index)
    }

    /// The present state of the interface, with the configured address or else its first.
    ///
    /// # Errors
    /// As [`Self::index`].
    pub fn lookup(&self) -> io::Result<InterfaceAddress> {
        let all = interfaces()?;
        let mut candidates = all.iter().filter(|entry| match self {
            Self::Address(address) => entry.address == Some(*address),
            Self::Name(name) => entry.name == *name,
        });
        let first = candidates.next();
        let found = first.filter(|entry| entry.address.is_some()).or_else(|| candidates.next()).or(first);
        found.cloned().ok_or_else(|| {
            let text = format!("no interface {self}; available: {}", InterfaceList(&all));
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }
}

impl FromStr for Interface {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Address))
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Displays interfaces in one line, with their addresses.
struct InterfaceList<'a>(&'a [InterfaceAddress]);

impl fmt::Display for InterfaceList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, entry) in self.0.iter().filter(|entry| entry.address.is_some()).enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            let address = entry.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
            write!(f, "{separator}{} ({address})", entry.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_an_address_resolve_to_the_same_interface() {
        let by_address: Interface = "127.0.0.1".parse().unwrap();
        assert_eq!(by_address, Interface::LOOPBACK);
        let by_name: Interface = "lo".parse().unwrap();
        assert_eq!(by_name.index().unwrap(), by_address.index().unwrap());
        let missing: Interface = "no-such-one".parse().unwrap();
        let text = missing.index().unwrap_err().to_string();
        assert!(text.contains("no-such-one") && text.contains("lo (127.0.0.1)"), "{text}");
    }
}
