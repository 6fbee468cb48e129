//! The resources a [`World`](super::World) serves: names, scope, and the oddities of each kind.

use crate::api::gvr::Gvr;

/// One served resource. Built-in kinds are printed in Go's struct order, custom ones with sorted keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Group, version and plural name.
    pub gvr: Gvr,
    /// Singular name, as in discovery.
    pub singular: String,
    /// Kind of the objects.
    pub kind: String,
    /// Kind of a list; for custom resources it may be anything.
    pub list_kind: String,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether a CustomResourceDefinition serves it.
    pub custom: bool,
    /// Whether it has a `/status` subresource; then writes to the object leave `status` alone.
    pub status: bool,
    /// Whether the server counts `metadata.generation`.
    pub generation: bool,
    /// Short names, as in discovery.
    pub short_names: Vec<String>,
    /// What upstream prints after `metadata` in a bookmark of this kind, for instance `,"spec":{},"status":{}`.
    pub bookmark_tail: String,
    /// Verbs shown in discovery.
    pub verbs: Vec<String>,
}

// === impl Resource ===

impl Resource {
    /// A namespaced built-in resource with `spec`, `status` and a generation.
    pub fn builtin(group: &str, version: &str, resource: &str, kind: &str) -> Self {
        Self {
            gvr: Gvr::new(group, version, resource),
            singular: kind.to_lowercase(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            namespaced: true,
            custom: false,
            status: true,
            generation: true,
            short_names: Vec::new(),
            bookmark_tail: String::new(),
            verbs: ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
                .map(str::to_owned)
                .to_vec(),
        }
    }

    /// A namespaced custom resource with a status subresource and the usual list kind.
    pub fn custom(group: &str, version: &str, resource: &str, kind: &str) -> Self {
        Self { custom: true, ..Self::builtin(group, version, resource, kind) }
    }

    /// Objects without a namespace.
    #[must_use]
    pub fn cluster_scoped(mut self) -> Self {
        self.namespaced = false;
        self
    }

    /// Plain data: no status subresource, no generation (ConfigMap, Secret, Lease, ...).
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.status = false;
        self.generation = false;
        self
    }

    /// Another list kind, as a CRD's `listKind` may name one.
    #[must_use]
    pub fn list_kind(mut self, kind: &str) -> Self {
        self.list_kind = kind.to_owned();
        self
    }

    /// Short names for discovery.
    #[must_use]
    pub fn short_names(mut self, names: &[&str]) -> Self {
        self.short_names = names.iter().map(|&n| n.to_owned()).collect();
        self
    }

    /// Verbs for discovery, for instance without `watch`.
    #[must_use]
    pub fn verbs(mut self, verbs: &[&str]) -> Self {
        self.verbs = verbs.iter().map(|&v| v.to_owned()).collect();
        self
    }

    /// What bookmarks of this kind carry after `metadata`; begins with a comma.
    #[must_use]
    pub fn bookmark_tail(mut self, tail: &str) -> Self {
        self.bookmark_tail = tail.to_owned();
        self
    }

    /// Whether `name` means this resource: `pods`, `deployments.apps` or `apps/v1/deployments`.
    pub fn answers_to(&self, name: &str) -> bool {
        *self.gvr.resource == *name || self.gvr.group_resource() == name || self.gvr.to_string() == name
    }

    /// `apps/v1/deployments`.
    pub fn deployments() -> Self {
        let template = r#""template":{"metadata":{},"spec":{"containers":null}},"strategy":{}"#;
        Self::builtin("apps", "v1", "deployments", "Deployment")
            .short_names(&["deploy"])
            .bookmark_tail(&format!(r#","spec":{{"replicas":0,"selector":null,{template}}},"status":{{}}"#))
    }

    /// `v1/pods`.
    pub fn pods() -> Self {
        Self::builtin("", "v1", "pods", "Pod")
            .short_names(&["po"])
            .bookmark_tail(r#","spec":{"containers":null},"status":{}"#)
    }

    /// `v1/configmaps`.
    pub fn config_maps() -> Self {
        Self::builtin("", "v1", "configmaps", "ConfigMap").plain().short_names(&["cm"])
    }

    /// `v1/secrets`.
    pub fn secrets() -> Self {
        Self::builtin("", "v1", "secrets", "Secret").plain()
    }

    /// `v1/services`.
    pub fn services() -> Self {
        let mut services = Self::builtin("", "v1", "services", "Service").short_names(&["svc"]);
        services.generation = false;
        services.bookmark_tail(r#","spec":{},"status":{"loadBalancer":{}}"#)
    }

    /// `v1/namespaces`.
    pub fn namespaces() -> Self {
        let mut namespaces = Self::builtin("", "v1", "namespaces", "Namespace").cluster_scoped().short_names(&["ns"]);
        namespaces.generation = false;
        namespaces.bookmark_tail(r#","spec":{},"status":{}"#)
    }

    /// `v1/nodes`.
    pub fn nodes() -> Self {
        let mut nodes = Self::builtin("", "v1", "nodes", "Node").cluster_scoped().short_names(&["no"]);
        nodes.generation = false;
        nodes.bookmark_tail(concat!(
            r#","spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"#,
            r#""nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"","osImage":"","#,
            r#""containerRuntimeVersion":"","kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}"#
        ))
    }

    /// `v1/events`.
    pub fn events() -> Self {
        Self::builtin("", "v1", "events", "Event").plain().short_names(&["ev"]).bookmark_tail(concat!(
            r#","involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"#,
            r#""eventTime":null,"reportingComponent":"","reportingInstance":"""#
        ))
    }

    /// `coordination.k8s.io/v1/leases`.
    pub fn leases() -> Self {
        Self::builtin("coordination.k8s.io", "v1", "leases", "Lease").plain().bookmark_tail(r#","spec":{}"#)
    }

    /// `apiregistration.k8s.io/v1/apiservices`: which groups other processes serve; none here.
    pub fn api_services() -> Self {
        let mut services = Self::builtin("apiregistration.k8s.io", "v1", "apiservices", "APIService").cluster_scoped();
        services.generation = false;
        services.bookmark_tail(r#","spec":{"groupPriorityMinimum":0,"versionPriority":0},"status":{}"#)
    }

    /// `example.com/v1/widgets`: a custom resource whose list kind is not `WidgetList`.
    pub fn widgets() -> Self {
        Self::custom("example.com", "v1", "widgets", "Widget").list_kind("WidgetCollection")
    }

    /// `work.karmada.io/v1alpha2/resourcebindings`: what karmada-controller-manager has in its queue after a restart.
    pub fn resource_bindings() -> Self {
        Self::custom("work.karmada.io", "v1alpha2", "resourcebindings", "ResourceBinding").short_names(&["rb"])
    }

    /// The resources every server starts with unless told otherwise.
    pub fn usual() -> Vec<Self> {
        vec![
            Self::namespaces(),
            Self::nodes(),
            Self::pods(),
            Self::services(),
            Self::config_maps(),
            Self::secrets(),
            Self::events(),
            Self::deployments(),
            Self::leases(),
            Self::api_services(),
            Self::widgets(),
        ]
    }
}
