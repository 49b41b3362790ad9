//! Whether `net.core.rmem_max` limits the gateway's receive buffers: not a process with CAP_NET_ADMIN.

use mdgw_sys::{permissions::effective_user, sockets::may_exceed_buffer_limit};

use crate::{files::Files, memory::has_capability, service_unit::ServiceUnit};

/// Rights of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRights {
    /// Whether it is of root. The gateway is mostly of another user.
    pub is_root: bool,
    /// Whether the kernel gives it larger buffers than `net.core.rmem_max`.
    pub may_exceed_buffer_limit: bool,
}

impl OwnRights {
    /// Asks the kernel, by a socket that is closed again.
    #[must_use]
    pub fn read() -> Self {
        Self { is_root: effective_user() == 0, may_exceed_buffer_limit: may_exceed_buffer_limit() }
    }
}

/// Whether the limit is one for the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferLimit {
    /// What shows that the gateway may exceed the limit; `None`: nothing does.
    pub exceeded_by: Option<String>,
    /// Whether a unit starts the gateway.
    pub has_unit: bool,
}

const CAPABILITY: &str = "CAP_NET_ADMIN";
/// Its number (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;

impl BufferLimit {
    /// Of the gateway with that configuration: as it runs, else as its unit starts it, else by the rights of this process.
    pub(crate) fn find(files: &Files, config: Option<&str>, own: OwnRights) -> Self {
        let unit = ServiceUnit::of_gateway(files, config);
        let has_unit = unit.is_some();
        // In a user namespace root has capabilities that count for nothing here.
        if own.is_root && !own.may_exceed_buffer_limit {
            return Self { exceeded_by: None, has_unit };
        }
        let of_gateway = files.gateway(config).map(|process| {
            let has = has_capability(files, &process, CAP_NET_ADMIN);
            has.then(|| format!("{CAPABILITY} of the gateway (process {process})"))
        });
        let of_unit = unit.map(|unit| unit.grants(CAPABILITY).then(|| format!("{CAPABILITY} by mdgw.service")));
        let of_this = own.may_exceed_buffer_limit.then(|| format!("{CAPABILITY} of this process"));
        let exceeded_by = match of_gateway.or(of_unit) {
            // Root may, which says nothing of the gateway's user. Another user has been given the right.
            Some(None) if own.is_root => None,
            Some(None) | None => of_this,
            Some(found) => found,
        };
        Self { exceeded_by, has_unit }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const USER: OwnRights = OwnRights { is_root: false, may_exceed_buffer_limit: false };
    const CAPABLE_USER: OwnRights = OwnRights { may_exceed_buffer_limit: true, ..USER };
    const ROOT: OwnRights = OwnRights { is_root: true, ..CAPABLE_USER };
    /// Of a container with a user namespace.
    const POWERLESS_ROOT: OwnRights = OwnRights { is_root: true, ..USER };

    #[test]
    fn the_gateways_own_rights_count_then_those_by_its_unit_then_those_of_this_process() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let files = Files::new(root.path());
        let exceeds = || {
            [USER, CAPABLE_USER, ROOT, POWERLESS_ROOT]
                .map(|own| BufferLimit::find(&files, Some("/x.toml"), own).exceeded_by.is_some())
        };
        assert_eq!(exceeds(), [false, true, true, false], "no gateway and no unit");

        let unit = |more: &str| {
            let text = format!("[Service]\nUser=mdgw\nExecStart=/usr/bin/mdgw run /x.toml\n{more}");
            write("etc/systemd/system/mdgw.service", &text);
        };
        unit("AmbientCapabilities=CAP_NET_ADMIN\n");
        assert_eq!(exceeds(), [true, true, true, false]);
        unit("");
        assert_eq!(exceeds(), [false, true, false, false]);

        write("proc/70/cmdline", "/usr/bin/mdgw\0run\0/x.toml\0");
        write("proc/70/status", "Name:\tmdgw\nCapEff:\t0000000000001000\n");
        assert_eq!(exceeds(), [true, true, true, false]);
        unit("AmbientCapabilities=CAP_NET_ADMIN\n");
        write("proc/70/status", "Name:\tmdgw\nCapEff:\t0000000000800000\n");
        assert_eq!(exceeds(), [false, true, false, false]);
    }
}
