//! Waits until a store may answer, for as long as a read may be held.
//!
//! A hold ends with exactly one of: answered, forwarded, deadline, shutdown, or the client's leaving (the future is
//! dropped and takes its place in the count with it). The reflector is nobody's: it goes on when its first waiter leaves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use crate::{
    api::{gvr::Scope, resource_version::ResourceVersion},
    lifecycle::drain::DrainToken,
    route::{self, Life, Read, Readiness, Reason, Want, readiness},
    store::{Fence, Phase, Reader, Snapshot, Waited},
    upstream::Reach,
};

use super::error::Refusal;

/// A response passes in a moment, unless its client does not read it: then upstream is asked.
const SETTLE_PATIENCE: Duration = Duration::from_millis(100);

/// A store's own bookmark or event usually comes about when another stream's does; after this the reflector is asked to
/// find out how far upstream has come.
const BOOKMARK_PATIENCE: Duration = Duration::from_millis(500);

/// A watch that has ended is usually open again at once. If it is not, upstream is asked: what the read waits for can't come.
const UNFED_PATIENCE: Duration = Duration::from_millis(200);

/// Reads being held, and how many may be.
#[derive(Clone, Debug)]
pub(super) struct Holds {
    count: Arc<AtomicUsize>,
    /// The same number for `/metrics`.
    gauge: Gauge,
    limits: Limits,
    /// Whether upstream can be asked in place of a store.
    reach: Reach,
    drain: DrainToken,
}

/// How long and how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Reads held at once.
    pub(super) max_holds: usize,
    /// Longest wait for a fence.
    pub(super) fence_timeout: Duration,
    /// How old an answer may be while upstream can be reached.
    pub(super) max_staleness: Duration,
}

/// A place among the held reads.
#[derive(Debug)]
struct Hold {
    count: Arc<AtomicUsize>,
    gauge: Gauge,
}

/// How one wait ended.
enum Wait {
    /// The store has moved.
    Look,
    TimedOut,
    Closed,
    Draining,
}

/// How a hold ended.
#[derive(Debug)]
pub(super) enum Held {
    /// This snapshot may answer; `waited` tells whether the read was held for it.
    Ready {
        /// The state to answer from.
        snapshot: Arc<Snapshot>,
        /// Whether it had to wait.
        waited: bool,
    },
    /// Upstream answers.
    Forward(Reason),
    /// Nobody answers now.
    Refuse(Refusal),
}

// === impl Holds ===

impl Holds {
    pub(super) fn new(limits: Limits, reach: Reach, drain: DrainToken, gauge: Gauge) -> Self {
        Self { count: Arc::new(AtomicUsize::new(0)), gauge, limits, reach, drain }
    }

    /// Holds a read while something else than a store is waited for; `ready` tells whether it came in time.
    pub(super) async fn until(&self, ready: impl Future<Output = bool>) -> Result<(), Refusal> {
        let _hold = self.enter().ok_or(Refusal::TooManyHolds)?;
        tokio::select! {
            ready = ready => if ready { Ok(()) } else { Err(Refusal::HoldTimeout) },
            () = self.drain.draining() => Err(Refusal::Shutdown),
        }
    }

    /// What is known of the life of `reader`'s store. `asked`: upstream has been asked already, and did not answer.
    fn life(&self, reader: &Reader, asked: bool) -> Life {
        if reader.age() <= self.limits.max_staleness {
            Life::Proven
        } else if asked || self.reach.is_away() {
            Life::Away
        } else {
            Life::Unproven
        }
    }

