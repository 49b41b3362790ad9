//! The page of a week: a table for each channel.

use std::fmt::{self, Write};

use mdgw_status::quantity::Count;

use super::{begin, damage_notice, latency};
use crate::report::{
    chart::escape,
    quantity::Timestamp,
    takeovers::Takeover,
    week::{COLUMNS, LIMITS, NOTE, Week, WeekChannel},
};

/// Writes the page.
///
/// # Errors
/// Errors of `out`.
pub fn write(week: &Week, out: &mut impl Write) -> fmt::Result {
    begin("Week by day", out)?;
    if let (Some(first), Some(last)) = (week.days.first(), week.days.last()) {
        writeln!(out, "<p>{} to {}, {NOTE}</p>", first.date, last.date)?;
    }
    writeln!(out, "</header>")?;
    damage_notice(&week.damage, out)?;
    week.channels.iter().try_for_each(|channel| section(week, channel, out))?;
    LIMITS.iter().try_for_each(|limit| writeln!(out, "<p class=\"caption\">{limit}</p>"))?;
    takeovers(&week.takeovers, out)?;
    writeln!(out, "</body>\n</html>")
}

fn section(week: &Week, channel: &WeekChannel, out: &mut impl Write) -> fmt::Result {
    let title = channel.title.replacen("channel", "Channel", 1);
    writeln!(
        out,
        "<section class=\"week\">\n<h2>{}</h2>\n<div class=\"scroll\">\n<table>\n<thead><tr><th>day</th>",
        escape(&title)
    )?;
    COLUMNS.iter().try_for_each(|(name, _)| write!(out, "<th>{name}</th>"))?;
    writeln!(out, "</tr></thead>\n<tbody>")?;
    for (day, values) in week.days.iter().zip(&channel.days) {
        match values {
            Some(values) => row(&day.title(), &values.cells(), out)?,
            None => writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td class=\"text\" colspan=\"{}\">{}</td></tr>",
                day.title(),
                COLUMNS.len(),
                day.without_values()
            )?,
        }
    }
    row("all", &channel.week.cells(), out)?;
    writeln!(out, "</tbody>\n</table>\n</div>")?;
    for (day, note) in week.gap_notes(channel) {
        writeln!(out, "<p class=\"caption\">Gaps of {}: {note}.</p>", day.title())?;
    }
    writeln!(out, "</section>")
}

fn row(name: &str, cells: &[String], out: &mut impl Write) -> fmt::Result {
    write!(out, "<tr><th scope=\"row\">{name}</th>")?;
    // Units stay with their values, and the sign of micro is a page's.
    let shown = |cell: &String| cell.replace(" us", " µs").replace(' ', "\u{a0}");
    cells.iter().try_for_each(|cell| write!(out, "<td>{}</td>", shown(cell)))?;
    writeln!(out, "</tr>")
}

fn takeovers(takeovers: &[Takeover], out: &mut impl Write) -> fmt::Result {
    if takeovers.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<section>\n<h2>Takeovers</h2>\n<div class=\"scroll\">\n<table>\n<thead><tr><th>time (UTC)</th><th>group</th>\
         <th>node</th><th>blackout</th><th>republished</th><th class=\"text\">cause</th></tr></thead>\n<tbody class=\"plain\">"
    )?;
    for takeover in takeovers {
        let blackout = takeover.blackout_ns(None).map_or_else(|| "–".to_owned(), latency);
        writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{blackout}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            Timestamp(takeover.time),
            takeover.group,
            takeover.node,
            Count(takeover.republished_packets()),
            escape(&takeover.cause)
        )?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>\n</section>")
}
