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

use tokio::time::Instant;

use crate::{
    api::resource_version::ResourceVersion,
    lifecycle::drain::DrainToken,
    route::{self, Readiness, Reason, Want, readiness},
    store::{Fence, Phase, Reader, Snapshot, Waited},
};

use super::error::Refusal;

/// An event that is on its way takes some milliseconds; after this the reflector is asked to find out.
const EVENT_PATIENCE: Duration = Duration::from_millis(50);

/// Reads being held, and how many may be.
#[derive(Clone, Debug)]
pub(super) struct Holds {
    count: Arc<AtomicUsize>,
    max: usize,
    pub(super) fence_timeout: Duration,
    pub(super) drain: DrainToken,
}

/// A place among the held reads.
#[derive(Debug)]
struct Hold {
    count: Arc<AtomicUsize>,
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
    pub(super) fn new(max: usize, fence_timeout: Duration, drain: DrainToken) -> Self {
        Self { count: Arc::new(AtomicUsize::new(0)), max, fence_timeout, drain }
    }

    /// Reads held now.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until `reader` may answer `want`.
    pub(super) async fn until_ready(
        &self,
        reader: &Reader,
        fence: &Fence,
        want: &Want,
        prefix: &str,
        deadline: Instant,
    ) -> Held {
        let mut hold = None;
        let mut fence_deadline = None;
        let mut patience = EVENT_PATIENCE;
        loop {
            let status = reader.status();
            let snapshot = reader.snapshot();
            let view = fence.view();
            let contested = snapshot.as_ref().is_some_and(|snapshot| contested(fence, want, prefix, snapshot));
            // The snapshot was taken after the status, so it is at least as new.
            let until = match (readiness(status, route::Fence { view, contested }), snapshot) {
                (Readiness::Now, Some(snapshot)) => return Held::Ready { snapshot, waited: hold.is_some() },
                (Readiness::Forward(reason), _) => return Held::Forward(reason),
                (Readiness::Reach(rv), _) => {
                    let limit = *fence_deadline.get_or_insert_with(|| Instant::now() + self.fence_timeout);
                    (limit.min(deadline), Some(rv))
                }
                (Readiness::Settle, _) => {
                    let limit = *fence_deadline.get_or_insert_with(|| Instant::now() + self.fence_timeout);
                    if fence.settled(limit.min(deadline)).await {
                        continue;
                    }
                    return Held::Forward(Reason::WriteInDoubt);
                }
                (Readiness::Sync | Readiness::Now, _) => (deadline, None),
            };
            if hold.is_none() {
                hold = self.enter();
                if hold.is_none() {
                    return Held::Refuse(Refusal::TooManyHolds);
                }
            }
            if let Some(end) = self.wait(reader, until, patience).await {
                return end;
            }
            patience = self.fence_timeout;
        }
    }

    /// One wait; `Some` when the hold ends with it.
    async fn wait(
        &self,
        reader: &Reader,
        (end, rv): (Instant, Option<ResourceVersion>),
        patience: Duration,
    ) -> Option<Held> {
        let limit = if rv.is_some() { end.min(Instant::now() + patience) } else { end };
        let waits = reader.wait(limit, |status| match (status.phase, rv) {
            (Phase::Syncing, _) => false,
            (Phase::Synced, Some(rv)) => status.rv >= rv,
            _ => true,
        });
        let waited = tokio::select! {
            waited = waits => waited,
            () = self.drain.draining() => return Some(Held::Refuse(Refusal::Shutdown)),
        };
        match (waited, rv) {
            (Waited::TimedOut, Some(_)) if Instant::now() < end => {
                // No event is on the way: the fence is a bookmark's, and the resource is quiet.
                reader.want_progress();
                None
            }
            (Waited::Reached(status), _) if status.phase == Phase::Stopped => {
                // Closed for good or restarted under another reader: upstream knows.
                Some(Held::Forward(Reason::Unservable))
            }
            (Waited::Reached(_), _) => None,
            (Waited::TimedOut, Some(_)) => Some(Held::Forward(Reason::Fence)),
            (Waited::TimedOut, None) => Some(Held::Refuse(Refusal::HoldTimeout)),
        }
    }

    fn enter(&self) -> Option<Hold> {
        let entered = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < self.max).then_some(count + 1));
        entered.ok().map(|_| Hold { count: self.count.clone() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

fn contested(fence: &Fence, want: &Want, prefix: &str, snapshot: &Snapshot) -> bool {
    match want {
        Want::Object { key, .. } => fence.is_contested(key, snapshot),
        Want::Collection { .. } => fence.any_contested(prefix, snapshot),
        Want::Refusal(_) => false,
    }
}
