//! Trees of `/proc` and `/sys` as hosts have them: a good one, a bad one, an empty one, and one of odd files.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path};

use expect_test::expect;
use mdgw_sys::{
    clock_rate::Synchronisation,
    ethtool::{Coalescing, ReceiveRing, StampSupport},
};

use super::*;

/// Two pinned pool threads and an election, one line for each of two senders on eth1, output on eth3.
fn needs() -> Needs {
    let threads = |name: &str, cores: &str, priority| PinnedThreads {
        name: name.to_owned(),
        cores: CoreSet::parse(cores).unwrap(),
        priority,
        spins: true,
    };
    let line = FeedLine {
        interface: "eth1".to_owned(),
        group: "233.54.12.111:26477".parse().unwrap(),
        sources: vec!["206.200.43.72".parse().unwrap()],
        receive_buffer_bytes: 16 << 20,
        wants_hardware_stamps: true,
    };
    let second = FeedLine { group: "233.54.12.112:26477".parse().unwrap(), ..line.clone() };
    Needs {
        config: "gateway.toml".to_owned(),
        threads: vec![threads("main", "2-3", Some(50)), threads("election", "1", None)],
        lines: vec![line, second],
        output_interfaces: vec!["eth3".to_owned()],
        uses_loopback: true,
        memory_bytes: 2 << 30,
        lock_memory: true,
        directories: vec![Directory { holds: "publication logs", path: "/dev/shm/mdgw".into(), bytes: 512 << 20 }],
    }
}

fn facts(is_good: bool) -> Facts {
    let needs = needs();
    let nic = NicFacts {
        ring: Ok(ReceiveRing { present: if is_good { 4_096 } else { 512 }, max: 8_192 }),
        coalescing: Ok(Coalescing { receive_us: if is_good { 0 } else { 50 }, is_adaptive: !is_good }),
        gro: Ok(!is_good),
        lro: Ok(false),
        stamps: Ok(StampSupport { all_received: is_good, clock: is_good.then_some(1) }),
    };
    let refused = || NoAnswer::Failed("connection refused".to_owned());
    let answer = |text: &str| if is_good { Ok(text.to_owned()) } else { Err(refused()) };
    let endpoint = |role, address: &str| Endpoint { role, address: address.to_owned(), answer: answer("connected") };
    let free_bytes = Ok(if is_good { 1 << 40 } else { 100 << 20 });
    let interface = |name: &str, index| (name.to_owned(), InterfaceFacts { index, is_running: is_good });
    Facts {
        interfaces: Ok(BTreeMap::from([interface("lo", 1), interface("eth1", 2), interface("eth3", 4)])),
        nics: BTreeMap::from([("eth1".to_owned(), nic)]),
        clock: Ok(Synchronisation { is_synchronised: is_good, offset_ns: 120, error_us_max: 9 }),
        time_daemon: is_good.then_some(Ok(REPORT)),
        disks: vec![Disk { directory: needs.directories[0].clone(), free_bytes }],
        own_rights: NO_RIGHTS,
        endpoints: vec![
            endpoint(Role::Store, "etcd1:2379"),
            endpoint(Role::Peer, "10.0.0.2:31200"),
            endpoint(Role::Voter, "10.0.0.2:27500"),
            endpoint(Role::Voter, "10.0.0.3:27500"),
        ],
        check: Some(CheckResult {
            faults: if is_good { Vec::new() } else { vec!["no key".to_owned()] },
            ..CheckResult::default()
        }),
    }
}

const NO_RIGHTS: OwnRights = OwnRights { is_root: false, may_exceed_buffer_limit: false };

/// Of a clock that is well kept.
const REPORT: DaemonReport =
    DaemonReport { program: "chronyc", is_synchronised: true, offset_ns: 900, error_ns_max: Some(200_000) };

fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

const CPU: &str = "/sys/devices/system/cpu";

/// The host that `ops/guide/install.md` describes, or one on which nothing was set.
fn write_host(root: &Path, is_good: bool) {
    let pick = |good: &'static str, bad: &'static str| if is_good { good } else { bad };
    let mut files: Vec<(String, String)> = Vec::new();
    for core in 0..8 {
        let sibling = if core < 4 { core + 4 } else { core - 4 };
        let siblings = if is_good { core.to_string() } else { format!("{},{}", core.min(sibling), core.max(sibling)) };
        for (name, text) in [
            ("cpufreq/scaling_governor", pick("performance", "powersave").to_owned()),
            ("cpuidle/state0/latency", "0".to_owned()),
            ("cpuidle/state0/disable", "0".to_owned()),
            ("cpuidle/state3/latency", "133".to_owned()),
            ("cpuidle/state3/disable", pick("1", "0").to_owned()),
            ("topology/thread_siblings_list", siblings),
        ] {
            files.push((format!("{CPU}/cpu{core}/{name}"), text));
        }
    }
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    write(root, &files);
    write(
        root,
        &[
            ("/proc/sys/kernel/osrelease", pick("6.12.9-amd64\n", "5.10.0-28-amd64\n")),
            (&format!("{CPU}/online"), "0-7\n"),
            (&format!("{CPU}/isolated"), pick("1-3\n", "\n")),
            (&format!("{CPU}/nohz_full"), pick("1-3\n", "(null)\n")),
            ("/proc/cmdline", pick("quiet rcu_nocbs=1,3", "quiet")),
            (&format!("{CPU}/intel_pstate/no_turbo"), pick("1", "0")),
            ("/proc/1/comm", "systemd\n"),
            ("/proc/2/comm", "kthreadd\n"),
            ("/proc/800/comm", pick("chronyd\n", "irqbalance\n")),
            (
                "/proc/self/limits",
                pick(
                    "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         unlimited            unlimited            bytes\n\
                     Max realtime priority     99                   99\n",
                    "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              8388608              bytes\n\
                     Max realtime priority     0                    0\n",
                ),
            ),
            ("/proc/self/status", "Name:\tmdgw\nCapEff:\t0000000000000000\n"),
            ("/proc/sys/kernel/sched_rt_runtime_us", pick("-1", "950000")),
            (
                "/proc/meminfo",
                pick(
                    "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nHugePages_Free:        0\n",
                    "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\nHugePages_Free:      512\n",
                ),
            ),
            ("/sys/kernel/mm/transparent_hugepage/enabled", pick("always [madvise] never", "always madvise [never]")),
            (
                "/proc/swaps",
                pick("Filename\tType\tSize\n", "Filename\tType\tSize\n/dev/sda2  partition  8388604  0  -2\n"),
            ),
            ("/proc/sys/net/core/rmem_max", pick("67108864", "212992")),
            ("/sys/class/net/lo/ifindex", "1"),
            ("/sys/class/net/lo/operstate", "unknown"),
            ("/sys/class/net/eth1/ifindex", "2"),
            ("/sys/class/net/eth3/ifindex", "4"),
            ("/sys/class/net/eth1/type", "1"),
            ("/sys/class/net/eth1/operstate", pick("up", "down")),
            ("/sys/class/net/eth3/operstate", pick("up", "lowerlayerdown")),
            ("/sys/class/net/eth1/device/numa_node", pick("0", "1")),
            ("/sys/devices/system/node/node0/cpulist", "0-3"),
            ("/sys/devices/system/node/node1/cpulist", "4-7"),
            ("/sys/class/net/eth1/device/msi_irqs/40", "msix"),
            ("/sys/class/net/eth1/device/msi_irqs/41", "msix"),
            ("/proc/irq/40/smp_affinity_list", "0"),
            ("/proc/irq/40/effective_affinity_list", "0"),
            ("/proc/irq/41/smp_affinity_list", pick("0", "0-7")),
            ("/proc/net/igmp", pick(IGMP_GOOD, IGMP_BAD)),
            ("/proc/sys/net/ipv4/conf/all/force_igmp_version", "0"),
            ("/proc/sys/net/ipv4/conf/eth1/force_igmp_version", pick("0", "2")),
            ("/proc/sys/net/ipv4/conf/all/rp_filter", "0"),
            ("/proc/sys/net/ipv4/conf/eth1/rp_filter", pick("2", "1")),
            ("/sys/devices/system/clocksource/clocksource0/current_clocksource", pick("tsc", "hpet")),
            ("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm"),
        ],
    );
}

