//! The admin listener of a running gateway: metrics that a foreign parser accepts and that agree with `mdgw top`, and health.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use mdgw_feeds::book::BookFault;
use mdgw_sys::alarm::Alarm;
use mdgw_tests::{
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text},
    http::{get, get_at, try_get_at},
    openmetrics::parse,
    process::{self, MdgwProcess, Signal, wait_until},
    python::python,
};
use serde_json::Value;

/// A gateway with a control socket and an admin listener.
fn gateway(fixture: &GatewayFixture, listen: &str) -> MdgwProcess {
    let keys = format!("[gateway]\ncontrol_socket = \"{}\"", text(&fixture.path("control")));
    let config = fixture.config_text(&GatewayOptions::itch()).replacen("[gateway]", &keys, 1);
    let config = config.replacen("[latency]", "[latency]\ninterval_ms = 100", 1);
    let path = fixture.path("with_admin.toml");
    fs::write(&path, format!("{config}\n[admin]\nlisten = \"{listen}\"\n")).unwrap();
    let gateway = process::start(["run", text(&path), "--date", "2019-01-30"]);
    gateway.wait_for_stderr("admin listener");
    gateway
}

/// Monitoring is lost then, and no market data. It comes back without a restart.
#[test]
fn a_gateway_runs_without_its_admin_listener_until_the_port_is_free() {
    let fixture = GatewayFixture::new();
    let address = free_address();
    let taken = std::net::TcpListener::bind(address).unwrap();
    let gateway = gateway(&fixture, &address.to_string());
    let alarm = gateway.wait_for_stderr("runs without metrics and health, and tries again");
    assert!(alarm.contains("alarm=\"admin-listener-down\""), "{alarm}");
    let control = fixture.path("control");
    let status = process::run(["ha", "status", "--socket", text(&control)]);
    assert_eq!(status.code, Some(0), "{}", status.stderr);
    drop(taken);
    let ended = gateway.wait_for_stderr("the port is free, and it listens");
    assert!(ended.contains("ends=\"admin-listener-down\""), "{ended}");
    assert_eq!(get_at(address, "/live").0, 200);
    let raised = "mdgw_alarms_total{alarm=\"admin-listener-down\"} 1";
    assert!(get_at(address, "/metrics").1.lines().any(|line| line == raised));
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
}

/// A log that nobody reads delays no other thread, so these metrics alone show it.
#[test]
fn a_log_that_nobody_reads_is_in_the_metrics() {
    let fixture = GatewayFixture::new();
    let listen = free_address();
    let config = fixture.config_text(&GatewayOptions::itch());
    let path = fixture.path("with_admin.toml");
    fs::write(&path, format!("{config}\n[admin]\nlisten = \"{listen}\"\n")).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let (written, write_count) = mpsc::channel();
    let mut filler = writer.try_clone().unwrap();
    // Once the pipe is full, the filler waits in its write until somebody reads.
    let fill =
        thread::spawn(move || while filler.write_all(&[b'x'; 4_096]).is_ok_and(|()| written.send(()).is_ok()) {});
    while write_count.recv_timeout(Duration::from_secs(2)).is_ok() {}
    let mut gateway = Command::new(process::program())
        .args(["run", text(&path), "--date", "2019-01-30"])
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    let metric = |name: &str| {
        let metrics = try_get_at(listen, "/metrics").map(|(_, text)| text).unwrap_or_default();
        let mut samples = metrics.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        samples.next()
    };
    wait_until("lines wait", || metric("mdgw_log_events_waiting ") > Some(0));
    assert_eq!(metric("mdgw_log_events_lost_total "), Some(0));
    // The gateway runs all the same.
    assert_eq!(get_at(listen, "/live").0, 200);
    // The filler ends after the block that it is writing.
    drop(write_count);
    let read = thread::spawn(move || std::io::copy(&mut { reader }, &mut std::io::sink()));
    wait_until("all is written once it is read", || metric("mdgw_log_events_waiting ") == Some(0));
    let process = rustix::process::Pid::from_child(&gateway);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(gateway.wait().unwrap().success());
    fill.join().unwrap();
    let _bytes = read.join().unwrap().unwrap();
}

