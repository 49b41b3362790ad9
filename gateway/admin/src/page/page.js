"use strict";
// Asks the gateway for status.json once a second and shows the answer. All computing is done here: rates, sums, what is not well.
// Text of the gateway goes into the page as text (textContent, attributes), never as HTML; the policy of the page refuses the rest.

const FORMAT = 1;
const POLL_MS = 1000;
const ANSWER_MS_MAX = 4000;
const STALE_MS = 3500;
// As the shipped alert rules: a counted alarm is recent for 15 minutes.
const RECENT_S = 15 * 60;
const STAGES = {
  wire_to_user: ["wire to user", "receive stamp to memory"],
  claim_wait: ["claim wait", "until a thread begins with the channel"],
  arbitrate: ["arbitrate", "lines become one sequence"],
  decode_and_book: ["decode and book", "messages become records"],
  publish: ["publish", "records reach the kernel"],
  wire_to_wire: ["wire to wire", "the whole data path"],
};
const SEVERITY = { failed: 6, stale: 5, gap: 4, recovering: 3, waiting: 2, live: 0, ended: 0 };
const STATE_CLASS = { live: "good", ended: "", waiting: "warn", recovering: "warn", gap: "warn", stale: "bad", failed: "bad" };
const WHOLE = "wire_to_wire";

let last = null; // the newest answer
let before = null; // the answer before it, of the same start and with an older clock
let receivedAt = null; // performance.now() of the newest answer
let receivedTime = null; // its wall time at the gateway, ms
let problem = "";
let historyOf = null; // number of audit lines that the shown history was read at
let filter = "all";
let search = "";
const rows = new Map(); // channel id to its table rows
const alarmItems = new Map(); // alarm to its list item
const lastingSince = new Map(); // alarm that lasts to the gateway's time of the first answer that showed it, ns

// ---- helpers ----

const $ = id => document.getElementById(id);

function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

// Replaces the children unless nothing has changed, so that a selection and a scroll position survive.
const signatures = new WeakMap();
function replace(node, content, make) {
  const signature = JSON.stringify(content);
  if (signatures.get(node) === signature) return;
  signatures.set(node, signature);
  node.replaceChildren(...make());
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = value => whole.format(value || 0);
const plural = (value, one, many) => `${count(value)} ${value === 1 ? one : many}`;

function rateText(value) {
  return value > 0 && value < 9.95 ? value.toFixed(1) : count(value);
}

function latency(ns) {
  if (ns === null || ns === undefined) return "–";
  for (const [limit, unit] of [[1e3, "ns"], [1e6, "µs"], [1e9, "ms"], [Infinity, "s"]]) {
    if (ns < limit) {
      const value = ns / (limit === Infinity ? 1e9 : limit / 1e3);
      return `${value >= 100 || unit === "ns" ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ${unit}`;
    }
  }
  return "–";
}

function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 2 * 3600) return `${Math.round(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

function timeText(ns, fraction) {
  const iso = new Date(ns / 1e6).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, fraction ? 23 : 19)} UTC`;
}

const list = value => (Array.isArray(value) ? value : []);
const groupsOf = answer => list(answer.status.groups);
const gatewayText = member => (member ? `${member.name} (node ${member.node})` : "none");

// Growth of a count per second between the two answers; null without two answers.
function perSecond(now, then) {
  const seconds = before ? (last.snapshot.clock_ns - before.snapshot.clock_ns) / 1e9 : 0;
  return seconds > 0 && then !== undefined ? Math.max(0, now - then) / seconds : null;
}

// ---- conditions ----

const isSuspect = channel => channel.input_incomplete === true;
// Nobody updates the state and the counts of a channel while a thread of its pool is stuck.
let stuckPools = new Set();
const isOld = channel => stuckPools.has(channel.pool);
const isUnwell = channel => (SEVERITY[channel.state] ?? 1) > 0 || channel.silent_lines.length > 0 || channel.failed !== null || isSuspect(channel) || isOld(channel);
const hasGaps = channel => channel.gaps > 0;
// Why this gateway cannot know who leads a group, or null: then no gateway leads a group without a leader.
const unknownLeader = group => (group.leader ? null : group.leader_unknown || null);
const isConnected = group => group.connection === "connected" || group.connection === "reconnected";

