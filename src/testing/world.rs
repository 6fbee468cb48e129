//! The state behind the server: objects of every resource, one revision counter, and a bounded history.
//!
//! Every change takes the next revision, as every etcd transaction does. Collections are persistent maps, so a list or
//! a page in progress keeps its own state while writers go on, and the history can hold the state after each change:
//! that is what exact reads and continue tokens are answered from.
//!
//! It does not know about HTTP; `write` turns requests into calls of this module.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    collection::{Change, Collection, Gone, Objects},
    json::Node,
    objects::{self, Object},
    resource::Resource,
};
use crate::api::gvr::Gvr;

/// A cheap handle to the state of one server; clones share it.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

/// A copy of everything at one moment, to go back to: an etcd backup.
pub struct Backup(State);

/// Why a write was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Nothing is served under this name.
    #[error("resource {0:?} is not registered in this world")]
    UnknownResource(String),
    /// The object has no `metadata.name`, or no namespace although its kind needs one.
    #[error("object has no metadata.{0}")]
    NoName(&'static str),
    /// The key is taken.
    #[error("{0:?} already exists")]
    Exists(String),
    /// No such object.
    #[error("{0:?} not found")]
    NotFound(String),
    /// The object carries a resource version that is not the stored one.
    #[error("{key:?} is at resource version {stored}, the write was based on {given}")]
    Conflict {
        /// Key of the object.
        key: String,
        /// What the write named.
        given: String,
        /// What is stored.
        stored: u64,
    },
    /// The text is not JSON.
    #[error("body is not JSON: {0}")]
    NotJson(String),
}

/// A collection at one moment.
#[derive(Clone)]
pub(super) struct View {
    pub(super) resource: Arc<Resource>,
    pub(super) objects: Objects,
    /// The revision the state belongs to.
    pub(super) revision: u64,
}

/// What a watch finds when it looks for news.
pub(super) struct News {
    pub(super) changes: Vec<Change>,
    /// Everything up to here is in `changes` or was before.
    pub(super) revision: u64,
    /// How many bookmarks were asked for so far.
    pub(super) bookmarks: u64,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    history: usize,
}

#[derive(Clone)]
struct State {
    revision: u64,
    /// Bumped by a restore, so that watches of the time before end.
    epoch: u64,
    collections: Vec<Collection>,
}

// === impl World ===

