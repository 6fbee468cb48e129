//! Latencies and how they are printed.

use std::time::Duration;

/// Latencies of one measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

// === impl Latencies ===

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The latency, in seconds, that this share of the requests did not exceed.
    pub(crate) fn within(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (share * sorted.len() as f64) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(f64::NAN, Duration::as_secs_f64)
    }
}

/// Median of some figures, with the lowest and the highest.
pub(crate) fn spread(mut figures: Vec<f64>, unit: impl Fn(f64) -> String) -> String {
    figures.sort_by(f64::total_cmp);
    match (figures.first(), figures.get(figures.len() / 2), figures.last()) {
        (Some(low), Some(median), Some(high)) if figures.len() > 1 => {
            format!("{} ({}-{})", unit(*median), unit(*low), unit(*high))
        }
        (_, Some(only), _) => unit(*only),
        _ => String::new(),
    }
}

/// Seconds as milliseconds.
pub(crate) fn ms(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

/// Seconds as microseconds.
pub(crate) fn us(seconds: f64) -> String {
    format!("{:.1} us", seconds * 1e6)
}

/// A plain ratio.
pub(crate) fn times(ratio: f64) -> String {
    format!("{ratio:.2}x")
}
