//! Every request the server has seen, for tests that ask what reached upstream.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{
    call::{Call, Verb},
    matching::Match,
};

/// One request as it arrived.
#[derive(Debug)]
pub struct Seen {
    /// Position among all requests of this server, from 0.
    pub number: u64,
    /// HTTP method.
    pub method: String,
    /// The parsed target: verb, resource, namespace, name, query parameters.
    pub call: Call,
    /// Query as it came, without the question mark; empty if there is none.
    pub query: String,
    /// `User-Agent`, empty if absent.
    pub user_agent: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: &'static str,
    /// Which connection of this server it came on, from 0.
    pub connection: u64,
    /// Whom the certificate is for that its connection came with.
    pub certificate: Option<String>,
    /// All headers.
    pub headers: HeaderMap,
    /// When its head had been read.
    pub at: Instant,
    pub(super) answered: OnceLock<u16>,
}

/// The log of one server; clones share it. Keeps the latest requests up to a bound, and counts all.
#[derive(Clone)]
pub struct RequestLog {
    shared: Arc<Shared>,
}

/// Something that picks requests: a [`Match`] such as `list("pods")`, or a closure over [`Seen`].
pub trait Predicate {
    /// Whether the request is meant.
    fn accepts(&self, seen: &Seen) -> bool;
}

/// The awaited request did not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} of {wanted} expected requests after {after:?}")]
pub struct TimedOut {
    /// How many had come.
    pub found: usize,
    /// How many were wanted.
    pub wanted: usize,
    /// How long the wait was.
    pub after: Duration,
}

struct Shared {
    seen: Mutex<Vec<Arc<Seen>>>,
    total: AtomicU64,
    keep: usize,
    changed: watch::Sender<u64>,
}

// === impl Seen ===

impl Seen {
    /// Status code of the answer, once its head has been sent.
    pub fn status(&self) -> Option<u16> {
        self.answered.get().copied()
    }

    /// The verb.
    pub fn verb(&self) -> Verb {
        self.call.verb
    }

    /// Path as it came.
    pub fn path(&self) -> &str {
        &self.call.path
    }

    /// A query parameter, decoded.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.call.param(name)
    }

    /// A header as text, empty if absent or not text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }
}

// === impl RequestLog ===

// By value, so that tests read `count(list("pods"))`.
#[allow(clippy::needless_pass_by_value)]
impl RequestLog {
    pub(super) fn new(keep: usize) -> Self {
        let (seen, changed) = (Mutex::new(Vec::new()), watch::Sender::new(0));
        Self { shared: Arc::new(Shared { seen, total: AtomicU64::new(0), keep, changed }) }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.shared.total.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn record(&self, seen: Arc<Seen>) {
        {
            let mut kept = self.shared.seen.lock();
            if kept.len() >= self.shared.keep {
                // Rare and in one go: a shift per request would be quadratic.
                let half = kept.len().div_ceil(2);
                kept.drain(..half);
            }
            if self.shared.keep > 0 {
                kept.push(seen);
            }
        }
        self.shared.changed.send_modify(|n| *n += 1);
    }

    /// The requests kept, oldest first.
    pub fn all(&self) -> Vec<Arc<Seen>> {
        self.shared.seen.lock().clone()
    }

    /// The requests kept that `predicate` accepts, oldest first.
    pub fn matching(&self, predicate: impl Predicate) -> Vec<Arc<Seen>> {
        self.shared.seen.lock().iter().filter(|s| predicate.accepts(s)).cloned().collect()
    }

    /// How many of the requests kept `predicate` accepts.
    pub fn count(&self, predicate: impl Predicate) -> usize {
        self.shared.seen.lock().iter().filter(|s| predicate.accepts(s)).count()
    }

    /// How many requests came in all, kept or not.
    pub fn total(&self) -> u64 {
        self.shared.total.load(Ordering::Relaxed)
    }

    /// Forgets the requests so far.
    pub fn clear(&self) {
        self.shared.seen.lock().clear();
    }

    /// Waits for the first request `predicate` accepts; one that has already come counts.
    ///
    /// # Errors
    /// [`TimedOut`] after `limit`.
    pub async fn wait_for(&self, predicate: impl Predicate, limit: Duration) -> Result<Arc<Seen>, TimedOut> {
        let mut found = self.wait_count(predicate, 1, limit).await?;
        Ok(found.swap_remove(0))
    }

    /// Waits until `predicate` has accepted `wanted` requests, and returns those it has accepted.
    ///
    /// # Errors
    /// [`TimedOut`] after `limit`.
    pub async fn wait_count(
        &self,
        predicate: impl Predicate,
        wanted: usize,
        limit: Duration,
    ) -> Result<Vec<Arc<Seen>>, TimedOut> {
        let deadline = Instant::now() + limit;
        let mut changed = self.shared.changed.subscribe();
        loop {
            let found = self.matching(|s: &Seen| predicate.accepts(s));
            if found.len() >= wanted.max(1) {
                return Ok(found);
            }
            if !matches!(tokio::time::timeout_at(deadline, changed.changed()).await, Ok(Ok(()))) {
                return Err(TimedOut { found: found.len(), wanted, after: limit });
            }
        }
    }
}

impl<F: Fn(&Seen) -> bool> Predicate for F {
    fn accepts(&self, seen: &Seen) -> bool {
        self(seen)
    }
}

impl Predicate for Match {
    fn accepts(&self, seen: &Seen) -> bool {
        self.matches(seen)
    }
}

impl Predicate for &Match {
    fn accepts(&self, seen: &Seen) -> bool {
        self.matches(seen)
    }
}
