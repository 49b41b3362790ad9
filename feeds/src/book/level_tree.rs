//! Levels beyond the hot array: B+ trees of fixed-size chunks from one preallocated pool.
//!
//! A leaf is a chunk of levels in ascending key, an inner node a sorted list of children. Every node except a root is
//! at least half full, so the pool holds a known number of levels for any prices. An operation touches one path and
//! never moves more than a chunk.
//!
//! A key is a price mapped so that the better price is the larger key on both sides (see [`super::ladder`]).

use zerocopy::FromZeros;

use super::{Level, memory};

/// A tree: its root node and its number of inner levels. Without a root it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) node: u32,
    pub(super) height: u16,
}

impl Root {
    pub(super) const EMPTY: Self = Self { node: NONE, height: 0 };

    pub(super) fn is_empty(self) -> bool {
        self.node == NONE
    }
}

/// In place of a node's index: there is no node.
const NONE: u32 = u32::MAX;

/// Maximum number of inner levels of a tree. With chunks of 64 that is far more than any pool can fill.
const HEIGHT_MAX: u16 = 12;

/// Memory of all trees. A chunk has `C` levels.
#[derive(Debug)]
pub(super) struct LevelTrees<const C: usize> {
    leaves: Vec<Leaf<C>>,
    /// Number of levels in each leaf.
    lens: Vec<u16>,
    free: Vec<u32>,
    inners: Vec<Inner<C>>,
    inners_free: Vec<u32>,
}

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C, align(64))]
struct Leaf<const C: usize>([Level; C]);

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C, align(64))]
struct Inner<const C: usize> {
    /// All keys below child `i` are at least `lows[i]` and less than `lows[i + 1]`. `lows[0]` is not used.
    lows: [i64; C],
    children: [u32; C],
    len: u16,
}

impl<const C: usize> LevelTrees<C> {
    const HALF: usize = {
        assert!(C >= 4 && C <= 1 << 15);
        C / 2
    };

    /// Room for `levels_max` levels in up to `trees_max` trees.
    pub(super) fn new(trees_max: usize, levels_max: usize, prefault: bool) -> Self {
        let leaves = levels_max / Self::HALF + trees_max + usize::from(HEIGHT_MAX);
        // Each inner level has at most one node per `HALF` nodes below, and each tree has a root that may have fewer.
        let inners = leaves / (Self::HALF - 1) + trees_max.min(levels_max / C) + 2 * usize::from(HEIGHT_MAX);
        Self {
            leaves: memory::zeroed(leaves, prefault),
            lens: vec![0; leaves],
            free: free_list(leaves),
            inners: memory::zeroed(inners, prefault),
            inners_free: free_list(inners),
        }
    }

    pub(super) fn clear(&mut self) {
        self.free.clear();
        self.free.extend(descending(self.leaves.len()));
        self.inners_free.clear();
        self.inners_free.extend(descending(self.inners.len()));
    }

    /// All slots of a chunk.
    #[inline]
    fn slots(&self, chunk: u32) -> &[Level] {
        self.leaves.get(chunk as usize).map_or(&[], |chunk| &chunk.0)
    }

