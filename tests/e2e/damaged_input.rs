//! Truncated or invalid files, closed pipes, impossible configurations and arguments. Valid input before the damage is
//! kept. The error names the position of the damage, and the exit code is set.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests")]

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use flate2::{Compression, write::GzEncoder};
use mdgw_tests::{
    feeds::{self, MIDNIGHT_NS, SESSION},
    gateway_fixture::{GatewayFixture, GatewayOptions, text, wait_until_joined},
    namespaces::Namespace,
    process::{self, ExitedProcess, Signal},
    skip::skip,
};

#[test]
fn a_truncated_capture_yields_earlier_records_and_the_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pcap");
    let whole = capture(&path);
    let (all, _) = records(&path, 0);
    for cut_at in [whole.len() - 1, whole.len() / 2, 24 + 8] {
        fs::write(&path, &whole[..cut_at]).unwrap();
        let (found, ended) = records(&path, 2);
        assert!(all.starts_with(&found), "cut at {cut_at}: not a prefix of the output of the complete file");
        // The last packet only contains the end of the session.
        let share = if cut_at == whole.len() - 1 {
            1.0..=1.0
        } else if cut_at > 100 {
            0.3..=0.7
        } else {
            0.0..=0.0
        };
        let found = found.len() as f64 / all.len() as f64;
        assert!(share.contains(&found), "cut at {cut_at}: {found} of the records: {}", ended.stderr);
        assert!(ended.stderr.contains("at byte ") && ended.stderr.contains(text(&path)), "{}", ended.stderr);
    }
}

#[test]
fn damage_inside_a_capture_is_reported_with_its_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.pcap");
    let mut bytes = capture(&path);
    // Overwrite the length of the second packet: no capture has packets of 4 GB.
    let first_bytes = u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
    let second = 24 + 16 + first_bytes;
    bytes[second + 8..second + 12].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let (_, ended) = records(&path, 2);
    assert!(ended.stderr.contains(&format!("at byte {second}")), "{second}: {}", ended.stderr);
    assert_eq!(ended.json()["total"]["packets"], 1, "the first packet is valid");
}

#[test]
fn a_truncated_gzip_capture_yields_what_could_be_decompressed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pcap.gz");
    let whole = capture(&path);
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(&whole).unwrap();
    let packed = packer.finish().unwrap();
    fs::write(&path, &packed[..packed.len() / 2]).unwrap();
    let (found, ended) = records(&path, 2);
    assert!(!found.is_empty(), "{}", ended.stderr);
    assert!(ended.stderr.contains("of the decompressed stream"), "{}", ended.stderr);
}

