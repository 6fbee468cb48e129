//! The tables.

use std::time::Duration;

use crate::load::Done;

/// One server's figures for one kind of request, a sample each round.
#[derive(Debug, Default)]
pub(crate) struct Series {
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    /// CPU an answer.
    cpu: Duration,
    done: Done,
}

/// The rounds' ratios of two series, or of any two figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    median: f64,
    low: f64,
    high: f64,
}

// === impl Series ===

impl Series {
    pub(crate) fn add(&mut self, cpu: Duration, done: Done) {
        let answers = u32::try_from(done.requests.max(1)).unwrap_or(u32::MAX);
        self.samples.push(Sample { cpu: cpu / answers, done });
    }

    /// CPU an answer over that of `floor` in the same round.
    pub(crate) fn over(&self, floor: &Self) -> Option<Ratio> {
        let pairs = self.samples.iter().zip(&floor.samples);
        Ratio::of(pairs.map(|(a, b)| a.cpu.as_secs_f64() / b.cpu.as_secs_f64()).collect())
    }

    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of).collect())
    }
}

// === impl Ratio ===

impl Ratio {
    pub(crate) fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.sort_by(f64::total_cmp);
        Some(Self { low: *ratios.first()?, high: *ratios.last()?, median: median(ratios) })
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Ranges of a single round or of the floor itself would say nothing.
        let text = if self.high - self.low < 0.005 {
            format!("{:.2}", self.median)
        } else {
            format!("{:.2} ({:.2}-{:.2})", self.median, self.low, self.high)
        };
        f.pad(&text)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A heading, and the names of the columns where there are any.
pub(crate) fn heading(what: &str) {
    println!("\n{what}");
    println!("  {:<36} {:>10} {:>20} {:>9} {:>10} {:>10}", "", "CPU", "x bare", "req/s", "p50", "p99");
}

/// One server's row.
pub(crate) fn row(name: &str, series: &Series, floor: &Series) {
    let ratio = series.over(floor).map_or_else(String::new, |ratio| ratio.to_string());
    println!(
        "  {name:<36} {:>10} {ratio:>20} {:>9.0} {:>10} {:>10}",
        time(series.median(|sample| sample.cpu.as_secs_f64())),
        series.median(|sample| sample.done.rate()),
        time(series.median(|sample| sample.done.within(0.5).as_secs_f64())),
        time(series.median(|sample| sample.done.within(0.99).as_secs_f64())),
    );
}

/// What was to be reached, and whether it was.
pub(crate) fn aim(what: &str, ratio: Option<Ratio>, most: f64) {
    let Some(ratio) = ratio else { return };
    let verdict = if ratio.median <= most { "reached" } else { "MISSED" };
    println!("  aim: {what} at most {most:.2}: {ratio}, {verdict}");
}

/// Seconds for people.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Bytes for people.
pub(crate) fn mb(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}
