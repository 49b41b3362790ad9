//! No key and no password shows in what a pair writes, prints or discloses. The pair has every kind of secret, its log is at
//! level `trace`, and the search finds each secret where the test puts it. A process that holds a secret leaves no core dump.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use mdgw_status::control::{Request, send_request};
use mdgw_tests::{
    elected_pair::ElectedPair,
    gateway_fixture::{GatewayFixture, GatewayOptions, free_address, text, write_secret},
    http,
    process::{self, MdgwProcess, Signal, program, wait_until},
    skip::skip,
    stores::{Certificate, Ensemble, PASSWORD, Store, USER},
};
use memchr::memmem;

#[test]
fn a_pair_with_a_store_password_shows_no_secret() {
    shows_no_secret(Store::EtcdPassword);
}

#[test]
fn a_pair_with_a_client_certificate_shows_no_secret() {
    shows_no_secret(Store::EtcdTls);
}

/// A secret in the forms in which it could show.
struct Secret {
    name: &'static str,
    forms: Vec<Vec<u8>>,
}

impl Secret {
    fn new(name: &'static str, bytes: &[u8]) -> Self {
        let hex = |upper: bool| {
            bytes.iter().map(move |byte| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") })
        };
        let debug = format!("{bytes:?}");
        let mut forms = vec![
            bytes.to_vec(),
            hex(false).collect::<String>().into(),
            hex(true).collect::<String>().into(),
            debug.trim_matches(['[', ']']).into(),
        ];
        // Within a longer text, the first byte may be at each of three places of a group of four characters. Characters that
        // other bytes share are left out.
        for shift in 0..3 {
            let encoded = STANDARD_NO_PAD.encode([vec![0; shift], bytes.to_vec()].concat());
            forms.push(encoded[(shift * 8).div_ceil(6)..(shift + bytes.len()) * 8 / 6].into());
        }
        assert!(forms.iter().all(|form| form.len() >= 12), "{name}: too short: it may occur by chance");
        Self { name, forms }
    }

    /// The private key of a P-256 certificate: its number, and its file line by line.
    fn private_key(pem: &Path) -> Self {
        let pem = fs::read_to_string(pem).expect("the key can be read");
        let lines: Vec<_> = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = STANDARD_NO_PAD.decode(lines.concat().trim_end_matches('=')).expect("the key is in PEM form");
        // An octet string of 32 bytes.
        let number = der.windows(34).find(|window| window.starts_with(&[4, 32])).expect("a key of P-256");
        let mut secret = Self::new("private key", &number[2..]);
        secret.forms.extend(lines.iter().filter(|line| line.len() >= 12).map(|line| line.as_bytes().to_vec()));
        secret
    }

    fn shows_in(&self, text: &[u8]) -> bool {
        self.forms.iter().any(|form| memmem::find(text, form).is_some())
    }
}

fn names_of<'s>(secrets: &'s [Secret], text: &[u8]) -> Vec<&'s str> {
    secrets.iter().filter(|secret| secret.shows_in(text)).map(|secret| secret.name).collect()
}

/// A text of a process, and a part that shows that it is the text it should be.
struct Shown {
    place: String,
    text: Vec<u8>,
}

/// What was searched.
#[derive(Default)]
struct Search(Vec<Shown>);

impl Search {
    #[track_caller]
    fn add(&mut self, place: &str, text: impl Into<Vec<u8>>, must_have: &str) {
        let (place, text) = (place.to_owned(), text.into());
        let has = memmem::find(&text, must_have.as_bytes()).is_some();
        assert!(has, "{place} lacks {must_have:?}: {}", String::from_utf8_lossy(&text));
        self.0.push(Shown { place, text });
    }

    /// Command line and environment of a process.
    fn add_process(&mut self, id: u32, argument: &str) {
        let read = |name: &str| fs::read(format!("/proc/{id}/{name}")).expect("root may read it");
        self.add(&format!("command line of {id}"), read("cmdline"), argument);
        self.add(&format!("environment of {id}"), read("environ"), "PATH=");
    }

    /// All files below `folder` but those of the secrets.
    fn add_files(&mut self, folder: &Path, secret_files: &BTreeSet<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the directory can be listed").flatten() {
            let (path, kind) = (entry.path(), entry.file_type().expect("a file"));
            if kind.is_dir() {
                self.add_files(&path, secret_files);
            } else if kind.is_file() && !secret_files.contains(&path) {
                self.add(text(&path), fs::read(&path).unwrap_or_default(), "");
            }
        }
    }
}

