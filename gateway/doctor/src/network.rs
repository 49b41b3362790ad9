//! Network cards of the feeds, and the kernel's network stack.

use std::{collections::BTreeMap, net::Ipv4Addr};

use crate::{
    buffer_limit::BufferLimit,
    core_set::CoreSet,
    facts::{Facts, InterfaceFacts, NicFacts},
    files::Files,
    memory::unit_limit,
    needs::{FeedLine, Needs},
    report::{Check, Group, Item},
};

pub(crate) fn items(files: &Files, facts: &Facts, needs: Option<&Needs>) -> Vec<Item> {
    let mut items = vec![receive_buffers(files, facts, needs)];
    let Some(needs) = needs else {
        items.extend(
            PER_CARD
                .iter()
                .map(|(name, why)| check(name, why).unknown("depends on a configuration: mdgw doctor CONFIG")),
        );
        return items;
    };
    let pins = needs.pins();
    let joined = joined_groups(files);
    let is_gateway_running = files.gateway(Some(&needs.config)).is_some();
    for name in needs.feed_interfaces() {
        let card = Card::new(name, files, facts);
        items.push(card.link());
        // Of an interface that does not exist there is nothing to read.
        if matches!(card.interface, Ok(None)) {
            items.push(card.not_read());
            continue;
        }
        items.push(card.numa_node(&pins));
        items.push(card.irq_affinity(&pins));
        let lines: Vec<_> = needs.lines.iter().filter(|line| line.interface == name).collect();
        match facts.nics.get(name) {
            Some(nic) => items.extend(card.settings(nic, &lines)),
            None => items.push(card.check("ring size").unknown("not read")),
        }
        items.push(card.memberships(&joined, &lines, is_gateway_running));
        items.push(card.igmp_version(&joined, &lines));
        items.push(card.rp_filter());
    }
    let feeds = needs.feed_interfaces();
    let mut others: Vec<&str> = needs.output_interfaces.iter().map(String::as_str).collect();
    if needs.uses_loopback && !others.contains(&"lo") {
        others.push("lo");
    }
    for name in others.into_iter().filter(|name| !feeds.contains(name)) {
        items.push(Card::new(name, files, facts).link());
    }
    items
}

/// Items of each card, and why they matter.
const PER_CARD: [(&str, &str); 10] = [
    ("link", "Without its interface the gateway does not start; without a link no packet arrives."),
    (
        "NUMA node",
        "Cores of another memory node reach the card's buffers over the link between the sockets: slower for every packet.",
    ),
    ("IRQ affinity", "An interrupt on a pool's core stops the thread there."),
    ("ring size", "A short receive ring overflows in a burst: the card drops packets before the kernel sees them."),
    ("coalescing", "The card waits before it interrupts: latency for every packet that follows a pause."),
    ("GRO and LRO", "Merging packets costs time for each one, and brings nothing for multicast."),
    (
        "hardware stamps",
        "Without the card's stamps, receive times are the kernel's: they lack the time in card and driver.",
    ),
    ("memberships", "A switch forwards only groups that are joined."),
    ("IGMP version", "IGMP before version 3 names no senders: switches cannot filter a source-specific join."),
    (
        "rp_filter",
        "A strict filter drops multicast from senders that are not routed by this interface, without a trace.",
    ),
];

/// `ARPHRD_LOOPBACK`.
const LOOPBACK: i64 = 772;

fn check(name: &'static str, why: &'static str) -> Check {
    Check::new(Group::Network, name, why)
}

/// Receive buffer of a line by default, bytes.
const RECEIVE_BUFFER_BYTES: u64 = 16 << 20;

