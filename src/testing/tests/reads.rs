//! GET, LIST, discovery, authentication.

use serde_json::json;

use super::{super::*, *};

const MAPS: &str = "/api/v1/namespaces/x/configmaps";

#[tokio::test]
async fn get_answers_the_stored_bytes() {
    let (server, client) = start().await;
    let rv = server.world().create("configmaps", config_map("x", "a")).unwrap();
    let reply = client.get(&format!("{MAPS}/a")).await;
    let text = server.world().text("configmaps", "x/a").unwrap();
    assert_eq!(reply.text.as_bytes(), [&text[..], b"\n"].concat());
    assert!(
        reply
            .text
            .starts_with(r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"x","uid":""#)
    );
    assert_eq!(reply.json()["metadata"]["resourceVersion"], rv.to_string());
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
    assert_eq!(reply.header("cache-control"), "no-cache, private");
    assert_eq!(reply.header("content-length"), reply.text.len().to_string());
}

#[tokio::test]
async fn a_missing_object_is_upstreams_404() {
    let (_server, client) = start().await;
    let reply = client.get(&format!("{MAPS}/nosuch")).await;
    let want = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"nosuch\" not found","reason":"NotFound","details":{"name":"nosuch","kind":"configmaps"},"code":404}"#;
    assert_eq!((reply.status, reply.text), (404, format!("{want}\n")));
    let reply = client.get("/apis/apps/v1/namespaces/x/deployments/foo").await;
    assert!(reply.text.contains(r#""message":"deployments.apps \"foo\" not found","reason":"NotFound","details":{"name":"foo","group":"apps","kind":"deployments"}"#));
    let reply = client.get("/apis/apps/v9/deployments").await;
    assert!(
        reply.text.contains(
            r#""message":"the server could not find the requested resource","reason":"NotFound","details":{},"#
        )
    );
    let reply = client.get("/apis/nosuch.io/v1/foos").await;
    assert_eq!((reply.status, &*reply.text), (404, "404 page not found\n"));
    assert_eq!(reply.header("x-content-type-options"), "nosniff");
}

#[tokio::test]
async fn the_token_is_required() {
    let (server, client) = start().await;
    for token in ["", "wrong"] {
        let reply = client.clone().with_token(token).get("/api/v1/pods").await;
        let want = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;
        assert_eq!((reply.status, reply.text), (401, format!("{want}\n")));
    }
    server.set_tokens(&["next"]);
    assert_eq!(client.get("/api/v1/pods").await.status, 401);
    assert_eq!(client.with_token("next").get("/api/v1/pods").await.status, 200);
}

#[tokio::test]
async fn lists_are_spelled_like_upstreams() {
    let (server, client) = start().await;
    let world = server.world();
    let rv = world.revision();
    let empty = client.get("/api/v1/configmaps").await.text;
    let want =
        format!(r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"{rv}"}},"items":[]}}"#);
    assert_eq!(empty, format!("{want}\n"));
    let empty = client.get("/apis/example.com/v1/widgets").await.text;
    let want = format!(
        r#"{{"apiVersion":"example.com/v1","items":[],"kind":"WidgetCollection","metadata":{{"continue":"","resourceVersion":"{rv}"}}}}"#
    );
    assert_eq!(empty, format!("{want}\n"));

    world.create("configmaps", config_map("x", "a")).unwrap();
    world.create("widgets", json!({"metadata": {"namespace": "x", "name": "w"}, "spec": {"size": 1}})).unwrap();
    let rv = world.revision();
    let item = String::from_utf8(world.text("configmaps", "x/a").unwrap().to_vec()).unwrap();
    let item = item.replacen(r#""kind":"ConfigMap","apiVersion":"v1","#, "", 1);
    let want = format!(
        r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"{rv}"}},"items":[{item}]}}"#
    );
    assert_eq!(client.get("/api/v1/configmaps").await.text, format!("{want}\n"));
    let item = String::from_utf8(world.text("widgets", "x/w").unwrap().to_vec()).unwrap();
    let want = format!(
        r#"{{"apiVersion":"example.com/v1","items":[{item}],"kind":"WidgetCollection","metadata":{{"continue":"","resourceVersion":"{rv}"}}}}"#
    );
    assert_eq!(client.get("/apis/example.com/v1/namespaces/x/widgets").await.text, format!("{want}\n"));
}

