//! The page of the admin listener in a real browser: what it shows of a pair that loses messages and then its leader.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{env, fs, net::TcpStream, path::PathBuf};

use mdgw_tests::{
    chromium::{self, Chromium, Screen, Tab},
    elected_pair::ElectedPair,
    gateway_fixture::GatewayFixture,
    gateway_fixture::{GatewayOptions, free_address, text},
    http::{exchange, get_at},
    process::{self, Signal, wait_until},
    skip::skip,
    trading_day::{DATE, TradingDay},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const NOT_INSTALLED: &str = "chromium is not installed";

fn pair() -> ElectedPair {
    // No server fills a gap, so what both lines lose is declared.
    let wanted = GatewayOptions { has_recovery: false, latency: "interval_ms = 200", ..GatewayOptions::itch() };
    let mut pair = ElectedPair::new(wanted).with_admin_listeners();
    pair.start(1);
    pair.wait_until_leads(1);
    pair.start(2);
    pair.wait_until_eligible(2);
    pair
}

#[test]
fn the_page_shows_who_leads_a_gap_its_alarm_and_a_takeover() {
    if !chromium::is_installed() {
        return skip("the page in a browser", NOT_INSTALLED);
    }
    let mut pair = pair();
    // On a busy host the first gateway may have handed over for a reduced fitness.
    let leads = pair.leader();
    let follows = 3 - leads;
    pair.wait_until_eligible(follows);
    let url = |node| format!("http://{}/", pair.admin_address(node));
    let origins = [url(leads), url(follows)];
    let mut browser = Chromium::start();
    let [leader, standby] = [browser.open(&origins[0]), browser.open(&origins[1])];
    let [leads_name, follows_name] = [leads, follows].map(|node| format!("gw{node}"));
    let [leads_node, follows_node] = [leads, follows].map(|node| format!("node {node}"));
    browser.wait_for_text(&leader, "header", &[&leads_name, "leads", &leads_node]);
    browser.wait_for_text(&standby, "header", &[&follows_name, "standby", &follows_node]);
    for tab in [&leader, &standby] {
        browser.wait_for_text(tab, "#summary", &[&format!("{leads_name} {leads_node}"), "leads"]);
        browser.wait_for_text(
            tab,
            "#pair",
            &["gw1 (node 1)", "leads group 1", "gw2 (node 2)", "this gateway", "pair link up"],
        );
    }
    browser.wait_for_text(&standby, "#pair", &["would take over"]);

    // Each line loses a tenth, so a hundredth is missing on both. The session lasts longer than the test.
    let damage = ["--messages", "10000000", "--rate", "1000", "--loss", "0.1"];
    let _venue = pair.gateways.fixture(1).sim(&damage);
    browser.wait_for_text(&leader, "#alarms", &["gap-declared", "recent", "messages are missing for good"]);
    browser.wait_for_text(&leader, "[data-filter=gaps]", &["with gaps (1)"]);
    let status: Value = serde_json::from_str(&get_at(pair.admin_address(leads), "/status.json").1).unwrap();
    let channel = &status["snapshot"]["channels"][0];
    assert!(channel["gaps"].as_u64() > Some(0), "{channel}");
    browser.wait_for_text(&leader, "#channels [data-channel=one]", &["one", "live"]);
    let shown = "Number(document.querySelector('#channels .c-gaps.warn-text').textContent.replaceAll(',', ''))";
    assert!(browser.evaluate(&leader, shown).as_u64() > Some(0));
    browser.wait_for_text(&leader, "#latency", &["wire to wire", "decode and book", "µs"]);
    browser.wait_for_text(&leader, "#history", &["this gateway leads, epoch", "the gateway started"]);

    // The runbook is in the gateway.
    browser.evaluate(&leader, "document.querySelector('[data-alarm=gap-declared] summary').click()");
    browser.wait_for_text(&leader, "[data-alarm=gap-declared]", &["# Gap declared", "ops/runbooks/gap-declared.md"]);
    browser.evaluate(&leader, "document.querySelector('[data-alarm=gap-declared] summary').click()");

    each_condition_is_an_alarm_that_lasts(&mut browser, &leader);
    a_stuck_election_thread_knows_no_leader_and_blames_no_voter(&mut browser, &leader);
    no_word_of_a_tile_is_broken(&mut browser, &leader);
    a_stuck_thread_of_a_pool_leaves_no_channel_well(&mut browser, &leader);
    a_stuck_main_thread_is_said_at_the_top(&mut browser, &leader);
    text_of_a_gateway_stays_text(&mut browser, &leader);
    let pictures = Pictures::new();
    pictures.take_all(&mut browser, &leader);

    pair.gateways.kill(leads);
    browser.wait_for_text(&standby, "header", &[&follows_name, "leads"]);
    browser.wait_for_text(&standby, "#summary", &[&format!("{follows_name} {follows_node}")]);
    // The alert waits for ten seconds; the page shows the state at once, and since when.
    browser.wait_for_text(&standby, "#alarms", &["pair-link-down", "now", &leads_node, "seen for "]);
    browser.wait_for_text(&standby, "#history", &["takeover complete", "this gateway leads"]);
    browser.wait_for_text(&leader, "#stale", &["No answer from this gateway for", "Everything below is from", "UTC"]);
    browser.wait_for_text(&leader, "#role", &["no answer"]);
    pictures.take(&mut browser, &leader, "page-stale");
    pictures.take(&mut browser, &standby, "page-survivor");

    assert_eq!(browser.complaints(), [""; 0]);
    let requested = browser.requested();
    assert!(requested.iter().any(|address| address.ends_with("/status.json")));
    for address in requested {
        assert!(origins.iter().any(|origin| address.starts_with(origin)) || address == "data:,", "{address}");
    }
}

/// The page as it shows an answer that this script has changed: what the second script then finds.
fn with_answer(browser: &mut Chromium, tab: &Tab, change: &str, found: &str) -> Value {
    browser.evaluate(
        tab,
        &format!(
            "(() => {{
                const kept = [last, before, earlier];
                const answer = structuredClone(last);
                const [channel] = answer.snapshot.channels;
                const [group] = answer.status.groups;
                {change}
                accept(answer);
                const found = {found};
                [last, before, earlier] = kept;
                show();
                return found;
            }})()"
        ),
    )
}

