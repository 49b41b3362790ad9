//! Own cgroups (v2): one below the present cgroup for the gateway's fence in the kernel, one beside it for the
//! sentinel. So a limit on the gateway's cgroup, or its kill, does not affect the sentinel.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

/// The cgroup to which the kernel fence is attached. A socket belongs to the cgroup in which it was opened, so a
/// process must enter the cgroup before it opens sockets.
#[derive(Debug)]
pub struct FenceCgroup {
    path: PathBuf,
    /// The cgroup to return to, if one was created.
    parent: Option<PathBuf>,
}

impl FenceCgroup {
    /// Moves this process into a new cgroup below its present one. Without permission to create one, the present cgroup
    /// is used unless it is the root: a service's own cgroup.
    ///
    /// # Errors
    /// If there is no cgroup v2, or the process is in the root cgroup and may not create another.
    pub fn enter() -> io::Result<Self> {
        let current = current()?;
        match enter_new(&current.path(), FENCE_PREFIX) {
            Ok(path) => Ok(Self { path, parent: Some(current.path()) }),
            Err(_) if !current.is_root => Ok(Self { path: current.path(), parent: None }),
            Err(error) => Err(error),
        }
    }

    /// Directory of the cgroup.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FenceCgroup {
    fn drop(&mut self) {
        // If the removal fails, the next start removes the directory.
        if let Some(parent) = &self.parent
            && enter(parent).is_ok()
        {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Checks that this host has a cgroup v2 that contains this process.
///
/// # Errors
/// Names the missing feature.
pub(crate) fn check_available() -> io::Result<()> {
    current().map(drop)
}

/// Moves this process, a sentinel, into a new cgroup beside that of the gateway, from which it inherited its cgroup.
///
/// # Errors
/// If there is no cgroup v2, or the process lacks permission.
pub fn enter_sibling() -> io::Result<PathBuf> {
    enter_new(&current()?.sibling_parent(), SENTINEL_PREFIX)
}

#[derive(Debug)]
struct CurrentCgroup {
    /// Mount point of the hierarchy, or of its visible part.
    mount_point: PathBuf,
    /// Path of the cgroup below the mount point.
    relative_path: PathBuf,
    is_root: bool,
}

impl CurrentCgroup {
    fn path(&self) -> PathBuf {
        self.mount_point.join(&self.relative_path)
    }

    /// The parent of the gateway's original cgroup: for the fence the gateway may have entered another one below it.
    /// The root has no parent and is returned itself.
    fn sibling_parent(&self) -> PathBuf {
        let name = self.relative_path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let of_gateway = if name.starts_with(FENCE_PREFIX) {
            self.relative_path.parent()
        } else {
            Some(self.relative_path.as_path())
        };
        let above = of_gateway.and_then(Path::parent);
        above.map_or_else(|| self.mount_point.clone(), |above| self.mount_point.join(above))
    }
}

fn current() -> io::Result<CurrentCgroup> {
    let proc_cgroup = fs::read_to_string("/proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    find(&proc_cgroup, &mounts).ok_or_else(|| io::Error::other("no cgroup v2 is mounted here"))
}

/// Parses this process's `/proc` files. The line `0::` is the unified hierarchy; it may be mounted anywhere, and a
/// container may see only a part of it.
fn find(proc_cgroup: &str, mounts: &str) -> Option<CurrentCgroup> {
    let proc_cgroup = proc_cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        kind.starts_with("cgroup2 ").then_some((fields.next()?, fields.next()?))
    });
    let (root, mount_point) = mount?;
    let relative_path = Path::new(proc_cgroup).strip_prefix(root).ok()?;
    Some(CurrentCgroup {
        mount_point: mount_point.into(),
        relative_path: relative_path.to_owned(),
        is_root: proc_cgroup == "/",
    })
}

/// Creates a cgroup named after this process and moves the process there.
fn enter_new(parent: &Path, prefix: &str) -> io::Result<PathBuf> {
    remove_stale(parent, prefix);
    let path = parent.join(format!("{prefix}{}", process::id()));
    fs::create_dir(&path)?;
    match enter(&path) {
        Ok(()) => Ok(path),
        Err(error) => {
            let _ = fs::remove_dir(&path);
            Err(error)
        }
    }
}

fn enter(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), process::id().to_string())
}

/// Removes the cgroups of killed processes. The kernel removes only cgroups without a process.
fn remove_stale(parent: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

const FENCE_PREFIX: &str = "mdgw-fence-";
const SENTINEL_PREFIX: &str = "mdgw-sentinel-";

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 0:20 / /sys rw - sysfs sysfs rw\n\
                          30 22 0:25 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_unified_hierarchy_is_found_wherever_it_is_mounted() {
        let found = find("1:cpu:/a\n0::/system.slice/mdgw.service\n", MOUNTS).unwrap();
        assert_eq!(found.path(), Path::new("/sys/fs/cgroup/unified/system.slice/mdgw.service"));
        assert!(!found.is_root);
        let root = find("0::/\n", MOUNTS).unwrap();
        assert!(root.is_root && root.path() == Path::new("/sys/fs/cgroup/unified/"));
        let part = MOUNTS.replace("0:25 / /sys/fs/cgroup/unified", "0:25 /pod /sys/fs/cgroup");
        assert_eq!(find("0::/pod/mdgw\n", &part).unwrap().path(), Path::new("/sys/fs/cgroup/mdgw"));
    }

    #[test]
    fn without_cgroup_v2_none_is_found() {
        assert!(find("1:cpu:/a\n", MOUNTS).is_none());
        assert!(find("0::/a\n", "22 1 0:20 / /sys rw - sysfs sysfs rw\n").is_none());
        let elsewhere = MOUNTS.replace("0:25 / ", "0:25 /pod ");
        assert!(find("0::/other\n", &elsewhere).is_none());
    }

    #[test]
    fn the_sentinel_gets_a_sibling_cgroup_wherever_the_gateway_started() {
        let sibling_parent = |proc_cgroup: &str| find(&format!("0::{proc_cgroup}\n"), MOUNTS).unwrap().sibling_parent();
        let root = Path::new("/sys/fs/cgroup/unified");
        assert_eq!(sibling_parent("/"), root);
        assert_eq!(sibling_parent("/mdgw-fence-7"), root);
        assert_eq!(sibling_parent("/system.slice/mdgw.service"), root.join("system.slice"));
        assert_eq!(sibling_parent("/system.slice/mdgw.service/mdgw-fence-7"), root.join("system.slice"));
    }
}
