//! May the cache answer such a request: verb, path, caller, encoding, parameters, resource.
//!
//! The matrix of `api-semantics.md` section 2, as far as it is answered here: GET; LIST of a resource or a namespace with
//! label selectors and `metadata.name`/`metadata.namespace`; `resourceVersion` unset or 0; JSON. A bad selector whose
//! error text is known is an answer too, but only of a synced store: upstream checks the caller's rights first.

use std::sync::Arc;

use crate::{
    api::{
        field_selector::FieldSelector,
        gvr::{Gvr, Scope},
        label_selector::{LabelSelector, ParseError},
        status::Status,
    },
    request::{
        info::{RequestInfo, ResourcePath, Verb},
        negotiate::Format,
        options::{ReadOptions, RvParam},
    },
    upstream::discovery::Entry,
};

use super::Reason;

/// What is known of a request before any store is looked at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Verb and path.
    pub info: &'a RequestInfo,
    /// Query.
    pub options: &'a ReadOptions,
    /// What Accept asks for.
    pub format: Format,
    /// The caller used forebay's own token.
    pub local: bool,
    /// It asks to act as somebody else.
    pub impersonates: bool,
    /// It asks for a live answer.
    pub no_cache: bool,
    /// It asks to switch protocols.
    pub upgrade: bool,
    /// Whether the request has a body, which a read should not have.
    pub has_body: bool,
}

/// Whether a resource must never be cached.
pub type Never<'a> = &'a dyn Fn(&Gvr) -> bool;

/// Who answers.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "lives for a moment; a box would cost each cached read an allocation")]
pub enum Decision {
    /// The cache, once its store may.
    Cache(Read),
    /// Upstream.
    Forward(Reason),
}

/// A read the cache can answer.
#[derive(Debug)]
pub struct Read {
    /// The resource.
    pub gvr: Gvr,
    /// Namespace of the read, or all.
    pub scope: Scope,
    /// What is read.
    pub want: Want,
}

/// What is read.
#[derive(Debug)]
pub enum Want {
    /// One object.
    Object {
        /// Its name.
        name: Arc<str>,
        /// `namespace/name` or `name`.
        key: String,
    },
    /// A collection.
    Collection {
        /// Labels wanted.
        labels: LabelSelector,
        /// `metadata.name` and `metadata.namespace` wanted.
        fields: FieldSelector,
        /// Most objects in the answer; more are upstream's to page.
        limit: Option<u64>,
    },
    /// A request that upstream answers with this Status, once it has found the caller entitled.
    Refusal(Status),
}

/// Tells who answers. `entry` is what discovery says of the resource, `None` while it is unknown.
pub fn decide(facts: &Facts<'_>, entry: Option<&Entry>, never: Never<'_>) -> Decision {
    match read(facts, entry, never) {
        Ok(read) => Decision::Cache(read),
        Err(reason) => Decision::Forward(reason),
    }
}

fn read(facts: &Facts<'_>, entry: Option<&Entry>, never: Never<'_>) -> Result<Read, Reason> {
    let path = candidate(facts)?;
    if never(&path.gvr) {
        return Err(Reason::Never);
    }
    let entry = entry.ok_or(Reason::Unknown)?;
    if !entry.cacheable || (facts.info.verb == Verb::Get && !entry.gets) {
        return Err(Reason::Uncacheable);
    }
    // A cluster resource in a namespace, or an object without its namespace: upstream has several 404s for these.
    if (path.namespace.is_some() && !entry.namespaced)
        || (path.namespace.is_none() && entry.namespaced && path.name.is_some())
    {
        return Err(Reason::Unknown);
    }
    let scope = path.namespace.as_ref().map_or(Scope::All, |namespace| Scope::Namespace(namespace.clone()));
    let want = match &path.name {
        Some(name) => object(path, name)?,
        None => collection(facts.options, entry.namespaced)?,
    };
    Ok(Read { gvr: path.gvr.clone(), scope, want })
}

/// The checks that need no knowledge of the resource.
fn candidate<'a>(facts: &Facts<'a>) -> Result<&'a ResourcePath, Reason> {
    if !facts.local {
        return Err(Reason::Credential);
    }
    if facts.impersonates {
        return Err(Reason::Impersonation);
    }
    if facts.upgrade {
        return Err(Reason::Upgrade);
    }
    if facts.info.irregular {
        return Err(Reason::Path);
    }
    let path = facts.info.resource().ok_or(Reason::NonResource)?;
    match facts.info.verb {
        Verb::Get | Verb::List => {}
        Verb::Watch => return Err(Reason::Watch),
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => return Err(Reason::Write),
        Verb::Head | Verb::Proxy | Verb::Other => return Err(Reason::Verb),
    }
    if path.subresource.is_some() {
        return Err(Reason::Subresource);
    }
    if path.prefix.is_some() {
        return Err(Reason::Path);
    }
    if facts.no_cache {
        return Err(Reason::NoCache);
    }
    if facts.has_body {
        return Err(Reason::Verb);
    }
    if !matches!(facts.format, Format::Json) {
        return Err(Reason::Encoding);
    }
    parameters(facts)?;
    Ok(path)
}

fn parameters(facts: &Facts<'_>) -> Result<(), Reason> {
    let options = facts.options;
    if !matches!(options.resource_version, RvParam::Unset | RvParam::Any) || options.resource_version_match.is_some() {
        return Err(Reason::ResourceVersion);
    }
    if !options.is_understood() || options.send_initial_events.is_some() {
        return Err(Reason::Parameter);
    }
    if options.continue_token.is_some() {
        return Err(Reason::Paging);
    }
    Ok(())
}

fn object(path: &ResourcePath, name: &Arc<str>) -> Result<Want, Reason> {
    // Names upstream answers in ways of its own: `a%2Fb` is a 404 without details, `a%25b` a 400.
    if name.is_empty() || name.bytes().any(|b| matches!(b, b'/' | b'%')) || matches!(&**name, "." | "..") {
        return Err(Reason::Path);
    }
    let key = match &path.namespace {
        // `format!` would grow the text step by step, on the way of every GET.
        Some(namespace) => [&**namespace, "/", &**name].concat(),
        None => name.to_string(),
    };
    Ok(Want::Object { name: name.clone(), key })
}

fn collection(options: &ReadOptions, namespaced: bool) -> Result<Want, Reason> {
    let labels = options.label_selector.as_deref().unwrap_or_default();
    let fields = options.field_selector.as_deref().unwrap_or_default();
    let labels = match LabelSelector::parse(labels) {
        Ok(labels) => labels,
        // With a field selector as well, which error comes first is upstream's business.
        Err(ParseError::Known(message)) if fields.is_empty() => {
            return Ok(Want::Refusal(Status::bad_request(message)));
        }
        Err(_) => return Err(Reason::Selector),
    };
    let fields = match FieldSelector::parse(fields) {
        Ok(fields) => fields,
        Err(ParseError::Known(message)) => return Ok(Want::Refusal(Status::bad_request(message))),
        Err(_) => return Err(Reason::Selector),
    };
    // Cluster-scoped kinds differ in whether they know `metadata.namespace` (`api-semantics.md` section 4.3).
    if !fields.only_metadata() || (!namespaced && fields.mentions_namespace()) {
        return Err(Reason::FieldSelector);
    }
    // At resourceVersion=0 upstream ignores the limit.
    let limit = options.limit.filter(|_| options.resource_version == RvParam::Unset);
    Ok(Want::Collection { labels, fields, limit })
}

#[cfg(test)]
mod tests;
