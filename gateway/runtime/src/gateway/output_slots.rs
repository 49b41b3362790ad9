//! Where each output line's socket is among those that the pools send with.

use std::collections::BTreeSet;

use mdgw_engine::publish::OUTPUT_LINES_MAX;
use mdgw_feeds::identity::GroupId;
use mdgw_sys::batch::OutputIndex;

use crate::config::{Resolved, limits, resolved::OutputLine};

/// The lines of all outputs, each in its slot. An output has [`OUTPUT_LINES_MAX`] slots: while its lines are moved, the
/// former and the new ones have their sockets at the same time.
#[derive(Clone, Debug)]
pub(super) struct OutputSlots {
    outputs: Vec<SlottedOutput>,
}

#[derive(Clone, Debug)]
struct SlottedOutput {
    groups: Vec<GroupId>,
    /// Slot of the output's first line.
    first: usize,
    lines: Vec<(OutputIndex, OutputLine)>,
}

const _: () = assert!(OUTPUT_LINES_MAX >= 2 * limits::OUTPUT_LINES_MAX);

impl OutputSlots {
    pub(super) fn of(config: &Resolved) -> Self {
        let slots = config.outputs.iter().enumerate().map(|(number, output)| {
            let first = number * OUTPUT_LINES_MAX;
            let lines = (first..).map(index).zip(output.lines.iter().cloned()).collect();
            SlottedOutput { groups: output.groups.clone(), first, lines }
        });
        Self { outputs: slots.collect() }
    }

    /// Number of slots, vacant ones among them.
    pub(super) fn slot_count(&self) -> usize {
        self.outputs.len() * OUTPUT_LINES_MAX
    }

    /// All lines with their slots.
    pub(super) fn lines(&self) -> impl Iterator<Item = (OutputIndex, &OutputLine)> {
        self.outputs.iter().flat_map(|output| output.lines.iter().map(|(index, line)| (*index, line)))
    }

    /// Slots of the lines that carry the group.
    pub(super) fn indices(&self, group: GroupId) -> Vec<OutputIndex> {
        let output = self.outputs.iter().find(|output| output.groups.contains(&group));
        output.map_or_else(Vec::new, |output| output.lines.iter().map(|(index, _)| *index).collect())
    }

    /// Puts a line of the output that carries these groups in a vacant slot. `None` if there is no such output or slot.
    pub(super) fn add(&mut self, groups: &[GroupId], line: &OutputLine) -> Option<OutputIndex> {
        let output = self.outputs.iter_mut().find(|output| output.groups == groups)?;
        let taken: BTreeSet<_> = output.lines.iter().map(|(index, _)| *index).collect();
        let free = (output.first..output.first + OUTPUT_LINES_MAX).map(index).find(|index| !taken.contains(index))?;
        output.lines.push((free, line.clone()));
        Some(free)
    }

    /// Takes a line of the output that carries these groups from its slot, which is returned.
    pub(super) fn remove(&mut self, groups: &[GroupId], line: &OutputLine) -> Option<OutputIndex> {
        let output = self.outputs.iter_mut().find(|output| output.groups == groups)?;
        let at = output.lines.iter().position(|(_, other)| other == line)?;
        Some(output.lines.remove(at).0)
    }
}

fn index(slot: usize) -> OutputIndex {
    // A configuration has far fewer outputs.
    OutputIndex(u16::try_from(slot).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(lines: &[&str]) -> Resolved {
        let mut text = "[gateway]\nstate_file = \"s\"\n[[pool]]\nname = \"p\"\nthreads = 1\n".to_owned();
        for group in [1, 2] {
            text += &format!(
                "[[channel]]\nid = {group}\nname = \"c{group}\"\nfeed = \"iex-tops-1.6\"\ngroup = {group}\n\
                 [[channel.line]]\ngroup = \"239.1.1.{group}:1\"\ninterface = \"lo\"\n[[output]]\ngroups = [{group}]\n"
            );
            for line in lines {
                text += &format!("[[output.line]]\naddress = \"239.2.{group}.{line}:1\"\ninterface = \"lo\"\n");
            }
        }
        Resolved::from_text(Path::new("x"), &text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn both_lines_of_an_output_can_be_moved_at_once_and_their_places_are_used_again() {
        let (old, new) = (config(&["1", "2"]), config(&["3", "4"]));
        let group = GroupId(2);
        let mut slots = OutputSlots::of(&old);
        assert_eq!(slots.slot_count(), 8);
        assert_eq!(slots.indices(group), [OutputIndex(4), OutputIndex(5)]);
        let (before, after) = (&old.outputs[1].lines, &new.outputs[1].lines);
        let added = after.iter().map(|line| slots.add(&[group], line)).collect::<Vec<_>>();
        assert_eq!(added, [Some(OutputIndex(6)), Some(OutputIndex(7))]);
        assert_eq!(slots.add(&[group], &before[0]), None, "all slots are taken");
        let removed = before.iter().map(|line| slots.remove(&[group], line)).collect::<Vec<_>>();
        assert_eq!(removed, [Some(OutputIndex(4)), Some(OutputIndex(5))]);
        assert_eq!(slots.indices(group), [OutputIndex(6), OutputIndex(7)]);
        assert_eq!(slots.add(&[group], &before[0]), Some(OutputIndex(4)));
        assert_eq!(slots.remove(&[group], &before[1]), None, "no longer there");
        assert_eq!(slots.indices(GroupId(1)), [OutputIndex(0), OutputIndex(1)], "the other output keeps its slots");
        assert_eq!(slots.lines().count(), 5);
    }
}
