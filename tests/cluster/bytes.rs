//! GET and LIST through forebay give the API server's own bytes: cold and warm, with selectors, hits and misses.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::control_plane::ControlPlane;
use crate::fixtures::{REGIONS, WIDGETS, config_map, create_all, deployment, in_namespace, pod, region, widget};
use crate::pair::{Pair, assert_hit, assert_same, list_rv};
use crate::users::{Role, Users, object};

/// One resource under test.
struct Resource {
    /// All of it.
    everywhere: String,
    /// The part the test has filled: one namespace, or everything for a cluster-scoped resource.
    collection: String,
    /// Objects that exist.
    names: Vec<String>,
}

impl Resource {
    fn object(&self, n: usize) -> String {
        format!("{}/{}", self.collection, self.names[n])
    }

    fn missing(&self) -> String {
        format!("{}/no-such-object", self.collection)
    }
}

/// Fills a namespace of its own with the six resources of the issue.
async fn fill(plane: &ControlPlane) -> (String, Vec<Resource>) {
    let namespace = plane.namespace("bytes").await;
    let admin = plane.client(&Users::rig()).with_user_agent("rig");
    let (mut objects, mut resources) = (Vec::new(), Vec::new());
    let mut add = |collection: &str, bodies: Vec<Value>| {
        let cluster_scoped = collection == REGIONS || collection == "/api/v1/namespaces";
        let path = if cluster_scoped { collection.to_owned() } else { in_namespace(collection, &namespace) };
        let names = bodies.iter().map(|body| body["metadata"]["name"].as_str().unwrap().to_owned()).collect();
        objects.extend(bodies.into_iter().map(|body| (path.clone(), body)));
        resources.push(Resource { everywhere: collection.to_owned(), collection: path, names });
    };
    let labels = |n: usize| json!({"app": format!("a{}", n % 3), "n": n.to_string()});
    add("/api/v1/pods", (0..7).map(|n| pod(&format!("pod-{n}"), labels(n))).collect());
    let data = json!({
        "html": "<a href=\"x\">&amp;</a>", "separators": "\u{2028}\u{2029}", "emoji": "\u{1f30a} åäö",
        "control": "\u{1}\u{8}\u{c}\t\r\n\u{7f}", "json": "{\"metadata\":{\"resourceVersion\":\"1\"}}", "empty": "",
    });
    add("/api/v1/configmaps", (0..7).map(|n| config_map(&format!("cm.{n}"), labels(n), data.clone())).collect());
    add("/apis/apps/v1/deployments", (0..5).map(|n| deployment(&format!("deployment-{n}"))).collect());
    // `-` sorts before `/`: the order is that of the whole key, not of the pair.
    add(
        "/api/v1/namespaces",
        ["", "-x", "0"].iter().map(|end| object("v1", "Namespace", &format!("{namespace}{end}z"), json!({}))).collect(),
    );
    let spec = json!({
        "color": "blue", "float": 1.0, "tiny": 1e-7, "huge": 1e21, "integer": 9_007_199_254_740_993_i64, "null": null,
        "empty": {}, "list": [], "text": "<\u{2028}>", "resourceVersion": "7", "nested": {"b": [1, {"z": 1, "a": 2}], "a": ""},
    });
    add(WIDGETS, (0..5).map(|n| widget(&format!("widget-{n}"), labels(n), spec.clone())).collect());
    let regions = (0..3).map(|n| region(&format!("{namespace}-{n}"))).collect();
    add(REGIONS, regions);
    create_all(&admin, objects).await;
    (namespace, resources)
}

#[tokio::test]
async fn cold_reads_are_held_and_then_equal() {
    let plane = ControlPlane::shared();
    let (_, resources) = fill(plane).await;
    // Each forebay sees its resources for the first time in this request.
    for read in [
        |r: &Resource| r.collection.clone(),
        |r: &Resource| r.everywhere.clone(),
        |r: &Resource| r.object(0),
        |r: &Resource| r.missing(),
        |r: &Resource| format!("{}?labelSelector=n%3D1", r.collection),
    ] {
        let pair = Pair::start(plane, Role::Reader).await;
        for resource in &resources {
            pair.same(&read(resource)).await;
        }
    }
}

