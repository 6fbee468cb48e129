//! What clients asked and who answered: requests by verb, resource and outcome, holds, bytes spared.
//!
//! Labels are closed: verbs, resources that discovery knows (the rest is `other`), outcomes and reasons. No names, no
//! namespaces, no paths, no user agents.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{
    api::{gvr::Gvr, hash::NameHash},
    telemetry::{ResourceLabels, Verb},
};

/// Metrics of this module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    inner: Arc<Inner>,
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    /// The cache, at once.
    Hit,
    /// The cache, after a wait.
    Held,
    /// Upstream.
    Forwarded,
    /// forebay refused or failed.
    Rejected,
}

/// What upstream was spared, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Savings {
    /// Requests clients sent.
    pub requests: u64,
    /// Reads answered from the cache at once.
    pub hits: u64,
    /// Reads answered from the cache after a wait.
    pub held: u64,
    /// Requests upstream answered.
    pub forwarded: u64,
    /// Of those, GETs and LISTs.
    pub forwarded_reads: u64,
    /// Body bytes sent from the cache.
    pub cached_bytes: u64,
}

#[derive(Debug)]
struct Inner {
    requests: Family<Labels, Counter>,
    /// Counters by what they count, so that a request does not build label strings.
    known: DashMap<(Option<Gvr>, Verb, Outcome, &'static str), Counter, NameHash>,
    hold_seconds: Histogram,
    cached_bytes: Counter,
    held_now: Gauge,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    hits: AtomicU64,
    held: AtomicU64,
    forwarded: AtomicU64,
    forwarded_reads: AtomicU64,
    rejected: AtomicU64,
    cached_bytes: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    verb: Verb,
    #[prometheus(flatten)]
    resource: ResourceLabels,
    outcome: &'static str,
    reason: &'static str,
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Held => "held",
            Self::Forwarded => "forwarded",
            Self::Rejected => "rejected",
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Inner {
            requests: Family::default(),
            known: DashMap::default(),
            hold_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            cached_bytes: Counter::default(),
            held_now: Gauge::default(),
            totals: Totals::default(),
        };
        registry.register(
            "requests",
            "Requests of clients, by who answered and why upstream had to",
            metrics.requests.clone(),
        );
        registry.register(
            "hold_duration_seconds",
            "Time reads were held before they were answered, forwarded or refused",
            metrics.hold_seconds.clone(),
        );
        registry.register(
            "cached_response_bytes",
            "Body bytes of responses from the cache",
            metrics.cached_bytes.clone(),
        );
        registry.register("held_requests", "Reads being held now", metrics.held_now.clone());
        Self { inner: Arc::new(metrics) }
    }

    /// What upstream was spared so far.
    pub fn savings(&self) -> Savings {
        let of = |total: &AtomicU64| total.load(Ordering::Relaxed);
        let totals = &self.inner.totals;
        let (hits, held, forwarded) = (of(&totals.hits), of(&totals.held), of(&totals.forwarded));
        Savings {
            requests: hits + held + forwarded + of(&totals.rejected),
            hits,
            held,
            forwarded,
            forwarded_reads: of(&totals.forwarded_reads),
            cached_bytes: of(&totals.cached_bytes),
        }
    }

    /// One request has its answer. `gvr` only where discovery knows it.
    pub(super) fn answered(&self, verb: Verb, read: bool, gvr: Option<&Gvr>, outcome: Outcome, reason: &'static str) {
        let total = match outcome {
            Outcome::Hit => &self.inner.totals.hits,
            Outcome::Held => &self.inner.totals.held,
            Outcome::Forwarded => &self.inner.totals.forwarded,
            Outcome::Rejected => &self.inner.totals.rejected,
        };
        total.fetch_add(1, Ordering::Relaxed);
        if read && outcome == Outcome::Forwarded {
            self.inner.totals.forwarded_reads.fetch_add(1, Ordering::Relaxed);
        }
        let key = (gvr.cloned(), verb, outcome, reason);
        if let Some(counter) = self.inner.known.get(&key) {
            counter.inc();
            return;
        }
        let labels = Labels {
            verb,
            resource: gvr.map_or_else(ResourceLabels::other, ResourceLabels::known),
            outcome: outcome.as_str(),
            reason,
        };
        let counter = self.inner.requests.get_or_create(&labels).clone();
        counter.inc();
        self.inner.known.insert(key, counter);
    }

    /// A read was held for so long.
    pub(super) fn held_for(&self, waited: Duration) {
        self.inner.hold_seconds.observe(waited.as_secs_f64());
    }

    /// The gauge of reads being held.
    pub(super) fn held_now(&self) -> Gauge {
        self.inner.held_now.clone()
    }

    /// Body bytes went out from the cache.
    pub(super) fn spared(&self, bytes: u64) {
        self.inner.cached_bytes.inc_by(bytes);
        self.inner.totals.cached_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