// What lasts now: an alarm, the metric of its rule in ops/prometheus if that rule is over a state, and what of an answer is in that state.
// A test compares the list with the rules.
const CONDITIONS = [
  ["line-silent", "mdgw_channel_silent_lines_mask", answer => channelsWith(answer, channel => channel.silent_lines.length && channel.state !== "stale", channel => `: ${channel.silent_lines.join(", ")}`)],
  ["line-silent", "mdgw_channel_state", answer => channelsWith(answer, channel => channel.state === "stale", () => ": all lines")],
  ["late-start", "mdgw_channel_input_incomplete", answer => channelsWith(answer, channel => isSuspect(channel) && channel.late_starts > 0)],
  ["channel-failed", "mdgw_channel_state", answer => channelsWith(answer, channel => channel.state === "failed")],
  ["output-failing", "mdgw_group_fitness_reduced", answer => groupsWith(answer, group => group.details && group.details.fitness === "output-not-received")],
  ["audit-failing", "", answer => (before && answer.audit_failures > before.audit_failures ? [`${plural(answer.audit_failures, "attempt", "attempts")} failed`] : [])],
  ["pair-link-down", "mdgw_pair_link_up", answer => list(answer.links).filter(link => !link.is_up).map(link => `node ${link.node}`)],
  ["no-sentinel", "mdgw_sentinel_lost", answer => (answer.sentinel_lost ? ["until the gateway's next start"] : [])],
  ["kill-refused", "mdgw_sentinel_kill_refused", answer => (answer.sentinel_kill_refused ? ["until the gateway's next start"] : [])],
  ["store-unreachable", "mdgw_group_connected", answer => groupsWith(answer, group => !isConnected(group))],
  ["voter-silent", "mdgw_group_voter_up", answer => groupsOf(answer).flatMap(group => list(group.voters)
    .filter(voter => voter.answers === false && voter.node !== answer.gateway.node).map(voter => `group ${group.group}: ${voter.name}`))],
  ["not-eligible", "mdgw_group_obstacle", answer => groupsWith(answer, group => group.ineligible_lasting)],
  ["not-eligible", "mdgw_group_leader", answer => groupsWith(answer, group => !group.leader && !unknownLeader(group), () => ": no leader is known here")],
  ["election-thread-stall", "mdgw_group_election_stalled", answer => groupsWith(answer, group => group.election_stalled)],
  ["pool-thread-stall", "mdgw_stalled_pool_threads", answer => list(answer.stalled_pool_threads)],
  ["main-thread-stall", "mdgw_main_thread_stalled", answer => (isMainStuck(answer) ? [`for ${span(answer.main_thread_stuck_ms / 1e3)}`] : [])],
];

function poolsWithStuckThreads(answer) {
  const stuck = new Set(list(answer.stalled_pool_threads));
  return new Set(answer.snapshot.pools.filter(pool => pool.threads.some(thread => stuck.has(thread.name))).map(pool => pool.name));
}

function isMainStuck(answer) {
  return typeof answer.main_thread_stuck_ms === "number";
}

function channelsWith(answer, isSo, more = () => "") {
  return answer.snapshot.channels.filter(isSo).map(channel => channel.name + more(channel));
}

function groupsWith(answer, isSo, more = () => "") {
  return groupsOf(answer).filter(isSo).map(group => `group ${group.group}${more(group)}`);
}

// What lasts now, by alarm.
function lastingAlarms(answer) {
  const lasting = new Map();
  for (const [alarm, , of] of CONDITIONS) {
    const found = of(answer);
    if (found.length) lasting.set(alarm, [...(lasting.get(alarm) || []), ...found]);
  }
  return lasting;
}

// ---- sections ----

function showHead(answer) {
  const { gateway } = answer;
  const groups = groupsOf(answer);
  const leads = groups.filter(group => group.has_leadership).length;
  const blocked = groups.some(group => group.ineligible_lasting);
  const stalled = groups.some(group => group.election_stalled);
  let [role, className] = ["publishes alone", "good"];
  if (!groups.length && stuckPools.size) [role, className] = ["pool thread stuck", "bad"];
  if (groups.length) {
    if (leads === groups.length) [role, className] = ["leads", "good"];
    else if (leads) [role, className] = [`leads ${leads} of ${groups.length} groups`, "good"];
    else if (stalled) [role, className] = ["election thread stuck", "bad"];
    else if (stuckPools.size) [role, className] = ["pool thread stuck", "bad"];
    else if (blocked) [role, className] = ["not eligible", "bad"];
    else if (groups.every(group => group.role === "candidate")) [role, className] = ["standby", ""];
    else [role, className] = ["joining", "warn"];
    if (leads && (blocked || stalled || stuckPools.size)) className = "warn";
  }
  setText($("name"), gateway.name || `gateway ${gateway.node}`);
  setText($("role"), role);
  setClass($("role"), `pill ${className}`);
  const since = (answer.snapshot.time_ns - gateway.started_ns) / 1e9;
  setText($("identity"), `node ${gateway.node} · mdgw ${gateway.version}${gateway.commit ? ` (${gateway.commit})` : ""}${gateway.epoch_count ? ` · epoch ${count(gateway.epoch_count)}` : ""} · running for ${span(since)}`);
  $("stuck").hidden = !isMainStuck(answer);
  if (isMainStuck(answer)) {
    setText($("stuck"), `The main thread of this gateway is stuck for ${span(answer.main_thread_stuck_ms / 1e3)}: nobody watches its other threads, alarms and roles below may be old, and the watchdog is not fed.`);
  }
  document.title = `${gateway.name || `gateway ${gateway.node}`}: ${role}`;
}

