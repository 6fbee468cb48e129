//! What upstream is asked and what it sends: requests and their latency, events, relists by reason.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::api::gvr::Gvr;

use super::purpose::Purpose;

/// Metrics of this module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    latency: Family<KindLabels, Histogram, fn() -> Histogram>,
    retries: Family<RetryLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
    events: Family<EventLabels, Counter>,
    relists: Family<StoreLabels, Counter>,
    drops: Family<StoreLabels, Counter>,
    odd: Family<OddLabels, Counter>,
    own_reads: Arc<AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    kind: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RetryLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    group: String,
    version: String,
    resource: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    group: String,
    version: String,
    resource: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OddLabels {
    group: String,
    version: String,
    resource: String,
    what: &'static str,
}

/// Counters of one reflector, looked up once.
#[derive(Clone, Debug)]
pub(super) struct EventCounters {
    pub(super) changes: Counter,
    pub(super) bookmarks: Counter,
}

// === impl Metrics ===

impl Metrics {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
            retries: Family::default(),
            reloads: Family::default(),
            events: Family::default(),
            relists: Family::default(),
            drops: Family::default(),
            odd: Family::default(),
            own_reads: Arc::default(),
        };
        registry.register(
            "upstream_requests",
            "Requests sent to upstream, by what they were for and the status code (or the reason there was none)",
            metrics.requests.clone(),
        );
        registry.register(
            "upstream_request_duration_seconds",
            "Time until the head of upstream's answer",
            metrics.latency.clone(),
        );
        registry.register(
            "upstream_retries",
            "Reads sent to upstream a second time, by reason",
            metrics.retries.clone(),
        );
        registry.register(
            "upstream_credential_reloads",
            "How often the credentials for upstream were read anew, by what came of it",
            metrics.reloads.clone(),
        );
        // Rare ones begin at zero, so that the first can be seen as a rise.
        for outcome in ["changed", "unchanged", "failed"] {
            drop(metrics.reloads.get_or_create(&ReloadLabels { outcome }));
        }
        for reason in ["idle_connection", "credential"] {
            drop(metrics.retries.get_or_create(&RetryLabels { reason }));
        }
        registry.register("store_events", "Watch events applied to stores", metrics.events.clone());
        registry.register(
            "store_relists",
            "Complete loads of a store, by what made them necessary",
            metrics.relists.clone(),
        );
        registry.register("store_drops", "Stores dropped from memory, by the reason", metrics.drops.clone());
        registry.register(
            "store_odd_events",
            "Watch events and list items that upstream should not have sent, by what is wrong with them",
            metrics.odd.clone(),
        );
        metrics
    }

    /// A request to upstream got its head, or failed with `code` as the reason.
    pub(super) fn requested(&self, purpose: Purpose, code: &str, took: Duration) {
        let kind = purpose.as_str();
        self.requests.get_or_create(&RequestLabels { kind, code: code.to_owned() }).inc();
        self.latency.get_or_create(&KindLabels { kind }).observe(took.as_secs_f64());
    }

    /// A read is sent a second time.
    pub(super) fn retried(&self, reason: &'static str) {
        self.retries.get_or_create(&RetryLabels { reason }).inc();
    }

    /// The credentials were read anew.
    pub(super) fn reloaded(&self, outcome: &'static str) {
        self.reloads.get_or_create(&ReloadLabels { outcome }).inc();
    }

    /// Lists, streaming lists and watches that forebay has sent for its own stores.
    pub fn own_reads(&self) -> u64 {
        self.own_reads.load(Ordering::Relaxed)
    }

    /// A list or watch of our own goes out.
    pub(super) fn reading(&self) {
        self.own_reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn relisting(&self, gvr: &Gvr, reason: &'static str) {
        self.relists.get_or_create(&StoreLabels::of(gvr, reason)).inc();
    }

    pub(super) fn dropped(&self, gvr: &Gvr, reason: &'static str) {
        self.drops.get_or_create(&StoreLabels::of(gvr, reason)).inc();
    }

    /// Upstream has sent something that it should not have.
    pub(super) fn odd(&self, gvr: &Gvr, what: &'static str) {
        let labels = OddLabels {
            group: gvr.group.to_string(),
            version: gvr.version.to_string(),
            resource: gvr.resource.to_string(),
            what,
        };
        self.odd.get_or_create(&labels).inc();
    }

    pub(super) fn events_of(&self, gvr: &Gvr) -> EventCounters {
        let counter = |r#type| {
            let labels = EventLabels {
                group: gvr.group.to_string(),
                version: gvr.version.to_string(),
                resource: gvr.resource.to_string(),
                r#type,
            };
            self.events.get_or_create(&labels).clone()
        };
        EventCounters { changes: counter("change"), bookmarks: counter("bookmark") }
    }
}

// === impl StoreLabels ===

impl StoreLabels {
    fn of(gvr: &Gvr, reason: &'static str) -> Self {
        Self {
            group: gvr.group.to_string(),
            version: gvr.version.to_string(),
            resource: gvr.resource.to_string(),
            reason,
        }
    }
}
