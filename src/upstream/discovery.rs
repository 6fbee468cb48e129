//! Which resources upstream serves, and which of them can be cached: those that list and watch, and whose server is
//! upstream itself.
//!
//! ```text
//! fetch (aggregated, else plain) + APIServices -> Catalog -> ArcSwap -> Discovery::lookup (never waits)
//! lookup of an unknown resource -> wakes the refresher: one request a second at most; the request is forwarded meanwhile
//! ```
//!
//! A group that fails (an aggregated server that is down) hurts only itself: what was known of it before stays, and its
//! resources are not cached anyway. Resources of aggregated servers are never cacheable: another process, another storage,
//! another meaning of resource versions.

mod fetch;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use crate::api::{gvr::Gvr, hash::NameHash};

use super::{Client, backoff::Backoff};

/// A CRD that a client waits for shows up within a second; nonsense types cost upstream one refresh a second at most.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// New CRDs and versions are noticed without being asked for.
const MAX_INTERVAL: Duration = Duration::from_secs(30);

/// What is known of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind of the objects.
    pub kind: Arc<str>,
    /// Objects live in namespaces.
    pub namespaced: bool,
    /// Lists and watches, and upstream itself serves it.
    pub cacheable: bool,
    /// Serves GET of one object.
    pub gets: bool,
}

/// What upstream serves, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    resources: HashMap<Gvr, Entry, NameHash>,
}

/// The catalog in force, refreshed in the background. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Discovery {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    catalog: ArcSwapOption<Catalog>,
    wanted: Notify,
    changed: Notify,
    urgent: AtomicBool,
}

// === impl Catalog ===

impl Catalog {
    /// The entry of one resource.
    pub fn entry(&self, gvr: &Gvr) -> Option<Entry> {
        self.resources.get(gvr).cloned()
    }

    /// The resources that can be cached, in every version served, in no order.
    pub fn cacheable(&self) -> impl Iterator<Item = &Gvr> {
        self.resources.iter().filter(|(_, entry)| entry.cacheable).map(|(gvr, _)| gvr)
    }
}

// === impl Discovery ===

impl Discovery {
    /// Knows nothing yet; [`Self::run`] fills it.
    pub fn new() -> Self {
        let shared = Shared {
            catalog: ArcSwapOption::empty(),
            wanted: Notify::new(),
            changed: Notify::new(),
            urgent: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The catalog in force, where there is one yet.
    pub fn catalog(&self) -> Option<Arc<Catalog>> {
        self.shared.catalog.load_full()
    }

    /// What is known of a resource. An unknown one asks for a refresh and is unknown for now.
    pub fn lookup(&self, gvr: &Gvr) -> Option<Entry> {
        let entry = self.shared.catalog.load().as_ref().and_then(|catalog| catalog.entry(gvr));
        if entry.is_none() {
            self.refresh();
        }
        entry
    }

    /// Asks for a refresh soon.
    pub fn refresh(&self) {
        self.shared.urgent.store(true, Ordering::Relaxed);
        self.shared.wanted.notify_one();
    }

    /// Waits for the first catalog, for `limit` at most.
    pub async fn known_within(&self, limit: Duration) -> bool {
        let waits = async {
            loop {
                let changed = self.shared.changed.notified();
                if self.shared.catalog.load().is_some() {
                    return;
                }
                changed.await;
            }
        };
        timeout(limit, waits).await.is_ok()
    }

    /// Keeps the catalog fresh for ever. Cancel safe.
    pub async fn run(self, client: Client) {
        let mut backoff = Backoff::new();
        let mut last: Option<fetch::Fetched> = None;
        let mut complete = Instant::now();
        loop {
            let begun = Instant::now();
            self.shared.urgent.store(false, Ordering::Relaxed);
            match fetch::catalog(&client, last.as_ref()).await {
                Ok(fetched) => {
                    backoff = Backoff::new();
                    if last.is_none() {
                        complete = begun;
                    }
                    self.install(&fetched);
                    last = Some(fetched);
                    sleep(MIN_INTERVAL).await;
                    if !self.shared.urgent.load(Ordering::Relaxed) {
                        // Ends early when a request names a resource that isn't known.
                        let _ = timeout(MAX_INTERVAL, self.shared.wanted.notified()).await;
                    }
                    last = last.filter(|_| complete.elapsed() < MAX_INTERVAL);
                }
                Err(error) => {
                    if matches!(error.code(), Some(401 | 403 | 404)) && self.shared.catalog.load().is_none() {
                        // Nobody will ever tell: without a catalog every resource is unknown, and reads are forwarded.
                        self.install(&fetch::Fetched::default());
                    }
                    let pause = backoff.after(Duration::ZERO, error.retry_after());
                    warn!(%error, retry_in = ?pause.wait, "discovery failed; unknown resources are forwarded");
                    pause.rest(client.reach()).await;
                }
            }
        }
    }

    fn install(&self, fetched: &fetch::Fetched) {
        let old = self.shared.catalog.load_full().unwrap_or_default();
        let found = fetched.resources.iter().map(|(gvr, entry)| (gvr.clone(), entry.clone()));
        let mut resources: HashMap<_, _, NameHash> = found.collect();
        // What a broken group served before is still true as far as anybody can tell.
        for (gvr, entry) in &old.resources {
            if fetched.failed.contains(&(gvr.group.to_string(), gvr.version.to_string())) {
                resources.entry(gvr.clone()).or_insert_with(|| entry.clone());
            }
        }
        if resources.len() != old.resources.len() {
            let cacheable = resources.values().filter(|entry| entry.cacheable).count();
            info!(resources = resources.len(), cacheable, "discovered");
        }
        self.shared.catalog.store(Some(Arc::new(Catalog { resources })));
        self.shared.changed.notify_waiters();
    }
}

impl Default for Discovery {
    fn default() -> Self {
        Self::new()
    }
}
