//! Fetches entries of a peer's publication log, before this gateway starts.

use std::net::SocketAddrV4;

use mdgw_election::auth::SharedKey;
use mdgw_wire::identity::Session;

use super::{
    CopyError,
    message::{LinkIdentity, LinkMessage, LogRequest, LoggedEntry},
    requester::{Requester, SilenceLimit},
};

/// Fetches the requested entries from the gateway at that address, and passes them on in the order of the log.
///
/// # Errors
/// [`CopyError`]. What was passed on before is sound.
pub fn fetch_log(
    peer: SocketAddrV4,
    identity: LinkIdentity,
    key: SharedKey,
    request: LogRequest,
    silence_limit: &mut SilenceLimit,
    accept: &mut dyn FnMut(Session, &LoggedEntry),
) -> Result<(), CopyError> {
    silence_limit.spend(|silence_limit| {
        let mut requester = Requester::connect(peer, identity, key, LinkMessage::LogRequest(request), silence_limit)?;
        loop {
            match requester.next_message()? {
                LinkMessage::LogEntries { channel, session, entries } if channel == request.channel => {
                    entries.iter().for_each(|entry| accept(session, entry));
                    requester.note_progress();
                }
                LinkMessage::LogEnd { channel } if channel == request.channel => return Ok(()),
                _ => {}
            }
        }
    })
}
