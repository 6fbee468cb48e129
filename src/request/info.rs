//! Method, path and query to verb and resource: kube-apiserver's `RequestInfo` resolver.
//!
//! The path is percent-decoded and split as upstream splits it, then read by fixed positions:
//! `/api/{version}` or `/apis/{group}/{version}`, an optional deprecated verb prefix (`watch`, `proxy`), an optional
//! `namespaces/{namespace}`, then `{resource}[/{name}[/{subresource}]]`. Everything else is a non-resource path.
//!
//! Invariants: it never fails and never panics; a path upstream could read in another way than shown here is marked
//! `irregular`. Two differences from upstream's struct, neither visible outside it: a Namespace object has no
//! `namespace` of its own here (it is cluster-scoped), and a name in a field selector does not become `name`.
//!
//! It does not know which resources exist, nor what the options mean beyond `watch`: see `options`.

use std::{borrow::Cow, sync::Arc};

use http::Method;

use super::query;
use crate::api::gvr::{Gvr, Scope};

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// What is to be done.
    pub verb: Verb,
    /// To what.
    pub target: Target,
    /// The path is spelled in a way that calls for upstream's own judgement: doubled or trailing slashes, an empty
    /// namespace, dot segments, `%2F` or `%25`, bad escapes, anything but printable ASCII. The fields are a best guess;
    /// forward.
    pub irregular: bool,
}

/// Kubernetes verb of a request; for non-resource paths, what it would be for a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// GET with a name; `watch=true` changes nothing there. Also GET of a non-resource path.
    Get,
    /// GET of a collection.
    List,
    /// GET of a collection with a true `watch`, or any method under the `watch` prefix.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// DELETE with a name.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// HEAD of anything. Built-in kinds answer it with 405, custom resources like a GET, so it is always forwarded.
    Head,
    /// Any other method under the `proxy` prefix.
    Proxy,
    /// OPTIONS, CONNECT, TRACE and invented methods.
    Other,
}

/// What a request is addressed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A resource of the API.
    Resource(ResourcePath),
    /// Discovery, OpenAPI, health, version, metrics and unknown paths.
    NonResource,
}

/// The parts of a resource path, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourcePath {
    /// Group, version and plural resource name.
    pub gvr: Gvr,
    /// The namespace in the path. `None` for all namespaces, for cluster-scoped resources and for Namespace objects.
    pub namespace: Option<Arc<str>>,
    /// Name of the object; `None` for a collection.
    pub name: Option<Arc<str>>,
    /// `status`, `scale`, `log`, ...; more segments may follow it.
    pub subresource: Option<Arc<str>>,
    /// The deprecated verb prefix, if the path has one.
    pub prefix: Option<PathPrefix>,
}

/// A verb in the path, as in `/api/v1/watch/pods`. Deprecated, and still served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathPrefix {
    /// `watch/`: always a watch, with or without a name.
    Watch,
    /// `proxy/`: has no subresource.
    Proxy,
}

/// Longest path that is read by position: api group, version, prefix, `namespaces/x`, resource, name, subresource. More
/// segments change nothing, so they are not even split.
const MAX_SEGMENTS: usize = 10;

// === impl RequestInfo ===

impl RequestInfo {
    /// The resource path, if it is one.
    pub fn resource(&self) -> Option<&ResourcePath> {
        match &self.target {
            Target::Resource(path) => Some(path),
            Target::NonResource => None,
        }
    }

    /// Upstream sets no deadline on these: watches, proxying, and the streams of a pod.
    pub fn is_long_running(&self) -> bool {
        let streams = ["attach", "exec", "proxy", "log", "portforward"];
        matches!(self.verb, Verb::Watch | Verb::Proxy)
            || self.resource().is_some_and(|path| {
                path.prefix.is_some() || path.subresource.as_deref().is_some_and(|sub| streams.contains(&sub))
            })
    }
}

// === impl Verb ===

impl Verb {
    /// The request changes nothing upstream: its response raises no fence.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch | Self::Head)
    }

    /// Upstream's spelling, for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Head => "head",
            Self::Proxy => "proxy",
            Self::Other => "other",
        }
    }

    fn of_method(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }
}

// === impl ResourcePath ===

impl ResourcePath {
    /// What share of the resource is asked for.
    pub fn scope(&self) -> Scope {
        self.namespace.clone().map_or(Scope::All, Scope::Namespace)
    }
}

