//! Line charts as SVG text: two axes, a few series, no scripts. Colours are CSS classes, so that one chart serves light
//! mode, dark mode and print.

use std::fmt::Write as _;

/// A chart over a plane with scaled coordinates (logarithms already taken).
#[derive(Debug)]
pub(super) struct Chart {
    /// Text alternative for readers who cannot see the chart.
    pub(super) label: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    /// Marked ranges of the x axis, drawn behind the lines.
    pub(super) bands: Vec<Band>,
    pub(super) size: Size,
}

/// Height of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Full,
    /// Half width: beside another chart.
    Half,
}

/// A range of the x axis.
#[derive(Clone, Debug)]
pub(super) struct Band {
    pub(super) kind: BandKind,
    pub(super) from: f64,
    pub(super) until: f64,
    /// Tooltip.
    pub(super) note: String,
}

/// Reason for the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BandKind {
    /// A much higher rate than usual.
    Burst,
    /// No data recorded.
    Pause,
    /// Messages missing on all lines.
    Gap,
    /// Another gateway has become the leader.
    Takeover,
}

impl BandKind {
    /// Text in the legend.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Pause => "idle",
            Self::Gap => "gap declared",
            Self::Takeover => "takeover",
        }
    }

    /// Class in the style sheet.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Pause => "idle",
            Self::Gap => "gap",
            Self::Takeover => "takeover",
        }
    }
}

/// Range of an axis and its labels.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) min: f64,
    pub(super) max: f64,
    /// Position and text; a tick without text is a fine line.
    pub(super) ticks: Vec<(f64, String)>,
}

/// One series.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// Colour and dash pattern: 0 to [`STYLE_COUNT`], not included.
    pub(super) style: usize,
    pub(super) points: Vec<(f64, f64)>,
    /// Tooltips of the points: none, or one for each point.
    pub(super) notes: Vec<String>,
    /// Points farther apart on the x axis are not joined: nothing is known between them.
    pub(super) join_distance_max: f64,
}

/// Number of styles in the style sheet.
pub(super) const STYLE_COUNT: usize = 8;

/// Size of a chart, in units that are pixels at its natural width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) class: &'static str,
    pub(super) width: f64,
    pub(super) height: f64,
    /// Every n-th labelled tick of the x axis is drawn.
    pub(super) x_label_every: usize,
}

/// For screens and print.
pub(super) const WIDE: Frame = Frame { class: "wide", width: 760.0, height: 330.0, x_label_every: 1 };
/// For a phone held upright: the same text size, less room.
pub(super) const NARROW: Frame = Frame { class: "narrow", width: 360.0, height: 300.0, x_label_every: 2 };

const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 28.0;
/// Largest number of points with tooltips.
const DOTS_MAX: usize = 60;

impl Chart {
    /// Draws the chart for both frames, one after the other; the style sheet shows the one that fits.
    pub(super) fn svg(&self) -> String {
        let low = |frame: Frame| match self.size {
            Size::Full => frame,
            Size::Half => Frame { height: frame.height * 0.5, ..frame },
        };
        [WIDE, NARROW].map(|frame| self.draw(low(frame))).concat()
    }

