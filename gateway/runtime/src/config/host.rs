//! Compares this host with the needs of a configuration: faults that would prevent the start, and warnings.

mod election;
mod local_sockets;

use std::{
    collections::BTreeSet,
    error::Error,
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket},
    os::unix::fs::{MetadataExt as _, fchown},
    path::{Path, PathBuf},
};

use mdgw_doctor::OwnRights;
use mdgw_election::sentinel::shared_page::GROUPS_MAX;
use mdgw_engine::handle_set::backend_choice::{self, IoChoice};
use mdgw_feeds::identity::GroupId;
use mdgw_sys::{
    affinity::{pinnable_cores, usable_cores},
    disk_space::{free_bytes, is_disk_unwritable},
    host_memory::HostMemory,
    interfaces::InterfaceAddress,
    kernel_fence::KernelFence,
    memory, permissions,
    scheduler::set_fifo,
};

use crate::state_file::StateFile;

use super::{
    quantity::Bytes,
    resolved::{AdminListen, GatewayConfig, Interface, OutputLine, Resolved, Threads},
    tag_keys::tag_policies,
};

/// The properties of a host on which a configuration depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The configured interfaces that the host has.
    pub interfaces: Vec<Interface>,
    /// Those of them that are down or have no carrier.
    pub not_running: Vec<InterfaceAddress>,
    /// The addresses from which the host sends on them, where they have one.
    pub addresses: Vec<(Interface, Ipv4Addr)>,
    /// Cores to which this process may pin a thread.
    pub cores: Vec<usize>,
    /// Cores on which a thread without a core of its own may run: fewer, where cores are isolated.
    pub shared_cores: Vec<usize>,
    /// `net.core.rmem_max`, bytes; `None` if it cannot be read.
    pub receive_buffer_bytes_max: Option<usize>,
    /// Whether the gateway may exceed that (CAP_NET_ADMIN).
    pub may_exceed_buffer_limit: bool,
    /// Interfaces on which the kernel is set to IGMP version 1 or 2.
    pub old_igmp: Vec<Interface>,
    /// `net.ipv4.igmp_max_msf`: most sources of one group; `None` if it cannot be read.
    pub sources_max: Option<usize>,
    /// Memory of the host, or of a cgroup around this process; `None` if the kernel does not show it.
    pub memory: Option<HostMemory>,
    /// Why memory cannot be locked, if so.
    pub lock_refused: Option<String>,
    /// Attempts that this host refused: directories, addresses, keys, a backend, a priority.
    pub refused: Vec<String>,
    /// What could not be found out, since the user who asks lacks the rights. Empty where the host was [tried](Host::this).
    pub not_permitted: Vec<String>,
    /// Free space where the journals are, or will be; `None` without journals, or if the space cannot be read.
    pub journal_free_bytes: Option<u64>,
    /// Parts that are missing now, and may exist when the gateway starts, or later: a sentinel, a free port, space for a file.
    pub not_yet_present: Vec<String>,
}

/// The findings about a configuration that is valid by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Each of these prevents the start on this host.
    pub faults: Vec<String>,
    /// The gateway would run, but not as well as it should.
    pub warnings: Vec<String>,
}

impl Host {
    /// The present host. Tries what `run` would need, and undoes it.
    #[must_use]
    pub fn this(config: &Resolved) -> Self {
        Self::read(config, Refusals::of_attempts())
    }

    /// The present host, for a user who need not be the gateway's. Asks for permissions and makes no file.
    #[must_use]
    pub fn asked(config: &Resolved) -> Self {
        Self::read(config, Refusals::of_questions(permissions::effective_user() == ROOT))
    }

    fn read(config: &Resolved, mut refusals: Refusals) -> Self {
        refusals.collect(config);
        let Refusals { faults, not_permitted, mut not_yet_present, .. } = refusals;
        not_yet_present.extend(config.election.as_ref().and_then(election::missing_sentinel));
        not_yet_present.extend(local_sockets::ports_in_use(config));
        let rmem_max = fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
        Self {
            not_running: not_running(config),
            interfaces: interfaces(config).filter(|interface| interface.lookup().is_ok()).cloned().collect(),
            cores: pinnable_cores(),
            shared_cores: usable_cores(),
            addresses: interfaces(config)
                .filter_map(|interface| Some((interface.clone(), interface.lookup().ok()?.address?)))
                .collect(),
            receive_buffer_bytes_max: rmem_max.and_then(|text| text.trim().parse().ok()),
            may_exceed_buffer_limit: may_exceed_buffer_limit(config),
            old_igmp: interfaces(config).filter(|interface| has_old_igmp(interface)).cloned().collect(),
            sources_max: read_sysctl("igmp_max_msf"),
            memory: HostMemory::read(),
            lock_refused: memory::check_lockable().err().map(|error| error.to_string()),
            refused: faults,
            not_permitted,
            journal_free_bytes: config.journal.as_ref().and_then(|journal| free_bytes(&journal.directory).ok()),
            not_yet_present,
        }
    }