function showSummary(answer, lasting) {
  const { channels } = answer.snapshot;
  const groups = groupsOf(answer);
  const unwell = channels.filter(isUnwell).length;
  const suspect = channels.filter(isSuspect).length;
  const lost = channels.reduce((sum, channel) => sum + channel.gap_messages, 0);
  const gaps = channels.reduce((sum, channel) => sum + channel.gaps, 0);
  const rate = channels.reduce((sum, channel) => sum + (rateOf(channel) || 0), 0);
  const worst = worstStage(channels, WHOLE);
  const recent = answer.alarms.filter(alarm => isRecent(answer, alarm) || lasting.has(alarm.alarm)).length;
  const leaders = new Map(groups.filter(group => group.leader).map(group => [group.leader.node, group.leader]));
  const [leader] = leaders.values();
  const isLed = groups.every(group => group.leader);
  let leadership = ["this gateway", "", "leads: no election is configured", ""];
  const unled = groups.filter(group => !group.leader);
  if (unled.length && unled.every(unknownLeader)) leadership = ["unknown", "", `who leads ${groups.length === 1 ? "the group" : "at least one group"}: ${unknownLeader(unled[0])}`, "warn-text"];
  else if (groups.length && !isLed) leadership = ["nobody", "", `leads ${groups.length === 1 ? "the group" : "at least one group"}`, "bad-text"];
  else if (leaders.size > 1) leadership = [count(leaders.size), "gateways", "lead, each its groups", ""];
  else if (leader) leadership = [leader.name, `node ${leader.node}`, groups.length === 1 ? "leads" : `leads all ${groups.length} groups`, ""];
  const items = [
    leadership,
    [recent ? count(recent) : "no", recent === 1 || !recent ? "alarm" : "alarms", "now or in the last 15\u00a0min", recent ? "bad-text" : "good-text"],
    [`${channels.length - unwell} of ${channels.length}`, "", (channels.length === 1 ? "channel is well" : "channels are well") + (suspect ? `; books suspect: ${count(suspect)}` : ""), unwell ? "warn-text" : "good-text"],
    [before ? rateText(rate) : "–", "/s", "messages, all channels together", ""],
    [count(lost), lost === 1 ? "message" : "messages", `lost in ${plural(gaps, "gap", "gaps")} since the start`, lost ? "warn-text" : ""],
    [...(worst ? latency(worst.stage.p99_ns).split(" ") : ["–", ""]), worst ? `p99 wire to wire${channels.length > 1 ? `, worst channel: ${worst.channel.name}` : ""}` : "p99 wire to wire: no values", ""],
  ];
  const stuck = list(answer.stalled_pool_threads);
  if (stuck.length) items.push([count(stuck.length), stuck.length === 1 ? "thread" : "threads", `of a pool stuck: ${stuck.slice(0, 4).join(", ")}`, "bad-text"]);
  const dropped = answer.snapshot.kernel_drops;
  if (dropped) items.push([count(dropped), dropped === 1 ? "datagram" : "datagrams", "dropped by the kernel since the start", "warn-text"]);
  replace($("summary"), items, () => items.map(([value, unit, label, className]) => el("li", "", el("b", className, value, el("small", "", unit && ` ${unit}`)), el("span", "", label))));
}

const isRecent = (answer, alarm) => alarm.count > 0 && Math.abs(answer.snapshot.time_ns - alarm.last_ns) / 1e9 < RECENT_S;

function showAlarms(answer, lasting) {
  const shown = answer.alarms.filter(alarm => alarm.count > 0 || lasting.has(alarm.alarm));
  const rank = alarm => (lasting.has(alarm.alarm) ? 2 : isRecent(answer, alarm) ? 1 : 0);
  shown.sort((one, other) => rank(other) - rank(one) || other.last_ns - one.last_ns);
  $("no-alarms").hidden = shown.length > 0;
  for (const alarm of shown) {
    const name = alarm.alarm;
    if (!alarmItems.has(name)) alarmItems.set(name, alarmItem(name));
    const item = alarmItems.get(name);
    const what = lasting.get(name);
    const more = what && what.length > 4 ? ` and ${what.length - 4} more` : "";
    setText(item.about, alarm.about + (what ? `: ${what.slice(0, 4).join("; ")}${more}` : ""));
    // The alert rules wait before they fire: at a takeover some conditions last for a moment.
    const seen = what ? `seen for ${span((answer.snapshot.time_ns - lastingSince.get(name)) / 1e9)}` : "";
    const raised = alarm.count ? `${plural(alarm.count, "time", "times")}, last ${span((answer.snapshot.time_ns - alarm.last_ns) / 1e9)} ago` : "";
    const times = [seen, raised].filter(text => text).join("; ");
    setText(item.pill, what ? "now" : rank(alarm) ? "recent" : "earlier");
    setClass(item.pill, `pill ${what ? "bad" : rank(alarm) ? "warn" : ""}`);
    setText(item.times, times);
  }
  for (const [name, item] of alarmItems) if (!shown.some(alarm => alarm.alarm === name)) { item.node.remove(); alarmItems.delete(name); }
  const order = shown.map(alarm => alarm.alarm);
  const present = [...$("alarms").children].map(node => node.dataset.alarm);
  if (order.join() !== present.join()) $("alarms").append(...order.map(name => alarmItems.get(name).node));
}

