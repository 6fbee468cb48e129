//! How much memory all stores may take together, and what each of them takes.
//!
//! Counted is what stores hold and what their loads have gathered beside it: payloads as the allocator rounds them, and the
//! key, the facts and the places in the map that go with every object. An object that a load shares with the live state
//! is counted once. Not counted are old snapshots that slow clients still read from, and buffers of connections: a budget
//! must leave room for them (`config::cgroup`).
//!
//! It only counts. Who has to go is decided in `registry`.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Beside payload and key: the object's facts and its counters (72 bytes), the counters of the key (16) and of the
/// payload (32), and three places of 24 bytes in map nodes that are two thirds full, for object, key and their branch.
const OBJECT: u64 = 240;

/// A place in a map for an object that is there already.
pub(super) const PLACE: u64 = 48;

/// The memory all stores may take together. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    limit: Option<u64>,
    used: AtomicU64,
    freed: Notify,
}

/// What one store, or one load, takes of the budget. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// It was taken away: what is still held is about to go, and counts no more.
    forfeited: bool,
}

/// Memory that an object with such a payload and key takes.
pub(super) fn footprint(key: usize, payload: usize) -> u64 {
    OBJECT + rounded(key) + rounded(payload)
}

/// Size classes of jemalloc: multiples of 16 up to 128, then four to a doubling.
fn rounded(size: usize) -> u64 {
    let size = size.max(1) as u64;
    let step = if size <= 128 { 16 } else { 1 << ((size - 1).ilog2() - 2) };
    size.next_multiple_of(step)
}

// === impl Budget ===

impl Budget {
    /// `None`: as much as there is.
    pub fn new(limit: Option<u64>) -> Self {
        Self { inner: Arc::new(Inner { limit, ..Inner::default() }) }
    }

    /// Bytes that may be taken.
    pub fn limit(&self) -> Option<u64> {
        self.inner.limit
    }

    /// Bytes taken.
    pub fn used(&self) -> u64 {
        self.inner.used.load(Ordering::Acquire)
    }

    /// Whether more is taken than may be.
    pub fn is_exceeded(&self) -> bool {
        self.inner.limit.is_some_and(|limit| self.used() > limit)
    }

    /// Whether so many bytes more may be taken.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.inner.limit.is_none_or(|limit| self.used().saturating_add(bytes) <= limit)
    }

    /// Waits until so many bytes more may be taken, which may be never. Cancel safe.
    pub async fn room(&self, bytes: u64) {
        loop {
            let mut freed = pin!(self.inner.freed.notified());
            // Subscribed before looking.
            freed.as_mut().enable();
            if self.has_room(bytes) {
                return;
            }
            freed.await;
        }
    }

    pub(super) fn share(&self) -> Share {
        Share { budget: self.clone(), state: Mutex::default() }
    }

    fn take(&self, bytes: u64) {
        self.inner.used.fetch_add(bytes, Ordering::AcqRel);
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.inner.used.fetch_sub(bytes, Ordering::AcqRel);
            self.inner.freed.notify_waiters();
        }
    }
}

// === impl Share ===

impl Share {
    /// It takes so many bytes now.
    pub(super) fn resize(&self, bytes: u64) {
        let mut state = self.state.lock();
        if state.forfeited {
            return;
        }
        let before = std::mem::replace(&mut state.bytes, bytes);
        match bytes.checked_sub(before) {
            Some(more) => self.budget.take(more),
            None => self.budget.give_back(before - bytes),
        }
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Counts as nothing from now on: its owner has been told to let go.
    pub(super) fn forfeit(&self) {
        self.resize(0);
        self.state.lock().forfeited = true;
    }

    /// Its owner has let go, and may begin again.
    pub(super) fn renew(&self) {
        *self.state.lock() = State::default();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn sizes_are_rounded_as_the_allocator_does() {
        for (size, class) in
            [(0, 16), (1, 16), (16, 16), (17, 32), (128, 128), (129, 160), (4096, 4096), (4097, 5120), (20_000, 20_480)]
        {
            assert_eq!(rounded(size), class, "{size}");
        }
    }

    #[test]
    fn shares_add_up_and_are_given_back() {
        let budget = Budget::new(Some(100));
        let (a, b) = (budget.share(), budget.share());
        a.resize(60);
        b.resize(40);
        assert!(!budget.is_exceeded() && !budget.has_room(1));
        b.resize(41);
        assert!(budget.is_exceeded());
        a.forfeit();
        a.resize(60);
        assert_eq!((budget.used(), a.bytes()), (41, 0), "a forfeited share takes nothing any more");
        a.renew();
        a.resize(7);
        drop(b);
        assert_eq!(budget.used(), 7);
        drop(a);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_waited_for() {
        let budget = Budget::new(Some(100));
        let share = budget.share();
        share.resize(90);
        let (waited, ()) = tokio::join!(timeout(Duration::from_secs(1), budget.room(20)), async { share.resize(80) });
        assert!(waited.is_ok());
        assert!(timeout(Duration::from_secs(1), budget.room(21)).await.is_err());
        assert!(timeout(Duration::from_secs(1), budget.room(101)).await.is_err(), "never");
        Budget::new(None).room(u64::MAX).await;
    }
}
