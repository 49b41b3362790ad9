//! Lists of cores as the kernel writes them: `0-3,8`.

use std::{collections::BTreeSet, fmt};

/// A set of processor cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreSet(BTreeSet<usize>);

/// More cores than a Linux kernel can have (`CONFIG_NR_CPUS`), so that no text makes a large set.
const CORES_MAX: usize = 8_192;

impl CoreSet {
    /// From the kernel's text; `None` if it is not a list of cores. `(null)` and an empty text are the empty set.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut cores = BTreeSet::new();
        if text.is_empty() || text == "(null)" {
            return Some(Self(cores));
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
            if first > last || last >= CORES_MAX {
                return None;
            }
            cores.extend(first..=last);
        }
        Some(Self(cores))
    }

    /// Whether there is no core.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// Cores of this set that the other one lacks.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    pub(crate) fn intersects(&self, other: &Self) -> bool {
        !self.0.is_disjoint(&other.0)
    }
}

impl FromIterator<usize> for CoreSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cores: I) -> Self {
        Self(cores.into_iter().collect())
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut cores = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while let Some(next) = cores.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?
            } else {
                write!(f, "{separator}{first}-{last}")?
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_round_trip() {
        for text in ["0", "0-3", "0-1,4,6-9"] {
            assert_eq!(CoreSet::parse(text).unwrap().to_string(), text);
        }
        assert!(CoreSet::parse("(null)\n").unwrap().is_empty());
        assert_eq!(CoreSet::parse(" \n").unwrap().to_string(), "none");
    }

    #[test]
    fn other_texts_are_refused_and_no_list_is_large() {
        for text in ["x", "1-", "3-1", "0-99999999999", "0-4294967295", "1,,2", "-1", "1;2"] {
            assert_eq!(CoreSet::parse(text), None, "{text}");
        }
    }
}