    /// All slots of a chunk.
    #[inline]
    fn slots_mut(&mut self, chunk: u32) -> &mut [Level] {
        self.leaves.get_mut(chunk as usize).map_or(&mut [], |chunk| &mut chunk.0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<Leaf<C>>()
            + self.lens.capacity() * size_of::<u16>()
            + self.inners.capacity() * size_of::<Inner<C>>()
            + (self.free.capacity() + self.inners_free.capacity()) * size_of::<u32>()
    }

    /// The level with that key.
    pub(super) fn find_mut(&mut self, root: Root, key: i64) -> Option<&mut Level> {
        let mut node = root.node;
        for _ in 0..root.height {
            let inner = self.inner(node)?;
            node = inner.child(inner.position(key))?;
        }
        let index = self.leaf(node).binary_search_by_key(&key, |level| level.price_e9).ok()?;
        self.slots_mut(node).get_mut(index)
    }

    /// Inserts a level with a new key. Returns `false`, and changes nothing, if the pool is used up.
    pub(super) fn insert(&mut self, root: &mut Root, level: Level) -> bool {
        if root.is_empty() {
            return self.insert_first(root, &[level]);
        }
        if !self.has_room_for_path(*root) {
            return false;
        }
        let sibling = self.insert_below(root.node, root.height, level);
        self.grow(root, sibling);
        true
    }

    /// Inserts up to half a chunk of levels in ascending order, all better than those in the tree. Returns `false`,
    /// and changes nothing, if the pool is used up.
    pub(super) fn append_best(&mut self, root: &mut Root, levels: &[Level]) -> bool {
        debug_assert!(levels.len() <= Self::HALF);
        if root.is_empty() {
            return self.insert_first(root, levels);
        }
        if !self.has_room_for_path(*root) {
            return false;
        }
        let sibling = self.append_below(root.node, root.height, levels);
        self.grow(root, sibling);
        true
    }

    /// Removes the level with that key.
    pub(super) fn remove(&mut self, root: &mut Root, key: i64) -> Option<Level> {
        let removed = self.remove_below(root.node, root.height, key)?;
        self.shrink(root);
        Some(removed)
    }

    /// Moves up to half a chunk of the best levels to the front of `hot`, in ascending order. Returns their number.
    pub(super) fn take_best(&mut self, root: &mut Root, hot: &mut [Level]) -> usize {
        if root.is_empty() {
            return 0;
        }
        let wanted = Self::HALF.min(hot.len());
        let taken = self.take_best_below(root.node, root.height, hot, wanted);
        self.shrink(root);
        taken
    }

    /// Levels of a tree, best first.
    pub(super) fn iter(&self, root: Root) -> Iter<'_, C> {
        let mut iter = Iter { trees: self, path: [(NONE, 0); HEIGHT_MAX as usize], height: root.height, leaf: &[] };
        if !root.is_empty() {
            iter.descend(root.node, root.height);
        }
        iter
    }

    fn insert_first(&mut self, root: &mut Root, levels: &[Level]) -> bool {
        let Some(leaf) = self.new_leaf() else { return false };
        self.set_leaf(leaf, levels);
        *root = Root { node: leaf, height: 0 };
        true
    }

    fn new_leaf(&mut self) -> Option<u32> {
        let leaf = self.free.pop()?;
        self.set_len(leaf, 0);
        Some(leaf)
    }

    /// Whether every node on a path can be split and the tree can grow by one inner level.
    fn has_room_for_path(&self, root: Root) -> bool {
        root.height + 1 < HEIGHT_MAX && !self.free.is_empty() && self.inners_free.len() > usize::from(root.height) + 1
    }

    /// Inserts a level. If `node` is split, returns its new right sibling with the sibling's least key.
    fn insert_below(&mut self, node: u32, height: u16, level: Level) -> Option<(i64, u32)> {
        if height == 0 {
            return self.insert_leaf(node, level);
        }
        let inner = self.inner(node)?;
        let position = inner.position(level.price_e9);
        let child = inner.child(position)?;
        let (low, sibling) = self.insert_below(child, height - 1, level)?;
        self.insert_child(node, position + 1, low, sibling)
    }

    fn insert_leaf(&mut self, node: u32, level: Level) -> Option<(i64, u32)> {
        let index = self.leaf(node).partition_point(|other| other.price_e9 < level.price_e9);
        let len = self.len(node);
        if len < C {
            insert_at(self.slots_mut(node), len, index, level);
            self.set_len(node, len + 1);
            return None;
        }
        let sibling = self.new_leaf()?;
        self.move_upper(node, sibling, Self::HALF);
        let (target, index) = if index <= Self::HALF { (node, index) } else { (sibling, index - Self::HALF) };
        let len = self.len(target);
        insert_at(self.slots_mut(target), len, index, level);
        self.set_len(target, len + 1);
        Some((self.leaf(sibling).first()?.price_e9, sibling))
    }

