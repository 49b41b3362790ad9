//! `mdgw ha drill`: hands leadership to another gateway and takes it back.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::bail;
use mdgw_status::control::{ControlError, Request, send_request};
use serde_json::{Value, json};

use super::control::{GroupArgs, leader};
use crate::cli::{Outcome, print, refused, warn};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    group_args: GroupArgs,
    /// Node number of the temporary leader. Default: the fittest candidate.
    #[arg(long, value_name = "NODE")]
    to: Option<u8>,
    /// Seconds that the temporary leader leads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    hold_s: u64,
}

/// Hands leadership over and takes it back. Each duration is measured at the gateway of the control socket.
pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let GroupArgs { socket, group } = &args.group_args;
    let mut results = Vec::new();
    let times = DrillTiming { hold: Duration::from_secs(args.hold_s), retry_timeout: RETRY_TIMEOUT };
    if let Err(error) = hand_over_and_take_back(&socket.socket, *group, args.to, times, &mut results) {
        let failed = format!("drill: {} of 2 hand-overs completed, then: {error}", results.len());
        if matches!(error, ControlError::Refused(_)) {
            return refused(socket.json, &failed, &failed);
        }
        bail!(failed);
    }
    let mut text = String::new();
    if socket.json {
        let results: Vec<Value> = results
            .iter()
            .map(|HandOverResult { answer, took_us }| json!({ "to": answer, "took_us": took_us }))
            .collect();
        writeln!(text, "{}", json!({ "hand_overs": results }))?;
    } else {
        for HandOverResult { answer, took_us } in &results {
            let (ms, us) = (took_us / 1_000, took_us % 1_000);
            writeln!(text, "to {:<24} {ms:>5}.{us:03} ms", leader(&answer["leader"]))?;
        }
    }
    print(&text)?;
    Ok(Outcome::Done)
}

/// A completed hand-over.
#[derive(Debug)]
struct HandOverResult {
    answer: Value,
    /// Time from the granted request to its answer, us.
    took_us: u64,
}

/// How long the other gateway leads, and how long a refused hand-over is retried.
#[derive(Clone, Copy, Debug)]
struct DrillTiming {
    hold: Duration,
    retry_timeout: Duration,
}

/// The gateway at the socket must lead, and leads again at the end: it requests leadership back over the pair link.
/// `results` holds every completed hand-over, also if a later step fails.
fn hand_over_and_take_back(
    socket: &Path,
    group: Option<u16>,
    to: Option<u8>,
    times: DrillTiming,
    results: &mut Vec<HandOverResult>,
) -> Result<(), ControlError> {
    let group = led_group(socket, group)?;
    results.push(hand_over(socket, group, to, times.retry_timeout)?);
    std::thread::sleep(times.hold);
    let mut answer = send_request(socket, &Request::TakeBack { group: Some(group) })?;
    let took_us = answer.as_object_mut().and_then(|fields| fields.remove("took_us"));
    let took_us = took_us.and_then(|took| took.as_u64()).unwrap_or_default();
    results.push(HandOverResult { answer, took_us });
    Ok(())
}

