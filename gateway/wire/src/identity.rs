//! Identifiers: feeds, channels, lines, sessions, sequences, epochs, instruments.

use core::fmt;

use crate::time::TradingDate;

/// One exchange product with one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Feed {
    /// Nasdaq TotalView-ITCH 5.0 over MoldUDP64.
    NasdaqItch = 1,
    /// Nasdaq BX TotalView-ITCH 5.0 over MoldUDP64.
    BxItch = 2,
    /// Nasdaq PSX TotalView-ITCH 5.0 over MoldUDP64.
    PsxItch = 3,
    /// IEX TOPS 1.6 over IEX-TP.
    IexTops = 4,
    /// IEX DEEP 1.0 over IEX-TP.
    IexDeep = 5,
}

impl Feed {
    /// All feeds.
    pub const ALL: [Self; 5] = [Self::NasdaqItch, Self::BxItch, Self::PsxItch, Self::IexTops, Self::IexDeep];

    /// Name in configuration and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NasdaqItch => "nasdaq-itch-5.0",
            Self::BxItch => "bx-itch-5.0",
            Self::PsxItch => "psx-itch-5.0",
            Self::IexTops => "iex-tops-1.6",
            Self::IexDeep => "iex-deep-1.0",
        }
    }

    /// The feed with that [name](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|feed| feed.name() == name)
    }

    /// The feed with that number in a [`Session`].
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|feed| *feed as u16 == number)
    }

    /// Dataset code in DBN metadata. `IEXG.DEEP` is ours, the others are Databento's.
    #[must_use]
    pub fn dataset(self) -> &'static str {
        match self {
            Self::NasdaqItch => "XNAS.ITCH",
            Self::BxItch => "XBOS.ITCH",
            Self::PsxItch => "XPSX.ITCH",
            Self::IexTops => "IEXG.TOPS",
            Self::IexDeep => "IEXG.DEEP",
        }
    }

    /// Publisher id in every record. Ids from 60,001 on are ours.
    #[must_use]
    pub fn publisher_id(self) -> u16 {
        match self {
            Self::NasdaqItch => 2,
            Self::BxItch => 3,
            Self::PsxItch => 4,
            Self::IexTops => 38,
            Self::IexDeep => 60_001,
        }
    }

    /// Whether the feed carries single orders (ITCH) rather than quotes or price levels.
    #[must_use]
    pub fn is_by_order(self) -> bool {
        matches!(self, Self::NasdaqItch | Self::BxItch | Self::PsxItch)
    }
}

impl fmt::Display for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One independently sequenced stream of a feed, numbered in the configuration. The unit of order, claiming and
/// state. It is in every published packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u16);

/// The channels that one lease covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

/// One of the redundant copies of a channel, or its recovery source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u8);

impl Line {
    /// Line A.
    pub const A: Self = Self(0);
    /// Line B.
    pub const B: Self = Self(1);
    /// Answers of a retransmission server, arbitrated as a line of its own.
    pub const RECOVERY: Self = Self(7);
    /// Maximum number of lines of a channel, the recovery line included: a set of lines fits one byte.
    pub const COUNT_MAX: usize = 8;
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RECOVERY => f.write_str("recovery"),
            Self(number) => write!(f, "{}", char::from(b'A'.saturating_add(number))),
        }
    }
}

/// The exchange's own message number within a session. Ranges are half-open: `[first, next)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The sequence `count` messages later, clamped to the maximum.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

/// Sequences of a channel that begin at 1. Sessions are ordered by feed, then by date, then by restart count: a channel has one
/// feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// Feed whose messages the session numbers.
    pub feed: Feed,
    /// The venue's trading date.
    pub date: TradingDate,
    /// Number of times the venue restarted its numbering on that date.
    pub restart: u32,
}

impl Session {
    /// Size on the wire and in the publication log: feed `u16`, zero `u16`, date `YYYYMMDD` `u32`, restart count
    /// `u32`, zero `u32`; little-endian.
    pub const BYTES: usize = 16;

    /// Encodes the session.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let number =
            u128::from(self.feed as u16) | u128::from(self.date.yyyymmdd()) << 32 | u128::from(self.restart) << 64;
        number.to_le_bytes()
    }

    /// Decodes a session; `None` for an unknown feed, an invalid date, or non-zero reserved bits.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let number = u128::from_le_bytes(bytes);
        let feed = u16::try_from(number & 0xffff_ffff).ok()?;
        let date = u32::try_from(number >> 32 & 0xffff_ffff).ok()?;
        let restart = u32::try_from(number >> 64).ok()?;
        Some(Self { feed: Feed::from_number(feed)?, date: TradingDate::from_yyyymmdd(date)?, restart })
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} #{}", self.feed, self.date, self.restart)
    }
}

/// The fencing token: grows with every change of leadership of a group. The count is in the upper 56 bits, the node
/// in the lower 8, so that no two nodes publish under the same epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// From count and node. The count is clamped to 56 bits.
    #[must_use]
    pub fn new(count: u64, node: u8) -> Self {
        Self(count.min(u64::MAX >> 8) << 8 | u64::from(node))
    }

    /// Number of leadership terms so far.
    #[must_use]
    pub fn count(self) -> u64 {
        self.0 >> 8
    }

    /// The node that leads in this epoch.
    #[must_use]
    pub fn node(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

/// Id of an instrument within a channel and a day: the venue's own, else [a hash of its symbol](Self::from_symbol).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstrumentId(pub u32);

impl InstrumentId {
    /// Id for an instrument that its venue does not number: 32-bit FNV-1a over the symbol without padding. It depends
    /// on the symbol alone, so both gateways of a pair agree without communication.
    #[must_use]
    pub fn from_symbol(symbol: &[u8]) -> Self {
        let hash =
            symbol.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        Self(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_round_trip_and_refuse_invalid_bytes() {
        let session =
            Session { feed: Feed::IexDeep, date: TradingDate::from_yyyymmdd(20_170_425).unwrap(), restart: 11 };
        let bytes = session.to_bytes();
        assert_eq!(Session::from_bytes(bytes), Some(session));
        for index in [2, 3, 12, 13, 14, 15] {
            let mut damaged = bytes;
            damaged[index] ^= 1;
            assert_eq!(Session::from_bytes(damaged), None, "byte {index}");
        }
        assert_eq!(Session::from_bytes([0; 16]), None);
    }

    #[test]
    fn sessions_are_ordered_by_date_then_restart() {
        let at =
            |date, restart| Session { feed: Feed::IexTops, date: TradingDate::from_yyyymmdd(date).unwrap(), restart };
        assert!(at(20_170_425, 9) < at(20_170_426, 0));
        assert!(at(20_170_425, 0) < at(20_170_425, 1));
    }

    #[test]
    fn epochs_of_two_nodes_never_collide() {
        assert_ne!(Epoch::new(7, 1), Epoch::new(7, 2));
        assert!(Epoch::new(8, 1) > Epoch::new(7, 2));
        assert_eq!(Epoch::new(8, 1).count(), 8);
    }
}
