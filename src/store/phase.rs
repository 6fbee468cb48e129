//! Where a store stands, as its waiters see it, and how far its first load has come.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::resource_version::ResourceVersion;

/// What a read may do with the store now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The first load is under way: nothing is known yet, which is not the same as none.
    Syncing,
    /// The snapshot is complete, and stays readable during relists.
    Synced,
    /// Upstream answers our LIST or WATCH with this code (401, 403): forward, so that the client sees it itself.
    Refused(u16),
    /// This resource can't be cached (resource versions that are no numbers, no such resource any more, …): forward.
    Unservable(&'static str),
    /// The memory budget has no room for it: forward.
    OverBudget,
    /// The reflector has ended; no event will come.
    Stopped,
}

/// Phase and version, published together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where the store stands.
    pub phase: Phase,
    /// Version of the current snapshot; 0 before the first.
    pub rv: ResourceVersion,
}

/// Counters of a load, for people and for `Retry-After`. Not used for decisions.
#[derive(Debug)]
pub struct Progress {
    loaded: AtomicU64,
    expected: AtomicU64,
    clock: Mutex<Clock>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    started: Instant,
    alive: Instant,
}

// === impl Phase ===

impl Phase {
    /// Name for metrics and status pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::Synced => "synced",
            Self::Refused(_) => "refused",
            Self::Unservable(_) => "unservable",
            Self::OverBudget => "over_budget",
            Self::Stopped => "stopped",
        }
    }
}

// === impl Progress ===

impl Progress {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            loaded: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            clock: Mutex::new(Clock { started: now, alive: now }),
        }
    }

    /// A load begins.
    pub fn restart(&self) {
        self.loaded.store(0, Ordering::Relaxed);
        let now = Instant::now();
        *self.clock.lock() = Clock { started: now, alive: now };
    }

    /// One more object has arrived.
    pub fn add_loaded(&self, n: u64) {
        self.loaded.fetch_add(n, Ordering::Relaxed);
    }

    /// Upstream said how many objects there are.
    pub fn expect(&self, total: u64) {
        self.expected.store(total, Ordering::Relaxed);
    }

    /// Upstream was heard on this resource's stream.
    pub fn touch(&self) {
        self.clock.lock().alive = Instant::now();
    }

    /// Objects of this load so far.
    pub fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Objects to come in all, where upstream said so.
    pub fn expected(&self) -> Option<u64> {
        Some(self.expected.load(Ordering::Relaxed)).filter(|n| *n > 0).map(|n| n.max(self.loaded()))
    }

    /// Time since upstream was last heard.
    pub fn silence(&self) -> Duration {
        self.clock.lock().alive.elapsed()
    }

    /// Objects a second since the load began.
    pub fn rate(&self) -> f64 {
        let seconds = self.clock.lock().started.elapsed().as_secs_f64();
        if seconds > 0.0 { self.loaded() as f64 / seconds } else { 0.0 }
    }

    /// Time the rest of the load needs at the rate so far, where that can be told.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.expected()?.saturating_sub(self.loaded()) as f64;
        let rate = self.rate();
        (rate > 0.0).then(|| Duration::from_secs_f64((left / rate).min(86_400.0)))
    }
}