#[test]
fn a_scrape_agrees_with_top_and_a_foreign_parser_reads_it() {
    let Some(python) = python("metrics read by a third-party parser") else { return };
    let fixture = GatewayFixture::new();
    let listen = free_address();
    let gateway = gateway(&fixture, &listen.to_string());

    let (code, body) = get_at(listen, "/ready");
    assert_eq!((code, body.as_str()), (503, "one is waiting\n"), "no packet yet");
    assert_eq!(get_at(listen, "/live").0, 200);
    for (path, code, body) in [
        ("/leader", 200, "standalone: always publishes\n"),
        ("/leader?group=1", 200, "standalone: always publishes\n"),
        ("/leader?", 200, "standalone: always publishes\n"),
        ("/leader?_=17&group=1", 200, "standalone: always publishes\n"),
        ("/leader?group=9", 503, "no such group\n"),
    ] {
        assert_eq!(get_at(listen, path), (code, body.to_owned()), "{path}");
    }

    let _ = fixture.sim(&["--messages", "20000", "--rate", "20000"]).end().expect_code(0);
    // Everything has arrived once two snapshots are alike, and the latency thread has collected once more.
    let mut before = Value::Null;
    let mut latest = Value::Null;
    wait_until("the counters stand still", || {
        let socket = fixture.path("control");
        let arguments = ["top", "--once", "--json", "--interval", "300ms", "--socket", text(&socket)];
        latest = process::run(arguments).expect_code(0).json();
        let counts = latest["channels"][0]["messages"].clone();
        let is_same = counts.as_u64() > Some(19_000) && counts == before;
        before = counts;
        is_same
    });
    let channel = &latest["channels"][0];
    let (code, metrics) = get_at(listen, "/metrics");
    assert_eq!(code, 200);
    let (samples, families) = parse(&python, &metrics);
    for name in ["datagrams", "messages", "records", "packets_sent", "gaps", "gap_messages", "drops", "book_faults"] {
        // Heartbeats go on.
        let tolerance = if name == "datagrams" || name == "packets_sent" { 1_000.0 } else { 0.0 };
        let (scraped, shown) =
            (samples[&format!("mdgw_channel_{name}_total{{channel=one}}")], channel[name].as_f64().unwrap());
        assert!((0.0..=tolerance).contains(&(scraped - shown)), "{name}: scraped {scraped}, shown {shown}");
    }
    for (reason, count) in channel["drop_reasons"].as_object().unwrap() {
        let scraped = samples[&format!("mdgw_channel_dropped_total{{channel=one,reason={reason}}}")];
        assert!(scraped >= count.as_f64().unwrap(), "{reason}");
    }
    assert!((1.0..=5.0).contains(&samples["mdgw_channel_state{channel=one}"]));
    // As `mdgw --version`: the version, then the commit in brackets, if the build knew it.
    let version = process::run(["--version"]).expect_code(0).stdout;
    let (version, commit) =
        version.trim().trim_start_matches("mdgw ").split_once(' ').unwrap_or_else(|| (version.trim(), ""));
    let commit = commit.trim_matches(['(', ')']);
    let build = format!(",version=\"{version}\",commit=\"{commit}\"}} ");
    assert!(metrics.lines().any(|line| line.starts_with("mdgw_gateway{node=") && line.contains(&build)), "{build}");
    assert!(samples["mdgw_pool_turns_total{pool=main}"] >= latest["pools"][0]["turns"].as_f64().unwrap_or_default());
    let won = |line: &str| samples[&format!("mdgw_line_won_messages_total{{channel=one,line={line}}}")];
    assert!(won("A") + won("B") > 0.0);
    assert_eq!(samples["mdgw_kernel_drops_total{}"], latest["kernel_drops"].as_f64().unwrap());

    // A pool's distributions have the counts of its counters.
    assert!(samples["mdgw_pool_batch_events_count{pool=main}"] > 0.0);
    assert_eq!(
        samples["mdgw_pool_batch_events_count{pool=main}"],
        samples["mdgw_pool_batch_events_bucket{le=+Inf,pool=main}"]
    );
    assert!(samples["mdgw_pool_processing_seconds_sum{pool=main}"] > 0.0);
    assert!(samples["mdgw_pool_processing_seconds_bucket{le=0.004194304,pool=main}"] > 0.0);
    let faults = samples.iter().filter(|(name, _)| name.starts_with("mdgw_channel_book_faults_by_reason_total{"));
    let faults: Vec<f64> = faults.map(|(_, count)| *count).collect();
    assert_eq!(faults.len(), BookFault::ALL.len());
    assert_eq!(faults.iter().sum::<f64>(), samples["mdgw_channel_book_faults_total{channel=one}"]);
    for name in ["answered_total", "bytes_total", "expired_total", "truncated_total"] {
        assert!(samples.contains_key(&format!("mdgw_retransmission_{name}{{}}")), "{name}");
    }
    for line in [
        "# UNIT mdgw_receive_buffer_used_bytes bytes",
        "# UNIT mdgw_receive_buffer_limit_bytes bytes",
        "# HELP mdgw_channel_state state: 0 waiting, 1 live, 2 gap, 3 recovering, 4 stale, 5 ended, 6 failed",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line}");
    }
    // Each alarm is there before it is raised, so that its first rise is seen.
    for alarm in Alarm::ALL {
        assert!(samples.contains_key(&format!("mdgw_alarms_total{{alarm={}}}", alarm.name())), "{alarm:?}");
    }

    // Each stage's histogram: buckets ascend to the count, and the sum fits the bounds.
    let stage = "channel=one,stage=wire_to_wire";
    let count = samples[&format!("mdgw_channel_latency_seconds_count{{{stage}}}")];
    assert!(count > 0.0);
    assert_eq!(samples["mdgw_channel_latency_seconds_bucket{channel=one,le=+Inf,stage=wire_to_wire}"], count);
    assert!(samples[&format!("mdgw_channel_latency_seconds_sum{{{stage}}}")] > 0.0);
    for family in &families {
        let name = family["name"].as_str().unwrap();
        assert!(name.starts_with("mdgw_") && family["help"].as_str().is_some_and(|help| !help.is_empty()), "{family}");
        assert_ne!(family["type"], "unknown", "{name}");
        if family["type"] == "histogram" {
            let buckets = metrics.lines().filter(|line| {
                line.starts_with("mdgw_channel_latency_seconds_bucket") && line.contains("wire_to_wire")
            });
            let counts: Vec<u64> = buckets.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
            assert!(counts.len() > 10 && counts.is_sorted(), "{counts:?}");
        }
    }
    let (code, body) = get_at(listen, "/ready");
    assert_eq!(code, 200, "{body}");

    let exited = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(!exited.stderr.contains("panic"), "{}", exited.stderr);
    assert!(TcpStream::connect(listen).is_err());
}

