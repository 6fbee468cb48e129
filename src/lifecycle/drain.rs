//! The two-phase drain.
//!
//! Phase 1, *draining*: stop accepting, end watches cleanly, say GOAWAY or `Connection: close`, let writes in flight
//! finish. Phase 2, *aborted*: the deadline has passed or a second signal came; everything still open is dropped.
//!
//! Work that must be waited for holds a [`Guard`]. Draining never ends work by itself: whoever holds a guard watches
//! the token. Both phases are one-way.

use std::time::Duration;

use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// The owner's side: starts the phases and waits for the guards.
#[derive(Debug, Default)]
pub struct Drain {
    token: DrainToken,
}

/// The side of everyone who must end: listeners, connections, watches, reflectors. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DrainToken {
    draining: CancellationToken,
    aborted: CancellationToken,
    work: TaskTracker,
}

/// Work in flight that a drain waits for; ends when dropped.
#[derive(Clone, Debug)]
pub struct Guard {
    _held: TaskTrackerToken,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every guard was dropped in time.
    Clean,
    /// The deadline passed, or the drain was aborted, with this many guards still held.
    Aborted {
        /// Guards still held.
        left: usize,
    },
}

// === impl Drain ===

impl Drain {
    /// A drain that has not started, and has no guards.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token of this drain.
    pub fn token(&self) -> DrainToken {
        self.token.clone()
    }

    /// Starts phase 1 without waiting.
    pub fn start(&self) {
        self.token.draining.cancel();
    }

    /// Starts phase 2 (and phase 1 if it has not started): the second signal.
    pub fn abort(&self) {
        self.token.draining.cancel();
        self.token.aborted.cancel();
    }

    /// Starts phase 1 and waits until every guard is dropped; phase 2 starts after `grace`.
    ///
    /// Ends early when [`Drain::abort`] is called meanwhile. Cancel safe: dropped, it leaves phase 1 started.
    pub async fn shutdown(&self, grace: Duration) -> Drained {
        self.start();
        self.token.work.close();
        tokio::select! {
            // Guards first: a drain that is done at the very deadline was clean.
            biased;
            () = self.token.work.wait() => Drained::Clean,
            () = self.token.aborted() => self.aborted(),
            () = tokio::time::sleep(grace) => self.aborted(),
        }
    }

    fn aborted(&self) -> Drained {
        self.abort();
        Drained::Aborted { left: self.token.work.len() }
    }
}

// === impl DrainToken ===

impl DrainToken {
    /// Resolves when phase 1 starts. Cancel safe.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// [`DrainToken::draining`] as a `'static` future with a name, to be kept inside a body.
    pub fn draining_owned(&self) -> WaitForCancellationFutureOwned {
        self.draining.clone().cancelled_owned()
    }

    /// Resolves when phase 2 starts. Cancel safe.
    pub async fn aborted(&self) {
        self.aborted.cancelled().await;
    }

    /// Has phase 1 started?
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Has phase 2 started?
    pub fn is_aborted(&self) -> bool {
        self.aborted.is_cancelled()
    }

    /// Registers work in flight. Take it before the work starts, so that a drain can't miss it.
    #[must_use = "the drain waits only while the guard lives"]
    pub fn guard(&self) -> Guard {
        Guard { _held: self.work.token() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn without_guards_a_drain_ends_at_once() {
        let drain = Drain::new();
        assert!(!drain.token().is_draining());
        assert_eq!(drain.shutdown(Duration::from_secs(10)).await, Drained::Clean);
        assert!(drain.token().is_draining());
        assert!(!drain.token().is_aborted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_the_last_guard() {
        let drain = Drain::new();
        let token = drain.token();
        let guard = token.guard();
        let before = tokio::time::Instant::now();
        let work = async {
            token.draining().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(guard);
        };
        let (drained, ()) = tokio::join!(drain.shutdown(Duration::from_secs(10)), work);
        assert_eq!(drained, Drained::Clean);
        assert_eq!(before.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_aborts_and_counts_what_is_left() {
        let drain = Drain::new();
        let _held = (drain.token().guard(), drain.token().guard());
        assert_eq!(drain.shutdown(Duration::from_secs(10)).await, Drained::Aborted { left: 2 });
        drain.token().aborted().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_the_wait() {
        let drain = Drain::new();
        let _held = drain.token().guard();
        let before = tokio::time::Instant::now();
        let (drained, ()) = tokio::join!(drain.shutdown(Duration::from_secs(10)), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drain.abort();
        });
        assert_eq!(drained, Drained::Aborted { left: 1 });
        assert_eq!(before.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_owned_wait_outlives_the_token() {
        let drain = Drain::new();
        let owned = drain.token().draining_owned();
        drain.start();
        owned.await;
    }
}
