//! Clients that are not written in Go: a kube-rs and a Python program list, get, create, patch, watch, and work as small
//! operators. Through forebay they see what they see directly, and leave the same behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::build;
use crate::control_plane::ControlPlane;
use crate::fixtures::{WIDGETS, create_all, in_namespace, widget};
use crate::forebay::Forebay;
use crate::users::{Role, Users};

const LIMIT: Duration = Duration::from_secs(120);
const OBJECTS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_rs_sees_and_leaves_the_same() {
    let program = tokio::task::spawn_blocking(build::kube_rs).await.unwrap().unwrap_or_else(|why| panic!("{why}"));
    same(&[program]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_sees_and_leaves_the_same() {
    let python = tokio::task::spawn_blocking(build::python).await.unwrap().unwrap_or_else(|why| panic!("{why}"));
    same(&[python, build::source("python").join("client.py")]).await;
}

async fn same(command: &[PathBuf]) {
    let plane = ControlPlane::shared();
    let direct = plane.kubeconfig(&plane.user(Role::Editor));
    let forebay = Forebay::start(&plane.kubeconfig(&plane.user(Role::Editor))).await;
    let expected = run(plane, command, &direct).await;
    let found = run(plane, command, forebay.kubeconfig()).await;
    assert!(expected.0.len() > 10, "{expected:?}");
    for (found, expected) in found.0.iter().zip(&expected.0) {
        assert_eq!(found, expected, "told");
    }
    assert_eq!(found.0.len(), expected.0.len());
    assert_eq!(found.1, expected.1, "left behind");
    let metrics = forebay.admin("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("outcome=\"hit\""), "the cache has answered nothing: {metrics}");
}

/// What the program tells, and what it leaves behind, in a namespace of its own.
async fn run(plane: &ControlPlane, command: &[PathBuf], kubeconfig: &Path) -> (Vec<Value>, BTreeMap<String, Value>) {
    let namespace = plane.namespace("client").await;
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let path = in_namespace(WIDGETS, &namespace);
    let widgets = (0..OBJECTS).map(|n| (path.clone(), widget(&format!("widget-{n}"), json!({}), json!({"n": n}))));
    create_all(&rig, widgets.collect()).await;
    let child = Command::new(&command[0])
        .args(&command[1..])
        .args([&namespace, &OBJECTS.to_string()])
        .env("KUBECONFIG", kubeconfig)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let output = tokio::time::timeout(LIMIT, child.wait_with_output()).await.expect("it ends").unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{told}\n{errors}", kubeconfig.display());
    let told = told.lines().map(|line| serde_json::from_str(&line.replace(&namespace, "NAMESPACE")).unwrap()).collect();

    let mut left = BTreeMap::new();
    for collection in [WIDGETS, "/api/v1/configmaps"] {
        for object in rig.get(&in_namespace(collection, &namespace)).await.json()["items"].as_array().unwrap() {
            let owner = &object["metadata"]["ownerReferences"][0]["name"];
            let kept = json!([object["data"], object["status"], object["metadata"]["labels"], owner]);
            left.insert(format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap()), kept);
        }
    }
    (told, left)
}
