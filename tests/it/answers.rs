//! Answers that are not what they claim to be: a body that is longer or shorter than its length, cut or broken, where none
//! belongs, informational ones before the real one. What is whole arrives whole, what is not never looks as if it were,
//! and nothing of one answer gets into the next.

use forebay::testing::{any, list, watch};
use serde_json::json;

use crate::{
    client::{End, Protocol},
    raw::{RawClient, RawUpstream},
    rig::{Forebay, LIMIT, Rig, eventually, forwarded, own, upstream_with_pods, within},
};

async fn raw() -> (RawUpstream, Forebay) {
    let upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &[]).await;
    (upstream, forebay)
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn a_body_that_is_not_whole_never_looks_as_if_it_were() {
    let (mut upstream, forebay) = raw().await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for (what, answer) in [
            ("shorter than its length", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_owned()),
            ("chunks without an end", format!("{CHUNKED}3\r\nabc\r\n")),
            ("half a chunk", format!("{CHUNKED}5\r\nabc")),
            ("half an end", format!("{CHUNKED}3\r\nabc\r\n0\r\n")),
            ("a chunk of no length", format!("{CHUNKED}3\r\nabc\r\nxyz\r\n")),
        ] {
            for path in ["/version", "/api/v1/pods?watch=1&resourceVersion=1"] {
                let client = forebay.client_over(protocol);
                let reading = tokio::spawn(async move { client.stream(path).await.rest().await });
                let mut server = upstream.next().await;
                server.send(&answer).await;
                server.end(false);
                let (bytes, end) = within("the end", reading).await.unwrap();
                assert_eq!(end, End::Broken, "{what}: {protocol:?} {path}");
                assert_eq!(bytes, b"abc", "{what}: {protocol:?} {path}: what came was passed on");
            }
        }
        // A reset takes along what was not read yet.
        let client = forebay.client_over(protocol);
        let reading = tokio::spawn(async move { client.stream("/version").await.rest().await });
        let mut server = upstream.next().await;
        server.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await;
        let mut reading = reading;
        // The head has to be there, or it is a 502.
        let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut reading).await;
        assert!(early.is_err(), "it is not complete");
        server.end(true);
        assert_eq!(within("the end", reading).await.unwrap().1, End::Broken, "{protocol:?}: reset");
    }
}

/// Bytes after the end of an answer belong to nobody: the connection they came on is not used again.
#[tokio::test]
async fn bytes_that_belong_to_no_answer_reach_nobody() {
    let (mut upstream, forebay) = raw().await;
    let smuggled = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";
    for (what, method, head, body) in [
        ("longer than its length", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", "abc"),
        ("after the last chunk", "GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", ""),
        ("a 204 with a body", "GET", "HTTP/1.1 204 No Content\r\ncontent-length: 8\r\n\r\n", ""),
        ("a 304 with a body", "GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 8\r\n\r\n", ""),
        ("a HEAD with a body", "HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n", ""),
    ] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let client = forebay.client_over(protocol);
            let asking = tokio::spawn(async move { client.send(method, "/version", &[], "").await });
            let mut server = upstream.next().await;
            server.send(format!("{head}{smuggled}")).await;
            let reply = within("the answer", asking).await.unwrap();
            assert_eq!(reply.text(), body, "{what}: {protocol:?}");
            for _ in 0..3 {
                let client = forebay.client_over(protocol);
                let asking = tokio::spawn(async move { client.get("/next").await });
                let mut server = upstream.next().await;
                server.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nmine").await;
                assert_eq!(within("the next answer", asking).await.unwrap().text(), "mine", "{what}: {protocol:?}");
            }
            drop(server);
        }
    }
}