fn receive_buffers(files: &Files, facts: &Facts, needs: Option<&Needs>) -> Item {
    let check = check(
        "receive buffers",
        "The kernel caps a line's receive buffer: it drops the rest of a burst that comes while the thread is busy.",
    );
    let wanted = needs.and_then(|needs| needs.lines.iter().map(|line| line.receive_buffer_bytes).max());
    let wanted = wanted.unwrap_or(RECEIVE_BUFFER_BYTES);
    let limit = files.number("/proc/sys/net/core/rmem_max");
    let is_enough = limit.as_ref().is_ok_and(|max| u64::try_from(*max).is_ok_and(|max| max >= wanted));
    let read = limit.map(|max| format!("net.core.rmem_max {max}, wanted {wanted}"));
    if is_enough {
        return check.ok(read.unwrap_or_default());
    }
    let BufferLimit { exceeded_by, has_unit } =
        BufferLimit::find(files, needs.map(|needs| &*needs.config), facts.own_rights);
    match (exceeded_by, read) {
        (Some(by), Ok(read)) => check.ok(format!("{read}; no limit with {by}")),
        (Some(by), Err(_)) => check.ok(format!("no limit with {by}")),
        (None, Err(error)) => check.unknown(error),
        (None, Ok(read)) => {
            let sysctl = format!("sysctl -w net.core.rmem_max={wanted}");
            let drop_in = || unit_limit("AmbientCapabilities", "CAP_NET_ADMIN");
            let capability = has_unit.then(|| format!("{}, instead of a higher limit", drop_in()));
            check.warn_any(read, [sysctl].into_iter().chain(capability))
        }
    }
}

struct Card<'a> {
    name: &'a str,
    files: &'a Files,
    /// As the kernel reports it; `None` if there is no such interface.
    interface: Result<Option<InterfaceFacts>, &'a str>,
    /// Why the folder in `/sys/class/net` does not show this interface.
    hidden: Option<String>,
    is_loopback: bool,
}

impl<'a> Card<'a> {
    fn new(name: &'a str, files: &'a Files, facts: &'a Facts) -> Self {
        let interface = facts.interfaces.as_ref().map(|all| all.get(name).copied()).map_err(String::as_str);
        let folder = format!("/sys/class/net/{name}");
        // `/sys` shows the network namespace in which it was mounted, and a container may have none.
        let shown = files.number(&format!("{folder}/ifindex"));
        let hidden = match (shown, interface) {
            (Err(error), _) => Some(error),
            (Ok(shown), Ok(Some(InterfaceFacts { index, .. }))) if shown != i64::from(index) => {
                Some(format!("{folder} is of another network namespace (interface {shown}; here {index})"))
            }
            (Ok(_), _) => None,
        };
        let kind = files.number(&format!("{folder}/type"));
        let is_loopback = if hidden.is_none() { kind == Ok(LOOPBACK) } else { name == "lo" };
        Self { name, files, interface, hidden, is_loopback }
    }

    /// The interface's folder in `/sys/class/net`, or why that folder says nothing of it.
    fn shown(&self) -> Result<String, String> {
        self.hidden.clone().map_or_else(|| Ok(format!("/sys/class/net/{}", self.name)), Err)
    }

    /// One of [`PER_CARD`].
    fn check(&self, name: &'static str) -> Check {
        let why = PER_CARD.iter().find(|(known, _)| *known == name).map_or("", |(_, why)| why);
        check(name, why).of(self.name)
    }

    fn link(&self) -> Item {
        let check = self.check("link");
        let name = self.name;
        let interface = match self.interface {
            Ok(Some(interface)) => interface,
            Ok(None) => {
                return check.fail(
                    "no such interface",
                    ["ip -brief address    # then name one of these in the configuration".to_owned()],
                );
            }
            Err(error) => return check.unknown(format!("the kernel does not list its interfaces: {error}")),
        };
        let state = self.shown().and_then(|folder| self.files.text(&format!("{folder}/operstate")));
        match state {
            Ok(state) if state == "unknown" && interface.is_running => check.ok("its driver reports no state"),
            Ok(state) if interface.is_running => check.ok(crate::files::shortened(&state)),
            Err(error) if interface.is_running => check.ok(format!("up; not readable: {error}")),
            Ok(state) => {
                // The loopback interface's state is `unknown`, whether it is up or down.
                let detail =
                    Some(crate::files::shortened(&state)).filter(|state| !["down", "unknown"].contains(&&**state));
                let read = detail.map_or_else(|| "down".to_owned(), |state| format!("down: {state}"));
                check.fail(read, [format!("ip link set dev {name} up")])
            }
            Err(error) => check.fail(format!("down; not readable: {error}"), [format!("ip link set dev {name} up")]),
        }
    }

