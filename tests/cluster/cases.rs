//! Public bug reports (`CON-06` and so on) that need a real API server to be shown absent.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::client::HttpClient;
use crate::control_plane::ControlPlane;
use crate::fixtures::{WIDGETS, config_map, deployment, eventually, in_namespace, pod, widget};
use crate::forebay::Forebay;
use crate::pair::{Pair, list_rv};
use crate::users::{Role, Users, object};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// CON-06: a watch from the version of a list gives each later change, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_then_watch_loses_and_repeats_nothing() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("con06").await;
    let pair = Pair::start(plane, Role::Reader).await;
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let collection = in_namespace("/api/v1/configmaps", &namespace);
    pair.same(&collection).await;

    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let (rig, collection, stopped) = (rig.clone(), collection.clone(), stopped.clone());
        writers.spawn(async move {
            for n in 0.. {
                if *stopped.borrow() {
                    return;
                }
                let name = format!("w{writer}-{}", n % 7);
                let body = config_map(&name, json!({}), json!({"n": n.to_string()})).to_string();
                let path = format!("{collection}/{name}");
                match n % 3 {
                    0 | 1 if rig.request(Method::POST, &collection, &JSON, body.clone()).await.status == 409 => {
                        rig.request(Method::PUT, &path, &JSON, body).await;
                    }
                    0 | 1 => {}
                    _ => drop(rig.request(Method::DELETE, &path, &[], "").await),
                }
            }
        });
    }
    for round in 0..20 {
        let query = ["", "?resourceVersion=0", "?limit=500"][round % 3];
        let list = pair.through.get(&format!("{collection}{query}")).await;
        assert_eq!(list.status, 200, "{}", list.describe());
        let (from, parsed) = (list_rv(&list.body), list.json());
        let mut map: BTreeMap<String, u64> =
            parsed["items"].as_array().unwrap().iter().map(|object| (name(object), rv(object))).collect();
        assert!(map.values().all(|rv| *rv <= from), "round {round}: the list is older than an object in it");
        let watch = format!("{collection}?watch=true&allowWatchBookmarks=true&timeoutSeconds=2&resourceVersion={from}");
        for event in events(&pair.through, &watch).await {
            let object = &event["object"];
            match event["type"].as_str().unwrap() {
                "ADDED" => assert!(map.insert(name(object), rv(object)).is_none(), "round {round}: repeated {event}"),
                "MODIFIED" => {
                    let before = map.insert(name(object), rv(object));
                    assert!(
                        before.is_some_and(|before| before < rv(object)),
                        "round {round}: {before:?}, then {event}"
                    );
                }
                "DELETED" => assert!(map.remove(&name(object)).is_some(), "round {round}: lost before {event}"),
                "BOOKMARK" => {}
                _ => panic!("round {round}: {event}"),
            }
        }
    }
    stop.send(true).unwrap();
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }
    pair.same(&collection).await;
}

/// The events of a watch until the server ends it.
async fn events(client: &HttpClient, path: &str) -> Vec<Value> {
    let answer = client.open(Method::GET, path, &[], "").await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    let body =
        tokio::time::timeout(Duration::from_secs(20), answer.into_body().collect()).await.expect("the watch ends");
    let bytes = body.unwrap().to_bytes();
    bytes
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// SEL-11: absent, null, empty and unknown are kept apart; what is read can be put back without a change.
#[tokio::test]
async fn read_modify_write_changes_nothing_else() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("sel11").await;
    let pair = Pair::start(plane, Role::Editor).await;
    let widgets = in_namespace(WIDGETS, &namespace);
    let spec =
        json!({"null": null, "object": {}, "list": [], "string": "", "unknown": {"deep": [null, {}]}, "color": "red"});
    pair.through.post(&widgets, &widget("shapes", json!({}), spec)).await;
    let services = in_namespace("/api/v1/services", &namespace);
    let service = object("v1", "Service", "plain", json!({"spec": {"ports": [{"port": 80}]}}));
    pair.through.post(&services, &service).await;
    for path in [format!("{widgets}/shapes"), format!("{services}/plain")] {
        let first = pair.same(&path).await;
        for _ in 0..100 {
            let read = pair.through.get(&path).await;
            assert_eq!(read.body, first.body, "{path}");
            let put = pair.through.request(Method::PUT, &path, &JSON, read.body).await;
            assert_eq!(put.status, 200, "{path}: {}", put.describe());
            assert_eq!(rv(&put.json()), rv(&first.json()), "{path}: something has changed");
        }
    }
    for collection in [&widgets, &services] {
        pair.same(collection).await;
    }
}