/// The group of the drill, which the gateway at the socket must lead. Without `group`: the only group.
fn led_group(socket: &Path, group: Option<u16>) -> Result<u16, ControlError> {
    let status = send_request(socket, &Request::Status {})?;
    let refused = |why: String| Err(ControlError::Refused(why));
    let groups = status["groups"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let found = match group {
        Some(group) => groups.iter().find(|known| known["group"] == group),
        None => groups.first().filter(|_| groups.len() == 1),
    };
    let Some(found) = found else {
        let known: Vec<String> = groups.iter().map(|known| known["group"].to_string()).collect();
        return match (known.is_empty(), group) {
            (true, _) => refused("this gateway runs standalone: no election is configured".to_owned()),
            (false, Some(_)) => refused(format!("no such group; groups: {}", known.join(", "))),
            (false, None) => refused(format!("--group is required; groups: {}", known.join(", "))),
        };
    };
    let Some(group) = found["group"].as_u64().and_then(|group| group.try_into().ok()) else {
        return refused(format!("{}: the answer is not the status of a gateway", socket.display()));
    };
    if found["role"] != "leader" {
        let (node, leader) = (&status["node"], leader(&found["leader"]));
        return refused(format!("node {node} does not lead group {group}; run the drill on its leader, {leader}"));
    }
    Ok(group)
}

/// Retries a refused hand-over until `retry_timeout`: the target may not have caught up yet.
fn hand_over(
    socket: &Path,
    group: u16,
    to: Option<u8>,
    retry_timeout: Duration,
) -> Result<HandOverResult, ControlError> {
    let request = Request::HandOver { group: Some(group), target: to };
    let started = Instant::now();
    let mut is_warned = false;
    loop {
        let sent_at = Instant::now();
        match send_request(socket, &request) {
            Ok(answer) => {
                return Ok(HandOverResult {
                    answer,
                    took_us: u64::try_from(sent_at.elapsed().as_micros()).unwrap_or(u64::MAX),
                });
            }
            Err(ControlError::Refused(reason)) => {
                let limit_s = retry_timeout.as_secs();
                if started.elapsed() >= retry_timeout {
                    let why = format!("group {group}: no hand-over within {limit_s} s: {reason}");
                    return Err(ControlError::Refused(why));
                }
                if !std::mem::replace(&mut is_warned, true) {
                    warn(&format!("drill: {reason}; retrying for up to {limit_s} s"));
                }
            }
            Err(error) => return Err(error),
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// How long a refused hand-over is retried: longer than a gateway needs to become eligible again after a hand-over.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use mdgw_status::control::{ControlServer, Response};

    use super::*;

    /// Gateways 1, 2 and 3 with one group, 7, seen from node 1: its leader, how often the target still
    /// refuses, and the requests received.
    #[derive(Debug)]
    struct Group {
        leader: u8,
        refusals: u32,
        requests: Vec<Request>,
    }

    fn member(node: u8) -> Value {
        json!({ "name": format!("gw{node}"), "node": node })
    }

    fn answer(group: &Mutex<Group>, request: &Request) -> Response {
        let mut group = group.lock().unwrap();
        match request {
            Request::Status {} => {
                let role = if group.leader == 1 { "leader" } else { "candidate" };
                let of_group = json!({ "group": 7, "role": role, "leader": member(group.leader) });
                Response::Ok(json!({ "node": 1, "groups": [of_group] }))
            }
            _ if group.refusals > 0 => {
                group.refusals -= 1;
                Response::Refused("leadership was not handed over: it is not ready".to_owned())
            }
            request => {
                group.requests.push(request.clone());
                group.leader = match request {
                    // Without a target: node 3 is the fittest.
                    Request::HandOver { target, .. } => target.unwrap_or(3),
                    _ => 1,
                };
                Response::Ok(json!({ "group": 7, "leader": member(group.leader), "took_us": 1_234 }))
            }
        }
    }

    struct Gateway {
        group: Arc<Mutex<Group>>,
        _server: ControlServer,
        folder: tempfile::TempDir,
    }

    impl Gateway {
        fn start(leader: u8, refusals: u32) -> Self {
            let group = Arc::new(Mutex::new(Group { leader, refusals, requests: Vec::new() }));
            let folder = tempfile::tempdir().unwrap();
            let of_server = Arc::clone(&group);
            let path = folder.path().join("control");
            let server = ControlServer::start(&path, move |request| answer(&of_server, &request)).unwrap();
            Self { group, _server: server, folder }
        }

        /// The successive leaders; or, after a failure, the number of completed hand-overs and the error.
        fn drill(
            &self,
            group: Option<u16>,
            to: Option<u8>,
            retry_timeout: Duration,
        ) -> Result<Vec<u64>, (usize, String)> {
            let mut results = Vec::new();
            let times = DrillTiming { hold: Duration::ZERO, retry_timeout };
            let done = hand_over_and_take_back(&self.folder.path().join("control"), group, to, times, &mut results);
            let leaders = results.iter().filter_map(|way| way.answer["leader"]["node"].as_u64()).collect();
            done.map(|()| leaders).map_err(|error| (results.len(), error.to_string()))
        }
    }

    #[test]
    fn a_drill_waits_for_the_target_hands_over_and_takes_leadership_back() {
        let gateway = Gateway::start(1, 3);
        assert_eq!(gateway.drill(None, Some(2), RETRY_TIMEOUT), Ok(vec![2, 1]));
        let [there, back] =
            [Request::HandOver { group: Some(7), target: Some(2) }, Request::TakeBack { group: Some(7) }];
        assert_eq!(gateway.group.lock().unwrap().requests, [there, back]);
        assert_eq!(gateway.drill(Some(7), None, RETRY_TIMEOUT), Ok(vec![3, 1]), "the fittest");
    }

    #[test]
    fn a_failed_drill_reports_the_reason() {
        let (done, why) = Gateway::start(1, u32::MAX).drill(Some(7), None, Duration::ZERO).unwrap_err();
        assert_eq!(done, 0);
        assert!(why.starts_with("group 7: no hand-over within 0 s: "), "{why}");
        assert!(why.ends_with("it is not ready"), "{why}");
        let failed = |leader, group| Gateway::start(leader, 0).drill(group, None, RETRY_TIMEOUT).unwrap_err().1;
        assert_eq!(failed(3, None), "node 1 does not lead group 7; run the drill on its leader, gw3 (node 3)");
        assert_eq!(failed(1, Some(8)), "no such group; groups: 7");
    }
}
