//! Recognition of a datagram's feed, checked with real packets: supported feeds are recognised, and other venues'
//! packets are not mistaken for them.

use std::path::Path;

use mdgw_captures::capture_file::{CaptureFile, OpenOptions};
use mdgw_feeds::transport::{DetectedProtocol, detect_protocol, moldudp64};
use mdgw_tests::captures;

#[test]
fn every_packet_is_recognised_correctly() {
    let Some(root) = captures::root("recognition") else { return };
    let (mut ours, mut unidentifiable, mut foreign, mut mistaken) = (0_u64, 0_u64, 0_u64, 0_u64);
    for pair in captures::pairs(&root, |_| true).expect("captures can be listed") {
        let Ok(mut file) = CaptureFile::open(&pair.capture, &OpenOptions::default()) else { continue };
        let wanted = feed_of(&root, &pair.capture);
        // A capture may be cut in its last packet.
        while let Ok(Some(captured)) = file.next_datagram() {
            // A MoldUDP64 heartbeat doesn't identify its venue.
            let is_silent =
                wanted == Some(DetectedProtocol::Itch50) && captured.payload.len() == moldudp64::HEADER_BYTES;
            match (wanted, is_silent) {
                (Some(_), true) => unidentifiable += 1,
                (Some(_), false) => ours += 1,
                (None, _) => foreign += 1,
            }
            let wanted = wanted.filter(|_| !is_silent);
            let recognised = detect_protocol(captured.payload);
            if recognised == wanted {
                continue;
            }
            let location = format!("{}: frame {} recognised as {recognised:?}", pair.capture.display(), captured.frame);
            assert_eq!(wanted, None, "{location}");
            captures::print_to_stderr(&format!("  mistaken: {location}"));
            mistaken += 1;
        }
    }
    captures::print_to_stderr(&format!(
        "recognition: {ours} packets of our feeds, {unidentifiable} without identification, {foreign} of others, {mistaken} mistaken"
    ));
    assert!(ours > 0, "no packet was compared");
    // Another protocol over MoldUDP64 may have a message of the same type and length, such as the system event of related
    // protocols. A packet with only such messages cannot be distinguished. Only few packets may be mistaken for that reason.
    assert!(mistaken * 10 <= foreign, "{mistaken} of {foreign} foreign packets are recognised as supported");
}

/// The feed of a capture, by its directory. Other protocols of the same venues count as foreign.
fn feed_of(root: &Path, capture: &Path) -> Option<DetectedProtocol> {
    let name = capture.strip_prefix(root).unwrap_or(capture).to_string_lossy().into_owned();
    if name.starts_with("nasdaq") && name.contains("/itch-5.0") {
        Some(DetectedProtocol::Itch50)
    } else if name.starts_with("iex/tops") {
        Some(DetectedProtocol::IexTops)
    } else if name.starts_with("iex/deep-") {
        Some(DetectedProtocol::IexDeep)
    } else {
        None
    }
}
