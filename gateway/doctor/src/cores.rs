//! Kernel and cores.

use crate::{
    core_set::CoreSet,
    files::{Files, shortened},
    needs::Needs,
    report::{Check, Group, Item},
};

pub(crate) fn items(files: &Files, needs: Option<&Needs>) -> Vec<Item> {
    let pins = needs.map(Needs::pins);
    let pins = pins.as_ref();
    let [isolated, ticks, callbacks] = boot_parameters(files, pins);
    vec![
        kernel(files),
        isolated,
        ticks,
        callbacks,
        governor(files, pins),
        turbo(files),
        idle_states(files, pins),
        siblings(files, pins),
        irqbalance(files, pins),
    ]
}

const NO_CONFIG: &str = "depends on a configuration: mdgw doctor CONFIG";
const NO_PINS: &str = "no thread of this configuration has a core of its own";

fn check(name: &'static str, why: &'static str) -> Check {
    Check::new(Group::Cores, name, why)
}

fn kernel(files: &Files) -> Item {
    let check =
        check("kernel", "Kernels before 6.1 lack parts of io_uring; 6.12 makes takeovers on shared cores quicker.");
    let release = match files.text("/proc/sys/kernel/osrelease") {
        Ok(release) => release,
        Err(error) => return check.unknown(error),
    };
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => check.ok_if((major, minor) >= (6, 1), format!("Linux {release}"), || {
            "apt install linux-image-$(dpkg --print-architecture) && reboot".to_owned()
        }),
        _ => check.unknown(format!("not a kernel release: {}", shortened(&release))),
    }
}

/// Cores that the scheduler, the timer tick and RCU callbacks keep off.
fn boot_parameters(files: &Files, pins: Option<&CoreSet>) -> [Item; 3] {
    let isolated = files.cores("/sys/devices/system/cpu/isolated");
    // Kernels without CONFIG_NO_HZ_FULL have no such file.
    let ticks = files.cores("/sys/devices/system/cpu/nohz_full");
    let callbacks = files.text("/proc/cmdline").map(|line| {
        let listed = line.split_whitespace().filter_map(|word| word.strip_prefix("rcu_nocbs="));
        let listed = listed.filter_map(CoreSet::parse).fold(CoreSet::default(), |all, cores| all.union(&cores));
        // The kernel takes the callbacks of tickless cores away too.
        ticks.as_ref().map_or_else(|_| listed.clone(), |ticks| listed.union(ticks))
    });
    let absent = match (pins, files.cores("/sys/devices/system/cpu/present")) {
        (Some(pins), Ok(present)) => pins.without(&present),
        _ => CoreSet::default(),
    };
    let judge = |item: Check, parameter: &str, prefix: &str, cores: &Result<CoreSet, String>| {
        let cores = match (cores, pins) {
            (_, Some(pins)) if pins.is_empty() => return item.ok(NO_PINS),
            (_, Some(pins)) if !absent.is_empty() => {
                return item.unknown(format!("pinned {pins}: this host has no core {absent}"));
            }
            (Ok(cores), _) => cores,
            (Err(error), _) => return item.unknown(error),
        };
        match pins {
            None => item.unknown(format!("{cores}; {NO_CONFIG}")),
            Some(pins) => {
                let missing = pins.without(cores);
                let read = format!("{cores}; pinned {pins}, without it {missing}");
                item.ok_if(missing.is_empty(), read, || boot_command(parameter, &format!("{prefix}{pins}")))
            }
        }
    };
    [
        judge(
            check(
                "isolated cores",
                "On other cores the scheduler runs other work beside a pinned thread, and packets wait for it.",
            ),
            "isolcpus",
            "domain,managed_irq,",
            &isolated,
        ),
        judge(
            check("nohz_full", "On other cores a timer tick interrupts the thread up to 1,000 times a second."),
            "nohz_full",
            "",
            &ticks,
        ),
        judge(
            check("rcu_nocbs", "On other cores the kernel frees its own memory in the thread's time."),
            "rcu_nocbs",
            "",
            &callbacks,
        ),
    ]
}

/// Sets a parameter of the kernel's command line, on Debian, in place of one of the same name. A value without quotes, which may
/// be empty, gets them first. A file without the line, or with the line as a comment alone, gets one. Of a line of another form the command says
/// that it cannot change it. One reboot then does for several.
fn boot_command(name: &str, value: &str) -> String {
    let file = "/etc/default/grub";
    let replace = format!(
        r#"sed -Ei '/^GRUB_CMDLINE_LINUX/s/ *{name}=[0-9a-z_,:-]*//g; s/^(GRUB_CMDLINE_LINUX=)([^"\x27\\[:space:]]*)(\s.*)?$/\1"\2"\3/; s/^GRUB_CMDLINE_LINUX=["\x27]/&{name}={value} /' {file}"#
    );
    let add = format!(
        r#"{{ grep -Eq '^\s*(export\s+)?GRUB_CMDLINE_LINUX=' {file} || printf '\n%s\n' 'GRUB_CMDLINE_LINUX="{name}={value} "' >> {file}; }}"#
    );
    let finish = format!(
        "if grep -q '^GRUB_CMDLINE_LINUX=.*{name}={value} ' {file}; then update-grub; else echo 'add {name}={value} to GRUB_CMDLINE_LINUX in {file} by hand' >&2; fi"
    );
    format!("{replace} && {add} && {finish}    # in force after a reboot")
}