#[tokio::test]
async fn warm_reads_are_hits_and_equal() {
    let plane = ControlPlane::shared();
    let (_, resources) = fill(plane).await;
    let pair = Pair::start(plane, Role::Reader).await;
    for resource in &resources {
        pair.same(&resource.collection).await;
    }
    let mark = plane.audit().mark();
    for resource in &resources {
        for n in 0..resource.names.len() {
            let path = resource.object(n);
            assert_hit(&path, &pair.same(&path).await);
        }
        for path in [
            resource.collection.clone(),
            resource.everywhere.clone(),
            format!("{}?resourceVersion=0", resource.collection),
        ] {
            let answer = pair.same(&path).await;
            assert_hit(&path, &answer);
            let newest = answer.json()["items"].as_array().unwrap().iter().map(rv).max().unwrap();
            assert!(list_rv(&answer.body) >= newest, "{path}: the list is older than an object in it");
        }
        let path = format!("{}?resourceVersion=0", resource.object(0));
        assert_hit(&path, &pair.same(&path).await);
    }
    // Nothing of all that has reached the API server.
    let forwarded = plane.audit().since(mark, |e| e.user() == pair.user.name && e.user_agent == "pair/through");
    assert!(forwarded.is_empty(), "reads were forwarded: {forwarded:?}");
}

#[tokio::test]
async fn selectors_give_the_same_bytes() {
    let plane = ControlPlane::shared();
    let (namespace, resources) = fill(plane).await;
    let pair = Pair::start(plane, Role::Reader).await;
    for resource in &resources {
        pair.same(&resource.collection).await;
        let name = &resource.names[1];
        for query in [
            "labelSelector=n%3D1".to_owned(),
            "labelSelector=app%20in%20(a0,a2),n!%3D3".to_owned(),
            "labelSelector=%21app".to_owned(),
            "labelSelector=".to_owned(),
            format!("fieldSelector=metadata.name%3D{name}"),
            format!("fieldSelector=metadata.name!%3D{name}"),
            format!("fieldSelector=metadata.name%3D{name}&labelSelector=n%3D1"),
            "fieldSelector=metadata.name%3Dnone".to_owned(),
            format!("fieldSelector=metadata.namespace%3D{namespace}"),
            "fieldSelector=no.such.field%3D1".to_owned(),
            "labelSelector=a%3D%3D%3Db".to_owned(),
            "labelSelector=-a".to_owned(),
        ] {
            for collection in [&resource.collection, &resource.everywhere] {
                pair.same(&format!("{collection}?{query}")).await;
            }
        }
    }
    // Bad selectors are refused wherever they are sent.
    pair.same("/api/v1/namespaces/no-such-namespace/pods?labelSelector=%2C").await;
    pair.same("/api/v1/namespaces/no-such-namespace/pods").await;
}

/// SEL-03: missing keys, empty values and the set syntax.
#[tokio::test]
async fn label_operators_and_absent_keys() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("sel03").await;
    let path = in_namespace("/api/v1/configmaps", &namespace);
    let labels = [
        json!({}),
        json!({"a": ""}),
        json!({"a": "x"}),
        json!({"a": "y", "b": "1"}),
        json!({"a": "10"}),
        json!({"ex.io/a": "x"}),
        json!({"in": "x"}),
    ];
    let objects =
        labels.iter().enumerate().map(|(n, l)| (path.clone(), config_map(&format!("l{n}"), l.clone(), json!({}))));
    create_all(&plane.client(&Users::rig()).with_user_agent("rig"), objects.collect()).await;
    let pair = Pair::start(plane, Role::Reader).await;
    assert_eq!(pair.same(&path).await.json()["items"].as_array().unwrap().len(), labels.len());
    let long = format!("a={}", "v".repeat(64));
    for selector in [
        "a",
        "!a",
        "a=",
        "a==x",
        "a!=x",
        "a in (x,y)",
        "a in ()",
        "a in (x,)",
        "a notin (x)",
        "a notin ()",
        "a>5",
        "a<5",
        "a>5,a<11",
        "a>x",
        "a>-1",
        "a=x,b",
        "a=x,a=y",
        " a = x ",
        "a=x=y",
        "a,",
        ",a",
        "a,,b",
        "ex.io/a=x",
        "ex.io/a",
        "in",
        "in in (x)",
        "!in",
        "a In (x)",
        "a exists",
        "ex.io/ a",
        "/a",
        "a/b/c",
        "a=_x",
        "A",
        &long,
        "\ta\n",
        "(a)",
        "a in x",
        "a in (x",
        "a!",
        "! a",
        "!!a",
        "=",
        "a==",
        "a\u{e5}",
    ] {
        let encoded = utf8_percent_encode(selector, NON_ALPHANUMERIC);
        let answer = pair.same(&format!("{path}?labelSelector={encoded}")).await;
        assert!(matches!(answer.status.as_u16(), 200 | 400), "{selector}: {}", answer.describe());
    }
    for query in
        ["labelSelector=a%3Dx&labelSelector=a%3Dy", "labelSelector&labelSelector=a", "labelSelector=a%20in%20(x%2Cy)"]
    {
        pair.same(&format!("{path}?{query}")).await;
    }
}

