//! State of the view: snapshot, sort order, filter and scroll position. Keys change the state; no terminal is used
//! here.

use mdgw_status::snapshot::{Snapshot, SubscriberSnapshot};

use super::rows::{ChannelRow, PoolRow, SortBy, channel_rows, pool_rows};

/// What `mdgw top` shows: two snapshots, and what the user's keys have chosen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Top {
    /// The displayed snapshot and the one before it.
    shown: Option<(Snapshot, Option<Snapshot>)>,
    /// The newest snapshot; while the view is frozen, it is not displayed.
    latest: Option<Snapshot>,
    problem: Option<String>,
    sort: SortBy,
    is_reversed: bool,
    filter: String,
    mode: Mode,
    is_frozen: bool,
    offset: usize,
}

/// Meaning of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Commands.
    #[default]
    Normal,
    /// Characters edit the filter.
    EditingFilter,
    /// Any key closes the help.
    Help,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A key that produces this character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// A row up.
    Up,
    /// A row down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// Control and C.
    Interrupt,
}

/// Whether the view continues after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Quit,
}

/// Keys and their effects, as shown in the help.
pub(crate) const KEYS: [(&str, &str); 9] = [
    ("q", "quit"),
    ("space", "freeze or resume"),
    ("s", "sort by the next column (shown in the last line)"),
    ("r", "reverse the order"),
    ("/", "filter by text in name, number or state"),
    ("esc", "clear the filter"),
    ("up, down", "scroll by a row"),
    ("pages, home, end", "scroll by a page; to the first or last row"),
    ("h, ?", "this help"),
];

const PAGE_ROWS: usize = 10;
/// Longest filter text, in characters.
const FILTER_CHARS_MAX: usize = 32;

impl Top {
    /// A view without snapshot, with this sort order and filter.
    #[must_use]
    pub(crate) fn new(sort: SortBy, filter: &str) -> Self {
        Self { sort, filter: filter.chars().take(FILTER_CHARS_MAX).collect(), ..Self::default() }
    }

    /// Accepts a newer snapshot.
    pub(crate) fn update(&mut self, snapshot: Snapshot) {
        self.problem = None;
        // After a restart, counts cannot be compared with the earlier ones.
        let is_newer = |last: &Snapshot| last.source == snapshot.source && last.clock_ns <= snapshot.clock_ns;
        let before = self.latest.replace(snapshot.clone()).filter(is_newer);
        if !self.is_frozen {
            self.shown = Some((snapshot, before));
        }
    }

