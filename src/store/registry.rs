//! Which stores exist, by what they hold, and which of them have to go: those that nobody has read for long, and those for
//! which the memory budget has no room.
//!
//! A store that goes is first made unfindable, unless somebody holds a reader of it; then its writer is told. So no read
//! meets a store that is being closed, and one that comes later opens it anew.

use std::{collections::HashMap, sync::Arc, time::Duration};

use dashmap::{DashMap, Entry};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::{
    gvr::{Gvr, Scope},
    hash::NameHash,
    resource_version::ResourceVersion,
};

use super::{Budget, Eviction, Fences, Phase, Reader, Writer, handle};

/// A store that nobody has read for so long gives way to one that is being read. A controller's own periods are shorter
/// (leases, requeues) or much longer (resyncs).
const GIVES_WAY: Duration = Duration::from_secs(60);

/// A store that has given way is not loaded again for so long, unless there is room.
const STAYS_AWAY: Duration = Duration::from_secs(300);

/// What a store holds: one resource in one scope, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey {
    /// The resource, in the version of the URL: another version is another store.
    pub gvr: Gvr,
    /// All of it, or one namespace.
    pub scope: Scope,
}

/// The stores of this process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    stores: Arc<DashMap<StoreKey, Reader, NameHash>>,
    budget: Budget,
    fences: Fences,
    /// Stores that have given way to others: when, and how large they were. Held while it is decided who goes, so that
    /// one excess is made up for once.
    gone: Arc<Mutex<HashMap<StoreKey, (Instant, u64)>>>,
}

/// One store in figures, for people and metrics.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Which store.
    pub key: StoreKey,
    /// Where it stands.
    pub phase: Phase,
    /// Version of its snapshot; 0 before the first.
    pub rv: ResourceVersion,
    /// Objects held, or loaded so far.
    pub objects: u64,
    /// Payload bytes held.
    pub bytes: u64,
    /// Objects to come in all, where upstream said so.
    pub expected: Option<u64>,
    /// Objects a second of the load under way.
    pub rate: f64,
    /// Time the load still needs, where that can be told.
    pub time_left: Option<Duration>,
    /// Time since upstream was last heard on this resource.
    pub silence: Duration,
    /// Time since it was last proven that nothing was missing in it.
    pub age: Duration,
}

// === impl StoreKey ===

impl std::fmt::Display for StoreKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.scope {
            Scope::All => self.gvr.fmt(f),
            Scope::Namespace(ns) => write!(f, "{}@{ns}", self.gvr),
        }
    }
}

// === impl Registry ===

impl Registry {
    /// No store yet; all of them together are to stay within the budget. `fences` are of what clients are shown from them.
    pub fn new(budget: Budget, fences: Fences) -> Self {
        Self { budget, fences, ..Self::default() }
    }

    /// What all stores share.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The store of that key, where there is one.
    pub fn reader(&self, key: &StoreKey) -> Option<Reader> {
        self.stores.get(key).map(|entry| entry.value().clone())
    }

    /// The store of that key; a new one comes with its only writer.
    pub fn open(&self, key: &StoreKey) -> (Reader, Option<Writer>) {
        match self.stores.entry(key.clone()) {
            Entry::Occupied(entry) => (entry.get().clone(), None),
            Entry::Vacant(entry) => {
                let (writer, reader) = handle::pair(&self.budget);
                entry.insert(reader.clone());
                (reader, Some(writer))
            }
        }
    }

    /// Forgets a store, but not one that has been opened in its place. Those who read from it keep what they hold.
    pub fn close(&self, key: &StoreKey, writer: &Writer) {
        self.stores.remove_if(key, |_, found| writer.writes(found));
    }

    /// Evicts the stores that nobody has read for `limit`, unless they are pinned. Nobody finds them any more.
    pub fn close_idle(&self, limit: Duration) {
        self.stores.retain(|_, reader| {
            let tenancy = reader.tenancy();
            let idle = tenancy.last_read().elapsed();
            if idle < limit || tenancy.is_pinned() || reader.in_use() {
                return true;
            }
            tenancy.evict(Eviction::Idle(idle));
            false
        });
    }