    fn append_below(&mut self, node: u32, height: u16, levels: &[Level]) -> Option<(i64, u32)> {
        if height > 0 {
            let inner = self.inner(node)?;
            let position = usize::from(inner.len).checked_sub(1)?;
            let child = inner.child(position)?;
            let (low, sibling) = self.append_below(child, height - 1, levels)?;
            return self.insert_child(node, position + 1, low, sibling);
        }
        let len = self.len(node);
        if let Some(slots) = self.slots_mut(node).get_mut(len..len + levels.len()) {
            slots.copy_from_slice(levels);
            self.set_len(node, len + levels.len());
            return None;
        }
        let sibling = self.new_leaf()?;
        self.set_leaf(sibling, levels);
        // The last leaf is more than half full, or the levels would have fitted. The new leaf may be less than half
        // full.
        self.balance_leaves(node, sibling);
        Some((self.leaf(sibling).first()?.price_e9, sibling))
    }

    /// Inserts a child. Returns the new right sibling of `node` if it is split.
    fn insert_child(&mut self, node: u32, position: usize, low: i64, child: u32) -> Option<(i64, u32)> {
        let inner = self.inner_mut(node)?;
        if usize::from(inner.len) < C {
            inner.insert_at(position, low, child);
            return None;
        }
        let mut right = Inner { lows: [0; C], children: [NONE; C], len: 0 };
        inner.move_upper(&mut right, Self::HALF);
        if position <= Self::HALF {
            inner.insert_at(position, low, child);
        } else {
            right.insert_at(position - Self::HALF, low, child);
        }
        let sibling = self.inners_free.pop()?;
        let low = right.low(0)?;
        *self.inner_mut(sibling)? = right;
        Some((low, sibling))
    }

    fn grow(&mut self, root: &mut Root, sibling: Option<(i64, u32)>) {
        let Some((low, sibling)) = sibling else { return };
        let Some(top) = self.inners_free.pop() else { return };
        if let Some(inner) = self.inner_mut(top) {
            inner.len = 0;
            inner.insert_at(0, i64::MIN, root.node);
            inner.insert_at(1, low, sibling);
        }
        *root = Root { node: top, height: root.height + 1 };
    }

    fn shrink(&mut self, root: &mut Root) {
        while root.height > 0 {
            let Some(inner) = self.inner(root.node) else { return };
            if inner.len > 1 {
                return;
            }
            let Some(child) = inner.child(0) else { return };
            self.inners_free.push(root.node);
            *root = Root { node: child, height: root.height - 1 };
        }
        if self.len(root.node) == 0 {
            self.free.push(root.node);
            *root = Root::EMPTY;
        }
    }

    fn remove_below(&mut self, node: u32, height: u16, key: i64) -> Option<Level> {
        if height == 0 {
            let index = self.leaf(node).binary_search_by_key(&key, |level| level.price_e9).ok()?;
            let len = self.len(node);
            let removed = remove_at(self.slots_mut(node), len, index)?;
            self.set_len(node, len - 1);
            return Some(removed);
        }
        let inner = self.inner(node)?;
        let position = inner.position(key);
        let child = inner.child(position)?;
        let removed = self.remove_below(child, height - 1, key)?;
        self.rebalance(node, height, position);
        Some(removed)
    }

    fn take_best_below(&mut self, node: u32, height: u16, hot: &mut [Level], wanted: usize) -> usize {
        if height == 0 {
            let leaf = self.leaf(node);
            let first = leaf.len().saturating_sub(wanted);
            let best = leaf.get(first..).unwrap_or(&[]);
            let taken = best.len();
            if let Some(slots) = hot.get_mut(..taken) {
                slots.copy_from_slice(best);
            }
            self.set_len(node, first);
            return taken;
        }
        let Some(inner) = self.inner(node) else { return 0 };
        let Some(position) = usize::from(inner.len).checked_sub(1) else { return 0 };
        let Some(child) = inner.child(position) else { return 0 };
        let taken = self.take_best_below(child, height - 1, hot, wanted);
        self.rebalance(node, height, position);
        taken
    }

