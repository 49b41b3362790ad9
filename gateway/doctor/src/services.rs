//! Disks, store, peers, voters, and the configuration itself.

use crate::{
    facts::{CheckResult, Disk, Endpoint, Facts, NoAnswer, Role},
    needs::Needs,
    report::{Check, Group, Item},
    text::mebibytes,
};

pub(crate) fn items(facts: &Facts, needs: Option<&Needs>) -> Vec<Item> {
    let Some(needs) = needs else {
        let names = [
            ("disk", DISK_WHY),
            ("store", STORE_WHY),
            ("peer", PEER_WHY),
            ("voter", VOTER_WHY),
            ("mdgw check", CHECK_WHY),
        ];
        return names
            .into_iter()
            .map(|(name, why)| check(name, why).unknown("depends on a configuration: mdgw doctor CONFIG"))
            .collect();
    };
    let mut items: Vec<_> = facts.disks.iter().map(disk).collect();
    items.extend(reachable(facts, Role::Store));
    items.extend(reachable(facts, Role::Peer));
    items.extend(reachable(facts, Role::Voter));
    items.extend(configuration(facts, &needs.config));
    items
}

const DISK_WHY: &str = "Without space the log moves to private memory, so readers and a restart lack it; latency logs, journals and audit stop.";
const STORE_WHY: &str = "Without a majority of its store's nodes no gateway can become leader; one that is down shows only when another one fails.";
const PEER_WHY: &str = "Without its peer this gateway has nobody to take over, and no source for missing messages.";
const VOTER_WHY: &str = "Without a majority of its voters no gateway can become leader; one that is silent shows only when its vote is needed.";
const CHECK_WHY: &str = "A gateway does not start with a fault; with a warning it runs worse than it could.";

fn check(name: &'static str, why: &'static str) -> Check {
    Check::new(Group::Services, name, why)
}

/// Free space where the gateway names no limit, bytes.
const FREE_BYTES_MIN: u64 = 1 << 30;

fn disk(disk: &Disk) -> Item {
    let path = disk.directory.path.display().to_string();
    let check = check("disk", DISK_WHY).of(path.clone());
    let needed = if disk.directory.bytes == 0 { FREE_BYTES_MIN } else { disk.directory.bytes };
    match &disk.free_bytes {
        Ok(free) => {
            let read = format!("{}: {} free, {} needed", disk.directory.holds, mebibytes(*free), mebibytes(needed));
            if *free >= needed {
                check.ok(read)
            } else {
                check.warn(read, [format!("df -h {path} && du -xh -d 2 {path} | sort -h | tail    # then make space")])
            }
        }
        Err(error) => check.unknown(error.clone()),
    }
}

fn reachable(facts: &Facts, role: Role) -> Vec<Item> {
    let (name, why) = match role {
        Role::Store | Role::StoreUser => ("store", STORE_WHY),
        Role::Peer => ("peer", PEER_WHY),
        Role::Voter => ("voter", VOTER_WHY),
    };
    let is_shown =
        |endpoint: &&Endpoint| endpoint.role == role || role == Role::Store && endpoint.role == Role::StoreUser;
    let endpoints: Vec<_> = facts.endpoints.iter().filter(is_shown).collect();
    if endpoints.is_empty() {
        return vec![check(name, why).ok("this configuration has none")];
    }
    let nodes = || endpoints.iter().filter(|endpoint| endpoint.role == role);
    let is_silent =
        |endpoint: &&&Endpoint| matches!(endpoint.answer, Err(NoAnswer::Failed(_) | NoAnswer::Wrong { .. }));
    let (silent, asked) = (nodes().filter(is_silent).count(), nodes().count());
    // This gateway is a voter too, and the number of all voters is odd.
    let has_majority = if role == Role::Voter { silent <= asked / 2 } else { 2 * silent < asked };
    let item = |endpoint: &&Endpoint| {
        let has_majority = has_majority && endpoint.role == role;
        let check = check(name, why).of(endpoint.address.clone());
        let (host, port) = endpoint.address.rsplit_once(':').unwrap_or((&endpoint.address, ""));
        match (&endpoint.answer, endpoint.role) {
            (Ok(answer), _) => check.ok(answer.clone()),
            (Err(NoAnswer::NotAsked(reason)), _) => check.unknown(format!("not asked: {reason}")),
            (Err(NoAnswer::Wrong { read, command }), Role::Store) if has_majority => {
                check.warn(read.clone(), [command.clone()])
            }
            (Err(NoAnswer::Wrong { read, command }), _) => check.fail(read.clone(), [command.clone()]),
            (Err(NoAnswer::Failed(error)), Role::Store | Role::StoreUser) => {
                let commands = [format!("nc -zv {host} {port}    # on this host, then on the store's")];
                if has_majority { check.warn(error.clone(), commands) } else { check.fail(error.clone(), commands) }
            }
            (Err(NoAnswer::Failed(error)), Role::Peer) => check
                .warn(error.clone(), [format!("nc -zv {host} {port}    # and on that host: systemctl status mdgw")]),
            (Err(NoAnswer::Failed(error)), Role::Voter) => {
                let commands = [
                    format!("systemctl status mdgw mdgw-witness    # on the voter's host, {host}"),
                    format!("tcpdump -ni any udp port {port}    # on both hosts: requests alone are under another key"),
                ];
                if has_majority { check.warn(error.clone(), commands) } else { check.fail(error.clone(), commands) }
            }
        }
    };
    endpoints.iter().map(item).collect()
}

/// One item for each kind of finding.
fn configuration(facts: &Facts, config: &str) -> Vec<Item> {
    let check = || check("mdgw check", CHECK_WHY);
    let command = || format!("mdgw check {config}");
    let Some(CheckResult { faults, warnings, not_permitted }) = &facts.check else {
        return vec![check().unknown("not run")];
    };
    let mut items = Vec::new();
    if !faults.is_empty() {
        items.push(check().fail(faults.join("; "), [command()]));
    }
    if !warnings.is_empty() {
        let noun = if warnings.len() == 1 { "warning" } else { "warnings" };
        items.push(check().warn(format!("{} {noun}: {}", warnings.len(), warnings.join("; ")), [command()]));
    }
    if !not_permitted.is_empty() {
        items.push(check().unknown(format!(
            "this user lacks the rights to find out: {}. Run {} as the gateway's user",
            not_permitted.join("; "),
            command()
        )));
    }
    if items.is_empty() {
        items.push(check().ok("no fault, no warning"));
    }
    items
}