/// 233.54.12.111 and .112 are joined on eth1, with their bytes in the order of a little-endian host.
const IGMP_GOOD: &str = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter
2\teth1      :     3      V3
\t\t\t\t6F0C36E9     1 0:00000000\t\t0
\t\t\t\t700C36E9     1 0:00000000\t\t0
\t\t\t\t010000E0     1 0:00000000\t\t0
";
/// Only the first is.
const IGMP_BAD: &str = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter
2\teth1      :     2      V2
\t\t\t\t6F0C36E9     1 0:00000000\t\t0
\t\t\t\t010000E0     1 0:00000000\t\t0
";

fn report_of(is_good: bool) -> Report {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), is_good);
    examine(root.path(), &facts(is_good), Some(&needs()))
}

fn names(report: &Report) -> Vec<(&str, Option<&str>)> {
    report.items.iter().map(|item| (item.name, item.subject.as_deref())).collect()
}

#[cfg(target_endian = "little")]
#[test]
fn every_item_is_ok_on_a_good_host_and_names_its_remedy_on_a_bad_one() {
    let (good, bad) = (report_of(true), report_of(false));
    assert_eq!(names(&good), names(&bad));
    assert!(good.items.len() >= 30, "{}", good.items.len());
    for item in &good.items {
        assert!(item.status == Status::Ok && item.commands.is_empty(), "{item:#?}");
    }
    for item in &bad.items {
        assert!(matches!(item.status, Status::Warn | Status::Fail) && !item.commands.is_empty(), "{item:#?}");
        assert!(!item.why.is_empty() && !item.read.is_empty(), "{item:#?}");
    }
    assert_eq!((good.worst, bad.worst), (Status::Ok, Status::Fail));
    assert_eq!(good.counts, Counts { ok: good.items.len(), ..Counts::default() });
    assert_eq!(bad.counts.ok + bad.counts.unknown, 0);
}

#[cfg(target_endian = "little")]
#[test]
fn the_remedies_of_a_bad_host_name_its_cores_cards_and_values() {
    let bad = report_of(false);
    let command = |name: &str| bad.items.iter().find(|item| item.name == name).unwrap().commands[0].clone();
    for (name, expected) in [
        (
            "isolated cores",
            r#"sed -Ei '/^GRUB_CMDLINE_LINUX/s/ *isolcpus=[0-9a-z_,:-]*//g; s/^(GRUB_CMDLINE_LINUX=)([^"\x27\\[:space:]]*)(\s.*)?$/\1"\2"\3/; s/^GRUB_CMDLINE_LINUX=["\x27]/&isolcpus=domain,managed_irq,1-3 /' /etc/default/grub && { grep -Eq '^\s*(export\s+)?GRUB_CMDLINE_LINUX=' /etc/default/grub || printf '\n%s\n' 'GRUB_CMDLINE_LINUX="isolcpus=domain,managed_irq,1-3 "' >> /etc/default/grub; } && if grep -q '^GRUB_CMDLINE_LINUX=.*isolcpus=domain,managed_irq,1-3 ' /etc/default/grub; then update-grub; else echo 'add isolcpus=domain,managed_irq,1-3 to GRUB_CMDLINE_LINUX in /etc/default/grub by hand' >&2; fi    # in force after a reboot"#,
        ),
        ("governor", "cpupower -c 1-3 frequency-set -g performance"),
        ("C-states", "cpupower -c 1-3 idle-set -D 10"),
        (
            "SMT siblings",
            "echo 0 | tee /sys/devices/system/cpu/cpu5/online /sys/devices/system/cpu/cpu6/online /sys/devices/system/cpu/cpu7/online",
        ),
        ("IRQ affinity", "for i in 41; do echo 0,4-7 > /proc/irq/$i/smp_affinity_list; done"),
        ("ring size", "ethtool -G eth1 rx 4096    # reception may stop for a moment: not during a session"),
        (
            "coalescing",
            "ethtool -C eth1 adaptive-rx off rx-usecs 0    # reception may stop for a moment: not during a session",
        ),
        ("GRO and LRO", "ethtool -K eth1 gro off lro off"),
        ("receive buffers", "sysctl -w net.core.rmem_max=16777216"),
        ("rp_filter", "sysctl -w net.ipv4.conf.eth1.rp_filter=2"),
        ("memberships", "ip maddress show dev eth1 && systemctl restart mdgw    # missing: 233.54.12.112"),
        ("mdgw check", "mdgw check gateway.toml"),
    ] {
        assert_eq!(command(name), expected, "{name}");
    }
}

