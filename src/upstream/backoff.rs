//! How long a reflector waits before it tries again: 0.8 s doubling to 30 s, with jitter, reset after a healthy spell.
//!
//! The figures are client-go's reflector's. Upstream's `Retry-After` is a lower bound, not a replacement.

use std::time::Duration;

use rand::RngExt;

const FIRST: Duration = Duration::from_millis(800);
const CAP: Duration = Duration::from_secs(30);
/// A connection that lived this long was healthy: the next failure starts from the beginning.
const HEALTHY: Duration = Duration::from_secs(120);

/// The state of one retry loop.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    /// The wait after a failure of something that had worked for `healthy_for`.
    pub(super) fn after(&mut self, healthy_for: Duration, retry_after: Option<Duration>) -> Duration {
        if healthy_for >= HEALTHY {
            self.next = FIRST;
        }
        let base = self.next;
        self.next = (base * 2).min(CAP);
        let jittered = base.mul_f64(rand::rng().random_range(0.8..1.2));
        // A hostile or confused Retry-After must not park a resource for hours.
        jittered.max(retry_after.unwrap_or_default().min(CAP * 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_cap_and_resets_after_health() {
        let mut backoff = Backoff::new();
        let mut want = 0.8;
        for _ in 0..12 {
            let got = backoff.after(Duration::ZERO, None).as_secs_f64();
            assert!((want * 0.79..want * 1.21).contains(&got), "{got} is not about {want}");
            want = f64::min(want * 2.0, 30.0);
        }
        let got = backoff.after(HEALTHY, None);
        assert!(got < Duration::from_secs(1), "{got:?}");
        assert!(backoff.after(Duration::ZERO, Some(Duration::from_secs(9))) >= Duration::from_secs(9));
        assert!(backoff.after(Duration::ZERO, Some(Duration::from_secs(86_400))) <= Duration::from_secs(72));
    }
}
