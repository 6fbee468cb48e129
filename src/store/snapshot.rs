//! A consistent state of one store: its objects in upstream's order, and the version at which they are complete.

use std::{ops::Bound, sync::Arc};

use imbl::OrdMap;

use crate::api::{
    gvr::Scope,
    json::{list::ListEnvelope, normal},
    resource_version::ResourceVersion,
};

use super::Object;

/// How upstream writes this resource: what a LIST's envelope looks like and what its items leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListForm {
    /// `kind` of the list, from a real response: custom resources may call it anything.
    pub list_kind: String,
    /// `apiVersion` of list and items.
    pub api_version: String,
    /// Custom resources have sorted keys everywhere and keep kind and apiVersion in list items.
    pub custom: bool,
    /// `Warning` headers upstream sends with every answer of this resource (deprecated versions).
    pub warnings: Vec<String>,
    /// Length of `{"kind":"…","apiVersion":"…",` in the stored form of a built-in object, 0 for custom ones.
    prefix: usize,
}

/// Objects by key, `namespace/name` compared bytewise (which is upstream's own order), complete at `rv`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Everything up to this version has been applied.
    pub rv: ResourceVersion,
    /// How to write it.
    pub form: Arc<ListForm>,
    pub(super) objects: OrdMap<Arc<str>, Arc<Object>>,
    pub(super) bytes: u64,
}

// === impl ListForm ===

impl ListForm {
    /// `item_kind` is needed to know what list items leave out; it is ignored for custom resources.
    pub fn new(list_kind: String, item_kind: &str, api_version: String, custom: bool) -> Self {
        let prefix = if custom { 0 } else { normal::prefix(item_kind, &api_version).len() };
        Self { list_kind, api_version, custom, warnings: Vec::new(), prefix }
    }

    /// The text around the items of a complete list at `rv`.
    pub fn envelope(&self, rv: ResourceVersion) -> ListEnvelope {
        ListEnvelope {
            kind: self.list_kind.clone(),
            api_version: self.api_version.clone(),
            resource_version: rv.to_string(),
            continue_token: None,
            remaining_item_count: None,
            custom: self.custom,
        }
    }

    pub(super) fn item_prefix(&self) -> usize {
        self.prefix
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// The object of that key.
    pub fn get(&self, key: &str) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the store is known to be empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Payload bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The objects of `scope` in upstream's order.
    pub fn scoped(&self, scope: &Scope) -> impl Iterator<Item = (&Arc<str>, &Arc<Object>)> + use<'_> {
        let (from, until): (Bound<Arc<str>>, Bound<Arc<str>>) = match scope {
            Scope::All => (Bound::Unbounded, Bound::Unbounded),
            // '0' is the byte after '/': the range holds exactly the keys that start with `namespace/`.
            Scope::Namespace(ns) => {
                (Bound::Included(format!("{ns}/").into()), Bound::Excluded(format!("{ns}0").into()))
            }
        };
        self.range((from, until))
    }

    /// The objects whose keys lie between two bounds, in upstream's order.
    pub fn range(
        &self,
        bounds: (Bound<Arc<str>>, Bound<Arc<str>>),
    ) -> impl Iterator<Item = (&Arc<str>, &Arc<Object>)> + use<'_> {
        self.objects.range(bounds)
    }
}
