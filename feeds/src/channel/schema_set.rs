//! The schemas that a channel can publish.

use std::fmt;

use dbn::enums::rtype;

use mdgw_wire::identity::Feed;

/// A bit set of DBN schemas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaSet(pub u16);

impl SchemaSet {
    /// Market by order.
    pub const MBO: Self = Self(1);
    /// Best level after each change of it, and trades.
    pub const MBP_1: Self = Self(1 << 1);
    /// Ten levels after each change of them, and trades.
    pub(crate) const MBP_10: Self = Self(1 << 2);
    /// Trades alone.
    pub const TRADES: Self = Self(1 << 3);
    /// Trading status.
    pub const STATUS: Self = Self(1 << 4);
    /// Instrument definitions.
    pub(crate) const DEFINITION: Self = Self(1 << 5);
    /// Auction imbalance.
    pub(crate) const IMBALANCE: Self = Self(1 << 6);
    /// Statistics.
    pub(crate) const STATISTICS: Self = Self(1 << 7);

    /// All schemas with the names that configuration and command line use.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::MBO, "mbo"),
        (Self::MBP_1, "mbp-1"),
        (Self::MBP_10, "mbp-10"),
        (Self::TRADES, "trades"),
        (Self::STATUS, "status"),
        (Self::DEFINITION, "definition"),
        (Self::IMBALANCE, "imbalance"),
        (Self::STATISTICS, "statistics"),
    ];

    /// Default schemas of a feed.
    #[must_use]
    pub fn default_for(feed: Feed) -> Self {
        match feed {
            Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => {
                Self::MBO.with(Self::STATUS).with(Self::DEFINITION).with(Self::IMBALANCE).with(Self::STATISTICS)
            }
            Feed::IexDeep => Self::MBP_10.with(Self::TRADES).with(Self::STATUS),
            Feed::IexTops => Self::MBP_1.with(Self::TRADES).with(Self::STATUS),
        }
    }

    /// All schemas for which the feed's messages carry enough data.
    #[must_use]
    pub fn of_feed(feed: Feed) -> Self {
        let all = Self::NAMES.into_iter().fold(Self::default(), |all, (schema, _)| all.with(schema));
        match feed {
            Feed::NasdaqItch | Feed::BxItch | Feed::PsxItch => all,
            // No single orders.
            Feed::IexDeep => all.without(Self::MBO),
            // The best level alone; as mbo, it is a pair of records that are marked as top of book.
            Feed::IexTops => all.without(Self::MBP_10),
        }
    }

    /// The schema with that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, known)| *known == name).map(|(schema, _)| schema)
    }

    /// The schema whose records have that type number.
    #[must_use]
    pub fn of_rtype(number: u8) -> Option<Self> {
        match number {
            rtype::MBO => Some(Self::MBO),
            rtype::MBP_0 => Some(Self::TRADES),
            rtype::MBP_1 => Some(Self::MBP_1),
            rtype::MBP_10 => Some(Self::MBP_10),
            rtype::STATUS => Some(Self::STATUS),
            rtype::INSTRUMENT_DEF => Some(Self::DEFINITION),
            rtype::IMBALANCE => Some(Self::IMBALANCE),
            rtype::STATISTICS => Some(Self::STATISTICS),
            _ => None,
        }
    }

    /// Both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The schemas of this set that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether this set contains all of `other`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Names, separated by commas.
impl fmt::Display for SchemaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.into_iter().filter(|(schema, _)| self.contains(*schema)).map(|(_, name)| name);
        for (index, name) in names.enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}
