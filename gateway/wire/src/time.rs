//! Two clocks, two types, so that wall time is never compared with a deadline.

/// Wall time: nanoseconds since 1970-01-01 00:00 UTC. Receive timestamps, venue times, send times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixNs(pub u64);

/// Monotonic time in nanoseconds, of a clock that counts suspend. Used for deadlines. In offline replay, the
/// capture's timestamps replace it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoNs(pub u64);

impl UnixNs {
    /// DBN's undefined timestamp.
    pub const UNDEFINED: Self = Self(u64::MAX);

    /// `self - earlier`, or `None` when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl MonoNs {
    /// The time `ns` later, clamped to the maximum.
    #[must_use]
    pub fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// `self - earlier`, 0 when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A calendar day of a venue, in the venue's own time zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TradingDate(u32);

impl TradingDate {
    /// From year, month and day; `None` if the date is invalid or the year is not in 1970..=9999.
    #[must_use]
    pub fn from_ymd(year: u32, month: u32, day: u32) -> Option<Self> {
        if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) {
            return None;
        }
        (day >= 1 && day <= days_in_month(year, month)).then_some(Self(year * 10_000 + month * 100 + day))
    }

    /// From the number `YYYYMMDD`.
    #[must_use]
    pub fn from_yyyymmdd(number: u32) -> Option<Self> {
        Self::from_ymd(number / 10_000, number / 100 % 100, number % 100)
    }

    /// The day in New York on which `at` falls.
    #[must_use]
    pub fn in_new_york(at: UnixNs) -> Self {
        // The offset depends on the day and the day on the offset. The standard-time estimate determines the rule.
        let guess = Self::from_unix_days((at.0.saturating_sub(5 * NS_PER_HOUR)) / NS_PER_DAY);
        let offset_ns = guess.new_york_offset_ns();
        Self::from_unix_days(at.0.saturating_sub(offset_ns) / NS_PER_DAY)
    }

    /// The day at Greenwich on which `at` falls.
    #[must_use]
    pub fn in_utc(at: UnixNs) -> Self {
        Self::from_unix_days(at.0 / NS_PER_DAY)
    }

    /// `YYYYMMDD` as a number.
    #[must_use]
    pub fn yyyymmdd(self) -> u32 {
        self.0
    }

    /// Year, month, day.
    #[must_use]
    pub(crate) fn ymd(self) -> (u32, u32, u32) {
        (self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }

    /// Midnight UTC of this day; of a day after July 2554, the last time that there is.
    #[must_use]
    pub fn midnight_utc(self) -> UnixNs {
        UnixNs(self.unix_days().saturating_mul(NS_PER_DAY))
    }

    /// Midnight New York of this day, by the offset in force during trading hours. (Clocks change on Sundays, so no
    /// session has two offsets.)
    #[must_use]
    pub fn midnight_new_york(self) -> UnixNs {
        UnixNs(self.midnight_utc().0.saturating_add(self.new_york_offset_ns()))
    }

    /// The next calendar day.
    #[must_use]
    pub fn next_day(self) -> Self {
        Self::from_unix_days(self.unix_days() + 1)
    }

    /// New York's offset behind UTC on this day at noon: 4 h from the second Sunday of March to the first Sunday of
    /// November (Energy Policy Act of 2005), else 5 h.
    fn new_york_offset_ns(self) -> u64 {
        let (year, month, day) = self.ymd();
        let summer = match month {
            4..=10 => true,
            3 => day >= sunday_of_month(year, 3, 2),
            11 => day < sunday_of_month(year, 11, 1),
            _ => false,
        };
        if summer { 4 * NS_PER_HOUR } else { 5 * NS_PER_HOUR }
    }

    fn unix_days(self) -> u64 {
        let (year, month, day) = self.ymd();
        // Days from civil, counted from March so that the leap day comes last.
        let (y, m) = if month <= 2 { (u64::from(year) - 1, month + 9) } else { (u64::from(year), month - 3) };
        let day_of_year = (153 * u64::from(m) + 2) / 5 + u64::from(day) - 1;
        y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719_468
    }

    fn from_unix_days(days: u64) -> Self {
        let z = days + 719_468;
        let era = z / 146_097;
        let day_of_era = z % 146_097;
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let m = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * m + 2) / 5 + 1;
        let (month, carry) = if m < 10 { (m + 3, 0) } else { (m - 9, 1) };
        let year = era * 400 + year_of_era + carry;
        // A u64 of nanoseconds ends in the year 2554, so this fits.
        Self(u32::try_from(year * 10_000 + month * 100 + day).unwrap_or(99_991_231))
    }
}