    /// Cores for the threads of this configuration that have no core of their own.
    #[must_use]
    pub fn cold_cores(&self, config: &Resolved) -> Vec<usize> {
        let cold = config.cold_cores(&self.shared_cores);
        if cold.is_empty() { self.shared_cores.clone() } else { cold }
    }

    /// Compares the host with the configuration.
    #[must_use]
    pub fn findings(&self, config: &Resolved) -> Findings {
        let warnings = config.warnings.iter().chain(&self.not_yet_present).cloned().collect();
        let mut found = Findings { faults: self.refused.clone(), warnings };
        let mut missing: Vec<String> = interfaces(config)
            .filter(|interface| !self.interfaces.contains(interface))
            .map(|interface| format!("interface {interface} is not on this host"))
            .collect();
        missing.sort();
        missing.dedup();
        found.faults.append(&mut missing);
        found.warnings.extend(self.not_running.iter().map(|InterfaceAddress { name, up, .. }| {
            if *up {
                format!(
                    "interface {name} has no carrier, so it carries no packets: look at its cable and the switch port"
                )
            } else {
                format!("interface {name} is down, so it carries no packets: `ip link set {name} up`")
            }
        }));
        for pool in &config.pools {
            let Threads::Pinned(cores) = &pool.threads else { continue };
            for core in cores.iter().filter(|core| !self.cores.contains(core)) {
                let usable = &self.cores;
                found.faults.push(format!(
                    "core {core} of pool {} is not available to this process (available: {usable:?})",
                    pool.name
                ));
            }
        }
        if let Some(core) = config.election.as_ref().and_then(|election| election.core)
            && !self.cores.contains(&core)
        {
            found.faults.push(format!(
                "core {core} of the election is not available to this process (available: {:?})",
                self.cores
            ));
        }
        if !self.shared_cores.is_empty() && config.cold_cores(&self.shared_cores).is_empty() {
            found.warnings.push(NO_COLD_CORE.to_owned());
        }
        let groups: BTreeSet<GroupId> = config.channels.iter().map(|channel| channel.group).collect();
        if groups.len() > GROUPS_MAX && config.election.as_ref().is_some_and(election::has_group_slots) {
            found.faults.push(format!("{} groups: sentinel and kernel fence take at most {GROUPS_MAX}", groups.len()));
        }
        match self.memory.as_ref().and_then(|host| config.memory().compare(host)) {
            Some(Err(fault)) => found.faults.push(fault),
            Some(Ok(warning)) => found.warnings.push(warning),
            None => (),
        }
        if let Some(why) = self.lock_refused.as_ref().filter(|_| config.gateway.lock_memory) {
            found
                .warnings
                .push(format!("memory cannot be locked, so pages may be swapped out under memory pressure: {why}"));
        }
        if let (Some(journal), Some(free)) = (&config.journal, self.journal_free_bytes)
            && free < journal.free_bytes_min
        {
            found.warnings.push(format!(
                "`mdgw journal` will write nothing: {} are free for journal.directory {}, and journal.free_bytes_min is {}",
                Bytes(free),
                journal.directory.display(),
                Bytes(journal.free_bytes_min)
            ));
        }
        found.warnings.extend(self.missing_sources(config));
        for (group, interface, sources) in self.source_specific_joins(config) {
            if self.old_igmp.contains(interface) {
                found.warnings.push(format!(
                    "{group} on {interface}: IGMP is set to an old version there (force_igmp_version), so switches learn of no `source`; \
                     this host filters by itself"
                ));
            }
            if self.sources_max.is_some_and(|max| sources > max) {
                found.faults.push(format!(
                    "{group} on {interface}: {sources} senders, and the kernel takes {} (net.ipv4.igmp_max_msf)",
                    self.sources_max.unwrap_or(0)
                ));
            }
        }
        found.warnings.extend(self.capped_buffers(config));
        found
    }

    /// Warnings about receive buffers that the kernel would cap.
    fn capped_buffers(&self, config: &Resolved) -> Vec<String> {
        if self.may_exceed_buffer_limit {
            return Vec::new();
        }
        let Some(max) = self.receive_buffer_bytes_max else {
            let text =
                "net.core.rmem_max cannot be read, so whether the kernel grants receive_buffer_bytes is not known";
            return vec![text.to_owned()];
        };
        let lines = config.channels.iter().flat_map(|channel| channel.lines.iter().map(move |line| (channel, line)));
        let capped = lines.filter(|(_, line)| line.receive_buffer_bytes > max).map(|(channel, line)| {
            format!(
                "line {} of channel {}: the kernel limits receive buffers to {} (net.core.rmem_max), but receive_buffer_bytes is {}: raise \
                 net.core.rmem_max (ops/sysctl), or give the gateway CAP_NET_ADMIN as ops/systemd/mdgw.service does",
                line.line,
                channel.name,
                Bytes(max as u64),
                Bytes(line.receive_buffer_bytes as u64),
            )
        });
        capped.collect()
    }

    /// The address from which the host sends on that interface.
    fn address_on(&self, interface: &Interface) -> Option<Ipv4Addr> {
        self.addresses.iter().find(|(known, _)| known == interface).map(|(_, address)| *address)
    }