#[tokio::test]
async fn keys_are_in_bytewise_order_and_namespaces_are_exact() {
    let (server, client) = start().await;
    for (namespace, name) in [("a", "1"), ("a-b", "2"), ("a0", "3"), ("a", "0")] {
        server.world().create("configmaps", config_map(namespace, name)).unwrap();
    }
    assert_eq!(client.get("/api/v1/configmaps").await.names(), ["2", "0", "1", "3"]);
    assert_eq!(client.get("/api/v1/namespaces/a/configmaps").await.names(), ["0", "1"]);
    assert_eq!(client.get("/api/v1/namespaces/nosuch/configmaps").await.names(), [""; 0]);
}

#[tokio::test]
async fn pages_stay_at_the_first_pages_revision() {
    let (server, client) = start().await;
    let world = server.world();
    for name in ["a", "b", "c", "d", "e"] {
        world.create("configmaps", config_map("x", name)).unwrap();
    }
    let first = client.get(&format!("{MAPS}?limit=2")).await;
    assert_eq!(first.names(), ["a", "b"]);
    let meta = &first.json()["metadata"];
    assert_eq!(meta["remainingItemCount"], 3);
    let (rv, token) = (meta["resourceVersion"].clone(), meta["continue"].as_str().unwrap().to_owned());
    world.delete("configmaps", "x/c").unwrap();
    let second = client.get(&format!("{MAPS}?limit=2&continue={token}")).await;
    assert_eq!((second.names(), &second.json()["metadata"]["resourceVersion"]), (vec!["c".into(), "d".into()], &rv));
    let token = second.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let third = client.get(&format!("{MAPS}?limit=2&continue={token}")).await;
    assert_eq!((third.names(), third.json()["metadata"]["continue"].as_str()), (vec!["e".into()], None));

    world.compact();
    let gone = client.get(&format!("{MAPS}?limit=2&continue={token}")).await;
    assert_eq!((gone.status, &gone.json()["reason"]), (410, &json!("Expired")));
    let restart = gone.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let rest = client.get(&format!("{MAPS}?continue={restart}")).await;
    assert_eq!((rest.status, rest.names()), (200, vec!["e".to_owned()]));
    let exact = client.get(&format!("{MAPS}?resourceVersion=2&resourceVersionMatch=Exact")).await;
    assert_eq!(
        (exact.status, &exact.json()["message"]),
        (410, &json!("The resourceVersion for the provided list is too old."))
    );
}

