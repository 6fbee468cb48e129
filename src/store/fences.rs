//! Fences: what clients of this proxy have been shown, per stored resource, so that no later read goes behind it.
//!
//! A fence belongs to a group and a plural name: every version of the resource shares its storage, and a write through
//! one must be seen through the others. It has three parts:
//!
//! 1. `wait_for`: the highest version a response or an event carried. A read waits for the store to reach it (read your
//!    writes). `follow` is the same for bookmarks, which a quiet resource's own stream may bring much later.
//! 2. doubt: while a write's response is passing, reads wait for its end. If it carried no version, they go upstream
//!    until a consistent probe that started after the response has told a version, and the store has reached that one. A forwarded list raises the
//!    same mark, since its version is upstream's position and not an event of this resource.
//! 3. contested keys: a client has just lost a conflict over this key, or was told it is gone. The next read must not
//!    show what the client lost with: it goes upstream, as in doubt, until the store has reached a probe's version.
//!
//! [`Fences::shown`] is the highest version shown of *any* resource: what a negative answer is measured against. This is
//! the only place where versions of different resources meet (DESIGN section 4).
//!
//! It does no I/O: who finds a fence in doubt sends the probe.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::api::{gvr::Gvr, hash::NameHash, resource_version::ResourceVersion};

/// Contested keys remembered per resource. Beyond it the resource as a whole is put in doubt, which is always right.
const MAX_CONTESTED: usize = 4096;

/// The fences of this process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    by_resource: Arc<DashMap<(Arc<str>, Arc<str>), Arc<Fence>, NameHash>>,
    shown: Arc<AtomicU64>,
}

/// The fence of one stored resource.
#[derive(Debug)]
pub struct Fence {
    shown: Arc<AtomicU64>,
    state: Mutex<State>,
    settled: Notify,
}

/// What a read must respect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The store must have reached this version; worth waiting for, since its event is on the way.
    pub wait_for: ResourceVersion,
    /// As `wait_for`, but a bookmark told it: on a quiet resource no event need ever carry it, so after a while it takes
    /// asking upstream how far it has come.
    pub follow: ResourceVersion,
    /// A write's response is passing: in a moment it will be known what a read must wait for.
    pub passing: bool,
    /// A write's effect is unknown: nothing but upstream can answer.
    pub in_doubt: bool,
    /// The store must have reached this version; not worth waiting for, since no event need ever carry it.
    pub upstream_until: ResourceVersion,
}

/// A write whose response is passing. Reads of its resource wait until it is settled; dropped unsettled (the
/// client has gone, the body broke off), it leaves the resource in doubt.
#[derive(Debug)]
#[must_use]
pub struct Passing {
    fence: Arc<Fence>,
    settled: bool,
}

#[derive(Debug, Default)]
struct State {
    wait_for: ResourceVersion,
    follow: ResourceVersion,
    upstream_until: ResourceVersion,
    passing: usize,
    /// Grows with every response that leaves the resource or a key in doubt; a probe clears what it started after.
    marks: u64,
    /// The latest mark that concerns the whole resource.
    doubted: u64,
    /// The latest mark that concerns a key.
    opened: u64,
    cleared: u64,
    probing: bool,
    /// The probe under way began before upstream's history became another one: what it tells is of the old one, perhaps.
    outdated: bool,
    contested: HashMap<String, Contested>,
}

#[derive(Clone, Copy, Debug)]
enum Contested {
    /// Nobody knows yet how new a store must be; a probe for this mark will tell.
    Open(u64),
    /// A store that has reached this version shows what came after.
    Until(ResourceVersion),
}

// === impl Fences ===

impl Fences {
    /// The fence of the resource that stores objects of `gvr`.
    pub fn of(&self, gvr: &Gvr) -> Arc<Fence> {
        let key = (gvr.group.clone(), gvr.resource.clone());
        if let Some(fence) = self.by_resource.get(&key) {
            return fence.value().clone();
        }
        let fence = || Arc::new(Fence { shown: self.shown.clone(), state: Mutex::default(), settled: Notify::new() });
        self.by_resource.entry(key).or_insert_with(fence).value().clone()
    }

