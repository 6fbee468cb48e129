//! How long anything may take on the way to upstream, and what it is called when it takes longer; and that nobody works
//! for a client that has gone.

use std::{net::SocketAddr, time::Duration};

use forebay::testing::{any, list, named_path, watch};
use http_body_util::BodyExt as _;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, timeout},
};

use crate::{
    client::Protocol,
    raw::{RawClient, RawUpstream},
    rig::{Forebay, LIMIT, Rig, forwarded, upstream_with_pods, within},
};

const MAP: &str = "/api/v1/namespaces/x/configmaps/a";

fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: '{server}'}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{token: t}}}}]\n"
    )
}

/// A port that answers no SYN: its queue is full, and nobody takes from it. It stays so while this is held.
async fn no_answer() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
        queue.push(connected.unwrap());
        assert!(queue.len() < 100, "the queue has no end");
    }
    (address, listener, queue)
}

/// Every phase has its own name, names its flag, and says whether anything was sent.
#[tokio::test]
async fn each_phase_has_its_time_and_its_name() {
    let (deaf, _listener, _queue) = no_answer().await;
    // Takes connections, and says nothing on them.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute_address = mute.local_addr().unwrap();
    tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((stream, _)) = mute.accept().await {
            taken.push(stream);
        }
    });
    let short = ["--connect-timeout=300ms", "--hold-timeout=1s"];
    let shorter = ["--request-timeout=300ms", "--hold-timeout=1s"];
    let unsent = "nothing was sent";
    for (server, flags, code, says) in [
        (format!("http://{deaf}"), short, 503, ["no connection", "within 300ms (--connect-timeout)", unsent]),
        (format!("https://{deaf}"), short, 503, ["no connection", "within 300ms (--connect-timeout)", unsent]),
        (
            format!("https://{mute_address}"),
            short,
            503,
            ["no TLS handshake", "within 300ms (--connect-timeout)", unsent],
        ),
        (format!("https://{mute_address}"), shorter, 504, ["no answer", "within 300ms (--request-timeout)", unsent]),
        (format!("http://{mute_address}"), shorter, 504, ["no answer", "within 300ms (--request-timeout)", ""]),
    ] {
        let forebay = Forebay::start(&kubeconfig(&server), &flags).await;
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for (method, path) in [("GET", "/version"), ("PUT", MAP)] {
                let reply = forebay.client_over(protocol).send(method, path, &[], "").await;
                let message = reply.status_message(code);
                for part in says {
                    assert!(message.contains(part), "{server} {method}: {message:?} lacks {part:?}");
                }
                // Who sees this may send it again.
                assert_eq!(!reply.header("retry-after").is_empty(), code == 503, "{reply}");
                let unknown = code == 504 && says[2].is_empty() && method == "PUT";
                assert_eq!(message.contains("the outcome of this write is unknown"), unknown, "{message}");
            }
        }
    }
}

/// What may take for ever may also take its time to begin.
#[tokio::test]
async fn streams_have_no_limit_for_their_head() {
    let mut upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &["--request-timeout=100ms"]).await;
    for (line, rest) in [
        ("GET /api/v1/pods?watch=1&resourceVersion=1", "\r\n"),
        ("GET /api/v1/watch/pods", "\r\n"),
        ("GET /api/v1/namespaces/x/pods/a/log?follow=true", "\r\n"),
        ("POST /api/v1/namespaces/x/pods/a/exec?command=sh", "connection: upgrade\r\nupgrade: SPDY/3.1\r\n\r\n"),
        ("GET /api/v1/namespaces/x/pods/a/attach", "connection: upgrade\r\nupgrade: websocket\r\n\r\n"),
        ("GET /api/v1/namespaces/x/services/a/proxy/slow", "\r\n"),
    ] {
        let mut client = RawClient::ask(&forebay, line, rest).await;
        let mut server = upstream.next_of(&mut client).await;
        assert!(client.is_silent(Duration::from_millis(400)).await, "{line}");
        server.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(client.read_head().await, 200, "{line}");
    }
}

/// Far above the second that it may take, for machines that are busy; far below any other limit here.
const SOON: Duration = Duration::from_secs(10);

/// A client that goes takes its request along, whatever the request is doing.
#[tokio::test]
async fn nobody_works_for_a_client_that_has_gone() {
    let rig = Rig::with(upstream_with_pods(3_000).await, &[]).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        // Before the head.
        let client = rig.forebay.client_over(protocol);
        let hold = rig.upstream.on(forwarded(named_path("/version"))).hold();
        for method in ["GET", "PUT"] {
            let client = client.clone();
            let asking = tokio::spawn(async move { client.send(method, "/version", &[], "{}").await });
            hold.wait_for(1, LIMIT).await.unwrap();
            asking.abort();
            let begun = Instant::now();
            hold.wait_empty(LIMIT).await.unwrap();
            assert!(begun.elapsed() < SOON, "{protocol:?} {method}, no head yet: {:?}", begun.elapsed());
        }
        hold.rule().remove();

        // In the middle of a body.
        let hold = rig.upstream.on(forwarded(list("pods"))).hold_body();
        hold.release_one();
        let path = "/api/v1/pods?resourceVersion=1";
        let mut body = client.open("GET", path, &[], "").await.unwrap().into_body();
        within("a part of the body", body.frame()).await.unwrap().unwrap();
        hold.wait_for(1, LIMIT).await.unwrap();
        drop((body, client));
        let begun = Instant::now();
        hold.wait_empty(LIMIT).await.unwrap();
        assert!(begun.elapsed() < SOON, "{protocol:?}, mid-body: {:?}", begun.elapsed());
        hold.rule().remove();

        // In a quiet watch.
        let from = rig.upstream.world().revision();
        let path = format!("/api/v1/pods?watch=1&resourceVersion={from}");
        let watches = rig.upstream.watches("pods").count();
        let watching = rig.forebay.client_over(protocol).stream(&path).await;
        rig.upstream.watches("pods").wait_for(watches + 1, LIMIT).await.unwrap();
        drop(watching);
        let begun = Instant::now();
        rig.upstream.watches("pods").wait_for(watches, LIMIT).await.unwrap();
        assert!(begun.elapsed() < SOON, "{protocol:?}, watch: {:?}", begun.elapsed());
    }
    assert_eq!(rig.upstream.log().count(forwarded(watch("pods"))), 2);
    assert_eq!(rig.upstream.log().count(forwarded(any())), 8);
    assert!(rig.forebay.metric("forebay_upstream_requests_total", &["forward", "canceled"]).await >= 4.0);
}