#[test]
fn memory_that_the_running_gateway_has_taken_counts_as_available() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), false);
    let memory = || {
        let report = examine(root.path(), &facts(true), Some(&needs()));
        let item = report.items.into_iter().find(|item| item.name == "memory").unwrap();
        (item.status, item.read)
    };
    let needed = "2048 MiB needed at most; 1024 MiB available";
    assert_eq!(memory(), (Status::Fail, format!("{needed}, of 8192 MiB")));
    let gateway = |taken: &str| {
        write(
            root.path(),
            &[
                ("/proc/77/cmdline", "/usr/bin/mdgw\0run\0gateway.toml\0"),
                ("/proc/77/status", &format!("Name:\tmdgw\nRssAnon:\t {taken} kB\nRssShmem:\t 9999999 kB\n")),
            ],
        );
    };
    gateway("1048576");
    let taken = "and 1024 MiB taken by the gateway (process 77), of 8192 MiB";
    assert_eq!(memory(), (Status::Ok, format!("{needed} {taken}")));
    gateway("1048575");
    assert_eq!(memory().0, Status::Fail);
    write(
        root.path(),
        &[
            ("/proc/77/cgroup", "0::/mdgw.service\n"),
            ("/sys/fs/cgroup/mdgw.service/memory.max", "1610612736\n"),
            ("/sys/fs/cgroup/mdgw.service/memory.current", "1073741824\n"),
        ],
    );
    let (status, read) = memory();
    assert!(status == Status::Fail && read.ends_with("of 1536 MiB (memory.max of cgroup /mdgw.service)"), "{read}");
    // In a container the root of the cgroup namespace is the container's cgroup.
    write(root.path(), &[("/proc/77/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "2147483648\n")]);
    let (_, read) = memory();
    assert!(read.ends_with("of 2048 MiB (memory.max of cgroup /)"), "{read}");
}

#[test]
fn a_low_limit_of_receive_buffers_is_well_where_the_gateway_may_exceed_it() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), false);
    let receive_buffers = |may_exceed_buffer_limit| {
        let own_rights = OwnRights { may_exceed_buffer_limit, ..NO_RIGHTS };
        let report = examine(root.path(), &Facts { own_rights, ..facts(true) }, Some(&needs()));
        let item = report.items.into_iter().find(|item| item.name == "receive buffers").unwrap();
        (item.status, item.read, item.commands.len())
    };
    let low = "net.core.rmem_max 212992, wanted 16777216";
    assert_eq!(receive_buffers(false), (Status::Warn, low.to_owned(), 1));
    let well = (Status::Ok, format!("{low}; no limit with CAP_NET_ADMIN of this process"), 0);
    assert_eq!(receive_buffers(true), well);
    let unit = "/etc/systemd/system/mdgw.service";
    let write_unit = |more: &str| {
        write(root.path(), &[(unit, &format!("[Service]\nUser=mdgw\nExecStart=mdgw run gateway.toml\n{more}"))]);
    };
    write_unit("");
    assert_eq!(receive_buffers(false), (Status::Warn, low.to_owned(), 2), "both remedies");
    write_unit("AmbientCapabilities=CAP_NET_ADMIN\n");
    let well = (Status::Ok, format!("{low}; no limit with CAP_NET_ADMIN by mdgw.service"), 0);
    assert_eq!(receive_buffers(false), well);
    fs::remove_file(root.path().join("proc/sys/net/core/rmem_max")).unwrap();
    assert_eq!(receive_buffers(false).0, Status::Ok);
}

#[test]
fn what_an_empty_container_hides_is_unknown_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    // Without a marker file, as under containerd and CRI-O.
    write(root.path(), &[("/proc/1/comm", "sh\n"), ("/proc/2/comm", "sleep\n")]);
    let hidden = || Err("Operation not permitted".to_owned());
    let facts = Facts {
        interfaces: Err("Operation not permitted".to_owned()),
        nics: BTreeMap::new(),
        clock: Err("not permitted".to_owned()),
        time_daemon: None,
        disks: Vec::new(),
        own_rights: NO_RIGHTS,
        endpoints: Vec::new(),
        check: None,
    };
    let without = examine(root.path(), &facts, None);
    assert_eq!(without.worst, Status::Ok, "{:#?}", without.items);
    let known: Vec<_> =
        without.items.iter().filter(|item| item.status != Status::Unknown).map(|item| item.name).collect();
    assert_eq!(known, ["real-time limits"], "nothing asks for a priority");
    assert!(without.items.iter().all(|item| item.commands.is_empty() && !item.read.is_empty()));

    let nic = NicFacts {
        ring: Err("not supported".to_owned()),
        coalescing: Err("not supported".to_owned()),
        gro: Err("not supported".to_owned()),
        lro: Ok(false),
        stamps: Err("not supported".to_owned()),
    };
    let disk = Disk { directory: needs().directories[0].clone(), free_bytes: hidden() };
    let facts = Facts { nics: BTreeMap::from([("eth1".to_owned(), nic)]), disks: vec![disk], ..facts };
    let with = examine(root.path(), &facts, Some(&needs()));
    let known: Vec<_> = with.items.iter().filter(|item| item.status != Status::Unknown).map(|item| item.name).collect();
    assert_eq!(known, ["store", "peer", "voter"], "no store, no peer, no voter");
    let text = with.text(false);
    assert!(text.contains("irqbalance: the host's processes cannot be seen: a container"), "{text}");
}

type Found = Vec<(Status, String)>;

/// The links of eth1 and eth3, and the other items of eth1 that `/sys` alone shows.
fn links(root: &Path, facts: &Facts) -> (Found, Found) {
    let report = examine(root, facts, Some(&needs()));
    let of = |names: &[&str]| {
        let items = report.items.iter().filter(|item| names.contains(&item.name));
        items.map(|item| (item.status, item.read.clone())).collect()
    };
    (of(&["link"]), of(&["NUMA node", "IRQ affinity"]))
}

#[test]
fn an_interface_exists_if_the_kernel_lists_it_whatever_sys_shows() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    // Without /sys, as in some containers.
    fs::remove_dir_all(root.path().join("sys/class/net")).unwrap();
    let unreadable = |name: &str| format!("/sys/class/net/{name}/ifindex: No such file or directory");
    let (link, others) = links(root.path(), &facts(true));
    let up = |name: &str| (Status::Ok, format!("up; not readable: {}", unreadable(name)));
    assert_eq!(link, [up("eth1"), up("eth3"), up("lo")]);
    assert!(others.iter().all(|(status, read)| *status == Status::Unknown && *read == unreadable("eth1")));
    assert_eq!(others.len(), 2);
    let (link, _) = links(root.path(), &facts(false));
    assert_eq!(link[0], (Status::Fail, format!("down; not readable: {}", unreadable("eth1"))));

    // With the /sys of a network namespace that has another eth1, which is down, and no eth3.
    let other = [("/sys/class/net/eth1/ifindex", "7"), ("/sys/class/net/eth1/operstate", "down")];
    write(root.path(), &other);
    let (link, others) = links(root.path(), &facts(true));
    let foreign = "/sys/class/net/eth1 is of another network namespace (interface 7; here 2)";
    assert_eq!(link, [(Status::Ok, format!("up; not readable: {foreign}")), up("eth3"), up("lo")]);
    assert!(others.iter().all(|(status, read)| *status == Status::Unknown && read == foreign), "{others:?}");

    // An interface of that other namespace alone does not exist here.
    write(root.path(), &[("/sys/class/net/eth3/ifindex", "4"), ("/sys/class/net/eth3/operstate", "up")]);
    let mut here = facts(true);
    here.interfaces.as_mut().unwrap().remove("eth3");
    assert_eq!(links(root.path(), &here).0[1], (Status::Fail, "no such interface".to_owned()));
    // Without an answer of the kernel nothing is known of it.
    here.interfaces = Err("Operation not permitted".to_owned());
    assert!(links(root.path(), &here).0.iter().all(|(status, _)| *status == Status::Unknown));
}

