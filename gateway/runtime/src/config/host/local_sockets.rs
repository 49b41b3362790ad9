//! Sockets of the gateway itself: whether the start could open them where they are configured.

use std::{io, net::TcpListener, path::Path};

use mdgw_publog::has_writer;
use mdgw_status::control::check_socket_path;

use super::{
    super::resolved::{AdminListen, Resolved},
    Refusals,
};

/// Why a socket in the file system cannot be where it is configured.
pub(super) fn refusals(config: &Resolved, refusals: &mut Refusals) {
    let admin = match &config.admin {
        Some(AdminListen::Unix(path)) => Some(path.as_path()),
        _ => None,
    };
    let sockets = [
        ("control socket", config.gateway.control_socket.as_deref()),
        ("admin socket", admin),
        ("control socket of `mdgw live`", config.live.as_ref().and_then(|live| live.control_socket.as_deref())),
    ];
    let sockets: Vec<(&str, &Path)> = sockets.into_iter().filter_map(|(owner, path)| Some((owner, path?))).collect();
    let gateway = &config.gateway;
    let files = [
        Some(("state file", gateway.state_file.as_path())),
        gateway.audit_file.as_deref().map(|path| ("audit file", path)),
    ];
    let files: Vec<(&str, &Path)> = files.into_iter().flatten().collect();
    for (index, (owner, path)) in sockets.iter().enumerate() {
        if let Err(error) = check_socket_path(path) {
            refusals.refused(&error, format!("{owner} {}: {error}", path.display()));
        }
        let others = files.iter().chain(sockets.get(..index).unwrap_or_default());
        for (other, _) in others.filter(|(_, other)| other == path) {
            refusals.fault(format!("{} is both the {other} and the {owner}", path.display()));
        }
    }
}

/// The admin listener's port is in use, and not by a gateway of this configuration.
pub(super) fn admin_in_use(config: &Resolved) -> Option<String> {
    let Some(AdminListen::Tcp(listen)) = &config.admin else { return None };
    let is_in_use = TcpListener::bind(listen).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    let is_running =
        config.channels.iter().any(|channel| has_writer(&config.gateway.log_directory(channel.id)).unwrap_or(false));
    (is_in_use && !is_running).then(|| {
        format!(
            "admin.listen {listen} is in use by another process: the gateway would run without metrics, health and page"
        )
    })
}
