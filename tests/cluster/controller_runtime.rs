//! A controller-runtime controller of 500 objects through forebay: forebay is killed in mid-work, then the API server, and
//! the end is the same as without either, with no child made twice.
//!
//! Its children have random names (see `controllers/`), so a single read that wrongly shows none of them makes one too many.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::build::CONTROLLERS;
use crate::client::HttpClient;
use crate::control_plane::{ControlPlane, Options};
use crate::fixtures::{WIDGETS, create_all, eventually, in_namespace, widget};
use crate::forebay::Forebay;
use crate::programs::GoClient;
use crate::users::{Role, Users};

const OBJECTS: usize = 500;
const LIMIT: Duration = Duration::from_secs(180);
const CONFIG_MAPS: &str = "/api/v1/configmaps";
const SECRETS: &str = "/api/v1/secrets";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interruptions_leave_no_trace() {
    let mut plane = ControlPlane::start(Options::default()).unwrap();
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let user = plane.user(Role::Editor);
    let upstream = plane.kubeconfig(&user);

    let namespace = fill(&plane, &rig).await;
    let controller = start(&upstream, &namespace).await;
    ready(&rig, &namespace, OBJECTS).await;
    delete_a_fifth(&rig, &namespace).await;
    let direct = end(&rig, &namespace).await;
    drop(controller);

    let namespace = fill(&plane, &rig).await;
    let forebay = Forebay::start(&upstream).await;
    let controller = start(forebay.kubeconfig(), &namespace).await;
    ready(&rig, &namespace, OBJECTS / 5).await;
    // SIGKILL. Its clients need the new kubeconfig, so in a pod the containers restart together.
    drop(forebay);
    drop(controller);
    let forebay = Forebay::start(&upstream).await;
    let controller = start(forebay.kubeconfig(), &namespace).await;
    ready(&rig, &namespace, OBJECTS / 2).await;
    plane.restart_apiserver().await;
    ready(&rig, &namespace, OBJECTS).await;
    delete_a_fifth(&rig, &namespace).await;
    let through = end(&rig, &namespace).await;
    drop(controller);

    assert_eq!(direct.len(), OBJECTS - OBJECTS / 5);
    for (name, expected) in &direct {
        assert_eq!(through.get(name), Some(expected), "{name}");
    }
    assert_eq!(direct.len(), through.len());
    let hits = forebay.admin("/metrics").await;
    let hits = String::from_utf8_lossy(&hits.body).lines().filter(|line| line.contains("outcome=\"hit\"")).count();
    assert!(hits > 0, "the cache has answered nothing");
}

async fn fill(plane: &ControlPlane, rig: &HttpClient) -> String {
    let namespace = plane.namespace("runtime").await;
    let path = in_namespace(WIDGETS, &namespace);
    let widgets = (0..OBJECTS).map(|n| (path.clone(), widget(&format!("widget-{n}"), json!({}), json!({"n": n}))));
    create_all(rig, widgets.collect()).await;
    namespace
}

async fn start(kubeconfig: &Path, namespace: &str) -> GoClient {
    let (kubeconfig, namespace) =
        (format!("--kube-config={}", kubeconfig.display()), format!("--namespace={namespace}"));
    GoClient::start_program(&CONTROLLERS, &[&kubeconfig, &namespace], &[]).await
}

async fn ready(rig: &HttpClient, namespace: &str, expected: usize) {
    let what = format!("{namespace}: {expected} widgets are ready");
    eventually(LIMIT, &what, async || {
        let widgets = items(rig, WIDGETS, namespace).await;
        widgets.iter().filter(|widget| widget["status"]["phase"] == "Ready").count() >= expected
    })
    .await;
}

/// Every fifth goes, and takes its children along: the finalizer sees to it.
async fn delete_a_fifth(rig: &HttpClient, namespace: &str) {
    for n in (0..OBJECTS).step_by(5) {
        let path = format!("{}/widget-{n}", in_namespace(WIDGETS, namespace));
        let answer = rig.request(Method::DELETE, &path, &[], "").await;
        assert!(answer.status.is_success(), "{path}: {}", answer.describe());
    }
    let left = OBJECTS - OBJECTS / 5;
    eventually(LIMIT, "the deleted widgets are gone", async || items(rig, WIDGETS, namespace).await.len() == left)
        .await;
}

/// What is left of each Widget: its finalizers, its phase, its children. Each child must be the one its status names.
async fn end(rig: &HttpClient, namespace: &str) -> BTreeMap<String, Value> {
    let mut left = BTreeMap::new();
    for widget in items(rig, WIDGETS, namespace).await {
        let name = widget["metadata"]["name"].as_str().unwrap().to_owned();
        left.insert(name, json!({"finalizers": widget["metadata"]["finalizers"], "phase": widget["status"]["phase"]}));
        for (kind, collection) in [("configMap", CONFIG_MAPS), ("secret", SECRETS)] {
            let label = widget["metadata"]["name"].as_str().unwrap();
            let path = format!("{}?labelSelector=widget%3D{label}", in_namespace(collection, namespace));
            let children = rig.get(&path).await.json()["items"].as_array().unwrap().clone();
            assert_eq!(children.len(), 1, "{label}: children in {collection}: {children:#?}");
            assert_eq!(children[0]["metadata"]["name"], widget["status"][kind], "{label}: its {kind}");
            assert_eq!(children[0]["metadata"]["ownerReferences"][0]["uid"], widget["metadata"]["uid"], "{label}");
        }
    }
    for collection in [CONFIG_MAPS, SECRETS] {
        assert_eq!(items(rig, collection, namespace).await.len(), left.len(), "{collection} without a widget");
    }
    left
}

async fn items(rig: &HttpClient, collection: &str, namespace: &str) -> Vec<Value> {
    // The API server may be starting again.
    let path = in_namespace(collection, namespace);
    match rig.try_request(Method::GET, &path, &[], "").await {
        Ok(answer) if answer.status.is_success() => answer.json()["items"].as_array().cloned().unwrap_or_default(),
        _ => Vec::new(),
    }
}
