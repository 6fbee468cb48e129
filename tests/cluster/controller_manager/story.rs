//! What happens to the cluster, chapter by chapter. Each ends when the controllers have brought about what they should.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::client::HttpClient;
use crate::control_plane::ControlPlane;
use crate::fixtures::{WIDGETS, config_map, create_all, deployment, eventually, in_namespace, pod, widget};
use crate::users::object;

use super::managers::Managers;

pub(super) const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
pub(super) const REPLICA_SETS: &str = "/apis/apps/v1/replicasets";
pub(super) const PODS: &str = "/api/v1/pods";
pub(super) const CONFIG_MAPS: &str = "/api/v1/configmaps";
pub(super) const NAMESPACES: usize = 4;
const EACH: usize = 50;
const REPLICAS: usize = 3;
/// For one chapter, on two busy cores.
const CHAPTER: Duration = Duration::from_secs(180);

pub(super) async fn roll_out(rig: &HttpClient, namespaces: &[String]) {
    let objects = namespaces.iter().flat_map(|namespace| {
        (0..EACH).map(|n| {
            let mut deployment = deployment(&format!("deployment-{n}"));
            deployment["spec"]["replicas"] = json!(REPLICAS);
            (in_namespace(DEPLOYMENTS, namespace), deployment)
        })
    });
    create_all(rig, objects.collect()).await;
    settled(rig, namespaces, REPLICAS, "1").await;
}

pub(super) async fn update(rig: &HttpClient, namespaces: &[String], managers: &mut Managers) {
    let image =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "registry.example/main:2"}]}}}});
    let (before, after) = namespaces.split_at(namespaces.len() / 2);
    patch_all(rig, before, "", &image).await;
    managers.kill_the_leader(rig).await;
    patch_all(rig, after, "", &image).await;
    managers.another_leads(rig).await;
    settled(rig, namespaces, REPLICAS, "2").await;
}

pub(super) async fn scale_to_zero(rig: &HttpClient, namespaces: &[String]) {
    patch_all(rig, namespaces, "/scale", &json!({"spec": {"replicas": 0}})).await;
    settled(rig, namespaces, 0, "2").await;
    for namespace in namespaces {
        let pods = in_namespace(PODS, namespace);
        eventually(CHAPTER, &pods, async || items(rig, &pods).await.is_empty()).await;
    }
}

/// A strategic merge patch of each Deployment.
async fn patch_all(rig: &HttpClient, namespaces: &[String], subresource: &str, patch: &Value) {
    let kind =
        if subresource.is_empty() { "application/strategic-merge-patch+json" } else { "application/merge-patch+json" };
    let paths = namespaces.iter().flat_map(|namespace| {
        (0..EACH).map(|n| format!("{}/deployment-{n}{subresource}", in_namespace(DEPLOYMENTS, namespace)))
    });
    for path in paths {
        let answer = rig.request(Method::PATCH, &path, &[("content-type", kind)], patch.to_string()).await;
        assert!(answer.status.is_success(), "PATCH {path}: {}", answer.describe());
    }
}

/// Waits until each Deployment says that its controller has nothing left to do.
async fn settled(rig: &HttpClient, namespaces: &[String], replicas: usize, revision: &str) {
    let done = |deployment: &Value| {
        let status = |field: &str| deployment["status"][field].as_u64().unwrap_or(0);
        let replicas = replicas as u64;
        status("observedGeneration") == deployment["metadata"]["generation"].as_u64().unwrap()
            && ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]
                .iter()
                .all(|f| status(f) == replicas)
            && deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == revision
    };
    for namespace in namespaces {
        let path = in_namespace(DEPLOYMENTS, namespace);
        let all = async || {
            let deployments = items(rig, &path).await;
            deployments.len() == EACH && deployments.iter().all(done)
        };
        eventually(CHAPTER, &format!("{path}: {replicas} replicas each"), all).await;
    }
}

