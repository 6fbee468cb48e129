//! Signals, and the order of a shutdown.
//!
//! SIGTERM or SIGINT, a failed critical task, or the caller's own reason ends the run. Then: readiness falls, the delay
//! passes (time for a load balancer to notice; 0 in a sidecar), the drain runs to its deadline. A second signal at any
//! moment of this aborts.

use std::{future::Future, io, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Drain, Drained, Failure, Tasks};

/// SIGTERM and SIGINT, caught from the moment this exists.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// How long a shutdown may take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From the signal to the start of the drain, while readiness already fails.
    pub delay: Duration,
    /// From the start of the drain to the abort.
    pub grace: Duration,
}

// === impl Signals ===

impl Signals {
    /// Catches the signals from now on: without this they kill the process.
    ///
    /// # Errors
    ///
    /// When the handler can't be registered with the kernel.
    pub fn install() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next signal's name. Cancel safe.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Waits for a reason to stop, then drains. `stop` is the caller's own reason (`pending()` if it has none); `begun` runs
/// once, before the delay: it makes readiness fail.
///
/// # Errors
///
/// The failure of the critical task that ended the run. The drain has run all the same.
pub async fn supervise(
    mut signals: Signals,
    drain: &Drain,
    tasks: &Tasks,
    timing: Timing,
    stop: impl Future<Output = ()>,
    begun: impl FnOnce(),
) -> Result<Drained, Failure> {
    let (delay, failure) = tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "shutting down; a second signal ends at once");
            (timing.delay, None)
        }
        failure = tasks.failed() => (Duration::ZERO, Some(failure)),
        () = stop => (Duration::ZERO, None),
    };
    begun();
    let drained = {
        let orderly = async {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            drain.shutdown(timing.grace).await
        };
        tokio::select! {
            drained = orderly => drained,
            name = signals.next() => {
                tracing::warn!(signal = name, "second signal: ending at once");
                drain.abort();
                drain.shutdown(Duration::ZERO).await
            }
        }
    };
    if let Drained::Aborted { left } = drained {
        tracing::warn!(left, "drain ended with work in flight");
    }
    failure.map_or(Ok(drained), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Class;

    const TIMING: Timing = Timing { delay: Duration::from_secs(5), grace: Duration::from_secs(10) };

    // Signals themselves are sent to a real process in tests/it: here they would hit the test runner.

    #[tokio::test]
    async fn a_failed_critical_task_drains_without_the_delay_and_is_returned() {
        tokio::time::pause();
        let drain = Drain::new();
        let tasks = Tasks::new(drain.token());
        tasks.spawn("listener", Class::Critical, async { Err("gone") });
        let before = tokio::time::Instant::now();
        let mut begun = false;
        let signals = Signals::install().expect("signals");
        let ended = supervise(signals, &drain, &tasks, TIMING, std::future::pending(), || begun = true).await;
        assert_eq!(ended, Err(Failure { name: "listener".into(), cause: "failed: gone".into() }));
        assert!(begun && drain.token().is_draining());
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn the_callers_reason_waits_for_work_in_flight() {
        tokio::time::pause();
        let drain = Drain::new();
        let tasks = Tasks::new(drain.token());
        let _held = drain.token().guard();
        let before = tokio::time::Instant::now();
        let signals = Signals::install().expect("signals");
        let ended = supervise(signals, &drain, &tasks, TIMING, async {}, || {}).await;
        assert_eq!(ended, Ok(Drained::Aborted { left: 1 }));
        // The clock has a resolution of 1 ms.
        assert!(before.elapsed().abs_diff(TIMING.grace) < Duration::from_millis(10), "{:?}", before.elapsed());
    }
}
