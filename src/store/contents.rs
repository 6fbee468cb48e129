//! Objects by key with what is known of them as a whole, kept in step: payload bytes, memory, digest.
//!
//! The live state of a store and a load in progress are both of this kind, so neither can count differently.

use std::sync::Arc;

use imbl::OrdMap;

use super::{Digest, Object, budget};

/// An ordered set of objects. Cloning is O(1).
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    pub(super) objects: OrdMap<Arc<str>, Arc<Object>>,
    /// Payload bytes.
    pub(super) bytes: u64,
    /// Memory all of it takes, shared or not.
    pub(super) memory: u64,
    pub(super) digest: Digest,
}

// === impl Contents ===

impl Contents {
    /// Puts an object in, and gives the one it replaces.
    pub(super) fn insert(&mut self, key: &Arc<str>, object: Arc<Object>) -> Option<Arc<Object>> {
        self.bytes += object.size() as u64;
        self.memory += memory(key, &object);
        self.digest.add(key, object.rv());
        let old = self.objects.insert(key.clone(), object);
        self.without(key, old)
    }

    /// Takes an object out.
    pub(super) fn remove(&mut self, key: &str) -> Option<Arc<Object>> {
        let old = self.objects.remove(key);
        self.without(key, old)
    }

    fn without(&mut self, key: &str, old: Option<Arc<Object>>) -> Option<Arc<Object>> {
        if let Some(old) = &old {
            self.bytes -= old.size() as u64;
            self.memory -= memory(key, old);
            self.digest.remove(key, old.rv());
        }
        old
    }
}

/// Memory an object takes with its key.
pub(super) fn memory(key: &str, object: &Object) -> u64 {
    budget::footprint(key.len(), object.size())
}
