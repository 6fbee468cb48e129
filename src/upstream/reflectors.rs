//! Starts a reflector for a resource the first time it is needed, and ends those that nobody needs any more.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    lifecycle::tasks::{Class, Tasks},
    store::{Reader, Registry, StoreKey},
};

use super::{
    Client, Discovery, Metrics,
    driver::{Driver, State},
    residency::Resident,
    turns::Turns,
};

/// Lost watches that are begun anew at once, of each kind: it takes two small requests.
const RESUMES: usize = 4;

/// How often it is looked for idle stores, and how exactly their last reads are known.
const SWEEP: Duration = Duration::from_secs(5);

/// How reflectors work.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Objects a page, for servers without streaming lists.
    pub page_size: u32,
    /// Largest watch frame or list item taken, in bytes.
    pub max_frame: usize,
    /// Loads that run at once.
    pub max_loads: usize,
}

/// The reflectors of this process. Cheap to clone.
#[derive(Clone)]
pub struct Reflectors {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    discovery: Discovery,
    registry: Registry,
    tasks: Tasks,
    options: Options,
    metrics: Metrics,
    loads: Turns,
    resumes: Turns,
}

/// Whether anybody waits for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// A read is held for it.
    Held,
    /// It is preloaded.
    Background,
}

// === impl Reflectors ===

impl Reflectors {
    /// No reflector runs yet.
    pub fn new(
        client: Client,
        discovery: Discovery,
        registry: Registry,
        tasks: Tasks,
        options: Options,
        metrics: Metrics,
    ) -> Self {
        let inner = Inner {
            client,
            discovery,
            registry,
            tasks,
            options,
            metrics,
            loads: Turns::new(options.max_loads, options.max_loads.div_ceil(2)),
            resumes: Turns::new(RESUMES, RESUMES),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The store of `key`, whose reflector runs from now on.
    pub fn ensure(&self, key: &StoreKey, demand: Demand) -> Reader {
        let found = self.inner.registry.reader(key).map(|reader| (reader, None));
        let (reader, writer) = found.unwrap_or_else(|| self.inner.registry.open(key));
        match demand {
            Demand::Held => reader.mark_read(),
            Demand::Background => reader.pin(),
        }
        if let Some(writer) = writer {
            let inner = self.inner.clone();
            let known = inner.discovery.catalog().and_then(|catalog| catalog.entry(&key.gvr));
            let (kind, namespaced) = known.map(|entry| (entry.kind, entry.namespaced)).unwrap_or_default();
            inner.metrics.relisting(&key.gvr, "first");
            let driver = Driver {
                client: inner.client.clone(),
                key: key.clone(),
                kind,
                namespaced,
                writer,
                registry: inner.registry.clone(),
                options: inner.options,
                metrics: inner.metrics.clone(),
                counters: inner.metrics.events_of(&key.gvr),
                loads: inner.loads.clone(),
                resumes: inner.resumes.clone(),
                state: State::new(demand == Demand::Held),
            };
            let resident = Resident {
                driver,
                registry: inner.registry.clone(),
                discovery: inner.discovery.clone(),
                metrics: inner.metrics.clone(),
            };
            self.inner.tasks.spawn(format!("reflector {key}"), Class::BestEffort, resident.run());
        }
        reader
    }

    /// Closes stores that nobody has read for `limit`, for ever. Zero: never. Cancel safe.
    pub async fn close_idle(self, limit: Duration) {
        while !limit.is_zero() {
            sleep(SWEEP.min(limit / 4)).await;
            self.inner.registry.close_idle(limit);
        }
    }
}
