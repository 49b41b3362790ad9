//! The screen: header, pools with their threads, table of channels, and a footer with keys.

use mdgw_feeds::time::UnixNs;
use mdgw_status::snapshot::{SubscriberSnapshot, stuck_main_thread};
use mdgw_tools::report::quantity::{Latency, Timestamp};
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Row, Table, Widget as _},
};

use super::{
    rows::{ChannelRow, PoolRow},
    state::{KEYS, Mode, Top},
};

/// Draws the view into `area` of a buffer.
pub(crate) fn draw(top: &Top, area: Rect, buffer: &mut Buffer) {
    let pools = top.pools();
    let pool_lines: Vec<Line<'_>> = pools.iter().flat_map(|pool| pool_lines(pool, area.width)).collect();
    // Channels matter most, so pools take at most half of the screen.
    let pool_rows = u16::try_from(pool_lines.len()).unwrap_or(u16::MAX).min(area.height.saturating_sub(4) / 2);
    let failures = failures(top);
    let failure_rows = u16::try_from(failures.len()).unwrap_or(u16::MAX);
    let subscribers = subscriber_lines(top, area.height);
    let subscriber_rows = u16::try_from(subscribers.len()).unwrap_or(u16::MAX);
    let [head, of_pools, of_failures, of_channels, of_subscribers, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(pool_rows),
        Constraint::Length(failure_rows),
        Constraint::Min(0),
        Constraint::Length(subscriber_rows),
        Constraint::Length(1),
    ])
    .areas(area);
    Paragraph::new(header(top, area.width)).render(head, buffer);
    Paragraph::new(pool_lines).render(of_pools, buffer);
    Paragraph::new(failures).style(ALARM).render(of_failures, buffer);
    channels(top, of_channels, buffer);
    Paragraph::new(subscribers).render(of_subscribers, buffer);
    Paragraph::new(footer(top)).render(foot, buffer);
    if top.mode() == Mode::Help {
        help(area, buffer);
    }
}

fn header(top: &Top, width: u16) -> Vec<Line<'static>> {
    let Some(snapshot) = top.snapshot() else {
        let second =
            top.problem().map_or_else(|| Line::from("waiting"), |problem| Line::from(problem.to_owned()).style(ALARM));
        return vec![Line::from("mdgw top").style(BOLD), second];
    };
    let title = format!("mdgw top  {}", snapshot.source);
    let time = format!("{} UTC", Timestamp(UnixNs(snapshot.time_ns)));
    let room = usize::from(width).saturating_sub(time.chars().count() + 1);
    let first = Line::from(vec![Span::styled(format!("{:<room$} ", truncate(&title, room)), BOLD), Span::raw(time)]);
    if let Some(problem) = top.problem() {
        let frozen = if top.is_frozen() { "frozen  " } else { "" };
        return vec![first, Line::from(format!("{frozen}{problem}")).style(ALARM)];
    }
    let mut second = Vec::new();
    if let Some((read, all)) = snapshot.progress {
        second.push(Span::raw(format!("{} % done  ", read.saturating_mul(100) / all.max(1))));
    }
    if let Some(span_ns) = top.span_ns() {
        let clock = if snapshot.progress.is_some() { " of the capture" } else { "" };
        second.push(Span::raw(format!("rates over {}{clock}  ", Latency(span_ns))));
    }
    second.push(alarming(format!("kernel drops {}", snapshot.kernel_drops), snapshot.kernel_drops > 0));
    if top.is_frozen() {
        second.push(Span::styled("  frozen", Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD)));
    }
    vec![first, Line::from(second)]
}

/// One line of totals, then the threads, several per line.
fn pool_lines(pool: &PoolRow, width: u16) -> Vec<Line<'static>> {
    let sums = format!(
        "pool {}  {}  busy {}  saturated ",
        pool.name,
        if pool.threads.len() == 1 { "1 thread".to_owned() } else { format!("{} threads", pool.threads.len()) },
        percent(pool.busy)
    );
    let mut lines = vec![Line::from(vec![
        Span::raw(sums),
        alarming(percent(pool.saturated), pool.saturated >= SATURATED),
        Span::raw(format!("  {} turns/s", short_rate(pool.turns_per_s))),
    ])];
    let per_line = (usize::from(width) / THREAD_WIDTH).max(1);
    for threads in pool.threads.chunks(per_line) {
        let spans = threads.iter().map(|thread| {
            let text = format!("  {} {} {}", truncate(&thread.name, 10), thread.role, percent(thread.busy));
            Span::styled(format!("{text:<THREAD_WIDTH$}"), role_style(&thread.role))
        });
        lines.push(Line::from(spans.collect::<Vec<_>>()));
    }
    lines
}