/// SEL-12: megabytes of multi-byte characters pass the watch parser whole.
#[tokio::test]
async fn big_objects_arrive_by_watch_as_they_are() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("sel12").await;
    let pair = Pair::start(plane, Role::Reader).await;
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let (config_maps, widgets) = (in_namespace("/api/v1/configmaps", &namespace), in_namespace(WIDGETS, &namespace));
    for collection in [&config_maps, &widgets] {
        pair.same(collection).await;
    }
    // After the lists: these come as events.
    let text = "å\u{20ac}\u{1f30a}<\"\\".repeat(70_000);
    rig.post(&config_maps, &config_map("big", json!({}), json!({"text": text}))).await;
    rig.post(&widgets, &widget("big", json!({}), json!({"text": "\u{1f30a}é".repeat(220_000)}))).await;
    for collection in [&config_maps, &widgets] {
        let path = format!("{collection}/big");
        eventually(Duration::from_secs(20), &path, async || {
            pair.through.get(&path).await.header("x-forebay").starts_with("hit")
        })
        .await;
        let answer = pair.same(&path).await;
        assert!(answer.body.len() > 700_000, "{} bytes", answer.body.len());
        pair.same(collection).await;
    }
}

/// SEL-13: the same name in five resources, subresources, short and odd paths.
#[tokio::test]
async fn odd_paths_get_the_same_answer() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("sel13").await;
    let pair = Pair::start(plane, Role::Editor).await;
    let at = |collection: &str| in_namespace(collection, &namespace);
    let secret = object("v1", "Secret", "nginx", json!({"stringData": {"k": "secret"}}));
    let service = object("v1", "Service", "nginx", json!({"spec": {"ports": [{"port": 80}]}}));
    pair.direct.post(&at("/api/v1/secrets"), &secret).await;
    pair.direct.post(&at("/api/v1/configmaps"), &config_map("nginx", json!({}), json!({"k": "config"}))).await;
    pair.direct.post(&at("/api/v1/services"), &service).await;
    pair.direct.post(&at("/api/v1/serviceaccounts"), &object("v1", "ServiceAccount", "nginx", json!({}))).await;
    pair.direct.post(&at("/api/v1/pods"), &pod("nginx", json!({}))).await;
    pair.direct.post(&at("/apis/apps/v1/deployments"), &deployment("nginx")).await;
    let role =
        object("rbac.authorization.k8s.io/v1", "ClusterRole", &format!("test:{namespace}:odd"), json!({"rules": []}));
    pair.direct.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;

    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let mut paths: Vec<String> = [
        "/api",
        "/api/",
        "/apis",
        "/apis/",
        "/apis/apps",
        "/apis/apps/v1",
        "/api/v1",
        "/version",
        "/healthz",
        "/livez/ping",
        "/openapi/v3",
        "/",
        "/api/v1/",
        "/apis/apps/",
        "//api/v1/pods",
        "/api//v1/pods",
        "/apis/no.such.group",
        "/metrics/none",
        "/api/v1/namespaces//replicationcontrollers?limit=1",
        "/api/v1/namespaces/none/pods/",
        "/api/v1/watch/none",
        "/.well-known/openid-configuration",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.push(format!("{roles}/test:{namespace}:odd"));
    paths.push(format!("{roles}/test%3A{namespace}%3Aodd"));
    paths.push(format!("{roles}/system:node"));
    paths.push(format!("/api/v1/namespaces/{namespace}"));
    paths.push(format!("/api/v1/namespaces/{namespace}/status"));
    paths.push(format!("/api/v1/namespaces/{namespace}/finalize"));
    paths.push(format!("/api/v1/namespaces/{namespace}/nginx"));
    paths.push(format!("/api/v1/namespaces/{namespace}/pods"));
    paths.push(format!("/api/v1/namespaces/{namespace}/pods/../pods/nginx"));
    paths.push(format!("/api/v1/namespaces/{namespace}/%2e%2e/pods"));
    paths.push(format!("/api/v1/namespaces/{namespace}/config%6Daps/nginx"));
    paths.push(format!("/api/v1/namespaces/{namespace}/pods/nginx//"));
    paths.push(format!("/api/v1/namespaces/{namespace}/pods/nginx?watch=true&timeoutSeconds=1"));
    paths.push(format!("/api/v1/proxy/namespaces/{namespace}/pods/nginx"));
    for resource in ["secrets", "configmaps", "services", "serviceaccounts", "pods"] {
        let path = format!("{}/nginx", at(&format!("/api/v1/{resource}")));
        for end in ["", "/", "/status", "/scale", "/log", "/nosuch", "/status/extra", "?pretty=true"] {
            paths.push(format!("{path}{end}"));
        }
    }
    for end in ["/status", "/scale", "/nosuch"] {
        paths.push(format!("{}/nginx{end}", at("/apis/apps/v1/deployments")));
    }
    for warm in [false, true] {
        for path in &paths {
            let answer = pair.same(path).await;
            assert!(answer.status != 502 && answer.status != 500 || !warm, "{path}: {}", answer.describe());
        }
        for method in [Method::HEAD, Method::OPTIONS] {
            for path in [
                format!("{}/nginx", at("/api/v1/configmaps")),
                at("/api/v1/configmaps"),
                at(WIDGETS),
                "/healthz".to_owned(),
            ] {
                pair.same_with(method.clone(), &path, &[]).await;
            }
        }
    }
}