    fn draw(&self, frame: Frame) -> String {
        let mut svg = String::new();
        let Frame { class, width, height, .. } = frame;
        let place = Projection { frame, x: &self.x, y: &self.y };
        let label = escape(&self.label);
        push_formatted(
            &mut svg,
            format_args!(r#"<svg class="{class}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">"#),
        );
        for band in &self.bands {
            draw_band(band, &place, &mut svg);
        }
        self.grid(&place, &mut svg);
        for series in &self.series {
            draw_series(series, &place, &mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn grid(&self, place: &Projection<'_>, svg: &mut String) {
        let (left, right, top, bottom) = (LEFT, place.frame.width - RIGHT, TOP, place.frame.height - BOTTOM);
        for (position, text) in &self.y.ticks {
            let y = place.y_of(*position);
            let class = if text.is_empty() { "fine" } else { "grid" };
            push_formatted(
                svg,
                format_args!(r#"<line class="{class}" x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/>"#),
            );
            if !text.is_empty() {
                let (x, y) = (left - 6.0, y + 4.0);
                push_formatted(
                    svg,
                    format_args!(r#"<text x="{x}" y="{y:.1}" text-anchor="end">{}</text>"#, escape(text)),
                );
            }
        }
        let labelled = self.x.ticks.iter().filter(|(_, text)| !text.is_empty());
        for (index, (position, text)) in labelled.enumerate() {
            let x = place.x_of(*position);
            push_formatted(
                svg,
                format_args!(r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}"/>"#),
            );
            if index.is_multiple_of(place.frame.x_label_every) {
                // The outermost labels stay within the chart.
                let half = 3.6 * f64::from(u32::try_from(text.chars().count()).unwrap_or(0));
                let x = x.clamp(half, place.frame.width - half);
                let y = bottom + 18.0;
                push_formatted(
                    svg,
                    format_args!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle">{}</text>"#, escape(text)),
                );
            }
        }
    }
}

fn draw_band(band: &Band, place: &Projection<'_>, svg: &mut String) {
    let (from, until) = (place.x_of(band.from), place.x_of(band.until));
    // A very narrow range is drawn with a minimum width.
    let (width, height) = ((until - from).max(2.0), place.frame.height - BOTTOM - TOP);
    let (class, note) = (band.kind.class(), escape(&band.note));
    push_formatted(
        svg,
        format_args!(
            r#"<rect class="{class}" x="{from:.1}" y="{TOP}" width="{width:.1}" height="{height:.1}"><title>{note}</title></rect>"#
        ),
    );
}

fn draw_series(series: &Series, place: &Projection<'_>, svg: &mut String) {
    let style = series.style % STYLE_COUNT;
    for piece in series.points.chunk_by(|(one, _), (next, _)| next - one <= series.join_distance_max) {
        let mut points: Vec<String> =
            piece.iter().map(|(x, y)| format!("{:.1},{:.1}", place.x_of(*x), place.y_of(*y))).collect();
        // A path with one point is not drawn; a line to the same point is drawn as a dot.
        if let [alone] = points.as_slice() {
            points.push(alone.clone());
        }
        push_formatted(svg, format_args!(r#"<polyline class="line s{style}" points="{}"/>"#, points.join(" ")));
    }
    if series.points.len() > DOTS_MAX {
        return;
    }
    for ((x, y), note) in series.points.iter().zip(&series.notes) {
        let (x, y) = (place.x_of(*x), place.y_of(*y));
        let note = escape(note);
        push_formatted(
            svg,
            format_args!(
                r#"<circle class="dot s{style}" cx="{x:.1}" cy="{y:.1}" r="2.5"><title>{note}</title></circle>"#
            ),
        );
    }
}

/// Maps the plane to the drawing.
struct Projection<'a> {
    frame: Frame,
    x: &'a Axis,
    y: &'a Axis,
}

impl Projection<'_> {
    fn x_of(&self, x: f64) -> f64 {
        LEFT + self.x.share(x) * (self.frame.width - LEFT - RIGHT)
    }

    fn y_of(&self, y: f64) -> f64 {
        let bottom = self.frame.height - BOTTOM;
        bottom - self.y.share(y) * (bottom - TOP)
    }
}

impl Axis {
    /// Logarithmic in nanoseconds, from the decade step (1, 2, 5) below `min_ns` to the one above `max_ns`.
    #[allow(clippy::cast_precision_loss, reason = "a position in a drawing")]
    pub(super) fn latency(min_ns: u64, max_ns: u64, label: impl Fn(u64) -> String) -> Self {
        let steps: Vec<u64> = (0..12).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power))).collect();
        let (low, high) = (min_ns.max(1), max_ns.max(2));
        let first = steps.iter().rposition(|step| *step <= low).unwrap_or(0);
        let last = steps.iter().position(|step| *step >= high).unwrap_or(steps.len() - 1).max(first + 1);
        let shown = steps.get(first..=last.min(steps.len() - 1)).unwrap_or(&steps);
        // Few decades have room for all labels, many only for the powers of ten.
        let only_tens = shown.len() > 9;
        let is_ten = |step: u64| step.ilog10() > 0 && step == 10_u64.pow(step.ilog10()) || step == 1;
        let text = |step: u64| if only_tens && !is_ten(step) { String::new() } else { label(step) };
        let position = |step: u64| (step as f64).log10();
        Self {
            min: position(shown[0]),
            max: position(shown[shown.len() - 1]),
            ticks: shown.iter().map(|step| (position(*step), text(*step))).collect(),
        }
    }

    /// Logarithmic in events per second.
    pub(super) fn rate(min_per_s: u64, max_per_s: u64, label: impl Fn(u64) -> String) -> Self {
        Self::latency(min_per_s, max_per_s, label)
    }

    /// Linear from 0 to the step of 1, 2, 5 above `max`, with few ticks.
    #[allow(clippy::cast_precision_loss, reason = "a position in a drawing")]
    pub(super) fn from_zero(max: f64, label: impl Fn(u64) -> String) -> Self {
        let steps = (0..16).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
        let step = steps.into_iter().find(|step| *step as f64 * 4.0 >= max).unwrap_or(u64::MAX / 8);
        let count = (0..=4_u64).find(|count| (count * step) as f64 >= max).unwrap_or(4).max(1);
        let ticks = (0..=count).map(|tick| ((tick * step) as f64, label(tick * step))).collect();
        Self { min: 0.0, max: (count * step) as f64, ticks }
    }

    /// Relative position of `value` between the ends, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        if self.max <= self.min { 0.5 } else { ((value - self.min) / (self.max - self.min)).clamp(0.0, 1.0) }
    }
}

fn push_formatted(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(what);
}

/// Escapes text for element content and attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_axes_enclose_their_values_in_decade_steps() {
        for (min, max) in [(1, 1), (37, 38), (900, 1_100), (1_000, 1_000), (3, 60_000_000_000)] {
            let axis = Axis::latency(min, max, |ns| ns.to_string());
            assert!(axis.min <= (min as f64).log10() && axis.max >= (max as f64).log10(), "{min} {max} {axis:?}");
            assert!(axis.ticks.iter().filter(|(_, text)| !text.is_empty()).count() >= 2, "{axis:?}");
        }
    }

