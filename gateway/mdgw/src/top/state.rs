//! What somebody who watches has chosen: which moment, which order, which channels. Keys in, state out; no terminal.

use mdgw_status::snapshot::Snapshot;

use super::rows::{ChannelRow, PoolRow, SortBy, channel_rows, pool_rows};

/// The view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Top {
    /// The moment that is shown, and the one before it.
    shown: Option<(Snapshot, Option<Snapshot>)>,
    /// The newest one: while the view is frozen, not the one that is shown.
    latest: Option<Snapshot>,
    problem: Option<String>,
    sort: SortBy,
    is_reversed: bool,
    filter: String,
    mode: Mode,
    is_frozen: bool,
    offset: usize,
}

/// What keys mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Commands.
    #[default]
    Watching,
    /// They are the filter's text.
    Filtering,
    /// Any ends the help.
    Helping,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A character.
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

/// What comes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// On.
    Go,
    /// The end.
    Quit,
}

/// Keys and what they do, as the help says it.
pub(crate) const KEYS: [(&str, &str); 9] = [
    ("q", "quit"),
    ("space", "freeze, and go on"),
    ("s", "sort by the next column, as the last line names it"),
    ("r", "reverse the order"),
    ("/", "channels with this text in name, number or state"),
    ("esc", "show all channels again"),
    ("up, down", "scroll by a row"),
    ("pages, home, end", "scroll by ten rows, to the first, to the last"),
    ("h, ?", "this help"),
];

const PAGE_ROWS: usize = 10;
/// Longer than any channel's name has to be.
const FILTER_CHARS_MAX: usize = 32;

impl Top {
    /// Nothing is known yet; what is to be shown of it once it is.
    #[must_use]
    pub(crate) fn new(sort: SortBy, filter: &str) -> Self {
        Self { sort, filter: filter.chars().take(FILTER_CHARS_MAX).collect(), ..Self::default() }
    }

    /// A newer moment is known.
    pub(crate) fn take(&mut self, snapshot: Snapshot) {
        self.problem = None;
        // One that began anew has counts that can't be compared with those before.
        let is_newer = |last: &Snapshot| last.source == snapshot.source && last.clock_ns <= snapshot.clock_ns;
        let before = self.latest.replace(snapshot.clone()).filter(is_newer);
        if !self.is_frozen {
            self.shown = Some((snapshot, before));
        }
    }

