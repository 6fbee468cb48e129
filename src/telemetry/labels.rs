//! Metric labels that several modules share. Closed sets only: never names, namespaces, paths, users or error texts.

use std::{fmt, sync::Arc};

use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder};

use crate::api::gvr::Gvr;

/// What a request does, in kube-apiserver's words for its own metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// GET of one object, or of a path that is no resource.
    Get,
    /// GET of a collection.
    List,
    /// GET of a collection or object with `watch`.
    Watch,
    /// Create.
    Post,
    /// Replace.
    Put,
    /// Patch, apply.
    Patch,
    /// Delete of one object or of a collection.
    Delete,
    /// exec, attach, port-forward, proxy.
    Connect,
    /// Anything else, HEAD and OPTIONS included.
    Other,
}

/// `group`, `version` and `resource`; all `other` where the resource is not known to exist, so that clients can't make
/// series by asking for made-up ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceLabels {
    group: Arc<str>,
    version: Arc<str>,
    resource: Arc<str>,
}

// === impl Verb ===

impl Verb {
    /// The label's value: `GET`, `LIST`, ..., `other`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::List => "LIST",
            Self::Watch => "WATCH",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl EncodeLabelValue for Verb {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

// === impl ResourceLabels ===

impl ResourceLabels {
    /// Labels of a resource that discovery knows.
    pub fn known(gvr: &Gvr) -> Self {
        Self { group: gvr.group.clone(), version: gvr.version.clone(), resource: gvr.resource.clone() }
    }

    /// Labels of everything else. Allocates: keep the result.
    pub fn other() -> Self {
        let other: Arc<str> = "other".into();
        Self { group: other.clone(), version: other.clone(), resource: other }
    }
}

impl EncodeLabelSet for ResourceLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in [("group", &self.group), ("version", &self.version), ("resource", &self.resource)] {
            (name, &**value).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}
