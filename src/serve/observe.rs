//! Looks at responses that pass, without holding them up, and raises the fence of their resource: a client that has been
//! shown a version is never shown an older one through forebay.
//!
//! ```text
//! write response -> Passing (reads go upstream) -> its version, or doubt until a probe
//! forwarded GET, LIST -> its version; what a conflict left open about the key is settled
//! forwarded watch -> the version of each event and bookmark
//! ```
//!
//! A chunk is looked at before it is passed on, so the fence stands before the client can act on it. What can't be read
//! (another encoding, a Table, too large) leaves the resource in doubt, which is always right. Gzip is undone on the side. The shapes of write
//! responses are those of `api-semantics.md` section 9.

use std::{
    io::{self, Write},
    sync::Arc,
};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, Method, StatusCode, header};

use crate::{
    api::{
        gvr::Scope,
        json::{
            frames::{EventType, FrameDecoder, FrameError},
            list::{ListError, Splitter},
            object,
        },
        protobuf::{
            self,
            watch::{WatchError, WatchFrames},
        },
        resource_version::ResourceVersion,
    },
    store::{Digest, Fence, Passing, Reader, Registry, StoreKey},
};

/// An API object is at most some 3 MB; a longer body is no single object.
const LARGEST_OBJECT: usize = 4 << 20;

/// A protobuf list tells its version within these first bytes.
const LIST_START: usize = 4 << 10;

/// What a request that is being forwarded was about, as far as fences care.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// The fence of the stored resource.
    pub(super) fence: Arc<Fence>,
    /// `namespace/name`, where the request names one object.
    pub(super) key: Option<String>,
    /// Namespace of the request: with the name in a Status it makes the key of a create that failed.
    pub(super) namespace: Option<String>,
    /// Where stores are found.
    pub(super) registry: Registry,
    /// The store of this resource, if it exists by the time it matters.
    pub(super) store: StoreKey,
    /// Other resources that such a write changes.
    pub(super) also: Vec<Arc<Fence>>,
    /// What kind of request it is.
    pub(super) act: Act,
}

/// The kinds of requests whose responses are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// POST, PUT, PATCH, DELETE of the resource or of a subresource.
    Write {
        /// The response can't tell what was written: deletecollection, eviction, binding, finalize.
        opaque: bool,
    },
    /// GET of one object.
    Get,
    /// LIST; `whole`: of everything there is.
    List {
        /// No selector, no limit, no namespace.
        whole: bool,
    },
    /// WATCH; `whole`: it starts with everything there is.
    Watch {
        /// Initial events, no selector, no namespace.
        whole: bool,
    },
}

/// Looks at one response.
#[derive(Debug)]
pub(super) struct Observer {
    subject: Subject,
    reading: Reading,
    /// For a body that comes compressed.
    inflate: Option<Inflate>,
    /// Bytes the body still has, where its length is known.
    left: Option<u64>,
}

/// Undoes gzip piece by piece; a stream may have several members, one after each flush (watches do).
struct Inflate(MultiGzDecoder<Vec<u8>>);

#[derive(Debug)]
enum Reading {
    Write { passing: Option<Passing>, method: Method, code: StatusCode, encoding: Encoding, body: Vec<u8> },
    Get { encoding: Encoding, body: Vec<u8> },
    List { splitter: Box<Splitter>, whole: Option<Digest> },
    Watch { frames: Box<FrameDecoder>, initial: Option<Digest> },
    ProtobufList { start: Vec<u8> },
    ProtobufWatch { frames: Box<WatchFrames>, initial: Option<Digest> },
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Json,
    Protobuf,
    Unreadable,
}

// === impl Observer ===

