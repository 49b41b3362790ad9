//! The screen as an SVG image, for documents and tickets.

use std::fmt::{self, Write};

use ratatui::{
    buffer::{Buffer, Cell},
    layout::Rect,
    style::{Color, Modifier},
};

use mdgw_tools::report::escape;

use super::{draw::draw, state::Top};

/// The view on a screen of this size. The SVG is self-contained.
#[must_use]
pub(crate) fn svg(top: &Top, columns: u16, rows: u16) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    draw(top, buffer.area, &mut buffer);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&buffer, &mut text);
    text
}

fn write(buffer: &Buffer, out: &mut String) -> fmt::Result {
    let (columns, rows) = (buffer.area.width, buffer.area.height);
    let (width, height) = (x_of(columns) + MARGIN, y_of(rows) + MARGIN);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{PAPER}\"/>\n\
         <g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"{FONT}\" xml:space=\"preserve\">"
    )?;
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let style = CellStyle::of(&buffer[(column, row)]);
            let end = (column..columns).find(|at| CellStyle::of(&buffer[(*at, row)]) != style).unwrap_or(columns);
            let text: String = (column..end).map(|at| buffer[(at, row)].symbol()).collect();
            style.write(column, end, row, &text, out)?;
            column = end;
        }
    }
    writeln!(out, "</g>\n</svg>")
}

/// Style of a run of cells.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CellStyle {
    foreground: &'static str,
    background: Option<&'static str>,
    is_bold: bool,
}

impl CellStyle {
    fn of(cell: &Cell) -> Self {
        let is_reversed = cell.modifier.contains(Modifier::REVERSED);
        let is_dim = cell.modifier.contains(Modifier::DIM);
        let foreground = if is_dim { DIM } else { foreground(cell.fg) };
        Self {
            foreground: if is_reversed { PAPER } else { foreground },
            background: is_reversed.then_some(foreground),
            is_bold: cell.modifier.contains(Modifier::BOLD),
        }
    }

    fn write(self, from: u16, until: u16, row: u16, text: &str, out: &mut String) -> fmt::Result {
        let (x, y, width) = (x_of(from), y_of(row), f64::from(until - from) * CELL_WIDTH);
        if let Some(background) = self.background {
            writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{CELL_HEIGHT}\" fill=\"{background}\"/>"
            )?;
        }
        if text.trim().is_empty() {
            return Ok(());
        }
        let weight = if self.is_bold { " font-weight=\"bold\"" } else { "" };
        let (foreground, baseline) = (self.foreground, y + CELL_HEIGHT * 0.75);
        writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{baseline:.1}\" textLength=\"{width:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{foreground}\"{weight}>{}</text>",
            escape(text).replace(' ', "\u{a0}")
        )
    }
}

/// Terminal colours for a dark background.
fn foreground(color: Color) -> &'static str {
    match color {
        Color::Red => "#ff8f85",
        Color::Green => "#6fd08c",
        Color::Yellow => "#d6c54a",
        Color::Cyan => "#5fd3d8",
        _ => "#e8ecf0",
    }
}

fn x_of(column: u16) -> f64 {
    MARGIN + f64::from(column) * CELL_WIDTH
}

fn y_of(row: u16) -> f64 {
    MARGIN + f64::from(row) * CELL_HEIGHT
}

const PAPER: &str = "#12161b";
const DIM: &str = "#9aa5b1";
const FONT: u16 = 14;
const CELL_WIDTH: f64 = 8.4;
const CELL_HEIGHT: f64 = 18.0;
const MARGIN: f64 = 12.0;