#[tokio::test]
async fn misses_and_refusals_have_the_same_bodies() {
    let plane = ControlPlane::shared();
    let (namespace, resources) = fill(plane).await;
    let pair = Pair::start(plane, Role::Reader).await;
    for warm in [false, true] {
        for resource in &resources {
            let missing = pair.same(&resource.missing()).await;
            assert_eq!(missing.status, 404, "warm {warm}: {}", missing.describe());
        }
        for path in [
            "/api/v1/nosuchresources".to_owned(),
            "/apis/no.such.group/v1/things".to_owned(),
            "/apis/apps/v9/deployments".to_owned(),
            "/apis/test.forebay.dev/v9/widgets".to_owned(),
            format!("/api/v1/namespaces/{namespace}/nodes"),
            format!("/api/v1/namespaces/{namespace}/pods/pod-0/nosuch"),
            format!("/api/v1/namespaces/{namespace}/pods/A_B"),
            format!("/api/v1/namespaces/{namespace}/pods/a%25b"),
            format!("/api/v1/namespaces/{namespace}/pods/{}", "x".repeat(300)),
            format!("/api/v1/namespaces/{namespace}/pods?limit="),
            format!("/api/v1/namespaces/{namespace}/pods?resourceVersion=abc"),
            format!("/api/v1/namespaces/{namespace}/pods/pod-0?resourceVersion=abc"),
            format!("/api/v1/namespaces/{namespace}/pods?resourceVersionMatch=Exact"),
            format!("/api/v1/namespaces/{namespace}/pods/pod-0?export=true"),
            format!("/api/v1/namespaces/{namespace}/pods?timeout=x"),
            format!("/api/v1/namespaces/{namespace}/pods?continue=junk"),
            "/nothing/here".to_owned(),
        ] {
            pair.same(&path).await;
        }
    }
}

#[tokio::test]
async fn headers_and_forms_that_a_client_may_ask_for() {
    let plane = ControlPlane::shared();
    let (_, resources) = fill(plane).await;
    let pair = Pair::start(plane, Role::Reader).await;
    for resource in &resources {
        pair.same(&resource.collection).await;
        for path in [resource.collection.clone(), resource.object(0), resource.missing()] {
            for accept in [
                "",
                "*/*",
                "application/json, */*",
                "application/vnd.kubernetes.protobuf,application/json",
                "application/vnd.kubernetes.protobuf",
                "application/yaml",
                "application/json;as=Table;v=v1;g=meta.k8s.io",
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                "application/json;pretty=1",
                "application/json;q=0.5, application/yaml;q=0.1",
                "text/html",
            ] {
                same_form(&pair, &path, &[("accept", accept)]).await;
            }
            pair.same_with(http::Method::GET, &path, &[]).await;
            for query in ["pretty=true", "pretty=false", "pretty", "foo=bar", "timeout=10s"] {
                pair.same(&format!("{path}?{query}")).await;
            }
            same_form(&pair, &path, &[("user-agent", "curl/8.0")]).await;
        }
    }
}

/// Compares the answers, or only their kind where the form itself depends on the clock (a Table has an age column).
async fn same_form(pair: &Pair, path: &str, headers: &[(&str, &str)]) {
    if !headers.iter().any(|(_, value)| value.contains("as=Table")) {
        pair.same_with(http::Method::GET, path, headers).await;
        return;
    }
    let direct = pair.direct.get_with(path, headers).await;
    let through = pair.through.get_with(path, headers).await;
    assert_eq!((direct.status, direct.content_type()), (through.status, through.content_type()), "{path}");
    assert_eq!(direct.json()["kind"], through.json()["kind"], "{path}");
}

/// The same answers over HTTP/2, and to a client that keeps one connection for everything.
#[tokio::test]
async fn http2_gives_the_same_bytes() {
    let plane = ControlPlane::shared();
    let (_, resources) = fill(plane).await;
    let pair = Pair::start(plane, Role::Reader).await;
    let http2 = pair.forebay.client_over(crate::client::Protocol::Http2).await;
    for resource in &resources {
        for path in [resource.object(0), resource.missing()] {
            assert_same(&path, &pair.direct.get(&path).await, &http2.get(&path).await);
        }
    }
}

fn rv(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}