impl Observer {
    /// Starts to look at a response; none where there is nothing to learn from it.
    pub(super) fn new(
        subject: Subject,
        method: &Method,
        code: StatusCode,
        headers: &HeaderMap,
        max_frame: usize,
    ) -> Option<Box<Self>> {
        let encoding = encoding(headers);
        let reading = match subject.act {
            // What it did can't be told from the answer: the head says that it was done.
            Act::Write { opaque: true } => {
                if code.is_success() || code.is_server_error() {
                    subject.fence.doubt();
                    subject.also.iter().for_each(|fence| fence.doubt());
                }
                return None;
            }
            Act::Write { .. } => Reading::Write {
                passing: Some(subject.fence.passing()),
                method: method.clone(),
                code,
                encoding,
                body: Vec::new(),
            },
            Act::Get | Act::List { .. } if code == StatusCode::OK && encoding == Encoding::Unreadable => {
                subject.fence.doubt();
                return None;
            }
            Act::Get if code == StatusCode::OK => Reading::Get { encoding, body: Vec::new() },
            Act::Get if code == StatusCode::NOT_FOUND => {
                subject.gone();
                return None;
            }
            Act::List { whole } if code == StatusCode::OK && encoding == Encoding::Json => {
                Reading::List { splitter: Box::new(Splitter::new(max_frame)), whole: whole.then(Digest::default) }
            }
            Act::List { .. } if code == StatusCode::OK && encoding == Encoding::Protobuf => {
                Reading::ProtobufList { start: Vec::new() }
            }
            Act::Watch { whole } if code == StatusCode::OK && encoding == Encoding::Protobuf => {
                Reading::ProtobufWatch {
                    frames: Box::new(WatchFrames::new(max_frame)),
                    initial: whole.then(Digest::default),
                }
            }
            Act::Watch { whole } if code == StatusCode::OK && encoding == Encoding::Json => {
                Reading::Watch { frames: Box::new(FrameDecoder::new(max_frame)), initial: whole.then(Digest::default) }
            }
            Act::Get | Act::List { .. } | Act::Watch { .. } => return None,
        };
        let left = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let inflate = is_gzip(headers).then(|| Inflate(MultiGzDecoder::new(Vec::new())));
        let mut observer = Box::new(Self { subject, reading, inflate, left });
        if left == Some(0) {
            observer.end();
        }
        Some(observer)
    }

    /// A chunk is about to be passed on.
    pub(super) fn data(&mut self, chunk: &Bytes) {
        match &mut self.inflate {
            None => self.read(chunk),
            Some(inflate) => match inflate.feed(chunk) {
                Ok(plain) => self.read(&plain),
                Err(_) => self.give_up(),
            },
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(chunk.len() as u64);
            // The client knows that this is the end as soon as it has these bytes.
            if *left == 0 {
                self.end();
            }
        }
    }

    fn read(&mut self, chunk: &[u8]) {
        match &mut self.reading {
            Reading::Write { body, .. } | Reading::Get { body, .. } => {
                if body.len() + chunk.len() <= LARGEST_OBJECT {
                    body.extend_from_slice(chunk);
                } else {
                    self.give_up();
                }
            }
            Reading::List { splitter, whole } => {
                let fed = splitter.feed(chunk, |item| {
                    if let Some(digest) = whole
                        && let Some((key, rv)) = key_and_version(item)
                    {
                        digest.add(&key, rv);
                    }
                    Ok::<(), ListError>(())
                });
                if fed.is_err() {
                    self.give_up();
                }
            }
            Reading::Watch { frames, initial } => {
                frames.feed(chunk);
                if self.subject.watched(frames, initial).is_err() {
                    self.reading = Reading::Nothing;
                }
            }
            Reading::ProtobufList { start } => {
                start.extend_from_slice(&chunk[..chunk.len().min(LIST_START)]);
                if let Some(rv) = protobuf::list_version(start).and_then(|rv| rv.parse().ok()) {
                    self.subject.fence.raise_position(rv);
                    self.reading = Reading::Nothing;
                } else if start.len() >= LIST_START {
                    self.give_up();
                }
            }
            Reading::ProtobufWatch { frames, initial } => {
                frames.feed(chunk);
                if self.subject.watched_protobuf(frames, initial).is_err() {
                    self.reading = Reading::Nothing;
                }
            }
            Reading::Nothing => {}
        }
    }

    /// Nothing can be learned from this body any more. What it shows of the resource is unknown: the resource is in doubt.
    /// A write that is dropped so says it itself.
    fn give_up(&mut self) {
        if !matches!(self.reading, Reading::Write { .. } | Reading::Nothing) {
            self.subject.fence.doubt();
        }
        self.reading = Reading::Nothing;
    }

