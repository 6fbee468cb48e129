//! Bytes of a watch stream -> frames -> what a store applies. Nothing is decoded into a tree.
//!
//! A frame is copied once, into the stored form of its object. Whatever upstream should not have sent is an error that
//! names it: the reflector then loads anew rather than guess.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Deserialize;

use crate::{
    api::{
        json::{
            frames::{EventType, FrameDecoder},
            normal, object,
        },
        resource_version::ResourceVersion,
    },
    store::{Change, Object, ObjectError},
};

use super::purpose::Purpose;

const WHAT: Purpose = Purpose::Watch;

/// What one frame says.
#[derive(Debug)]
pub(super) enum Event {
    /// An object is there (added or modified), or is gone, as of `rv`.
    Change {
        /// What the store does.
        change: Change,
        /// Version of the event.
        rv: ResourceVersion,
    },
    /// Everything up to `rv` has been sent.
    Bookmark(Bookmark),
    /// Upstream ends the stream with a Status.
    Error {
        /// Its code; 410 is an expired start version.
        code: u16,
        /// Its message.
        message: String,
        /// Seconds it asks to wait.
        retry_after: Option<Duration>,
    },
}

/// A bookmark, and what its object tells of how upstream writes this kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bookmark {
    /// Everything up to this version has been sent.
    pub(super) rv: ResourceVersion,
    /// Closes the initial events of a streaming list.
    pub(super) initial_events_end: bool,
    /// Kind of the objects.
    pub(super) kind: String,
    /// Their apiVersion.
    pub(super) api_version: String,
    /// Keys are sorted: a custom resource.
    pub(super) custom: bool,
}

/// A frame that can't be taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Versions of this resource are no numbers.
    #[error("{0}")]
    NotNumbers(String),
    /// Larger than `--max-frame-bytes`.
    #[error("a frame is larger than --max-frame-bytes={limit}")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// An event of another kind of object.
    #[error("{0}")]
    Kind(String),
    /// It is of an older version than what came before it.
    #[error("{what} of version {rv} came after version {after}")]
    Back {
        /// Key of the object, or "a bookmark".
        what: String,
        /// Its version.
        rv: ResourceVersion,
        /// What came before.
        after: ResourceVersion,
    },
    /// The stream ends inside a frame.
    #[error("{0}")]
    Cut(String),
    /// Anything else that is not a watch event.
    #[error("{0}")]
    Junk(String),
}

/// Decodes one watch stream.
#[derive(Debug)]
pub(super) struct Decoder {
    frames: FrameDecoder,
    limit: usize,
    /// What every object is; empty where it is not known.
    kind: Arc<str>,
    api_version: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
    details: Option<Details>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    retry_after_seconds: Option<u64>,
}

// === impl Decoder ===

impl Decoder {
    /// `limit` is the largest frame taken, in bytes; `kind` and `api_version` are those of the objects, where known.
    pub(super) fn new(limit: usize, kind: Arc<str>, api_version: String) -> Self {
        Self { frames: FrameDecoder::new(limit), limit, kind, api_version }
    }

    /// Takes what came from the network.
    pub(super) fn feed(&mut self, chunk: &Bytes) {
        self.frames.feed(chunk);
    }

    /// The next whole frame, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Error> {
        let limit = self.limit;
        let frame = self.frames.next_frame().map_err(|error| match error {
            crate::api::json::frames::FrameError::TooLarge { .. } => Error::TooLarge { limit },
            error => Error::Junk(error.to_string()),
        })?;
        let Some(frame) = frame else { return Ok(None) };
        match frame.kind {
            EventType::Added | EventType::Modified | EventType::Deleted => {
                let stored = normal::from_event_object(frame.object);
                let (key, object) = Object::of_kind(stored, &self.kind, &self.api_version).map_err(object_error)?;
                let rv = object.rv();
                let change = match frame.kind {
                    EventType::Added => Change::Add(key, object),
                    EventType::Deleted => Change::Remove(key),
                    _ => Change::Put(key, object),
                };
                Ok(Some(Event::Change { change, rv }))
            }
            EventType::Bookmark => {
                let bookmark = bookmark(frame.object)?;
                if !self.kind.is_empty() && *bookmark.kind != *self.kind {
                    return Err(Error::Kind(format!(
                        "a bookmark of kind {:?}, expected {:?}",
                        bookmark.kind, self.kind
                    )));
                }
                Ok(Some(Event::Bookmark(bookmark)))
            }
            EventType::Error => Ok(Some(error_event(frame.object)?)),
        }
    }

    /// The stream has ended: whether it ended between frames.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.frames.finish().map_err(|error| Error::Cut(error.to_string()))
    }
}

// === impl Error ===

impl Error {
    /// A closed word for metrics.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::NotNumbers(_) => "version_no_number",
            Self::TooLarge { .. } => "too_large",
            Self::Kind(_) => "other_kind",
            Self::Back { .. } => "version_back",
            Self::Cut(_) => "cut",
            Self::Junk(_) => "unreadable",
        }
    }

    /// The same as an error of upstream's.
    pub(super) fn into_upstream(self) -> super::Error {
        super::Error::Junk { what: WHAT, message: self.to_string() }
    }
}

/// An object that can't be kept, as a decoding error.
pub(super) fn object_error(error: ObjectError) -> Error {
    match error {
        // Servers that are no kube-apiserver may send none at all: that never changes, and must not be waited for.
        ObjectError::Version { .. } | ObjectError::Missing { field: "metadata.resourceVersion", .. } => {
            Error::NotNumbers(error.to_string())
        }
        ObjectError::Kind { .. } => Error::Kind(error.to_string()),
        error => Error::Junk(error.to_string()),
    }
}

fn bookmark(bytes: &[u8]) -> Result<Bookmark, Error> {
    let facts = object::scan(bytes).map_err(|error| Error::Junk(format!("bookmark: {error}")))?;
    let rv = facts.resource_version.as_deref().unwrap_or_default();
    let rv = rv.parse().map_err(|error| Error::NotNumbers(format!("bookmark: {error}")))?;
    Ok(Bookmark {
        rv,
        initial_events_end: facts.initial_events_end,
        kind: facts.kind.as_deref().unwrap_or_default().to_owned(),
        api_version: facts.api_version.as_deref().unwrap_or_default().to_owned(),
        // Go writes structs with kind first and maps sorted.
        custom: bytes.trim_ascii_start().starts_with(b"{\"apiVersion\""),
    })
}

fn error_event(bytes: &[u8]) -> Result<Event, Error> {
    let status: Status = serde_json::from_slice(bytes).map_err(|error| Error::Junk(format!("ERROR event: {error}")))?;
    let retry_after = status.details.and_then(|details| details.retry_after_seconds).map(Duration::from_secs);
    Ok(Event::Error { code: status.code, message: status.message, retry_after })
}
