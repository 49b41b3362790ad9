//! The report of a soak as one page with its curves, without anything from outside.

use std::fmt::Write as _;

use mdgw_tools::report::escape;

use super::{ResourceSample, SoakReport};

/// A page of HTML that needs no other file: verdict, faults, and a curve per resource.
pub(super) fn html(report: &SoakReport) -> String {
    let mut charts = String::new();
    let begin_ns = report.samples.first().map_or(0, |sample| sample.time_ns);
    let minutes = |time_ns: u64| time_ns.saturating_sub(begin_ns) as f64 / 60e9;
    let mut add_resource = |title: &str, value: &dyn Fn(&ResourceSample) -> f64| {
        let of_node = |node: u8| {
            let samples = report.samples.iter().filter(|sample| sample.node == node);
            (format!("gateway {node}"), samples.map(|sample| (minutes(sample.time_ns), value(sample))).collect())
        };
        charts += &chart(title, &[1, 2].map(of_node));
    };
    add_resource("Resident memory, MiB", &|sample| sample.resident_bytes as f64 / f64::from(1 << 20));
    add_resource("Threads", &|sample| sample.threads as f64);
    add_resource("Open descriptors", &|sample| sample.descriptors as f64);
    let latencies = report.latency_by_minute();
    let first_minute = latencies.first().map_or(0, |(minute, _)| *minute);
    let at_quantile = |name: &str, quantile: f64| {
        let points = latencies.iter().map(|(minute, histogram)| {
            ((minute - first_minute) as f64, histogram.value_at_quantile(quantile) as f64 / 1_000.0)
        });
        (name.to_owned(), points.collect())
    };
    charts +=
        &chart("Latency from a gateway's input to receivers, us", &[at_quantile("p50", 0.5), at_quantile("p99", 0.99)]);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Soak over {backend}, seed {seed}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>Soak over {backend}, seed {seed}</h1>\n{charts}<pre>{text}</pre></body></html>\n",
        backend = report.backend.name(),
        seed = report.seed,
        text = escape(&report.to_text()),
    )
}

/// A curve: its name, and its points in minutes and in the chart's unit.
type Curve = (String, Vec<(f64, f64)>);

/// A chart that begins at 0.
fn chart(title: &str, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let x_max = points().map(|(x, _)| *x).fold(1e-9, f64::max);
    let y_max = points().map(|(_, y)| *y).fold(1e-9, f64::max);
    let place = |(x, y): &(f64, f64)| {
        format!(
            "{:.1},{:.1}",
            LEFT + x / x_max * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / y_max * (HEIGHT - BOTTOM - TOP)
        )
    };
    let (mut lines, mut legend) = (String::new(), String::new());
    for (number, (name, points)) in curves.iter().enumerate() {
        let path: Vec<String> = points.iter().map(place).collect();
        // Writing to a string cannot fail.
        let _ = write!(lines, "<polyline class=\"c{number}\" points=\"{}\"/>", path.join(" "));
        let _ = write!(legend, "<span class=\"c{number}\">{}</span> ", escape(name));
    }
    let base = HEIGHT - BOTTOM;
    format!(
        "<h2>{title}</h2><p>{legend}</p><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\
         <path class=\"axis\" d=\"M{LEFT},{TOP} V{base} H{right}\"/>{lines}\
         <text x=\"{label}\" y=\"{top}\" text-anchor=\"end\">{y_max:.0}</text><text x=\"{label}\" y=\"{base}\" text-anchor=\"end\">0</text>\
         <text x=\"{right}\" y=\"{bottom}\" text-anchor=\"end\">{x_max:.1} min</text></svg>\n",
        title = escape(title),
        right = WIDTH - RIGHT,
        label = LEFT - 6.0,
        top = TOP + 10.0,
        bottom = HEIGHT - 8.0,
    )
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 26.0;
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}\
h2{font-size:1rem;margin:1.5rem 0 0}p{margin:0}svg{width:100%;font-size:13px;fill:currentColor}pre{overflow-x:auto;font-size:13px}\
.axis{fill:none;stroke:currentColor;stroke-opacity:.4}polyline{fill:none;stroke-width:1.5}\
polyline.c0{stroke:#2563c9}polyline.c1{stroke:#d9680f}span.c0{color:#2563c9}span.c1{color:#d9680f}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_places_the_largest_value_at_its_top_right() {
        let curve = ("one & two".to_owned(), vec![(0.0, 0.0), (2.0, 10.0)]);
        let svg = chart("Things", &[curve]);
        assert!(svg.contains("points=\"64.0,194.0 884.0,8.0\""), "{svg}");
        assert!(svg.contains("one &amp; two") && svg.contains(">10<") && svg.contains("2.0 min"), "{svg}");
    }
}
