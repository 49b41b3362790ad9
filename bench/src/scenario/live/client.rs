//! A client of `mdgw live` that does as little as the protocol allows.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

/// A session before its records.
pub(super) struct Client {
    stream: TcpStream,
}

/// What a session asks for, all of the schema mbo.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    /// Everything that the log has, then what follows.
    Replay,
    /// All symbols, from now on.
    All,
    /// One symbol, from now on.
    Symbol(&'a str),
}

impl Client {
    /// Connects, and answers the server's challenge.
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("connect to mdgw live")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let mut client = Self { stream };
        let greeting = client.line()?;
        ensure!(greeting.starts_with("lsg_version="), "the server greets with {greeting:?}");
        let challenge = client.line()?;
        let challenge = challenge.strip_prefix("cram=").with_context(|| format!("no challenge: {challenge:?}"))?;
        client.send(&format!(
            "auth={}|dataset={DATASET}|encoding=dbn|ts_out=0|compression=none|heartbeat_interval_s=1800|client=mdgw-bench\n",
            answer(challenge, KEY)
        ))?;
        let answer = client.line()?;
        ensure!(answer.starts_with("success=1"), "the server refuses the session: {answer}");
        Ok(client)
    }

    /// Subscribes. Nothing is sent to the client before [`Self::start`].
    pub(super) fn subscribe(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let (symbols, start) = match wanted {
            Wanted::Replay => ("ALL_SYMBOLS", "|start=0"),
            Wanted::All => ("ALL_SYMBOLS", ""),
            Wanted::Symbol(symbol) => (symbol, ""),
        };
        self.send(&format!("schema=mbo|stype_in=raw_symbol|symbols={symbols}{start}|snapshot=0|id=1|is_last=1\n"))
    }

    /// Begins the session. From here on the server sends metadata and records.
    pub(super) fn start(mut self) -> Result<TcpStream> {
        self.send("start_session\n")?;
        Ok(self.stream)
    }

    fn send(&mut self, line: &str) -> Result<()> {
        self.stream.write_all(line.as_bytes()).context("write to mdgw live")
    }

    /// A line of the text part. Byte by byte, since records follow the last one.
    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).context("read from mdgw live")?;
            if byte == *b"\n" {
                return Ok(String::from_utf8(line)?);
            }
            line.push(byte[0]);
        }
    }
}

/// The answer to a challenge: the SHA-256 of challenge and key, and the last five characters of the key.
fn answer(challenge: &str, key: &str) -> String {
    let digest = Sha256::digest(format!("{challenge}|{key}"));
    let mut text = String::new();
    for byte in digest {
        let _ = write!(text, "{byte:02x}");
    }
    format!("{text}-{}", &key[key.len() - 5..])
}

/// Invented.
pub(super) const KEY: &str = "db-unitTESTkey0123456789abcdefgh";
pub(super) const DATASET: &str = "XNAS.ITCH";
/// A server that is silent for longer has failed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the protocol's description.
    #[test]
    fn the_answer_to_a_challenge_is_that_of_official_clients() {
        assert_eq!(
            answer("fWLTPGkBNO2jAGMDnHYf6JaEeLnlIHWw", KEY),
            "375d59e1145118151c4317f9b5c53c67a049e28b7ea7b62459da336b70613a6c-defgh"
        );
    }
}