/// A main thread that is stuck, and the first channels that are out of service, with the reason.
fn failures(top: &Top) -> Vec<Line<'static>> {
    let Some(snapshot) = top.snapshot() else { return Vec::new() };
    let stuck = snapshot.main_thread_stuck_ms.map(|stuck_ms| Line::from(stuck_main_thread(stuck_ms)));
    let failed = snapshot.channels.iter().filter_map(|channel| Some((&channel.name, channel.failed.as_ref()?)));
    let failed = failed.map(|(name, reason)| Line::from(format!("{name} is out of service: {reason}")));
    stuck.into_iter().chain(failed.take(FAILURES_MAX)).collect()
}

/// A line with the number of live clients, then those that are farthest behind: at most a quarter of the screen.
fn subscriber_lines(top: &Top, height: u16) -> Vec<Line<'static>> {
    let rows = top.subscribers();
    if rows.is_empty() {
        return Vec::new();
    }
    let shown = usize::from(height / 4).saturating_sub(1).min(rows.len());
    let head = format!("live clients {}, the {shown} farthest behind:", rows.len());
    let head = if shown == rows.len() { format!("live clients {shown}:") } else { head };
    let line = |row: &&SubscriberSnapshot| {
        let is_late = row.phase == "live" && row.behind_bytes.is_none_or(|bytes| bytes > row.behind_bytes_max / 2);
        Line::from(Span::styled(format!("  {row}"), if is_late || row.skips > 0 { ALARM } else { Style::new() }))
    };
    std::iter::once(Line::from(head).style(BOLD)).chain(rows.iter().take(shown).map(line)).collect()
}