    /// The child at `position` may be less than half full: balances it with a neighbour, or merges both.
    fn rebalance(&mut self, node: u32, height: u16, position: usize) {
        let Some(inner) = self.inner(node) else { return };
        let left_position = if position + 1 < usize::from(inner.len) { position } else { position.saturating_sub(1) };
        let (Some(left), Some(right)) = (inner.child(left_position), inner.child(left_position + 1)) else { return };
        let child = if position == left_position { left } else { right };
        let low = if height == 1 {
            if self.len(child) >= Self::HALF {
                return;
            }
            if self.len(left) + self.len(right) <= C {
                let len = self.len(left);
                let moved = self.len(right);
                let (from, to) = self.two_leaves_mut(right, left);
                if let (Some(from), Some(to)) = (from.get(..moved), to.get_mut(len..len + moved)) {
                    to.copy_from_slice(from);
                }
                self.set_len(left, len + moved);
                self.free.push(right);
                None
            } else {
                self.balance_leaves(left, right);
                self.leaf(right).first().map(|level| level.price_e9)
            }
        } else {
            let boundary = inner.low(left_position + 1);
            let (Some(mut a), Some(mut b)) = (self.inner(left).copied(), self.inner(right).copied()) else { return };
            if usize::from(if child == left { a.len } else { b.len }) >= Self::HALF {
                return;
            }
            // The first low of a node is unused and may be stale; the parent has the correct one.
            if let (Some(low), Some(boundary)) = (b.lows.first_mut(), boundary) {
                *low = boundary;
            }
            let low = if usize::from(a.len + b.len) <= C {
                b.move_lower(&mut a, usize::from(b.len));
                self.inners_free.push(right);
                None
            } else {
                let half = usize::from(a.len + b.len) / 2;
                if usize::from(a.len) > half {
                    a.move_upper(&mut b, half);
                } else {
                    let moved = half - usize::from(a.len);
                    b.move_lower(&mut a, moved);
                }
                b.low(0)
            };
            if let Some(left) = self.inner_mut(left) {
                *left = a;
            }
            if let Some(right) = self.inner_mut(right) {
                *right = b;
            }
            low
        };
        let Some(inner) = self.inner_mut(node) else { return };
        match low {
            Some(low) => {
                if let Some(place) = inner.lows.get_mut(left_position + 1) {
                    *place = low;
                }
            }
            None => inner.remove_at(left_position + 1),
        }
    }

    /// Balances two neighbouring leaves.
    fn balance_leaves(&mut self, left: u32, right: u32) {
        let (left_len, right_len) = (self.len(left), self.len(right));
        let half = (left_len + right_len) / 2;
        if left_len > half {
            self.move_upper(left, right, half);
            return;
        }
        let moved = half - left_len;
        let (from, to) = self.two_leaves_mut(right, left);
        if let (Some(from), Some(to)) = (from.get(..moved), to.get_mut(left_len..half)) {
            to.copy_from_slice(from);
        }
        from.copy_within(moved..right_len, 0);
        self.set_len(left, half);
        self.set_len(right, right_len - moved);
    }

    /// Moves all levels from `first` on to the front of a right neighbour.
    fn move_upper(&mut self, left: u32, right: u32, first: usize) {
        let (left_len, right_len) = (self.len(left), self.len(right));
        let moved = left_len.saturating_sub(first);
        let (from, to) = self.two_leaves_mut(left, right);
        if moved + right_len > to.len() {
            return;
        }
        to.copy_within(..right_len, moved);
        if let (Some(from), Some(to)) = (from.get(first..left_len), to.get_mut(..moved)) {
            to.copy_from_slice(from);
        }
        self.set_len(left, first);
        self.set_len(right, right_len + moved);
    }