#[test]
fn files_that_are_not_captures_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("empty", &b""[..]), ("text", b"no capture at all"), ("zeros", &[0; 4096])] {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        for more in [&["--offline"][..], &["--max", "--to", "127.0.0.1:9"]] {
            let ended = process::run(["replay", text(&path)].iter().chain(more)).expect_code(2);
            assert!(ended.stderr.contains(text(&path)) && !ended.stderr.contains("panicked"), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_closed_output_pipe_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.pcap");
    capture(&path);
    let mut child = Command::new(process::program())
        .args(["replay", "--offline", text(&path), "--date", "2019-01-30", "-o", "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut head = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    assert_eq!(&head[..3], b"DBN");
    // The pipe is closed although megabytes of output remain.
    let ended = child.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{output}");
    assert!(!output.contains("panicked") && !output.contains("roken pipe"), "{output}");
}

#[test]
fn configuration_errors_name_file_line_and_key() {
    let fixture = GatewayFixture::new();
    let good = fixture.config_text(&GatewayOptions::itch());
    for (from, to, key) in [
        ("threads = 2", "threads = 0", "threads"),
        ("threads = 2", "thread = 2", "thread"),
        ("io = \"auto\"", "io = \"dpdk\"", "io"),
        ("feed = \"nasdaq-itch-5.0\"", "feed = \"nasdaq-itch-9\"", "feed"),
        ("group = \"239.", "group = \"two39.", "group"),
        ("name = \"B\"", "name = \"A\"", "name"),
        ("allowed = [\"127.0.0.0/8\"]", "allowed = [\"127.0.0.0/80\"]", "allowed"),
        // Of a file that is not TOML nothing is shown: it may be a key file, given by mistake.
        ("level = \"info\"", "level = info", "TOML syntax error"),
    ] {
        let wrong = good.replacen(from, to, 1);
        assert_ne!(wrong, good, "{from}");
        let path = fixture.path("wrong.toml");
        fs::write(&path, &wrong).unwrap();
        let line = 1 + good.lines().zip(wrong.lines()).position(|(good, wrong)| good != wrong).unwrap();
        let checked = process::run(["check", text(&path)]);
        assert_ne!(checked.code, Some(0), "{to}: {}", checked.stdout);
        let ran = process::run(["run", text(&path)]).expect_code(2);
        for ended in [checked, ran] {
            let output = format!("{}{}", ended.stdout, ended.stderr);
            assert!(output.contains(key) && output.contains("wrong.toml"), "{to}: {output}");
            assert!(
                output.lines().any(|output| output.contains(&format!("wrong.toml:{line}"))),
                "{to}, line {line}: {output}"
            );
        }
    }
    let missing = process::run(["run", text(&fixture.path("nowhere.toml"))]).expect_code(2);
    assert!(missing.stderr.contains("nowhere.toml"), "{}", missing.stderr);
}

#[test]
fn shipped_configurations_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/config");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let checked = process::run(["check", text(&path)]);
        assert!(checked.stdout.contains("channel"), "{}{}", checked.stdout, checked.stderr);
        // Not every host has the interfaces and cores of the large configuration.
        let faults = checked.stdout.lines().filter(|line| line.starts_with("fault: ")).count();
        assert_eq!(checked.code, Some(i32::from(faults > 0)), "{}", checked.stdout);
        assert!(faults == 0 || !path.ends_with("loopback.toml"), "{}", checked.stdout);
        count += 1;
    }
    assert!(count >= 2);
}

#[test]
fn check_fails_where_run_would_not_start() {
    let fixture = GatewayFixture::new();
    let good = fixture.config_text(&GatewayOptions::itch());
    let path = fixture.path("gateway.toml");
    let check = |text_of: &str| {
        fs::write(&path, text_of).unwrap();
        process::run(["check", text(&path)])
    };
    let _ = check(&good).expect_code(0);
    let log_dir = good.lines().find(|line| line.starts_with("log_dir")).unwrap();
    let state_file = good.lines().find(|line| line.starts_with("state_file")).unwrap();
    for (from, to, fault) in [
        ("threads = 2", "cores = [999]", "core 999 of pool main"),
        ("interface = \"127.0.0.1\"", "interface = \"nosuch0\"", "interface nosuch0 is not on this host"),
        (state_file, "state_file = \"/proc/mdgw/state\"", "/proc/mdgw of the state file"),
        (log_dir, "log_dir = \"/dev/null/log\"", "/dev/null/log of the publication logs"),
    ] {
        let wrong = good.replacen(from, to, 1);
        let checked = check(&wrong).expect_code(1);
        let output = checked.stdout.lines().any(|line| line.starts_with("fault: ") && line.contains(fault));
        assert!(output, "{fault}: {}", checked.stdout);
        let _ = process::run(["run", text(&path)]).expect_code(1);
    }
}

#[test]
fn check_warns_of_an_interface_that_carries_no_packets() {
    let test = "check_warns_of_an_interface_that_carries_no_packets";
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return skip(test, &format!("no network namespaces here ({error})")),
    };
    namespace.run(|| {
        let ip = |arguments: &str| {
            let status = Command::new("ip").args(arguments.split_whitespace()).status();
            status.is_ok_and(|status| status.success())
        };
        if !ip("link add feed0 type veth peer name feed1") {
            return skip(test, "no veth interfaces here");
        }
        assert!(ip("address add 10.77.0.1/24 dev feed0"));
        let fixture = GatewayFixture::new();
        let path = fixture.path("gateway.toml");
        let on = |interface: &str| {
            let good = fixture.config_text(&GatewayOptions::itch());
            fs::write(&path, good.replacen("interface = \"127.0.0.1\"", interface, 1)).unwrap();
            process::run(["check", text(&path)]).expect_code(0).stdout
        };
        let is_down = "warning: interface feed0 is down, so it carries no packets: `ip link set feed0 up`\n";
        for interface in ["interface = \"feed0\"", "interface = \"10.77.0.1\""] {
            let checked = on(interface);
            assert!(checked.contains(is_down), "{checked}");
        }
        // The other end of the cable is down.
        assert!(ip("link set feed0 up"));
        let checked = on("interface = \"feed0\"");
        assert!(checked.contains("warning: interface feed0 has no carrier, so it carries no packets"), "{checked}");
        assert!(ip("link set feed1 up"));
        process::wait_until("the interface has a carrier", || !on("interface = \"feed0\"").contains("feed0 has no"));
        assert!(!on("interface = \"feed0\"").contains("carries no packets"));
    });
}

/// `mdgw live` needs the file and the gateway does not, so each error is a warning.
#[test]
fn check_reads_the_keys_of_live_clients() {
    let fixture = GatewayFixture::new();
    let (path, keys) = (fixture.path("gateway.toml"), fixture.path("client_keys"));
    let table = format!("[live]\nlisten = \"127.0.0.1:13000\"\nkey_file = \"{}\"\n", text(&keys));
    fs::write(&path, fixture.config_text(&GatewayOptions::itch()) + &table).unwrap();
    let good = "research db-unitTESTkey0123456789abcdefgh XNAS.ITCH 10\n";
    for (content, mode, expected) in [
        (None, 0, Some("cannot read file of client keys")),
        (Some("research"), 0o600, Some("line 1: 1 fields found")),
        (Some(good), 0o640, Some("mode 640 allows access by group or others")),
        (Some(good), 0o600, None),
    ] {
        if let Some(content) = content {
            fs::write(&keys, content).unwrap();
            fs::set_permissions(&keys, fs::Permissions::from_mode(mode)).unwrap();
        }
        let checked = process::run(["check", text(&path)]).expect_code(0).stdout;
        let warning = checked.lines().find(|line| line.starts_with("warning: `mdgw live` will not start: "));
        assert_eq!(warning.is_some(), expected.is_some(), "{checked}");
        assert!(warning.unwrap_or_default().contains(expected.unwrap_or_default()), "{checked}");
        assert!(!checked.contains("unitTEST"), "a key is never shown");
    }
}

/// As the keys of live clients: `mdgw nats` needs the file, and the gateway does not.
#[test]
fn check_reads_the_login_of_the_nats_sink() {
    let fixture = GatewayFixture::new();
    let (path, token) = (fixture.path("gateway.toml"), fixture.path("token"));
    let table = format!("[nats]\nservers = [\"tls://127.0.0.1:4222\"]\ntoken_file = \"{}\"\n", text(&token));
    fs::write(&path, fixture.config_text(&GatewayOptions::itch()) + &table).unwrap();
    for (mode, expected) in [
        (None, Some("cannot read password file")),
        (Some(0o644), Some("mode 644 allows access by group or others")),
        (Some(0o600), None),
    ] {
        if let Some(mode) = mode {
            fs::write(&token, "secret-of-this-test").unwrap();
            fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        }
        let checked = process::run(["check", text(&path)]).expect_code(0).stdout;
        let warning = checked.lines().find(|line| line.starts_with("warning: `mdgw nats` will not start: "));
        assert_eq!(warning.is_some(), expected.is_some(), "{checked}");
        assert!(warning.unwrap_or_default().contains(expected.unwrap_or_default()), "{checked}");
        assert!(!checked.contains("secret-of-this-test"), "a token is never shown");
    }
}

#[test]
fn a_schema_not_carried_by_the_feed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tops.pcap");
    // System Event Message (`S`): start of messages.
    let message = [&b"SO"[..], &MIDNIGHT_NS.to_le_bytes()].concat();
    let packets = feeds::iex_packets(TOPS, 7, MIDNIGHT_NS, [message.as_slice()]);
    feeds::write_capture(&path, feeds::DESTINATIONS[0], &packets);
    let replay = |schema| process::run(["replay", text(&path), "--offline", "--schema", schema]);
    let _ = replay("mbp-1,trades").expect_code(0);
    let ended = replay("mbp-1,mbp-10").expect_code(2);
    let expected = "schema mbp-10 is not available from iex-tops-1.6; available: mbo, mbp-1, trades";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
}

