//! Guesses a capture's feed if its packets leave several possible.

use std::path::Path;

use mdgw_feeds::{identity::Feed, transport::DetectedProtocol};

/// A feed and the basis of the guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    /// Feed by which the packets are decoded.
    pub feed: Feed,
    /// Basis of the guess.
    pub by: GuessBasis,
}

/// Basis on which a feed was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuessBasis {
    /// Only this feed has such packets.
    Packets,
    /// A word in the file's path.
    Path,
    /// No evidence: the most likely feed.
    Default,
}

/// The feed of packets that look like `recognised`, in a file with this path. Nasdaq, BX and PSX use the same protocol:
/// a word of the path decides between them (the last one counts), else Nasdaq is chosen.
#[must_use]
pub fn guess(recognised: DetectedProtocol, path: &Path) -> Guess {
    let Some(default) = recognised.feeds().first().copied() else {
        return Guess { feed: Feed::NasdaqItch, by: GuessBasis::Default };
    };
    if recognised.feeds().len() == 1 {
        return Guess { feed: default, by: GuessBasis::Packets };
    }
    let path = path.to_string_lossy().to_lowercase();
    let named = path.split(|letter: char| !letter.is_alphanumeric()).filter_map(feed_of_word).next_back();
    match named {
        Some(feed) if recognised.feeds().contains(&feed) => Guess { feed, by: GuessBasis::Path },
        _ => Guess { feed: default, by: GuessBasis::Default },
    }
}

/// The feed that a word of a path stands for, also with digits after it as in `BX_ITCH_50` or `psx2019`.
fn feed_of_word(word: &str) -> Option<Feed> {
    match word.trim_end_matches(|letter: char| letter.is_ascii_digit()) {
        "nasdaq" | "xnas" => Some(Feed::NasdaqItch),
        "bx" | "xbos" => Some(Feed::BxItch),
        "psx" | "xpsx" => Some(Feed::PsxItch),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_decides_between_markets_of_one_protocol() {
        let check = |path: &str, feed, by| {
            assert_eq!(guess(DetectedProtocol::Itch50, Path::new(path)), Guess { feed, by }, "{path}");
        };
        check("nasdaq-bx/itch-5.0/a.pcap", Feed::BxItch, GuessBasis::Path);
        check("/data/nasdaq/20190130.PSX_ITCH_50.gz", Feed::PsxItch, GuessBasis::Path);
        check("20190130.BX_ITCH_50", Feed::BxItch, GuessBasis::Path);
        check("S013019-v50.txt", Feed::NasdaqItch, GuessBasis::Default);
        check("bx-captures/nasdaq.pcap", Feed::NasdaqItch, GuessBasis::Path);
        check("/home/inbox/box.pcap", Feed::NasdaqItch, GuessBasis::Default);
    }

    #[test]
    fn packets_that_identify_their_feed_override_the_path() {
        let guess = guess(DetectedProtocol::IexDeep, Path::new("psx/tops.pcap"));
        assert_eq!(guess, Guess { feed: Feed::IexDeep, by: GuessBasis::Packets });
    }
}
