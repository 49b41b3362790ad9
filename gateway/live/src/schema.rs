//! The schemas that a live client can ask for.

use std::fmt;

use dbn::enums::rtype;

/// A set of schemas, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schemas(pub u16);

impl Schemas {
    /// Market by order.
    pub const MBO: Self = Self(1);
    /// Best level after each change of it, and trades.
    pub const MBP_1: Self = Self(1 << 1);
    /// Ten levels after each change of them, and trades.
    pub const MBP_10: Self = Self(1 << 2);
    /// The trades of [`Self::MBP_1`].
    pub const TBBO: Self = Self(1 << 3);
    /// Trades.
    pub const TRADES: Self = Self(1 << 4);
    /// Best level and last trade of each second.
    pub const BBO_1S: Self = Self(1 << 5);
    /// Best level and last trade of each minute.
    pub const BBO_1M: Self = Self(1 << 6);
    /// Bars of a second.
    pub const OHLCV_1S: Self = Self(1 << 7);
    /// Bars of a minute.
    pub const OHLCV_1M: Self = Self(1 << 8);
    /// Bars of an hour.
    pub const OHLCV_1H: Self = Self(1 << 9);
    /// Bars of a day, UTC.
    pub const OHLCV_1D: Self = Self(1 << 10);
    /// Instrument definitions.
    pub const DEFINITION: Self = Self(1 << 11);
    /// Statistics.
    pub const STATISTICS: Self = Self(1 << 12);
    /// Trading status.
    pub const STATUS: Self = Self(1 << 13);
    /// Auction imbalance.
    pub const IMBALANCE: Self = Self(1 << 14);

    /// Number of schemas.
    pub const COUNT: usize = 15;

    /// All schemas with their names in the protocol, by bit.
    pub const NAMES: [(Self, &'static str); Self::COUNT] = [
        (Self::MBO, "mbo"),
        (Self::MBP_1, "mbp-1"),
        (Self::MBP_10, "mbp-10"),
        (Self::TBBO, "tbbo"),
        (Self::TRADES, "trades"),
        (Self::BBO_1S, "bbo-1s"),
        (Self::BBO_1M, "bbo-1m"),
        (Self::OHLCV_1S, "ohlcv-1s"),
        (Self::OHLCV_1M, "ohlcv-1m"),
        (Self::OHLCV_1H, "ohlcv-1h"),
        (Self::OHLCV_1D, "ohlcv-1d"),
        (Self::DEFINITION, "definition"),
        (Self::STATISTICS, "statistics"),
        (Self::STATUS, "status"),
        (Self::IMBALANCE, "imbalance"),
    ];

    /// Schemas of which a slow reader skips records unless its client asked otherwise: each record replaces the one before.
    pub const SKIPPED_WHEN_SLOW: Self = Self(Self::MBP_1.0 | Self::MBP_10.0 | Self::BBO_1S.0 | Self::BBO_1M.0);

    /// Best level and last trade of an interval.
    pub(crate) const BBO: Self = Self(Self::BBO_1S.0 | Self::BBO_1M.0);
    /// Bars of all lengths.
    pub(crate) const OHLCV: Self = Self(Self::OHLCV_1S.0 | Self::OHLCV_1M.0 | Self::OHLCV_1H.0 | Self::OHLCV_1D.0);

    /// The schema with that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, known)| *known == name).map(|(schema, _)| schema)
    }

    /// The schemas that a published record belongs to.
    #[must_use]
    pub(crate) fn of_record(kind: u8, is_trade: bool) -> Self {
        match kind {
            rtype::MBO => Self::MBO,
            rtype::MBP_0 => Self::TRADES,
            rtype::MBP_1 if is_trade => Self::MBP_1.with(Self::TBBO),
            rtype::MBP_1 => Self::MBP_1,
            rtype::MBP_10 => Self::MBP_10,
            rtype::STATUS => Self::STATUS,
            rtype::INSTRUMENT_DEF => Self::DEFINITION,
            rtype::IMBALANCE => Self::IMBALANCE,
            rtype::STATISTICS => Self::STATISTICS,
            _ => Self::default(),
        }
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The schemas of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The schemas that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether this set contains all of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether this set has no schema.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The single schemas of the set.
    pub fn iter(self) -> impl Iterator<Item = Self> {
        Self::NAMES.into_iter().map(|(schema, _)| schema).filter(move |schema| self.contains(*schema))
    }
}

/// Names, separated by commas.
impl fmt::Display for Schemas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, schema) in self.iter().enumerate() {
            let name = Self::NAMES.into_iter().find(|(known, _)| *known == schema).map_or("", |(_, name)| name);
            write!(f, "{}{name}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_has_its_own_bit_and_name() {
        let mut all = Schemas::default();
        for (schema, name) in Schemas::NAMES {
            assert!(all.and(schema).is_empty(), "{name}");
            all = all.with(schema);
            assert_eq!(Schemas::from_name(name), Some(schema));
            assert_eq!(schema.to_string(), name);
            assert!(name.parse::<dbn::Schema>().is_ok(), "{name}");
        }
        assert_eq!(all.iter().count(), Schemas::COUNT);
        assert_eq!(Schemas::from_name("mbp-2"), None);
    }
}