    /// In place of all items but the link, for an interface that does not exist.
    fn not_read(&self) -> Item {
        let names: Vec<&str> = PER_CARD.iter().map(|(name, _)| *name).filter(|name| *name != "link").collect();
        let why = "What is wrong with the card shows only once its interface is there: examine the host again then.";
        let read = format!("not read, since there is no such interface: {}", names.join(", "));
        check("card", why).of(self.name).unknown(read)
    }

    fn numa_node(&self, pins: &CoreSet) -> Item {
        let check = self.check("NUMA node");
        if pins.is_empty() || self.is_loopback {
            return check.ok(if self.is_loopback { "loopback has no card" } else { "no thread has a core of its own" });
        }
        let node = self.shown().and_then(|folder| self.files.number(&format!("{folder}/device/numa_node")));
        let node = match node {
            // The firmware names no node: there is one only.
            Ok(node) if node < 0 => return check.ok("the card belongs to no node"),
            Ok(node) => node,
            Err(error) => return check.unknown(error),
        };
        match self.files.cores(&format!("/sys/devices/system/node/node{node}/cpulist")) {
            Ok(near) => {
                let far = pins.without(&near);
                let read = format!("node {node} with cores {near}; pinned {pins}");
                check.ok_if(far.is_empty(), read, || {
                    format!(
                        "cat /sys/devices/system/node/node{node}/cpulist    # then take the pools' cores from these"
                    )
                })
            }
            Err(error) => check.unknown(error),
        }
    }

    fn irq_affinity(&self, pins: &CoreSet) -> Item {
        let check = self.check("IRQ affinity");
        if pins.is_empty() || self.is_loopback {
            return check.ok(if self.is_loopback { "loopback has no card" } else { "no thread has a core of its own" });
        }
        // The parent: a virtio device's interrupts belong to its PCI device.
        let folders = ["device/msi_irqs", "device/../msi_irqs"];
        let read = |below| self.shown().and_then(|folder| self.files.names(&format!("{folder}/{below}")));
        let interrupts = match folders.into_iter().map(read).reduce(Result::or) {
            Some(Ok(numbers)) if !numbers.is_empty() => numbers,
            Some(Err(error)) => return check.unknown(error),
            _ => return check.unknown("the card has no message-signalled interrupts"),
        };
        let (mut on_pins, mut known) = (Vec::new(), 0);
        for number in &interrupts {
            let file = |name| self.files.cores(&format!("/proc/irq/{number}/{name}"));
            let Ok(cores) = file("effective_affinity_list").or_else(|_| file("smp_affinity_list")) else { continue };
            known += 1;
            if cores.intersects(pins) {
                on_pins.push(number.as_str());
            }
        }
        if known == 0 {
            return check.unknown(format!("cores of its {} interrupts cannot be read", interrupts.len()));
        }
        let read = format!("{} of {known} interrupts on the pools' cores {pins}", on_pins.len());
        check.ok_if(on_pins.is_empty(), read, || {
            let online = self.files.cores("/sys/devices/system/cpu/online").unwrap_or_default();
            let others = online.without(pins);
            if others.is_empty() {
                return "lscpu --extended=CPU,CORE,NODE    # then leave a core out of the pools".to_owned();
            }
            let numbers = on_pins.join(" ");
            format!("for i in {numbers}; do echo {others} > /proc/irq/$i/smp_affinity_list; done")
        })
    }

    fn settings(&self, nic: &NicFacts, lines: &[&FeedLine]) -> [Item; 4] {
        [self.ring(nic), self.coalescing(nic), self.offloads(nic), self.stamps(nic, lines)]
    }