impl core::fmt::Display for TradingDate {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (year, month, day) = self.ymd();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

impl core::str::FromStr for TradingDate {
    type Err = InvalidDate;

    /// `2019-01-30` or `20190130`.
    fn from_str(text: &str) -> Result<Self, InvalidDate> {
        let digits: String = match text.as_bytes() {
            [_, _, _, _, b'-', _, _, b'-', _, _] => text.replace('-', ""),
            _ => text.to_owned(),
        };
        if digits.len() != 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(InvalidDate);
        }
        digits.parse().ok().and_then(Self::from_yyyymmdd).ok_or(InvalidDate)
    }
}

/// Not a date: neither `YYYY-MM-DD` nor `YYYYMMDD`, or a day that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDate;

impl core::fmt::Display for InvalidDate {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("not a date (expected YYYY-MM-DD)")
    }
}

impl core::error::Error for InvalidDate {}

/// One hour.
const NS_PER_HOUR: u64 = 3_600_000_000_000;
/// One day.
const NS_PER_DAY: u64 = 24 * NS_PER_HOUR;

fn days_in_month(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Day of the month of its `nth` Sunday.
fn sunday_of_month(year: u32, month: u32, nth: u32) -> u32 {
    let first = TradingDate(year * 10_000 + month * 100 + 1).unix_days();
    // 1970-01-01 was a Thursday: day 3 was the first Sunday.
    let until_sunday = (7 + 3 - first % 7) % 7;
    1 + u32::try_from(until_sunday).unwrap_or(0) + 7 * (nth - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(number: u32) -> TradingDate {
        TradingDate::from_yyyymmdd(number).unwrap()
    }

    /// Dates of damaged files reach that far.
    #[test]
    fn a_date_beyond_the_clock_has_its_last_time() {
        let date = TradingDate::from_ymd(9_999, 12, 31).unwrap();
        assert_eq!([date.midnight_utc(), date.midnight_new_york()], [UnixNs(u64::MAX); 2]);
    }

    #[test]
    fn dates_round_trip_through_unix_days() {
        for days in 0..200_000 {
            assert_eq!(TradingDate::from_unix_days(days).unix_days(), days);
        }
        assert_eq!(TradingDate::from_unix_days(0).yyyymmdd(), 19_700_101);
        assert_eq!(date(20_000_229).unix_days(), 11_016);
    }

    #[test]
    fn days_that_do_not_exist_are_refused() {
        for text in [
            "2023-02-29",
            "2023-13-01",
            "2023-00-10",
            "2023-1-1",
            "20230431",
            "",
            "1969-12-31",
            "abcdefgh",
            "２0230101",
        ] {
            assert_eq!(text.parse::<TradingDate>(), Err(InvalidDate), "{text}");
        }
        assert_eq!("2024-02-29".parse(), Ok(date(20_240_229)));
        assert_eq!("20240229".parse(), Ok(date(20_240_229)));
    }

    #[test]
    fn new_york_midnight_follows_daylight_saving() {
        // 2023-08-22 04:00 UTC and 2019-01-30 05:00 UTC.
        assert_eq!(date(20_230_822).midnight_new_york(), UnixNs(1_692_676_800_000_000_000));
        assert_eq!(date(20_190_130).midnight_new_york(), UnixNs(1_548_824_400_000_000_000));
        // Clocks changed on 2023-03-12 and 2023-11-05.
        assert_eq!(date(20_230_311).new_york_offset_ns(), 5 * NS_PER_HOUR);
        assert_eq!(date(20_230_312).new_york_offset_ns(), 4 * NS_PER_HOUR);
        assert_eq!(date(20_231_104).new_york_offset_ns(), 4 * NS_PER_HOUR);
        assert_eq!(date(20_231_105).new_york_offset_ns(), 5 * NS_PER_HOUR);
    }

    #[test]
    fn the_new_york_date_differs_from_the_utc_date() {
        // 2023-08-23 03:59:59 UTC is still the 22nd in New York.
        assert_eq!(TradingDate::in_new_york(UnixNs(1_692_763_199_000_000_000)), date(20_230_822));
        assert_eq!(TradingDate::in_new_york(UnixNs(1_692_763_200_000_000_000)), date(20_230_823));
    }
}