impl World {
    /// A world without objects. `history` bounds the changes kept per resource.
    pub(super) fn new(resources: Vec<Resource>, history: usize) -> Self {
        let state = State { revision: 1, epoch: 0, collections: resources.into_iter().map(Collection::new).collect() };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(0), history }) }
    }

    /// Serves one more resource, as creating its CRD would. Replaces nothing that is there.
    pub fn register(&self, resource: Resource) {
        self.change(|state, _| {
            if state.position(|r| r.gvr == resource.gvr).is_none() {
                state.revision += 1;
                let mut collection = Collection::new(resource);
                collection.oldest = state.revision;
                state.collections.push(collection);
            }
        });
    }

    /// Stops serving a resource, as deleting its CRD would. Open watches of it end.
    pub fn unregister(&self, resource: &str) {
        self.change(|state, _| {
            state.revision += 1;
            state.collections.retain(|c| !c.resource.answers_to(resource));
        });
    }

    /// Creates an object; missing uid and creation time are filled in. Returns its resource version.
    ///
    /// # Errors
    /// [`WriteError::Exists`] and the errors of a malformed object.
    pub fn create(&self, resource: &str, object: impl Into<Node>) -> Result<u64, WriteError> {
        let object = object.into();
        self.with(resource, |state, at, history| state.create(at, object, history)).map(|o| o.rv)
    }

    /// Replaces an object. A `metadata.resourceVersion` in it must be the stored one; without one the write always wins.
    ///
    /// # Errors
    /// [`WriteError::NotFound`], [`WriteError::Conflict`] and the errors of a malformed object.
    pub fn update(&self, resource: &str, object: impl Into<Node>) -> Result<u64, WriteError> {
        let object = object.into();
        let key = key_of(&object)?;
        self.with(resource, |state, at, history| state.update(at, &key, &object, history)).map(|o| o.rv)
    }

    /// Applies a JSON merge patch to `namespace/name` (or `name`). Returns the new resource version.
    ///
    /// # Errors
    /// [`WriteError::NotFound`] where there is no such object.
    pub fn patch(&self, resource: &str, key: &str, patch: impl Into<Node>) -> Result<u64, WriteError> {
        let patch = patch.into();
        let write = |state: &mut State, at, history| {
            let mut node = state.stored(at, key)?.node();
            node.merge(&patch);
            node.object_mut("metadata").remove("resourceVersion");
            state.update(at, key, &node, history)
        };
        self.with(resource, write).map(|o| o.rv)
    }

    /// Changes an annotation of an object, so that watchers see one event. Returns the new resource version.
    ///
    /// # Errors
    /// [`WriteError::NotFound`] where there is no such object.
    pub fn touch(&self, resource: &str, key: &str) -> Result<u64, WriteError> {
        let stamp = format!("{}", self.revision() + 1);
        self.patch(resource, key, serde_json::json!({"metadata": {"annotations": {"touched": stamp}}}))
    }

    /// Deletes an object at once, finalizers or not. Returns the revision of the deletion.
    ///
    /// # Errors
    /// [`WriteError::NotFound`] where there is no such object.
    pub fn delete(&self, resource: &str, key: &str) -> Result<u64, WriteError> {
        self.with(resource, |state, at, history| state.delete(at, key, history)).map(|o| o.rv)
    }

    /// The exact text of an object, as a GET answers it but for the final newline.
    pub fn text(&self, resource: &str, key: &str) -> Option<Bytes> {
        self.object(resource, key).map(|o| o.text.clone())
    }

    /// An object as stored.
    pub fn object(&self, resource: &str, key: &str) -> Option<Arc<Object>> {
        let state = self.shared.state.lock();
        let at = state.position(|r| r.answers_to(resource))?;
        state.collections[at].objects.get(key).cloned()
    }

    /// All keys of a resource in upstream's order.
    pub fn keys(&self, resource: &str) -> Vec<Arc<str>> {
        let objects = {
            let state = self.shared.state.lock();
            state.position(|r| r.answers_to(resource)).map(|at| state.collections[at].objects.clone())
        };
        objects.unwrap_or_default().keys().cloned().collect()
    }

    /// How many objects of a resource there are.
    pub fn len(&self, resource: &str) -> usize {
        let state = self.shared.state.lock();
        state.position(|r| r.answers_to(resource)).map_or(0, |at| state.collections[at].objects.len())
    }

    /// The global revision: what a consistent list carries.
    pub fn revision(&self) -> u64 {
        self.shared.state.lock().revision
    }

    /// Moves the global revision without changing anything served here, as writes of other resources do.
    pub fn advance(&self, revisions: u64) -> u64 {
        self.change(|state, _| {
            state.revision += revisions;
            state.revision
        })
    }

    /// Sends a bookmark with the current revision to every watch of the resource that asked for bookmarks.
    pub fn bookmark(&self, resource: &str) {
        self.change(|state, _| {
            for collection in state.collections.iter_mut().filter(|c| c.resource.answers_to(resource)) {
                collection.bookmarks += 1;
            }
        });
    }

    /// Forgets all history: older resource versions and continue tokens are answered with 410 from now on.
    pub fn compact(&self) {
        self.change(|state, _| {
            state.revision += 1;
            let revision = state.revision;
            state.collections.iter_mut().for_each(|c| c.forget(revision));
        });
    }

    /// A copy of everything, for [`World::restore`].
    pub fn backup(&self) -> Backup {
        Backup(self.shared.state.lock().clone())
    }

    /// Goes back to `backup`, revision included: what clients know is now in the future. Open watches end.
    pub fn restore(&self, backup: &Backup) {
        self.change(|state, _| {
            let epoch = state.epoch + 1;
            *state = State { epoch, ..backup.0.clone() };
        });
    }

    // What the server needs.

    pub(super) fn resources(&self) -> Vec<Arc<Resource>> {
        self.shared.state.lock().collections.iter().map(|c| c.resource.clone()).collect()
    }

    pub(super) fn resource(&self, gvr: &Gvr) -> Option<Arc<Resource>> {
        let state = self.shared.state.lock();
        state.position(|r| r.gvr == *gvr).map(|at| state.collections[at].resource.clone())
    }

    pub(super) fn view(&self, gvr: &Gvr) -> Option<View> {
        let state = self.shared.state.lock();
        let collection = &state.collections[state.position(|r| r.gvr == *gvr)?];
        Some(View {
            resource: collection.resource.clone(),
            objects: collection.objects.clone(),
            revision: state.revision,
        })
    }

    /// The collection exactly as it was at `revision`.
    pub(super) fn view_at(&self, gvr: &Gvr, revision: u64) -> Option<Result<View, Gone>> {
        let state = self.shared.state.lock();
        let collection = &state.collections[state.position(|r| r.gvr == *gvr)?];
        let resource = collection.resource.clone();
        Some(collection.at(revision).map(|objects| View { resource, objects, revision }))
    }

    /// Changes after `after`, at most `limit` of them. `None` when the resource or the epoch is over.
    pub(super) fn news(&self, gvr: &Gvr, epoch: u64, after: u64, limit: usize) -> Option<Result<News, Gone>> {
        let state = self.shared.state.lock();
        if state.epoch != epoch {
            return None;
        }
        let collection = &state.collections[state.position(|r| r.gvr == *gvr)?];
        let (changes, complete) = match collection.since(after, limit) {
            Ok(found) => found,
            Err(gone) => return Some(Err(gone)),
        };
        let revision = match changes.last() {
            Some(last) if !complete => last.rv,
            _ => state.revision,
        };
        Some(Ok(News { changes, revision, bookmarks: collection.bookmarks }))
    }

    pub(super) fn epoch(&self) -> u64 {
        self.shared.state.lock().epoch
    }

    /// Signals every change of anything.
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Waits until the global revision has reached `revision`; whether it did within `limit`.
    pub(super) async fn reached(&self, revision: u64, limit: Duration) -> bool {
        let mut changed = self.changed();
        let wait = async {
            while self.revision() < revision {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }

    pub(super) fn create_in(&self, gvr: &Gvr, object: Node) -> Result<Arc<Object>, WriteError> {
        self.with(&gvr.to_string(), |state, at, history| state.create(at, object, history))
    }

    /// Replaces what `edit` makes of the stored object, in one step; `Ok(None)` from `edit` deletes it.
    pub(super) fn edit<E: From<WriteError>>(
        &self,
        gvr: &Gvr,
        key: &str,
        edit: impl FnOnce(&Object, &Resource) -> Result<Option<Node>, E>,
    ) -> Result<Arc<Object>, E> {
        self.change(|state, history| {
            let at = state.find(&gvr.to_string())?;
            let stored = state.stored(at, key)?;
            match edit(&stored, &state.collections[at].resource)? {
                Some(node) => Ok(state.update(at, key, &node, history)?),
                None => Ok(state.delete(at, key, history)?),
            }
        })
    }

    /// Puts many ready objects in at once. `make` gets the resource and the first revision to use.
    pub(super) fn load(
        &self,
        resource: &str,
        make: impl FnOnce(&Resource, u64) -> Vec<Object>,
    ) -> Result<usize, WriteError> {
        self.change(|state, history| {
            let at = state.find(resource)?;
            let made = make(&state.collections[at].resource.clone(), state.revision + 1);
            let count = made.len();
            // More than the history holds would push itself out: start a new history instead, as a restart would.
            let quietly = count > history;
            for object in made {
                let object = Arc::new(object);
                state.revision = state.revision.max(object.rv);
                if quietly {
                    state.collections[at].objects.insert(object.key.clone(), object);
                } else {
                    state.collections[at].put(object, history);
                }
            }
            if quietly {
                let revision = state.revision;
                state.collections[at].forget(revision);
            }
            Ok(count)
        })
    }

    fn with<T>(
        &self,
        resource: &str,
        write: impl FnOnce(&mut State, usize, usize) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        self.change(|state, history| {
            let at = state.find(resource)?;
            write(state, at, history)
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State, usize) -> T) -> T {
        let out = change(&mut self.shared.state.lock(), self.shared.history);
        self.shared.changed.send_modify(|n| *n += 1);
        out
    }
}

// === impl State ===

impl State {
    fn position(&self, is: impl Fn(&Resource) -> bool) -> Option<usize> {
        self.collections.iter().position(|c| is(&c.resource))
    }

    fn find(&self, name: &str) -> Result<usize, WriteError> {
        self.position(|r| r.answers_to(name)).ok_or_else(|| WriteError::UnknownResource(name.to_owned()))
    }

    fn stored(&self, at: usize, key: &str) -> Result<Arc<Object>, WriteError> {
        self.collections[at].objects.get(key).cloned().ok_or_else(|| WriteError::NotFound(key.to_owned()))
    }

    fn create(&mut self, at: usize, mut object: Node, history: usize) -> Result<Arc<Object>, WriteError> {
        let key = key_of(&object)?;
        let resource = self.collections[at].resource.clone();
        if resource.namespaced && !key.contains('/') {
            return Err(WriteError::NoName("namespace"));
        }
        if self.collections[at].objects.contains_key(&*key) {
            return Err(WriteError::Exists(key));
        }
        complete(&resource, &mut object);
        self.revision += 1;
        Ok(self.collections[at].put(Arc::new(Object::new(&resource, &object, self.revision)), history))
    }

    fn update(&mut self, at: usize, key: &str, object: &Node, history: usize) -> Result<Arc<Object>, WriteError> {
        let stored = self.stored(at, key)?;
        match object.str_at(&["metadata", "resourceVersion"]) {
            Some(given) if !given.is_empty() && given != stored.rv.to_string() => {
                return Err(WriteError::Conflict { key: key.to_owned(), given: given.to_owned(), stored: stored.rv });
            }
            _ => {}
        }
        let resource = self.collections[at].resource.clone();
        let mut object = object.clone();
        let before = stored.node();
        for kept in ["uid", "creationTimestamp", "managedFields", "generation"] {
            if let Some(value) = before.at(&["metadata", kept]) {
                let meta = object.object_mut("metadata");
                if kept != "managedFields" || meta.get(kept).is_none() {
                    meta.set(kept, value.clone());
                }
            }
        }
        if let (true, Some(Node::Number(n))) = (resource.generation, before.at(&["metadata", "generation"]))
            && object.get("spec") != before.get("spec")
        {
            let next = n.parse::<u64>().unwrap_or_default() + 1;
            object.object_mut("metadata").set("generation", Node::Number(next.to_string()));
        }
        // A write that changes nothing keeps its resource version and makes no event.
        if Object::new(&resource, &object, stored.rv).text == stored.text {
            return Ok(stored);
        }
        self.revision += 1;
        Ok(self.collections[at].put(Arc::new(Object::new(&resource, &object, self.revision)), history))
    }

    fn delete(&mut self, at: usize, key: &str, history: usize) -> Result<Arc<Object>, WriteError> {
        let stored = self.stored(at, key)?;
        self.revision += 1;
        let last = Arc::new(stored.with_rv(self.revision));
        self.collections[at].drop_object(last.clone(), history);
        Ok(last)
    }
}

/// The key an object's own metadata names.
fn key_of(object: &Node) -> Result<String, WriteError> {
    let name = object.str_at(&["metadata", "name"]).filter(|n| !n.is_empty()).ok_or(WriteError::NoName("name"))?;
    Ok(objects::key(object.str_at(&["metadata", "namespace"]).unwrap_or_default(), name).to_string())
}

/// Fills in what upstream sets on creation.
fn complete(resource: &Resource, object: &mut Node) {
    let meta = object.object_mut("metadata");
    if meta.get("uid").is_none() {
        meta.set("uid", Node::String(objects::uid()));
    }
    if meta.get("creationTimestamp").is_none_or(|t| *t == Node::Null) {
        meta.set("creationTimestamp", Node::String(objects::now()));
    }
    if resource.generation {
        meta.set("generation", Node::Number("1".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn world(history: usize) -> World {
        World::new(Resource::usual(), history)
    }

    fn config_map(name: &str) -> serde_json::Value {
        json!({"metadata": {"namespace": "x", "name": name}, "data": {"a": "1"}})
    }

    #[test]
    fn every_change_takes_the_next_revision() {
        let world = world(100);
        let created = world.create("configmaps", config_map("a")).unwrap();
        assert_eq!(created, world.revision());
        assert_eq!(world.patch("configmaps", "x/a", json!({"data": {"a": "2"}})), Ok(created + 1));
        assert_eq!(world.patch("configmaps", "x/a", json!({"data": {"a": "2"}})), Ok(created + 1), "no-op");
        assert_eq!(world.delete("configmaps", "x/a"), Ok(created + 2));
        assert_eq!(world.delete("configmaps", "x/a"), Err(WriteError::NotFound("x/a".into())));
        assert_eq!(world.revision(), created + 2);
    }

    #[test]
    fn history_answers_exact_states_until_it_is_forgotten() {
        let world = world(100);
        let gvr = Resource::config_maps().gvr;
        let first = world.create("configmaps", config_map("a")).unwrap();
        let second = world.create("configmaps", config_map("b")).unwrap();
        let count = |rv| world.view_at(&gvr, rv).unwrap().map(|v| v.objects.len());
        assert_eq!((count(first - 1), count(first), count(second)), (Ok(0), Ok(1), Ok(2)));
        let news = world.news(&gvr, 0, first, 10).unwrap().unwrap_or_else(|g| panic!("{g:?}"));
        assert_eq!(news.changes.len(), 1);
        assert_eq!(&*news.changes[0].object.key, "x/b");
        world.compact();
        let oldest = world.revision();
        assert_eq!(count(second), Err(Gone { oldest }));
        assert_eq!(count(oldest), Ok(2));
    }

    #[test]
    fn history_is_bounded() {
        let world = world(3);
        world.create("configmaps", config_map("a")).unwrap();
        let rvs: Vec<u64> = (0..5).map(|_| world.touch("configmaps", "x/a").unwrap()).collect();
        let gvr = Resource::config_maps().gvr;
        assert_eq!(world.news(&gvr, 0, rvs[0], 10).unwrap().err(), Some(Gone { oldest: rvs[1] }));
        assert_eq!(world.news(&gvr, 0, rvs[1], 10).unwrap().map(|n| n.changes.len()).ok(), Some(3));
    }

    #[test]
    fn a_restore_takes_the_revision_back() {
        let world = world(10);
        world.create("configmaps", config_map("a")).unwrap();
        let backup = world.backup();
        let rv = world.create("configmaps", config_map("b")).unwrap();
        world.restore(&backup);
        assert_eq!((world.len("configmaps"), world.revision()), (1, rv - 1));
        assert!(world.news(&Resource::config_maps().gvr, 0, 1, 10).is_none(), "watches of the old epoch end");
    }

    #[test]
    fn spec_changes_count_generations() {
        let world = world(10);
        world.create("widgets", json!({"metadata": {"namespace": "x", "name": "w"}, "spec": {"size": 1}})).unwrap();
        world.patch("widgets", "x/w", json!({"status": {"ok": true}})).unwrap();
        let generation = || world.object("widgets", "x/w").unwrap().node().at(&["metadata", "generation"]).cloned();
        assert_eq!(generation(), Some(Node::Number("1".into())));
        world.patch("widgets", "x/w", json!({"spec": {"size": 2}})).unwrap();
        assert_eq!(generation(), Some(Node::Number("2".into())));
    }
}