fn channels(top: &Top, area: Rect, buffer: &mut Buffer) {
    let rows = top.channels();
    let columns: Vec<Column> = columns(area.width);
    let (sort, is_reversed) = top.order();
    let header = Row::new(columns.iter().map(|column| {
        let sign = if column.name != sort.name() {
            ""
        } else if is_reversed {
            "^"
        } else {
            "v"
        };
        column.aligned(&format!("{}{sign}", column.name))
    }))
    .style(Style::new().add_modifier(Modifier::REVERSED));
    let room = usize::from(area.height.saturating_sub(1));
    let offset = top.offset().min(rows.len().saturating_sub(1));
    let shown = rows.iter().skip(offset).take(room).map(|row| {
        let cells = columns.iter().map(|column| {
            let text = column.aligned(&(column.text)(row));
            Line::from(Span::styled(text, (column.style)(row)))
        });
        Row::new(cells.collect::<Vec<_>>())
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    Table::new(shown, widths).header(header).column_spacing(1).render(area, buffer);
}

/// A column of the table.
struct Column {
    name: &'static str,
    width: u16,
    align: Align,
    /// Shown on screens of at least this width.
    from_width: u16,
    text: fn(&ChannelRow) -> String,
    style: fn(&ChannelRow) -> Style,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

impl Column {
    fn aligned(&self, text: &str) -> String {
        let width = usize::from(self.width);
        let text = truncate(text, width);
        match self.align {
            Align::Left => format!("{text:<width$}"),
            Align::Right => format!("{text:>width$}"),
        }
    }
}

/// The columns that fit on the screen.
fn columns(width: u16) -> Vec<Column> {
    let plain: fn(&ChannelRow) -> Style = |_| Style::new();
    let column = |name, width, align, from_width, text, style| Column { name, width, align, from_width, text, style };
    let number = |name, width, from_width, text, style| column(name, width, Align::Right, from_width, text, style);
    let all = [
        column("name", NAME_WIDTH, Align::Left, 0, |row| row.channel.name.clone(), |_| BOLD),
        column("state", 10, Align::Left, 0, |row| row.channel.state.clone(), |row| state_style(&row.channel.state)),
        number("rate", 5, 0, |row| short_rate(row.messages_per_s), plain),
        number("pkt/s", 6, 87, |row| short_rate(row.datagrams_per_s), plain),
        number("sent/s", 6, 94, |row| short_rate(row.sent_per_s), plain),
        number("gaps", 5, 0, |row| count(row.channel.gaps), |row| alarm_if(row.channel.gaps)),
        number("lost", 5, 0, |row| count(row.channel.gap_messages), |row| alarm_if(row.channel.gap_messages)),
        number("drops", 5, 0, |row| count(row.channel.drops), |row| alarm_if(row.channel.drops)),
        number("faults", 6, 101, |row| count(row.channel.book_faults), |row| alarm_if(row.channel.book_faults)),
        column("lead", 14, Align::Left, 0, lead, |row| {
            if row.channel.silent_lines.is_empty() { Style::new() } else { ALARM }
        }),
        number("p50", 7, 0, |row| latency(row, |stage| stage.p50_ns), plain),
        number("p99", 7, 0, |row| latency(row, |stage| stage.p99_ns), plain),
        number("p99.9", 7, 109, |row| latency(row, |stage| stage.p999_ns), plain),
    ];
    let mut columns: Vec<Column> = all.into_iter().filter(|column| column.from_width <= width).collect();
    let taken: u16 = columns.iter().map(|column| column.width + 1).sum::<u16>().saturating_sub(1);
    if let Some(name) = columns.first_mut() {
        name.width += width.saturating_sub(taken).min(NAME_WIDTH);
    }
    columns
}

fn latency(row: &ChannelRow, pick: fn(&mdgw_status::snapshot::StageSnapshot) -> u64) -> String {
    row.channel.stage("wire_to_wire").map_or_else(|| "-".to_owned(), |stage| Latency(pick(stage)).to_string())
}

/// The leading line with its share and median lead; or the silent lines.
fn lead(row: &ChannelRow) -> String {
    if !row.channel.silent_lines.is_empty() {
        return format!("silent {}", row.channel.silent_lines.join(" "));
    }
    row.lead.as_ref().map_or_else(
        || "-".to_owned(),
        |(line, share)| format!("{} {} {}", line.line, percent(*share).replace(' ', ""), Latency(line.lead_p50_ns)),
    )
}

fn footer(top: &Top) -> Line<'static> {
    let (sort, _) = top.order();
    match top.mode() {
        Mode::EditingFilter => Line::from(vec![
            Span::styled("filter: ", BOLD),
            Span::raw(top.filter().to_owned()),
            Span::styled(" ", Style::new().add_modifier(Modifier::REVERSED)),
            Span::raw("  enter: apply, esc: cancel"),
        ]),
        Mode::Normal | Mode::Help => {
            let shown = top.channels().len();
            let all = top.snapshot().map_or(0, |snapshot| snapshot.channels.len());
            let filter = if top.filter().is_empty() { String::new() } else { format!(" with \"{}\"", top.filter()) };
            Line::from(format!(
                "q quit  h help  s sort  / filter  space freeze   {shown} of {all} channels{filter}, by {}",
                sort.name()
            ))
            .style(Style::new().add_modifier(Modifier::DIM))
        }
    }
}

fn help(area: Rect, buffer: &mut Buffer) {
    let lines: Vec<Line<'_>> = KEYS
        .iter()
        .map(|(key, does)| Line::from(vec![Span::styled(format!(" {key:<18}"), BOLD), Span::raw(*does)]))
        .chain(COLUMN_HELP.iter().map(|meaning| Line::from(*meaning)))
        .collect();
    let width = area.width.min(76);
    let height = area.height.min(u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2));
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(place, buffer);
    Paragraph::new(lines)
        .wrap(ratatui::widgets::Wrap { trim: false })
        .block(Block::bordered().title(" keys "))
        .render(place, buffer);
}

/// Explanation of the columns, shown below the keys.
const COLUMN_HELP: [&str; 6] = [
    "",
    " rate: messages/s    gaps: gaps declared    lost: messages in gaps",
    " drops: unexpected packets, refused    faults: messages inconsistent with the book",
    " lead: line that is most often first; share; median lead",
    " p50, p99: wire to wire, last latency interval",
    " saturated: share of time in which all threads were busy",
];

fn role_style(role: &str) -> Style {
    match role {
        "leader" => Style::new().fg(Color::Green),
        "processing" => Style::new().fg(Color::Yellow),
        "absent" | "stalled" => ALARM,
        _ => Style::new(),
    }
}

fn state_style(state: &str) -> Style {
    match state {
        "live" => Style::new().fg(Color::Green),
        "gap" | "recovering" => Style::new().fg(Color::Yellow),
        "failed" | "stale" => ALARM,
        _ => Style::new(),
    }
}

fn alarm_if(count: u64) -> Style {
    if count > 0 { ALARM } else { Style::new() }
}

fn alarming(text: String, is_alarm: bool) -> Span<'static> {
    if is_alarm { Span::styled(text, ALARM) } else { Span::raw(text) }
}

/// A share as whole percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A rate in at most five characters.
pub(super) fn short_rate(rate: f64) -> String {
    match rate {
        ..0.05 => "0".to_owned(),
        ..10.0 => format!("{rate:.1}"),
        ..99_999.5 => format!("{rate:.0}"),
        ..9_999_500.0 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.0}M", rate / 1e6),
    }
}

/// A count in at most five characters.
pub(super) fn count(count: u64) -> String {
    match count {
        ..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{}k", count / 1_000),
        10_000_000..10_000_000_000 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", count / 1_000_000_000),
    }
}

/// The first `width` characters.
fn truncate(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Share of time without a leader from which the pool is highlighted.
const SATURATED: f64 = 0.01;
/// Least width of the name column; up to twice as wide if there is room.
const NAME_WIDTH: u16 = 14;
/// Most rows that show failed channels.
const FAILURES_MAX: usize = 2;
/// Cells per thread: name, longest role, and share.
const THREAD_WIDTH: usize = 30;
