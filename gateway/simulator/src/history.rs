//! Messages that the exchange has sent, kept for retransmission.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use mdgw_feeds::transport::{
    Transport,
    moldudp64::{self, MoldSession, MoldUdp64, PacketWriter},
};
use mdgw_wire::identity::Sequence;

/// Messages of MoldUDP64 sessions, in memory. A mutex guards them, so only cold threads may use them.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<HashMap<MoldSession, Session>>);

/// One session, from the first message recorded.
#[derive(Debug)]
struct Session {
    first: u64,
    /// Offset of each message in `bytes`, and the end of the last one.
    bounds: Vec<usize>,
    bytes: Vec<u8>,
}

impl History {
    /// Records the messages of a packet that follow those recorded so far.
    pub(super) fn record(&self, datagram: &[u8]) {
        let Ok(packet) = MoldUdp64::parse(datagram) else { return };
        if packet.unsequenced || packet.count == 0 {
            return;
        }
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.entry(moldudp64::session_name(packet.session)).or_insert_with(|| Session {
            first: packet.first.0,
            bounds: vec![0],
            bytes: Vec::new(),
        });
        let mut sequence = packet.first.0;
        let mut block = packet.messages;
        while let Some(message) = MoldUdp64::next_message(&mut block) {
            if sequence == session.next() {
                session.bytes.extend_from_slice(message);
                session.bounds.push(session.bytes.len());
            }
            sequence += 1;
        }
    }

    /// Answers a request with one packet that holds as many of the messages as fit. `None` if the first message is not
    /// known.
    pub(super) fn answer(&self, request: &moldudp64::Request, payload_bytes_max: usize) -> Option<Vec<u8>> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(&request.session)?;
        let mut out = Vec::new();
        let mut writer = PacketWriter::begin(&mut out, request.session, request.first, payload_bytes_max);
        let wanted = request.first.0..request.first.0 + u64::from(request.count);
        for message in wanted.map_while(|sequence| session.message(Sequence(sequence))) {
            if !writer.push(message) {
                break;
            }
        }
        (writer.finish() > 0).then_some(out)
    }
}

impl Session {
    fn next(&self) -> u64 {
        self.first + self.bounds.len() as u64 - 1
    }

    fn message(&self, sequence: Sequence) -> Option<&[u8]> {
        let index = usize::try_from(sequence.0.checked_sub(self.first)?).ok()?;
        self.bytes.get(*self.bounds.get(index)?..*self.bounds.get(index + 1)?)
    }
}
