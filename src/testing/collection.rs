//! The objects of one resource, and how they came to be: a bounded history with the state after each change.
//!
//! Maps are persistent, so keeping every state costs one path a change, and a reader keeps its own for nothing.

use std::{collections::VecDeque, sync::Arc};

use imbl::OrdMap;

use super::{objects::Object, resource::Resource};

/// Objects by key, in upstream's order.
pub(super) type Objects = OrdMap<Arc<str>, Arc<Object>>;

/// All there is of one resource.
#[derive(Clone)]
pub(super) struct Collection {
    pub(super) resource: Arc<Resource>,
    pub(super) objects: Objects,
    history: VecDeque<Change>,
    /// The smallest revision that is still known, and the state there.
    pub(super) oldest: u64,
    base: Objects,
    /// How many bookmarks were asked for so far.
    pub(super) bookmarks: u64,
}

/// One step of a collection's history.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) rv: u64,
    /// The state after the change, or for a deletion the last state under the deletion's revision.
    pub(super) object: Arc<Object>,
    pub(super) previous: Option<Arc<Object>>,
    pub(super) deleted: bool,
    after: Objects,
}

/// The state or the events asked for are no longer kept; watches may start from `oldest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) oldest: u64,
}

// === impl Collection ===

impl Collection {
    pub(super) fn new(resource: Resource) -> Self {
        Self {
            resource: Arc::new(resource),
            objects: Objects::new(),
            history: VecDeque::new(),
            oldest: 1,
            base: Objects::new(),
            bookmarks: 0,
        }
    }

    pub(super) fn put(&mut self, object: Arc<Object>, history: usize) -> Arc<Object> {
        let previous = self.objects.insert(object.key.clone(), object.clone());
        self.remember(object.clone(), previous, false, history);
        object
    }

    pub(super) fn drop_object(&mut self, last: Arc<Object>, history: usize) {
        let previous = self.objects.remove(&*last.key);
        self.remember(last, previous, true, history);
    }

    /// The objects exactly as they were at `revision`.
    pub(super) fn at(&self, revision: u64) -> Result<Objects, Gone> {
        if revision < self.oldest {
            return Err(Gone { oldest: self.oldest });
        }
        Ok(match self.history.partition_point(|c| c.rv <= revision) {
            0 => self.base.clone(),
            n => self.history[n - 1].after.clone(),
        })
    }

    /// At most `limit` changes after `after`, and whether these are all.
    pub(super) fn since(&self, after: u64, limit: usize) -> Result<(Vec<Change>, bool), Gone> {
        if after < self.oldest {
            return Err(Gone { oldest: self.oldest });
        }
        let from = self.history.partition_point(|c| c.rv <= after);
        let changes: Vec<Change> = self.history.range(from..).take(limit).cloned().collect();
        let complete = from + changes.len() == self.history.len();
        Ok((changes, complete))
    }

    fn remember(&mut self, object: Arc<Object>, previous: Option<Arc<Object>>, deleted: bool, history: usize) {
        let after = self.objects.clone();
        self.history.push_back(Change { rv: object.rv, object, previous, deleted, after });
        while self.history.len() > history {
            if let Some(gone) = self.history.pop_front() {
                self.oldest = gone.rv;
                self.base = gone.after;
            }
        }
    }

    /// Drops the history; `revision` is the oldest one known from now on.
    pub(super) fn forget(&mut self, revision: u64) {
        self.history.clear();
        self.oldest = revision;
        self.base = self.objects.clone();
    }
}
