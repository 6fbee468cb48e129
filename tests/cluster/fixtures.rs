//! What the tests put into the cluster: two custom resources, and bodies of the built-in kinds they read.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::HttpClient;
use crate::users::object;

/// Collection of all namespaces; the list kind is not "WidgetList".
pub(crate) const WIDGETS: &str = "/apis/test.forebay.dev/v1/widgets";
/// A cluster-scoped custom resource.
pub(crate) const REGIONS: &str = "/apis/test.forebay.dev/v1/regions";

/// Creates the custom resource definitions and waits until both are served.
pub(crate) async fn install_custom_resources(admin: &HttpClient) {
    for definition in [widgets(), regions()] {
        admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    }
    for path in [WIDGETS, REGIONS] {
        eventually(Duration::from_secs(20), path, async || admin.get(path).await.status.is_success()).await;
    }
}

/// The path of a namespaced collection, or of all namespaces of it, from a path such as `WIDGETS` or `/api/v1/pods`.
pub(crate) fn in_namespace(collection: &str, namespace: &str) -> String {
    let (prefix, resource) = collection.rsplit_once('/').unwrap();
    format!("{prefix}/namespaces/{namespace}/{resource}")
}

/// A Deployment as small as validation lets it be.
pub(crate) fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    let mut deployment = object(
        "apps/v1",
        "Deployment",
        name,
        json!({"spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "registry.example/main:1"}]},
            },
        }}),
    );
    deployment["metadata"]["labels"] = labels;
    deployment
}

pub(crate) fn pod(name: &str, labels: Value) -> Value {
    let mut pod = object("v1", "Pod", name, json!({"spec": {"containers": [{"name": "main", "image": "main:1"}]}}));
    pod["metadata"]["labels"] = labels;
    pod
}

pub(crate) fn config_map(name: &str, labels: Value, data: Value) -> Value {
    let mut config_map = object("v1", "ConfigMap", name, json!({"data": data}));
    config_map["metadata"]["labels"] = labels;
    config_map
}

pub(crate) fn widget(name: &str, labels: Value, spec: Value) -> Value {
    let mut widget = object("test.forebay.dev/v1", "Widget", name, json!({"spec": spec}));
    widget["metadata"]["labels"] = labels;
    widget
}

pub(crate) fn region(name: &str) -> Value {
    object("test.forebay.dev/v1", "Region", name, json!({"spec": {"continent": "Europe"}}))
}

/// POSTs each body to its path, sixteen at a time.
pub(crate) async fn create_all(client: &HttpClient, objects: Vec<(String, Value)>) {
    let mut queue = objects.into_iter();
    let mut running = tokio::task::JoinSet::new();
    loop {
        while running.len() < 16
            && let Some((path, body)) = queue.next()
        {
            let client = client.clone();
            running.spawn(async move { drop(client.post(&path, &body).await) });
        }
        match running.join_next().await {
            Some(done) => done.unwrap(),
            None => return,
        }
    }
}

/// Polls until the condition holds; panics at the deadline with what was waited for.
pub(crate) async fn eventually(within: Duration, what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + within;
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

fn widgets() -> Value {
    definition(
        "widgets",
        "Widget",
        "WidgetCollection",
        "Namespaced",
        json!({"selectableFields": [{"jsonPath": ".spec.color"}]}),
    )
}

fn regions() -> Value {
    definition("regions", "Region", "RegionList", "Cluster", json!({}))
}

fn definition(plural: &str, kind: &str, list_kind: &str, scope: &str, version: Value) -> Value {
    let mut v1 = json!({
        "name": "v1",
        "served": true,
        "storage": true,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"spec": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"color": {"type": "string"}},
            }},
        }},
    });
    if let (Some(to), Value::Object(from)) = (v1.as_object_mut(), version) {
        to.extend(from);
    }
    object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &format!("{plural}.test.forebay.dev"),
        json!({"spec": {
            "group": "test.forebay.dev",
            "scope": scope,
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": list_kind},
            "versions": [v1],
        }}),
    )
}
