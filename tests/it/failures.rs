//! Upstream that can't be reached, breaks, is slow or talks nonsense: each request ends with a Status that says what
//! happened, and nothing is retried behind the client's back.

use std::{net::TcpListener, time::Duration};

use forebay::testing::{ApiServer, Gate, any, create, list, named_path, watch};
use serde_json::json;

use crate::{
    client::Protocol,
    raw::{RawClient, RawUpstream},
    rig::{Forebay, LIMIT, Rig, eventually, forwarded, own, upstream, upstream_with_pods, within},
};

const MAPS: &str = "/api/v1/namespaces/x/configmaps";

/// Nobody listens here.
fn nowhere() -> String {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
    format!("https://{address}")
}

#[tokio::test]
async fn unreachable_is_503_and_says_that_nothing_was_sent() {
    let server = upstream(ApiServer::builder()).await;
    let forebay = Forebay::start(&server.kubeconfig_yaml_via(&nowhere()), &["--hold-timeout=200ms"]).await;
    let address = forebay.access().server.clone();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = forebay.client_over(protocol);
        for (method, path) in [("GET", "/version"), ("POST", MAPS), ("GET", "/api/v1/pods?watch=1"), ("DELETE", MAPS)] {
            let reply = client.send(method, path, &[], "{}").await;
            let message = reply.status_message(503);
            assert!(message.contains("nothing was sent"), "{method} {path}: {message}");
            assert_eq!(reply.header("retry-after"), "1", "{reply}");
            assert!(!message.contains("127.0.0.1"), "{message} names an address");
        }
        for path in ["/api/v1/pods", "/api/v1/namespaces/x/pods/a"] {
            client.get(path).await.status_message(503);
        }
    }
    assert!(address.starts_with("https://127.0.0.1:"));
    assert_eq!(forebay.admin("/livez").await.status, 200);
    let ready = forebay.admin("/readyz?verbose").await;
    assert!(ready.status == 500 && ready.text().contains("[-]upstream-seen-once failed"), "{ready}");
}

/// A server that somebody else's CA has signed for is as good as none: no credential goes to it.
#[tokio::test]
async fn a_stranger_in_upstreams_place_gets_nothing() {
    let (server, stranger) = (upstream(ApiServer::builder()).await, upstream(ApiServer::builder()).await);
    let config = server.kubeconfig_yaml_via(&stranger.url());
    let forebay = Forebay::start(&config, &["--hold-timeout=200ms"]).await;
    let message = forebay.client().get("/version").await.status_message(503);
    assert!(message.contains("nothing was sent"), "{message}");
    assert_eq!(stranger.log().total(), 0);
}

#[tokio::test]
async fn a_connection_that_breaks_is_502_and_nothing_is_sent_twice() {
    let rig = Rig::start(&[]).await;
    rig.upstream.on(forwarded(any())).reset();
    let client = rig.client();
    let message = client.get("/version").await.status_message(502);
    assert!(!message.contains("unknown"), "{message}");
    let message = client.write("POST", MAPS, &json!({"metadata": {"name": "a"}})).await.status_message(502);
    assert!(message.contains("the outcome of this write is unknown"), "{message}");
    for matches in [named_path("/version"), create("configmaps")] {
        assert_eq!(rig.upstream.log().count(&matches), 1, "{matches:?}");
    }
}

/// PRX-05: an idle connection that upstream has just closed costs no client its request, and doubles no write.
#[tokio::test]
async fn closed_idle_connections_are_not_used_again() {
    let rig = Rig::start(&[]).await;
    let client = rig.client();
    for round in 0..20 {
        let body = json!({"metadata": {"generateName": "a-"}});
        let made = client.write("POST", MAPS, &body).await;
        assert_eq!(made.status, 201, "round {round}: {made}");
        rig.upstream.reset_connections();
        let closed = || async { (rig.upstream.connections() == 0).then_some(()) };
        eventually("closed", closed).await;
    }
    assert_eq!(rig.upstream.world().len("configmaps"), 20);
}

#[tokio::test]
async fn slow_is_504_and_the_request_upstream_is_given_up() {
    let rig = Rig::start(&["--request-timeout=300ms"]).await;
    let hold = rig.upstream.on(forwarded(any())).hold();
    for (method, path, write) in [("GET", "/version", false), ("PUT", "/api/v1/namespaces/x/configmaps/a", true)] {
        let message = rig.client().send(method, path, &[], "{}").await.status_message(504);
        assert_eq!(message.contains("outcome of this write is unknown"), write, "{message}");
        hold.wait_empty(LIMIT).await.unwrap();
    }
    // Streams may take their time.
    let client = rig.client();
    let watching = tokio::spawn(async move { client.stream("/api/v1/pods?watch=1&resourceVersion=1").await });
    hold.wait_for(1, LIMIT).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    hold.release();
    within("the watch", watching).await.unwrap();
}

