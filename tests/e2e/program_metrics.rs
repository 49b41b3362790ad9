//! The admin listeners of `mdgw live`, `mdgw journal` and `mdgw nats`: metrics that a foreign parser accepts and that agree with what
//! each program prints at its end, and health. Those of `mdgw mirror` are in `live_mirror.rs`; its panels are here.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text},
    http::get_at,
    nats::NatsServer,
    openmetrics::parse,
    process::{self, MdgwProcess, Signal, wait_until},
    prometheus::{Prometheus, dashboard_queries, program_of},
    python::python,
    trading_day::TradingDay,
};

/// A program beside a gateway, with an admin listener.
struct Program {
    name: &'static str,
    process: MdgwProcess,
    config: PathBuf,
    admin: SocketAddrV4,
    python: PathBuf,
}

impl Program {
    /// Starts the program with the gateway's configuration and these keys of its own table.
    fn start(python: &Path, fixture: &GatewayFixture, name: &'static str, keys: &str) -> Self {
        let admin = free_address();
        let gateway = fs::read_to_string(fixture.path("gateway.toml")).unwrap();
        let config = fixture.path(&format!("{name}.toml"));
        fs::write(&config, format!("{gateway}[{name}]\nadmin_listen = \"{admin}\"\n{keys}\n")).unwrap();
        let process = process::start([name, text(&config)]);
        process.wait_for_stderr(&format!("{name}: ready"));
        Self { name, process, config, admin, python: python.to_owned() }
    }

