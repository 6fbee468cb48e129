//! LIST and GET: exact bytes, streamed in pieces from a collection that stays as it was when the answer began.

use std::{ops::Bound, time::Duration};

use bytes::Bytes;

use super::{
    body::{CHUNK, Closed, Sink},
    call::Call,
    json::quote,
    negotiate::{self, Form},
    options::{self, ListOptions, Revision},
    resource::Resource,
    selector::Selector,
    status::Status,
    world::{View, World},
};
use crate::api::gvr::Gvr;

/// How long upstream waits for its cache to reach a resource version.
const FRESHNESS_WAIT: Duration = Duration::from_secs(3);

/// A list about to be sent.
pub(super) struct Page {
    view: View,
    form: Form,
    selector: Selector,
    /// Keys begin with this; the root of continue tokens.
    root: String,
    /// First key to look at, relative to the root.
    start: String,
    limit: usize,
}

/// Waits until the world has reached the revision asked for.
pub(super) async fn fresh(world: &World, revision: Revision) -> Result<(), Status> {
    let (Revision::NotOlder(n) | Revision::Exact(n)) = revision else { return Ok(()) };
    if world.reached(n, FRESHNESS_WAIT).await { Ok(()) } else { Err(Status::too_large(n, world.revision())) }
}

/// The body of a GET.
pub(super) async fn get(world: &World, call: &Call, gvr: &Gvr, form: Form) -> Result<Bytes, Status> {
    if call.flag("export") {
        return Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported"));
    }
    let revision = match call.param("resourceVersion").unwrap_or_default() {
        "" => Revision::Newest,
        text => Revision::NotOlder(options::revision_number(text).ok_or_else(|| Status::bad_revision(text))?),
    };
    fresh(world, revision).await?;
    let name = call.name.as_deref().unwrap_or_default();
    let key = super::objects::key(call.namespace.as_deref().unwrap_or_default(), name);
    let view = world.view(gvr).ok_or_else(Status::no_such_resource)?;
    let object = view.objects.get(&*key).ok_or_else(|| Status::not_found(&call.group_resource(), name))?;
    let mut text = negotiate::whole_text(form, object);
    text.push(b'\n');
    Ok(text.into())
}

// === impl Page ===

impl Page {
    /// Decides what a LIST answers.
    pub(super) async fn new(world: &World, call: &Call, resource: &Resource, form: Form) -> Result<Self, Status> {
        let options = ListOptions::parse(call, resource)?;
        fresh(world, options.revision).await?;
        let gvr = &resource.gvr;
        let view = match options.revision {
            Revision::Exact(rv) => world.view_at(gvr, rv).map(|found| {
                found.map_err(|_| match &options.start {
                    Some(start) => Status::expired_token(options::encode_restart_token(start)),
                    None => Status::expired_list(),
                })
            }),
            _ => world.view(gvr).map(Ok),
        };
        let view = view.ok_or_else(Status::no_such_resource)??;
        let root = call.namespace.as_ref().map(|ns| format!("{ns}/")).unwrap_or_default();
        let start = options.start.unwrap_or_default();
        Ok(Self { view, form, selector: options.selector, root, start, limit: options.limit })
    }

    /// Writes the list.
    pub(super) async fn send(self, mut sink: Sink) -> Result<(), Closed> {
        let resource = &*self.view.resource;
        // Built-in lists name their continue token before their items: find the page's end first.
        let end = self.end();
        let sorted = resource.custom && self.form == Form::Whole;
        let mut buffer = Vec::with_capacity(CHUNK + 16 * 1024);
        let api_version = resource.gvr.api_version();
        if sorted {
            buffer.extend_from_slice(format!(r#"{{"apiVersion":"{api_version}","items":["#).as_bytes());
        } else {
            let (kind, api_version) = match self.form {
                Form::Whole => (resource.list_kind.as_str(), api_version.as_str()),
                Form::Metadata => ("PartialObjectMetadataList", "meta.k8s.io/v1"),
            };
            let token = match &end {
                Some((token, Some(left))) => format!(r#","continue":"{token}","remainingItemCount":{left}"#),
                Some((token, None)) => format!(r#","continue":"{token}""#),
                None => String::new(),
            };
            let head = format!(
                r#"{{"kind":{},"apiVersion":"{api_version}","metadata":{{"resourceVersion":"{}"{token}}},"items":"#,
                quote(kind),
                self.view.revision
            );
            buffer.extend_from_slice(head.as_bytes());
            buffer.extend_from_slice(b"[");
        }
        let mut count = 0;
        for object in self.objects().filter(|o| self.selector.matches(o)) {
            if count > 0 {
                buffer.push(b',');
            }
            count += 1;
            negotiate::push_item(self.form, object, &mut buffer);
            if buffer.len() >= CHUNK {
                let full = std::mem::replace(&mut buffer, Vec::with_capacity(CHUNK + 16 * 1024));
                sink.send(full.into()).await?;
            }
            if self.limit > 0 && count == self.limit {
                break;
            }
        }
        if count == 0 && self.form == Form::Metadata {
            buffer.pop();
            buffer.extend_from_slice(b"null}\n");
        } else if sorted {
            let (token, left) = match &end {
                Some((token, Some(left))) => (token.as_str(), format!(r#""remainingItemCount":{left},"#)),
                Some((token, None)) => (token.as_str(), String::new()),
                None => ("", String::new()),
            };
            let tail = format!(
                r#"],"kind":{},"metadata":{{"continue":"{token}",{left}"resourceVersion":"{}"}}}}"#,
                quote(&resource.list_kind),
                self.view.revision
            );
            buffer.extend_from_slice(tail.as_bytes());
            buffer.push(b'\n');
        } else {
            buffer.extend_from_slice(b"]}\n");
        }
        sink.send(buffer.into()).await
    }

    /// The objects from the start key on, selected or not.
    fn objects(&self) -> impl Iterator<Item = &super::objects::Object> {
        let from = format!("{}{}", self.root, self.start);
        let range = (Bound::Included(from.as_str()), Bound::Unbounded);
        self.view.objects.range::<_, str>(range).take_while(|(key, _)| key.starts_with(&self.root)).map(|(_, o)| &**o)
    }

    /// The continue token and the number of objects left, if the limit ends the page early.
    fn end(&self) -> Option<(String, Option<usize>)> {
        if self.limit == 0 {
            return None;
        }
        let mut raw = self.objects();
        let mut matches = 0;
        let last = raw.by_ref().find(|o| {
            matches += usize::from(self.selector.matches(o));
            matches == self.limit
        })?;
        let left = raw.count();
        if left == 0 {
            return None;
        }
        let key = last.key.strip_prefix(&*self.root).unwrap_or(&last.key);
        let token = options::encode_token(self.view.revision, key);
        Some((token, self.selector.is_empty().then_some(left)))
    }
}