#[test]
fn a_loopback_interface_that_is_down_is_a_failure_where_an_address_of_it_is_used() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    let mut facts = facts(true);
    let loopback = InterfaceFacts { index: 1, is_running: false };
    facts.interfaces.as_mut().unwrap().insert("lo".to_owned(), loopback);
    let links = |uses_loopback| {
        let report = examine(root.path(), &facts, Some(&Needs { uses_loopback, ..needs() }));
        report.items.into_iter().filter(|item| item.name == "link").collect::<Vec<_>>()
    };
    let item = links(true).pop().unwrap();
    assert_eq!((item.subject.as_deref(), item.status, item.read.as_str()), (Some("lo"), Status::Fail, "down"));
    assert_eq!(item.commands, ["ip link set dev lo up"]);
    assert!(links(false).iter().all(|item| item.status == Status::Ok));
}

/// The item for the clock's offset, where these processes run.
fn clock_offset(processes: &[&str], time_daemon: Option<Result<DaemonReport, String>>, clock: Synchronisation) -> Item {
    let root = tempfile::tempdir().unwrap();
    for (number, process) in processes.iter().enumerate() {
        write(root.path(), &[(&format!("/proc/{}/comm", number + 1), process)]);
    }
    let facts = Facts { clock: Ok(clock), time_daemon, ..facts(true) };
    let report = examine(root.path(), &facts, None);
    report.items.into_iter().find(|item| item.name == "PTP or chrony").unwrap()
}

#[test]
fn the_clock_is_judged_by_its_daemon_and_by_the_kernel_where_none_can_be_asked() {
    let far = 2_000_000;
    // The kernel's own offset stays near 0 under chronyd and phc2sys.
    let of_kernel = Synchronisation { is_synchronised: true, offset_ns: 0, error_us_max: 9 };
    let chronyc = |report: DaemonReport| clock_offset(&["chronyd"], Some(Ok(report)), of_kernel);
    let item = chronyc(DaemonReport { offset_ns: far, ..REPORT });
    assert_eq!((item.status, item.read.as_str()), (Status::Warn, "offset 2000000 ns, error at most 200 us; chronyc"));
    let item = chronyc(DaemonReport { error_ns_max: Some(far), ..REPORT });
    assert!(item.status == Status::Warn && item.commands[0].contains("nearer source"), "{item:?}");
    assert_eq!(chronyc(DaemonReport { is_synchronised: false, ..REPORT }).status, Status::Warn);
    assert_eq!(chronyc(REPORT).status, Status::Ok);
    let unsynchronised = Synchronisation { is_synchronised: false, ..of_kernel };
    let ptp = DaemonReport { program: "pmc", offset_ns: 30, error_ns_max: None, ..REPORT };
    assert_eq!(clock_offset(&["ptp4l", "phc2sys"], Some(Ok(ptp)), of_kernel).status, Status::Ok);
    let item = clock_offset(&["ptp4l"], Some(Ok(ptp)), unsynchronised);
    assert!(item.status == Status::Warn && item.read.contains("phc2sys"), "only the card's clock is kept: {item:?}");
    let ptp = DaemonReport { offset_ns: far, ..ptp };
    let item = clock_offset(&["ptp4l", "phc2sys"], Some(Ok(ptp)), of_kernel);
    assert!(item.status == Status::Warn && item.commands[0].starts_with("pmc "), "{item:?}");

    let hidden = Some(Err("chronyc: 506 Cannot talk to daemon".to_owned()));
    assert_eq!(clock_offset(&["chronyd"], hidden, of_kernel).status, Status::Unknown);
    assert_eq!(clock_offset(&["phc2sys"], None, of_kernel).status, Status::Unknown);
    let of_ntpd = |clock| clock_offset(&["ntpd"], None, clock);
    assert_eq!(of_ntpd(of_kernel).status, Status::Ok);
    assert_eq!(of_ntpd(Synchronisation { offset_ns: -far.cast_signed(), ..of_kernel }).status, Status::Warn);
    assert_eq!(of_ntpd(unsynchronised).status, Status::Warn);
    let item = of_ntpd(Synchronisation { error_us_max: 500_000, ..of_kernel });
    assert!(item.status == Status::Warn && item.commands[0].starts_with("apt install chrony"), "{item:?}");
}

#[test]
fn the_limits_of_a_running_gateway_count_and_not_those_of_the_shell() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), false);
    let limits = "Max locked memory  unlimited  unlimited  bytes\nMax realtime priority  20  20\n";
    let gateway = [
        ("/proc/900/cmdline", "/usr/bin/mdgw\0live\0gateway.toml\0"),
        ("/proc/901/cmdline", "/usr/bin/mdgw\0run\0gateway.toml\0"),
        ("/proc/901/limits", limits),
        ("/proc/901/status", "CapEff:\t0000000000000000\n"),
    ];
    write(root.path(), &gateway);
    write(root.path(), &[("/proc/net/igmp", "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n")]);
    let report = examine(root.path(), &facts(true), Some(&needs()));
    let item = |name: &str| report.items.iter().find(|item| item.name == name).unwrap();
    assert_eq!(item("memlock").status, Status::Ok);
    assert!(item("memlock").read.starts_with("the gateway (process 901): "), "{}", item("memlock").read);
    let priority = item("real-time limits");
    assert_eq!(priority.status, Status::Fail);
    assert_eq!(priority.read, "the gateway (process 901) may ask for 20, and the configuration asks for 50");

    // Nothing is joined, though that gateway runs.
    assert_eq!(item("memberships").status, Status::Warn);
    assert_eq!(item("memberships").read, "0 of 2 groups are joined");

    let limits_of = |config: &str| {
        let needs = Needs { config: config.to_owned(), ..needs() };
        let report = examine(root.path(), &facts(true), Some(&needs));
        report.items.into_iter().find(|item| item.name == "real-time limits").unwrap().read
    };
    assert!(limits_of("third.toml").contains("this process"), "a single gateway, with another configuration");

    // Of several gateways it is the one with this configuration, if there is such a one.
    let others = [
        ("/proc/899/cmdline", "/usr/bin/mdgw\0run\0/etc/mdgw/other.toml\0"),
        ("/proc/902/cmdline", "/usr/bin/mdgw\0run\0--date\x002019-01-30\0second.toml\0"),
        ("/proc/902/limits", "Max realtime priority  30  30\n"),
        ("/proc/902/status", "CapEff:\t0000000000000000\n"),
    ];
    write(root.path(), &others);
    assert!(limits_of("second.toml").contains("process 902) may ask for 30"), "{}", limits_of("second.toml"));
    assert!(limits_of("gateway.toml").contains("process 901) may ask for 20"), "{}", limits_of("gateway.toml"));
    assert!(limits_of("third.toml").contains("this process"), "{}", limits_of("third.toml"));
    // By another path of the same file, from the folder of the gateway.
    write(root.path(), &[("/etc/mdgw/second.toml", ""), ("/etc/mdgw/other.toml", "")]);
    symlink("/etc/mdgw", root.path().join("proc/902/cwd")).unwrap();
    let path = root.path().join("etc/mdgw/../mdgw/second.toml");
    assert!(limits_of(path.to_str().unwrap()).contains("process 902)"), "{}", limits_of(path.to_str().unwrap()));
}

