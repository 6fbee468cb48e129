//! The body of a cached LIST, stitched from the objects' own bytes while it is sent.
//!
//! It holds one snapshot and a position, writes frames of about 128 KiB (one frame per item costs 2-4 times as much,
//! `crates.md` section 6) and yields after a bounded number of objects looked at, so that a selector that matches
//! nothing in a large store holds up no other request.

use std::{collections::VecDeque, ops::Bound, sync::Arc};

use bytes::{Bytes, BytesMut};

use crate::{
    api::{gvr::Scope, label_selector::LabelSelector},
    store::{Object, Snapshot},
};

const FRAME: usize = 128 << 10;

/// Objects looked at before other work gets its turn.
pub(crate) const LOOKED_AT: usize = 4096;

/// What a LIST selects.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// Namespace, or all.
    pub(crate) scope: Scope,
    /// Labels wanted.
    pub(crate) labels: LabelSelector,
    /// `metadata.name`/`metadata.namespace` requirements.
    pub(crate) fields: crate::api::field_selector::FieldSelector,
}

/// A LIST being written.
#[derive(Debug)]
pub(crate) struct ListBody {
    snapshot: Arc<Snapshot>,
    selection: Selection,
    /// Key after which to go on; none before the first object.
    after: Option<Arc<str>>,
    end: Bound<Arc<str>>,
    written: usize,
    state: State,
    ready: VecDeque<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Items,
    Done,
}

/// What one step gave.
pub(crate) enum Step {
    /// A frame.
    Frame(Bytes),
    /// Nothing yet, but more to look at: come back after others had their turn.
    Yield,
    /// The body is complete.
    Done,
}

// === impl Selection ===

impl Selection {
    /// Whether the object of that key is wanted.
    pub(crate) fn matches(&self, key: &str, object: &Object) -> bool {
        let (namespace, name) = key.rsplit_once('/').unwrap_or(("", key));
        self.fields.matches_metadata(namespace, name) && self.labels.matches(|label| object.label(label))
    }

    /// Whether everything in the scope is wanted.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
}

// === impl ListBody ===

impl ListBody {
    pub(crate) fn new(snapshot: Arc<Snapshot>, selection: Selection) -> Self {
        let end = match &selection.scope {
            Scope::All => Bound::Unbounded,
            Scope::Namespace(ns) => Bound::Excluded(Arc::from(format!("{ns}0"))),
        };
        Self { snapshot, selection, after: None, end, written: 0, state: State::Head, ready: VecDeque::new() }
    }

    /// Objects written so far.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Writes on, one frame at most.
    pub(crate) fn step(&mut self) -> Step {
        if let Some(frame) = self.ready.pop_front() {
            return Step::Frame(frame);
        }
        if self.state == State::Done {
            return Step::Done;
        }
        let mut out = BytesMut::with_capacity(FRAME + (16 << 10));
        let snapshot = self.snapshot.clone();
        let form = &*snapshot.form;
        if self.state == State::Head {
            out.extend_from_slice(&form.envelope(snapshot.rv).head());
            self.state = State::Items;
        }
        let everything = self.selection.is_everything();
        let mut looked_at = 0;
        let mut last = None;
        for (key, object) in snapshot.range((self.start(), self.end.clone())) {
            looked_at += 1;
            last = Some(key);
            if everything || self.selection.matches(key, object) {
                if self.written > 0 {
                    out.extend_from_slice(b",");
                }
                self.written += 1;
                object.put_list_item(form, &mut out);
            }
            if out.len() >= FRAME || looked_at >= LOOKED_AT {
                self.after = Some(key.clone());
                return if out.is_empty() { Step::Yield } else { Step::Frame(out.freeze()) };
            }
        }
        self.after = last.cloned().or(self.after.take());
        out.extend_from_slice(&form.envelope(snapshot.rv).tail());
        self.state = State::Done;
        Step::Frame(out.freeze())
    }

    /// Puts a frame back that was written ahead.
    pub(crate) fn push_back(&mut self, frame: Bytes) {
        self.ready.push_back(frame);
    }

    fn start(&self) -> Bound<Arc<str>> {
        match (&self.after, &self.selection.scope) {
            (Some(key), _) => Bound::Excluded(key.clone()),
            (None, Scope::All) => Bound::Unbounded,
            (None, Scope::Namespace(ns)) => Bound::Included(format!("{ns}/").into()),
        }
    }
}