    /// Group, interface and number of senders of each source-specific join. The standby adds its own address where the
    /// list lacks it.
    fn source_specific_joins<'a>(
        &'a self,
        config: &'a Resolved,
    ) -> impl Iterator<Item = (SocketAddrV4, &'a Interface, usize)> {
        let inputs = config.channels.iter().flat_map(|channel| &channel.lines);
        let inputs = inputs.map(|line| (line.group, &line.interface, line.sources.len()));
        let outputs = config.outputs.iter().flat_map(|output| &output.lines).filter(|line| !line.sources.is_empty());
        let outputs = outputs.map(|line| {
            let own = self.address_on(&line.interface).filter(|own| !line.sources.contains(own));
            let own = own.filter(|_| config.election.is_some());
            (line.address, &line.interface, line.sources.len() + usize::from(own.is_some()))
        });
        inputs.chain(outputs).filter(|(.., sources)| *sources > 0)
    }

    /// Warnings about output lines whose `source` cannot be the list of the group's gateways. A peer with such a list receives
    /// nothing of a healthy leader, which then hands over.
    fn missing_sources(&self, config: &Resolved) -> Vec<String> {
        let link = config.election.as_ref().and_then(|election| election.link.as_ref());
        let gateways = link.map_or(1, |link| link.peers.len() + 1);
        let mut warnings = Vec::new();
        let lines = config.outputs.iter().flat_map(|output| &output.lines).filter(|line| !line.sources.is_empty());
        for OutputLine { address, interface, sources, .. } in lines {
            if let Some(own) = self.address_on(interface).filter(|own| !sources.contains(own)) {
                warnings.push(format!(
                    "{address} on {interface}: this gateway sends from {own}, which `source` does not name: a receiver that uses the same list \
                     receives nothing from it, and a peer that does makes it hand over"
                ));
            }
            if sources.len() < gateways {
                warnings.push(format!(
                    "{address} on {interface}: `source` names {} of {gateways} gateways: a leader that it does not name counts as not received, \
                     and hands over",
                    sources.len()
                ));
            }
        }
        warnings
    }
}

/// Warning where the pools have all cores.
pub(crate) const NO_COLD_CORE: &str =
    "no core is left for cold threads: they share the pools' cores, and packets wait while one of them runs";

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.faults.iter().try_for_each(|fault| writeln!(f, "fault: {fault}"))?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

/// All interfaces of a configuration, in its order.
fn interfaces(config: &Resolved) -> impl Iterator<Item = &Interface> {
    let inputs = config.channels.iter().flat_map(|channel| &channel.lines).map(|line| &line.interface);
    inputs.chain(config.outputs.iter().flat_map(|output| output.destinations()).map(|line| &line.interface))
}

/// The interfaces of a configuration that carry no packets, each once.
fn not_running(config: &Resolved) -> Vec<InterfaceAddress> {
    let found = interfaces(config).filter_map(|interface| interface.lookup().ok());
    let mut not_running: Vec<InterfaceAddress> = found.filter(|interface| !interface.running).collect();
    not_running.sort_by(|one, other| one.name.cmp(&other.name));
    not_running.dedup_by(|one, other| one.name == other.name);
    not_running
}

/// Whether the kernel may join for senders on this interface only by itself, without the switches' help.
fn has_old_igmp(interface: &Interface) -> bool {
    let name = match interface {
        Interface::Name(name) => Some(name.clone()),
        Interface::Address(_) => interface.index().ok().and_then(|index| {
            let names =
                fs::read_dir("/sys/class/net").ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.into_iter().find(|name| {
                fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))
                    .is_ok_and(|text| text.trim() == index.to_string())
            })
        }),
    };
    let is_forced = |name: &str| {
        read_sysctl(&format!("conf/{name}/force_igmp_version")).is_some_and(|version| (1..=2).contains(&version))
    };
    is_forced("all") || name.is_some_and(|name| is_forced(&name))
}

/// A number of `net.ipv4`; `None` if it cannot be read.
fn read_sysctl(name: &str) -> Option<usize> {
    fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?.trim().parse().ok()
}

/// What this host refuses, and how it is asked.
#[derive(Debug)]
struct Refusals {
    /// Whether files may be made and removed. Without that the permissions are read.
    tries: bool,
    /// Whether a lack of rights says something of the gateway, and not only of the user who asks.
    lack_of_rights_is_a_fault: bool,
    faults: Vec<String>,
    not_permitted: Vec<String>,
    not_yet_present: Vec<String>,
}

impl Refusals {
    /// Of what the start would do, by the gateway's user.
    fn of_attempts() -> Self {
        Self {
            tries: true,
            lack_of_rights_is_a_fault: true,
            faults: Vec::new(),
            not_permitted: Vec::new(),
            not_yet_present: Vec::new(),
        }
    }

    /// Of questions by any user. What root may not do, no user may.
    fn of_questions(is_root: bool) -> Self {
        Self { tries: false, lack_of_rights_is_a_fault: is_root, ..Self::of_attempts() }
    }

    fn fault(&mut self, text: impl Into<String>) {
        self.faults.push(text.into());
    }