    fn ring(&self, nic: &NicFacts) -> Item {
        let check = self.check("ring size");
        match &nic.ring {
            _ if self.is_loopback => check.ok("loopback has no card"),
            Ok(ring) => {
                let read = format!("{} of {} descriptors", ring.present, ring.max);
                let wanted = ring.max.min(RING_WANTED);
                check.ok_if(ring.present >= wanted, read, || {
                    format!("ethtool -G {} rx {wanted}{PAUSES_RECEPTION}", self.name)
                })
            }
            Err(error) => check.unknown(format!("the driver does not say: {error}")),
        }
    }

    fn coalescing(&self, nic: &NicFacts) -> Item {
        let check = self.check("coalescing");
        match &nic.coalescing {
            _ if self.is_loopback => check.ok("loopback has no card"),
            Ok(set) => {
                let read = format!("rx-usecs {}, adaptive {}", set.receive_us, on_off(set.is_adaptive));
                let is_off = set.receive_us == 0 && !set.is_adaptive;
                check.ok_if(is_off, read, || {
                    format!("ethtool -C {} adaptive-rx off rx-usecs 0{PAUSES_RECEPTION}", self.name)
                })
            }
            Err(error) => check.unknown(format!("the driver does not say: {error}")),
        }
    }

    fn offloads(&self, nic: &NicFacts) -> Item {
        let check = self.check("GRO and LRO");
        match (&nic.gro, &nic.lro) {
            _ if self.is_loopback => check.ok("loopback has no card"),
            (Ok(gro), Ok(lro)) => {
                let read = format!("GRO {}, LRO {}", on_off(*gro), on_off(*lro));
                check.ok_if(!gro && !lro, read, || format!("ethtool -K {} gro off lro off", self.name))
            }
            (Err(error), _) | (_, Err(error)) => check.unknown(format!("the driver does not say: {error}")),
        }
    }

    fn stamps(&self, nic: &NicFacts, lines: &[&FeedLine]) -> Item {
        let check = self.check("hardware stamps");
        let wanted = lines.iter().any(|line| line.wants_hardware_stamps);
        match &nic.stamps {
            Ok(support) if support.all_received => check.ok(match (wanted, support.clock) {
                (true, Some(clock)) => format!("of all packets, by /dev/ptp{clock}"),
                (true, None) => "of all packets".to_owned(),
                (false, _) => "available, not asked for (stamps = \"hardware\")".to_owned(),
            }),
            Ok(_) => check.ok_if(
                !wanted,
                if wanted { "asked for, but the card has none for all packets" } else { "none, and not asked for" },
                || format!("ethtool -T {}    # then set stamps = \"kernel\" for its lines", self.name),
            ),
            Err(error) => check.unknown(format!("the driver does not say: {error}")),
        }
    }

    /// All groups are joined while a gateway runs, and none without one.
    fn memberships(&self, joined: &Result<Joined, String>, lines: &[&FeedLine], is_gateway_running: bool) -> Item {
        let check = self.check("memberships");
        let joined = match joined {
            Ok(joined) => joined.get(self.name),
            Err(error) => return check.unknown(error),
        };
        let mut groups: Vec<Ipv4Addr> =
            lines.iter().map(|line| *line.group.ip()).filter(Ipv4Addr::is_multicast).collect();
        groups.sort_unstable();
        groups.dedup();
        let missing: Vec<_> =
            groups.iter().filter(|group| joined.is_none_or(|joined| !joined.groups.contains(group))).collect();
        if missing.len() == groups.len() && !is_gateway_running {
            return check.ok(format!("none of {} groups is joined: no gateway runs here", groups.len()));
        }
        let read = format!("{} of {} groups are joined", groups.len() - missing.len(), groups.len());
        check.ok_if(missing.is_empty(), read, || {
            let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
            format!("ip maddress show dev {} && systemctl restart mdgw    # missing: {}", self.name, names.join(", "))
        })
    }