/// SEC-07: no credential and no secret in a log or a metric.
#[tokio::test]
async fn credentials_stay_out_of_logs_and_metrics() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("sec07").await;
    let user = plane.user(Role::Editor);
    let forebay = Forebay::start_with(&plane.kubeconfig(&user), &["--v=10"]).await;
    let client = forebay.client().await;
    let secrets = in_namespace("/api/v1/secrets", &namespace);
    let body = object("v1", "Secret", "s", json!({"stringData": {"k": "marker-of-a-secret"}}));
    client.post(&secrets, &body).await;
    client.get(&format!("{secrets}/s")).await;
    client.get(&secrets).await;
    client.get_with(&secrets, &[("cookie", "marker-of-a-cookie")]).await;
    let foreign = client.clone().with_token(Some("marker-of-a-token"));
    assert_eq!(foreign.get(&secrets).await.status, 401);
    client.request(Method::POST, &secrets, &JSON, r#"{"marker-of-a-body": "#).await;
    client.get(&format!("{secrets}?token=marker-of-a-query")).await;
    let own_token = forebay.client().await.bearer();
    let text = format!("{}{}", forebay.log(), String::from_utf8_lossy(&forebay.admin("/metrics").await.body));
    let encoded = crate::client::base64("marker-of-a-secret");
    for marker in ["marker-of-a", &encoded, &user.token, &own_token] {
        assert!(!text.contains(marker), "{marker} is in a log or a metric");
    }
}

/// OPS-04: the labels of metrics come from bounded sets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_do_not_grow_with_what_clients_send() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Reader).await;
    pair.same("/api/v1/namespaces/default/configmaps").await;
    for n in 0..300 {
        let client = pair.through.clone().with_user_agent(&format!("agent-{n}"));
        client.get(&format!("/api/v1/namespaces/default/configmaps/unique-{n}")).await;
        client.get(&format!("/random/{n}")).await;
        client.get(&format!("/apis/group-{n}.example/v1/things-{n}")).await;
        client.try_request(Method::from_bytes(format!("FOO{n}").as_bytes()).unwrap(), "/api", &[], "").await.ok();
    }
    let metrics = pair.forebay.admin("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body);
    assert!(text.lines().count() < 2_000, "{} lines", text.lines().count());
    for marker in ["unique-", "random", "things-", "agent-", "FOO"] {
        assert!(!text.contains(marker), "{marker} is a label");
    }
}

/// CRD-01: a deleted definition takes its objects along; a new one brings only its own.
#[tokio::test]
async fn a_deleted_and_recreated_definition() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Reader).await;
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let limit = Duration::from_secs(20);
    let collection = "/apis/short.forebay.dev/v1/namespaces/default/gadgets";
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gadgets.short.forebay.dev"},
        "spec": {"group": "short.forebay.dev", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"}, "versions": [{
            "name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        }]},
    });
    for life in 0..3 {
        rig.post(definitions, &definition).await;
        eventually(limit, "the definition is served", async || rig.get(collection).await.status == 200).await;
        for n in 0..10 {
            rig.post(collection, &object("short.forebay.dev/v1", "Gadget", &format!("g{n}"), json!({"life": life})))
                .await;
        }
        eventually(limit, "forebay shows the new objects", async || {
            let answer = pair.through.get(&format!("{collection}/g0")).await;
            answer.status == 200 && answer.json()["life"] == life
        })
        .await;
        let list = pair.same(collection).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 10);
        rig.request(Method::DELETE, &format!("{definitions}/gadgets.short.forebay.dev"), &[], "").await;
        eventually(limit, "the API server has dropped it", async || rig.get(collection).await.status == 404).await;
        eventually(Duration::from_secs(10), "forebay has dropped it", async || {
            pair.through.get(collection).await.status == 404
                && pair.through.get(&format!("{collection}/g0")).await.status == 404
        })
        .await;
        pair.same(collection).await;
    }
    let lines = pair.forebay.log().lines().count();
    assert!(lines < 1_000, "{lines} log lines: an error is being repeated");
}

/// OPS-02: SIGTERM ends it with code 0, and what is in flight is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains() {
    let plane = ControlPlane::shared();
    let mut forebay = Forebay::start(&plane.kubeconfig(&plane.user(Role::Editor))).await;
    let client = forebay.client().await;
    assert_eq!(client.get("/api/v1/namespaces/default").await.status, 200);
    let watch = "/api/v1/namespaces?watch=true&timeoutSeconds=60";
    let mut open = client.open(Method::GET, watch, &[], "").await.unwrap().into_body();
    assert!(open.frame().await.is_some(), "the watch has begun");
    let ended =
        tokio::task::spawn_blocking(move || forebay.process().terminate(Duration::from_secs(30))).await.unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    // A clean end of the stream, not a torn connection.
    while let Some(frame) = open.frame().await {
        frame.expect("the watch ends cleanly");
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn rv(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}