/// Pinned cores; all cores where none is pinned.
fn judged(files: &Files, pins: Option<&CoreSet>) -> Result<CoreSet, String> {
    match pins {
        Some(pins) if !pins.is_empty() => Ok(pins.clone()),
        _ => files.cores("/sys/devices/system/cpu/online"),
    }
}

fn governor(files: &Files, pins: Option<&CoreSet>) -> Item {
    let check =
        check("governor", "Other governors slow an idle core down: the first packet after a pause pays for it.");
    let cores = match judged(files, pins) {
        Ok(cores) => cores,
        Err(error) => return check.unknown(error),
    };
    let mut other = Vec::new();
    for core in cores.iter() {
        match files.text(&format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor")) {
            Ok(governor) if governor == "performance" => {}
            Ok(governor) => other.push((core, shortened(&governor))),
            Err(error) => return check.unknown(format!("the host does not show it (a virtual machine?): {error}")),
        }
    }
    let Some((_, governor)) = other.first() else { return check.ok(format!("performance on cores {cores}")) };
    let read = format!("{governor} on cores {}", other.iter().map(|(core, _)| *core).collect::<CoreSet>());
    check.warn(read, [format!("cpupower -c {cores} frequency-set -g performance")])
}

fn turbo(files: &Files) -> Item {
    let check = check(
        "turbo",
        "With turbo a core's speed follows temperature and the load of other cores: fast, but not the same from packet to packet.",
    );
    let intel = "/sys/devices/system/cpu/intel_pstate/no_turbo";
    let other = "/sys/devices/system/cpu/cpufreq/boost";
    let (off, command) = if files.exists(intel) {
        (files.number(intel).map(|value| value == 1), format!("echo 1 > {intel}"))
    } else {
        (files.number(other).map(|value| value == 0), format!("echo 0 > {other}"))
    };
    match off {
        Ok(true) => check.ok("off"),
        Ok(false) => check.warn("on", [command]),
        Err(error) => check.unknown(format!("the host does not show it: {error}")),
    }
}

/// Longest time to leave an idle state that a parked thread may pay for, microseconds.
const EXIT_US_MAX: i64 = 10;

fn idle_states(files: &Files, pins: Option<&CoreSet>) -> Item {
    let check =
        check("C-states", "A core in a deep idle state needs up to hundreds of microseconds to wake up for a packet.");
    let cores = match judged(files, pins) {
        Ok(cores) => cores,
        Err(error) => return check.unknown(error),
    };
    let (mut deep, mut deepest, mut states) = (Vec::new(), 0, 0);
    for core in cores.iter() {
        let folder = format!("/sys/devices/system/cpu/cpu{core}/cpuidle");
        let names = files.names(&folder).unwrap_or_default();
        for state in names.iter().filter(|name| name.starts_with("state")) {
            let read = |name: &str| files.number(&format!("{folder}/{state}/{name}"));
            let (Ok(exit_us), Ok(disabled)) = (read("latency"), read("disable")) else { continue };
            states += 1;
            if disabled == 0 && exit_us > EXIT_US_MAX {
                deep.push(core);
                deepest = exit_us.max(deepest);
            }
        }
    }
    if states == 0 {
        return check.unknown("the host shows no idle states (a virtual machine?)");
    }
    let deep: CoreSet = deep.into_iter().collect();
    let read = if deep.is_empty() {
        format!("none above {EXIT_US_MAX} us on cores {cores}")
    } else {
        format!("up to {deepest} us on cores {deep}")
    };
    check.ok_if(deep.is_empty(), read, || format!("cpupower -c {deep} idle-set -D {EXIT_US_MAX}"))
}

fn siblings(files: &Files, pins: Option<&CoreSet>) -> Item {
    let check = check(
        "SMT siblings",
        "Two threads on one physical core share its units and caches: each slows the other down.",
    );
    let pins = match pins {
        None => return check.unknown(NO_CONFIG),
        Some(pins) if pins.is_empty() => return check.ok(NO_PINS),
        Some(pins) => pins,
    };
    let mut shared = CoreSet::default();
    for core in pins.iter() {
        match files.cores(&format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")) {
            Ok(siblings) => shared = shared.union(&siblings.without(&CoreSet::from_iter([core]))),
            Err(error) => return check.unknown(error),
        }
    }
    if shared.is_empty() {
        return check.ok(format!("cores {pins} have none"));
    }
    let read = format!("cores {pins} share a physical core with {shared}");
    let unused = shared.without(pins);
    if unused.is_empty() {
        return check
            .warn(read, ["lscpu --extended=CPU,CORE,NODE    # then give each pool thread another CORE".to_owned()]);
    }
    let off = |core| format!("/sys/devices/system/cpu/cpu{core}/online");
    check.warn(read, [format!("echo 0 | tee {}", unused.iter().map(off).collect::<Vec<_>>().join(" "))])
}

fn irqbalance(files: &Files, pins: Option<&CoreSet>) -> Item {
    let check = check("irqbalance", "It moves interrupts back to the pools' cores, also those that were steered away.");
    let running = match files.processes() {
        Ok(names) if names.is_empty() => return check.unknown("no process can be seen"),
        Ok(names) => names.iter().any(|name| name == "irqbalance"),
        Err(error) => return check.unknown(error),
    };
    match pins {
        _ if !running && !files.shows_processes_of_host() => check
            .unknown("the host's processes cannot be seen: a container, or a /proc that hides those of other users"),
        _ if !running => check.ok("does not run"),
        Some(pins) if pins.is_empty() => check.ok(format!("runs; {NO_PINS}")),
        _ => check.warn("runs", ["systemctl disable --now irqbalance".to_owned()]),
    }
}
