//! Which stores exist, by what they hold.

use std::{sync::Arc, time::Duration};

use dashmap::{DashMap, Entry};

use crate::api::{
    gvr::{Gvr, Scope},
    hash::NameHash,
    resource_version::ResourceVersion,
};

use super::{Phase, Reader, Writer, handle};

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
    /// The store of that key, where there is one.
    pub fn reader(&self, key: &StoreKey) -> Option<Reader> {
        self.stores.get(key).map(|entry| entry.value().clone())
    }

    /// The store of that key; a new one comes with its only writer.
    pub fn open(&self, key: &StoreKey) -> (Reader, Option<Writer>) {
        match self.stores.entry(key.clone()) {
            Entry::Occupied(entry) => (entry.get().clone(), None),
            Entry::Vacant(entry) => {
                let (writer, reader) = handle::pair();
                entry.insert(reader.clone());
                (reader, Some(writer))
            }
        }
    }

    /// Forgets a store. Those who read from it keep what they hold.
    pub fn close(&self, key: &StoreKey) {
        self.stores.remove(key);
    }

    /// Upstream's history is another one now (a restored etcd): everything held is loaded anew.
    pub fn distrust(&self) {
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