/// Each way to delete an owner, and references that point to nothing.
pub(super) async fn collect_owners(rig: &HttpClient, namespace: &str) {
    let collection = in_namespace(CONFIG_MAPS, namespace);
    let mut dependents = Vec::new();
    let mut owners = BTreeMap::new();
    for policy in ["Foreground", "Background", "Orphan", "Kept"] {
        let name = format!("owner-{}", policy.to_lowercase());
        let owner = rig.post(&collection, &config_map(&name, json!({}), json!({}))).await;
        owners.insert(policy, owner_reference(&owner));
    }
    let gone = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "never-was", "uid": "00000000-0000-4000-8000-000000000000"});
    let mut add = |kind: &str, owners: Value| {
        for n in 0..5 {
            let mut map = config_map(&format!("{kind}-{n}"), json!({}), json!({}));
            map["metadata"]["ownerReferences"] = owners.clone();
            dependents.push((collection.clone(), map));
            let mut widget = widget(&format!("{kind}-{n}"), json!({}), json!({}));
            widget["metadata"]["ownerReferences"] = owners.clone();
            dependents.push((in_namespace(WIDGETS, namespace), widget));
        }
    };
    for (policy, owner) in &owners {
        add(&format!("of-{}", policy.to_lowercase()), json!([owner]));
    }
    add("of-two", json!([owners["Background"], owners["Kept"]]));
    add("of-nobody", json!([gone]));
    create_all(rig, dependents).await;
    // A Deployment and its pods: a chain, with blockOwnerDeletion.
    for name in ["foreground", "orphan"] {
        rig.post(&in_namespace(DEPLOYMENTS, namespace), &deployment(name)).await;
    }
    let ready = async || {
        items(rig, &in_namespace(DEPLOYMENTS, namespace)).await.iter().all(|d| d["status"]["readyReplicas"] == 1)
    };
    eventually(CHAPTER, "the Deployments to delete", ready).await;

    for policy in ["Foreground", "Background", "Orphan"] {
        delete(rig, &format!("{collection}/owner-{}", policy.to_lowercase()), policy).await;
    }
    for (name, policy) in [("foreground", "Foreground"), ("orphan", "Orphan")] {
        delete(rig, &format!("{}/{name}", in_namespace(DEPLOYMENTS, namespace)), policy).await;
    }
    let names = async |collection: &str| -> BTreeSet<String> {
        items(rig, &in_namespace(collection, namespace))
            .await
            .iter()
            .map(|o| o["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let of = |kind: &str| (0..5).map(|n| format!("{kind}-{n}")).collect::<Vec<_>>();
    let kept: BTreeSet<String> = [of("of-orphan"), of("of-kept"), of("of-two")].concat().into_iter().collect();
    eventually(CHAPTER, "widgets of deleted owners", async || names(WIDGETS).await == kept).await;
    let mut maps = kept;
    maps.extend(["owner-kept", "kube-root-ca.crt"].map(str::to_owned));
    eventually(CHAPTER, "config maps of deleted owners", async || names(CONFIG_MAPS).await == maps).await;
    eventually(CHAPTER, "the Deployments' own", async || {
        let sets = items(rig, &in_namespace(REPLICA_SETS, namespace)).await;
        names(DEPLOYMENTS).await.is_empty()
            && names(PODS).await.len() == 1
            && sets.len() == 1
            && sets[0]["metadata"]["ownerReferences"].is_null()
    })
    .await;
    let two = rig.get(&format!("{collection}/of-two-0")).await.json();
    assert_eq!(two["metadata"]["ownerReferences"].as_array().unwrap().len(), 1, "the owner that is left: {two}");
}

fn owner_reference(owner: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": true,
    })
}

async fn delete(rig: &HttpClient, path: &str, policy: &str) {
    let options = json!({"propagationPolicy": policy}).to_string();
    let answer = rig.request(Method::DELETE, path, &[("content-type", "application/json")], options).await;
    assert!(answer.status.is_success(), "DELETE {path}: {}", answer.describe());
}