#[test]
fn an_empty_capture_is_reported_as_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.pcap");
    let whole = capture(&folder.path().join("whole.pcap"));
    fs::write(&path, &whole[..24]).unwrap();
    for more in [&["--offline"][..], &["--max", "--to", "127.0.0.1:9"]] {
        let ended = process::run(["replay", text(&path)].iter().chain(more)).expect_code(2);
        assert!(ended.stderr.contains(&format!("no packets in {}", text(&path))), "{}", ended.stderr);
    }
}

#[test]
fn a_truncated_latency_log_is_reported_up_to_the_cut_and_invalid_ones_are_refused() {
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &[]);
    let sim = fixture.sim(&["--messages", "2000", "--seed", "1", "--rate", "20000"]);
    let _ = sim.end().expect_code(0);
    gateway.signal(Signal::Terminate);
    let _ = gateway.end().expect_code(0);
    let log = fs::read_dir(fixture.path("latency")).unwrap().next().unwrap().unwrap().path();
    let _ = process::run(["report", text(&log)]).expect_code(0);

    let whole = fs::read(&log).unwrap();
    let cut_line = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let cut = fixture.path("cut.hlog");
    fs::write(&cut, &whole[..cut_line + 10]).unwrap();
    let ended = process::run(["report", text(&cut)]).expect_code(2);
    assert!(ended.stderr.contains(&format!("line at byte {cut_line}")), "{}", ended.stderr);
    assert!(ended.stdout.contains("wire_to_user"), "the rest is reported: {}", ended.stdout);

    let header = whole.split_inclusive(|byte| *byte == b'\n').take_while(|line| !line.starts_with(b"Tag=")).flatten();
    let header: Vec<u8> = header.copied().collect();
    for content in [&b""[..], b"no log at all\n", &[0; 4096], &header] {
        fs::write(&cut, content).unwrap();
        let ended = process::run(["report", text(&cut)]).expect_code(2);
        assert!(ended.stdout.is_empty(), "{}", ended.stdout);
        assert!(ended.stderr.contains("no interval in "), "{}", ended.stderr);
    }
}