    fn two_leaves_mut(&mut self, one: u32, other: u32) -> (&mut [Level], &mut [Level]) {
        match self.leaves.get_disjoint_mut([one as usize, other as usize]) {
            Ok([one, other]) => (&mut one.0, &mut other.0),
            Err(_) => (&mut [], &mut []),
        }
    }

    fn len(&self, leaf: u32) -> usize {
        self.lens.get(leaf as usize).copied().map_or(0, usize::from)
    }

    fn set_len(&mut self, leaf: u32, len: usize) {
        if let Some(place) = self.lens.get_mut(leaf as usize) {
            *place = to_u16(len);
        }
    }

    fn leaf(&self, leaf: u32) -> &[Level] {
        self.slots(leaf).get(..self.len(leaf)).unwrap_or(&[])
    }

    fn set_leaf(&mut self, leaf: u32, levels: &[Level]) {
        if let Some(slots) = self.slots_mut(leaf).get_mut(..levels.len()) {
            slots.copy_from_slice(levels);
        }
        self.set_len(leaf, levels.len());
    }

    fn inner(&self, node: u32) -> Option<&Inner<C>> {
        self.inners.get(node as usize)
    }

    fn inner_mut(&mut self, node: u32) -> Option<&mut Inner<C>> {
        self.inners.get_mut(node as usize)
    }
}

impl<const C: usize> Inner<C> {
    /// Position of the child for a key.
    fn position(&self, key: i64) -> usize {
        let lows = self.lows.get(1..usize::from(self.len)).unwrap_or(&[]);
        lows.partition_point(|low| *low <= key)
    }

    fn child(&self, position: usize) -> Option<u32> {
        self.children.get(..usize::from(self.len))?.get(position).copied()
    }

    fn low(&self, position: usize) -> Option<i64> {
        self.lows.get(..usize::from(self.len))?.get(position).copied()
    }

    fn insert_at(&mut self, position: usize, low: i64, child: u32) {
        let len = usize::from(self.len);
        insert_at(&mut self.lows, len, position, low);
        insert_at(&mut self.children, len, position, child);
        self.len += 1;
    }

    fn remove_at(&mut self, position: usize) {
        let len = usize::from(self.len);
        remove_at(&mut self.lows, len, position);
        if remove_at(&mut self.children, len, position).is_some() {
            self.len -= 1;
        }
    }

    /// Moves the children from `first` on to the front of a right neighbour.
    fn move_upper(&mut self, right: &mut Self, first: usize) {
        while usize::from(self.len) > first {
            let last = usize::from(self.len) - 1;
            let (Some(low), Some(child)) = (self.low(last), self.child(last)) else { return };
            right.insert_at(0, low, child);
            self.len -= 1;
        }
    }

    /// Moves the first `count` children to the end of a left neighbour.
    fn move_lower(&mut self, left: &mut Self, count: usize) {
        for position in 0..count {
            let (Some(low), Some(child)) = (self.low(position), self.child(position)) else { return };
            left.insert_at(usize::from(left.len), low, child);
        }
        let len = usize::from(self.len);
        self.lows.copy_within(count..len, 0);
        self.children.copy_within(count..len, 0);
        self.len -= to_u16(count);
    }
}

/// Levels of a tree, best first.
#[derive(Clone, Debug)]
pub(super) struct Iter<'a, const C: usize> {
    trees: &'a LevelTrees<C>,
    /// Inner nodes from the root down, and the number of their remaining children.
    path: [(u32, usize); HEIGHT_MAX as usize],
    height: u16,
    leaf: &'a [Level],
}