function alarmItem(name) {
  const about = el("span", "about");
  const pill = el("span", "pill");
  const times = el("span", "times quiet");
  const runbook = el("div", "runbook", "reading the runbook …");
  const path = `runbooks/${encodeURIComponent(name)}.md`;
  const file = el("a", "", `ops/${path}`);
  file.setAttribute("href", path);
  const details = el("details", "", el("summary", "", el("span", "name", name), about, pill, times),
    runbook, el("p", "quiet file", "Runbook: ", file));
  details.addEventListener("toggle", async () => {
    if (!details.open || runbook.dataset.read) return;
    try {
      runbook.textContent = await fetchText(path);
      runbook.dataset.read = "yes";
    } catch (error) {
      runbook.textContent = `The gateway did not send the runbook: ${error.message}`;
    }
  });
  const node = el("li", "", details);
  node.dataset.alarm = name;
  return { node, about, pill, times };
}

function showPair(answer) {
  const groups = groupsOf(answer);
  const content = [groups, answer.links, answer.gateway];
  replace($("pair"), content, () => {
    if (!groups.length) return [el("p", "quiet", "No election is configured: this gateway publishes alone.")];
    const cards = groups.map(group => groupCard(answer, group));
    return [gatewaysCard(answer, groups), ...cards];
  });
}

function gatewaysCard(answer, groups) {
  const names = new Map();
  for (const group of groups) for (const { node, name } of list(group.participants)) names.set(node, name);
  names.set(answer.gateway.node, answer.gateway.name);
  const leads = node => groups.filter(group => group.leader && group.leader.node === node).map(group => group.group);
  const items = [...names].sort((one, other) => one[0] - other[0]).map(([node, name]) => {
    const led = leads(node);
    const link = list(answer.links).find(found => found.node === node);
    const state = el("span", "");
    if (led.length) state.append(el("span", "pill good", `leads group ${led.join(", ")}`), " ");
    if (node === answer.gateway.node) state.append(el("span", "pill", "this gateway"));
    else if (link) state.append(el("span", link.is_up ? "pill good" : "pill bad", link.is_up ? "pair link up" : "pair link down"));
    return el("li", "", el("span", "", `${name} (node ${node})`), state);
  });
  const voters = new Map();
  for (const group of groups) for (const voter of list(group.voters)) if (!names.has(voter.node)) voters.set(voter.node, voter);
  for (const voter of voters.values()) {
    const age = voter.answered_ms_ago;
    const [text, className] = voter.answers === null ? ["unknown: the election thread here is stuck", "warn"]
      : voter.answers ? ["answers", "good"]
      : [age === null ? "has not answered" : `last answered ${span(age / 1e3)} ago`, "bad"];
    const state = el("span", `pill ${className}`, text);
    items.push(el("li", "", el("span", "", `${voter.name} (node ${voter.node}), votes only`), state));
  }
  return el("div", "gateways", el("div", "top", el("h3", "", "Gateways and voters"), el("span", "quiet", `backend ${answer.gateway.backend}`)), el("ul", "", ...items));
}

const ROLES = {
  leader: ["leads", "good"], candidate: ["would take over", "good"], ineligible: ["not eligible", "bad"], closed: ["closed", "warn"],
};

