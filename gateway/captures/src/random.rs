//! Pseudo-random numbers that are the same on every machine: SplitMix64 (Steele, Lea, Flood, 2014). Good enough for
//! synthetic sessions and impaired lines, never for secrets.

/// A generator with a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of that seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// True with this probability, 0 to 1.
    pub fn chance(&mut self, chance: f64) -> bool {
        self.unit() < chance
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a product is uniform to within bound / 2^64.
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
        let bits = (self.next_u64() >> 11) as f64;
        bits / (1_u64 << 53) as f64
    }

    /// An exponentially distributed waiting time with this mean.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; held at the maximum")]
    pub fn exponential(&mut self, mean: u64) -> u64 {
        (-(1.0 - self.unit()).ln() * mean as f64) as u64
    }
}

/// Maps different inputs to different outputs without visible pattern: the last step of SplitMix64.
#[must_use]
pub fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_match_the_published_splitmix64_values() {
        // First outputs of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_cover_the_whole_range_below_their_bound() {
        let mut random = Random::new(1);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(random.below(10)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert!((0..1_000).all(|_| !random.chance(0.0)));
        assert!((0..1_000).all(|_| random.chance(1.0)));
    }
}
