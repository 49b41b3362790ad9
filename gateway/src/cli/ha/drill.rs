//! `mdgw ha drill`: leadership goes to the other gateway and back.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::bail;
use serde_json::{Value, json};

use super::control::{GroupArgs, leader};
use crate::{
    cli::{Outcome, print, warn},
    control::{ControlError, Request, ask},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    of: GroupArgs,
    /// The other gateway's control socket.
    #[arg(long, value_name = "SOCKET")]
    peer: PathBuf,
}

/// There and back: each way as the gateway that leads sees it.
pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let GroupArgs { socket, group } = &args.of;
    let mut ways = Vec::new();
    if let Err(error) = there_and_back([&socket.socket, &args.peer], *group, PATIENCE, &mut ways) {
        let failed = format!("drill: {} of 2 hand-overs done, then {error}", ways.len());
        if matches!(error, ControlError::Refused(_)) {
            warn(&failed);
            return Ok(Outcome::No);
        }
        bail!(failed);
    }
    let mut text = String::new();
    if socket.json {
        let ways: Vec<Value> = ways
            .iter()
            .map(|Way { answer, took }| {
                json!({ "to": answer, "took_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX) })
            })
            .collect();
        writeln!(text, "{}", json!({ "hand_overs": ways }))?;
    } else {
        for Way { answer, took } in &ways {
            writeln!(text, "to {:<24} {:>9.3} ms", leader(&answer["leader"]), took.as_secs_f64() * 1e3)?;
        }
    }
    print(&text)?;
    Ok(Outcome::Done)
}

/// A hand-over that was done.
#[derive(Debug)]
struct Way {
    answer: Value,
    took: Duration,
}

/// A gateway that takes part.
#[derive(Debug)]
struct End<'a> {
    socket: &'a Path,
    node: u8,
    group: u16,
    /// Who leads that group, and whether it is this gateway.
    leader: String,
    leads: bool,
}

/// The gateway at the first socket leads, and leads again at the end. Among more than two each way has to be told where
/// it goes. What was done is in `ways`, whatever comes of the rest.
fn there_and_back(
    sockets: [&Path; 2],
    group: Option<u16>,
    patience: Duration,
    ways: &mut Vec<Way>,
) -> Result<(), ControlError> {
    let [first, second] = sockets;
    let (here, there) = (End::find(first, group)?, End::find(second, group)?);
    let refused = |why| Err(ControlError::Refused(why));
    if here.node == there.node {
        return refused(format!("{} and {} are both of node {}", first.display(), second.display(), here.node));
    }
    if here.group != there.group {
        return refused(format!(
            "node {} has group {}, node {} group {}",
            here.node, here.group, there.node, there.group
        ));
    }
    if !here.leads {
        let End { node, group, leader, .. } = here;
        return refused(format!("node {node} does not lead group {group}, which is led by {leader}: begin there"));
    }
    for (from, to) in [(&here, &there), (&there, &here)] {
        ways.push(from.hand_over_to(to.node, patience)?);
    }
    Ok(())
}