impl<const C: usize> Iter<'_, C> {
    fn descend(&mut self, mut node: u32, mut height: u16) {
        while height > 0 {
            let Some(inner) = self.trees.inner(node) else { return };
            let Some(last) = usize::from(inner.len).checked_sub(1) else { return };
            if let Some(step) = self.path.get_mut(usize::from(self.height - height)) {
                *step = (node, last);
            }
            let Some(child) = inner.child(last) else { return };
            node = child;
            height -= 1;
        }
        self.leaf = self.trees.leaf(node);
    }

    /// Moves to the next leaf; `false` at the end.
    fn advance(&mut self) -> bool {
        for depth in (0..self.height).rev() {
            let Some((node, position)) = self.path.get_mut(usize::from(depth)) else { return false };
            if *position > 0 {
                *position -= 1;
                let Some(child) = self.trees.inner(*node).and_then(|inner| inner.child(*position)) else {
                    return false;
                };
                self.descend(child, self.height - depth - 1);
                return true;
            }
        }
        false
    }
}

impl<const C: usize> Iterator for Iter<'_, C> {
    type Item = Level;

    fn next(&mut self) -> Option<Level> {
        loop {
            if let Some((level, rest)) = self.leaf.split_last() {
                self.leaf = rest;
                return Some(*level);
            }
            if !self.advance() {
                return None;
            }
        }
    }
}

/// Shifts the first `len` `items` from `index` on and inserts `item` there.
#[inline]
pub(super) fn insert_at<T: Copy>(items: &mut [T], len: usize, index: usize, item: T) {
    let Some(items) = items.get_mut(index..=len) else { return };
    if items.len() > MOVED_BY_LOOP_MAX {
        let end = items.len() - 1;
        items.copy_within(..end, 1);
        if let Some(place) = items.first_mut() {
            *place = item;
        }
        return;
    }
    let mut carried = item;
    for place in items {
        core::mem::swap(place, &mut carried);
    }
}

/// Removes the item at `index` from the first `len` of `items`.
#[inline]
pub(super) fn remove_at<T: Copy>(items: &mut [T], len: usize, index: usize) -> Option<T> {
    let items = items.get_mut(index..len)?;
    let mut carried = items.first().copied()?;
    if items.len() > MOVED_BY_LOOP_MAX {
        items.copy_within(1.., 0);
        return Some(carried);
    }
    for place in items.iter_mut().rev() {
        core::mem::swap(place, &mut carried);
    }
    Some(carried)
}

/// Up to this count, a loop is faster than a call.
const MOVED_BY_LOOP_MAX: usize = 8;

fn free_list(count: usize) -> Vec<u32> {
    descending(count).collect()
}

/// The end of the list is used first, so that memory is used from the front.
fn descending(count: usize) -> impl Iterator<Item = u32> {
    (0..count).rev().map(|index| u32::try_from(index).unwrap_or(NONE))
}