const GATEWAYS_KEY: [u8; 32] = *b"\x8f\x13\xd2link key: sure to be unique\xe5\x77";
const TAG_KEY: [u8; 32] = *b"\x91\xa4\xfetag key: sure to be unique!\x02\x6c";
const CLIENT_KEY: &str = "db-clientTESTkey56789abcdefghijk";

fn write_key(path: &Path, key: &[u8; 32]) {
    write_secret(path, &key.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
}

/// A pair over etcd with `mdgw live` and a witness: every kind of key.
struct SecretPair {
    pair: ElectedPair,
    configs: [PathBuf; 2],
    live: MdgwProcess,
    live_address: SocketAddrV4,
    witness: MdgwProcess,
    witness_config: PathBuf,
    secrets: Vec<Secret>,
    secret_files: BTreeSet<PathBuf>,
    _secrets_folder: GatewayFixture,
    _ensemble: Ensemble,
}

impl SecretPair {
    fn start(store: Store) -> Self {
        let ensemble = Ensemble::start(store, 1);
        let options = |tag_key: &Path| GatewayOptions {
            output: format!("tag_key_files = [\"{}\"]\n", text(tag_key)),
            segment_bytes: 1 << 20,
            retention_bytes: 2 << 20,
            ..GatewayOptions::itch()
        };
        // Apart from the gateways' files, which are searched.
        let secrets_folder = GatewayFixture::new();
        let [tag_key, password, clients] = ["tag", "password", "clients"].map(|name| secrets_folder.path(name));
        let mut pair = ElectedPair::new(options(&tag_key)).with_admin_listeners();
        let gateways_key = pair.gateways.fixture(1).path("key");
        write_key(&gateways_key, &GATEWAYS_KEY);
        write_key(&tag_key, &TAG_KEY);
        write_secret(&password, &format!("{PASSWORD}\n"));
        write_secret(&clients, &format!("test {CLIENT_KEY} * 10\n"));
        let mut secrets = vec![
            Secret::new("gateways' key", &GATEWAYS_KEY),
            Secret::new("tag key", &TAG_KEY),
            Secret::new("client key", CLIENT_KEY.as_bytes()),
        ];
        let endpoint = ensemble.addresses()[0];
        let access = if store == Store::EtcdPassword {
            secrets.push(Secret::new("password", PASSWORD.as_bytes()));
            format!("user = \"{USER}\"\npassword_file = \"{}\"\n", text(&password))
        } else {
            let [ca, own, key] =
                [Certificate::Ca, Certificate::Client, Certificate::ClientKey].map(|which| ensemble.certificate(which));
            secrets.push(Secret::private_key(&key));
            let [ca, own, key] = [&ca, &own, &key].map(|path| text(path));
            format!("ca_file = \"{ca}\"\ncertificate_file = \"{own}\"\nkey_file = \"{key}\"\n")
        };
        let configs = [1, 2].map(|node| {
            let records =
                format!("[election.file]\ndirectory = \"{}\"\n", text(&pair.gateways.fixture(1).path("records")));
            let etcd = format!("[election.etcd]\nendpoints = [\"{endpoint}\"]\n{access}");
            let config = [
                ("backend = \"file\"", "backend = \"etcd\""),
                (&records, &etcd),
                ("level = \"info\"", "level = \"trace\""),
                ("[latency]", "[latency]\ninterval_ms = 100"),
            ]
            .iter()
            .fold(pair.config_text(node), |config, (from, to)| {
                assert!(config.contains(from), "{from}\n{config}");
                config.replacen(from, to, 1)
            });
            pair.gateways.start(node, &config);
            pair.gateways.fixture(node).path("gateway.toml")
        });
        let live_address = free_address();
        let live_config = pair.gateways.fixture(1).path("live.toml");
        let table = format!("[live]\nlisten = \"{live_address}\"\nkey_file = \"{}\"\n", text(&clients));
        let config = fs::read_to_string(&configs[0]).expect("the configuration was written");
        fs::write(&live_config, config + "\n" + &table).expect("a configuration can be written");
        let live = process::start(["live", text(&live_config)]);
        live.wait_for_stderr("live: listening");
        let witness_config = pair.gateways.fixture(1).path("witness.toml");
        let peer = free_address();
        let listen = free_address();
        let witness = format!(
            "node = 3\nlisten = \"{listen}\"\nkey_file = \"{}\"\nvote_directory = \"{}\"\n[[peer]]\nnode = 1\naddress = \"{peer}\"\n",
            text(&gateways_key),
            text(&pair.gateways.fixture(1).path("votes"))
        );
        fs::write(&witness_config, witness).expect("a configuration can be written");
        let witness = process::start(["witness", text(&witness_config)]);
        witness.wait_for_stderr("witness: ready");
        let secret_files = [gateways_key, tag_key, password, clients].into();
        Self {
            pair,
            configs,
            live,
            live_address,
            witness,
            witness_config,
            secrets,
            secret_files,
            _secrets_folder: secrets_folder,
            _ensemble: ensemble,
        }
    }

    fn search(&self) -> Search {
        let mut search = Search::default();
        for (config, node) in self.configs.iter().zip([1, 2]) {
            let gateways = &self.pair.gateways;
            let checked = process::run(["check", "--all", text(config)]);
            search.add("mdgw check", checked.stdout, "key_file = ");
            let examined = process::run(["doctor", text(config), "--json"]);
            search.add("mdgw doctor", examined.stdout, "mdgw check");
            let socket = gateways.fixture(node).path("control");
            for (request, part) in [
                (Request::Status {}, "\"name\":\"gw"),
                (Request::Snapshot {}, "\"pools\""),
                (Request::History { count: 100 }, "\"entries\""),
            ] {
                let answer = send_request(&socket, &request).expect("the gateway answers");
                search.add(&format!("control socket: {request:?}"), answer.to_string(), part);
            }
            let status = gateways.ha(node, &["status"]);
            search.add("mdgw ha status", status.stdout, "group  leader");
            let admin = self.pair.admin_address(node);
            let probes = ["/live", "/ready", "/leader"].map(|path| (path, ""));
            let pages = [
                ("/", "<!DOCTYPE html>"),
                ("/status.json", "\"alarms\""),
                ("/history.json", "\"entries\""),
                ("/metrics", "mdgw_"),
            ];
            for (path, part) in pages.into_iter().chain(probes) {
                search.add(path, http::get_at(admin, path).1, part);
            }
            let gateway = gateways.running(node).expect("the gateway runs");
            search.add_process(gateway.id(), "run");
            search.add_process(gateway.only_child(), "sentinel");
            search.add("log of a gateway", gateway.stderr_so_far(), "core dumps are disabled");
            search.add_files(&gateways.fixture(node).path(""), &self.secret_files);
        }
        search.add_process(self.live.id(), "live");
        search.add("log of mdgw live", self.live.stderr_so_far(), "live: listening");
        search.add_process(self.witness.id(), "witness");
        search.add("log of the witness", self.witness.stderr_so_far(), "witness: ready");
        let checked = process::run(["witness", "--check", text(&self.witness_config)]);
        search.add("mdgw witness --check", checked.stdout, "key ");
        search
    }
}

fn shows_no_secret(store: Store) {
    if !store.is_installed("shows_no_secret") {
        return;
    }
    let pair = SecretPair::start(store);
    let leader = pair.pair.leader();
    pair.pair.wait_until_eligible(3 - leader);
    // Over the store's connection and the pair link.
    wait_until("the leader hands over", || pair.pair.gateways.ha(leader, &["hand-over"]).code == Some(0));
    pair.pair.wait_until_leads(3 - leader);
    let log = |node| pair.pair.gateways.running(node).map(MdgwProcess::stderr_so_far).unwrap_or_default();
    wait_until("the log has the details of the store's client", || log(leader).contains("frame=Headers"));
    let refused = answer_of_live(&pair, "auth=00-fghij|dataset=XNAS.ITCH|encoding=dbn\n");
    assert!(refused.contains("Authentication failed"), "{refused}");
    let search = pair.search();
    for Shown { place, text } in &search.0 {
        assert_eq!(names_of(&pair.secrets, text), [""; 0], "{place}: {}", String::from_utf8_lossy(text));
    }
    assert_planted_secrets_are_found(&pair);
}

fn answer_of_live(pair: &SecretPair, request: &str) -> String {
    let mut stream = TcpStream::connect(pair.live_address).expect("mdgw live listens");
    stream.write_all(request.as_bytes()).expect("mdgw live reads");
    let mut answer = String::new();
    let _reset = stream.read_to_string(&mut answer);
    answer
}

/// Each secret in each form, and secrets in places that the search reads.
fn assert_planted_secrets_are_found(pair: &SecretPair) {
    let secrets = &pair.secrets;
    for secret in secrets {
        for form in &secret.forms {
            let text = [b"{\"key\":\"".as_slice(), form, b"\"}"].concat();
            assert_eq!(names_of(secrets, &text), [secret.name], "{}", String::from_utf8_lossy(form));
        }
        let middle = STANDARD_NO_PAD.encode([b"ab", secret.forms[0].as_slice(), b"cd"].concat());
        assert_eq!(names_of(secrets, middle.as_bytes()), [secret.name], "in base64, within other bytes");
    }
    let found_in = |search: &Search| -> Vec<String> {
        let found = search.0.iter().flat_map(|shown| names_of(secrets, &shown.text));
        found.map(str::to_owned).collect()
    };
    // A configuration that has a password where none belongs.
    let fixture = pair.pair.gateways.fixture(1);
    let planted = fixture.path("planted.toml");
    let config = fs::read_to_string(&pair.configs[0]).expect("the configuration was written");
    fs::write(
        &planted,
        config.replacen("[election.etcd]\n", &format!("[election.etcd]\nprefix = \"{CLIENT_KEY}\"\n"), 1),
    )
    .expect("a configuration can be written");
    let mut search = Search::default();
    search.add("mdgw check", process::run(["check", "--all", text(&planted)]).stdout, "election.etcd.prefix");
    assert_eq!(found_in(&search), ["client key"]);
    // A file of the gateway.
    let mut search = Search::default();
    search.add_files(&fixture.path(""), &pair.secret_files);
    assert_eq!(found_in(&search), ["client key"]);
    // A client that sends its key in the wrong place.
    let _refused = answer_of_live(pair, &format!("auth=00-fghij|dataset=XNAS.ITCH|encoding={CLIENT_KEY}\n"));
    pair.live.wait_for_stderr("Unsupported encoding");
    assert_eq!(names_of(secrets, pair.live.stderr_so_far().as_bytes()), ["client key"]);
    // Arguments and environment.
    let hex = String::from_utf8(secrets[0].forms[1].clone()).expect("digits");
    let mut command = Command::new("sh");
    command.args(["-c", "read line", "sh", &hex]).env("PLANTED", &hex).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("a shell starts");
    wait_until("the shell runs", || {
        fs::read(format!("/proc/{}/cmdline", child.id())).is_ok_and(|text| text.starts_with(b"sh\0"))
    });
    let mut search = Search::default();
    search.add_process(child.id(), "read line");
    drop(child.stdin.take());
    let _ended = child.wait();
    assert_eq!(found_in(&search), ["gateways' key"; 2]);
}

/// Starts `mdgw` with permission to dump core, in that directory.
fn start_dumpable(folder: &Path, arguments: &[&str]) -> MdgwProcess {
    let mut command = Command::new("prlimit");
    command.args(["--core=unlimited", "--"]).arg(program()).args(arguments).current_dir(folder);
    process::spawn(command)
}

#[test]
fn a_process_that_holds_a_secret_leaves_no_core_dump() {
    let fixture = GatewayFixture::new();
    let folder = fixture.path("");
    let dump_of = |arguments: &[&str], ready: &str| {
        let process = start_dumpable(&folder, arguments);
        process.wait_for_stderr(ready);
        process.stop_with(Signal::Abort).dumped_core
    };
    let options = GatewayOptions { segment_bytes: 1 << 20, retention_bytes: 2 << 20, ..GatewayOptions::itch() };
    let without_secrets = fixture.config(&options);
    if !dump_of(&["run", text(&without_secrets)], "gateway running") {
        return skip(
            "a_process_that_holds_a_secret_leaves_no_core_dump",
            "this host dumps no core (core_pattern, or the hard limit)",
        );
    }
    let (key, clients) = (fixture.path("key"), fixture.path("clients"));
    write_key(&key, &TAG_KEY);
    write_secret(&clients, &format!("test {CLIENT_KEY} * 10\n"));
    let tagged = GatewayOptions { output: format!("tag_key_files = [\"{}\"]\n", text(&key)), ..options };
    let live = format!("\n[live]\nlisten = \"{}\"\nkey_file = \"{}\"\n", free_address(), text(&clients));
    let with_tags = fixture.path("tagged.toml");
    fs::write(&with_tags, fixture.config_text(&tagged) + &live).expect("a configuration can be written");
    let witness = fixture.path("witness.toml");
    let (listen, peer) = (free_address(), free_address());
    let voting = format!(
        "node = 3\nlisten = \"{listen}\"\nkey_file = \"{}\"\nvote_directory = \"{}\"\n[[peer]]\nnode = 1\naddress = \"{peer}\"\n",
        text(&key),
        text(&fixture.path("votes"))
    );
    fs::write(&witness, voting).expect("a configuration can be written");
    let socket = fixture.path("sentinel");
    for (arguments, ready) in [
        (&["run", text(&with_tags)][..], "gateway running"),
        (&["live", text(&with_tags)], "live: listening"),
        (&["witness", text(&witness)], "witness: ready"),
        (&["sentinel", "--priority", "0", "--socket", text(&socket)], "sentinel: ready"),
    ] {
        assert!(!dump_of(arguments, ready), "{arguments:?}");
    }
}
