//! Percentile distributions as text, in the format of the HdrHistogram tools (`.hgrm`).

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use hdrhistogram::Histogram;

use super::Report;

/// Writes one file for each channel and stage into `directory`, values in microseconds. Returns the paths.
///
/// # Errors
/// Errors of the file system.
pub fn write_all(report: &Report, directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)?;
    let mut paths = Vec::new();
    for channel in &report.channels {
        for stage in &channel.stages {
            let path = directory.join(format!("channel-{}-{}.hgrm", channel.id.0, stage.stage.name()));
            let mut text = Vec::new();
            write(&stage.histogram, &mut text)?;
            fs::write(&path, text)?;
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Writes one distribution, values in microseconds, five steps for each halving of the distance to 100 %.
///
/// # Errors
/// Errors of `out`.
#[allow(clippy::cast_precision_loss, reason = "text with three decimals")]
pub(crate) fn write(histogram: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    let digits = usize::from(histogram.sigfig());
    let us = |ns: f64| ns / 1e3;
    writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let mut total = 0;
    for step in histogram.iter_quantiles(5) {
        total += step.count_since_last_iteration();
        let value = us(histogram.highest_equivalent(step.value_iterated_to()).min(histogram.max()) as f64);
        let quantile = step.quantile_iterated_to();
        write!(out, "{value:12.digits$} {quantile:1.12} {total:>10}")?;
        if quantile < 1.0 {
            write!(out, " {:14.2}", 1.0 / (1.0 - quantile))?;
        }
        writeln!(out)?;
    }
    let (mean, deviation, max) = (us(histogram.mean()), us(histogram.stdev()), us(histogram.max() as f64));
    writeln!(out, "#[Mean    = {mean:12.digits$}, StdDeviation   = {deviation:12.digits$}]")?;
    writeln!(out, "#[Max     = {max:12.digits$}, Total count    = {:>12}]", histogram.len())?;
    let sub_buckets = (2 * 10_u64.pow(u32::from(histogram.sigfig()))).next_power_of_two();
    writeln!(out, "#[Buckets = {:>12}, SubBuckets     = {sub_buckets:>12}]", histogram.buckets())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::sample_report;

    #[test]
    fn distributions_are_cumulative_up_to_the_maximum() {
        let report = sample_report();
        let histogram = &report.channels[0].stages[0].histogram;
        let mut text = Vec::new();
        write(histogram, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|field| field.parse().unwrap()).collect())
            .collect();
        assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][2] <= pair[1][2]), "{text}");
        let last = rows.last().unwrap();
        assert_eq!(last.as_slice(), [last[0], 1.0, histogram.len() as f64]);
        assert!(text.lines().next().unwrap().starts_with("       Value     Percentile TotalCount 1/(1-Percentile)"));
    }

    #[test]
    fn each_stage_of_each_channel_has_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let paths = write_all(&sample_report(), directory.path()).unwrap();
        assert_eq!(paths.len(), 12);
        assert!(paths.contains(&directory.path().join("channel-2-wire_to_wire.hgrm")));
    }
}
