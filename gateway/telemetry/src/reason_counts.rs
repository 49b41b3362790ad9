//! Counts by reason as blocks of counters: one counter for each [`DropReason`] and each [`BookFault`].

use mdgw_feeds::book::{BookFault, BookFaultCounts};
use mdgw_wire::drop_reason::{DropCounts, DropReason};

use crate::counters::{CounterBlock, Descriptor, Kind, Unit};

macro_rules! reason_block {
    ($counts:ident, $reason:ident, $unit:ident) => {
        impl CounterBlock for $counts {
            const DESCRIPTORS: &'static [Descriptor] = &{
                let mut descriptors =
                    [Descriptor { name: "", kind: Kind::Counter, unit: Unit::$unit, help: "" }; $reason::ALL.len()];
                let mut index = 0;
                while index < descriptors.len() {
                    let reason = $reason::ALL[index];
                    descriptors[index].name = reason.name();
                    descriptors[index].help = reason.help();
                    index += 1;
                }
                descriptors
            };

            fn values(&self) -> impl Iterator<Item = u64> {
                $reason::ALL.iter().map(|reason| self.get(*reason))
            }

            fn from_values(value: impl Fn(usize) -> u64) -> Self {
                let mut counts = Self::default();
                for (index, reason) in $reason::ALL.iter().enumerate() {
                    counts.count_many(*reason, value(index));
                }
                counts
            }
        }
    };
}

reason_block!(DropCounts, DropReason, None);
reason_block!(BookFaultCounts, BookFault, Messages);

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
        let mut writer = registry.register::<BookFaultCounts>("one");
        let mut counts = BookFaultCounts::default();
        counts.count(BookFault::Crossed);
        writer.publish(&counts);
        assert_eq!(registry.values::<BookFaultCounts>(), [("one".to_owned(), counts)]);
        let crossed =
            registry.read().into_iter().filter(|reading| reading.descriptor.name == BookFault::Crossed.name());
        assert_eq!(crossed.map(|reading| reading.value).collect::<Vec<_>>(), [1]);
    }
}
