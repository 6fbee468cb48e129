//! A digest of which objects there are in which versions, whatever their order: equal digests mean equal states.
//!
//! It proves how far a store has come without asking upstream. Object versions name contents, so if a complete list at
//! version B that passed through forebay has the digest of what the store holds, nothing up to B is missing in the
//! store, although no event has told it so (`Reader::claim`).
//!
//! Sums of 128-bit hashes: entries can be added and taken away one by one. It guards against coincidence, not against an
//! upstream that forges collisions; upstream could lie more easily.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::api::resource_version::ResourceVersion;

/// The digest of a set of (key, version) pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u128);

// === impl Digest ===

impl Digest {
    /// An object is there in this version.
    pub fn add(&mut self, key: &str, rv: ResourceVersion) {
        self.0 = self.0.wrapping_add(entry(key, rv));
    }

    /// It is not any more.
    pub fn remove(&mut self, key: &str, rv: ResourceVersion) {
        self.0 = self.0.wrapping_sub(entry(key, rv));
    }
}

fn entry(key: &str, rv: ResourceVersion) -> u128 {
    let mut hasher = DefaultHasher::new();
    (key, rv.0).hash(&mut hasher);
    let high = hasher.finish();
    0x5eed_u16.hash(&mut hasher);
    (u128::from(high) << 64) | u128::from(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_set_has_the_same_digest() {
        let of = |entries: &[(&str, u64)]| {
            let mut digest = Digest::default();
            entries.iter().for_each(|(key, rv)| digest.add(key, ResourceVersion(*rv)));
            digest
        };
        assert_eq!(of(&[("a/x", 1), ("a/y", 2)]), of(&[("a/y", 2), ("a/x", 1)]));
        for other in
            [&[("a/x", 1)][..], &[("a/x", 2), ("a/y", 1)], &[("a/x", 1), ("a/y", 3)], &[("a/x", 1), ("a/z", 2)], &[]]
        {
            assert_ne!(of(&[("a/x", 1), ("a/y", 2)]), of(other), "{other:?}");
        }
        let mut digest = of(&[("a/x", 1), ("a/y", 2)]);
        digest.remove("a/x", ResourceVersion(1));
        assert_eq!(digest, of(&[("a/y", 2)]));
    }
}