function groupCard(answer, group) {
  const details = group.details || {};
  const connected = isConnected(group);
  const [role, className] = group.election_stalled ? ["election thread stuck", "bad"]
    : group.role === "ineligible" && !group.ineligible_lasting ? ["not yet eligible", "warn"]
    : group.role === "candidate" && !connected ? ["cannot take over", "bad"] : ROLES[group.role] || [group.role, "warn"];
  const facts = el("dl", "");
  const add = (name, value, style) => facts.append(el("dt", "", name), el("dd", style || "", value));
  const unknown = unknownLeader(group);
  const noLeader = (unknown ? `unknown: ${unknown}` : "none") + (group.last_leader ? `; the last one${unknown ? " known here" : ""} was ${gatewayText(group.last_leader)}` : "");
  add("leader", group.leader ? gatewayText(group.leader) : noLeader, group.leader ? "" : unknown ? "warn-text" : "bad-text");
  add("epoch", `${count(group.epoch.count)}, of node ${group.epoch.node}`);
  if (group.ineligible_reason) add("obstacle", group.ineligible_reason, group.ineligible_lasting ? "bad-text" : "warn-text");
  const joining = details.joining;
  if (joining && joining.eligibility === "joining") {
    add("joining", `${plural(joining.behind_messages, "message", "messages")} behind the peer, ${plural(joining.channels_missing, "channel", "channels")} missing`, "warn-text");
  }
  if (joining && joining.awaits_output) add("candidacy", "held until it has received the output up to its state copy", "warn-text");
  if (joining && joining.content_mismatch_ms > 0) add("content", `differs from the peer's for ${span(joining.content_mismatch_ms / 1e3)}: books are suspect`, "bad-text");
  if (details.fitness && details.fitness !== "fit") add("fitness", `reduced: ${details.fitness}`, "warn-text");
  if (group.election_stalled) add("caution", "the election thread here is stuck: what is shown of the group is old", "bad-text");
  add("connection", group.connection, connected ? "" : "warn-text");
  if (group.pinned) add("pinned", "no automatic moves", "warn-text");
  if (details.allows_split_brain) add("split brain", "allowed by this backend", "warn-text");
  const takeovers = details.takeovers;
  if (takeovers) {
    const worst = takeovers.blackout_worst_ms;
    add("takeovers here", count(takeovers.count) + (takeovers.count && worst !== null ? `, blackout at worst ${worst.toFixed(1)} ms, median ${takeovers.blackout_median_ms.toFixed(1)} ms` : ""));
  }
  add("channels", count(list(details.channels).length));
  return el("div", "group", el("div", "top", el("h3", "", `Group ${group.group}`), el("span", `pill ${className}`, role)), facts);
}

let earlier = new Map(); // channels of `before`, by id
function rateOf(channel) {
  const then = earlier.get(channel.id);
  return perSecond(channel.messages, then && then.messages);
}

function leadText(channel) {
  if (channel.silent_lines.length) return `silent: ${channel.silent_lines.join(", ")}`;
  const compared = channel.lines.reduce((sum, line) => sum + line.lead_count, 0);
  if (!compared) return "–";
  const first = channel.lines.reduce((best, line) => (line.lead_count > best.lead_count ? line : best));
  return `${first.line} in ${Math.round(100 * first.lead_count / compared)} %, by ${latency(first.lead_p50_ns)}`;
}

const stageOf = (channel, name) => channel.stages.find(stage => stage.stage === name);

const COLUMNS = [
  ["", "c-name"], ["", "c-state"], ["messages/s", "n c-rate"], ["faster line, its lead", "c-lead"], ["gaps", "n c-gaps"], ["lost", "n c-lost"],
  ["drops", "n c-drops"], ["next sequence", "n c-next"], ["p50", "n c-p50"], ["p99", "n c-p99"], ["max", "n c-max"],
];

function channelRow(channel) {
  const cells = COLUMNS.map(([label, className]) => {
    const cell = el("td", className);
    if (label) cell.dataset.label = label;
    return cell;
  });
  const name = el("span", "");
  const pill = el("span", "pill");
  cells[0].append(el("span", "id", String(channel.id)), name);
  cells[1].append(pill);
  const reasonCell = el("td", "bad-text");
  reasonCell.colSpan = COLUMNS.length;
  const row = { node: el("tr", "", ...cells), reason: el("tr", "reason", reasonCell), reasonCell, name, pill, cells };
  row.node.dataset.channel = channel.name;
  // A phone shows one line of a channel that is well, and the rest at a touch.
  row.node.addEventListener("click", () => row.node.classList.toggle("open"));
  return row;
}

