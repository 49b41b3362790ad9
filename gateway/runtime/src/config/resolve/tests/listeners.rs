//! Listeners of one configuration that would be in one place.

use expect_test::expect;

use super::{MINIMAL, load, refused};

/// Every listener: its key, its place in [`configuration`], and what it can be: `t`cp, `u`dp, a `p`ath.
const LISTENERS: [(&str, &str, &str); 12] = [
    ("retransmission.listen", "10.0.0.1:31100", "u"),
    ("election.link.listen", "10.0.0.1:31200", "tu"),
    ("election.link.sentinel", "/run/sentinel", "p"),
    ("election.quorum.listen", "10.0.0.1:27500", "u"),
    ("gateway.control_socket", "/run/control", "p"),
    ("live.listen", "10.0.0.1:13000", "t"),
    ("live.control_socket", "/run/live/control", "p"),
    ("admin.listen", "10.0.0.1:9464", "tp"),
    ("live.admin_listen", "10.0.0.1:9465", "tp"),
    ("journal.admin_listen", "10.0.0.1:9466", "tp"),
    ("nats.admin_listen", "10.0.0.1:9467", "tp"),
    ("mirror.admin_listen", "10.0.0.1:9468", "tp"),
];

fn configuration() -> String {
    let minimal = MINIMAL.replace("127.0.0.1:31100", "10.0.0.1:31100");
    minimal.replacen("[gateway]", "[gateway]\nnode = 0\ncontrol_socket = \"/run/control\"", 1)
        + r#"
[live]
listen = "10.0.0.1:13000"
key_file = "clients"
control_socket = "/run/live/control"
admin_listen = "10.0.0.1:9465"

[journal]
directory = "journal"
admin_listen = "10.0.0.1:9466"

[nats]
servers = ["nats://10.0.0.9:4222"]
admin_listen = "10.0.0.1:9467"

[mirror]
admin_listen = "10.0.0.1:9468"

[admin]
listen = "10.0.0.1:9464"

[election]
backend = "quorum"
name = "gw0"

[[election.peer]]
node = 1
name = "gw1"

[election.link]
listen = "10.0.0.1:31200"
peer = "10.0.0.2:31200"
key_file = "key"
sentinel = "/run/sentinel"

[election.quorum]
listen = "10.0.0.1:27500"
key_file = "key"
vote_directory = "votes"

[[election.quorum.voter]]
node = 1
address = "10.0.0.2:27500"

[[election.quorum.voter]]
node = 2
address = "10.0.0.3:27500"
"#
}

fn with_places(places: &[(&str, &str)]) -> String {
    places.iter().fold(configuration(), |text, (from, to)| {
        let (from, to) = (format!("\"{from}\""), format!("\"{to}\""));
        assert!(text.contains(&from), "{from}");
        text.replace(&from, &to)
    })
}

#[test]
fn two_listeners_in_one_place_are_refused_with_both_keys() {
    assert_eq!(load(&configuration()).map_err(|error| error.to_string()).err(), None);
    let mut refused_pairs = 0;
    for (index, (key, place, kinds)) in LISTENERS.iter().enumerate() {
        for (other_key, other_place, other_kinds) in &LISTENERS[..index] {
            let fault_at = |shared: &str| {
                let found = load(&with_places(&[(place, shared), (other_place, shared)]));
                found.map_err(|error| error.to_string()).err()
            };
            let common: Vec<char> = kinds.chars().filter(|kind| other_kinds.contains(*kind)).collect();
            for kind in &common {
                let shared = if *kind == 'p' { "/run/shared" } else { "10.0.0.1:7" };
                let expected = format!("{key}: {shared}: this is {other_key}; each listener needs its own");
                let fault = fault_at(shared).unwrap_or_default();
                assert!(fault.ends_with(&expected) && !fault.contains('\n'), "{key} and {other_key}: {fault:?}");
                refused_pairs += 1;
            }
            let may_be_port = |kinds: &str| kinds.contains(['t', 'u']);
            if common.is_empty() && may_be_port(kinds) && may_be_port(other_kinds) {
                assert_eq!(fault_at("10.0.0.1:7"), None, "a port of each protocol: {key} and {other_key}");
            }
        }
    }
    assert_eq!(refused_pairs, 52);
}

#[test]
fn a_listener_on_all_addresses_takes_the_port_on_each() {
    let with = |live: &str| with_places(&[("10.0.0.1:9465", live)]);
    refused(
        &with("0.0.0.0:13000"),
        expect![
            "x.toml:35:16: live.admin_listen: 0.0.0.0:13000: this is live.listen at 10.0.0.1:13000; each listener needs its own"
        ],
    );
    assert!(load(&with("10.0.0.2:13000")).is_ok(), "another address of the host");
    assert!(load(&with("10.0.0.1:27500")).is_ok(), "the other protocol");
}
