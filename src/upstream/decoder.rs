//! Bytes of a watch stream -> frames -> what a store applies. Nothing is decoded into a tree.
//!
//! A frame is copied once, into the stored form of its object. Whatever upstream should not have sent is an error that
//! names it: the reflector then loads anew rather than guess.

use std::time::Duration;

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
    /// Anything else that is not a watch event.
    #[error("{0}")]
    Junk(String),
}

/// Decodes one watch stream.
#[derive(Debug)]
pub(super) struct Decoder {
    frames: FrameDecoder,
    limit: usize,
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
    /// `limit` is the largest frame taken, in bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { frames: FrameDecoder::new(limit), limit }
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
            EventType::Added | EventType::Modified => {
                let (key, object) = object_of(frame.object)?;
                let rv = object.rv();
                Ok(Some(Event::Change { change: Change::Put(key, object), rv }))
            }
            EventType::Deleted => {
                let (key, object) = object_of(frame.object)?;
                Ok(Some(Event::Change { change: Change::Remove(key), rv: object.rv() }))
            }
            EventType::Bookmark => Ok(Some(Event::Bookmark(bookmark(frame.object)?))),
            EventType::Error => Ok(Some(error_event(frame.object)?)),
        }
    }

    /// The stream has ended: whether it ended between frames.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.frames.finish().map_err(|error| Error::Junk(error.to_string()))
    }
}

// === impl Error ===

impl Error {
    /// The same as an error of upstream's.
    pub(super) fn into_upstream(self) -> super::Error {
        super::Error::Junk { what: WHAT, message: self.to_string() }
    }
}

fn object_of(bytes: &[u8]) -> Result<(String, Object), Error> {
    Object::from_stored(normal::from_event_object(bytes)).map_err(object_error)
}

/// An object that can't be kept, as a decoding error.
pub(super) fn object_error(error: ObjectError) -> Error {
    match error {
        // Servers that are no kube-apiserver may send none at all: that never changes, and must not be waited for.
        ObjectError::Version { .. } | ObjectError::Missing { field: "metadata.resourceVersion", .. } => {
            Error::NotNumbers(error.to_string())
        }
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