/// Counts within a chunk fit 16 bits: asserted for `C`.
fn to_u16(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

#[cfg(test)]
impl<const C: usize> LevelTrees<C> {
    /// Walks a tree and checks the module's invariants. Returns its number of levels.
    pub(super) fn check(&self, root: Root) -> usize {
        if root.is_empty() {
            return 0;
        }
        let count = self.check_below(root.node, root.height, true, i64::MIN, i64::MAX);
        let keys: Vec<i64> = self.iter(root).map(|level| level.price_e9).collect();
        assert!(keys.windows(2).all(|pair| pair[0] > pair[1]), "ascending: {keys:?}");
        assert_eq!(keys.len(), count);
        count
    }

    pub(super) fn free_counts(&self) -> (usize, usize) {
        (self.free.len(), self.inners_free.len())
    }

    fn check_below(&self, node: u32, height: u16, is_root: bool, low: i64, high: i64) -> usize {
        if height == 0 {
            let leaf = self.leaf(node);
            assert!(leaf.len() >= if is_root { 1 } else { Self::HALF }, "leaf of {}", leaf.len());
            assert!(leaf.iter().all(|level| low <= level.price_e9 && level.price_e9 <= high));
            return leaf.len();
        }
        let inner = self.inner(node).unwrap();
        let len = usize::from(inner.len);
        assert!(len >= if is_root { 2 } else { Self::HALF }, "inner of {len}");
        (0..len)
            .map(|position| {
                let low = if position == 0 { low } else { inner.lows[position] };
                let high = if position + 1 == len { high } else { inner.lows[position + 1] - 1 };
                self.check_below(inner.children[position], height - 1, false, low, high)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(i64),
        Remove(i64),
        AppendBest(usize),
        TakeBest(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0_i64..400).prop_map(Step::Insert),
            4 => (0_i64..400).prop_map(Step::Remove),
            1 => (1_usize..=2).prop_map(Step::AppendBest),
            1 => (1_usize..=4).prop_map(Step::TakeBest),
        ];
        prop::collection::vec(step, 1..600)
    }

    fn level(key: i64) -> Level {
        Level { price_e9: key, size: 1, order_count: 1 }
    }

    proptest! {
        /// Small chunks make tall trees: splits, merges and borrowing on every inner level.
        #[test]
        fn a_level_tree_matches_a_sorted_map(steps in steps()) {
            let mut trees = LevelTrees::<4>::new(1, 1_000, true);
            let all_free = trees.free_counts();
            let mut root = Root::EMPTY;
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(key) => if let std::collections::btree_map::Entry::Vacant(place) = model.entry(key) {
                        place.insert(1);
                        prop_assert!(trees.insert(&mut root, level(key)));
                    },
                    Step::Remove(key) => {
                        prop_assert_eq!(trees.find_mut(root, key).is_some(), model.contains_key(&key));
                        prop_assert_eq!(trees.remove(&mut root, key).is_some(), model.remove(&key).is_some());
                    }
                    Step::AppendBest(count) => {
                        let best = model.last_key_value().map_or(0, |(key, _)| *key);
                        let levels: Vec<Level> = (best + 1..).map(level).take(count).collect();
                        prop_assert!(trees.append_best(&mut root, &levels));
                        model.extend(levels.iter().map(|level| (level.price_e9, 1)));
                    }
                    Step::TakeBest(count) => {
                        let mut hot = vec![Level::default(); count];
                        let taken = trees.take_best(&mut root, &mut hot);
                        prop_assert_eq!(taken == 0, model.is_empty());
                        for level in hot[..taken].iter().rev() {
                            prop_assert_eq!(model.pop_last().map(|(key, _)| key), Some(level.price_e9));
                        }
                    }
                }
                prop_assert_eq!(trees.check(root), model.len());
                let keys: Vec<i64> = trees.iter(root).map(|level| level.price_e9).collect();
                prop_assert_eq!(keys, model.keys().rev().copied().collect::<Vec<_>>());
            }
            while trees.take_best(&mut root, &mut [Level::default(); 2]) > 0 {}
            prop_assert_eq!(trees.free_counts(), all_free);
        }
    }

    #[test]
    fn the_pool_holds_its_configured_levels_for_any_insertion_order() {
        for stride in [1_i64, 7_919, -1] {
            let mut trees = LevelTrees::<8>::new(1, 10_000, true);
            let mut root = Root::EMPTY;
            for index in 0..10_000 {
                assert!(trees.insert(&mut root, level((index * stride).rem_euclid(1_000_003))), "{stride} {index}");
            }
            assert_eq!(trees.check(root), 10_000);
        }
    }

    #[test]
    fn a_full_pool_refuses_inserts_and_stays_consistent() {
        let mut trees = LevelTrees::<4>::new(0, 0, true);
        let mut root = Root::EMPTY;
        let fitted = (0..1_000).take_while(|key| trees.insert(&mut root, level(*key))).count();
        assert!(fitted < 1_000);
        assert_eq!(trees.check(root), fitted);
        assert!(trees.remove(&mut root, 0).is_some());
        assert_eq!(trees.check(root), fitted - 1);
    }
}