    /// The body is complete.
    pub(super) fn end(&mut self) {
        match std::mem::replace(&mut self.reading, Reading::Nothing) {
            Reading::Write { passing: Some(passing), method, code, encoding, body } => {
                self.subject.settle_write(passing, &method, code, encoding, &body);
            }
            Reading::Get { encoding, body } => {
                if let Some(Seen { rv: Some(rv), .. }) = seen(encoding, &body) {
                    self.subject.check_history(rv);
                    self.subject.fence.raise(rv);
                } else {
                    self.subject.fence.doubt();
                }
            }
            Reading::List { splitter, whole } => {
                let list = splitter.finish().ok();
                let rv = list.as_ref().and_then(|list| list.resource_version.parse().ok());
                match (list, rv) {
                    (Some(list), Some(rv)) => {
                        // A page is not the whole.
                        if let Some(digest) = whole.filter(|_| list.continue_token.is_none()) {
                            self.subject.claim(digest, rv);
                        }
                        self.subject.fence.raise_position(rv);
                    }
                    // A Table, for example.
                    _ => self.subject.fence.doubt(),
                }
            }
            Reading::Write { .. }
            | Reading::Watch { .. }
            | Reading::ProtobufList { .. }
            | Reading::ProtobufWatch { .. }
            | Reading::Nothing => {}
        }
    }
}

// === impl Inflate ===

impl Inflate {
    fn feed(&mut self, chunk: &[u8]) -> io::Result<Vec<u8>> {
        self.0.write_all(chunk)?;
        self.0.flush()?;
        Ok(std::mem::take(self.0.get_mut()))
    }
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflate").finish_non_exhaustive()
    }
}

// === impl Subject ===

impl Subject {
    fn settle_write(&self, passing: Passing, method: &Method, code: StatusCode, encoding: Encoding, body: &[u8]) {
        let answer = seen(encoding, body);
        match code.as_u16() {
            200..=299 => match answer {
                Some(Seen { rv: Some(rv), ended: false, .. }) => {
                    self.check_history(rv);
                    passing.raised(rv);
                }
                // The last finalizer went: the object is gone, and the response has the version before that.
                Some(Seen { rv: Some(rv), ended: true, .. }) if method == Method::DELETE => passing.raised(rv),
                _ => passing.unknown(),
            },
            404 | 409 => {
                let named = self.key.clone().or_else(|| self.key_of(answer?.name?));
                match named {
                    Some(key) => {
                        self.fence.contest(key);
                        passing.unchanged();
                    }
                    None => passing.unknown(),
                }
            }
            400..=499 => passing.unchanged(),
            // 5xx: the write may have been done, or be done still.
            _ => passing.unknown(),
        }
    }

    /// An upstream read said that the object is gone. A store that has it, or will load it from before, must not show it.
    fn gone(&self) {
        let Some(key) = &self.key else { return };
        let shows = |reader: Reader| reader.snapshot().is_none_or(|held| held.get(key).is_some());
        if self.stores().any(shows) {
            self.fence.contest(key.clone());
        }
    }

    /// The object was at `rv` a moment ago. A store that claims to know everything up to there, and has an older object,
    /// is of another history: etcd was restored under it, and later versions count anew.
    fn check_history(&self, rv: ResourceVersion) {
        let Some(key) = &self.key else { return };
        let other = |reader: Reader| {
            reader.snapshot().is_some_and(|held| held.rv >= rv && held.get(key).is_some_and(|object| object.rv() < rv))
        };
        if self.stores().any(other) {
            tracing::warn!(store = %self.store, %rv, "upstream's history went back; loading everything anew");
            self.registry.distrust();
            self.fence.doubt();
        }
    }

    /// The stores that may hold this object: of everything, or of its namespace.
    fn stores(&self) -> impl Iterator<Item = Reader> {
        let scopes = [Some(Scope::All), self.namespace.as_deref().map(|namespace| Scope::Namespace(namespace.into()))];
        let key = |scope| StoreKey { gvr: self.store.gvr.clone(), scope };
        scopes.into_iter().flatten().filter_map(move |scope| self.registry.reader(&key(scope)))
    }

    /// Looks at the frames that are complete.
    fn watched(&self, frames: &mut FrameDecoder, initial: &mut Option<Digest>) -> Result<(), FrameError> {
        while let Some(frame) = frames.next_frame()? {
            let Ok(facts) = object::scan(frame.object) else { continue };
            let Some(rv) = facts.resource_version.as_deref().and_then(|rv| rv.parse().ok()) else { continue };
            let key = || key_of(facts.namespace.as_deref(), facts.name.as_deref());
            self.watched_event(frame.kind, key, rv, facts.initial_events_end, initial);
        }
        Ok(())
    }

