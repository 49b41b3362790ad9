//! `mdgw witness`: votes in the quorum election and publishes nothing.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::{SocketAddrV4, UdpSocket},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context as _, bail, ensure};
use mdgw_election::{
    auth::SharedKey,
    identity::NodeId,
    quorum::{
        link::VoteLink,
        witness::{Witness, WitnessOptions},
    },
    timing::{RATE_ERROR_PPM, RATE_ERROR_PPM_MAX},
};
use mdgw_runtime::config::{host::check_writable, resolved::LogConfig};
use mdgw_status::snapshot::ListenerSnapshot;
use mdgw_sys::{clock_rate::CRYSTAL_ERROR_PPM, listener_counters::ListenerCounters};
use serde::Deserialize;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use super::{Outcome, logging, outlive, print, protect_secrets, service_manager::ServiceManager};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mdgw witness witness.toml
  mdgw witness witness.toml --check

The file:
  node = 3                                # node number of this voter; unique among gateways and witnesses
  listen = \"10.0.0.3:27500\"
  # Shared by all voters; create it with (umask 077; openssl rand -hex 32 > FILE).
  key_file = \"/etc/mdgw/key\"
  vote_directory = \"/var/lib/mdgw/votes\"  # on a disk: must survive a power loss
  [[peer]]                                # one for each gateway and each other witness
  node = 1
  address = \"10.0.0.1:27500\"

One witness serves all groups of its gateways. It uses this port only, and does not answer senders without the key.")]
pub(super) struct Args {
    /// Configuration file of the witness (TOML).
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Validate the configuration and exit.
    #[arg(long)]
    check: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Config::load(&args.config)?;
    protect_secrets()?;
    let key = SharedKey::load(&config.key_file)?;
    if args.check {
        // Any port, since the witness may be running on the configured one.
        UdpSocket::bind(SocketAddrV4::new(*config.listen.ip(), 0))
            .with_context(|| format!("listen on {}", config.listen))?;
        if let Err((place, error)) = check_writable(&config.vote_directory) {
            let directory = config.vote_directory.display();
            return Err(error).with_context(|| format!("vote_directory {directory}: write in {}", place.display()));
        }
        print(&config.explanation())?;
        return Ok(Outcome::Done);
    }
    let _log = logging::start(&LogConfig::default(), Vec::new());
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).context("catch signals")?;
    }
    outlive(&[SIGHUP])?;
    let listen = config.listen;
    let link = VoteLink::open(listen, NodeId(config.node), key, config.peers())
        .with_context(|| format!("listen on {listen}"))?;
    let options = WitnessOptions {
        node: NodeId(config.node),
        vote_directory: config.vote_directory.clone(),
        rate_error_ppm: config.rate_error_ppm,
        groups_max: config.groups_max,
    };
    let witness = Witness::new(link, options).map_err(anyhow::Error::msg)?;
    tracing::info!(node = config.node, %listen, groups = witness.group_count(), "witness: ready");
    ServiceManager::new().ready();
    let ended = witness.run(&stop).context("receive");
    tracing::info!("witness: {}", counts(witness.counters()));
    ended.map(|()| Outcome::Done)
}

/// What the socket has received and refused.
fn counts(counters: &ListenerCounters) -> ListenerSnapshot {
    let refused = counters.refusals().map(|(refusal, count)| (refusal.name().to_owned(), count));
    ListenerSnapshot { name: "votes".to_owned(), received: counters.received(), refused: refused.collect() }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    node: u8,
    listen: SocketAddrV4,
    key_file: PathBuf,
    vote_directory: PathBuf,
    #[serde(default = "default_rate_error_ppm")]
    rate_error_ppm: u32,
    #[serde(default = "default_groups_max")]
    groups_max: usize,
    #[serde(default)]
    peer: Vec<Peer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    node: u8,
    address: SocketAddrV4,
}

fn default_rate_error_ppm() -> u32 {
    RATE_ERROR_PPM
}

fn default_groups_max() -> usize {
    256
}