#[test]
fn command_line_errors_exit_2_and_name_the_argument() {
    for (arguments, part) in [
        (&["tail"][..], "--line"),
        (&["tail", "--line", "nowhere"], "nowhere"),
        (&["tail", "--line", "239.1.1.1:31000", "--schema", "mbp-2"], "mbp-2"),
        (&["tail", "--line", "239.1.1.1:31000", "--date", "yesterday"], "yesterday"),
        (&["tail", "--line", "239.1.1.1:31000", "--json", "-o", "x.dbn"], "--json"),
        (&["sim"], "--line"),
        (&["sim", "--line", "239.1.1.1:1", "--loss", "2"], "--loss"),
        (&["sim", "--line", "239.1.1.1:1", "--capture", "/nowhere.pcap"], "/nowhere.pcap"),
        (&["replay"], "FILE"),
        (&["replay", "/nowhere.pcap", "--offline"], "/nowhere.pcap"),
        (&["run"], "CONFIG"),
        (&["check"], "CONFIG"),
        (&["report", "/nowhere.hlog"], "/nowhere.hlog"),
        (&["fly"], "fly"),
    ] {
        let ended = process::run(arguments).expect_code(2);
        assert!(ended.stderr.contains(part) && ended.stdout.is_empty(), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn an_unserved_subscriber_exits_after_its_idle_time() {
    let fixture = GatewayFixture::new();
    let ended = fixture.start_tail(fixture.output, &["--exit-idle-s", "0.2"]).end().expect_code(0);
    assert!(ended.stdout.is_empty(), "{}", ended.stdout);
}

#[test]
fn tail_prints_table_rows_or_json_objects() {
    let fixture = GatewayFixture::new();
    let gateway = fixture.gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let [rows, objects] =
        [&[][..], &["--json"]].map(|more| fixture.start_tail(fixture.output, &[&["--until-ended"], more].concat()));
    wait_until_joined(fixture.output, 2);
    let _ = fixture.sim(&["--messages", "2000", "--stocks", "20", "--rate", "20000"]).end().expect_code(0);
    let (rows, objects) = (rows.end().expect_code(0).stdout, objects.end().expect_code(0).stdout);
    let _ = gateway.stop_with(Signal::Terminate).expect_code(0);

    let (heading, rows) = rows.split_once('\n').unwrap();
    assert!(heading.starts_with("time (UTC)"), "{heading}");
    assert_eq!(rows.lines().count(), objects.lines().count());
    for (row, object) in rows.lines().zip(objects.lines()) {
        let object: serde_json::Value = serde_json::from_str(object).unwrap();
        let fields: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            fields[2..7],
            ["1", "2019-01-30", "#0", &object["input_sequence"].to_string(), &object["index"].to_string()]
        );
    }
    assert!(rows.lines().any(|row| row.contains(" mbo        A   ")), "{rows}");
}

/// A wrong address or sender looks like a quiet feed otherwise.
#[test]
fn tail_says_that_no_packet_has_arrived() {
    let gateway = GatewayFixture::new();
    let running = gateway.gateway(&GatewayOptions::itch(), &["--date", "2019-01-30"]);
    let _ = gateway.sim(&["--messages", "200", "--stocks", "20", "--rate", "20000"]).end().expect_code(0);
    for (more, arrives) in [(&["--source", "127.0.0.9"][..], false), (&["--source", "127.0.0.1"], true)] {
        let ended = gateway.start_tail(gateway.output, &[&["--exit-idle-s", "1.5"], more].concat()).end();
        let is_said = ended.stderr.contains("no packet has arrived on any line");
        assert_eq!(is_said, !arrives, "{more:?}: {}", ended.stderr);
    }
    let _ = running.stop_with(Signal::Terminate).expect_code(0);
}

/// Message protocol of IEX TOPS 1.6.
const TOPS: u16 = 0x8003;

/// Writes a capture of a synthetic day. Returns its bytes.
fn capture(path: &Path) -> Vec<u8> {
    let packets = feeds::itch_packets(feeds::itch_day(20_000, 9), SESSION, MIDNIGHT_NS);
    feeds::write_capture(path, feeds::DESTINATIONS[0], &packets);
    fs::read(path).unwrap()
}

/// The records of a capture that is replayed with this exit code, without the file's metadata.
fn records(capture: &Path, code: i32) -> (Vec<u8>, ExitedProcess) {
    let out = capture.with_extension("dbn");
    let arguments = ["replay", "--offline", text(capture), "--feed", "nasdaq-itch-5.0", "--schema", "mbo"];
    let more = ["--date", "2019-01-30", "--ts-recv", "none", "--json", "-o", text(&out)];
    let ended = process::run(arguments.into_iter().chain(more)).expect_code(code);
    let bytes = fs::read(&out).unwrap();
    let metadata_bytes = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    (bytes[metadata_bytes..].to_vec(), ended)
}