/// Nothing lasts in the page's own list of conditions while all is well; with everything broken, every one of them does.
fn each_condition_is_an_alarm_that_lasts(browser: &mut Chromium, tab: &Tab) {
    let lasting = "(() => [
        CONDITIONS.filter(([, , of]) => of(last).length).map(([alarm, metric]) => alarm + ' ' + metric),
        [...document.querySelectorAll('[data-alarm]')].filter(item => item.querySelector('.pill').textContent === 'now')
            .map(item => item.dataset.alarm),
        document.querySelector('#summary').innerText,
        document.querySelector('#channels').innerText,
    ])()";
    let well = "channel.input_incomplete = false;";
    let shown = with_answer(browser, tab, well, lasting);
    assert_eq!((&shown[0], &shown[1]), (&json!([]), &json!([])), "{shown}");
    assert!(!shown.to_string().contains("suspect"), "{shown}");

    let broken = "
        const more = (name, change) => answer.snapshot.channels.push({ ...channel, id: name.length, name, ...change });
        Object.assign(channel, { input_incomplete: true, late_starts: 1, silent_lines: ['A'] });
        more('stale one', { state: 'stale' });
        more('failed', { state: 'failed', failed: 'why' });
        answer.links[0].is_up = false;
        Object.assign(answer, { sentinel_lost: true, sentinel_kill_refused: true, stalled_pool_threads: ['main-0'], main_thread_stuck_ms: 14000 });
        answer.snapshot.clock_ns += 1e9;
        answer.audit_failures += 2;
        group.details.fitness = 'output-not-received';
        Object.assign(group, { connection: 'lost', ineligible_lasting: true, leader: null });
        group.voters = [{ node: 3, name: 'witness-3', answers: false, answered_ms_ago: 9000 }];
        answer.status.groups.push({ ...group, group: 2, election_stalled: true });";
    let all = browser.evaluate(
        tab,
        "[CONDITIONS.map(([alarm, metric]) => alarm + ' ' + metric), [...new Set(CONDITIONS.map(([alarm]) => alarm))]]",
    );
    let shown = with_answer(browser, tab, broken, lasting);
    assert_eq!(shown[0], all[0], "{shown}");
    let sorted = |alarms: &Value| {
        let mut alarms: Vec<_> = alarms.as_array().unwrap().iter().map(ToString::to_string).collect();
        alarms.sort_unstable();
        alarms
    };
    assert_eq!(sorted(&shown[1]), sorted(&all[1]), "{shown}");
    let (summary, channels) = (shown[2].as_str().unwrap(), shown[3].as_str().unwrap());
    assert!(summary.contains("0 of 3") && summary.contains("books suspect: 3"), "{summary}");
    assert!(channels.contains("books suspect: messages of this session are missing here"), "{channels}");
}