    /// A fault, unless its cause is that the user who asks lacks the rights.
    fn refused(&mut self, cause: &(dyn Error + 'static), text: impl Into<String>) {
        let mut causes = std::iter::successors(Some(cause), |error: &&(dyn Error + 'static)| (*error).source());
        let lacks_rights = causes.any(|error| {
            error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        });
        self.refused_if(lacks_rights, text);
    }

    fn refused_if(&mut self, lacks_rights: bool, text: impl Into<String>) {
        let list =
            if lacks_rights && !self.lack_of_rights_is_a_fault { &mut self.not_permitted } else { &mut self.faults };
        list.push(text.into());
    }

    fn collect(&mut self, config: &Resolved) {
        let gateway = &config.gateway;
        let state_directory = gateway.state_file.parent().unwrap_or_else(|| Path::new(""));
        let latency_directory = config.latency.directory.as_deref();
        let parent = |path: &Option<PathBuf>| {
            path.as_deref().map(|path| path.parent().unwrap_or_else(|| Path::new("")).to_owned())
        };
        let (audit_directory, control_directory) = (parent(&gateway.audit_file), parent(&gateway.control_socket));
        let admin_directory = match &config.admin {
            Some(AdminListen::Unix(path)) => parent(&Some(path.clone())),
            _ => None,
        };
        // An audit file that exists can be opened, and is written when there is room. A pipe would block.
        let has_audit = |audit: &PathBuf| audit.is_file() && File::options().append(true).open(audit).is_ok();
        let audit_may_begin_later = gateway.audit_file.as_ref().is_some_and(has_audit);
        let (of_election, election_directory) =
            config.election.as_ref().and_then(|with| election::directory(&with.backend)).unzip();
        let places = [
            ("state file", Some(state_directory), false),
            ("publication logs", Some(&gateway.log_dir), false),
            ("latency logs", latency_directory, true),
            ("audit", audit_directory.as_deref(), audit_may_begin_later),
            ("control socket", control_directory.as_deref(), false),
            ("admin socket", admin_directory.as_deref(), false),
            (of_election.unwrap_or_default(), election_directory, false),
        ];
        for (owner, directory, may_begin_later) in places {
            if let Some(directory) = directory {
                self.directory(owner, directory, may_begin_later);
            }
        }
        self.log_group(gateway);
        if let Err(error) = StateFile::check(&gateway.state_file) {
            self.refused(&error, error.to_string());
        }
        if let Some(audit) = &gateway.audit_file
            && audit.metadata().is_ok_and(|found| !found.is_file())
        {
            self.fault(format!("audit file {} is not a regular file", audit.display()));
        }
        if let Some(service) = &config.retransmission
            && let Err(error) = UdpSocket::bind(SocketAddrV4::new(*service.listen.ip(), 0))
        {
            self.refused(&error, format!("retransmission cannot listen on {}: {error}", service.listen));
        }
        if let Some(AdminListen::Tcp(listen)) = &config.admin
            && let Err(error) = TcpListener::bind(SocketAddrV4::new(*listen.ip(), 0))
        {
            self.refused(&error, format!("admin cannot listen on {listen}: {error}"));
        }
        local_sockets::refusals(config, self);
        if let Some(with) = &config.election {
            election::refusals(with, self);
        }
        if let Err(error) = tag_policies(config) {
            self.refused(&error, error.to_string());
        }
        for channel in &config.channels {
            for line in channel.lines.iter().filter(|line| !line.group.ip().is_multicast()) {
                let address = line.group.ip();
                // Any port: a running gateway may use the line's port.
                if let Err(error) = UdpSocket::bind(SocketAddrV4::new(*address, 0)) {
                    self.refused(
                        &error,
                        format!(
                            "line {} of channel {} cannot listen on {address} (unicast): {error}",
                            line.line, channel.name
                        ),
                    );
                }
            }
        }
        if config.election.as_ref().is_some_and(|election| election.kernel_fence)
            && let Err(error) = KernelFence::probe()
        {
            self.refused(&error, error.to_string());
        }
        for pool in &config.pools {
            if IoChoice::from(pool.io) == IoChoice::IoUring
                && let Err(error) = backend_choice::probe_io_uring()
            {
                self.refused_if(error.lacks_rights, format!("pool {}: {error}", pool.name));
            }
            if let Some(priority) = pool.priority {
                // On a separate thread, since the scheduling class stays with the thread.
                let tried = std::thread::spawn(move || set_fifo(priority)).join();
                if let Ok(Err(error)) = tried {
                    self.refused(&error, format!("pool {}: SCHED_FIFO {priority}: {error}", pool.name));
                }
            }
        }
    }

    /// Whether the gateway can make files in a directory, and no other user can replace them. `may_begin_later`: whether it runs without
    /// them while the disk cannot be written.
    fn directory(&mut self, owner: &str, directory: &Path, may_begin_later: bool) {
        let writable = if self.tries {
            check_writable(directory)
        } else {
            checked_place(directory, permissions::check_may_write_in)
        };
        if let Err((place, error)) = writable {
            let text = format!(
                "directory {} of the {owner}: cannot write in {}: {error}",
                directory.display(),
                place.display()
            );
            if may_begin_later && is_disk_unwritable(&error) {
                self.not_yet_present.push(format!("{text}. The gateway would run without, and try again"));
            } else {
                self.refused(&error, text);
            }
        }
        match foreign_control(directory, self.tries) {
            Some(Danger::EveryUser(danger)) => {
                self.fault(format!("directory {} of the {owner}: {danger}", directory.display()));
            }
            // The user who asks need not be the gateway's: then the directory may be the gateway's own.
            Some(Danger::OtherUser(danger)) => {
                self.refused_if(true, format!("directory {} of the {owner}: {danger}", directory.display()));
            }
            None => {}
        }
    }

    /// Whether the group of `log_group` can be given access to the publication logs.
    fn log_group(&mut self, gateway: &GatewayConfig) {
        let group = match gateway.log_reader_group() {
            Ok(Some(group)) => group.0,
            Ok(None) => return,
            Err(error) => return self.fault(error.to_string()),
        };
        let given = if self.tries {
            let place = gateway.log_dir.ancestors().find(|place| place.is_dir());
            // Another check says if the directory is not writable.
            let Some(file) = place.and_then(|place| probe(place).ok()) else { return };
            fchown(&file, None, Some(group))
        } else if permissions::may_give_to_group(group) {
            Ok(())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        };
        if let Err(error) = given {
            let name = gateway.log_group.as_deref().unwrap_or_default();
            let text = format!(
                "gateway.log_group = \"{name}\": this user cannot give files to the group: {error}. Add the gateway's user to it (under systemd: \
                 mdgw.service.d/log-readers.conf)"
            );
            self.refused(&error, text);
        }
    }
}

/// Whether `net.core.rmem_max` is no limit for the gateway with that configuration.
fn may_exceed_buffer_limit(config: &Resolved) -> bool {
    let limit = mdgw_doctor::buffer_limit(Path::new("/"), &config.path.display().to_string(), OwnRights::read());
    limit.exceeded_by.is_some()
}

/// Whether files can be created in `directory`, or in its nearest existing parent: the start would create the missing
/// directories. The error names the path that was tried.
pub fn check_writable(directory: &Path) -> Result<(), (PathBuf, io::Error)> {
    // Permissions are not enough: a file system may be mounted read-only, and root may write where they forbid it.
    checked_place(directory, |place| probe(place).map(drop))
}

/// Applies a check to `directory`, or to its nearest existing parent.
fn checked_place(directory: &Path, check: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), (PathBuf, io::Error)> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let existing = directory.ancestors().find(|place| place.as_os_str().is_empty() || place.symlink_metadata().is_ok());
    let place = existing.filter(|place| !place.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    check(place).map_err(|error| (place.to_owned(), error))
}

/// Makes a file with a page of data in `directory`, and removes it: a full file system lets empty files be made. Its user
/// is the user of this process.
fn probe(directory: &Path) -> io::Result<File> {
    let path = directory.join(format!(".mdgw-check-{}", std::process::id()));
    let mut made = File::create_new(&path)?;
    let written = made.write_all(&[0; 4_096]);
    fs::remove_file(&path)?;
    written.map(|()| made)
}

/// Who but the gateway could replace what is in a directory.
#[derive(Debug, PartialEq, Eq)]
enum Danger {
    EveryUser(String),
    OtherUser(String),
}

/// How another user of this host could replace what is in an existing directory. `/dev/shm` is open to every user: who makes
/// `/dev/shm/mdgw` first owns what the gateway keeps there. Root also checks for the gateway's user, so for root an owner
/// proves nothing.
fn foreign_control(directory: &Path, tries: bool) -> Option<Danger> {
    let found = directory.metadata().ok()?;
    let (mode, owner) = (found.mode(), found.uid());
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Some(Danger::EveryUser(format!(
            "every user of this host may change it (mode {:o}): chmod o-w {}",
            mode & 0o7777,
            directory.display()
        )));
    }
    let own = if tries {
        probe(directory).and_then(|made| made.metadata()).ok()?.uid()
    } else {
        // Without the right to write, another check says so.
        permissions::check_may_write_in(directory).ok()?;
        permissions::effective_user()
    };
    if own == ROOT {
        return None;
    }
    (owner != ROOT && owner != own).then(|| {
        Danger::OtherUser(format!(
            "it belongs to user {owner}, who can change it; this process is of user {own}: remove it, or chown it"
        ))
    })
}

const ROOT: u32 = 0;
const OTHERS_WRITE: u32 = 0o002;
/// In such a directory users may only remove files of their own.
const STICKY: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, os::unix::fs::PermissionsExt as _, process::Command};

