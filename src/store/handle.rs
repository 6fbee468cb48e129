//! The folder's door: one [`Writer`] that may change a store, any number of [`Reader`]s that may look.
//!
//! ```text
//! reflector -> Writer::{commit, apply} -> ArcSwap<Snapshot>  -> Reader::snapshot   (never waits, never sees half)
//!                                      -> watch<Status>      -> Reader::wait       (wakes on a predicate over a value)
//! ```
//!
//! The snapshot is published before the status, so whoever was woken by a version finds it in the snapshot. Dropping the
//! writer publishes [`Phase::Stopped`], so no reader waits for a reflector that is gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use crate::api::resource_version::ResourceVersion;

use super::{
    Budget, Digest, Eviction, Life, ListForm, Object, Phase, Progress, Snapshot, Status, budget,
    contents::{self, Contents},
    tenancy::Tenancy,
};

/// The only way to change a store. Not `Clone`: the type system says who writes.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    held: Contents,
    form: Option<Arc<ListForm>>,
}

/// A view of a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
}

/// A complete load being gathered beside the live snapshot. Objects that did not change are shared with it, so that a
/// relist costs the memory of what changed.
#[derive(Debug)]
pub struct Relist {
    shared: Arc<Shared>,
    live: Contents,
    fresh: Contents,
    /// Memory that is not shared with the live state.
    own: u64,
}

/// One event of a watch.
#[derive(Debug)]
pub enum Change {
    /// It came into being.
    Add(String, Object),
    /// It was modified.
    Put(String, Object),
    /// Deleted.
    Remove(String),
}

/// A change that can't be true of the state it is made to: a change before it was missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Key of the object.
    pub key: String,
    /// What is wrong, a closed word.
    pub what: &'static str,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The predicate held for this status.
    Reached(Status),
    /// The deadline came first.
    TimedOut,
}

/// A change the store refuses because it would break an invariant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Upstream gave a state older than the one already shown: a restored etcd or another cluster.
    #[error("upstream's version {got} is behind {held}, which has been served")]
    WentBack {
        /// What upstream gave.
        got: ResourceVersion,
        /// What the store holds.
        held: ResourceVersion,
    },
    /// A watch event arrived before any complete load.
    #[error("a change arrived before the first complete load")]
    NotLoaded,
}

#[derive(Debug)]
struct Shared {
    snapshot: ArcSwapOption<Snapshot>,
    status: watch::Sender<Status>,
    progress: Progress,
    life: Life,
    wanted: Notify,
    claim: Mutex<Option<Claim>>,
    claimed: Notify,
    /// What is held is of a history that upstream does not have any more.
    distrusted: AtomicBool,
    /// Wakes the writer for it.
    doubted: Notify,
    tenancy: Tenancy,
    /// Readers that wait for this store.
    waiting: AtomicUsize,
    awaited: Notify,
}

/// A complete state that a client has been shown.
#[derive(Clone, Copy, Debug)]
struct Claim {
    digest: Digest,
    rv: ResourceVersion,
}

/// Counts a reader as waiting while it lives.
struct Waiting<'a>(&'a Shared);

/// Makes an empty store in [`Phase::Syncing`].
pub fn pair(budget: &Budget) -> (Writer, Reader) {
    let (status, receiver) = watch::channel(Status { phase: Phase::Syncing, rv: ResourceVersion(0) });
    let shared = Arc::new(Shared {
        snapshot: ArcSwapOption::empty(),
        status,
        progress: Progress::new(),
        life: Life::new(),
        wanted: Notify::new(),
        claim: Mutex::default(),
        claimed: Notify::new(),
        distrusted: AtomicBool::new(false),
        doubted: Notify::new(),
        tenancy: Tenancy::new(budget),
        waiting: AtomicUsize::new(0),
        awaited: Notify::new(),
    });
    (Writer { shared: shared.clone(), held: Contents::default(), form: None }, Reader { shared, status: receiver })
}

// === impl Writer ===

impl Writer {
    /// Counters of the load under way.
    pub fn progress(&self) -> &Progress {
        &self.shared.progress
    }

    /// Proof that nothing is missing but what is under way.
    pub fn life(&self) -> &Life {
        &self.shared.life
    }

    /// Whether this is the writer of what `reader` reads.
    pub fn writes(&self, reader: &Reader) -> bool {
        Arc::ptr_eq(&self.shared, &reader.shared)
    }

    /// Version of the published snapshot; 0 before the first.
    pub fn rv(&self) -> ResourceVersion {
        self.shared.status.borrow().rv
    }

    /// Resolves when a reader waits for a version that no event need ever bring. Cancel safe.
    pub fn progress_wanted(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        async move { shared.wanted.notified().await }
    }

    /// Resolves when a reader has claimed a version. Cancel safe.
    pub fn claimed(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        async move { shared.claimed.notified().await }
    }

    /// Moves on to the claimed version, if what is held is the state that was claimed.
    pub fn check_claim(&mut self) -> Result<(), Error> {
        let claim = *self.shared.claim.lock();
        match claim {
            Some(claim) if claim.digest == self.held.digest && claim.rv > self.rv() => self.publish(claim.rv),
            _ => Ok(()),
        }
    }

