//! Named readiness checks, held as tokens by those who become ready.
//!
//! A check is pending from [`Readiness::add`] until its token says otherwise. Two owners that use one name have two
//! checks: neither can release the other. A token dropped while pending leaves its check pending, for a component that
//! died before it was ready must not turn the pod green.
//!
//! Checks whose state lives elsewhere (cache sync) are asked for at request time by `admin` and are not kept here.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::RwLock;

/// The set of checks. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    checks: Arc<RwLock<Vec<Arc<Entry>>>>,
}

/// One owner's check.
#[derive(Debug)]
#[must_use = "the check stays pending until the token is marked ready"]
pub struct ReadyToken {
    entry: Arc<Entry>,
}

/// The state of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Name given by the owner, for example `listeners`.
    pub name: Cow<'static, str>,
    /// Passed?
    pub ready: bool,
}

#[derive(Debug)]
struct Entry {
    name: Cow<'static, str>,
    ready: AtomicBool,
}

// === impl Readiness ===

impl Readiness {
    /// No checks: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pending check.
    pub fn add(&self, name: impl Into<Cow<'static, str>>) -> ReadyToken {
        let entry = Arc::new(Entry { name: name.into(), ready: AtomicBool::new(false) });
        self.checks.write().push(Arc::clone(&entry));
        ReadyToken { entry }
    }

    /// All checks, in the order they were added.
    pub fn checks(&self) -> Vec<Check> {
        self.checks.read().iter().map(|entry| entry.check()).collect()
    }

    /// Names of the pending checks.
    pub fn pending(&self) -> Vec<Cow<'static, str>> {
        self.checks.read().iter().filter(|entry| !entry.is_ready()).map(|entry| entry.name.clone()).collect()
    }

    /// Have all checks passed?
    pub fn is_ready(&self) -> bool {
        self.checks.read().iter().all(|entry| entry.is_ready())
    }
}

// === impl ReadyToken ===

impl ReadyToken {
    /// The check passes from now on.
    pub fn mark_ready(&self) {
        self.entry.ready.store(true, Ordering::Release);
    }

    /// The check fails again: a shutdown has begun, a store was lost.
    pub fn mark_pending(&self) {
        self.entry.ready.store(false, Ordering::Release);
    }
}

// === impl Entry ===

impl Entry {
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn check(&self) -> Check {
        Check { name: self.name.clone(), ready: self.is_ready() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_token_says_so() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let listeners = readiness.add("listeners");
        let upstream = readiness.add(String::from("upstream-seen-once"));
        assert_eq!(readiness.pending(), ["listeners", "upstream-seen-once"]);
        listeners.mark_ready();
        assert_eq!(readiness.pending(), ["upstream-seen-once"]);
        upstream.mark_ready();
        assert!(readiness.is_ready());
        listeners.mark_pending();
        assert!(!readiness.is_ready());
    }

    #[test]
    fn same_names_are_separate_and_a_dropped_token_keeps_its_state() {
        let readiness = Readiness::new();
        let first = readiness.add("sync");
        let second = readiness.add("sync");
        first.mark_ready();
        drop(first);
        drop(second);
        let states: Vec<_> = readiness.checks().into_iter().map(|check| check.ready).collect();
        assert_eq!(states, [true, false]);
    }
}