    /// Whether the store of this key, which has grown, may go on. If the budget is exceeded, stores are evicted until it is
    /// not: those not read of late, the least recently read first; then the largest load under way; then this one.
    pub fn admit(&self, key: &StoreKey) -> bool {
        if !self.budget.is_exceeded() {
            return true;
        }
        let mut gone = self.gone.lock();
        while self.budget.is_exceeded() {
            if let Some((idle, bytes)) = self.evict_idle(key) {
                gone.retain(|_, (when, _)| when.elapsed() < STAYS_AWAY);
                gone.insert(idle, (Instant::now(), bytes));
                continue;
            }
            let Some((largest, reader)) = self.largest_load(key) else { return false };
            let (bytes, used) = (reader.tenancy().bytes(), self.budget.used());
            reader.tenancy().evict(Eviction::OverBudget { bytes, used });
            if largest == *key {
                return false;
            }
        }
        true
    }

    /// Bytes the store of this key took when it gave way a while ago, if there is still no room for them.
    pub fn gave_way(&self, key: &StoreKey) -> Option<u64> {
        let (when, bytes) = *self.gone.lock().get(key)?;
        (when.elapsed() < STAYS_AWAY && !self.budget.has_room(bytes)).then_some(bytes)
    }

    fn evict_idle(&self, but: &StoreKey) -> Option<(StoreKey, u64)> {
        let idle = self.stores.iter().filter(|entry| {
            let (store, tenancy) = (entry.value(), entry.value().tenancy());
            let unread = tenancy.last_read().elapsed() >= GIVES_WAY;
            entry.key() != but && unread && !tenancy.is_pinned() && tenancy.bytes() > 0 && !store.in_use()
        });
        let oldest = idle.min_by_key(|entry| entry.value().tenancy().last_read()).map(|entry| entry.key().clone())?;
        // Nothing is found if it has been read just now: then there may be another.
        let (key, reader) = self.stores.remove_if(&oldest, |_, reader| !reader.in_use())?;
        let bytes = reader.tenancy().bytes();
        reader.tenancy().evict(Eviction::Crowded { bytes });
        Some((key, bytes))
    }

    /// The store with the largest load under way, or this one.
    fn largest_load(&self, this: &StoreKey) -> Option<(StoreKey, Reader)> {
        let loading = self.stores.iter().filter(|entry| entry.value().tenancy().loading.bytes() > 0);
        let largest = loading.max_by_key(|entry| entry.value().tenancy().loading.bytes());
        let found = largest.map(|entry| (entry.key().clone(), entry.value().clone()));
        found.or_else(|| Some((this.clone(), self.reader(this)?)))
    }

    /// Upstream's history is another one now (a restored etcd): no store answers until it has loaded everything anew, and
    /// what was shown of the old history binds nobody. Said once, by whoever finds out: what is shown from now on counts.
    pub fn distrust(&self) {
        self.fences.forget();
        self.stores.iter().for_each(|entry| entry.value().distrust());
    }

    /// Figures of every store, ordered by name.
    pub fn summaries(&self) -> Vec<Summary> {
        let mut all: Vec<_> = self.stores.iter().map(|entry| summary(entry.key().clone(), entry.value())).collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }
}

fn summary(key: StoreKey, reader: &Reader) -> Summary {
    let status = reader.status();
    let snapshot = reader.snapshot();
    let progress = reader.progress();
    Summary {
        key,
        phase: status.phase,
        rv: status.rv,
        objects: snapshot.as_ref().map_or_else(|| progress.loaded(), |held| held.len() as u64),
        bytes: snapshot.as_ref().map_or(0, |held| held.bytes()),
        expected: progress.expected(),
        rate: progress.rate(),
        time_left: progress.time_left(),
        silence: progress.silence(),
        age: reader.age(),
    }
}

#[cfg(test)]
mod tests;
