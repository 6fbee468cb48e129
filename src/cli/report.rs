//! What upstream was spared, in words, at the end of `exec`.

use std::time::Duration;

use crate::config::format_duration;

/// Counts over the life of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Savings {
    /// Requests of clients, of every kind.
    pub requests: u64,
    /// Reads answered from the cache at once.
    pub hits: u64,
    /// Reads answered from the cache after a hold.
    pub held: u64,
    /// Requests forwarded: writes and watches too.
    pub forwarded: u64,
    /// Reads that reached upstream: forwarded ones, and forebay's own lists and watches.
    pub upstream_reads: u64,
    /// Bytes of bodies answered from the cache.
    pub bytes_from_cache: u64,
    /// Since the start.
    pub elapsed: Duration,
}

/// The report, one or two lines.
pub fn text(savings: &Savings) -> String {
    let elapsed =
        format_duration(Duration::from_millis(u64::try_from(savings.elapsed.as_millis()).unwrap_or(u64::MAX)));
    if savings.requests == 0 {
        return format!(
            "forebay: no request in {elapsed}. Does the command read KUBECONFIG? If it has a flag for it, write \
             --kubeconfig={{kubeconfig}}.\n"
        );
    }
    let held = match savings.held {
        0 => String::new(),
        held => format!(" ({} of them held until it had synced)", grouped(held)),
    };
    format!(
        "forebay: {} requests in {elapsed}: {} answered from the cache{held}, {} forwarded.\n\
         forebay: {} reads reached the kube-apiserver, {} were not fetched from it.\n",
        grouped(savings.requests),
        grouped(savings.hits.saturating_add(savings.held)),
        grouped(savings.forwarded),
        grouped(savings.upstream_reads),
        bytes(savings.bytes_from_cache),
    )
}

/// `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `84234567` as `84.2 MB`.
pub fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.1} GB", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        for (n, want) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(n), want);
        }
        for (n, want) in [(999, "999 B"), (1_500, "1.5 kB"), (84_234_567, "84.2 MB"), (2_000_000_000, "2.0 GB")] {
            assert_eq!(bytes(n), want);
        }
    }

    #[test]
    fn the_report() {
        let savings = Savings {
            requests: 1240,
            hits: 1088,
            held: 14,
            forwarded: 138,
            upstream_reads: 9,
            bytes_from_cache: 84_200_000,
            elapsed: Duration::from_secs(192),
        };
        assert_eq!(
            text(&savings),
            "forebay: 1,240 requests in 3m12s: 1,102 answered from the cache (14 of them held until it had synced), \
             138 forwarded.\nforebay: 9 reads reached the kube-apiserver, 84.2 MB were not fetched from it.\n"
        );
        assert!(text(&Savings::default()).contains("no request in 0s"));
    }
}
