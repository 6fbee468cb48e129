//! Whether a store may stay: when it was last read, what it takes of the memory budget, and the word that it has to go.
//!
//! A read only sets a flag, since it is on the way of every cached answer; whoever looks for idle stores turns flags into
//! times. An eviction is said once, to the store's writer, and what the store holds counts no more from then on.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::budget::{Budget, Share};

/// Why a store has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Nobody has read it for so long.
    Idle(Duration),
    /// Others needed its memory, and it was read less recently than they.
    Crowded {
        /// Bytes it took.
        bytes: u64,
    },
    /// It would break the memory budget: its reads are forwarded.
    OverBudget {
        /// Bytes it took, unfinished as it may have been.
        bytes: u64,
        /// Bytes all stores took together.
        used: u64,
    },
}

/// One store's place in memory.
#[derive(Debug)]
pub(super) struct Tenancy {
    /// What readers can see.
    pub(super) held: Share,
    /// What a load has gathered beside it.
    pub(super) loading: Share,
    marked: AtomicBool,
    last_read: Mutex<Instant>,
    pinned: AtomicBool,
    eviction: Mutex<Option<Eviction>>,
    evicted: Notify,
}

// === impl Tenancy ===

impl Tenancy {
    pub(super) fn new(budget: &Budget) -> Self {
        Self {
            held: budget.share(),
            loading: budget.share(),
            marked: AtomicBool::new(false),
            last_read: Mutex::new(Instant::now()),
            pinned: AtomicBool::new(false),
            eviction: Mutex::default(),
            evicted: Notify::new(),
        }
    }

    pub(super) fn mark_read(&self) {
        // A load is cheaper than a store that every core must hear of.
        if !self.is_marked() {
            self.marked.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    pub(super) fn pin(&self) {
        self.pinned.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed)
    }

    /// When it was last read, as far as anybody has looked: the times of reads since the last look are those of this one.
    pub(super) fn last_read(&self) -> Instant {
        let mut last = self.last_read.lock();
        if self.marked.swap(false, Ordering::Relaxed) {
            *last = Instant::now();
        }
        *last
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.held.bytes() + self.loading.bytes()
    }

    /// Tells the writer to let go.
    pub(super) fn evict(&self, why: Eviction) {
        self.held.forfeit();
        self.loading.forfeit();
        *self.eviction.lock() = Some(why);
        self.evicted.notify_one();
    }

    /// Resolves when it has to go. Cancel safe.
    pub(super) async fn evicted(&self) -> Eviction {
        loop {
            if let Some(why) = self.eviction.lock().take() {
                return why;
            }
            self.evicted.notified().await;
        }
    }

    /// It has let go, and may begin again.
    pub(super) fn renew(&self) {
        self.held.renew();
        self.loading.renew();
    }
}