    /// The highest version of any resource that a client has been shown.
    pub fn shown(&self) -> ResourceVersion {
        ResourceVersion(self.shown.load(Ordering::Acquire))
    }

    /// Upstream's history is another one now (restored etcd): what was shown of the old one binds nobody.
    pub(super) fn forget(&self) {
        self.shown.store(0, Ordering::Release);
        self.by_resource.iter().for_each(|fence| fence.forget());
    }
}

// === impl Fence ===

impl Fence {
    /// What a read must respect now.
    pub fn view(&self) -> View {
        let state = self.state.lock();
        View {
            wait_for: state.wait_for,
            follow: state.follow,
            passing: state.passing > 0,
            in_doubt: state.doubted > state.cleared,
            upstream_until: state.upstream_until,
        }
    }

    /// A response that carries this version has passed.
    pub fn raise(&self, rv: ResourceVersion) {
        let mut state = self.state.lock();
        state.wait_for = state.wait_for.max(rv);
        self.shown.fetch_max(rv.0, Ordering::AcqRel);
    }

    /// A bookmark of this version has passed, or a list at this version from a store.
    pub fn raise_bookmark(&self, rv: ResourceVersion) {
        self.raise_absence(rv);
        self.shown.fetch_max(rv.0, Ordering::AcqRel);
    }

    /// A store at this version has proven that something is not there. The client has not seen the version itself, but
    /// another store of this resource (another version, a namespace) must not show what was before.
    pub fn raise_absence(&self, rv: ResourceVersion) {
        let mut state = self.state.lock();
        state.follow = state.follow.max(rv);
    }

    /// A list at this position has passed. Its version is upstream's, of everything: an event of this resource need
    /// never carry it, so reads go upstream until the store is known to have come as far.
    pub fn raise_position(&self, rv: ResourceVersion) {
        let mut state = self.state.lock();
        state.upstream_until = state.upstream_until.max(rv);
        self.shown.fetch_max(rv.0, Ordering::AcqRel);
    }

    /// A write's response begins to pass.
    pub fn passing(self: &Arc<Self>) -> Passing {
        self.state.lock().passing += 1;
        Passing { fence: self.clone(), settled: false }
    }

    /// Waits until no write's response is passing, or the deadline has come. Tells whether none is.
    pub async fn settled(&self, deadline: Instant) -> bool {
        loop {
            let settled = self.settled.notified();
            if self.state.lock().passing == 0 {
                return true;
            }
            if timeout_at(deadline, settled).await.is_err() {
                return false;
            }
        }
    }

    /// Takes the duty to probe, if the resource or a key is in doubt and nobody has it. Gives what the probe will clear.
    pub fn claim_probe(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.probing || state.doubted.max(state.opened) <= state.cleared {
            return None;
        }
        state.probing = true;
        Some(state.marks)
    }

    /// Ends the duty of [`Self::claim_probe`]: with a version, the doubts it was claimed for are cleared.
    pub fn end_probe(&self, claimed: u64, told: Option<ResourceVersion>) {
        let mut state = self.state.lock();
        state.probing = false;
        let outdated = std::mem::take(&mut state.outdated);
        let Some(rv) = told.filter(|_| !outdated) else { return };
        if state.doubted > state.cleared {
            state.upstream_until = state.upstream_until.max(rv);
        }
        for entry in state.contested.values_mut() {
            if matches!(entry, Contested::Open(mark) if *mark <= claimed) {
                *entry = Contested::Until(rv);
            }
        }
        state.cleared = state.cleared.max(claimed);
    }