/// Resolves a request. `path` and `query` are raw, as on the request line, `query` without its `?`.
pub fn parse(method: &Method, path: &str, query: Option<&str>) -> RequestInfo {
    let method_verb = Verb::of_method(method);
    let (decoded, mut irregular) = decode(path);
    // Upstream trims any number of slashes before it splits.
    let trimmed = decoded.trim_matches('/');
    // By bytes: for text this short the searchers of `str` cost more than the search.
    irregular |= decoded.len() != trimmed.len() + 1 && path != "/";
    let mut segments = [""; MAX_SEGMENTS];
    let mut count = 0;
    let mut start = 0;
    for end in slashes(trimmed).chain([trimmed.len()]) {
        let segment = &trimmed[start..end];
        start = end + 1;
        irregular |= matches!(segment, "" | "." | "..") && !trimmed.is_empty();
        if let Some(slot) = segments.get_mut(count) {
            *slot = segment;
            count += 1;
        }
    }
    let path = resource_path(&segments[..count]);
    let Some(path) = path else {
        // `/api/v1/watch` alone: upstream fails to make sense of it.
        irregular |=
            count >= 3 && matches!(segments[0], "api" | "apis") && matches!(segments[count - 1], "watch" | "proxy");
        return RequestInfo { verb: method_verb, target: Target::NonResource, irregular };
    };
    let verb = match (method_verb, path.prefix) {
        (Verb::Head, _) => Verb::Head,
        (_, Some(PathPrefix::Watch)) => Verb::Watch,
        (_, Some(PathPrefix::Proxy)) => Verb::Proxy,
        (Verb::Get, None) if path.name.is_none() => {
            if query.is_some_and(wants_watch) {
                Verb::Watch
            } else {
                Verb::List
            }
        }
        (Verb::Delete, None) if path.name.is_none() => Verb::DeleteCollection,
        (verb, None) => verb,
    };
    RequestInfo { verb, target: Target::Resource(path), irregular }
}

/// The decoded path, and whether decoding it found anything that makes it irregular.
fn decode(path: &str) -> (Cow<'_, str>, bool) {
    let odd = |text: &str| text.bytes().fold(false, |odd, b| odd | !matches!(b, b' '..=b'~'));
    if !path.bytes().fold(false, |escape, b| escape | (b == b'%')) {
        return (Cow::Borrowed(path), odd(path));
    }
    match query::unescape(path, false) {
        // Slashes out of escapes split segments like others, but then nobody can tell where a name ended.
        Ok((decoded, is_text)) => {
            let hidden_slash = decoded.matches('/').count() != path.matches('/').count();
            let irregular = !is_text || hidden_slash || decoded.contains('%') || odd(&decoded);
            (decoded, irregular)
        }
        Err(query::BadEscape) => (Cow::Borrowed(path), true),
    }
}

/// Where the slashes are.
fn slashes(text: &str) -> impl Iterator<Item = usize> {
    text.bytes().enumerate().filter(|(_, b)| *b == b'/').map(|(at, _)| at)
}

/// Reads the segments by position. `None` for a non-resource path.
fn resource_path(segments: &[&str]) -> Option<ResourcePath> {
    let (group, version, rest) = match *segments {
        ["api", version, ref rest @ ..] => ("", version, rest),
        ["apis", group, version, ref rest @ ..] => (group, version, rest),
        _ => return None,
    };
    let (prefix, rest) = match *rest {
        ["watch", ref rest @ ..] => (Some(PathPrefix::Watch), rest),
        ["proxy", ref rest @ ..] => (Some(PathPrefix::Proxy), rest),
        ref rest => (None, rest),
    };
    let (namespace, rest) = match *rest {
        // `status` and `finalize` belong to the Namespace object; anything else is a resource inside it.
        ["namespaces", namespace, ref inside @ ..] if !matches!(inside, [] | ["status" | "finalize", ..]) => {
            (text(namespace), inside)
        }
        ref rest => (None, rest),
    };
    let (&resource, rest) = rest.split_first()?;
    let subresource = rest.get(1).filter(|_| prefix != Some(PathPrefix::Proxy));
    Some(ResourcePath {
        gvr: Gvr::new(group, version, resource),
        namespace,
        name: rest.first().and_then(|name| text(name)),
        subresource: subresource.and_then(|sub| text(sub)),
        prefix,
    })
}

fn text(segment: &str) -> Option<Arc<str>> {
    (!segment.is_empty()).then(|| segment.into())
}

/// Only the first `watch` parameter counts.
fn wants_watch(query: &str) -> bool {
    let first = query::pairs(query).flatten().find(|pair| pair.key == "watch");
    first.is_some_and(|pair| query::is_true(&pair.value))
}

#[cfg(test)]
mod tests;
