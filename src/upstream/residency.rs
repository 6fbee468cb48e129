//! How long a store stays: its reflector runs until upstream no longer serves the resource or nobody reads it any more, and
//! pauses while the memory budget has no room for it.
//!
//! ```text
//! run --not served--> gone      evicted: idle, or others need its memory --> gone; the next read opens it anew
//!  ^ |
//!  | +--evicted: over budget--> reads are forwarded --room again, or after minutes--> run
//! ```
//!
//! A store that goes is unfindable before its readers are told. Dropping the reflector's future drops what it has loaded.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::store::{Budget, Eviction, Registry, StoreKey};

use super::{Discovery, Metrics, driver::Driver};

/// What has just proved too large is left alone for so long, whatever room there seems to be.
const SETTLE: Duration = Duration::from_secs(30);

/// Without room it is tried again after this, since it may have become smaller; doubling to an hour.
const RETRY: Duration = Duration::from_secs(300);
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// How much larger than what was loaded of it a resource is taken to be.
const MARGIN: f64 = 1.25;

/// A store with its reflector. Dropped for whatever reason (a panic, too), it is not found any more.
pub(super) struct Resident {
    pub(super) driver: Driver,
    pub(super) registry: Registry,
    pub(super) discovery: Discovery,
    pub(super) metrics: Metrics,
}

/// How long to wait before what was too large is tried again.
#[derive(Debug)]
struct Patience {
    next: Duration,
}

/// Goes on if the memory budget has room for what has come; else never, until [`Resident::run`] ends the reflector.
pub(super) async fn admitted(registry: &Registry, key: &StoreKey) {
    if !registry.admit(key) {
        std::future::pending::<()>().await;
    }
}

// === impl Resident ===

impl Resident {
    /// Keeps the store in step for as long as it may stay.
    pub(super) async fn run(mut self) {
        let mut patience = Patience { next: RETRY };
        let budget = self.registry.budget().clone();
        let mut need = self.registry.gave_way(&self.driver.key);
        loop {
            let evicted = self.driver.writer.evicted();
            tokio::pin!(evicted);
            if let Some(bytes) = need.take() {
                self.driver.writer.over_budget();
                tokio::select! {
                    _ = &mut evicted => return,
                    () = patience.wait(&budget, bytes) => {}
                }
            }
            let begun = Instant::now();
            let eviction = tokio::select! {
                () = self.driver.run() => return,
                eviction = evicted => eviction,
            };
            let (store, gvr) = (&self.driver.key, &self.driver.key.gvr);
            let limit = budget.limit().unwrap_or(u64::MAX);
            match eviction {
                Eviction::Idle(unread) => {
                    info!(%store, ?unread, "dropped: nobody reads it");
                    self.metrics.dropped(gvr, "idle");
                    return;
                }
                Eviction::Crowded { bytes } => {
                    info!(%store, bytes, budget = limit, "dropped: nobody has read it of late, and others need its memory");
                    self.metrics.dropped(gvr, "crowded");
                    return;
                }
                Eviction::OverBudget { bytes, used } => {
                    warn!(%store, bytes, used, budget = limit, "dropped: over the memory budget; its reads are forwarded");
                    self.metrics.dropped(gvr, "over_budget");
                    if begun.elapsed() > RETRY_MAX {
                        patience.next = RETRY;
                    }
                    need = Some(bytes);
                }
            }
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        info!(store = %self.driver.key, "closed");
        self.registry.close(&self.driver.key, &self.driver.writer);
        self.discovery.refresh();
    }
}

// === impl Patience ===

impl Patience {
    async fn wait(&mut self, budget: &Budget, bytes: u64) {
        sleep(SETTLE).await;
        // Whether it was room or time that came does not matter.
        let _ = timeout(self.next, budget.room((bytes as f64 * MARGIN) as u64)).await;
        self.next = (self.next * 2).min(RETRY_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_too_large_is_tried_again_ever_more_rarely() {
        let mut patience = Patience { next: RETRY };
        let budget = Budget::new(Some(1000));
        let mut waits = Vec::new();
        for _ in 0..6 {
            let begun = Instant::now();
            patience.wait(&budget, 900).await;
            waits.push(begun.elapsed().as_secs());
        }
        assert_eq!(waits, [330, 630, 1230, 2430, 3630, 3630], "it needs 1125");
        let begun = Instant::now();
        patience.wait(&budget, 800).await;
        assert_eq!(begun.elapsed(), SETTLE, "there is room");
    }
}
