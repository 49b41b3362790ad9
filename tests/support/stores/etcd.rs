//! Nodes of etcd.

use std::{
    fs,
    net::SocketAddrV4,
    path::Path,
    process::{Command, Stdio},
};

use super::server::{Health, HealthQuery, StoreNode, send_request};

/// The only user of a store with passwords.
pub const USER: &str = "mdgw";
/// The password of [`USER`].
pub const PASSWORD: &str = "correct horse";

pub(super) const CA: &str = "ca.pem";
pub(super) const CLIENT: &str = "client.pem";
pub(super) const CLIENT_KEY: &str = "client.key";

pub(super) fn is_installed() -> bool {
    let runs = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    runs("etcd", "--version") && runs("openssl", "version")
}

/// The nodes of one cluster. `certificates`: the directory of certificate files, if clients need certificates.
pub(super) fn nodes(directory: &Path, addresses: &[[SocketAddrV4; 3]], certificates: Option<&Path>) -> Vec<StoreNode> {
    let members: Vec<String> =
        addresses.iter().enumerate().map(|(index, [_, peer, _])| format!("n{index}=http://{peer}")).collect();
    let members = members.join(",");
    let scheme = if certificates.is_some() { "https" } else { "http" };
    let node = |(index, [client, peer, health]): (usize, &[SocketAddrV4; 3])| {
        let data = directory.join(format!("n{index}"));
        let mut command: Vec<String> = vec!["etcd".to_owned()];
        let mut option = |name: &str, value: String| command.push(format!("--{name}={value}"));
        option("name", format!("n{index}"));
        option("data-dir", data.display().to_string());
        option("listen-client-urls", format!("{scheme}://{client}"));
        option("advertise-client-urls", format!("{scheme}://{client}"));
        option("listen-peer-urls", format!("http://{peer}"));
        option("initial-advertise-peer-urls", format!("http://{peer}"));
        option("initial-cluster", members.clone());
        // Health checks use plain HTTP, also where clients need TLS.
        option("listen-metrics-urls", format!("http://{health}"));
        if let Some(certificates) = certificates {
            option("cert-file", certificates.join(SERVER).display().to_string());
            option("key-file", certificates.join(SERVER_KEY).display().to_string());
            option("trusted-ca-file", certificates.join(CA).display().to_string());
            option("client-cert-auth", "true".to_owned());
        }
        let health = Health { address: *health, serves: IS_SERVING, leads: IS_LEADER };
        StoreNode::new(command, *client, health, data, directory.join(format!("n{index}.log")))
    };
    addresses.iter().enumerate().map(node).collect()
}

/// Restricts access to [`USER`], below `/mdgw/` only.
pub(super) fn require_password(node: SocketAddrV4) {
    let post = |path: &str, body: &str| {
        let length = body.len();
        let request = format!(
            "POST /v3/auth/{path} HTTP/1.1\r\nHost: {node}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let answer = send_request(node, &request).expect("etcd answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path} {body}: {answer}");
    };
    post("user/add", r#"{"name":"root","password":"root"}"#);
    post("role/add", r#"{"name":"root"}"#);
    post("user/grant", r#"{"user":"root","role":"root"}"#);
    post("user/add", &format!(r#"{{"name":"{USER}","password":"{PASSWORD}"}}"#));
    post("role/add", r#"{"name":"gateways"}"#);
    // Base64 of "/mdgw/" and of "/mdgw0", the first key after all keys with that prefix.
    let permission = r#"{"permType":"READWRITE","key":"L21kZ3cv","range_end":"L21kZ3cw"}"#;
    post("role/grant", &format!(r#"{{"name":"gateways","perm":{permission}}}"#));
    post("user/grant", &format!(r#"{{"user":"{USER}","role":"gateways"}}"#));
    post("enable", "{}");
}

/// Creates a certificate authority, and certificates for the nodes and for a client.
pub(super) fn make_certificates(directory: &Path) {
    fs::write(directory.join("openssl.cnf"), OPENSSL).expect("the directory can be written");
    let make = |key: &str, certificate: &str, kind: &str, authority: &[&str]| {
        let mut command = Command::new("openssl");
        command.current_dir(directory).args(["req", "-x509", "-config", "openssl.cnf", "-days", "2", "-nodes"]);
        command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=mdgw"]);
        command.args(["-extensions", kind, "-keyout", key, "-out", certificate]).args(authority);
        let done = command.output().expect("openssl runs");
        assert!(done.status.success(), "{certificate}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let by_authority = ["-CA", CA, "-CAkey", CA_KEY];
    make(CA_KEY, CA, "authority", &[]);
    make(SERVER_KEY, SERVER, "node", &by_authority);
    make(CLIENT_KEY, CLIENT, "node", &by_authority);
}

const CA_KEY: &str = "ca.key";
const SERVER: &str = "server.pem";
const SERVER_KEY: &str = "server.key";

const OPENSSL: &str = "[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = keyCertSign
[node]
basicConstraints = CA:FALSE
subjectAltName = IP:127.0.0.1
extendedKeyUsage = serverAuth, clientAuth
";

const IS_SERVING: HealthQuery = HealthQuery {
    request: "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    yes: &[r#""health":"true""#],
};
const IS_LEADER: HealthQuery = HealthQuery {
    request: "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    yes: &["\netcd_server_is_leader 1"],
};