    /// Reports why there is no new snapshot. The last one stays on display.
    pub(crate) fn set_problem(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: Key) -> Flow {
        match (self.mode, key) {
            (_, Key::Interrupt) | (Mode::Normal, Key::Char('q')) => return Flow::Quit,
            (Mode::Help, _) => self.mode = Mode::Normal,
            (Mode::EditingFilter, key) => self.edit(key),
            (Mode::Normal, Key::Char('/')) => self.mode = Mode::EditingFilter,
            (Mode::Normal, Key::Char('h' | '?')) => self.mode = Mode::Help,
            (Mode::Normal, Key::Char(' ' | 'f')) => self.freeze(),
            (Mode::Normal, Key::Char('s')) => self.sort = self.sort.next(),
            (Mode::Normal, Key::Char('r')) => self.is_reversed = !self.is_reversed,
            (Mode::Normal, Key::Escape) => self.filter.clear(),
            (Mode::Normal, Key::Up) => self.offset = self.offset.saturating_sub(1),
            (Mode::Normal, Key::Down) => self.offset = self.offset.saturating_add(1),
            (Mode::Normal, Key::PageUp) => self.offset = self.offset.saturating_sub(PAGE_ROWS),
            (Mode::Normal, Key::PageDown) => self.offset = self.offset.saturating_add(PAGE_ROWS),
            (Mode::Normal, Key::Home) => self.offset = 0,
            (Mode::Normal, Key::End) => self.offset = usize::MAX,
            (Mode::Normal, _) => {}
        }
        // Never beyond the last row, so that scrolling back takes the same number of keys.
        self.offset = self.offset.min(self.channels().len().saturating_sub(1));
        Flow::Continue
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Enter => self.mode = Mode::Normal,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Normal;
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(character) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(character),
            _ => {}
        }
    }

    fn freeze(&mut self) {
        self.is_frozen = !self.is_frozen;
        if !self.is_frozen
            && let Some(latest) = &self.latest
        {
            let before = self.shown.take().map(|(shown, _)| shown).filter(|shown| shown.source == latest.source);
            self.shown = Some((latest.clone(), before));
        }
    }

    /// The snapshot that is shown; `None` before the first one arrives.
    #[must_use]
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.shown.as_ref().map(|(snapshot, _)| snapshot)
    }

    /// Time between the two snapshots of the rates, ns; `None` with a single snapshot.
    #[must_use]
    pub(crate) fn span_ns(&self) -> Option<u64> {
        let (now, before) = self.shown.as_ref()?;
        Some(now.clock_ns.saturating_sub(before.as_ref()?.clock_ns))
    }

    /// Rows of all matching channels, sorted.
    #[must_use]
    pub(crate) fn channels(&self) -> Vec<ChannelRow> {
        let Some((now, before)) = &self.shown else { return Vec::new() };
        let mut rows = channel_rows(now, before.as_ref(), self.sort, &self.filter);
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// Blocks of all pools.
    #[must_use]
    pub(crate) fn pools(&self) -> Vec<PoolRow> {
        self.shown.as_ref().map_or_else(Vec::new, |(now, before)| pool_rows(now, before.as_ref()))
    }

    /// Sessions of live clients, the one farthest behind first.
    #[must_use]
    pub(crate) fn subscribers(&self) -> Vec<&SubscriberSnapshot> {
        let mut rows: Vec<_> = self.snapshot().map_or(&[][..], |snapshot| &snapshot.subscribers).iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.behind_bytes.unwrap_or(u64::MAX)));
        rows
    }

    /// Number of rows scrolled off the top.
    #[must_use]
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Current meaning of the keys.
    #[must_use]
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Sort order, and whether it is reversed.
    #[must_use]
    pub(crate) fn order(&self) -> (SortBy, bool) {
        (self.sort, self.is_reversed)
    }

    /// Text that names, numbers or states must contain.
    #[must_use]
    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    /// Whether the view is frozen.
    #[must_use]
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Why there is no new snapshot.
    #[must_use]
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::testing::{earlier_snapshot, later_snapshot};

    fn top_with_two_snapshots() -> Top {
        let mut top = Top::default();
        top.update(earlier_snapshot());
        top.update(later_snapshot());
        top
    }

    fn names(top: &Top) -> Vec<String> {
        top.channels().into_iter().map(|row| row.channel.name).collect()
    }

    #[test]
    fn keys_sort_reverse_filter_and_quit() {
        let mut top = top_with_two_snapshots();
        assert_eq!(top.span_ns(), Some(1_000_000_000));
        assert_eq!(top.key(Key::Char('s')), Flow::Continue);
        assert_eq!(names(&top)[0], "bx");
        top.key(Key::Char('r'));
        assert_eq!(names(&top)[0], "nasdaq");
        for key in [Key::Char('/'), Key::Char('q'), Key::Backspace, Key::Char('i'), Key::Char('e'), Key::Enter] {
            assert_eq!(top.key(key), Flow::Continue, "in the filter q is a letter");
        }
        assert_eq!((top.filter(), names(&top)), ("ie", vec!["iex-tops".to_owned(), "iex-deep".to_owned()]));
        top.key(Key::Escape);
        assert_eq!(names(&top).len(), 4);
        assert_eq!(top.key(Key::Char('q')), Flow::Quit);
        top.key(Key::Char('/'));
        assert_eq!(top.key(Key::Interrupt), Flow::Quit, "in every mode");
    }

    #[test]
    fn a_frozen_view_keeps_its_snapshot_and_resumes_with_the_latest() {
        let mut top = top_with_two_snapshots();
        top.key(Key::Char(' '));
        let mut newer = later_snapshot();
        newer.clock_ns += 1_000_000_000;
        newer.channels[0].messages += 7;
        top.update(newer.clone());
        assert_eq!(top.snapshot(), Some(&later_snapshot()));
        top.key(Key::Char(' '));
        assert_eq!(top.snapshot(), Some(&newer));
        assert_eq!(top.channels()[0].messages_per_s, 7.0);
    }

    #[test]
    fn scrolling_ends_at_the_last_row() {
        let mut top = top_with_two_snapshots();
        for key in [Key::Down, Key::PageDown, Key::End] {
            top.key(key);
        }
        assert_eq!(top.offset(), 3);
        top.key(Key::Up);
        assert_eq!(top.offset(), 2);
        top.key(Key::Home);
        assert_eq!(top.offset(), 0);
    }

    #[test]
    fn a_restarted_gateway_has_no_rates_and_an_unreachable_one_keeps_its_last_snapshot() {
        let mut top = top_with_two_snapshots();
        top.set_problem("gone".to_owned());
        assert_eq!((top.problem(), names(&top).len()), (Some("gone"), 4));
        top.update(Snapshot { source: "gateway 1, epoch 8".to_owned(), ..earlier_snapshot() });
        assert_eq!((top.problem(), top.span_ns()), (None, None));
        assert_eq!(top.channels()[0].messages_per_s, 0.0);
    }

    #[test]
    fn any_key_ends_the_help() {
        let mut top = top_with_two_snapshots();
        top.key(Key::Char('?'));
        assert_eq!(top.mode(), Mode::Help);
        top.key(Key::Char('x'));
        assert_eq!(top.mode(), Mode::Normal);
    }
}