#[test]
fn a_peer_that_this_host_cannot_ask_is_unknown_and_not_at_fault() {
    let mut facts = facts(true);
    facts.endpoints[1].answer = Err(NoAnswer::NotAsked("/etc/mdgw/pair.key: Permission denied".to_owned()));
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    let report = examine(root.path(), &facts, Some(&needs()));
    let peer = report.items.iter().find(|item| item.name == "peer").unwrap();
    assert_eq!(
        (peer.status, peer.read.as_str()),
        (Status::Unknown, "not asked: /etc/mdgw/pair.key: Permission denied")
    );
    assert!(peer.commands.is_empty());
}

#[test]
fn a_store_that_accepts_connections_and_does_not_answer_is_a_failure_with_a_command() {
    let mut facts = facts(true);
    let wrong = |text: &str| NoAnswer::Wrong { read: text.to_owned(), command: "curl".to_owned() };
    facts.endpoints[0].answer = Err(wrong("does not answer"));
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    let report = examine(root.path(), &facts, Some(&needs()));
    let store = report.items.iter().find(|item| item.name == "store").unwrap();
    assert_eq!((store.status, store.read.as_str(), report.worst), (Status::Fail, "does not answer", Status::Fail));
    assert_eq!(store.commands, ["curl"]);
}

/// A store serves as long as a majority of its nodes does.
#[test]
fn a_silent_node_of_a_store_is_a_warning_and_without_a_majority_a_failure() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    let statuses = |answers: &[&Result<String, NoAnswer>], of_gateway: Option<&Result<String, NoAnswer>>| {
        let node = |(number, answer): (usize, &&Result<String, NoAnswer>)| Endpoint {
            role: Role::Store,
            address: format!("etcd{number}:2379"),
            answer: (*answer).clone(),
        };
        let gateway = of_gateway.map(|answer| Endpoint {
            role: Role::StoreUser,
            address: "/run/mdgw/control".to_owned(),
            answer: answer.clone(),
        });
        let endpoints = answers.iter().enumerate().map(node).chain(gateway).collect();
        let report = examine(root.path(), &Facts { endpoints, ..facts(true) }, Some(&needs()));
        let items = report.items.iter().filter(|item| item.name == "store");
        (items.map(|item| item.status).collect::<Vec<_>>(), report.worst)
    };
    let ok = &Ok("answers that it is healthy".to_owned());
    let down = &Err(NoAnswer::Failed("connection refused".to_owned()));
    let wrong = &Err(NoAnswer::Wrong { read: "RAFT NO LEADER".to_owned(), command: "curl".to_owned() });
    use Status::{Fail, Ok as Well, Warn};
    assert_eq!(statuses(&[ok, ok, ok], None), (vec![Well, Well, Well], Well));
    assert_eq!(statuses(&[ok, down, ok], None), (vec![Well, Warn, Well], Warn));
    assert_eq!(statuses(&[ok, wrong, ok], None), (vec![Well, Warn, Well], Warn));
    assert_eq!(statuses(&[ok, down, wrong], None), (vec![Well, Fail, Fail], Fail));
    assert_eq!(statuses(&[ok, down], None), (vec![Well, Fail], Fail), "one of two is no majority");
    assert_eq!(statuses(&[down], None), (vec![Fail], Fail));
    // The gateway's own view is no node, and is a failure by itself.
    assert_eq!(statuses(&[ok, down], Some(ok)), (vec![Well, Fail, Well], Fail));
    assert_eq!(statuses(&[ok, ok, ok], Some(wrong)), (vec![Well, Well, Well, Fail], Fail));
}

#[test]
fn a_silent_voter_is_a_warning_and_without_a_majority_a_failure() {
    let silent = || Err(NoAnswer::Failed("node 3 does not answer".to_owned()));
    let statuses = |answers: [Result<String, NoAnswer>; 2]| {
        let voter = |(number, answer)| {
            let address = format!("10.0.0.{number}:27500");
            Endpoint { role: Role::Voter, address, answer }
        };
        let facts = Facts { endpoints: (2..).zip(answers).map(voter).collect(), ..facts(true) };
        let root = tempfile::tempdir().unwrap();
        write_host(root.path(), true);
        let report = examine(root.path(), &facts, Some(&needs()));
        let voters: Vec<_> = report.items.into_iter().filter(|item| item.name == "voter").collect();
        for item in voters.iter().filter(|item| item.status >= Status::Warn) {
            let host = item.subject.as_deref().unwrap().trim_end_matches(":27500");
            assert!(item.commands[0].ends_with(host) && item.commands[1].contains("udp port 27500"), "{item:?}");
        }
        voters.iter().map(|item| item.status).collect::<Vec<_>>()
    };
    let (ok, hidden) = (Ok("node 2 answers".to_owned()), Err(NoAnswer::NotAsked("no key".to_owned())));
    assert_eq!(statuses([ok.clone(), ok.clone()]), [Status::Ok, Status::Ok]);
    assert_eq!(statuses([ok, silent()]), [Status::Ok, Status::Warn]);
    assert_eq!(statuses([silent(), silent()]), [Status::Fail, Status::Fail], "one of three");
    assert_eq!(statuses([hidden, silent()]), [Status::Unknown, Status::Warn]);
}

#[test]
fn every_finding_of_the_check_is_shown_and_a_lack_of_rights_is_no_failure() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let items = |faults: &[&str], warnings: &[&str], not_permitted: &[&str]| {
        let check =
            CheckResult { faults: texts(faults), warnings: texts(warnings), not_permitted: texts(not_permitted) };
        let report = examine(root.path(), &Facts { check: Some(check), ..facts(true) }, Some(&needs()));
        let items = report.items.into_iter().filter(|item| item.name == "mdgw check");
        (report.worst, items.map(|item| (item.status, item.read)).collect::<Vec<_>>())
    };
    let ok = |read: &str| (Status::Ok, read.to_owned());
    assert_eq!(items(&[], &[], &[]), (Status::Ok, vec![ok("no fault, no warning")]));
    let rights = "this user lacks the rights to find out: key: Permission denied; no write. Run mdgw check gateway.toml as the gateway's user";
    let hidden = (Status::Unknown, rights.to_owned());
    let not_permitted = ["key: Permission denied", "no write"];
    assert_eq!(items(&[], &[], &not_permitted), (Status::Ok, vec![hidden.clone()]));
    let warned = |read: &str| (Status::Warn, read.to_owned());
    assert_eq!(items(&[], &["a"], &[]), (Status::Warn, vec![warned("1 warning: a")]));
    assert_eq!(
        items(&["x", "y"], &["a", "b", "c"], &not_permitted),
        (Status::Fail, vec![(Status::Fail, "x; y".to_owned()), warned("3 warnings: a; b; c"), hidden])
    );
}

