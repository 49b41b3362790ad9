//! Memory, and the limits of the gateway that runs with this configuration, else of this process. Those of the service may differ then: its unit sets them.

use mdgw_sys::host_memory::HostMemory;

use crate::{
    files::{Files, shortened},
    needs::Needs,
    report::{Check, Group, Item},
    text::mebibytes,
};

pub(crate) fn items(files: &Files, needs: Option<&Needs>) -> Vec<Item> {
    vec![
        available(files, needs),
        locked(files, needs),
        real_time(files, needs),
        huge_pages(files),
        transparent_huge_pages(files),
        swap(files),
    ]
}

fn check(name: &'static str, why: &'static str) -> Check {
    Check::new(Group::Memory, name, why)
}

/// The process whose limits count: the gateway that runs with this configuration, if there is one.
struct Limited {
    /// Below `/proc`.
    process: String,
    is_gateway: bool,
}

impl Limited {
    fn find(files: &Files, needs: Option<&Needs>) -> Self {
        let gateway = files.gateway(needs.map(|needs| &*needs.config));
        Self { is_gateway: gateway.is_some(), process: gateway.unwrap_or_else(|| "self".to_owned()) }
    }

    fn name(&self) -> String {
        if self.is_gateway { format!("the gateway (process {})", self.process) } else { "this process".to_owned() }
    }
}

/// Value of a line of `/proc/PROCESS/limits`: the soft limit, `None` if unlimited.
fn limit(files: &Files, process: &str, name: &str) -> Result<Option<u64>, String> {
    let text = files.text(&format!("/proc/{process}/limits"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_whitespace().next());
    match value {
        Some("unlimited") => Ok(None),
        Some(value) => value.parse().map(Some).map_err(|_| format!("/proc/{process}/limits: {name}: not a number")),
        None => Err(format!("/proc/{process}/limits: no line {name}")),
    }
}

/// Whether a process has a capability in effect (linux/capability.h); `false` if the kernel does not show it.
pub(crate) fn has_capability(files: &Files, process: &str, number: u32) -> bool {
    let status = files.text(&format!("/proc/{process}/status")).unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    set.is_some_and(|set| set >> number & 1 == 1)
}

const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_NICE: u32 = 23;

/// Sets a limit, or another setting, in a drop-in of the service's unit, for its next start. It restarts nothing: that of a leader is a takeover.
pub(crate) fn unit_limit(limit: &str, value: &str) -> String {
    let folder = "/etc/systemd/system/mdgw.service.d";
    format!(
        "mkdir -p {folder} && printf '[Service]\\n{limit}={value}\\n' > {folder}/{limit}.conf && systemctl daemon-reload    # in force with the next start of mdgw"
    )
}

fn available(files: &Files, needs: Option<&Needs>) -> Item {
    let check = check(
        "memory",
        "A host without free memory stalls, and the kernel then kills a process: the gateway, or another one.",
    );
    let Some(needs) = needs else { return check.unknown("depends on a configuration: mdgw doctor CONFIG") };
    let limited = Limited::find(files, Some(needs));
    let Some(HostMemory { total_bytes, available_bytes, cgroup }) =
        HostMemory::of_process(&limited.process, |path| files.text(path).ok())
    else {
        return check.unknown("/proc/meminfo: no MemTotal and MemAvailable");
    };
    // A gateway that runs has the memory that it needs.
    let taken = if limited.is_gateway { private_bytes(files, &limited.process) } else { 0 };
    let of_gateway =
        if taken > 0 { format!(" and {} taken by {}", mebibytes(taken), limited.name()) } else { String::new() };
    let of_cgroup = cgroup.map(|cgroup| format!(" (memory.max of cgroup {cgroup})")).unwrap_or_default();
    let (needed, free, total) = (mebibytes(needs.memory_bytes), mebibytes(available_bytes), mebibytes(total_bytes));
    let read = format!("{needed} needed at most; {free} available{of_gateway}, of {total}{of_cgroup}");
    if needs.memory_bytes <= available_bytes.saturating_add(taken) {
        check.ok(read)
    } else {
        let config = &needs.config;
        check.fail(read, [
            format!("mdgw check {config}    # \"memory\": what takes how much; lower orders_max, levels_max, instruments_max or retention_bytes"),
            "ps -eo pid,rss,args --sort -rss | head    # what else takes memory".to_owned(),
        ])
    }
}

/// Memory of a process that no file holds; 0 if the kernel does not show it.
fn private_bytes(files: &Files, process: &str) -> u64 {
    let status = files.text(&format!("/proc/{process}/status")).unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1_024)
}