    /// A client has lost a conflict over `key`, or was told it is gone.
    pub fn contest(&self, key: String) {
        let mut state = self.state.lock();
        if state.contested.len() >= MAX_CONTESTED {
            state.contested.clear();
            state.mark_doubt();
        }
        state.marks += 1;
        state.opened = state.marks;
        let mark = state.marks;
        state.contested.insert(key, Contested::Open(mark));
    }

    /// Whether `key` must be read upstream still, for a store at `rv`.
    pub fn is_contested(&self, key: &str, rv: ResourceVersion) -> bool {
        let mut state = self.state.lock();
        let open = match state.contested.get(key) {
            None => return false,
            Some(entry) => entry.is_open(rv),
        };
        if !open {
            state.contested.remove(key);
        }
        open
    }

    /// Whether any key whose name starts with `prefix` is contested: asked by lists, which show many keys at once.
    pub fn any_contested(&self, prefix: &str, rv: ResourceVersion) -> bool {
        let mut state = self.state.lock();
        if state.contested.is_empty() {
            return false;
        }
        state.contested.retain(|_, entry| entry.is_open(rv));
        state.contested.keys().any(|key| key.starts_with(prefix))
    }

    /// Versions are of another history now. Whoever holds this fence, such as a write under way, goes on to raise it;
    /// doubts stay, since only upstream can end them.
    fn forget(&self) {
        let mut state = self.state.lock();
        (state.wait_for, state.follow, state.upstream_until) = Default::default();
        state.contested.retain(|_, entry| matches!(entry, Contested::Open(_)));
        state.outdated = state.probing;
    }

    /// Something was shown that could not be read, or a write's outcome is unknown: upstream has to be asked how far it is.
    pub fn doubt(&self) {
        self.state.lock().mark_doubt();
    }
}

// === impl State ===

impl State {
    fn mark_doubt(&mut self) {
        self.marks += 1;
        self.doubted = self.marks;
    }
}

// === impl Contested ===

impl Contested {
    fn is_open(self, store: ResourceVersion) -> bool {
        match self {
            Self::Open(_) => true,
            Self::Until(rv) => store < rv,
        }
    }
}

// === impl Passing ===

impl Passing {
    /// The response carried this version.
    pub fn raised(mut self, rv: ResourceVersion) {
        self.fence.raise(rv);
        self.settled = true;
    }

    /// The response proves that nothing was written.
    pub fn unchanged(mut self) {
        self.settled = true;
    }