/// Runs a remedy for the kernel's command line on a file of that content, without `update-grub`.
fn command_line_after(command: &str, before: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("grub");
    fs::write(&file, before).unwrap();
    let command = command.replace("update-grub", "echo updated").replace("/etc/default/grub", file.to_str().unwrap());
    let done = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(done.status.success(), "{command}");
    let (changed, message) = (fs::read_to_string(&file).unwrap(), String::from_utf8(done.stderr).unwrap());
    // It is in effect, or the command says that it isn't.
    assert_eq!(done.stdout == b"updated\n", message.is_empty(), "{message}");
    assert_eq!(message.contains(" by hand\n"), !message.is_empty(), "{message}");
    let is_set = |line: &str| line.starts_with("GRUB_CMDLINE_LINUX=") && line.contains("=1-3 ");
    let is_set = changed.lines().any(|line| is_set(line) || line.contains("managed_irq,1-3 "));
    assert_eq!(is_set, message.is_empty(), "{changed} {message}");
    changed
}

#[test]
fn remedies_for_the_command_line_replace_a_parameter_and_keep_the_others() {
    let bad = report_of(false);
    let mut grub =
        "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet isolcpus=7\"\nGRUB_CMDLINE_LINUX=\"nohz_full=2-3 mitigations=off\"\n"
            .to_owned();
    for name in ["isolated cores", "nohz_full", "rcu_nocbs"] {
        let item = bad.items.iter().find(|item| item.name == name).unwrap();
        grub = command_line_after(&item.commands[0], &grub);
    }
    assert_eq!(
        grub,
        "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"rcu_nocbs=1-3 nohz_full=1-3 isolcpus=domain,managed_irq,1-3 mitigations=off\"\n"
    );
}

#[test]
fn remedies_for_the_command_line_add_a_line_where_none_is_in_force() {
    let bad = report_of(false);
    let item = bad.items.iter().find(|item| item.name == "nohz_full").unwrap();
    let line = "GRUB_CMDLINE_LINUX=\"nohz_full=1-3 \"\n";
    for before in [
        "",
        "GRUB_TIMEOUT=0\n",
        "GRUB_TIMEOUT=0",
        "#GRUB_CMDLINE_LINUX=\"\"\n",
        "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n",
    ] {
        let changed = command_line_after(&item.commands[0], before);
        assert_eq!(changed, format!("{before}\n{line}"));
        let again = command_line_after(&item.commands[0], &changed);
        assert_eq!(again.matches("nohz_full").count(), 1, "{again}");
    }
    // The added line would hide these, so the command says what to do.
    for before in ["  GRUB_CMDLINE_LINUX=\"quiet\"\n", "export GRUB_CMDLINE_LINUX=quiet\n"] {
        assert_eq!(command_line_after(&item.commands[0], before), before);
    }
}

/// Debian's installer writes double quotes. A shell reads the file, so other forms mean the same.
#[test]
fn remedies_for_the_command_line_take_effect_whatever_quotes_its_value_has() {
    let bad = report_of(false);
    let item = bad.items.iter().find(|item| item.name == "nohz_full").unwrap();
    for (before, after) in [
        ("\"\"", "\"nohz_full=1-3 \""),
        ("\"quiet splash\"    # ours", "\"nohz_full=1-3 quiet splash\"    # ours"),
        ("''", "'nohz_full=1-3 '"),
        ("'quiet splash'", "'nohz_full=1-3 quiet splash'"),
        ("quiet", "\"nohz_full=1-3 quiet\""),
        ("nohz_full=7 # ours", "\"nohz_full=1-3 \" # ours"),
        ("", "\"nohz_full=1-3 \""),
        ("  # none", "\"nohz_full=1-3 \"  # none"),
        // What the command cannot change stays as it is.
        ("quiet\\ splash", "quiet\\ splash"),
        ("quiet\" splash\"", "quiet\" splash\""),
    ] {
        let default = "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n";
        let changed = command_line_after(&item.commands[0], &format!("{default}GRUB_CMDLINE_LINUX={before}\n"));
        assert_eq!(changed, format!("{default}GRUB_CMDLINE_LINUX={after}\n"), "{before}");
        let again = command_line_after(&item.commands[0], &changed);
        assert_eq!(again.matches("nohz_full").count(), changed.matches("nohz_full").count(), "{again}");
    }
}

#[test]
fn items_of_a_card_that_does_not_exist_are_named_as_not_read() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    let mut facts = facts(true);
    facts.interfaces.as_mut().unwrap().remove("eth1");
    let report = examine(root.path(), &facts, Some(&needs()));
    let of_card: Vec<_> = report.items.iter().filter(|item| item.subject.as_deref() == Some("eth1")).collect();
    let [link, others] = of_card.as_slice() else { panic!("{of_card:#?}") };
    assert_eq!((link.name, link.status), ("link", Status::Fail));
    assert_eq!((others.name, others.status), ("card", Status::Unknown));
    let names = "NUMA node, IRQ affinity, ring size, coalescing, GRO and LRO, hardware stamps, memberships, IGMP version, rp_filter";
    assert_eq!(others.read, format!("not read, since there is no such interface: {names}"));
}

#[test]
fn interrupts_have_nowhere_to_go_if_all_cores_are_pinned() {
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), false);
    write(root.path(), &[(&format!("{CPU}/online"), "1-3\n")]);
    let report = examine(root.path(), &facts(true), Some(&needs()));
    let item = report.items.iter().find(|item| item.name == "IRQ affinity").unwrap();
    assert_eq!(item.commands, ["lscpu --extended=CPU,CORE,NODE    # then leave a core out of the pools"]);
}