function fillRow(row, channel) {
  const stage = stageOf(channel, WHOLE);
  setText(row.name, channel.name);
  setText(row.pill, isOld(channel) ? "thread stuck" : channel.state);
  setClass(row.pill, `pill ${isOld(channel) ? "bad" : (channel.silent_lines.length || isSuspect(channel)) && channel.state === "live" ? "warn" : STATE_CLASS[channel.state] ?? "warn"}`);
  const rate = rateOf(channel);
  const values = [
    rate === null ? "–" : rateText(rate), leadText(channel), count(channel.gaps), count(channel.gap_messages), count(channel.drops),
    channel.next_sequence ? count(channel.next_sequence) : "–", stage ? latency(stage.p50_ns) : "–", stage ? latency(stage.p99_ns) : "–", stage ? latency(stage.max_ns) : "–",
  ];
  values.forEach((value, index) => setText(row.cells[index + 2], value));
  setClass(row.cells[3], `c-lead${channel.silent_lines.length ? " warn-text" : ""}`);
  for (const [index, value] of [[4, channel.gaps], [5, channel.gap_messages], [6, channel.drops]]) row.cells[index].classList.toggle("warn-text", value > 0);
  const reasons = [];
  if (channel.failed) reasons.push(`out of service: ${channel.failed}`);
  if (isOld(channel)) reasons.push(`a thread of pool ${channel.pool} is stuck: state (${channel.state}) and counts may be old`);
  if (isSuspect(channel)) reasons.push("books suspect: messages of this session are missing here");
  const drops = Object.entries(channel.drop_reasons).map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`);
  if (drops.length) reasons.push(`dropped: ${drops.join(", ")}`);
  setText(row.reasonCell, reasons.join("; "));
  setClass(row.reasonCell, channel.failed || isOld(channel) ? "bad-text" : isSuspect(channel) ? "warn-text" : "quiet");
  row.reason.hidden = !reasons.length;
  row.node.classList.toggle("noted", reasons.length > 0);
  row.node.classList.toggle("attention", isUnwell(channel) || hasGaps(channel));
}

function isShown(channel) {
  if (filter === "unwell" && !isUnwell(channel)) return false;
  if (filter === "gaps" && !hasGaps(channel)) return false;
  return [channel.name.toLowerCase(), channel.state, String(channel.id)].some(text => text.includes(search));
}

function showChannels(answer) {
  const channels = [...answer.snapshot.channels];
  const severity = channel => (channel.failed ? 7 : isOld(channel) ? 6 : (SEVERITY[channel.state] ?? 1) || (channel.silent_lines.length || isSuspect(channel) ? 1 : 0));
  channels.sort((one, other) => severity(other) - severity(one) || one.id - other.id);
  const shown = channels.filter(isShown);
  for (const channel of channels) {
    if (!rows.has(channel.id)) rows.set(channel.id, channelRow(channel));
    fillRow(rows.get(channel.id), channel);
  }
  const body = document.querySelector("#channels tbody");
  replace(body, shown.map(channel => channel.id), () => shown.flatMap(channel => [rows.get(channel.id).node, rows.get(channel.id).reason]));
  for (const [id, button] of [["all", channels.length], ["unwell", channels.filter(isUnwell).length], ["gaps", channels.filter(hasGaps).length]]) {
    const names = { all: "all", unwell: "not well", gaps: "with gaps" };
    setText(document.querySelector(`[data-filter=${id}]`), `${names[id]} (${count(button)})`);
  }
  const hidden = channels.length - shown.length;
  let note = hidden ? `${plural(hidden, "channel is", "channels are")} not shown.` : "";
  if (!shown.length) note = filter === "unwell" && !search ? "All channels are well." : `No channel matches. ${note}`;
  setText($("channels-note"), note || "Latency is wire to wire. Gaps, lost messages and drops count since the start.");
}

function worstStage(channels, name) {
  let worst = null;
  for (const channel of channels) {
    const stage = stageOf(channel, name);
    if (stage && stage.count && (!worst || stage.p99_ns > worst.stage.p99_ns)) worst = { channel, stage };
  }
  return worst;
}

// A scale of decades, from 100 ns to 1 s.
const SCALE = [100, 1e9];
const place = ns => Math.min(100, Math.max(0, 100 * Math.log(Math.max(ns, 1) / SCALE[0]) / Math.log(SCALE[1] / SCALE[0])));

function showLatency(answer) {
  const { channels, clock_ns: clock } = answer.snapshot;
  $("latency-choice").hidden = channels.length === 1;
  const choice = $("latency-of");
  replace(choice, channels.map(channel => [channel.id, channel.name]), () => {
    const chosen = choice.value;
    const options = channels.map(channel => {
      const option = el("option", "", `${channel.id} ${channel.name}`);
      option.value = String(channel.id);
      return option;
    });
    const all = el("option", "", "the worst channel of each stage, by p99");
    all.value = "";
    queueMicrotask(() => { choice.value = chosen; if (choice.selectedIndex < 0) choice.value = ""; });
    return [all, ...options];
  });
  const wanted = choice.value ? channels.filter(channel => String(channel.id) === choice.value) : channels;
  const found = Object.keys(STAGES).map(name => worstStage(wanted, name)).filter(worst => worst);
  const isWorst = !choice.value && channels.length > 1;
  const content = found.map(({ channel, stage }) => [channel.name, stage]);
  replace(document.querySelector("#latency tbody"), [isWorst, content], () => found.map(({ channel, stage }) => {
    const [name, meaning] = STAGES[stage.stage];
    const under = el("span", "under quiet", el("span", "meaning", meaning));
    if (isWorst) under.append(el("span", "meaning", " · "), channel.name);
    const title = el("td", "", name, under);
    const bar = el("div", "bar");
    for (const [className, from, to] of [["to-max", stage.p50_ns, stage.max_ns], ["to-p999", stage.p50_ns, stage.p999_ns], ["to-p99", stage.p50_ns, stage.p99_ns]]) {
      const part = el("i", className);
      part.style.left = `${place(from)}%`;
      part.style.width = `${Math.max(0, place(to) - place(from))}%`;
      bar.append(part);
    }
    const middle = el("i", "p50");
    middle.style.left = `calc(${place(stage.p50_ns)}% - 1px)`;
    bar.append(middle);
    const cells = [stage.p50_ns, stage.p99_ns, stage.p999_ns, stage.max_ns].map(ns => el("td", "n", latency(ns)));
    return el("tr", stage.stage === WHOLE ? "whole" : "", title, ...cells, el("td", "n", count(stage.count)), el("td", "scale", bar));
  }));
  document.querySelector("#latency").hidden = !found.length;
  $("legend").hidden = !found.length;
  if (!found.length) {
    setText($("latency-note"), "No values in the last interval: no packets were processed, or latency.interval_ms has not passed yet.");
    return;
  }
  const newest = found.reduce((best, { stage }) => Math.max(best, stage.end_ns), 0);
  const first = found[found.length - 1].stage;
  const length = (first.end_ns - first.begin_ns) / 1e9;
  setText($("latency-note"), `Last interval: ${span(length)} long, ended ${span((clock - newest) / 1e9)} ago.`);
}

function showTicks() {
  const ticks = [[100, "100 ns"], [1e4, "10 µs"], [1e6, "1 ms"], [1e8, "100 ms"]];
  $("ticks").replaceChildren(...ticks.map(([ns, text]) => {
    const tick = el("span", "", text);
    tick.style.left = `${place(ns)}%`;
    return tick;
  }));
}

const EVENTS = {
  started: () => ["the gateway started", ""],
  stopped: () => ["the gateway stopped in order", ""],
  gained: entry => [`this gateway leads, epoch ${count(entry.epoch_count)}`, "good"],
  raised: entry => [`this gateway leads on under epoch ${count(entry.epoch_count)} (${plural(entry.count, "raise", "raises")})`, "warn"],
  took_over: entry => {
    const blackouts = list(entry.channels).map(channel => channel.blackout_ns).filter(ns => ns !== null && ns !== undefined);
    const republished = list(entry.channels).reduce((sum, channel) => sum + (channel.republished_packets || 0), 0);
    const cost = blackouts.length ? `blackout at worst ${latency(Math.max(...blackouts))} over ${plural(blackouts.length, "channel", "channels")}` : "no blackout measured";
    return [`takeover complete (${entry.cause}): ${cost}, ${plural(republished, "packet", "packets")} republished`, ""];
  },
  lost: entry => [`this gateway no longer leads: ${entry.reason}`, "warn"],
  connection: entry => [`connection to the election's backend: ${entry.state}`, entry.state === "lost" || entry.state === "suspended" ? "warn" : ""],
  died: entry => [`a sentinel reported the death of gateway ${entry.dead_node}`, "bad"],
  notice: entry => [String(entry.text), "warn"],
  torn: entry => [`an audit line was torn (${plural(entry.bytes, "byte", "bytes")}) by a crash or a full disk`, "warn"],
};