    /// Waits until `reader` may answer `read`; `unanswered` tells that upstream was asked in its place, in vain.
    pub(super) async fn until_ready(
        &self,
        reader: &Reader,
        fence: &Fence,
        read: &Read,
        unanswered: bool,
        deadline: Instant,
    ) -> Held {
        let mut hold = None;
        let mut fence_deadline = None;
        let mut unfed_deadline = None;
        let mut asked = false;
        loop {
            let life = self.life(reader, unanswered);
            let status = reader.status();
            let snapshot = reader.snapshot();
            let view = fence.view();
            let contested = snapshot.as_ref().is_some_and(|snapshot| contested(fence, read, snapshot));
            let mut fence_limit =
                || deadline.min(*fence_deadline.get_or_insert_with(|| Instant::now() + self.limits.fence_timeout));
            let unfed = !reader.is_fed() && !self.reach.is_away();
            // The snapshot was taken after the status, so it is at least as new.
            let (limit, rv) = match (readiness(status, life, route::Fence { view, contested }), snapshot) {
                (Readiness::Now, Some(snapshot)) => return Held::Ready { snapshot, waited: hold.is_some() },
                (Readiness::Forward(reason), _) => return Held::Forward(reason),
                (Readiness::Settle, _) => {
                    if Box::pin(fence.settled(fence_limit().min(Instant::now() + SETTLE_PATIENCE))).await {
                        continue;
                    }
                    return Held::Forward(Reason::WriteInDoubt);
                }
                (Readiness::Reach(rv) | Readiness::Follow(rv), _) if unfed => {
                    let limit = *unfed_deadline.get_or_insert_with(|| Instant::now() + UNFED_PATIENCE);
                    let limit = limit.min(fence_limit());
                    if Instant::now() >= limit {
                        return Held::Forward(Reason::Fence);
                    }
                    (limit, Some(rv))
                }
                (Readiness::Reach(rv), _) => (fence_limit(), Some(rv)),
                (Readiness::Follow(rv), _) if asked => (fence_limit(), Some(rv)),
                (Readiness::Follow(rv), _) => (fence_limit().min(Instant::now() + BOOKMARK_PATIENCE), Some(rv)),
                (Readiness::Sync | Readiness::Now, _) => (deadline, None),
            };
            if hold.is_none() {
                hold = self.enter();
                if hold.is_none() {
                    return Held::Refuse(Refusal::TooManyHolds);
                }
            }
            match (Box::pin(self.wait(reader, limit, rv)).await, rv) {
                (Wait::Look, _) => {}
                (Wait::TimedOut, Some(_)) if unfed => {}
                (Wait::TimedOut, Some(_)) if Instant::now() < fence_limit() => {
                    reader.want_progress();
                    asked = true;
                }
                (Wait::TimedOut, Some(_)) => return Held::Forward(Reason::Fence),
                (Wait::TimedOut, None) => return Held::Refuse(Refusal::HoldTimeout),
                // Closed for good, or restarted under another reader: upstream knows.
                (Wait::Closed, _) => return Held::Forward(Reason::Unservable),
                (Wait::Draining, _) => return Held::Refuse(Refusal::Shutdown),
            }
        }
    }

    async fn wait(&self, reader: &Reader, limit: Instant, rv: Option<ResourceVersion>) -> Wait {
        let waits = reader.wait(limit, |status| match (status.phase, rv) {
            (Phase::Syncing, _) => false,
            (Phase::Synced, Some(rv)) => status.rv >= rv,
            _ => true,
        });
        tokio::select! {
            waited = waits => match waited {
                Waited::Reached(status) if status.phase == Phase::Stopped => Wait::Closed,
                Waited::Reached(_) => Wait::Look,
                Waited::TimedOut => Wait::TimedOut,
            },
            () = self.drain.draining() => Wait::Draining,
        }
    }

    fn enter(&self) -> Option<Hold> {
        let entered = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < self.limits.max_holds).then_some(count + 1)
        });
        entered.ok().map(|_| {
            self.gauge.inc();
            Hold { count: self.count.clone(), gauge: self.gauge.clone() }
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}

fn contested(fence: &Fence, read: &Read, snapshot: &Snapshot) -> bool {
    match (&read.want, &read.scope) {
        (Want::Object { key, .. }, _) => fence.is_contested(key, snapshot.rv),
        (Want::Collection { .. }, Scope::All) => fence.any_contested("", snapshot.rv),
        (Want::Collection { .. }, Scope::Namespace(namespace)) => {
            fence.any_contested(&format!("{namespace}/"), snapshot.rv)
        }
        (Want::Refusal(_), _) => false,
    }
}