impl Config {
    fn load(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("configuration {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        // The file may be a key file that was given by mistake: the error of a file that is not TOML shows nothing of it.
        if let Some(error) = toml::de::DeTable::parse_recoverable(text).1.first() {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            bail!("line {line}: TOML syntax error: {}", error.message().trim_end().replace('\n', ", "));
        }
        let config: Self = toml::from_str(text)?;
        ensure!(config.listen.port() != 0, "listen = {:?}: port must be 1 to 65535", config.listen.to_string());
        ensure!(
            (CRYSTAL_ERROR_PPM..=RATE_ERROR_PPM_MAX).contains(&config.rate_error_ppm),
            "rate_error_ppm = {}: must be {CRYSTAL_ERROR_PPM} to {RATE_ERROR_PPM_MAX}",
            config.rate_error_ppm
        );
        ensure!((1..=65_536).contains(&config.groups_max), "groups_max = {}: must be 1 to 65536", config.groups_max);
        ensure!(!config.peer.is_empty(), "no [[peer]]: name each gateway with node and address");
        for (index, peer) in config.peer.iter().enumerate() {
            let Peer { node, address } = peer;
            ensure!(
                *node != config.node,
                "peer.node = {node}: equals the witness's own number; each voter needs a unique number"
            );
            ensure!(address.port() != 0, "peer.address = \"{address}\": port must be 1 to 65535");
            if config.peer[..index].iter().any(|other| other.node == *node || other.address == *address) {
                bail!("peer {node} at {address}: duplicate number or address");
            }
        }
        Ok(config)
    }

    fn peers(&self) -> BTreeMap<NodeId, SocketAddrV4> {
        self.peer.iter().map(|peer| (NodeId(peer.node), peer.address)).collect()
    }

    fn explanation(&self) -> String {
        let Self { node, listen, key_file, vote_directory, rate_error_ppm, groups_max, peer } = self;
        let mut text = format!(
            "witness      node {node} on {listen}, key {}\nvotes        {}, for up to {groups_max} groups\n\
             clock        rate error up to {rate_error_ppm} ppm\n",
            key_file.display(),
            vote_directory.display()
        );
        for Peer { node, address } in peer {
            // Writing to a string cannot fail.
            let _written = writeln!(text, "peer         node {node} at {address}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mdgw_runtime::config::{Resolved, resolved::Backend};

    use super::*;

    const GOOD: &str = r#"
node = 3
listen = "127.0.0.1:27500"
key_file = "key"
vote_directory = "votes"
[[peer]]
node = 1
address = "10.0.0.1:27500"
[[peer]]
node = 2
address = "10.0.0.2:27500"
"#;

    #[test]
    fn a_valid_configuration_is_explained() {
        expect![[r"
            witness      node 3 on 127.0.0.1:27500, key key
            votes        votes, for up to 256 groups
            clock        rate error up to 600 ppm
            peer         node 1 at 10.0.0.1:27500
            peer         node 2 at 10.0.0.2:27500
        "]]
        .assert_eq(&Config::parse(GOOD).unwrap().explanation());
    }

    #[test]
    fn the_shipped_witness_and_gateway_configurations_match() {
        let ops = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops");
        let witness = Config::load(&ops.join("witness/witness.toml")).unwrap();
        let gateway = Resolved::load(&ops.join("config/quorum.toml")).unwrap();
        let Backend::Quorum(quorum) = &gateway.election.as_ref().unwrap().backend else { panic!("it elects by votes") };
        assert_eq!(quorum.voters.get(&NodeId(witness.node)), Some(&witness.listen));
        let peers = witness.peers();
        assert_eq!(peers.get(&NodeId(gateway.gateway.node)), Some(&quorum.listen));
        let other = NodeId(2);
        assert_eq!(quorum.voters.get(&other), peers.get(&other));
        assert_eq!(witness.key_file, quorum.key_file);
    }

    #[test]
    fn invalid_settings_are_reported_with_key_and_value() {
        let check = |from: &str, to: &str, expected: &str| {
            assert!(GOOD.contains(from));
            let error = format!("{:#}", Config::parse(&GOOD.replacen(from, to, 1)).unwrap_err());
            assert!(error.contains(expected), "{error}");
        };
        check("node = 1", "node = 3", "peer.node = 3: equals the witness's own number");
        check("node = 2", "node = 1", "peer 1 at 10.0.0.2:27500: duplicate number or address");
        check("\"127.0.0.1:27500\"", "\"127.0.0.1:0\"", "listen = \"127.0.0.1:0\": port must be 1 to 65535");
        check("\"127.0.0.1:27500\"", "\"127.0.0.1\"", "listen");
        check("node = 3", "node = 300", "300");
        check("key_file", "key", "unknown field `key`");
        check("node = 3\n", "node = 3\nrate_error_ppm = 99999\n", "rate_error_ppm = 99999: must be 100 to 10000");
    }

    #[test]
    fn a_key_file_given_as_configuration_is_not_shown() {
        let key = "0123456789abcdef".repeat(4);
        for text in [key.clone(), format!("node = 3\n{key} {key}\n"), format!("node = \"{key}\n")] {
            let error = Config::parse(&text).unwrap_err();
            let shown = format!("{error:#} {error:?}");
            assert!(shown.contains("line ") && !shown.contains(&key[..8]), "{shown}");
        }
    }

    #[test]
    fn the_guide_lists_the_accepted_keys_with_their_defaults() {
        let expected = |text: &str| -> Vec<String> {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            let (_, keys) = error.split_once("expected").expect("an unknown key is refused");
            keys.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let in_peer = expected(&format!("{GOOD}no_such_key = 1")).into_iter().map(|key| format!("peer.{key}"));
        let mut accepted = expected("no_such_key = 1");
        accepted.extend(in_peer);

        let guide = include_str!("../../../../ops/guide/pair.md");
        let (_, table) = guide.split_once("The keys of the witness's file:").unwrap();
        let rows = table.lines().skip_while(|line| line.is_empty()).skip(2).map_while(|line| line.strip_prefix("| `"));
        let rows: Vec<_> = rows.map(|row| row.split(" | ").collect::<Vec<_>>()).collect();
        let listed: Vec<_> = rows.iter().map(|row| row[0].trim_end_matches('`')).collect();
        assert_eq!(listed, accepted);

        let defaults = rows.iter().filter(|row| row[1] != "required").map(|row| (row[0], row[1].to_owned()));
        let in_force = [("rate_error_ppm`", default_rate_error_ppm() as usize), ("groups_max`", default_groups_max())];
        assert!(defaults.eq(in_force.map(|(key, value)| (key, format!("`{value}`")))));
    }

    #[test]
    fn a_witness_without_gateways_is_refused() {
        let text = GOOD.split("[[peer]]").next().unwrap();
        assert!(Config::parse(text).unwrap_err().to_string().contains("[[peer]]"));
    }
}