/// A stuck election thread takes no answers, so who leads and whether the voters answer is unknown.
fn a_stuck_election_thread_knows_no_leader_and_blames_no_voter(browser: &mut Chromium, tab: &Tab) {
    let stuck = "Object.assign(group, {
        election_stalled: true, has_leadership: false, leader: null, leader_unknown: 'the election thread here is stuck',
        last_leader: { node: 2, name: 'gw2' },
        voters: [{ node: 3, name: 'witness-3', answers: null, answered_ms_ago: 60000 }],
    });";
    let found = "[lastingAlarms(last).has('voter-silent'), document.querySelector('#pair').innerText,
        document.querySelector('header').innerText, document.querySelector('#summary').innerText,
        lastingAlarms(last).has('not-eligible')]";
    let shown = with_answer(browser, tab, stuck, found);
    let (pair, header) = (shown[1].as_str().unwrap(), shown[2].as_str().unwrap());
    assert_eq!(shown[0], false, "{shown}");
    assert!(pair.contains("unknown: the election thread here is stuck") && !pair.contains("last answered"), "{pair}");
    assert!(header.contains("election thread stuck"), "{header}");
    let unknown = "unknown: the election thread here is stuck; the last one known here was gw2 (node 2)";
    assert!(pair.contains(unknown), "{pair}");
    let summary = shown[3].as_str().unwrap();
    let tile = "who leads the group: the election thread here is stuck";
    assert!(summary.contains("unknown") && summary.contains(tile) && !summary.contains("nobody"), "{summary}");
    assert_eq!(shown[4], false, "the alarm of a group without leader: {shown}");
    // Where the election answers that no gateway leads, it is known.
    let nobody = "Object.assign(group, { has_leadership: false, leader: null, leader_unknown: null });";
    let shown = with_answer(browser, tab, nobody, found);
    let summary = shown[3].as_str().unwrap();
    assert!(summary.contains("nobody") && summary.contains("leads the group"), "{summary}");
    assert_eq!(shown[4], true, "{shown}");
}

/// The six tiles at the top, whatever the width of the window.
fn no_word_of_a_tile_is_broken(browser: &mut Chromium, tab: &Tab) {
    let unknown = "Object.assign(group, {
        election_stalled: true, has_leadership: false, leader: null, leader_unknown: 'the election thread here is stuck',
    });";
    // A word that is broken has a box on each of its lines.
    let found = "(() => {
        const range = document.createRange();
        const words = [];
        for (const tile of document.querySelectorAll('#summary b')) {
            const text = tile.firstChild;
            for (const word of text.data.matchAll(/\\S+/g)) {
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                words.push([word[0], range.getClientRects().length]);
            }
        }
        return words;
    })()";
    for width in [320, 390, 500, 700, 740, 900, 1_024, 1_090, 1_280, 1_920] {
        browser.show_on(tab, Screen::Window(width));
        let shown = with_answer(browser, tab, unknown, found);
        let words = shown.as_array().unwrap();
        assert!(words.iter().any(|word| word[0] == "unknown"), "{shown}");
        let broken: Vec<_> = words.iter().filter(|word| word[1] != 1).collect();
        assert!(broken.is_empty(), "{width} pixels: {broken:?}");
    }
    browser.show_on(tab, Screen::Desktop);
}

