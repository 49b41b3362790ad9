//! Drop counts as a block of counters: one counter for each [`DropReason`].

use mdgw_wire::drop_reason::{DropCounts, DropReason};

use crate::counters::{CounterBlock, Descriptor, Kind, Unit};

const DESCRIPTORS: [Descriptor; DropReason::ALL.len()] = {
    let mut descriptors =
        [Descriptor { name: "", kind: Kind::Counter, unit: Unit::None, help: "" }; DropReason::ALL.len()];
    let mut index = 0;
    while index < descriptors.len() {
        let reason = DropReason::ALL[index];
        descriptors[index] =
            Descriptor { name: reason.name(), kind: Kind::Counter, unit: Unit::None, help: reason.help() };
        index += 1;
    }
    descriptors
};

impl CounterBlock for DropCounts {
    const DESCRIPTORS: &'static [Descriptor] = &DESCRIPTORS;

    fn values(&self) -> impl Iterator<Item = u64> {
        DropReason::ALL.iter().map(|reason| self.get(*reason))
    }

    fn from_values(value: impl Fn(usize) -> u64) -> Self {
        let mut counts = Self::default();
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            counts.count_many(*reason, value(index));
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Registry;

    #[test]
    fn each_reason_is_read_back_under_its_own_name() {
        let registry = Registry::default();
        let mut writer = registry.register::<DropCounts>("one");
        let counts = DropCounts::from_values(|index| index as u64 + 1);
        writer.publish(&counts);
        assert_eq!(registry.values::<DropCounts>(), [("one".to_owned(), counts)]);
        for (reading, (index, reason)) in registry.read().iter().zip(DropReason::ALL.iter().enumerate()) {
            assert_eq!((reading.descriptor.name, reading.value), (reason.name(), index as u64 + 1));
            assert_eq!(counts.get(*reason), reading.value);
        }
    }
}