    fn igmp_version(&self, joined: &Result<Joined, String>, lines: &[&FeedLine]) -> Item {
        let check = self.check("IGMP version");
        let forced = |scope: &str| self.files.number(&format!("/proc/sys/net/ipv4/conf/{scope}/force_igmp_version"));
        let [all, own] = match [forced("all"), forced(self.name)] {
            [Ok(all), Ok(own)] => [all, own],
            [Err(error), _] | [_, Err(error)] => return check.unknown(error),
        };
        let needs_three = lines.iter().any(|line| !line.sources.is_empty());
        let is_old = |version: i64| version == 1 || version == 2;
        if is_old(all) || is_old(own) {
            let read = format!(
                "forced to {}{}",
                if is_old(all) { all } else { own },
                if needs_three { "" } else { "; no line names senders" }
            );
            return check.ok_if(!needs_three, read, || {
                format!(
                    "sysctl -w net.ipv4.conf.all.force_igmp_version=0 net.ipv4.conf.{}.force_igmp_version=0",
                    self.name
                )
            });
        }
        // A querier of an older version makes the kernel speak that version.
        let querier =
            joined.as_ref().ok().and_then(|joined| joined.get(self.name)).map(|joined| joined.version.as_str());
        match querier {
            Some("V1" | "V2") if needs_three => check.warn(
                "the network's querier speaks an older version",
                [format!(
                    "sysctl -w net.ipv4.conf.{}.force_igmp_version=3    # and set version 3 at the switch",
                    self.name
                )],
            ),
            Some(version) => check.ok(format!("not forced; in use: {version}")),
            None => check.ok("not forced"),
        }
    }

    fn rp_filter(&self) -> Item {
        let check = self.check("rp_filter");
        let read = |scope: &str| self.files.number(&format!("/proc/sys/net/ipv4/conf/{scope}/rp_filter"));
        match [read("all"), read(self.name)] {
            // The kernel takes the larger value.
            [Ok(all), Ok(own)] => {
                let text = match all.max(own) {
                    0 => "off",
                    1 => "strict",
                    _ => "loose",
                };
                check.ok_if(all.max(own) != 1, text, || format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", self.name))
            }
            [Err(error), _] | [_, Err(error)] => check.unknown(error),
        }
    }
}

/// Many drivers take the card down for it.
const PAUSES_RECEPTION: &str = "    # reception may stop for a moment: not during a session";
/// Descriptors that a receive ring should have, where the card takes as many.
const RING_WANTED: u32 = 4_096;

fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// IGMP state by interface.
type Joined = BTreeMap<String, JoinedOn>;

#[derive(Debug, Default)]
struct JoinedOn {
    /// Version in use: `V3`.
    version: String,
    groups: Vec<Ipv4Addr>,
}

/// Reads `/proc/net/igmp`: a line for each interface, followed by one for each of its groups.
fn joined_groups(files: &Files) -> Result<Joined, String> {
    let text = files.text("/proc/net/igmp")?;
    let mut joined = Joined::new();
    let mut interface = String::new();
    for line in text.lines().skip(1) {
        let mut words = line.split_whitespace();
        if line.starts_with(char::is_whitespace) {
            // The group's bytes in memory, printed as a number of this host.
            let group = words.next().and_then(|digits| u32::from_str_radix(digits, 16).ok());
            let of_interface = joined.get_mut(&interface);
            if let (Some(group), Some(of_interface)) = (group, of_interface) {
                of_interface.groups.push(Ipv4Addr::from(group.to_ne_bytes()));
            }
        } else if let (Some(_index), Some(name)) = (words.next(), words.next()) {
            interface = name.trim_end_matches(':').to_owned();
            let version = words.last().filter(|word| word.starts_with('V')).unwrap_or_default().to_owned();
            joined.insert(interface.clone(), JoinedOn { version, groups: Vec::new() });
        }
    }
    Ok(joined)
}