/// The states of its pool's channels are those from before.
fn a_stuck_thread_of_a_pool_leaves_no_channel_well(browser: &mut Chromium, tab: &Tab) {
    let stuck = "
        Object.assign(channel, { state: 'live', silent_lines: [], failed: null, input_incomplete: false });
        answer.snapshot.channels = [channel, { ...channel, id: 99, name: 'of another pool', pool: 'other' }];
        answer.stalled_pool_threads = [answer.snapshot.pools[0].threads[0].name];
        const alone = WITHOUT_ELECTION;
        if (alone) answer.status.groups = [];";
    let found = "[document.querySelector('#summary').innerText, document.querySelector('#channels').innerText,
        document.querySelector('#role').innerText, document.querySelector('#stuck').hidden]";
    for (alone, role) in [("true", "pool thread stuck"), ("false", "leads")] {
        let shown = with_answer(browser, tab, &stuck.replace("WITHOUT_ELECTION", alone), found);
        let [summary, channels] = [0, 1].map(|index| shown[index].as_str().unwrap());
        assert!(summary.contains("1 of 2") && summary.contains("of a pool stuck: main-0"), "{summary}");
        assert!(
            channels.contains("thread stuck") && channels.contains("is stuck: state (live) and counts"),
            "{channels}"
        );
        assert_eq!((&shown[2], &shown[3]), (&json!(role), &json!(true)), "{shown}");
    }
}

fn a_stuck_main_thread_is_said_at_the_top(browser: &mut Chromium, tab: &Tab) {
    let found = "[document.querySelector('#stuck').innerText, document.querySelector('#stuck').hidden]";
    let shown = with_answer(browser, tab, "answer.main_thread_stuck_ms = 14000;", found);
    let text = shown[0].as_str().unwrap();
    assert!(text.contains("The main thread of this gateway is stuck for 14 s") && shown[1] == false, "{shown}");
}

/// Markup in anything that a gateway reports is shown as it is written.
fn text_of_a_gateway_stays_text(browser: &mut Chromium, tab: &Tab) {
    let hostile = "<img id=injected src=x onerror=alert(1)>";
    let change = format!(
        "const hostile = {hostile:?};
        Object.assign(answer.gateway, {{ name: hostile, version: hostile, commit: hostile, backend: hostile }});
        Object.assign(channel, {{ name: hostile, failed: hostile, drop_reasons: {{ [hostile]: 1 }}, silent_lines: [hostile] }});
        Object.assign(group, {{ ineligible_reason: hostile, ineligible_lasting: true, connection: hostile }});
        group.leader.name = hostile;
        answer.snapshot.pools[0].name = hostile;
        answer.stalled_pool_threads = [hostile];
        answer.alarms[0].about = hostile;"
    );
    let found =
        "[document.querySelectorAll('#injected, img').length, document.body.innerText.split(hostile).length - 1]";
    let shown = with_answer(browser, tab, &change, found);
    assert_eq!(shown[0], 0, "markup became an element");
    assert!(shown[1].as_u64() > Some(6), "{shown}");
}

/// Pictures for people; kept if `MDGW_PICTURES` names a directory.
struct Pictures {
    folder: PathBuf,
    _own: TempDir,
}

impl Pictures {
    fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let folder = env::var_os("MDGW_PICTURES").map_or_else(|| own.path().to_owned(), PathBuf::from);
        Self { folder, _own: own }
    }

    fn take(&self, browser: &mut Chromium, tab: &Tab, name: &str) {
        let path = self.folder.join(format!("{name}.png"));
        browser.screenshot(tab, &path);
        assert!(fs::metadata(&path).unwrap().len() > 20_000, "{name}");
    }

    /// Of all forms. The page fits each screen.
    fn take_all(&self, browser: &mut Chromium, tab: &Tab) {
        for (screen, name) in [
            (Screen::Dark, "page-dark"),
            (Screen::Phone, "page-phone"),
            (Screen::Window(900), "page-window"),
            (Screen::Desktop, "page-desktop"),
        ] {
            browser.show_on(tab, screen);
            let wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
            assert_eq!(browser.evaluate(tab, wider), 0, "{name}: the page is wider than the screen");
            self.take(browser, tab, name);
        }
        // The guide's.
        browser.screenshot_of_top(tab, 874, 0.75, &self.folder.join("page.png"));
        let printed = self.folder.join("page.pdf");
        browser.print(tab, &printed);
        assert!(fs::read(printed).unwrap().starts_with(b"%PDF"));
    }
}