    /// The response tells no version: leaves the resource in doubt.
    pub fn unknown(self) {
        drop(self);
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if !self.settled {
            self.fence.doubt();
        }
        let passing = {
            let mut state = self.fence.state.lock();
            state.passing -= 1;
            state.passing
        };
        if passing == 0 {
            self.fence.settled.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn fence() -> (Fences, Arc<Fence>) {
        let fences = Fences::default();
        let fence = fences.of(&Gvr::new("autoscaling", "v1", "horizontalpodautoscalers"));
        (fences, fence)
    }

    #[test]
    fn versions_of_a_group_share_their_fence_and_raise_the_high_water() {
        let (fences, v1) = fence();
        v1.raise(ResourceVersion(7));
        v1.raise(ResourceVersion(5));
        let v2 = fences.of(&Gvr::new("autoscaling", "v2", "horizontalpodautoscalers"));
        assert_eq!(v2.view(), View { wait_for: ResourceVersion(7), ..View::default() });
        assert_eq!(fences.shown(), ResourceVersion(7));
        assert_eq!(fences.of(&Gvr::new("", "v1", "pods")).view(), View::default());
    }

    #[test]
    fn a_passing_write_is_in_the_way_until_it_is_settled() {
        let (_, fence) = fence();
        let first = fence.passing();
        let second = fence.passing();
        assert!(fence.view().passing);
        first.raised(ResourceVersion(9));
        assert!(fence.view().passing);
        second.unchanged();
        assert_eq!(fence.view(), View { wait_for: ResourceVersion(9), ..View::default() });
        assert_eq!(fence.claim_probe(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_waits_for_the_end_of_a_passing_response() {
        let (_, fence) = fence();
        let soon = || Instant::now() + std::time::Duration::from_millis(100);
        assert!(fence.settled(soon()).await);
        let passing = fence.passing();
        assert!(!fence.settled(soon()).await);
        let (settled, ()) = tokio::join!(fence.settled(soon()), async { passing.raised(ResourceVersion(3)) });
        assert!(settled && fence.view().wait_for == ResourceVersion(3));
    }

    #[test]
    fn a_probe_clears_only_the_doubts_it_started_after() {
        let (_, fence) = fence();
        fence.passing().unknown();
        let claim = fence.claim_probe().unwrap();
        assert_eq!(fence.claim_probe(), None, "one probe at a time");
        drop(fence.passing());
        fence.end_probe(claim, Some(ResourceVersion(20)));
        assert!(fence.view().in_doubt, "the second doubt came after the probe had started");
        let claim = fence.claim_probe().unwrap();
        fence.end_probe(claim, None);
        assert!(fence.view().in_doubt, "a failed probe clears nothing");
        let claim = fence.claim_probe().unwrap();
        fence.end_probe(claim, Some(ResourceVersion(18)));
        assert_eq!(fence.view(), View { upstream_until: ResourceVersion(20), ..View::default() });
    }

    #[test]
    fn a_contested_key_is_read_upstream_until_a_probes_version_is_reached() {
        let (_, fence) = fence();
        let at = ResourceVersion;
        fence.contest("a/x".into());
        assert!(!fence.view().in_doubt, "other keys are not concerned");
        assert!(fence.is_contested("a/x", at(99)) && !fence.is_contested("a/y", at(0)));
        assert!(
            fence.any_contested("a/", at(99)) && fence.any_contested("", at(99)) && !fence.any_contested("b/", at(99))
        );
        let claim = fence.claim_probe().unwrap();
        fence.contest("a/late".into());
        fence.end_probe(claim, Some(at(20)));
        assert_eq!(fence.view(), View::default());
        assert!(fence.is_contested("a/x", at(19)) && !fence.is_contested("a/x", at(20)));
        assert!(fence.is_contested("a/late", at(99)), "it came after the probe had started");
        let claim = fence.claim_probe().unwrap();
        fence.end_probe(claim, Some(at(30)));
        assert!(!fence.any_contested("", at(30)));
        assert_eq!(fence.claim_probe(), None);
    }

    #[test]
    fn a_new_history_forgets_versions_and_keeps_what_is_under_way() {
        let at = ResourceVersion;
        let fences = Fences::default();
        let fence = fences.of(&Gvr::new("", "v1", "pods"));
        fence.raise(at(1_000));
        fence.raise_bookmark(at(1_001));
        fence.raise_position(at(1_002));
        fence.contest("a/x".to_owned());
        let claim = fence.claim_probe().unwrap();
        fence.end_probe(claim, Some(at(1_003)));
        let write = fence.passing();
        fence.doubt();
        let claim = fence.claim_probe().unwrap();

        fences.forget();
        let view = fence.view();
        assert_eq!((view.wait_for, view.follow, view.upstream_until), Default::default());
        assert!(view.passing && view.in_doubt && !fence.is_contested("a/x", at(1)));
        assert_eq!(fences.shown(), at(0));
        // The probe may have been answered by the old history: somebody has to ask again.
        fence.end_probe(claim, Some(at(1_004)));
        assert!(fence.view().in_doubt && fence.claim_probe().is_some());
        // A write that was under way is respected by whoever asks for the fence now.
        fence.raise(at(9));
        drop(write);
        let found = fences.of(&Gvr::new("", "v1", "pods"));
        assert_eq!((found.view().wait_for, fences.shown()), (at(9), at(9)));
    }
}
