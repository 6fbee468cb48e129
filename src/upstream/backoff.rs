//! How long a reflector waits before it tries again: 0.8 s doubling to 30 s, with jitter, from the beginning after a
//! healthy spell; slower where trying again costs much and promises little.
//!
//! Upstream's `Retry-After` is a lower bound, not a replacement. Whoever waits may be woken when upstream works again, but
//! not before an eighth of the wait is over: an upstream that comes and goes is not asked all the time.

use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::Reach;

const FIRST: Duration = Duration::from_millis(800);
const CAP: Duration = Duration::from_secs(30);
/// For what is likely to fail again: some complete loads an hour.
const SLOW_CAP: Duration = Duration::from_secs(600);
/// What lived this long, and no shorter than the wait before it, was healthy.
const HEALTHY: Duration = Duration::from_secs(10);
/// A hostile or confused `Retry-After` must not park a resource for hours.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(60);

/// Those who are woken because upstream works again come spread over this.
const SPREAD: Duration = Duration::from_millis(500);

/// The state of one retry loop.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    last: Duration,
}

/// One wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// How long.
    pub(super) wait: Duration,
    /// How long at least, when upstream works again meanwhile.
    pub(super) least: Duration,
}

// === impl Backoff ===

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST, last: Duration::ZERO }
    }

    /// The wait after a failure of something that had worked for `lived`.
    pub(super) fn after(&mut self, lived: Duration, retry_after: Option<Duration>) -> Pause {
        self.pause(lived, retry_after, CAP)
    }

    /// As [`Self::after`], growing on to minutes.
    pub(super) fn slowly_after(&mut self, lived: Duration, retry_after: Option<Duration>) -> Pause {
        self.pause(lived, retry_after, SLOW_CAP)
    }

    fn pause(&mut self, lived: Duration, retry_after: Option<Duration>, cap: Duration) -> Pause {
        if lived >= HEALTHY && lived >= self.last {
            self.next = FIRST;
        }
        let base = self.next.min(cap);
        self.next = (base * 2).min(SLOW_CAP);
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_CAP);
        let wait = base.mul_f64(rand::rng().random_range(0.8..1.2)).max(asked);
        self.last = wait;
        Pause { wait, least: (wait / 8).max(asked) }
    }
}

// === impl Pause ===

impl Pause {
    /// Waits; shorter when upstream works again meanwhile. Cancel safe.
    pub(super) async fn rest(self, reach: &Reach) {
        let least = Instant::now() + self.least;
        let spread = SPREAD.mul_f64(rand::rng().random());
        let woken = async {
            reach.returned().await;
            sleep_until(least).await;
            sleep(spread).await;
        };
        tokio::select! {
            () = sleep(self.wait) => {}
            () = woken => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::ZERO;

    fn about(pause: Pause, seconds: f64) -> bool {
        (seconds * 0.79..seconds * 1.21).contains(&pause.wait.as_secs_f64()) && pause.least == pause.wait / 8
    }

    #[test]
    fn doubles_to_the_cap() {
        let mut backoff = Backoff::new();
        let mut want = 0.8;
        for _ in 0..12 {
            let got = backoff.after(NEVER, None);
            assert!(about(got, want), "{got:?} is not about {want}");
            want = f64::min(want * 2.0, 30.0);
        }
        let mut slow = Backoff::new();
        let waits: Vec<_> = (0..12).map(|_| slow.slowly_after(NEVER, None)).collect();
        assert!(about(waits[9], 409.6) && about(waits[10], 600.0) && about(waits[11], 600.0), "{waits:?}");
        assert!(about(slow.after(NEVER, None), 30.0), "what is only unavailable is not waited for so long");
    }

    /// A balancer that cuts every connection after 20 s costs a second each time, not half of the time.
    #[test]
    fn what_lived_for_a_while_begins_anew() {
        let mut backoff = Backoff::new();
        for _ in 0..10 {
            let got = backoff.after(Duration::from_secs(20), None);
            assert!(about(got, 0.8), "{got:?}");
        }
        // What lives shorter than one waits for it is not healthy.
        for _ in 0..6 {
            backoff.after(Duration::from_secs(9), None);
        }
        assert!(about(backoff.after(Duration::from_secs(20), None), 30.0));
        assert!(about(backoff.after(Duration::from_secs(37), None), 0.8));
    }

    #[test]
    fn retry_after_is_a_lower_bound_within_reason() {
        let mut backoff = Backoff::new();
        let asked = |seconds| Some(Duration::from_secs(seconds));
        let got = backoff.after(NEVER, asked(9));
        assert!(got.wait == Duration::from_secs(9) && got.least == got.wait, "{got:?}");
        assert!(backoff.after(NEVER, asked(86_400)).wait <= RETRY_AFTER_CAP);
        assert!(backoff.after(NEVER, asked(1)).wait > Duration::from_secs(2));
    }

    /// However often it is woken, in five minutes nobody asks an upstream that refuses everything more than this.
    #[test]
    fn minutes_of_refusal_cost_few_requests() {
        let requests = |next: fn(Pause) -> Duration| {
            let (mut backoff, mut passed, mut requests) = (Backoff::new(), Duration::ZERO, 0);
            while passed < Duration::from_secs(300) {
                passed += next(backoff.after(NEVER, None));
                requests += 1;
            }
            requests
        };
        let (patient, woken) = (requests(|pause| pause.wait), requests(|pause| pause.least));
        assert!(patient <= 20 && woken <= 110, "{patient}, {woken}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_when_upstream_works_again() {
        let reach = Reach::new();
        let pause = Pause { wait: Duration::from_secs(30), least: Duration::from_secs(4) };
        for (works_after, least, most) in [(1, 4_000, 4_500), (10, 10_000, 10_500), (60, 30_000, 30_000)] {
            let begun = Instant::now();
            tokio::select! {
                () = pause.rest(&reach) => {}
                () = async {
                    sleep(Duration::from_secs(works_after)).await;
                    reach.works();
                    std::future::pending::<()>().await;
                } => {}
            }
            let took = begun.elapsed().as_millis();
            assert!((least..=most + 2).contains(&took), "{took} ms");
        }
    }
}