#[test]
fn books_that_lack_the_begin_of_the_session_are_suspect_while_it_lasts() {
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 2_000);
    let listen = free_address();
    let options = GatewayOptions { has_recovery: false, ..GatewayOptions::itch() };
    let path = fixture.path("with_page.toml");
    fs::write(&path, format!("{}\n[admin]\nlisten = \"{listen}\"\n", fixture.config_text(&options))).unwrap();
    let gateway = process::start(["run", text(&path), "--date", DATE]);
    gateway.wait_for_stderr("gateway running");
    day.play_second_half(&fixture);
    let channel = || {
        let status: Value = serde_json::from_str(&get_at(listen, "/status.json").1).unwrap();
        status["snapshot"]["channels"][0].clone()
    };
    wait_until("the status says so", || channel()["input_incomplete"] == true && channel()["late_starts"] == 1);
    if chromium::is_installed() {
        let mut browser = Chromium::start();
        let tab = browser.open(&format!("http://{listen}/"));
        browser.wait_for_text(&tab, "#alarms", &["late-start", "now", "one"]);
        browser.wait_for_text(&tab, "#summary", &["0 of 1", "channel is well; books suspect: 1"]);
        browser.wait_for_text(&tab, "#channels", &["books suspect: messages of this session are missing here"]);
        browser.wait_for_text(&tab, "[data-filter=unwell]", &["not well (1)"]);
    } else {
        skip("suspect books in a browser", NOT_INSTALLED);
    }
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn the_listener_serves_a_page_that_needs_nothing_else_and_changes_nothing() {
    let fixture = GatewayFixture::new();
    let listen = free_address();
    let config = fixture.config_text(&GatewayOptions::itch());
    let path = fixture.path("with_page.toml");
    fs::write(&path, format!("{config}\n[admin]\nlisten = \"{listen}\"\n")).unwrap();
    let gateway = process::start(["run", text(&path), "--date", "2019-01-30"]);
    gateway.wait_for_stderr("admin listener");

    let (code, page) = get_at(listen, "/");
    assert_eq!(code, 200);
    assert!(page.starts_with("<!DOCTYPE html>") && !page.contains("http:") && !page.contains("https:"));
    let head = exchange(TcpStream::connect(listen).unwrap(), "/").unwrap();
    assert!(head.to_lowercase().contains("content-security-policy: default-src 'none'"), "{head}");

    // The same as `mdgw top` and `mdgw ha status` get, of a gateway without control socket, election and audit file.
    let (code, status) = get_at(listen, "/status.json");
    assert_eq!(code, 200);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["format"], 1);
    assert_eq!(status["gateway"]["name"], Value::Null);
    let version = process::run(["--version"]).expect_code(0).stdout;
    assert!(version.contains(status["gateway"]["commit"].as_str().unwrap()), "{version}: {status}");
    assert!(status["gateway"]["commit"] != "" || !version.contains('('), "{version}: {status}");
    assert_eq!(status["status"]["groups"], json!([]));
    assert_eq!(status["snapshot"]["channels"][0]["name"], "one");
    assert_eq!((&status["links"], &status["audit_lines"]), (&Value::Null, &Value::Null));
    let (code, reason) = get_at(listen, "/history.json");
    assert_eq!((code, reason.as_str()), (404, "no audit file: gateway.audit_file is not set\n"));
    let (code, runbook) = get_at(listen, "/runbooks/line-silent.md");
    assert_eq!((code, runbook.starts_with("# ")), (200, true));
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}