#[test]
fn a_socket_in_the_file_system_is_for_its_owner_and_goes_with_the_gateway() {
    let fixture = GatewayFixture::new();
    let socket = fixture.path("admin");
    let gateway = gateway(&fixture, text(&socket));
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, metrics) = get(UnixStream::connect(&socket).unwrap(), "/metrics");
    assert_eq!(code, 200);
    assert!(metrics.ends_with("# EOF\n") && metrics.contains("mdgw_gateway{"), "{metrics}");
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(!socket.exists());
}

#[test]
fn a_hostile_client_costs_neither_the_gateway_nor_the_next_scrape() {
    let fixture = GatewayFixture::new();
    let listen = free_address();
    let gateway = gateway(&fixture, &listen.to_string());
    let mut slow: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(listen).unwrap()).collect();
    for (number, stream) in slow.iter_mut().enumerate() {
        // A reset by the server, which has closed what is beyond its limit, is no error here.
        let _written = match number % 3 {
            0 => stream.write_all(b"GET /metrics HTTP/1.1\r\nX: "),
            1 => stream.write_all(&[0xff; 65_536]),
            _ => stream.write_all(b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"),
        };
    }
    // The server gives each of them up by itself.
    wait_until("the listener answers again", || {
        let Ok(mut stream) = TcpStream::connect(listen) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = String::new();
        let asked = stream.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    });
    drop(slow);
    let exited = gateway.stop_with(Signal::Terminate).expect_code(0);
    assert!(!exited.stderr.contains("panic"), "{}", exited.stderr);
}