    /// There is no news, and why. What was shown stays.
    pub(crate) fn fail(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    /// A key was pressed.
    pub(crate) fn key(&mut self, key: Key) -> Flow {
        match (self.mode, key) {
            (_, Key::Interrupt) | (Mode::Watching, Key::Char('q')) => return Flow::Quit,
            (Mode::Helping, _) => self.mode = Mode::Watching,
            (Mode::Filtering, key) => self.edit(key),
            (Mode::Watching, Key::Char('/')) => self.mode = Mode::Filtering,
            (Mode::Watching, Key::Char('h' | '?')) => self.mode = Mode::Helping,
            (Mode::Watching, Key::Char(' ' | 'f')) => self.freeze(),
            (Mode::Watching, Key::Char('s')) => self.sort = self.sort.next(),
            (Mode::Watching, Key::Char('r')) => self.is_reversed = !self.is_reversed,
            (Mode::Watching, Key::Escape) => self.filter.clear(),
            (Mode::Watching, Key::Up) => self.offset = self.offset.saturating_sub(1),
            (Mode::Watching, Key::Down) => self.offset = self.offset.saturating_add(1),
            (Mode::Watching, Key::PageUp) => self.offset = self.offset.saturating_sub(PAGE_ROWS),
            (Mode::Watching, Key::PageDown) => self.offset = self.offset.saturating_add(PAGE_ROWS),
            (Mode::Watching, Key::Home) => self.offset = 0,
            (Mode::Watching, Key::End) => self.offset = usize::MAX,
            (Mode::Watching, _) => {}
        }
        // Never beyond the last row, so that the way back is as long as the way there.
        self.offset = self.offset.min(self.channels().len().saturating_sub(1));
        Flow::Go
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Enter => self.mode = Mode::Watching,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Watching;
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

    /// The moment that is shown.
    #[must_use]
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.shown.as_ref().map(|(snapshot, _)| snapshot)
    }

    /// Over how long the rates were taken, ns; `None` where there is nothing to compare with.
    #[must_use]
    pub(crate) fn span_ns(&self) -> Option<u64> {
        let (now, before) = self.shown.as_ref()?;
        Some(now.clock_ns.saturating_sub(before.as_ref()?.clock_ns))
    }

    /// Channels to show, all of them, in order.
    #[must_use]
    pub(crate) fn channels(&self) -> Vec<ChannelRow> {
        let Some((now, before)) = &self.shown else { return Vec::new() };
        let mut rows = channel_rows(now, before.as_ref(), self.sort, &self.filter);
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// Pools to show.
    #[must_use]
    pub(crate) fn pools(&self) -> Vec<PoolRow> {
        self.shown.as_ref().map_or_else(Vec::new, |(now, before)| pool_rows(now, before.as_ref()))
    }

    /// Rows scrolled away at the top.
    #[must_use]
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// What keys mean now.
    #[must_use]
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// What the rows are sorted by, and whether in reverse.
    #[must_use]
    pub(crate) fn order(&self) -> (SortBy, bool) {
        (self.sort, self.is_reversed)
    }

    /// What names, numbers or states must have in them.
    #[must_use]
    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    /// Whether it stands still.
    #[must_use]
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Why there is no news.
    #[must_use]
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::testing::{second, third};

    fn watching() -> Top {
        let mut top = Top::default();
        top.take(second());
        top.take(third());
        top
    }

    fn names(top: &Top) -> Vec<String> {
        top.channels().into_iter().map(|row| row.channel.name).collect()
    }

    #[test]
    fn keys_sort_reverse_filter_and_quit() {
        let mut top = watching();
        assert_eq!(top.span_ns(), Some(1_000_000_000));
        assert_eq!(top.key(Key::Char('s')), Flow::Go);
        assert_eq!(names(&top)[0], "bx");
        top.key(Key::Char('r'));
        assert_eq!(names(&top)[0], "nasdaq");
        for key in [Key::Char('/'), Key::Char('q'), Key::Backspace, Key::Char('i'), Key::Char('e'), Key::Enter] {
            assert_eq!(top.key(key), Flow::Go, "in the filter q is a letter");
        }
        assert_eq!((top.filter(), names(&top)), ("ie", vec!["iex-tops".to_owned(), "iex-deep".to_owned()]));
        top.key(Key::Escape);
        assert_eq!(names(&top).len(), 4);
        assert_eq!(top.key(Key::Char('q')), Flow::Quit);
        top.key(Key::Char('/'));
        assert_eq!(top.key(Key::Interrupt), Flow::Quit, "from everywhere");
    }

    #[test]
    fn a_frozen_view_stands_still_and_goes_on_with_the_latest() {
        let mut top = watching();
        top.key(Key::Char(' '));
        let mut newer = third();
        newer.clock_ns += 1_000_000_000;
        newer.channels[0].messages += 7;
        top.take(newer.clone());
        assert_eq!(top.snapshot(), Some(&third()));
        top.key(Key::Char(' '));
        assert_eq!(top.snapshot(), Some(&newer));
        assert_eq!(top.channels()[0].messages_per_s, 7.0);
    }

    #[test]
    fn scrolling_ends_at_the_last_row() {
        let mut top = watching();
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
    fn a_gateway_that_began_anew_has_no_rates_yet_and_one_that_is_gone_keeps_its_last_figures() {
        let mut top = watching();
        top.fail("gone".to_owned());
        assert_eq!((top.problem(), names(&top).len()), (Some("gone"), 4));
        top.take(Snapshot { source: "gateway 1, epoch 8".to_owned(), ..second() });
        assert_eq!((top.problem(), top.span_ns()), (None, None));
        assert_eq!(top.channels()[0].messages_per_s, 0.0);
    }

    #[test]
    fn any_key_ends_the_help() {
        let mut top = watching();
        top.key(Key::Char('?'));
        assert_eq!(top.mode(), Mode::Helping);
        top.key(Key::Char('x'));
        assert_eq!(top.mode(), Mode::Watching);
    }
}