impl<'a> End<'a> {
    /// Asks who is there, and who leads that group; where none is named, the only one.
    fn find(socket: &'a Path, group: Option<u16>) -> Result<Self, ControlError> {
        let status = ask(socket, &Request::Status {})?;
        let refused = |why: String| Err(ControlError::Refused(format!("{}: {why}", socket.display())));
        let groups = status["groups"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let found = match group {
            Some(group) => groups.iter().find(|known| known["group"] == group),
            None => groups.first().filter(|_| groups.len() == 1),
        };
        let Some(found) = found else {
            let known: Vec<String> = groups.iter().map(|known| known["group"].to_string()).collect();
            return match (known.is_empty(), group) {
                (true, _) => refused("it stands alone: there is no election".to_owned()),
                (false, Some(_)) => refused(format!("no such group: there are {}", known.join(", "))),
                (false, None) => refused(format!("which group? there are {}", known.join(", "))),
            };
        };
        let node = status["node"].as_u64().and_then(|node| node.try_into().ok());
        let group = found["group"].as_u64().and_then(|group| group.try_into().ok());
        let (Some(node), Some(group)) = (node, group) else {
            return refused("its status is not a gateway's".to_owned());
        };
        Ok(Self { socket, node, group, leader: leader(&found["leader"]), leads: found["role"] == "leader" })
    }

    /// Whoever has just come to lead, or to stand again, has to be heard first: what is refused is tried again for a while.
    fn hand_over_to(&self, to: u8, patience: Duration) -> Result<Way, ControlError> {
        let Self { socket, node, group, .. } = self;
        let request = Request::HandOver { group: Some(*group), target: Some(to) };
        let begun = Instant::now();
        let mut is_told = false;
        loop {
            let asked = Instant::now();
            match ask(socket, &request) {
                Ok(answer) if answer["leader"]["node"] == to => return Ok(Way { answer, took: asked.elapsed() }),
                Ok(answer) => {
                    let leader = leader(&answer["leader"]);
                    let why = format!("node {node} was to hand group {group} over to node {to}, and {leader} leads");
                    return Err(ControlError::Refused(why));
                }
                Err(ControlError::Refused(reason)) if begun.elapsed() < patience => {
                    if !std::mem::replace(&mut is_told, true) {
                        let limit_s = patience.as_secs();
                        warn(&format!("drill: node {node} to node {to}: {reason}; tried again for up to {limit_s} s"));
                    }
                }
                Err(ControlError::Refused(reason)) => {
                    let limit_s = patience.as_secs();
                    let why = format!(
                        "node {node} did not hand group {group} over to node {to} within {limit_s} s: {reason}"
                    );
                    return Err(ControlError::Refused(why));
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Longer than a gateway takes that has handed over to stand again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::control::{Answer, ControlServer};

    /// Gateways 1, 2 and 3 with one group, 7: who leads it, how often the next one is not ready yet, and who was asked for.
    #[derive(Debug)]
    struct Group {
        leader: u8,
        refusals: u32,
        targets: Vec<Option<u8>>,
    }

    fn member(node: u8) -> Value {
        json!({ "name": format!("gw{node}"), "node": node })
    }

    fn answer(group: &Mutex<Group>, node: u8, request: &Request) -> Answer {
        let mut group = group.lock().unwrap();
        match request {
            Request::Status {} => {
                let role = if group.leader == node { "leader" } else { "candidate" };
                let of_group = json!({ "group": 7, "role": role, "leader": member(group.leader) });
                Answer::Ok(json!({ "node": node, "groups": [of_group] }))
            }
            Request::HandOver { target, .. } if group.leader == node && group.refusals == 0 => {
                group.targets.push(*target);
                // Nobody is named: the fittest is the third.
                group.leader = target.unwrap_or(3);
                Answer::Ok(json!({ "group": 7, "leader": member(group.leader) }))
            }
            _ => {
                group.refusals = group.refusals.saturating_sub(1);
                Answer::Refused("leadership was not handed over: it is not ready".to_owned())
            }
        }
    }

    struct Gateways {
        group: Arc<Mutex<Group>>,
        _servers: [ControlServer; 2],
        folder: tempfile::TempDir,
    }

    impl Gateways {
        fn start(leader: u8, refusals: u32) -> Self {
            let group = Arc::new(Mutex::new(Group { leader, refusals, targets: Vec::new() }));
            let folder = tempfile::tempdir().unwrap();
            let servers = [1, 2].map(|node| {
                let group = Arc::clone(&group);
                let path = folder.path().join(node.to_string());
                ControlServer::start(&path, move |request| answer(&group, node, &request)).unwrap()
            });
            Self { group, _servers: servers, folder }
        }

        /// The leaders one after the other, or what failed behind how many of them.
        fn drill(&self, nodes: [u8; 2], group: Option<u16>, patience: Duration) -> Result<Vec<u64>, (usize, String)> {
            let [first, second] = nodes.map(|node| self.folder.path().join(node.to_string()));
            let mut ways = Vec::new();
            let done = there_and_back([&first, &second], group, patience, &mut ways);
            let leaders = ways.iter().filter_map(|way| way.answer["leader"]["node"].as_u64()).collect();
            done.map(|()| leaders).map_err(|error| (ways.len(), error.to_string()))
        }
    }

    #[test]
    fn each_way_names_where_it_goes_and_waits_until_the_other_one_is_ready() {
        let gateways = Gateways::start(1, 3);
        assert_eq!(gateways.drill([1, 2], None, PATIENCE), Ok(vec![2, 1]));
        assert_eq!(gateways.group.lock().unwrap().targets, [Some(2), Some(1)]);
    }

    #[test]
    fn what_failed_is_said_with_both_ends() {
        let gateways = Gateways::start(1, u32::MAX);
        let (done, why) = gateways.drill([1, 2], Some(7), Duration::ZERO).unwrap_err();
        assert_eq!(done, 0);
        assert!(why.starts_with("node 1 did not hand group 7 over to node 2 within 0 s: "), "{why}");
        assert!(why.ends_with("it is not ready"), "{why}");
        let failed = |leader, nodes, group| Gateways::start(leader, 0).drill(nodes, group, PATIENCE).unwrap_err().1;
        assert_eq!(failed(3, [1, 2], None), "node 1 does not lead group 7, which is led by gw3 (node 3): begin there");
        assert!(failed(1, [1, 1], None).ends_with("are both of node 1"));
        assert!(failed(1, [1, 2], Some(8)).ends_with("no such group: there are 7"));
    }
}