/// Bytes that are no HTTP, and heads that never end.
#[tokio::test]
async fn nonsense_is_502() {
    let mut upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &[]).await;
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "x-filler: abcdefghijklmnopqrstuvwxyz\r\n".repeat(20_000));
    for answer in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "",
        &endless,
    ] {
        let mut client = RawClient::ask(&forebay, "GET /version", "\r\n").await;
        let mut request = upstream.next_of(&mut client).await;
        request.send(answer).await;
        drop(request);
        assert_eq!(client.read_head().await, 502, "{:.40}: {}", answer, client.head);
        assert_eq!(client.headers("content-type"), ["application/json"]);
    }
}

/// A login page in place of a list: it is passed on to whoever asked for something forwarded, and never cached.
#[tokio::test]
async fn junk_in_place_of_a_list_is_never_shown() {
    let upstream = upstream_with_pods(5).await;
    for own_load in [own(watch("pods")), own(list("pods"))] {
        upstream.on(own_load).reply_html();
    }
    let rig = Rig::with(upstream, &["--hold-timeout=1500ms"]).await;
    let message = rig.client().get("/api/v1/pods").await.status_message(503);
    assert!(message.contains("still loading: 0 objects"), "{message}");
    let page = rig.upstream.on(forwarded(any())).reply_html();
    let reply = rig.client().get("/version").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "text/html; charset=utf-8"));
    page.remove();
    rig.upstream.clear_rules();
    assert_eq!(rig.forebay.wait_cached("/api/v1/pods").await.names().len(), 5);
}

/// An object above the limit makes its resource pass through, and no other.
#[tokio::test]
async fn an_object_above_the_limit_makes_its_resource_pass_through() {
    let upstream = upstream_with_pods(5).await;
    let big = json!({"metadata": {"name": "big", "namespace": "x"}, "data": {"a": "b".repeat(200_000)}});
    upstream.world().create("configmaps", big.clone()).unwrap();
    let rig = Rig::with(upstream, &["--max-frame-bytes=100Ki"]).await;
    for path in [MAPS, "/api/v1/namespaces/x/configmaps/big", "/api/v1/configmaps?labelSelector=a"] {
        let reply = within("a forwarded read", rig.client().get(path)).await;
        assert_eq!((reply.status, reply.answered()), (200, ""), "{path}");
        assert!(reply.body == rig.direct().get(path).await.body, "{path}");
    }
    let ready = rig.forebay.admin("/readyz?verbose").await.text();
    assert!(ready.contains("an object is above --max-frame-bytes: reads are forwarded"), "{ready}");
    rig.forebay.wait_cached("/api/v1/pods").await;
    // One that comes later, by the watch, has the same effect.
    let mut pod = big;
    pod["metadata"]["namespace"] = json!("team-000");
    rig.upstream.world().create("pods", pod).unwrap();
    eventually("pods pass through", || async {
        let reply = rig.client().get("/api/v1/namespaces/team-000/pods/big").await;
        (reply.status == 200 && reply.answered().is_empty()).then_some(())
    })
    .await;
    assert_eq!(rig.client().get("/api/v1/namespaces/team-000/pods/app-000000").await.status, 200);
}

/// Upstream that goes away and comes back: writes fail clearly, reads go on from what is held.
#[tokio::test]
async fn reads_go_on_without_upstream() {
    let server = upstream_with_pods(5).await;
    let gate = Gate::start(server.addr()).await.unwrap();
    let config = server.kubeconfig_yaml_via(&format!("https://{}", gate.addr()));
    let forebay = Forebay::start(&config, &[]).await;
    forebay.wait_cached("/api/v1/pods").await;
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    gate.refuse(true);
    gate.cut();
    let made = forebay.client().write("POST", MAPS, &json!({"metadata": {"name": "a"}})).await;
    assert!(made.status == 503 || made.status == 502, "{made}");
    let reply = forebay.client().get("/api/v1/pods").await;
    assert_eq!((reply.status, reply.names().len(), reply.answered()), (200, 5, "hit"), "{reply}");
    assert_eq!(forebay.admin("/livez").await.status, 200);
    gate.refuse(false);
    let made = forebay.client().write("POST", MAPS, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(made.status, 201, "{made}");
    server.world().delete("pods", "team-000/app-000000").unwrap();
    eventually("caught up", || async { (forebay.client().get("/api/v1/pods").await.names().len() == 4).then_some(()) })
        .await;
}