    /// Resolves when upstream's history has been found to be another one now; then it takes [`Self::reset`]. Cancel safe.
    pub fn distrusted(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        async move {
            while !shared.distrusted.load(Ordering::Acquire) {
                shared.doubted.notified().await;
            }
        }
    }

    /// Resolves when the store has to go. Cancel safe.
    pub fn evicted(&self) -> impl Future<Output = Eviction> + Send + 'static {
        let shared = self.shared.clone();
        async move { shared.tenancy.evicted().await }
    }

    /// Tells whether any reader waits for this store, at any time.
    pub fn is_awaited(&self) -> impl Fn() -> bool + Send + 'static {
        let shared = self.shared.clone();
        move || shared.waiting.load(Ordering::Relaxed) > 0
    }

    /// Resolves when a reader begins to wait. Cancel safe.
    pub fn awaited(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        async move { shared.awaited.notified().await }
    }

    /// Starts to gather a complete load.
    pub fn begin_relist(&self) -> Relist {
        self.shared.progress.restart();
        Relist { shared: self.shared.clone(), live: self.held.clone(), fresh: Contents::default(), own: 0 }
    }

    /// Publishes a complete load as one step: objects it lacks are gone, readers see the old state or the new.
    pub fn commit(&mut self, mut relist: Relist, form: ListForm, rv: ResourceVersion) -> Result<(), Error> {
        let held = self.rv();
        if rv < held {
            return Err(Error::WentBack { got: rv, held });
        }
        self.held = std::mem::take(&mut relist.fresh);
        // Before its content is counted as held: others would be told to go for what is counted twice.
        drop(relist);
        self.form = Some(Arc::new(form));
        self.publish(rv)
    }

    /// Applies events in order and publishes once, at `rv`.
    ///
    /// After a claim the published version may be ahead of the stream. Events from before it are gathered unpublished: they
    /// lead back to the claimed state (an object that came and went), and on the way the store would show what was before
    /// the version it names.
    ///
    /// Changes that contradict the state are applied as well, since what they say of their own object is true; they are
    /// told, since something else is missing then.
    pub fn apply(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
        rv: ResourceVersion,
    ) -> Result<Vec<Contradiction>, Error> {
        let mut contradictions = Vec::new();
        for change in changes {
            let held = self.held.objects.get(change.key()).map(|held| &**held);
            if let Some(what) = change.contradicts(held) {
                contradictions.push(Contradiction { key: change.key().to_owned(), what });
            }
            match change {
                Change::Add(key, object) | Change::Put(key, object) => {
                    drop(self.held.insert(&key.into(), Arc::new(object)));
                }
                Change::Remove(key) => drop(self.held.remove(&key)),
            }
        }
        self.shared.tenancy.held.resize(self.held.memory);
        if rv >= self.rv() {
            self.publish(rv)?;
        }
        Ok(contradictions)
    }

    /// Upstream refuses our reads with this code. What was held is dropped: rights that are gone are gone.
    pub fn refuse(&mut self, code: u16) {
        self.empty(Phase::Refused(code));
    }

    /// This resource can't be cached; `reason` says why.
    pub fn unservable(&mut self, reason: &'static str) {
        self.empty(Phase::Unservable(reason));
    }

    /// It was evicted because the memory budget had no room for it. It may try again, later.
    pub fn over_budget(&mut self) {
        self.empty(Phase::OverBudget);
        self.shared.tenancy.renew();
    }

    /// Forgets everything, version included: upstream's history is another one now.
    pub fn reset(&mut self) {
        self.empty(Phase::Syncing);
        self.shared.distrusted.store(false, Ordering::Release);
    }

    fn empty(&mut self, phase: Phase) {
        self.held = Contents::default();
        self.shared.tenancy.held.resize(0);
        *self.shared.claim.lock() = None;
        self.shared.snapshot.store(None);
        self.shared.status.send_replace(Status { phase, rv: ResourceVersion(0) });
    }

    fn publish(&mut self, rv: ResourceVersion) -> Result<(), Error> {
        let Some(form) = self.form.clone() else { return Err(Error::NotLoaded) };
        let claim = self.shared.claim.lock().filter(|claim| claim.digest == self.held.digest);
        let rv = claim.map_or(rv, |claim| rv.max(claim.rv));
        self.shared.tenancy.held.resize(self.held.memory);
        let snapshot = Snapshot { rv, form, objects: self.held.objects.clone(), bytes: self.held.bytes };
        self.shared.snapshot.store(Some(Arc::new(snapshot)));
        // Under the lock of the status, so that whatever is published before a distrust is taken back by it.
        self.shared.status.send_if_modified(|status| {
            let trusted = !self.shared.distrusted.load(Ordering::Acquire);
            if trusted {
                *status = Status { phase: Phase::Synced, rv };
            }
            trusted
        });
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.empty(Phase::Stopped);
    }
}

// === impl Reader ===

