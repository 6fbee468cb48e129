//! One cached object: upstream's own bytes and the little that reads need beside them.
//!
//! The bytes are the body of a GET (`api::json::normal`): the whole object and a final newline, in one allocation of
//! exact size, copied out of the network buffer, which a slice would pin. Nothing is decoded into a tree: uid and labels
//! are ranges of the same bytes. Callers reach the bytes only through methods, so that their representation can change.

use std::{borrow::Cow, ops::Range};

use bytes::{BufMut, Bytes, BytesMut};

use crate::api::{
    json::{ScanError, normal, object},
    resource_version::{NotANumber, ResourceVersion},
};

use super::ListForm;

/// A cached object. Its key is the key of the map that holds it.
#[derive(Debug)]
pub struct Object {
    body: Bytes,
    rv: ResourceVersion,
    uid: Range<u32>,
    labels: Range<u32>,
}

/// Why bytes from upstream can't be kept as an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The text isn't a JSON object as upstream writes it.
    #[error("not a Kubernetes object: {0}")]
    Scan(#[from] ScanError),
    /// A field every stored object has is missing.
    #[error("object {name:?} has no {field}")]
    Missing {
        /// Name of the object, as far as known.
        name: String,
        /// The missing field.
        field: &'static str,
    },
    /// It is of another kind than asked for.
    #[error("object {name:?} is {found:?}, expected {wanted:?}")]
    Kind {
        /// Name of the object.
        name: String,
        /// What it says it is.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// Versions of this resource can't be ordered.
    #[error("object {name:?}: {source}")]
    Version {
        /// Name of the object.
        name: String,
        /// What the version was.
        #[source]
        source: NotANumber,
    },
}

// === impl Object ===

impl Object {
    /// Reads a stored form (`api::json::normal`) and gives the object with its key, `namespace/name` or `name`.
    pub fn from_stored(stored: Box<[u8]>) -> Result<(String, Self), ObjectError> {
        Self::of_kind(stored, "", "")
    }

    /// As [`Self::from_stored`], for objects that say what they are: it must be this, unless `kind` is empty.
    pub fn of_kind(stored: Box<[u8]>, kind: &str, api_version: &str) -> Result<(String, Self), ObjectError> {
        let facts = object::scan(&stored)?;
        let (found, of) = (facts.kind.as_deref(), facts.api_version.as_deref());
        if !kind.is_empty() && (found != Some(kind) || of != Some(api_version)) {
            return Err(ObjectError::Kind {
                name: facts.name.as_deref().unwrap_or_default().to_owned(),
                found: format!("{} {}", of.unwrap_or_default(), found.unwrap_or_default()),
                wanted: format!("{api_version} {kind}"),
            });
        }
        let Some(name) = facts.name.as_deref().filter(|name| !name.is_empty()) else {
            return Err(ObjectError::Missing { name: String::new(), field: "metadata.name" });
        };
        let rv = match facts.resource_version.as_deref() {
            Some(text) => text.parse().map_err(|source| ObjectError::Version { name: name.to_owned(), source })?,
            None => {
                return Err(ObjectError::Missing { name: name.to_owned(), field: "metadata.resourceVersion" });
            }
        };
        let key = match facts.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
            _ => name.to_owned(),
        };
        let uid = narrow(facts.uid.as_deref().and_then(|uid| position(&stored, uid)));
        let labels = narrow(facts.labels);
        Ok((key, Self { body: Bytes::from(stored), rv, uid, labels }))
    }

    /// Version of the object.
    pub fn rv(&self) -> ResourceVersion {
        self.rv
    }

    /// Bytes this object's payload takes.
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// The body of a GET: object and newline.
    pub fn get_body(&self) -> Bytes {
        self.body.clone()
    }

    /// Appends the object as it stands in a LIST of `form`.
    pub fn put_list_item(&self, form: &ListForm, out: &mut BytesMut) {
        let (open, text) = normal::list_item(&self.body, form.item_prefix());
        out.put_slice(open);
        out.put_slice(text);
    }

    /// Value of one label.
    pub fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        object::label(self.slice(&self.labels), key)
    }

    /// The object's uid, empty where upstream sent none.
    pub fn uid(&self) -> &str {
        std::str::from_utf8(self.slice(&self.uid)).unwrap_or_default()
    }

    fn slice(&self, range: &Range<u32>) -> &[u8] {
        self.body.get(range.start as usize..range.end as usize).unwrap_or_default()
    }
}

/// Where `part` stands in `whole`, if it is a piece of it: a uid spelled with escapes is not.
fn position(whole: &[u8], part: &str) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let end = start + part.len();
    (end <= whole.len()).then_some(start..end)
}

/// Objects are far below 4 GiB (`--max-frame-bytes`); a range beyond that is treated as absent.
fn narrow(range: Option<Range<usize>>) -> Range<u32> {
    let Some(range) = range else { return 0..0 };
    match (u32::try_from(range.start), u32::try_from(range.end)) {
        (Ok(start), Ok(end)) => start..end,
        _ => 0..0,
    }
}