    use super::*;

    /// The faults that `mdgw check` reports.
    fn refusals(config: &Resolved) -> Vec<String> {
        let mut refusals = Refusals::of_attempts();
        refusals.collect(config);
        refusals.faults
    }

    #[test]
    fn a_missing_requirement_is_a_fault_and_a_degraded_one_a_warning() {
        let host = Host {
            interfaces: vec![Interface::Name("eth2".to_owned())],
            cores: vec![0, 1, 2],
            shared_cores: vec![0, 1, 2],
            receive_buffer_bytes_max: Some(212_992),
            ..Host::default()
        };
        let Findings { faults, warnings } = host.findings(&Resolved::shipped());
        assert_eq!(
            faults,
            [
                "interface eth1 is not on this host",
                "interface eth3 is not on this host",
                "interface eth4 is not on this host",
                "core 3 of pool main is not available to this process (available: [0, 1, 2])",
            ]
        );
        assert_eq!(warnings.len(), 4);
        for part in
            ["limits receive buffers to 208 KiB", "raise net.core.rmem_max", "or give the gateway CAP_NET_ADMIN"]
        {
            assert!(warnings[0].contains(part), "{part}: {warnings:?}");
        }
        let unreadable = Host { receive_buffer_bytes_max: None, ..host.clone() };
        let warnings = unreadable.findings(&Resolved::shipped()).warnings;
        assert!(
            matches!(&warnings[..], [text] if text.starts_with("net.core.rmem_max cannot be read")),
            "{warnings:?}"
        );
        for host in [host, unreadable] {
            let capable = Host { may_exceed_buffer_limit: true, ..host };
            assert_eq!(capable.findings(&Resolved::shipped()).warnings, [""; 0], "the kernel caps nothing");
        }
    }

