//! Cold start: a crowd of reads at an unsynced forebay is answered correctly from one list.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::time::Instant;

use crate::client::Protocol;
use crate::control_plane::ControlPlane;
use crate::fixtures::{config_map, create_all, eventually, in_namespace};
use crate::forebay::Forebay;
use crate::pair::{Pair, masked};
use crate::users::{Role, Users};

const OBJECTS: usize = 2_000;
const READS: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_reads_are_answered_from_one_list() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("cold").await;
    let collection = in_namespace("/api/v1/configmaps", &namespace);
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let objects = (0..OBJECTS).map(|n| {
        let labels = json!({"bucket": (n % 10).to_string()});
        (collection.clone(), config_map(&format!("cm-{n}"), labels, json!({"n": n.to_string()})))
    });
    create_all(&rig, objects.collect()).await;
    let whole = masked(&rig.get(&collection).await.body);
    let bucket = masked(&rig.get(&format!("{collection}?labelSelector=bucket%3D3")).await.body);

    let user = plane.user(Role::Reader);
    let forebay = Forebay::start(&plane.kubeconfig(&user)).await;
    let clients = [forebay.client_over(Protocol::Http1).await, forebay.client_over(Protocol::Http2).await];
    let mut reads = tokio::task::JoinSet::new();
    for n in 0..READS {
        let client = clients[n % 2].clone().with_user_agent("cold/reader");
        let (collection, whole, bucket) = (collection.clone(), whole.clone(), bucket.clone());
        reads.spawn(async move {
            let (path, expected) = match n % 10 {
                0 => (collection.clone(), Some(whole)),
                1 => (format!("{collection}?labelSelector=bucket%3D3"), Some(bucket)),
                _ => (format!("{collection}/cm-{}", n * 37 % OBJECTS), None),
            };
            let answer = client.get(&path).await;
            assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.describe());
            match expected {
                Some(expected) => assert_eq!(masked(&answer.body).len(), expected.len(), "{path}"),
                None => assert_eq!(answer.json()["data"]["n"], (n * 37 % OBJECTS).to_string(), "{path}"),
            }
        });
    }
    while let Some(read) = reads.join_next().await {
        read.unwrap();
    }
    let reached = |keep: &dyn Fn(&crate::audit::Entry) -> bool| {
        plane.audit().count(|e| e.user() == user.name && e.resource() == "configmaps" && keep(e))
    };
    assert_eq!(reached(&|e| e.is_first_page()), 1, "lists");
    assert_eq!(reached(&|e| e.verb == "get"), 0, "GETs");
    assert_eq!(reached(&|e| e.user_agent == "cold/reader"), 0, "forwarded reads");
}

/// HLD-02 and OPS-01: the port is open at once, and an upstream that is away is neither "none" nor an empty list.
#[tokio::test]
async fn without_upstream_nothing_is_made_up() {
    let plane = ControlPlane::shared();
    let nowhere = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let config = plane.kubeconfig_to(&plane.user(Role::Reader), &format!("https://{nowhere}"));
    let started = Instant::now();
    let forebay = Forebay::start(&config).await;
    assert!(started.elapsed() < Duration::from_secs(5), "listening took {:?}", started.elapsed());
    let client = forebay.client().await;
    for path in [
        "/api/v1/pods?timeout=1s",
        "/api/v1/namespaces/default?timeout=1s",
        "/apis/test.forebay.dev/v1/widgets?timeout=1s",
    ] {
        let answer = client.get(path).await;
        assert!(answer.status.is_server_error(), "{path}: {}", answer.describe());
        let status = answer.json();
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(answer.status.as_u16())), "{path}");
        assert!(status["message"].as_str().is_some_and(|message| !message.is_empty()), "{path}: {status}");
    }
    assert_eq!(forebay.admin("/livez").await.status, 200, "liveness never depends on upstream");
}

/// HLD-01: where forebay may not list, nothing is held: the client sees the API server's own answer.
#[tokio::test]
async fn a_refused_list_ends_the_hold() {
    let plane = ControlPlane::shared();
    let limit = Duration::from_secs(5);
    let pair = Pair::start(plane, Role::Getter).await;
    for path in [
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/none",
        "/api/v1/namespaces",
        "/api/v1/namespaces/default/configmaps/none",
        "/api/v1/configmaps",
        "/apis/test.forebay.dev/v1/widgets",
    ] {
        let started = Instant::now();
        let answer = pair.through.get(path).await;
        assert!(started.elapsed() < limit, "{path}: {} took {:?}", answer.status, started.elapsed());
        crate::pair::assert_same(path, &pair.direct.get(path).await, &answer);
    }

    // Rights in one namespace: there everything works, elsewhere it is refused.
    let pair = Pair::start(plane, Role::Namespaced).await;
    for path in [
        "/api/v1/namespaces/n1/configmaps",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/configmaps",
        "/api/v1/namespaces/n1/configmaps/none",
    ] {
        let started = Instant::now();
        let answer = pair.through.get(path).await;
        assert!(started.elapsed() < limit, "{path}: {} took {:?}", answer.status, started.elapsed());
        crate::pair::assert_same(path, &pair.direct.get(path).await, &answer);
    }
}

/// When the rights appear, caching begins without a restart.
#[tokio::test]
async fn granted_rights_start_the_cache() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Getter).await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/none";
    // Leases are never cached; the resource under test is one that no other test touches.
    assert_eq!(pair.through.get(path).await.status, 404);
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    assert_eq!(pair.through.get(policies).await.status, 403);
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let name = plane.unique("grant");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "list", "watch"]}]);
    rig.post(
        &format!("{rbac}/clusterroles"),
        &crate::users::object("rbac.authorization.k8s.io/v1", "ClusterRole", &name, json!({"rules": rules})),
    )
    .await;
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": pair.user.name});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    rig.post(
        &format!("{rbac}/clusterrolebindings"),
        &crate::users::object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            &name,
            json!({"subjects": [subject], "roleRef": role}),
        ),
    )
    .await;
    eventually(Duration::from_secs(60), "a cached LIST after the grant", async || {
        pair.through.get(policies).await.header("x-forebay").starts_with("hit")
    })
    .await;
}

/// `/readyz?verbose` has one line a resource, and is green once the caches are.
#[tokio::test]
async fn readiness_tells_of_each_resource() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Reader).await;
    pair.same("/api/v1/namespaces/default").await;
    eventually(Duration::from_secs(10), "readyz", async || pair.forebay.admin("/readyz").await.status == 200).await;
    let verbose = pair.forebay.admin("/readyz?verbose").await;
    let text = String::from_utf8_lossy(&verbose.body);
    assert!(text.lines().any(|line| line.starts_with("[+]") && line.contains("namespaces")), "{text}");
    assert!(text.ends_with("readyz check passed\n"), "{text}");
    let excluded = pair.forebay.admin("/readyz?verbose&exclude=no-such-check").await;
    assert!(
        String::from_utf8_lossy(&excluded.body).contains("no-such-check"),
        "an unknown exclude is mentioned, as upstream does"
    );
}
