//! The folder's door: one [`Writer`] that may change a store, any number of [`Reader`]s that may look.
//!
//! ```text
//! reflector -> Writer::{commit, apply} -> ArcSwap<Snapshot>  -> Reader::snapshot   (never waits, never sees half)
//!                                      -> watch<Status>      -> Reader::wait       (wakes on a predicate over a value)
//! ```
//!
//! The snapshot is published before the status, so whoever was woken by a version finds it in the snapshot. Dropping the
//! writer publishes [`Phase::Stopped`], so no reader waits for a reflector that is gone.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use crate::api::resource_version::ResourceVersion;

use super::{Digest, Life, ListForm, Object, Phase, Progress, Snapshot, Status};

/// The only way to change a store. Not `Clone`: the type system says who writes.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    objects: OrdMap<Arc<str>, Arc<Object>>,
    bytes: u64,
    digest: Digest,
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
    live: OrdMap<Arc<str>, Arc<Object>>,
    fresh: OrdMap<Arc<str>, Arc<Object>>,
    bytes: u64,
    digest: Digest,
}

/// One event of a watch.
#[derive(Debug)]
pub enum Change {
    /// Added or modified.
    Put(String, Object),
    /// Deleted.
    Remove(String),
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
    distrusted: Notify,
}

/// A complete state that a client has been shown.
#[derive(Clone, Copy, Debug)]
struct Claim {
    digest: Digest,
    rv: ResourceVersion,
}

/// Makes an empty store in [`Phase::Syncing`].
pub fn pair() -> (Writer, Reader) {
    let (status, receiver) = watch::channel(Status { phase: Phase::Syncing, rv: ResourceVersion(0) });
    let shared = Arc::new(Shared {
        snapshot: ArcSwapOption::empty(),
        status,
        progress: Progress::new(),
        life: Life::new(),
        wanted: Notify::new(),
        claim: Mutex::default(),
        claimed: Notify::new(),
        distrusted: Notify::new(),
    });
    (
        Writer { shared: shared.clone(), objects: OrdMap::new(), bytes: 0, digest: Digest::default(), form: None },
        Reader { shared, status: receiver },
    )
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
            Some(claim) if claim.digest == self.digest && claim.rv > self.rv() => self.publish(claim.rv),
            _ => Ok(()),
        }
    }

    /// Resolves when a reader has found that upstream's history is another one now. Cancel safe.
    pub fn distrusted(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        async move { shared.distrusted.notified().await }
    }

    /// Starts to gather a complete load.
    pub fn begin_relist(&self) -> Relist {
        self.shared.progress.restart();
        Relist { live: self.objects.clone(), fresh: OrdMap::new(), bytes: 0, digest: Digest::default() }
    }

    /// Publishes a complete load as one step: objects it lacks are gone, readers see the old state or the new.
    pub fn commit(&mut self, relist: Relist, form: ListForm, rv: ResourceVersion) -> Result<(), Error> {
        let held = self.rv();
        if rv < held {
            return Err(Error::WentBack { got: rv, held });
        }
        let form = Arc::new(form);
        self.objects = relist.fresh;
        self.bytes = relist.bytes;
        self.digest = relist.digest;
        self.form = Some(form);
        self.publish(rv)
    }

    /// Applies events in order and publishes once, at `rv`.
    ///
    /// After a claim the published version may be ahead of the stream. Events from before it are gathered unpublished: they
    /// lead back to the claimed state (an object that came and went), and on the way the store would show what was before
    /// the version it names.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>, rv: ResourceVersion) -> Result<(), Error> {
        for change in changes {
            match change {
                Change::Put(key, object) => {
                    self.bytes += object.size() as u64;
                    self.digest.add(&key, object.rv());
                    let key: Arc<str> = key.into();
                    if let Some(old) = self.objects.insert(key.clone(), Arc::new(object)) {
                        self.bytes -= old.size() as u64;
                        self.digest.remove(&key, old.rv());
                    }
                }
                Change::Remove(key) => {
                    if let Some(old) = self.objects.remove(key.as_str()) {
                        self.bytes -= old.size() as u64;
                        self.digest.remove(&key, old.rv());
                    }
                }
            }
        }
        if rv < self.rv() { Ok(()) } else { self.publish(rv) }
    }

    /// Upstream refuses our reads with this code. What was held is dropped: rights that are gone are gone.
    pub fn refuse(&mut self, code: u16) {
        self.empty(Phase::Refused(code));
    }

    /// This resource can't be cached; `reason` says why.
    pub fn unservable(&mut self, reason: &'static str) {
        self.empty(Phase::Unservable(reason));
    }

    /// Forgets everything, version included: upstream's history is another one now.
    pub fn reset(&mut self) {
        self.empty(Phase::Syncing);
    }

    fn empty(&mut self, phase: Phase) {
        self.objects = OrdMap::new();
        self.bytes = 0;
        self.digest = Digest::default();
        *self.shared.claim.lock() = None;
        self.shared.snapshot.store(None);
        self.shared.status.send_replace(Status { phase, rv: ResourceVersion(0) });
    }

    fn publish(&mut self, rv: ResourceVersion) -> Result<(), Error> {
        let Some(form) = self.form.clone() else { return Err(Error::NotLoaded) };
        let rv =
            self.shared.claim.lock().filter(|claim| claim.digest == self.digest).map_or(rv, |claim| rv.max(claim.rv));
        let snapshot = Snapshot { rv, form, objects: self.objects.clone(), bytes: self.bytes };
        self.shared.snapshot.store(Some(Arc::new(snapshot)));
        self.shared.status.send_replace(Status { phase: Phase::Synced, rv });
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
        self.shared.distrusted.notify_one();
    }

    /// Asks the reflector to find out how far upstream has come: a quiet resource brings no event that would tell.
    pub fn want_progress(&self) {
        self.shared.wanted.notify_one();
    }

    /// Waits until `until` holds for the status or the deadline has come. Cancel safe; leaves nothing behind.
    pub async fn wait(&self, deadline: Instant, mut until: impl FnMut(&Status) -> bool) -> Waited {
        let mut status = self.status.clone();
        match timeout_at(deadline, status.wait_for(|status| until(status))).await {
            Ok(Ok(status)) => Waited::Reached(*status),
            // The sender lives in `Shared`, which this reader holds.
            Ok(Err(_)) | Err(_) => Waited::TimedOut,
        }
    }
}

// === impl Relist ===

impl Relist {
    /// Adds one object of the load.
    pub fn stage(&mut self, key: &str, object: Object) {
        let unchanged = self
            .live
            .get_key_value(key)
            .filter(|(_, held)| held.rv() == object.rv() && held.uid() == object.uid() && held.size() == object.size());
        let (key, object) = match unchanged {
            Some((key, held)) => (key.clone(), held.clone()),
            None => (Arc::from(key), Arc::new(object)),
        };
        self.bytes += object.size() as u64;
        self.digest.add(&key, object.rv());
        if let Some(double) = self.fresh.insert(key.clone(), object) {
            self.bytes -= double.size() as u64;
            self.digest.remove(&key, double.rv());
        }
    }

    /// An object went away while the load was under way.
    pub fn unstage(&mut self, key: &str) {
        if let Some(gone) = self.fresh.remove(key) {
            self.bytes -= gone.size() as u64;
            self.digest.remove(key, gone.rv());
        }
    }

    /// Objects gathered so far.
    pub fn len(&self) -> usize {
        self.fresh.len()
    }

    /// Whether nothing has been gathered.
    pub fn is_empty(&self) -> bool {
        self.fresh.is_empty()
    }
}

#[cfg(test)]
mod tests;