async function showHistory(answer) {
  const lines = answer.audit_lines;
  if (lines === null) {
    setText($("history-note"), "No audit file is configured (gateway.audit_file), so this gateway keeps no history.");
    return;
  }
  const wanted = `${answer.gateway.started_ns} ${lines}`;
  if (historyOf === wanted) return;
  historyOf = wanted;
  try {
    const history = JSON.parse(await fetchText("history.json"));
    const entries = [...list(history.entries)].reverse();
    $("history").replaceChildren(...entries.map(entry => {
      const [text, className] = EVENTS[entry.event] ? EVENTS[entry.event](entry) : [String(entry.event), ""];
      const group = groupsOf(answer).length > 1 && entry.group ? `group ${entry.group}: ` : "";
      const time = el("time", "", timeText(entry.time_ns, true));
      return el("li", "", time, el("span", className ? `${className}-text` : "", group + text));
    }));
    const damaged = history.damaged_lines ? ` ${plural(history.damaged_lines, "damaged line was", "damaged lines were")} left out.` : "";
    setText($("history-note"), (entries.length ? `The audit's last ${plural(entries.length, "line", "lines")}, newest first; more: mdgw ha history.` : "The audit file has no line yet.") + damaged);
  } catch (error) {
    historyOf = null;
    setText($("history-note"), `The gateway did not send its history: ${error.message}`);
  }
}