/// Whatever a namespace can hold, running; then it goes.
pub(super) async fn delete_a_namespace(plane: &ControlPlane, rig: &HttpClient) {
    let namespace = plane.namespace("whole").await;
    let template = |name: &str, restart: &str| {
        json!({
            "metadata": {"labels": {"app": name}},
            "spec": {"restartPolicy": restart, "containers": [{"name": "main", "image": "main:1"}]},
        })
    };
    let app = |kind: &str, name: &str, more: Value| {
        let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template(name, "Always")});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object("apps/v1", kind, name, json!({"spec": spec}))
    };
    let job = json!({"completions": 4, "parallelism": 2, "template": template("job", "Never")});
    let cron = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}});
    let service = json!({"selector": {"app": "stateful"}, "ports": [{"port": 80}]});
    let rbac = "rbac.authorization.k8s.io";
    let mut objects = vec![
        (DEPLOYMENTS, app("Deployment", "web", json!({"replicas": 5}))),
        (
            "/apis/apps/v1/statefulsets",
            app("StatefulSet", "stateful", json!({"replicas": 3, "serviceName": "stateful"})),
        ),
        ("/apis/apps/v1/daemonsets", app("DaemonSet", "daemon", json!({}))),
        ("/apis/batch/v1/jobs", object("batch/v1", "Job", "job", json!({"spec": job}))),
        ("/apis/batch/v1/cronjobs", object("batch/v1", "CronJob", "cron", json!({"spec": cron}))),
        ("/api/v1/services", object("v1", "Service", "stateful", json!({"spec": service}))),
        ("/api/v1/serviceaccounts", object("v1", "ServiceAccount", "robot", json!({}))),
        ("/api/v1/secrets", object("v1", "Secret", "secret", json!({"stringData": {"k": "v"}}))),
        ("/api/v1/resourcequotas", object("v1", "ResourceQuota", "quota", json!({"spec": {"hard": {"pods": "100"}}}))),
        (
            "/apis/policy/v1/poddisruptionbudgets",
            object(
                "policy/v1",
                "PodDisruptionBudget",
                "budget",
                json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}),
            ),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/roles",
            object(&format!("{rbac}/v1"), "Role", "role", json!({"rules": []})),
        ),
        ("/apis/coordination.k8s.io/v1/leases", object("coordination.k8s.io/v1", "Lease", "lease", json!({}))),
        (PODS, pod("bare", json!({}))),
    ];
    for n in 0..20 {
        objects.push((CONFIG_MAPS, config_map(&format!("cm-{n}"), json!({}), json!({}))));
        objects.push((WIDGETS, widget(&format!("widget-{n}"), json!({}), json!({}))));
    }
    create_all(rig, objects.into_iter().map(|(path, body)| (in_namespace(path, &namespace), body)).collect()).await;
    let get = async |path: &str| rig.get(&in_namespace_object(path, &namespace)).await.json();
    for (path, field, expected) in [
        ("/apis/apps/v1/deployments/web", "readyReplicas", 5),
        ("/apis/apps/v1/statefulsets/stateful", "readyReplicas", 3),
        ("/apis/apps/v1/daemonsets/daemon", "numberReady", 1),
        ("/apis/batch/v1/jobs/job", "succeeded", 4),
        ("/apis/policy/v1/poddisruptionbudgets/budget", "currentHealthy", 5),
    ] {
        eventually(CHAPTER, path, async || get(path).await["status"][field] == expected).await;
    }
    let quota = async || get("/api/v1/resourcequotas/quota").await["status"]["used"]["pods"] == "10";
    eventually(CHAPTER, "the quota counts the pods that have not ended", quota).await;
    let slices = in_namespace("/apis/discovery.k8s.io/v1/endpointslices", &namespace);
    eventually(CHAPTER, "three endpoints", async || {
        let endpoints = items(rig, &slices)
            .await
            .iter()
            .map(|slice| slice["endpoints"].as_array().map_or(0, Vec::len))
            .sum::<usize>();
        endpoints == 3
    })
    .await;

    delete(rig, &format!("/api/v1/namespaces/{namespace}"), "Background").await;
    let gone = async || rig.get(&format!("/api/v1/namespaces/{namespace}")).await.status == StatusCode::NOT_FOUND;
    eventually(CHAPTER, "the namespace is gone", gone).await;
    for collection in [
        DEPLOYMENTS,
        REPLICA_SETS,
        PODS,
        CONFIG_MAPS,
        WIDGETS,
        "/api/v1/secrets",
        "/apis/coordination.k8s.io/v1/leases",
    ] {
        let left = items(rig, &in_namespace(collection, &namespace)).await;
        assert!(left.is_empty(), "{collection} outlived its namespace: {left:?}");
    }
}

/// From `/api/v1/pods/name` the path in a namespace.
fn in_namespace_object(path: &str, namespace: &str) -> String {
    let (collection, name) = path.rsplit_once('/').unwrap();
    format!("{}/{name}", in_namespace(collection, namespace))
}

pub(super) async fn items(rig: &HttpClient, collection: &str) -> Vec<Value> {
    let answer = rig.get(collection).await;
    assert_eq!(answer.status, StatusCode::OK, "{collection}: {}", answer.describe());
    answer.json()["items"].as_array().cloned().unwrap_or_default()
}
