//! The requests of one resource's stream: where a watch or a streaming list starts, and what their failures mean.

use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use rand::RngExt;

use crate::{api::resource_version::ResourceVersion, store::StoreKey};

use super::{Client, Error, list, purpose::Purpose, reflector::Failure};

pub(super) const WATCH: Purpose = Purpose::Watch;

/// A server that sends nothing for so long in the middle of its initial events does not know what they are.
pub(super) const INITIAL_IDLE: Duration = Duration::from_secs(30);

/// client-go's range: long enough to cost little, spread so that watches don't end together.
const WATCH_SECONDS: std::ops::Range<u64> = 300..600;

/// What a server may be late with its own time limit.
const GRACE: Duration = Duration::from_secs(30);

/// Where a stream starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// With everything there is (`sendInitialEvents`, consistent), then what changes.
    Initial,
    /// With what changed after this version.
    After(ResourceVersion),
    /// The same, in order to be told soon how far upstream has come: a watch that is to end in 3 s brings a bookmark after
    /// one, if upstream's own cache of the resource has moved (`api-semantics.md` section 8).
    Progress(ResourceVersion),
}

// === impl Start ===

impl Start {
    pub(super) fn what(self) -> Purpose {
        match self {
            Self::Initial => Purpose::StreamingList,
            Self::After(_) | Self::Progress(_) => WATCH,
        }
    }
}

/// An open stream and how long it may be silent.
pub(super) struct Stream {
    pub(super) response: Response<Incoming>,
    /// For a loaded stream. Death of the connection is found by pings long before; this is for servers without HTTP/2.
    pub(super) idle: Duration,
}

/// Opens the stream of `key`.
pub(super) async fn open(client: &Client, key: &StoreKey, start: Start) -> Result<Stream, Error> {
    let collection = key.gvr.path(&key.scope);
    let (query, idle) = match start {
        // No time limit of ours: a large load must not be cut before its end. Upstream's own is 30-60 minutes.
        Start::Initial => {
            let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned();
            (query, Duration::from_secs(3600) + GRACE)
        }
        Start::After(rv) => {
            let seconds = rand::rng().random_range(WATCH_SECONDS);
            (format!("resourceVersion={rv}&timeoutSeconds={seconds}"), Duration::from_secs(seconds) + GRACE)
        }
        Start::Progress(rv) => (format!("resourceVersion={rv}&timeoutSeconds=3"), GRACE),
    };
    let path = format!("{collection}?watch=true&allowWatchBookmarks=true&{query}");
    let response = list::json(start.what(), client.get(start.what(), &key.gvr, &path, list::JSON).await?)?;
    Ok(Stream { response, idle })
}

/// What a failed request means for the reflector. `streaming`: it asked for initial events.
pub(super) fn failure(error: &Error, streaming: bool) -> Failure {
    match error {
        Error::Status { code, .. } => code_failure(*code, streaming),
        Error::Junk { .. } => Failure::Junk,
        Error::Transport { .. } | Error::Timeout { .. } => Failure::Unavailable,
    }
}

/// As [`failure`], for the code of an HTTP status or of an ERROR event.
pub(super) fn code_failure(code: u16, streaming: bool) -> Failure {
    match code {
        401 | 403 => Failure::Refused(code),
        404 => Failure::NotServed,
        405 => Failure::Unwatchable,
        410 => Failure::Expired,
        // 422: the gate is off. 400: the parameter is unknown.
        400 | 422 if streaming => Failure::NoStreaming,
        // Old etcd: an ERROR event with code 500.
        500 | 504 if streaming => Failure::StreamingFailed,
        _ => Failure::Unavailable,
    }
}