    /// As [`Self::watched`], for the other encoding.
    fn watched_protobuf(&self, frames: &mut WatchFrames, initial: &mut Option<Digest>) -> Result<(), WatchError> {
        while let Some(frame) = frames.next_frame()? {
            let kind = match frame.kind {
                "ADDED" => EventType::Added,
                "MODIFIED" => EventType::Modified,
                "DELETED" => EventType::Deleted,
                "BOOKMARK" => EventType::Bookmark,
                _ => continue,
            };
            let Ok(facts) = protobuf::facts(frame.object) else { continue };
            let Some(rv) = facts.resource_version.and_then(|rv| rv.parse().ok()) else { continue };
            let key = || key_of(facts.namespace, facts.name);
            self.watched_event(kind, key, rv, facts.initial_events_end, initial);
        }
        Ok(())
    }

    /// Every event raises the fence; what the initial events add up to, the end of them may prove of the store.
    fn watched_event(
        &self,
        kind: EventType,
        key: impl FnOnce() -> String,
        rv: ResourceVersion,
        end: bool,
        initial: &mut Option<Digest>,
    ) {
        match (kind, initial.as_mut()) {
            (EventType::Added, Some(digest)) => digest.add(&key(), rv),
            (EventType::Bookmark, Some(digest)) if end => {
                self.claim(*digest, rv);
                *initial = None;
            }
            // Changes among the initial events: what they add up to is not told by a sum.
            (EventType::Modified | EventType::Deleted, Some(_)) => *initial = None,
            _ => {}
        }
        match kind {
            EventType::Bookmark => self.fence.raise_bookmark(rv),
            EventType::Added | EventType::Modified | EventType::Deleted => self.fence.raise(rv),
            EventType::Error => {}
        }
    }

    fn claim(&self, digest: Digest, rv: ResourceVersion) {
        if let Some(store) = self.registry.reader(&self.store) {
            store.claim(digest, rv);
        }
    }

    fn key_of(&self, name: String) -> Option<String> {
        match &self.namespace {
            Some(namespace) => Some(format!("{namespace}/{name}")),
            None => Some(name),
        }
    }
}

/// What a body tells.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    rv: Option<ResourceVersion>,
    /// Terminating without finalizers and grace: nothing keeps the object any more.
    ended: bool,
    /// Name in the details of a Status.
    name: Option<String>,
}

fn seen(encoding: Encoding, body: &[u8]) -> Option<Seen> {
    match encoding {
        Encoding::Json => {
            let facts = object::scan(body).ok()?;
            if facts.kind.as_deref() == Some("Status") {
                return Some(Seen { name: status_name(body), ..Seen::default() });
            }
            // A list of what was deleted tells versions from before.
            if facts.kind.as_deref().is_some_and(|kind| kind.ends_with("List")) {
                return None;
            }
            let rv = facts.resource_version.as_deref().and_then(|rv| rv.parse().ok());
            let ended =
                facts.deletion_timestamp && !facts.finalizers && facts.deletion_grace_period_seconds.unwrap_or(0) == 0;
            Some(Seen { rv, ended, name: None })
        }
        Encoding::Protobuf => {
            let facts = protobuf::facts(body).ok()?;
            if facts.kind == "Status" || facts.kind.ends_with("List") {
                return Some(Seen::default());
            }
            let rv = facts.resource_version.and_then(|rv| rv.parse().ok());
            Some(Seen { rv, ended: facts.deletion_timestamp && facts.finalizers == 0, name: None })
        }
        Encoding::Unreadable => None,
    }
}

fn status_name(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Status {
        details: Details,
    }
    #[derive(serde::Deserialize)]
    struct Details {
        name: String,
    }
    Some(serde_json::from_slice::<Status>(body).ok()?.details.name)
}

fn key_and_version(object: &[u8]) -> Option<(String, ResourceVersion)> {
    let facts = object::scan(object).ok()?;
    let rv = facts.resource_version.as_deref()?.parse().ok()?;
    Some((key_of(facts.namespace.as_deref(), facts.name.as_deref()), rv))
}

fn key_of(namespace: Option<&str>, name: Option<&str>) -> String {
    let name = name.unwrap_or_default();
    match namespace {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    }
}

fn is_gzip(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding == "gzip")
}

fn encoding(headers: &HeaderMap) -> Encoding {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") && !is_gzip(headers) {
        return Encoding::Unreadable;
    }
    match headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes()) {
        Some(kind) if kind.starts_with(b"application/json") => Encoding::Json,
        Some(kind) if kind.starts_with(b"application/vnd.kubernetes.protobuf") => Encoding::Protobuf,
        _ => Encoding::Unreadable,
    }
}

#[cfg(test)]
mod tests;
