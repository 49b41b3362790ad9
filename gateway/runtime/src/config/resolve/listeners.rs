//! Each listener of the gateway and of the programs beside it has an address or a path of its own.

use std::{
    net::SocketAddrV4,
    path::{Path, PathBuf},
};

use toml::Spanned;

use super::{Resolver, UNREADABLE_ADDRESS};
use crate::config::{
    file,
    resolved::{AdminListen, Backend, Resolved, SentinelChoice},
};

/// Where a process listens.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Tcp(SocketAddrV4),
    Udp(SocketAddrV4),
    /// Both protocols.
    TcpAndUdp(SocketAddrV4),
    Unix(&'a Path),
}

impl<'a> Place<'a> {
    fn of_admin(listen: &'a AdminListen) -> Self {
        match listen {
            AdminListen::Tcp(address) => Self::Tcp(*address),
            AdminListen::Unix(path) => Self::Unix(path),
        }
    }

    fn address(self) -> Option<SocketAddrV4> {
        match self {
            Self::Tcp(address) | Self::Udp(address) | Self::TcpAndUdp(address) => Some(address),
            Self::Unix(_) => None,
        }
    }

    /// Whether two processes cannot listen there at a time.
    fn conflicts(self, other: Self) -> bool {
        let is_same_path = matches!((self, other), (Self::Unix(one), Self::Unix(other)) if one == other);
        let have_protocol = !matches!((self, other), (Self::Tcp(_), Self::Udp(_)) | (Self::Udp(_), Self::Tcp(_)));
        let is_same_port = self.address().zip(other.address()).is_some_and(|(one, other)| {
            // A listener on all addresses of the host takes the port on each.
            let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
            one.port() == other.port() && (is_any || one.ip() == other.ip())
        });
        is_same_path || have_protocol && is_same_port
    }
}

impl Resolver<'_> {
    /// Records each listener that is where another one is. The programs need not run at a time: a path or a port that two keys name is
    /// a mistake.
    pub(super) fn check_listeners(&mut self, file: &file::File, resolved: &Resolved) {
        let mut before: Vec<(&str, Place<'_>)> = Vec::new();
        for (key, place, written) in listeners(file, resolved) {
            let conflict = before.iter().find(|(_, other)| place.conflicts(*other));
            if let Some((other_key, other)) = conflict {
                let at = match (place, other.address()) {
                    (Place::Unix(_), _) | (_, None) => String::new(),
                    (_, Some(other)) if place.address() == Some(other) => String::new(),
                    (_, Some(other)) => format!(" at {other}"),
                };
                let text = format!("{}: this is {other_key}{at}; each listener needs its own", written.get_ref());
                self.add_problem(&written.span(), text);
            }
            before.push((key, place));
        }
    }
}

/// Key, place and value as written of each listener, in the order in which a later one is blamed. An address that could not be read is
/// left out.
fn listeners<'a>(
    file: &'a file::File,
    resolved: &'a Resolved,
) -> impl Iterator<Item = (&'static str, Place<'a>, &'a Spanned<String>)> {
    let (gateway, live) = (file.gateway.get_ref(), file.live.as_ref().map(Spanned::get_ref));
    let election = file.election.as_ref().map(Spanned::get_ref);
    let of_election = resolved.election.as_ref();
    let link = election.and_then(|election| election.link.as_ref()).map(Spanned::get_ref);
    let of_link = of_election.and_then(|election| election.link.as_ref());
    let sentinel = of_link.and_then(|link| match &link.sentinel {
        SentinelChoice::Service(path) => Some(Place::Unix(path)),
        SentinelChoice::None | SentinelChoice::Started => None,
    });
    let (quorum, emergent) = match of_election.map(|election| &election.backend) {
        Some(Backend::Quorum(quorum)) => (Some(quorum.listen), None),
        Some(Backend::Emergent(membership)) => (None, Some(membership.listen)),
        Some(Backend::File(_) | Backend::Etcd(_) | Backend::ZooKeeper(_)) | None => (None, None),
    };
    let written_quorum = election.and_then(|election| election.quorum.as_ref()).map(Spanned::get_ref);
    let written_emergent = election.and_then(|election| election.emergent.as_ref()).map(Spanned::get_ref);
    let unix = |path: &'a Option<PathBuf>| path.as_deref().map(Place::Unix);
    let of_live = resolved.live.as_ref();
    let written_admin = move |key: &str| match key {
        "admin.listen" => file.admin.as_ref().and_then(|admin| admin.get_ref().listen.as_ref()),
        "live.admin_listen" => live.and_then(|live| live.admin_listen.as_ref()),
        "journal.admin_listen" => file.journal.as_ref().and_then(|journal| journal.get_ref().admin_listen.as_ref()),
        "nats.admin_listen" => file.nats.as_ref().and_then(|nats| nats.get_ref().admin_listen.as_ref()),
        _ => file.mirror.as_ref().and_then(|mirror| mirror.get_ref().admin_listen.as_ref()),
    };
    let admin = resolved.admin_listeners().into_iter();
    let admin = admin.map(move |(key, listen)| (key, Some(Place::of_admin(listen)), written_admin(key)));
    let others = [
        (
            "retransmission.listen",
            resolved.retransmission.as_ref().map(|service| Place::Udp(service.listen)),
            file.retransmission.as_ref().and_then(|service| service.get_ref().listen.as_ref()),
        ),
        (
            "election.link.listen",
            of_link.map(|link| Place::TcpAndUdp(link.listen)),
            link.and_then(|link| link.listen.as_ref()),
        ),
        ("election.link.sentinel", sentinel, link.and_then(|link| link.sentinel.as_ref())),
        ("election.quorum.listen", quorum.map(Place::Udp), written_quorum.and_then(|quorum| quorum.listen.as_ref())),
        (
            "election.emergent.listen",
            emergent.map(Place::Udp),
            written_emergent.and_then(|emergent| emergent.listen.as_ref()),
        ),
        ("gateway.control_socket", unix(&resolved.gateway.control_socket), gateway.control_socket.as_ref()),
        ("live.listen", of_live.map(|live| Place::Tcp(live.listen)), live.and_then(|live| live.listen.as_ref())),
        (
            "live.control_socket",
            of_live.and_then(|live| unix(&live.control_socket)),
            live.and_then(|live| live.control_socket.as_ref()),
        ),
    ];
    let all = others.into_iter().chain(admin).filter_map(|(key, place, written)| Some((key, place?, written?)));
    all.filter(|(_, place, _)| place.address() != Some(UNREADABLE_ADDRESS))
}
