//! Nodes of ZooKeeper, started from the jars.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddrV4,
    path::Path,
    process::{Command, Stdio},
};

use super::server::{Health, HealthQuery, StoreNode};

pub(super) fn is_installed() -> bool {
    let mut java = Command::new("java");
    let java = java.arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    java.is_ok_and(|status| status.success()) && JARS.split(':').all(|jar| Path::new(jar).exists())
}

pub(super) fn nodes(directory: &Path, addresses: &[[SocketAddrV4; 3]]) -> Vec<StoreNode> {
    let mut members = String::new();
    if addresses.len() > 1 {
        for (index, [client, peer, election]) in addresses.iter().enumerate() {
            let _ = writeln!(members, "server.{index}={}:{}:{}", client.ip(), peer.port(), election.port());
        }
    }
    let node = |(index, [client, ..]): (usize, &[SocketAddrV4; 3])| {
        let data = directory.join(format!("n{index}"));
        fs::create_dir_all(&data).expect("a node's directory can be made");
        fs::write(data.join("myid"), index.to_string()).expect("a node's directory can be written");
        let settings = format!(
            "dataDir={}\nclientPortAddress={}\nclientPort={}\n{SETTINGS}{members}",
            data.display(),
            client.ip(),
            client.port()
        );
        let configuration = directory.join(format!("n{index}.cfg"));
        fs::write(&configuration, settings).expect("a node's configuration can be written");
        let mut command: Vec<String> = ["java", "-cp", JARS].map(str::to_owned).into();
        command.extend(JAVA_OPTIONS.map(str::to_owned));
        command.extend([MAIN_CLASS.to_owned(), configuration.display().to_string()]);
        let health = Health { address: *client, serves: IS_SERVING, leads: IS_LEADER };
        StoreNode::new(command, *client, health, data, directory.join(format!("n{index}.log")))
    };
    addresses.iter().enumerate().map(node).collect()
}

const MAIN_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// The manifest of the first jar names all other jars.
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";
/// JVM options for three nodes on one small machine.
const JAVA_OPTIONS: [&str; 5] =
    ["-Xmx96m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dzookeeper.admin.enableServer=false"];
/// A tick of 100 ms allows sessions from 200 ms.
const SETTINGS: &str = "tickTime=100
initLimit=50
syncLimit=20
maxClientCnxns=0
4lw.commands.whitelist=srvr
";

const IS_SERVING: HealthQuery =
    HealthQuery { request: "srvr", yes: &["Mode: leader", "Mode: follower", "Mode: standalone"] };
const IS_LEADER: HealthQuery = HealthQuery { request: "srvr", yes: &["Mode: leader", "Mode: standalone"] };
