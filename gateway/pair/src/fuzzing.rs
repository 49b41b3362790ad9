//! Entry point of a fuzz target in `gateway/fuzz`. Compiled only with `--cfg fuzzing`.

use crate::pair_link::message::LinkMessage;

/// The body of a message on the pair link. A message that is accepted is written as the same bytes.
///
/// # Panics
/// When it is not.
pub fn link_message(input: &[u8]) {
    if let Ok(message) = LinkMessage::parse(input) {
        assert_eq!(message.to_bytes(), input);
    }
}