fn locked(files: &Files, needs: Option<&Needs>) -> Item {
    let check = check(
        "memlock",
        "Memory that is not locked may be swapped out or dropped, and a thread then waits for a disk.",
    );
    if needs.is_some_and(|needs| !needs.lock_memory) {
        return check.ok("gateway.lock_memory is false");
    }
    let limited = Limited::find(files, needs);
    match limit(files, &limited.process, "Max locked memory") {
        Ok(None) => check.ok(format!("{}: unlimited", limited.name())),
        Ok(Some(_)) if has_capability(files, &limited.process, CAP_IPC_LOCK) => {
            check.ok(format!("{}: CAP_IPC_LOCK", limited.name()))
        }
        Ok(Some(bytes)) => {
            check.warn(format!("{} may lock {bytes} bytes", limited.name()), [unit_limit("LimitMEMLOCK", "infinity")])
        }
        Err(error) => check.unknown(error),
    }
}

fn real_time(files: &Files, needs: Option<&Needs>) -> Item {
    let check = check(
        "real-time limits",
        "A gateway with a priority does not start without the limit; sched_rt_runtime_us stops a spinning thread for a part of each second.",
    );
    let threads = needs.map(|needs| needs.threads.as_slice()).unwrap_or_default();
    let Some(priority) = threads.iter().filter_map(|threads| threads.priority).max() else {
        return check.ok("no thread asks for a priority");
    };
    let limited = Limited::find(files, needs);
    let allowed = match limit(files, &limited.process, "Max realtime priority") {
        Ok(_) if has_capability(files, &limited.process, CAP_SYS_NICE) => u64::from(priority),
        Ok(limit) => limit.unwrap_or(u64::MAX),
        Err(error) => return check.unknown(error),
    };
    if allowed < u64::from(priority) {
        let read = format!("{} may ask for {allowed}, and the configuration asks for {priority}", limited.name());
        let command = [unit_limit("LimitRTPRIO", "99")];
        // A unit sets limits that a shell does not have.
        return if limited.is_gateway { check.fail(read, command) } else { check.warn(read, command) };
    }
    let throttled = match files.number("/proc/sys/kernel/sched_rt_runtime_us") {
        Ok(-1) => false,
        Ok(_) => threads.iter().any(|threads| threads.priority.is_some() && threads.spins),
        Err(error) => return check.unknown(error),
    };
    let read = format!(
        "priority {priority} is allowed{}",
        if throttled { ", but spinning threads are throttled" } else { "" }
    );
    check.ok_if(!throttled, read, || "sysctl -w kernel.sched_rt_runtime_us=-1".to_owned())
}

fn huge_pages(files: &Files) -> Item {
    let check = check("huge pages", "Reserved huge pages are lost to the gateway, which asks for transparent ones.");
    let text = match files.text("/proc/meminfo") {
        Ok(text) => text,
        Err(error) => return check.unknown(error),
    };
    let free = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    match free.map(|free| free.trim().parse::<u64>()) {
        Some(Ok(0)) => check.ok("none reserved and unused"),
        Some(Ok(free)) => check.warn(format!("{free} reserved and unused"), ["sysctl -w vm.nr_hugepages=0".to_owned()]),
        _ => check.unknown("/proc/meminfo: no HugePages_Free"),
    }
}

fn transparent_huge_pages(files: &Files) -> Item {
    let check = check(
        "transparent huge pages",
        "Books ask for huge pages (madvise). `never` refuses them, `always` makes the kernel merge pages of every process at any moment.",
    );
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    match files.text(path) {
        Ok(text) if text.contains("[madvise]") => check.ok("madvise"),
        Ok(text) => match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
            Some((choice, _)) => check.warn(shortened(choice), [format!("echo madvise > {path}")]),
            None => check.unknown(format!("{path}: {}", shortened(&text))),
        },
        Err(error) => check.unknown(error),
    }
}

fn swap(files: &Files) -> Item {
    let check = check("swap", "A cold page that was swapped out stops the thread that touches it for milliseconds.");
    match files.text("/proc/swaps") {
        // The first line is a heading.
        Ok(text) => {
            let places: Vec<_> =
                text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(shortened).collect();
            let read = if places.is_empty() { "none".to_owned() } else { places.join(", ") };
            check.ok_if(places.is_empty(), read, || "swapoff -a && sed -i '/\\sswap\\s/s/^/#/' /etc/fstab".to_owned())
        }
        Err(error) => check.unknown(error),
    }
}