impl Reader {
    /// The current snapshot; none before the first complete load.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.shared.snapshot.load_full()
    }

    /// Phase and version now.
    pub fn status(&self) -> Status {
        *self.status.borrow()
    }

    /// Counters of the load under way.
    pub fn progress(&self) -> &Progress {
        &self.shared.progress
    }

    /// How old an answer from this store may be: the time since it was last proven that nothing was missing.
    pub fn age(&self) -> Duration {
        self.shared.life.age()
    }

    /// Whether a stream is open, by which whatever is missing will come.
    pub fn is_fed(&self) -> bool {
        self.shared.life.is_fed()
    }

    /// A complete list with this digest, at this version, has passed to a client. A store that holds exactly that state is
    /// complete at that version as well, and says so without asking upstream.
    pub fn claim(&self, digest: Digest, rv: ResourceVersion) {
        if rv > self.status().rv {
            *self.shared.claim.lock() = Some(Claim { digest, rv });
            self.shared.claimed.notify_one();
        }
    }

    /// Tells the reflector that what the store holds is of a history that upstream no longer has.
    pub fn distrust(&self) {
        self.shared.distrusted.store(true, Ordering::Release);
        // At once, and not when the writer comes to it: until then it would answer from the lost history.
        self.shared.status.send_if_modified(|status| {
            let answers = status.phase == Phase::Synced;
            if answers {
                *status = Status { phase: Phase::Syncing, rv: ResourceVersion(0) };
            }
            answers
        });
        self.shared.doubted.notify_one();
    }

    /// A client reads from it.
    pub fn mark_read(&self) {
        self.shared.tenancy.mark_read();
    }

    /// It stays, whether anybody reads it or not.
    pub fn pin(&self) {
        self.shared.tenancy.pin();
    }

    /// Whether somebody beside the registry has a reader of it, or there has been a read that nobody has noted yet.
    pub(super) fn in_use(&self) -> bool {
        self.shared.status.receiver_count() > 1 || self.shared.tenancy.is_marked()
    }

    pub(super) fn tenancy(&self) -> &Tenancy {
        &self.shared.tenancy
    }

    /// Asks the reflector to find out how far upstream has come: a quiet resource brings no event that would tell.
    pub fn want_progress(&self) {
        self.shared.wanted.notify_one();
    }

    /// Waits until `until` holds for the status or the deadline has come. Cancel safe; leaves nothing behind.
    pub async fn wait(&self, deadline: Instant, mut until: impl FnMut(&Status) -> bool) -> Waited {
        let mut status = self.status.clone();
        let _waiting = Waiting::enter(&self.shared);
        match timeout_at(deadline, status.wait_for(|status| until(status))).await {
            Ok(Ok(status)) => Waited::Reached(*status),
            // The sender lives in `Shared`, which this reader holds.
            Ok(Err(_)) | Err(_) => Waited::TimedOut,
        }
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    fn enter(shared: &'a Shared) -> Self {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        shared.awaited.notify_one();
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Change ===

impl Change {
    /// Key of the object.
    pub fn key(&self) -> &str {
        match self {
            Self::Add(key, _) | Self::Put(key, _) | Self::Remove(key) => key,
        }
    }

    /// Why it can't be true, for an object that is `held` or not. A repetition can.
    fn contradicts(&self, held: Option<&Object>) -> Option<&'static str> {
        match (self, held) {
            (Self::Add(_, new), Some(held)) if new.rv() != held.rv() || new.uid() != held.uid() => Some("added_known"),
            (Self::Put(..), None) => Some("modified_unknown"),
            (Self::Remove(_), None) => Some("deleted_unknown"),
            _ => None,
        }
    }
}

// === impl Relist ===

impl Relist {
    /// Adds one object of the load.
    pub fn stage(&mut self, key: &str, object: Object) {
        let unchanged =
            self.live.objects.get_key_value(key).filter(|(_, held)| {
                held.rv() == object.rv() && held.uid() == object.uid() && held.size() == object.size()
            });
        let (key, object, cost) = match unchanged {
            Some((key, held)) => (key.clone(), held.clone(), budget::PLACE),
            None => {
                let cost = contents::memory(key, &object);
                (Arc::from(key), Arc::new(object), cost)
            }
        };
        self.own += cost;
        let double = self.fresh.insert(&key, object);
        self.let_go(&key, double);
    }

    /// An object went away while the load was under way.
    pub fn unstage(&mut self, key: &str) {
        let gone = self.fresh.remove(key);
        self.let_go(key, gone);
    }

    /// Objects gathered so far.
    pub fn len(&self) -> usize {
        self.fresh.objects.len()
    }

    /// Whether nothing has been gathered.
    pub fn is_empty(&self) -> bool {
        self.fresh.objects.is_empty()
    }

    fn let_go(&mut self, key: &str, object: Option<Arc<Object>>) {
        if let Some(object) = object {
            let shared = self.live.objects.get(key).is_some_and(|held| Arc::ptr_eq(held, &object));
            self.own -= if shared { budget::PLACE } else { contents::memory(key, &object) };
        }
        self.shared.tenancy.loading.resize(self.own);
    }
}

impl Drop for Relist {
    fn drop(&mut self) {
        self.shared.tenancy.loading.resize(0);
    }
}

#[cfg(test)]
mod tests;