    /// The samples of a scrape.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let (code, metrics) = get_at(self.admin, "/metrics");
        assert_eq!(code, 200, "{metrics}");
        parse(&self.python, &metrics).0
    }

    /// One counter or gauge of the program without labels.
    fn value(&self, name: &str) -> f64 {
        let name = format!("mdgw_{}_{name}{{}}", self.name);
        self.scrape().remove(&name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn wait_for(&self, name: &str, wanted: f64) {
        wait_until(&format!("{name} is {wanted}"), || self.value(name) == wanted);
    }

    fn wait_until_ready(&self) {
        wait_until("the program is ready", || get_at(self.admin, "/ready").0 == 200);
        assert_eq!(get_at(self.admin, "/live").0, 200);
        for path in ["/", "/leader", "/status.json"] {
            assert_eq!(get_at(self.admin, path).0, 404, "{path}");
        }
        let samples = self.scrape();
        let identity = samples.keys().find(|name| name.starts_with("mdgw_program{"));
        assert!(identity.is_some_and(|name| name.contains(&format!("program={}", self.name))), "{identity:?}");
        assert!(samples.contains_key("mdgw_start_time_seconds{}"));
        assert!(samples["mdgw_listener_received_total{listener=admin}"] > 0.0);
    }

    /// Stops the program. Its last line must have these words with the values that were scraped before.
    fn stop(self, words: &[(&str, &str)]) {
        let expected: Vec<String> = words.iter().map(|(word, name)| format!("{word} {}", self.value(name))).collect();
        let ended = self.process.stop_with(Signal::Terminate).expect_code(0);
        for expected in expected {
            let is_there = ended.stdout.trim_end().split(", ").any(|part| part == expected);
            assert!(is_there, "{expected}: {}", ended.stdout);
        }
    }
}

#[test]
fn live_exports_refusals_and_reloads_of_its_keys() {
    let Some(python) = python("live_exports_refusals_and_reloads_of_its_keys") else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let keys = fixture.path("client_keys");
    let write_keys = |lines: &str| fs::write(&keys, lines).unwrap();
    write_keys("test db-unitTESTkey0123456789abcdefgh * 10\n");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let (listen, socket) = (free_address(), fixture.path("live_control"));
    let table =
        format!("listen = \"{listen}\"\nkey_file = \"{}\"\ncontrol_socket = \"{}\"", text(&keys), text(&socket));
    let live = Program::start(&python, &fixture, "live", &table);
    live.wait_until_ready();
    assert!(live.value("behind_limit_bytes") > 0.0);

    // No handshake of the protocol.
    let mut client = TcpStream::connect(listen).unwrap();
    client.write_all(b"no request\n").unwrap();
    let _ = client.read_to_end(&mut Vec::new());
    live.wait_for("failed_handshakes_total", 1.0);
    assert_eq!((live.value("connections_total"), live.value("sessions_open")), (1.0, 0.0));

    write_keys("test db-unitTESTkey0123456789abcdefgh * 10\nmore db-moreTESTkey0123456789abcdefgh * 10\n");
    let reload = || process::run(["reload", "--live", text(&live.config)]);
    let reloaded = reload().expect_code(0).stdout;
    assert!(reloaded.ends_with("client_keys: 2 keys\n"), "{reloaded}");
    write_keys("test too-short * 10\n");
    let refused = reload().expect_code(1).stderr;
    assert!(refused.contains("reload refused, nothing changed:") && refused.contains("client_keys"), "{refused}");
    live.wait_for("keys_refused_total", 1.0);
    live.wait_for("keys_reloaded_total", 1.0);

    live.stop(&[
        ("connections", "connections_total"),
        ("sessions", "sessions_total"),
        ("failed handshakes", "failed_handshakes_total"),
        ("too slow", "too_slow_total"),
        ("bytes sent", "sent_bytes_total"),
        ("skips", "skips_total"),
    ]);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn the_journal_exports_what_it_read_and_closed() {
    let Some(python) = python("the_journal_exports_what_it_read_and_closed") else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 5_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let table = format!("directory = \"{}\"\nfree_bytes_min = 0", text(&fixture.path("journal")));
    let journal = Program::start(&python, &fixture, "journal", &table);
    journal.wait_until_ready();
    assert_eq!((journal.value("writing"), journal.value("files_closed_total")), (1.0, 0.0));
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    journal.wait_for("files_closed_total", 1.0);
    assert!(journal.value("closed_records_total") > 5_000.0 && journal.value("closed_bytes_total") > 100_000.0);
    wait_until("all logs are read", || journal.value("behind_seconds") < 1.0);
    let samples = journal.scrape();
    assert_eq!(samples["mdgw_alarms_total{alarm=journal-stopped}"], 0.0);
    // Heartbeats are no entries, so nothing is added after the day.
    journal.stop(&[
        ("closed", "files_closed_total"),
        ("records in them", "closed_records_total"),
        ("bytes", "closed_bytes_total"),
        ("holes", "closed_holes_total"),
        ("stops", "stops_total"),
    ]);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

#[test]
fn the_nats_sink_exports_what_was_acknowledged_and_that_its_server_is_gone() {
    let test = "the_nats_sink_exports_what_was_acknowledged_and_that_its_server_is_gone";
    let (Some(python), Some(mut server)) = (python(test), NatsServer::started(test)) else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 5_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let sink = Program::start(&python, &fixture, "nats", &format!("servers = [\"{}\"]", server.url()));
    sink.wait_until_ready();
    assert_eq!(sink.value("channels"), 1.0);
    day.play_first_half(&fixture);
    day.play_second_half(&fixture);
    let mut before = -1.0;
    wait_until("nothing more is acknowledged", || {
        let messages = sink.value("messages_total");
        std::thread::sleep(std::time::Duration::from_millis(500));
        messages > 1_000.0 && std::mem::replace(&mut before, messages) == messages
    });
    assert!(sink.value("records_total") > 1_000.0);
    assert_eq!((sink.value("failing"), sink.value("channels_writing")), (0.0, 1.0));

    server.kill();
    sink.wait_for("failing", 1.0);
    assert!(sink.value("disconnects_total") >= 1.0 && sink.value("failures_total") >= 1.0);
    let samples = sink.scrape();
    assert_eq!(samples["mdgw_alarms_total{alarm=nats-unreachable}"], 1.0);
    let (code, reason) = get_at(sink.admin, "/ready");
    assert_eq!((code, reason.trim()), (503, "a stream cannot be written; see the log"));
    server.start();
    sink.wait_for("failing", 0.0);
    sink.wait_until_ready();
    sink.stop(&[
        ("messages", "messages_total"),
        ("records", "records_total"),
        ("duplicates", "duplicates_total"),
        ("gaps", "gaps_total"),
        ("holes", "holes_total"),
        ("fenced", "fenced_total"),
        ("failures", "failures_total"),
    ]);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// Without a NATS server the panels of `mdgw nats` are not covered; the test says so.
#[test]
fn the_dashboards_panels_of_programs_show_what_the_programs_export() {
    let test = "the_dashboards_panels_of_programs_show_what_the_programs_export";
    let Some(python) = python(test) else { return };
    let fixture = GatewayFixture::new();
    let day = TradingDay::of(&fixture, 1_000);
    let gateway = day.gateway(&fixture, &GatewayOptions::itch());
    let keys = fixture.path("client_keys");
    fs::write(&keys, "test db-unitTESTkey0123456789abcdefgh * 10\n").unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let of_live = format!("listen = \"{}\"\nkey_file = \"{}\"", free_address(), text(&keys));
    let of_journal = format!("directory = \"{}\"\nfree_bytes_min = 0", text(&fixture.path("journal")));
    let mut programs = vec![
        Program::start(&python, &fixture, "live", &of_live),
        Program::start(&python, &fixture, "journal", &of_journal),
    ];
    let server = NatsServer::started(&format!("{test}, panels of mdgw nats"));
    if let Some(server) = &server {
        let of_nats = format!("servers = [\"{}\"]", server.url());
        programs.push(Program::start(&python, &fixture, "nats", &of_nats));
    }
    // On a host of its own, which receives the same output.
    let mirror_host = GatewayFixture::new();
    let config = fs::read_to_string(mirror_host.config(&GatewayOptions::itch())).unwrap();
    let config = config.replace(&mirror_host.output.to_string(), &fixture.output.to_string());
    fs::write(mirror_host.path("gateway.toml"), config).unwrap();
    let mirror = Program::start(&python, &mirror_host, "mirror", "");
    day.play_first_half(&fixture);
    mirror.wait_until_ready();
    programs.push(mirror);
    let prometheus = Prometheus::start(&programs.iter().map(|program| program.admin).collect::<Vec<_>>());
    let mut shown = BTreeMap::<&str, usize>::new();
    for (title, query) in dashboard_queries() {
        let Some(program) = program_of(&query).filter(|name| programs.iter().any(|program| program.name == *name))
        else {
            continue;
        };
        // A rate takes two scrapes after the first.
        wait_until(&format!("panel {title}: {query}"), || !prometheus.query(&query).is_empty());
        *shown.entry(program).or_default() += 1;
    }
    assert!(shown.len() == programs.len() && shown.values().all(|count| *count >= 5), "{shown:?}");
    drop(programs);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}