function showHost(answer) {
  const pools = answer.snapshot.pools.map(pool => {
    const then = before && before.snapshot.pools.find(found => found.name === pool.name);
    const busy = pool.threads.map(thread => {
      const old = then && then.threads.find(found => found.name === thread.name);
      return perSecond(thread.busy_ns, old && old.busy_ns);
    }).filter(value => value !== null);
    const share = ns => (ns === null ? "–" : `${(Math.min(1, ns / 1e9) * 100).toFixed(1)} %`);
    const mean = busy.length ? busy.reduce((sum, ns) => sum + ns, 0) / busy.length : null;
    const turns = perSecond(pool.turns, then && then.turns);
    return [pool.name, count(pool.threads.length), share(mean), share(perSecond(pool.saturation_ns, then && then.saturation_ns)), turns === null ? "–" : count(turns)];
  });
  replace(document.querySelector("#threads tbody"), pools, () => pools.map(values => el("tr", "", ...values.map((value, index) => el("td", index ? "n" : "", value)))));
  const listeners = list(answer.status.listeners).map(listener => {
    const refused = Object.entries(listener.refused).map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`);
    return `${listener.name.replaceAll("_", " ")}: ${count(listener.received)} received, ${refused.length ? `refused: ${refused.join(", ")}` : "none refused"}`;
  });
  replace($("listeners"), listeners, () => listeners.map(text => el("li", "", text)));
}

// ---- polling ----

async function fetchText(path) {
  const answer = await fetch(path, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ANSWER_MS_MAX) });
  if (!answer.ok) throw new Error(`${answer.status} ${(await answer.text()).trim()}`);
  return answer.text();
}

let isPolling = false;
async function poll() {
  // A page that was opened in the background gets one answer, for its title.
  if (isPolling || (document.hidden && last)) return;
  isPolling = true;
  try {
    const answer = JSON.parse(await fetchText("status.json"));
    if (answer.format !== FORMAT) throw new Error(`status.json has format ${answer.format}, this page shows format ${FORMAT}: load the page again`);
    receivedAt = performance.now();
    problem = "";
    accept(answer);
  } catch (error) {
    problem = error.name === "TimeoutError" ? `no answer within ${ANSWER_MS_MAX / 1000} s` : error.message;
  } finally {
    isPolling = false;
    showFreshness();
  }
}

function accept(answer) {
  const isSame = last && last.gateway.started_ns === answer.gateway.started_ns;
  // The gateway may send the same snapshot twice.
  // Of the time between, nothing was seen: a hidden page asks for nothing.
  if (!isSame || answer.snapshot.time_ns - last.snapshot.time_ns > 3 * STALE_MS * 1e6) lastingSince.clear();
  if (!isSame) before = null;
  else if (answer.snapshot.clock_ns > last.snapshot.clock_ns) before = last;
  last = answer;
  receivedTime = answer.snapshot.time_ns / 1e6;
  earlier = new Map(before ? before.snapshot.channels.map(channel => [channel.id, channel]) : []);
  show();
}

function show() {
  if (!last) return;
  stuckPools = poolsWithStuckThreads(last);
  const lasting = lastingAlarms(last);
  for (const name of lasting.keys()) if (!lastingSince.has(name)) lastingSince.set(name, last.snapshot.time_ns);
  for (const name of lastingSince.keys()) if (!lasting.has(name)) lastingSince.delete(name);
  $("content").hidden = false;
  showHead(last);
  showSummary(last, lasting);
  showAlarms(last, lasting);
  showPair(last);
  showChannels(last);
  showLatency(last);
  showHistory(last);
  showHost(last);
}

function showFreshness() {
  const age = receivedAt === null ? null : (performance.now() - receivedAt) / 1000;
  const isStale = problem !== "" && (age === null || age * 1000 > STALE_MS) || (age !== null && age * 1000 > 3 * STALE_MS);
  document.body.classList.toggle("is-stale", isStale);
  $("stale").hidden = !isStale;
  if (isStale) {
    setText($("role"), "no answer");
    setClass($("role"), "pill bad");
    const why = problem ? ` (${problem})` : "";
    setText($("stale"), age === null
      ? `This gateway does not answer${why}.`
      : `No answer from this gateway for ${span(age)}${why}. Everything below is from ${timeText(receivedTime * 1e6)} and may have changed.`);
    if (!document.title.startsWith("no answer")) document.title = `no answer: ${document.title}`;
  }
  if (age !== null) setText($("freshness"), isStale ? `data of ${timeText(receivedTime * 1e6)}, ${span(age)} old` : `${timeText(receivedTime * 1e6)}, as of ${age < 1.5 ? "now" : `${span(age)} ago`}`);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
for (const button of document.querySelectorAll("[data-filter]")) {
  button.addEventListener("click", () => {
    filter = button.dataset.filter;
    for (const other of document.querySelectorAll("[data-filter]")) other.setAttribute("aria-pressed", String(other === button));
    show();
  });
}
$("search").addEventListener("input", () => { search = $("search").value.trim().toLowerCase(); show(); });
$("latency-of").addEventListener("change", show);
showTicks();
setInterval(poll, POLL_MS);
setInterval(() => { if (!document.hidden) showFreshness(); }, 500);
poll();