    #[test]
    fn cold_threads_keep_off_the_cores_of_pools_unless_no_other_core_is_left() {
        let config = Resolved::shipped();
        let mut host = complete_host(&config);
        for (shared, cold, is_warned) in [
            (vec![0, 1, 2, 3, 4], vec![0, 1, 4], false),
            (vec![2, 7], vec![7], false),
            (vec![0, 1], vec![0, 1], false),
            (vec![2, 3], vec![2, 3], true),
        ] {
            host.shared_cores = shared;
            assert_eq!(host.cold_cores(&config), cold);
            assert_eq!(host.findings(&config).warnings.contains(&NO_COLD_CORE.to_owned()), is_warned);
        }
        let mut unpinned = config;
        unpinned.pools.iter_mut().for_each(|pool| pool.threads = Threads::Unpinned(2));
        assert_eq!(host.cold_cores(&unpinned), [2, 3]);
        assert_eq!(host.findings(&unpinned).warnings, [""; 0]);
    }

    #[test]
    fn a_directory_that_another_user_could_change_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        let mut config = Resolved::shipped();
        config.gateway.log_dir.clone_from(&logs);
        let faults =
            || refusals(&config).into_iter().filter(|fault| fault.contains("publication logs")).collect::<Vec<_>>();
        assert_eq!(faults(), [""; 0], "the start makes it");
        fs::create_dir(&logs).unwrap();
        for (mode, is_fault) in [(0o755, false), (0o775, false), (0o777, true), (0o1777, false)] {
            fs::set_permissions(&logs, fs::Permissions::from_mode(mode)).unwrap();
            let found = faults();
            assert_eq!(found.len(), usize::from(is_fault), "{mode:o}: {found:?}");
            assert!(found.iter().all(|fault| fault.contains("(mode 777): chmod o-w")), "{found:?}");
        }
    }

    #[test]
    fn a_group_of_readers_that_this_host_does_not_have_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Resolved::shipped();
        config.gateway.log_dir = folder.path().join("logs");
        let mut faults = |group: &str| {
            config.gateway.log_group = Some(group.to_owned());
            refusals(&config).into_iter().filter(|fault| fault.contains("log_group")).collect::<Vec<_>>()
        };
        let found = faults("no-such-group");
        assert!(found.len() == 1 && found[0].contains("groupadd --system no-such-group"), "{found:?}");
        // Root may give files to any group; anybody else is no member of root's.
        let is_root = folder.path().metadata().unwrap().uid() == ROOT;
        assert_eq!(faults("root").len(), usize::from(!is_root));
    }

    #[test]
    fn a_line_at_an_address_of_another_host_is_a_fault() {
        let text = include_str!("../../../../ops/config/loopback.toml");
        let unicast = |address: &str| {
            let text = text.replacen("group = \"239.", &format!("group = \"{address}:7001\" # 239."), 1);
            let config =
                Resolved::from_text(Path::new("loopback.toml"), &text).unwrap_or_else(|error| panic!("{error}"));
            refusals(&config).iter().filter(|refusal| refusal.contains("line A of channel ")).count()
        };
        // 192.0.2.0/24 is for documentation: no host has it.
        assert_eq!((unicast("127.0.0.1"), unicast("192.0.2.7")), (0, 1));
    }

    #[test]
    fn unlockable_memory_is_a_warning_only_if_lock_memory_is_set() {
        let mut config = Resolved::shipped();
        let mut host = complete_host(&config);
        host.lock_refused = Some("a limit".to_owned());
        let warnings = host.findings(&config).warnings;
        assert!(warnings.len() == 1 && warnings[0].ends_with("under memory pressure: a limit"), "{warnings:?}");
        config.gateway.lock_memory = false;
        assert_eq!(host.findings(&config), Findings::default());
    }

    #[test]
    fn more_groups_than_a_sentinel_watches_are_a_fault() {
        let text = include_str!("../../../../ops/config/pair.toml");
        let mut config = Resolved::from_text(Path::new("pair.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        config.election.as_mut().unwrap().link = None;
        let host = complete_host(&config);
        let channel = config.channels[0].clone();
        let of_group = |group| crate::config::resolved::ChannelSetup { group: GroupId(group), ..channel.clone() };
        config.channels = (1..=64).map(of_group).collect();
        assert_eq!(host.findings(&config).faults, [""; 0]);
        config.channels.push(of_group(65));
        assert_eq!(host.findings(&config).faults, [""; 0], "nothing watches it");
        config.election.as_mut().unwrap().kernel_fence = true;
        assert_eq!(host.findings(&config).faults, ["65 groups: sentinel and kernel fence take at most 64"]);
    }

    #[test]
    fn an_election_core_missing_on_this_host_is_a_fault() {
        let text = include_str!("../../../../ops/config/pair.toml");
        let mut config = Resolved::from_text(Path::new("pair.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        let host = complete_host(&config);
        config.election.as_mut().unwrap().core = Some(999);
        let expected = "core 999 of the election is not available to this process (available: [2, 3])";
        assert_eq!(host.findings(&config).faults, [expected]);
        config.gateway.audit_file = Some("/dev/full".into());
        assert!(refusals(&config).contains(&"audit file /dev/full is not a regular file".to_owned()));
        // Opening it would block.
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("audit");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        config.gateway.audit_file = Some(pipe.clone());
        assert!(refusals(&config).contains(&format!("audit file {} is not a regular file", pipe.display())));
    }

    #[test]
    fn senders_that_the_kernel_cannot_join_for_are_reported() {
        let text = include_str!("../../../../ops/config/pair.toml");
        let mut config = Resolved::from_text(Path::new("pair.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        config.channels.clear();
        config.outputs[0].lines.truncate(1);
        let output = &mut config.outputs[0].lines[0];
        output.sources = vec![Ipv4Addr::new(10, 20, 0, 5), Ipv4Addr::new(10, 20, 0, 6)];
        let at = format!("{} on {}", output.address, output.interface);
        let mut host = complete_host(&config);
        let limits =
            |findings: Findings| findings.faults.into_iter().filter(|fault| fault.contains("senders")).collect();
        let faults: Vec<String> = limits(host.findings(&config));
        assert_eq!(faults, [""; 0], "the limit is unknown");
        let interface = config.outputs[0].lines[0].interface.clone();
        // The standby adds the gateway's own address, unless the list names it; an interface without an address has none.
        for (own, senders) in [(Some(5), 2), (Some(6), 2), (Some(7), 3), (None, 2)] {
            let own = own.map(|last| (interface.clone(), Ipv4Addr::new(10, 20, 0, last)));
            host.addresses = own.into_iter().collect();
            for (max, is_fault) in [(senders, false), (senders - 1, true)] {
                host.sources_max = Some(max);
                let faults: Vec<String> = limits(host.findings(&config));
                let expected = format!("{at}: {senders} senders, and the kernel takes {max} (net.ipv4.igmp_max_msf)");
                assert_eq!(faults, if is_fault { vec![expected] } else { Vec::new() }, "{max}");
            }
        }
        let old_igmp =
            |findings: Findings| findings.warnings.iter().any(|text| text.starts_with(&format!("{at}: IGMP")));
        assert!(!old_igmp(host.findings(&config)));
        host.old_igmp = vec![config.outputs[0].lines[0].interface.clone()];
        assert!(old_igmp(host.findings(&config)));
        config.outputs[0].lines[0].sources.clear();
        assert!(!old_igmp(host.findings(&config)), "joined for any sender, which every version of IGMP can");
    }

    #[test]
    fn a_source_list_that_leaves_out_a_gateway_is_a_warning() {
        let text = include_str!("../../../../ops/config/pair.toml");
        let mut config = Resolved::from_text(Path::new("pair.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        config.outputs[0].lines.truncate(1);
        let line = config.outputs[0].lines[0].clone();
        let at = format!("{} on {}: ", line.address, line.interface);
        let address = |last| Ipv4Addr::new(10, 20, 0, last);
        let warnings = |config: &Resolved, own: u8| {
            let host = Host { addresses: vec![(line.interface.clone(), address(own))], ..complete_host(config) };
            let warnings = host.findings(config).warnings.into_iter();
            warnings.filter_map(|text| Some(text.strip_prefix(&at)?.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(warnings(&config, 7), [""; 0], "any sender is received");
        config.outputs[0].lines[0].sources = vec![address(5), address(6)];
        assert_eq!(warnings(&config, 5), [""; 0]);
        let foreign = warnings(&config, 7);
        assert!(
            matches!(&foreign[..], [text] if text.starts_with("this gateway sends from 10.20.0.7, which `source` does not name")),
            "{foreign:?}"
        );
        config.outputs[0].lines[0].sources = vec![address(5)];
        let short = warnings(&config, 5);
        assert!(matches!(&short[..], [text] if text.starts_with("`source` names 1 of 2 gateways")), "{short:?}");
        config.election = None;
        assert_eq!(warnings(&config, 5), [""; 0], "a single gateway");
    }

    fn complete_host(config: &Resolved) -> Host {
        Host {
            interfaces: interfaces(config).cloned().collect(),
            cores: vec![2, 3],
            shared_cores: vec![0, 1],
            receive_buffer_bytes_max: Some(1 << 30),
            ..Host::default()
        }
    }

    #[test]
    fn an_interface_that_carries_no_packets_is_a_warning_with_the_command() {
        let config = Resolved::shipped();
        let of =
            |name: &str, up| InterfaceAddress { name: name.to_owned(), index: 1, address: None, up, running: false };
        let host = Host { not_running: vec![of("eth1", false), of("eth2", true)], ..complete_host(&config) };
        let Findings { faults, warnings } = host.findings(&config);
        assert_eq!(faults, [""; 0], "it may come up later");
        assert_eq!(
            warnings,
            [
                "interface eth1 is down, so it carries no packets: `ip link set eth1 up`",
                "interface eth2 has no carrier, so it carries no packets: look at its cable and the switch port",
            ]
        );
    }

    #[test]
    fn a_host_with_too_little_memory_is_a_fault_or_a_warning() {
        let config = Resolved::shipped();
        let complete = complete_host(&config);
        let with = |total_bytes| {
            let memory = Some(HostMemory { total_bytes, ..HostMemory::default() });
            let Findings { faults, warnings } = Host { memory, ..complete.clone() }.findings(&config);
            (faults.len(), warnings.len())
        };
        assert_eq!([1 << 40, 512 << 20, 128 << 20].map(with), [(0, 0), (0, 1), (1, 0)]);
    }

    #[test]
    fn a_complete_host_gives_no_findings() {
        let config = Resolved::shipped();
        assert_eq!(complete_host(&config).findings(&config), Findings::default());
    }

    #[test]
    fn what_a_user_without_rights_cannot_see_is_named_and_a_fault_for_the_gateways_user_alone() {
        let denied: io::Error = io::ErrorKind::PermissionDenied.into();
        let wrapped = io::Error::other(std::sync::Arc::new(io::Error::from(io::ErrorKind::ReadOnlyFilesystem)));
        for (mut refusals, lacking) in
            [(Refusals::of_attempts(), 0), (Refusals::of_questions(true), 0), (Refusals::of_questions(false), 2)]
        {
            refusals.refused(&denied, "key");
            refusals.refused_if(true, "io_uring");
            refusals.refused(&wrapped, "read-only");
            refusals.refused_if(false, "kernel");
            refusals.fault("no regular file");
            assert_eq!((refusals.faults.len(), refusals.not_permitted.len()), (5 - lacking, lacking), "{refusals:?}");
        }
    }

    #[test]
    fn a_host_that_is_asked_finds_the_same_faults_and_no_file_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let (watched, open) = (folder.path().join("state"), folder.path().join("open"));
        for directory in [&watched, &open] {
            fs::create_dir(directory).unwrap();
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let mut config = Resolved::shipped();
        config.gateway.state_file = watched.join("state");
        config.gateway.log_dir = watched.clone();
        config.latency.directory = Some(watched.join("to/be/made"));
        config.gateway.control_socket = Some(open.join("control"));
        // A file where a directory should be.
        fs::write(folder.path().join("file"), "").unwrap();
        config.gateway.audit_file = Some(folder.path().join("file/audit"));
        let changed = || fs::metadata(&watched).unwrap().modified().unwrap();
        let before = changed();
        let asked = Host::asked(&config).refused;
        assert_eq!(changed(), before, "a file was made");
        let of_directories = |faults: Vec<String>| {
            faults.into_iter().filter(|fault| fault.starts_with("directory ")).collect::<Vec<_>>()
        };
        let (asked, tried) = (of_directories(asked), of_directories(refusals(&config)));
        assert_eq!(asked, tried);
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(changed() > before, "the control: the check does make one");
    }

    #[test]
    fn a_state_file_that_a_gateway_would_refuse_is_refused_without_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Resolved::shipped();
        config.gateway.state_file = folder.path().join("state");
        let of_state = |config: &Resolved| {
            Host::asked(config).refused.into_iter().filter(|fault| fault.contains("state file")).collect::<Vec<_>>()
        };
        assert_eq!(of_state(&config), [""; 0], "a first start");
        for damaged in ["", "{\"event\""] {
            fs::write(&config.gateway.state_file, damaged).unwrap();
            assert_eq!(of_state(&config).len(), 1, "{damaged:?}");
        }
    }

    #[test]
    fn a_missing_directory_is_checked_at_its_nearest_existing_parent() {
        let folder = tempfile::tempdir().unwrap();
        check_writable(folder.path()).unwrap();
        check_writable(&folder.path().join("to/be/made")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let (place, _) = check_writable(&file.join("below")).unwrap_err();
        assert_eq!(place, file);
        assert!(check_writable(Path::new("/proc/mdgw")).is_err());
    }
}
