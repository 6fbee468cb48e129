//! Proof of life: how long ago it was last proven that a store gets whatever happens upstream.
//!
//! A store is fed by one stream on one connection, and the connection proves both: as long as upstream is heard on it (a
//! byte of any stream, or the answer to a ping), a quiet stream is quiet because nothing happens. While no stream is open
//! the last proof ages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// When the other side was last heard on one connection.
#[derive(Debug)]
pub struct Pulse {
    opened: Instant,
    /// Microseconds since `opened`.
    heard: AtomicU64,
}

/// The latest proof of a store's life.
#[derive(Debug)]
pub struct Life {
    proof: Mutex<Proof>,
}

#[derive(Debug)]
enum Proof {
    /// It was complete then; nothing feeds it.
    Then(Instant),
    /// This connection feeds it.
    Fed(Arc<Pulse>),
}

// === impl Pulse ===

impl Pulse {
    /// Something was heard.
    pub fn beat(&self) {
        let since = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.heard.store(since, Ordering::Relaxed);
    }

    /// When something was last heard.
    pub fn heard(&self) -> Instant {
        self.opened + Duration::from_micros(self.heard.load(Ordering::Relaxed))
    }
}

impl Default for Pulse {
    /// A connection that is just open.
    fn default() -> Self {
        Self { opened: Instant::now(), heard: AtomicU64::new(0) }
    }
}

// === impl Life ===

impl Life {
    pub(super) fn new() -> Self {
        Self { proof: Mutex::new(Proof::Then(Instant::now())) }
    }

    /// The store is complete now.
    pub fn prove(&self) {
        *self.proof.lock() = Proof::Then(Instant::now());
    }

    /// From now on the store gets all that happens, by this connection.
    pub fn follow(&self, pulse: Arc<Pulse>) {
        *self.proof.lock() = Proof::Fed(pulse);
    }

    /// The stream has ended: what the connection proved last is the last there is.
    pub fn lose(&self) {
        let mut proof = self.proof.lock();
        if let Proof::Fed(pulse) = &*proof {
            *proof = Proof::Then(pulse.heard());
        }
    }

    /// Whether a stream is open, by which whatever is missing will come.
    pub fn is_fed(&self) -> bool {
        matches!(*self.proof.lock(), Proof::Fed(_))
    }

    /// Time since the latest proof: an answer from the store is at most that old.
    pub fn age(&self) -> Duration {
        match &*self.proof.lock() {
            Proof::Then(then) => then.elapsed(),
            Proof::Fed(pulse) => pulse.heard().elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_quiet_store_is_as_young_as_its_connection() {
        let life = Life::new();
        advance(3 * SECOND).await;
        assert_eq!(life.age(), 3 * SECOND);
        life.prove();
        let pulse = Arc::new(Pulse::default());
        life.follow(pulse.clone());
        for _ in 0..5 {
            advance(9 * SECOND).await;
            assert_eq!(life.age(), 9 * SECOND);
            pulse.beat();
            assert_eq!(life.age(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_stream_the_connections_pulse_proves_nothing() {
        let (life, pulse) = (Life::new(), Arc::new(Pulse::default()));
        life.follow(pulse.clone());
        advance(2 * SECOND).await;
        assert!(life.is_fed());
        life.lose();
        pulse.beat();
        advance(SECOND).await;
        life.lose();
        assert!(!life.is_fed());
        assert_eq!(life.age(), 3 * SECOND, "others use the connection");
    }
}
