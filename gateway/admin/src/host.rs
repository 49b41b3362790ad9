//! Whether a request was meant for this listener: a defence against DNS rebinding.
//!
//! A foreign page in a browser on this host can make a name of its own resolve to 127.0.0.1, and then read what a listener on
//! loopback answers to that name. So such a listener answers only under names that no foreign page can own: addresses,
//! `localhost`, names without a dot. Beyond loopback a listener is reached by names that the gateway does not know, and the
//! packet filter decides who reaches it.

use std::net::IpAddr;

/// Whether the value of a `Host` header names this host in a way that no foreign page can claim.
pub(crate) fn is_own(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            matches!(address.parse(), Ok(IpAddr::V6(_))) && (port.is_empty() || is_port(port.strip_prefix(':')))
        });
    }
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    if port.is_some() && !is_port(port) {
        return false;
    }
    let is_dotless = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_dotless || matches!(name.parse(), Ok(IpAddr::V4(_))) || name.to_ascii_lowercase().ends_with(".localhost")
}

fn is_port(text: Option<&str>) -> bool {
    text.is_some_and(|text| text.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_foreign_page_can_own_are_refused() {
        for own in [
            "127.0.0.1:9464",
            "127.0.0.1",
            "[::1]:9464",
            "[::1]",
            "localhost:9464",
            "gateway",
            "gw-1:80",
            "gw1.localhost",
        ] {
            assert!(is_own(own), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:9464",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            ":80",
            "evil.example.",
            "[::1].evil.example",
            "[evil.example]",
            "127.0.0.1:80:evil.example",
            "localhost.",
            "a b",
            "evil.localhost.example",
        ] {
            assert!(!is_own(foreign), "{foreign}");
        }
    }
}