#[test]
fn odd_files_are_unknown_and_never_a_panic() {
    for odd in [
        "",
        "\n",
        "x",
        "-",
        "99999999999999999999",
        "0-4294967295",
        "\u{0}\u{1}",
        "[",
        "]",
        "V",
        "-9223372036854775808",
        ": : :\n\t\t\n zz",
    ] {
        let root = tempfile::tempdir().unwrap();
        write_host(root.path(), true);
        overwrite(root.path(), odd.as_bytes());
        let report = examine(root.path(), &facts(true), Some(&needs()));
        assert_eq!(names(&report), names(&report_of(true)));
        assert!(report.counts.unknown > 5, "{odd:?}: {report:#?}");
    }
    let root = tempfile::tempdir().unwrap();
    write_host(root.path(), true);
    overwrite(root.path(), &[0xff; 100_000]);
    assert!(examine(root.path(), &facts(true), Some(&needs())).counts.unknown > 5);
}

#[test]
fn folders_pipes_and_endless_links_instead_of_files_are_unknown() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/sys/kernel/osrelease")).unwrap();
    fs::create_dir_all(root.path().join("proc/net")).unwrap();
    symlink("swaps", root.path().join("proc/swaps")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.path().join("proc/cmdline"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let report = examine(root.path(), &facts(true), Some(&needs()));
    for name in ["kernel", "swap"] {
        assert_eq!(report.items.iter().find(|item| item.name == name).unwrap().status, Status::Unknown, "{name}");
    }
}

/// Replaces the content of every file.
fn overwrite(folder: &Path, bytes: &[u8]) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            overwrite(&entry.path(), bytes)
        } else {
            fs::write(entry.path(), bytes).unwrap()
        }
    }
}

