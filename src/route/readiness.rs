//! May this store answer now: from its phase, its life, its version and the fence of its resource.

use crate::{
    api::resource_version::ResourceVersion,
    store::{Phase, Status, fences::View},
};

use super::Reason;

/// What the fence asks, beside its [`View`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// Versions shown to clients.
    pub view: View,
    /// The read shows a key over which a conflict is open.
    pub contested: bool,
}

/// What is known of a store's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its connection was heard a moment ago.
    Proven,
    /// It was not, and upstream can be asked instead.
    Unproven,
    /// It was not, and upstream can't be reached: what is held is the best there is.
    Away,
}

/// What a read of a cacheable resource does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Answer from the current snapshot.
    Now,
    /// Nothing is known yet: hold until the store has synced.
    Sync,
    /// The event of a write this client has seen is on its way: wait until the store has reached this version.
    Reach(ResourceVersion),
    /// A client has seen a bookmark of this version: wait, and find out how far upstream has come.
    Follow(ResourceVersion),
    /// A write's response is just passing: wait for its end, then look again.
    Settle,
    /// Upstream answers.
    Forward(Reason),
}

/// Tells whether a store in `status` may answer.
pub fn readiness(status: Status, life: Life, fence: Fence) -> Readiness {
    match status.phase {
        Phase::Syncing | Phase::Stopped => Readiness::Sync,
        Phase::Refused(_) => Readiness::Forward(Reason::Refused),
        Phase::Unservable(_) => Readiness::Forward(Reason::Unservable),
        Phase::OverBudget => Readiness::Forward(Reason::OverBudget),
        Phase::Synced if life == Life::Unproven => Readiness::Forward(Reason::Stale),
        Phase::Synced if fence.view.passing => Readiness::Settle,
        Phase::Synced if fence.view.in_doubt => Readiness::Forward(Reason::WriteInDoubt),
        Phase::Synced if status.rv < fence.view.upstream_until => Readiness::Forward(Reason::Behind),
        Phase::Synced if status.rv < fence.view.wait_for => Readiness::Reach(fence.view.wait_for),
        Phase::Synced if status.rv < fence.view.follow => Readiness::Follow(fence.view.follow),
        Phase::Synced if fence.contested => Readiness::Forward(Reason::Conflict),
        Phase::Synced => Readiness::Now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rv(n: u64) -> ResourceVersion {
        ResourceVersion(n)
    }

    #[test]
    fn a_store_answers_only_what_it_proves() {
        let free = Fence::default();
        let at = |view| Fence { view, contested: false };
        let wait = at(View { wait_for: rv(9), ..View::default() });
        let doubt = at(View { in_doubt: true, ..View::default() });
        let passing = at(View { passing: true, in_doubt: true, ..View::default() });
        let until = at(View { upstream_until: rv(9), ..View::default() });
        let follow = at(View { follow: rv(9), ..View::default() });
        let contested = Fence { contested: true, ..free };
        let forward = Readiness::Forward;
        let alive = |status, fence| readiness(status, Life::Proven, fence);
        for (phase, version, fence, want) in [
            (Phase::Syncing, 0, free, Readiness::Sync),
            (Phase::Syncing, 0, doubt, Readiness::Sync),
            (Phase::Stopped, 0, free, Readiness::Sync),
            (Phase::Refused(403), 0, free, forward(Reason::Refused)),
            (Phase::Unservable("x"), 0, free, forward(Reason::Unservable)),
            (Phase::OverBudget, 0, doubt, forward(Reason::OverBudget)),
            (Phase::Synced, 5, free, Readiness::Now),
            (Phase::Synced, 8, wait, Readiness::Reach(rv(9))),
            (Phase::Synced, 9, wait, Readiness::Now),
            (Phase::Synced, 99, passing, Readiness::Settle),
            (Phase::Synced, 99, doubt, forward(Reason::WriteInDoubt)),
            (Phase::Synced, 8, until, forward(Reason::Behind)),
            (Phase::Synced, 9, until, Readiness::Now),
            (Phase::Synced, 8, follow, Readiness::Follow(rv(9))),
            (Phase::Synced, 9, follow, Readiness::Now),
            (Phase::Synced, 5, contested, forward(Reason::Conflict)),
        ] {
            assert_eq!(alive(Status { phase, rv: rv(version) }, fence), want, "{phase:?} at {version}: {fence:?}");
        }
        // Without a proof of life upstream answers; if it can't, what is held does, as far as it may.
        for (phase, version, fence, unproven, away) in [
            (Phase::Syncing, 0, free, Readiness::Sync, Readiness::Sync),
            (Phase::Refused(403), 0, free, forward(Reason::Refused), forward(Reason::Refused)),
            (Phase::Synced, 5, free, forward(Reason::Stale), Readiness::Now),
            (Phase::Synced, 8, wait, forward(Reason::Stale), Readiness::Reach(rv(9))),
            (Phase::Synced, 9, wait, forward(Reason::Stale), Readiness::Now),
            (Phase::Synced, 99, doubt, forward(Reason::Stale), forward(Reason::WriteInDoubt)),
            (Phase::Synced, 5, contested, forward(Reason::Stale), forward(Reason::Conflict)),
        ] {
            let status = Status { phase, rv: rv(version) };
            assert_eq!(readiness(status, Life::Unproven, fence), unproven, "{phase:?} at {version}: {fence:?}");
            assert_eq!(readiness(status, Life::Away, fence), away, "{phase:?} at {version}: {fence:?}");
        }
    }
}
