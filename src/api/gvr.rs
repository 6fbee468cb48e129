//! Group, version and resource: the name of a collection in URLs, and its scope.
//!
//! GVK appears only inside bodies; everything that is addressed (stores, metrics, fences) is named by GVR.

use std::{fmt, sync::Arc};

/// A group, a version and a plural resource name, as they stand in a URL. The core group is the empty string.
///
/// Cheap to clone: three shared strings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// API group; empty for the core group.
    pub group: Arc<str>,
    /// API version, for example `v1`.
    pub version: Arc<str>,
    /// Plural resource name, for example `deployments`.
    pub resource: Arc<str>,
}

/// What share of a resource a store or a request covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The whole collection: every namespace, or a cluster-scoped resource.
    All,
    /// One namespace of a namespaced resource.
    Namespace(Arc<str>),
}

// === impl Gvr ===

impl Gvr {
    /// Names a resource.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }

    /// `v1` or `apps/v1`: the `apiVersion` of objects of this resource.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `pods` or `deployments.apps`: how Kubernetes messages name the resource.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.resource.to_string() } else { format!("{}.{}", self.resource, self.group) }
    }

    /// Path of the collection in `scope`, without a trailing slash: `/apis/apps/v1/namespaces/x/deployments`.
    pub fn path(&self, scope: &Scope) -> String {
        let root = if self.group.is_empty() { "/api/".to_owned() } else { format!("/apis/{}/", self.group) };
        match scope {
            Scope::All => format!("{root}{}/{}", self.version, self.resource),
            Scope::Namespace(ns) => format!("{root}{}/namespaces/{ns}/{}", self.version, self.resource),
        }
    }
}

impl fmt::Display for Gvr {
    /// `v1/pods` or `apps/v1/deployments`: short, unambiguous, used in logs, flags and readiness checks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        write!(f, "{}/{}", self.version, self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_core_group_rule() {
        let pods = Gvr::new("", "v1", "pods");
        let deployments = Gvr::new("apps", "v1", "deployments");
        let ns = Scope::Namespace("x".into());
        for (got, want) in [
            (pods.api_version(), "v1"),
            (deployments.api_version(), "apps/v1"),
            (pods.group_resource(), "pods"),
            (deployments.group_resource(), "deployments.apps"),
            (pods.path(&Scope::All), "/api/v1/pods"),
            (pods.path(&ns), "/api/v1/namespaces/x/pods"),
            (deployments.path(&Scope::All), "/apis/apps/v1/deployments"),
            (deployments.path(&ns), "/apis/apps/v1/namespaces/x/deployments"),
            (pods.to_string(), "v1/pods"),
            (deployments.to_string(), "apps/v1/deployments"),
        ] {
            assert_eq!(got, want);
        }
    }
}