#[cfg(target_endian = "little")]
#[test]
fn the_text_is_grouped_fits_a_terminal_and_ends_with_the_counts() {
    let text = report_of(false).text(false);
    for line in text.lines().filter(|line| !line.trim_start().starts_with('$')) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    expect![[r#"
        cores
          warn    kernel: Linux 5.10.0-28-amd64
                    Kernels before 6.1 lack parts of io_uring; 6.12 makes takeovers on
                    shared cores quicker.
                    $ apt install linux-image-$(dpkg --print-architecture) && reboot
          warn    isolated cores: none; pinned 1-3, without it 1-3
                    On other cores the scheduler runs other work beside a pinned thread,
                    and packets wait for it.
                    $ sed -Ei '/^GRUB_CMDLINE_LINUX/s/ *isolcpus=[0-9a-z_,:-]*//g; s/^(GRUB_CMDLINE_LINUX=)([^"\x27\\[:space:]]*)(\s.*)?$/\1"\2"\3/; s/^GRUB_CMDLINE_LINUX=["\x27]/&isolcpus=domain,managed_irq,1-3 /' /etc/default/grub && { grep -Eq '^\s*(export\s+)?GRUB_CMDLINE_LINUX=' /etc/default/grub || printf '\n%s\n' 'GRUB_CMDLINE_LINUX="isolcpus=domain,managed_irq,1-3 "' >> /etc/default/grub; } && if grep -q '^GRUB_CMDLINE_LINUX=.*isolcpus=domain,managed_irq,1-3 ' /etc/default/grub; then update-grub; else echo 'add isolcpus=domain,managed_irq,1-3 to GRUB_CMDLINE_LINUX in /etc/default/grub by hand' >&2; fi    # in force after a reboot
          warn    nohz_full: none; pinned 1-3, without it 1-3
                    On other cores a timer tick interrupts the thread up to 1,000 times
                    a second.
                    $ sed -Ei '/^GRUB_CMDLINE_LINUX/s/ *nohz_full=[0-9a-z_,:-]*//g; s/^(GRUB_CMDLINE_LINUX=)([^"\x27\\[:space:]]*)(\s.*)?$/\1"\2"\3/; s/^GRUB_CMDLINE_LINUX=["\x27]/&nohz_full=1-3 /' /etc/default/grub && { grep -Eq '^\s*(export\s+)?GRUB_CMDLINE_LINUX=' /etc/default/grub || printf '\n%s\n' 'GRUB_CMDLINE_LINUX="nohz_full=1-3 "' >> /etc/default/grub; } && if grep -q '^GRUB_CMDLINE_LINUX=.*nohz_full=1-3 ' /etc/default/grub; then update-grub; else echo 'add nohz_full=1-3 to GRUB_CMDLINE_LINUX in /etc/default/grub by hand' >&2; fi    # in force after a reboot
          warn    rcu_nocbs: none; pinned 1-3, without it 1-3
                    On other cores the kernel frees its own memory in the thread's time.
                    $ sed -Ei '/^GRUB_CMDLINE_LINUX/s/ *rcu_nocbs=[0-9a-z_,:-]*//g; s/^(GRUB_CMDLINE_LINUX=)([^"\x27\\[:space:]]*)(\s.*)?$/\1"\2"\3/; s/^GRUB_CMDLINE_LINUX=["\x27]/&rcu_nocbs=1-3 /' /etc/default/grub && { grep -Eq '^\s*(export\s+)?GRUB_CMDLINE_LINUX=' /etc/default/grub || printf '\n%s\n' 'GRUB_CMDLINE_LINUX="rcu_nocbs=1-3 "' >> /etc/default/grub; } && if grep -q '^GRUB_CMDLINE_LINUX=.*rcu_nocbs=1-3 ' /etc/default/grub; then update-grub; else echo 'add rcu_nocbs=1-3 to GRUB_CMDLINE_LINUX in /etc/default/grub by hand' >&2; fi    # in force after a reboot
          warn    governor: powersave on cores 1-3
                    Other governors slow an idle core down: the first packet after a
                    pause pays for it.
                    $ cpupower -c 1-3 frequency-set -g performance
          warn    turbo: on
                    With turbo a core's speed follows temperature and the load of other
                    cores: fast, but not the same from packet to packet.
                    $ echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo
          warn    C-states: up to 133 us on cores 1-3
                    A core in a deep idle state needs up to hundreds of microseconds to
                    wake up for a packet.
                    $ cpupower -c 1-3 idle-set -D 10
          warn    SMT siblings: cores 1-3 share a physical core with 5-7
                    Two threads on one physical core share its units and caches: each
                    slows the other down.
                    $ echo 0 | tee /sys/devices/system/cpu/cpu5/online /sys/devices/system/cpu/cpu6/online /sys/devices/system/cpu/cpu7/online
          warn    irqbalance: runs
                    It moves interrupts back to the pools' cores, also those that were
                    steered away.
                    $ systemctl disable --now irqbalance

        memory
          fail    memory: 2048 MiB needed at most; 1024 MiB available, of 8192 MiB
                    A host without free memory stalls, and the kernel then kills a
                    process: the gateway, or another one.
                    $ mdgw check gateway.toml    # "memory": what takes how much; lower orders_max, levels_max, instruments_max or retention_bytes
                    $ ps -eo pid,rss,args --sort -rss | head    # what else takes memory
          warn    memlock: this process may lock 8388608 bytes
                    Memory that is not locked may be swapped out or dropped, and a
                    thread then waits for a disk.
                    $ mkdir -p /etc/systemd/system/mdgw.service.d && printf '[Service]\nLimitMEMLOCK=infinity\n' > /etc/systemd/system/mdgw.service.d/LimitMEMLOCK.conf && systemctl daemon-reload    # in force with the next start of mdgw
          warn    real-time limits: this process may ask for 0, and the configuration
                  asks for 50
                    A gateway with a priority does not start without the limit;
                    sched_rt_runtime_us stops a spinning thread for a part of each
                    second.
                    $ mkdir -p /etc/systemd/system/mdgw.service.d && printf '[Service]\nLimitRTPRIO=99\n' > /etc/systemd/system/mdgw.service.d/LimitRTPRIO.conf && systemctl daemon-reload    # in force with the next start of mdgw
          warn    huge pages: 512 reserved and unused
                    Reserved huge pages are lost to the gateway, which asks for
                    transparent ones.
                    $ sysctl -w vm.nr_hugepages=0
          warn    transparent huge pages: never
                    Books ask for huge pages (madvise). `never` refuses them, `always`
                    makes the kernel merge pages of every process at any moment.
                    $ echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
          warn    swap: /dev/sda2
                    A cold page that was swapped out stops the thread that touches it
                    for milliseconds.
                    $ swapoff -a && sed -i '/\sswap\s/s/^/#/' /etc/fstab

        network
          warn    receive buffers: net.core.rmem_max 212992, wanted 16777216
                    The kernel caps a line's receive buffer: it drops the rest of a
                    burst that comes while the thread is busy.
                    $ sysctl -w net.core.rmem_max=16777216
          fail    link eth1: down
                    Without its interface the gateway does not start; without a link no
                    packet arrives.
                    $ ip link set dev eth1 up
          warn    NUMA node eth1: node 1 with cores 4-7; pinned 1-3
                    Cores of another memory node reach the card's buffers over the link
                    between the sockets: slower for every packet.
                    $ cat /sys/devices/system/node/node1/cpulist    # then take the pools' cores from these
          warn    IRQ affinity eth1: 1 of 2 interrupts on the pools' cores 1-3
                    An interrupt on a pool's core stops the thread there.
                    $ for i in 41; do echo 0,4-7 > /proc/irq/$i/smp_affinity_list; done
          warn    ring size eth1: 512 of 8192 descriptors
                    A short receive ring overflows in a burst: the card drops packets
                    before the kernel sees them.
                    $ ethtool -G eth1 rx 4096    # reception may stop for a moment: not during a session
          warn    coalescing eth1: rx-usecs 50, adaptive on
                    The card waits before it interrupts: latency for every packet that
                    follows a pause.
                    $ ethtool -C eth1 adaptive-rx off rx-usecs 0    # reception may stop for a moment: not during a session
          warn    GRO and LRO eth1: GRO on, LRO off
                    Merging packets costs time for each one, and brings nothing for
                    multicast.
                    $ ethtool -K eth1 gro off lro off
          warn    hardware stamps eth1: asked for, but the card has none for all packets
                    Without the card's stamps, receive times are the kernel's: they lack
                    the time in card and driver.
                    $ ethtool -T eth1    # then set stamps = "kernel" for its lines
          warn    memberships eth1: 1 of 2 groups are joined
                    A switch forwards only groups that are joined.
                    $ ip maddress show dev eth1 && systemctl restart mdgw    # missing: 233.54.12.112
          warn    IGMP version eth1: forced to 2
                    IGMP before version 3 names no senders: switches cannot filter a
                    source-specific join.
                    $ sysctl -w net.ipv4.conf.all.force_igmp_version=0 net.ipv4.conf.eth1.force_igmp_version=0
          warn    rp_filter eth1: strict
                    A strict filter drops multicast from senders that are not routed by
                    this interface, without a trace.
                    $ sysctl -w net.ipv4.conf.eth1.rp_filter=2
          fail    link eth3: down: lowerlayerdown
                    Without its interface the gateway does not start; without a link no
                    packet arrives.
                    $ ip link set dev eth3 up
          fail    link lo: down
                    Without its interface the gateway does not start; without a link no
                    packet arrives.
                    $ ip link set dev lo up

        clock
          warn    clock source: hpet
                    With another source each reading of the clock is a system call of
                    about a microsecond: several for each packet.
                    $ echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource
          warn    PTP or chrony: the clock is not synchronised; no time daemon seen
                    Receive stamps are compared with the venue's times, and with those
                    of the peer: an offset looks like latency.
                    $ apt install chrony && systemctl enable --now chrony && chronyc -n sources -v

        services
          warn    disk /dev/shm/mdgw: publication logs: 100 MiB free, 512 MiB needed
                    Without space the log moves to private memory, so readers and a
                    restart lack it; latency logs, journals and audit stop.
                    $ df -h /dev/shm/mdgw && du -xh -d 2 /dev/shm/mdgw | sort -h | tail    # then make space
          fail    store etcd1:2379: connection refused
                    Without a majority of its store's nodes no gateway can become
                    leader; one that is down shows only when another one fails.
                    $ nc -zv etcd1 2379    # on this host, then on the store's
          warn    peer 10.0.0.2:31200: connection refused
                    Without its peer this gateway has nobody to take over, and no source
                    for missing messages.
                    $ nc -zv 10.0.0.2 31200    # and on that host: systemctl status mdgw
          fail    voter 10.0.0.2:27500: connection refused
                    Without a majority of its voters no gateway can become leader; one
                    that is silent shows only when its vote is needed.
                    $ systemctl status mdgw mdgw-witness    # on the voter's host, 10.0.0.2
                    $ tcpdump -ni any udp port 27500    # on both hosts: requests alone are under another key
          fail    voter 10.0.0.3:27500: connection refused
                    Without a majority of its voters no gateway can become leader; one
                    that is silent shows only when its vote is needed.
                    $ systemctl status mdgw mdgw-witness    # on the voter's host, 10.0.0.3
                    $ tcpdump -ni any udp port 27500    # on both hosts: requests alone are under another key
          fail    mdgw check: no key
                    A gateway does not start with a fault; with a warning it runs worse
                    than it could.
                    $ mdgw check gateway.toml

        8 fail, 28 warn, 0 unknown, 0 ok
    "#]].assert_eq(&text);
    let good = report_of(true);
    assert!(good.text(true).lines().count() > good.text(false).lines().count() + 20, "with the reasons");
}

#[test]
fn json_has_stable_names() {
    let report = report_of(false);
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["worst"], "fail");
    assert_eq!(value["counts"]["warn"], report.counts.warn);
    let kernel = &value["items"][0];
    let keys: Vec<_> = kernel.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["commands", "group", "name", "read", "status", "subject", "why"]);
    assert_eq!(
        (&kernel["name"], &kernel["group"], &kernel["status"]),
        (&"kernel".into(), &"cores".into(), &"warn".into())
    );
}
