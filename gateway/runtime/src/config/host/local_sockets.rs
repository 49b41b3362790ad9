//! Sockets of the gateway itself: whether the start could open them where they are configured.

use std::{
    io,
    net::{SocketAddrV4, TcpListener, UdpSocket},
    path::Path,
};

use mdgw_publog::{LogWriter, find_writer};
use mdgw_status::control::check_socket_path;

use super::{
    super::resolved::{AdminListen, ChannelSetup, Resolved},
    Refusals, election,
};

/// Why a socket in the file system cannot be where it is configured.
pub(super) fn refusals(config: &Resolved, refusals: &mut Refusals) {
    let admin = config.admin_listeners().into_iter().map(|(key, listen)| {
        let owner = if key == "admin.listen" { "admin socket" } else { key };
        (owner, if let AdminListen::Unix(path) = listen { Some(path.as_path()) } else { None })
    });
    let sockets = [
        ("control socket", config.gateway.control_socket.as_deref()),
        ("control socket of `mdgw live`", config.live.as_ref().and_then(|live| live.control_socket.as_deref())),
    ];
    let sockets: Vec<(&str, &Path)> =
        sockets.into_iter().chain(admin).filter_map(|(owner, path)| Some((owner, path?))).collect();
    let gateway = &config.gateway;
    let files = [
        Some(("state file", gateway.state_file.as_path())),
        gateway.audit_file.as_deref().map(|path| ("audit file", path)),
    ];
    let files: Vec<(&str, &Path)> = files.into_iter().flatten().collect();
    if let Some(audit) = &gateway.audit_file {
        let beside = |suffix: &str| format!("{}{suffix}", gateway.state_file.display());
        let of_state = ["", ".lock", ".new", ".positions", ".positions.new"].map(beside);
        if of_state.iter().any(|path| audit.as_path() == Path::new(path)) {
            refusals.fault(format!("audit file {} is also a file of the gateway's state", audit.display()));
        }
    }
    for (owner, path) in &sockets {
        if let Err(error) = check_socket_path(path) {
            refusals.refused(&error, format!("{owner} {}: {error}", path.display()));
        }
        for (other, _) in files.iter().filter(|(_, other)| other == path) {
            refusals.fault(format!("{} is both the {other} and the {owner}", path.display()));
        }
    }
}

/// The configured ports that are in use, and not by a gateway of this configuration.
pub(super) fn ports_in_use(config: &Resolved) -> Vec<String> {
    // What cannot be found out is no reason for a warning: another user's log.
    let may_run = |channel: &ChannelSetup| {
        let writer = find_writer(&config.gateway.log_directory(channel.id));
        writer.map_or(true, |writer| writer == LogWriter::Present)
    };
    if config.channels.iter().any(may_run) {
        return Vec::new();
    }
    let is_in_use = |error: io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let admin = match &config.admin {
        Some(AdminListen::Tcp(listen)) => Some(listen),
        Some(AdminListen::Unix(_)) | None => None,
    };
    let admin = admin.filter(|listen| TcpListener::bind(listen).is_err_and(is_in_use)).map(|listen| {
        format!(
            "admin.listen {listen} is in use by another process: the gateway would run without metrics, health and page until the port is free"
        )
    });
    let retransmission = config.retransmission.iter().map(|service| ("retransmission".to_owned(), service.listen));
    let of_election = config.election.iter().flat_map(election::addresses);
    let needed = retransmission.chain(of_election.map(|(owner, listen)| (format!("election.{owner}"), listen)));
    // The pair link listens for both.
    let is_taken = |(owner, listen): &(String, SocketAddrV4)| {
        UdpSocket::bind(listen).is_err_and(is_in_use)
            || owner == "election.link" && TcpListener::bind(listen).is_err_and(is_in_use)
    };
    let needed = needed.filter(is_taken).map(|(owner, listen)| {
        format!(
            "{owner}.listen {listen} is in use by another process: the gateway will not start until the port is free"
        )
    });
    admin.into_iter().chain(needed).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, net::SocketAddr};

    use super::*;

    #[test]
    fn a_socket_where_another_file_is_or_will_be_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut config = Resolved::shipped();
        config.gateway.state_file = path("state");
        config.gateway.control_socket = Some(path("control"));
        config.admin = Some(AdminListen::Unix(path("admin")));
        let faults = |config: &Resolved| {
            let mut refusals = Refusals::of_attempts();
            super::refusals(config, &mut refusals);
            refusals.faults
        };
        assert_eq!(faults(&config), [""; 0]);
        fs::write(path("admin"), "").unwrap();
        config.gateway.control_socket = Some(path("state"));
        for suffix in ["", ".lock", ".positions"] {
            let mut audited = config.clone();
            let audit = format!("{}{suffix}", audited.gateway.state_file.display());
            audited.gateway.audit_file = Some(audit.into());
            assert!(
                faults(&audited).iter().any(|fault| fault.ends_with("is also a file of the gateway's state")),
                "{suffix}"
            );
        }
        let [both, file] = &faults(&config)[..] else { panic!("{:?}", faults(&config)) };
        assert!(both.ends_with("is both the state file and the control socket"), "{both}");
        assert!(file.starts_with("admin socket ") && file.ends_with("a file that is no socket"), "{file}");
    }

    #[test]
    fn ports_of_another_process_are_warnings() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Resolved::shipped();
        config.gateway.log_dir = folder.path().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let [Ok(SocketAddr::V4(admin)), Ok(SocketAddr::V4(requests))] = [listener.local_addr(), datagrams.local_addr()]
        else {
            panic!("IPv4")
        };
        config.admin = Some(AdminListen::Tcp(admin));
        config.retransmission.as_mut().unwrap().listen = requests;
        let [of_admin, of_requests] = &ports_in_use(&config)[..] else { panic!("{:?}", ports_in_use(&config)) };
        assert!(of_admin.contains("would run without metrics"), "{of_admin}");
        assert!(of_requests.starts_with(&format!("retransmission.listen {requests} is in use")), "{of_requests}");
        drop((listener, datagrams));
        assert_eq!(ports_in_use(&config), [""; 0]);
    }

    #[test]
    fn the_pair_link_needs_its_port_for_streams_and_for_datagrams() {
        let folder = tempfile::tempdir().unwrap();
        let text = include_str!("../../../../../ops/config/pair.toml");
        let mut config = Resolved::from_text(Path::new("pair.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        config.gateway.log_dir = folder.path().to_owned();
        let mut listens_at = |address| {
            let Ok(SocketAddr::V4(listen)) = address else { panic!("{address:?}") };
            config.election.as_mut().unwrap().link.as_mut().unwrap().listen = listen;
            let found = ports_in_use(&config);
            found.iter().any(|text| text.starts_with(&format!("election.link.listen {listen} is in use")))
        };
        let streams = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listens_at(streams.local_addr()));
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(listens_at(datagrams.local_addr()));
        let free = datagrams.local_addr();
        drop(datagrams);
        assert!(!listens_at(free));
    }
}