    #[test]
    fn every_point_lies_within_the_drawing() {
        let axis = Axis { min: 0.0, max: 1.0, ticks: vec![(0.0, "0".to_owned()), (1.0, "1".to_owned())] };
        let points = vec![(0.0, 0.0), (1.0, 1.0), (9.0, -9.0)];
        let series =
            Series { name: String::new(), style: 0, points, notes: Vec::new(), join_distance_max: f64::INFINITY };
        let band = Band { kind: BandKind::Burst, from: -1.0, until: 7.0, note: "<busy>".to_owned() };
        let chart = Chart {
            label: "a & b".to_owned(),
            x: axis.clone(),
            y: axis,
            series: vec![series],
            bands: vec![band],
            size: Size::Full,
        };
        let svg = chart.draw(NARROW);
        assert!(svg.contains(r#"<rect class="burst" x="56.0" y="10" width="290.0""#), "{svg}");
        assert!(svg.contains("<title>&lt;busy&gt;</title>"), "{svg}");
        assert!(svg.contains("56.0,272.0 346.0,10.0 346.0,272.0"), "{svg}");
        assert!(svg.contains("a &amp; b"));
    }

    #[test]
    fn points_far_apart_are_not_joined() {
        let axis = Axis { min: 0.0, max: 10.0, ticks: Vec::new() };
        let points = vec![(0.0, 0.0), (1.0, 0.0), (5.0, 0.0), (9.0, 0.0), (10.0, 0.0)];
        let series = Series { name: String::new(), style: 0, points, notes: Vec::new(), join_distance_max: 2.0 };
        let mut svg = String::new();
        draw_series(&series, &Projection { frame: WIDE, x: &axis, y: &axis }, &mut svg);
        let lines: Vec<usize> = svg.split("<polyline").skip(1).map(|line| line.matches(',').count()).collect();
        assert_eq!(lines, [2, 2, 2], "a single point is a line to itself: {svg}");
    }

    #[test]
    fn axes_from_zero_enclose_their_values_in_few_steps() {
        for max in [0.0, 0.3, 1.0, 7.0, 41.0, 99_000.0, 1e12] {
            let axis = Axis::from_zero(max, |value| value.to_string());
            assert!(axis.max >= max && (2..=5).contains(&axis.ticks.len()), "{max} {axis:?}");
        }
    }

    #[test]
    fn an_axis_of_one_value_draws_it_in_the_middle() {
        let axis = Axis { min: 3.0, max: 3.0, ticks: Vec::new() };
        assert!((axis.share(3.0) - 0.5).abs() < f64::EPSILON);
    }
}