/// Informational answers are for the next hop; the real one follows, and it is the only one.
#[tokio::test]
async fn informational_answers_are_followed_by_the_real_one() {
    let (mut upstream, forebay) = raw().await;
    for before in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 102 Processing\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n",
    ] {
        let mut client = RawClient::ask(&forebay, "POST /a", "content-length: 2\r\n\r\n{}").await;
        let mut server = upstream.next_of(&mut client).await;
        server.send(format!("{before}HTTP/1.1 201 Created\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")).await;
        assert_eq!(client.read_head().await, 201, "{before}: {}", client.head);
        assert_eq!(client.read(2).await, b"ok");
        let h2 = forebay.client_over(Protocol::Http2);
        let asking = tokio::spawn(async move { h2.get("/version").await });
        let mut server = upstream.next().await;
        server.send(format!("{before}HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")).await;
        let reply = within("the answer", asking).await.unwrap();
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok"), "{before}");
    }
}

/// A balancer's page with status 200 in place of whatever was asked: passed on, and nothing is learnt from it. What is held
/// is still answered, and no version is taken from it.
#[tokio::test]
async fn a_page_in_place_of_an_answer_is_passed_on_and_teaches_nothing() {
    let rig = Rig::with(upstream_with_pods(5).await, &[]).await;
    let pods = "/api/v1/pods";
    rig.forebay.wait_cached(pods).await;
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    let page = rig.upstream.on(forwarded(any())).reply_html();
    for (method, path) in [
        ("GET", "/api/v1/pods?resourceVersion=1"),
        ("GET", "/api/v1/namespaces/team-000/pods/app-000000/status"),
        ("GET", "/api/v1/pods?watch=1&resourceVersion=1"),
        ("POST", "/api/v1/namespaces/team-000/pods"),
        ("PUT", "/api/v1/namespaces/team-000/pods/app-000000"),
        ("DELETE", "/api/v1/namespaces/team-000/pods/app-000000"),
    ] {
        let reply = rig.client().send(method, path, &[("content-type", "application/json")], "{}").await;
        assert_eq!((reply.status, reply.header("content-type")), (200, "text/html; charset=utf-8"), "{method} {path}");
        assert!(reply.text().contains("Please log in"), "{method} {path}");
    }
    page.remove();
    let direct = rig.direct().get(pods).await;
    let read = || async {
        let reply = rig.client().get(pods).await;
        assert_eq!((reply.status, reply.names()), (200, direct.names()), "{reply}");
        (reply.answered() == "hit").then_some(())
    };
    eventually("answered from the cache again", read).await;
    let log = rig.upstream.log();
    // Lists there may be: to find out how far upstream is after writes with such answers.
    assert_eq!(log.count(own(watch("pods").streaming())), 1, "nothing is loaded anew");
}

/// GOAWAY on forebay's own connections: streams that are open go on, what ends is resumed elsewhere, nothing is listed
/// again; without streams in flight nobody notices at all.
#[tokio::test]
async fn goaway_loses_nothing() {
    let rig = Rig::with(upstream_with_pods(5).await, &[]).await;
    let pods = "/api/v1/pods";
    rig.forebay.wait_cached(pods).await;
    let named = |n: usize| json!({"metadata": {"name": format!("new-{n}"), "namespace": "team-000"}});
    let shown = |n: usize| {
        let (client, name) = (rig.client(), format!("new-{n}"));
        move || {
            let (client, name) = (client.clone(), name.clone());
            async move { client.get(pods).await.names().contains(&name).then_some(()) }
        }
    };
    for round in 0..3 {
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        let watch_connection = rig.upstream.log().matching(own(watch("pods"))).pop().unwrap().connection;
        rig.upstream.go_away();
        rig.upstream.world().create("pods", named(2 * round)).unwrap();
        eventually("an event on the connection that is to go", shown(2 * round)).await;
        let watches = rig.upstream.log().count(own(watch("pods")));
        rig.upstream.watches("pods").end();
        rig.upstream.world().create("pods", named(2 * round + 1)).unwrap();
        let seen = rig.upstream.log().wait_count(own(watch("pods")), watches + 1, LIMIT).await.unwrap();
        assert_ne!(seen.last().unwrap().connection, watch_connection, "on another connection");
        eventually("what came meanwhile", shown(2 * round + 1)).await;
    }
    let log = rig.upstream.log();
    assert_eq!(log.count(own(list("pods"))) + log.count(own(watch("pods").streaming())), 1, "listed once");
    assert_eq!(log.count(forwarded(any())), 0);
}
