//! LIST: the whole collection in pages, for servers without streaming lists; the spelling of a custom resource's list;
//! and how many objects there are.

use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::timeout;

use crate::{
    api::{
        json::{
            list::{ListError, Splitter},
            normal,
        },
        resource_version::ResourceVersion,
    },
    store::{ListForm, Object, Progress, Registry, Relist, StoreKey},
};

use super::{Client, Error, decoder, purpose::Purpose, residency, watch::INITIAL_IDLE};

const LIST: Purpose = Purpose::List;
pub(super) const JSON: &str = "application/json";

/// Why pages could not be read.
#[derive(Debug)]
pub(super) enum PageError {
    Upstream(Error),
    /// The version of the walk was compacted before its end.
    Torn(Error),
    Object(decoder::Error),
}

/// What is walked, and how.
pub(super) struct Walk<'a> {
    pub(super) client: &'a Client,
    pub(super) key: &'a StoreKey,
    /// Kind of the objects: items of built-in lists don't name it.
    pub(super) item_kind: &'a str,
    /// `None`: everything in one page.
    pub(super) page_size: Option<u32>,
    /// Largest object taken, in bytes.
    pub(super) max_frame: usize,
    pub(super) registry: &'a Registry,
    pub(super) progress: &'a Progress,
}

impl From<decoder::Error> for PageError {
    fn from(error: decoder::Error) -> Self {
        Self::Object(error)
    }
}

impl From<ListError> for PageError {
    fn from(error: ListError) -> Self {
        match error {
            ListError::ItemTooLarge { limit, .. } => Self::Object(decoder::Error::TooLarge { limit }),
            error => junk(error.to_string()).into(),
        }
    }
}

impl From<Error> for PageError {
    fn from(error: Error) -> Self {
        Self::Upstream(error)
    }
}

/// Loads everything into `relist`, page by page, each of them streamed. Gives the list's form and its version, which is
/// the first page's: upstream serves all pages of a walk at one version. Without a page size it is one page.
pub(super) async fn pages(walk: Walk<'_>, relist: &mut Relist) -> Result<(ListForm, ResourceVersion), PageError> {
    let Walk { client, key, item_kind, page_size, max_frame, registry, progress } = walk;
    let collection = key.gvr.path(&key.scope);
    let api_version = key.gvr.api_version();
    let mut next: Option<String> = None;
    let mut first: Option<(ListForm, ResourceVersion)> = None;
    loop {
        let path = match (page_size, &next) {
            (None, _) => collection.clone(),
            (Some(size), None) => format!("{collection}?limit={size}"),
            (Some(size), Some(token)) => format!("{collection}?limit={size}&continue={token}"),
        };
        let response = match client.get(LIST, &key.gvr, &path, JSON).await {
            Err(error) if error.code() == Some(410) && next.is_some() => return Err(PageError::Torn(error)),
            answered => json(LIST, answered?)?,
        };
        let warnings = warnings(response.headers());
        let mut body = response.into_body();
        let mut splitter = Splitter::new(max_frame);
        loop {
            let frame = match timeout(INITIAL_IDLE, body.frame()).await {
                Ok(Some(frame)) => frame.map_err(|error| Error::Transport { what: LIST, source: error.into() })?,
                Ok(None) => break,
                Err(_) => return Err(Error::Timeout { what: LIST, after: INITIAL_IDLE }.into()),
            };
            let Some(chunk) = frame.data_ref() else { continue };
            let before = relist.len();
            splitter.feed(chunk, |item| {
                let stored = normal::from_list_item(item, item_kind, &api_version, false);
                let (key, object) = Object::from_stored(stored).map_err(decoder::object_error)?;
                relist.stage(&key, object);
                Ok::<(), PageError>(())
            })?;
            progress.add_loaded((relist.len() - before) as u64);
            residency::admitted(registry, key).await;
            // Requests of clients get their turn between two chunks.
            tokio::task::yield_now().await;
        }
        let envelope = splitter.finish()?;
        if envelope.is_status() {
            return Err(junk("a Status instead of a list".to_owned()).into());
        }
        if first.is_none() {
            if let Some(remaining) = envelope.remaining_item_count {
                progress.expect(relist.len() as u64 + remaining);
            }
            let rv = envelope.resource_version.parse().map_err(|error: crate::api::resource_version::NotANumber| {
                PageError::Object(decoder::Error::NotNumbers(format!("list: {error}")))
            })?;
            let mut form = ListForm::new(envelope.kind, item_kind, envelope.api_version, envelope.custom);
            form.warnings = warnings;
            first = Some((form, rv));
        }
        next = envelope.continue_token;
        if next.is_none() {
            break;
        }
    }
    first.ok_or_else(|| junk("no page at all".to_owned()).into())
}

/// An answer that is JSON. Another type comes from something else than an API server, a login page or a balancer in
/// trouble, and tells nothing about the data.
pub(super) fn json(what: Purpose, response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let given = response.headers().get(http::header::CONTENT_TYPE).map_or(JSON.as_bytes(), http::HeaderValue::as_bytes);
    if given.starts_with(JSON.as_bytes()) {
        return Ok(response);
    }
    let message = format!("answered with {:?}", String::from_utf8_lossy(given));
    Err(Error::Transport { what, source: message.into() })
}

/// The `Warning` headers of an answer: a deprecated version has them on every one.
pub(super) fn warnings(headers: &http::HeaderMap) -> Vec<String> {
    let values = headers.get_all(http::header::WARNING).iter();
    values.filter_map(|value| value.to_str().ok().map(str::to_owned)).collect()
}

/// `kind` of the list, as upstream spells it: custom resources may call it anything.
pub(super) async fn list_kind(client: &Client, key: &StoreKey) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Kind {
        kind: String,
    }
    // One key that can't exist, from upstream's cache: some hundred bytes.
    let path = format!("{}?fieldSelector=metadata.name%3Dforebay-probe-&resourceVersion=0", key.gvr.path(&key.scope));
    let (_, body) = client.get_all(LIST, &key.gvr, &path, JSON).await?;
    let list: Kind = serde_json::from_slice(&body).map_err(|error| junk(error.to_string()))?;
    Ok(list.kind)
}

/// How many objects there are, from the first page of one.
pub(super) async fn count(client: &Client, key: &StoreKey) -> Option<u64> {
    #[derive(Deserialize)]
    struct List {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        remaining_item_count: Option<u64>,
    }
    let path = format!("{}?limit=1", key.gvr.path(&key.scope));
    let (_, body) = client.get_all(Purpose::Count, &key.gvr, &path, JSON).await.ok()?;
    let list: List = serde_json::from_slice(&body).ok()?;
    Some(list.metadata.remaining_item_count? + 1)
}

fn junk(message: String) -> Error {
    Error::Junk { what: LIST, message }
}