#[tokio::test]
async fn the_last_full_page_and_selectors_follow_upstream() {
    let (server, client) = start().await;
    for name in ["a", "b", "c", "d"] {
        server.world().create("configmaps", config_map("x", name)).unwrap();
    }
    assert_eq!(client.get(&format!("{MAPS}?limit=4")).await.json()["metadata"]["continue"], json!(null));
    let page = client.get(&format!("{MAPS}?limit=2&labelSelector=name%20in%20(a,b)")).await;
    assert_eq!(page.names(), ["a", "b"]);
    assert_eq!(page.json()["metadata"]["remainingItemCount"], json!(null));
    let token = page.json()["metadata"]["continue"].as_str().expect("keys follow, matching or not").to_owned();
    let page = client.get(&format!("{MAPS}?limit=2&labelSelector=name%20in%20(a,b)&continue={token}")).await;
    assert_eq!((page.names().len(), &page.json()["metadata"]["continue"]), (0, &json!(null)));
    assert_eq!(client.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dc")).await.names(), ["c"]);
    let bad = client.get(&format!("{MAPS}?fieldSelector=zz%3Dc")).await;
    assert_eq!((bad.status, &bad.json()["reason"]), (400, &json!("BadRequest")));
}

#[tokio::test]
async fn revisions_are_waited_for_and_exact_ones_come_from_history() {
    let (server, client) = start().await;
    let world = server.world().clone();
    let first = world.create("configmaps", config_map("x", "a")).unwrap();
    world.create("configmaps", config_map("x", "b")).unwrap();
    let exact = client.get(&format!("{MAPS}?resourceVersion={first}&resourceVersionMatch=Exact")).await;
    assert_eq!(
        (exact.names(), exact.json()["metadata"]["resourceVersion"].clone()),
        (vec!["a".into()], json!(first.to_string()))
    );
    let legacy = client.get(&format!("{MAPS}?resourceVersion={first}&limit=5")).await;
    assert_eq!(legacy.names(), ["a"]);
    assert_eq!(client.get(&format!("{MAPS}?resourceVersion={first}")).await.names(), ["a", "b"]);
    assert_eq!(client.get(&format!("{MAPS}?resourceVersion=0&limit=1")).await.names(), ["a", "b"]);

    let next = world.revision() + 1;
    let path = format!("{MAPS}/a?resourceVersion={next}");
    let waiting = tokio::spawn(async move { client.get(&path).await.status });
    server.log().wait_for(get("configmaps").query("resourceVersion", &next.to_string()), LIMIT).await.unwrap();
    world.advance(1);
    assert_eq!(waiting.await.unwrap(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_never_comes_is_504() {
    let (server, client) = start().await;
    server.world().create("configmaps", config_map("x", "a")).unwrap();
    let current = server.world().revision();
    let reply = client.get(&format!("{MAPS}?resourceVersion=999")).await;
    let want = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"Timeout: Too large resource version: 999, current: {current}","reason":"Timeout","details":{{"causes":[{{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}}],"retryAfterSeconds":1}},"code":504}}"#
    );
    assert_eq!((reply.status, reply.header("retry-after")), (504, "1"));
    assert_eq!(reply.text, format!("{want}\n"));
    let reply = client.get(&format!("{MAPS}/a?resourceVersion=abc")).await;
    assert_eq!(reply.status, 500);
}

#[tokio::test]
async fn metadata_only_lists() {
    let (server, client) = start().await;
    server.world().fill_custom("widgets", 1, 2).unwrap();
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let reply = client.ask("GET", "/apis/example.com/v1/widgets", &[("accept", accept)], "").await;
    assert!(reply.text.starts_with(
        r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":""#
    ));
    let item = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"app-000000","namespace":"team-000","uid":""#;
    assert!(reply.text.contains(item), "{}", reply.text);
    assert!(!reply.text.contains(r#"},"spec":"#));
    let reply = client.ask("GET", "/api/v1/pods", &[("accept", accept)], "").await;
    assert!(reply.text.ends_with("\"items\":null}\n"), "{}", reply.text);
    let accept = "application/vnd.kubernetes.protobuf";
    assert_eq!(client.ask("GET", "/api/v1/pods", &[("accept", accept)], "").await.status, 406);
    let accept = "application/vnd.kubernetes.protobuf,application/json";
    assert_eq!(client.ask("GET", "/api/v1/pods", &[("accept", accept)], "").await.status, 200);
}

#[tokio::test]
async fn discovery_in_both_forms() {
    let (server, client) = start().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let reply = client.ask("GET", "/apis", &[("accept", accept)], "").await;
    assert_eq!(reply.header("content-type"), "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let groups: Vec<_> =
        reply.json()["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].clone()).collect();
    assert_eq!(groups, ["apps", "coordination.k8s.io", "apiregistration.k8s.io", "example.com"]);
    let core = client.ask("GET", "/api", &[("accept", accept)], "").await.json();
    assert_eq!(core["items"][0]["versions"][0]["resources"][2]["responseKind"]["kind"], "Pod");

    let plain = client.get("/apis").await.json();
    assert_eq!((&plain["kind"], &plain["groups"][0]["name"]), (&json!("APIGroupList"), &json!("apps")));
    assert_eq!(client.get("/api").await.json()["versions"], json!(["v1"]));
    let list = client.get("/apis/apps/v1").await.json();
    assert_eq!((&list["groupVersion"], &list["resources"][0]["name"]), (&json!("apps/v1"), &json!("deployments")));
    assert_eq!(client.get("/version").await.json()["gitVersion"], "v1.37.2");
    assert_eq!(client.get("/readyz").await.text, "ok");

    server.world().unregister("widgets");
    assert_eq!(client.get("/apis/example.com/v1/widgets").await.status, 404);
    server.world().register(Resource::widgets());
    assert_eq!(client.get("/apis/example.com/v1/widgets").await.status, 200);
}

#[tokio::test]
async fn a_large_list_comes_in_pieces_and_whole_over_both_protocols() {
    let (server, h1) = start().await;
    server.world().fill_deployments(7, 500).unwrap();
    let whole = h1.get("/apis/apps/v1/deployments").await;
    assert_eq!((whole.names().len(), whole.header("content-length")), (500, ""));
    let h2 = Client::new(&server, true).get("/apis/apps/v1/deployments").await;
    assert_eq!(h2.text, whole.text);
    let seen = server.log().matching(list("deployments"));
    assert_eq!(seen.iter().map(|s| s.protocol).collect::<Vec<_>>(), ["HTTP/1.1", "HTTP/2.0"]);
    assert_eq!(seen[0].status(), Some(200));
}

#[tokio::test]
async fn plain_http_and_no_token() {
    let (server, client) = start_with(ApiServer::builder().plain_http().token("")).await.unwrap();
    assert!(server.url().starts_with("http://127.0.0.1:"));
    assert_eq!(client.get("/api/v1/pods").await.status, 200);
}

#[tokio::test]
async fn the_kubeconfig_is_one_kube_can_read() {
    let builder = ApiServer::builder().names("ctx", "clu", "usr").namespace("apps").token("t0");
    let (server, _) = start_with(builder).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = server.write_kubeconfig(dir.path()).unwrap();
    let read = kube::config::Kubeconfig::read_from(&path).unwrap();
    assert_eq!(read.current_context.as_deref(), Some("ctx"));
    let config = kube::Config::from_custom_kubeconfig(read, &Default::default()).await.unwrap();
    assert_eq!(config.cluster_url.to_string().trim_end_matches('/'), server.url());
    assert_eq!(config.default_namespace, "apps");
    let client = kube::Client::try_from(config).unwrap();
    let version = tokio::time::timeout(LIMIT, client.apiserver_version()).await.unwrap().unwrap();
    assert_eq!(version.minor, "37");
}

#[tokio::test]
async fn it_stops_when_dropped() {
    let (server, client) = start().await;
    let mut stream = client.open("/api/v1/pods?watch=1&resourceVersion=1").await;
    let addr = server.addr();
    drop(server);
    assert_ne!(stream.line().await, Ok(String::new()));
    let refused = async {
        while tokio::net::TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(LIMIT, refused).await.expect("the port closes");
}

/// `cargo test --profile quick-release -- --ignored --nocapture throughput`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput() {
    use http_body_util::BodyExt as _;
    let (server, h1) = start_with(ApiServer::builder().keep_requests(0)).await.unwrap();
    let begin = tokio::time::Instant::now();
    server.world().fill_deployments(100, 100_000).unwrap();
    println!("filled in {:?}", begin.elapsed());
    let stream =
        "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    for client in [h1, Client::new(&server, true)] {
        for query in ["", stream] {
            let begin = tokio::time::Instant::now();
            let response = client.send("GET", &format!("/apis/apps/v1/deployments{query}"), &[], "").await.unwrap();
            let (mut body, mut bytes) = (response.into_body(), 0);
            while let Some(frame) = body.frame().await {
                bytes += frame.unwrap().into_data().map(|d| d.len()).unwrap_or_default();
                if bytes > 400_000_000 && !query.is_empty() {
                    break;
                }
            }
            println!("{bytes} bytes in {:?}", begin.elapsed());
        }
    }
}
