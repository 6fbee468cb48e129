//! What is sent a second time, and what never is (PRX-05): a read on a connection that upstream closed for being idle
//! just then, once; and no write, whose outcome is told as what it is.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    raw::{Raw, RawClient, RawUpstream},
    rig::{Forebay, Rig},
};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const WRITE: &str = "POST /api/v1/namespaces/x/configmaps";
const UNKNOWN: &str = "the outcome of this write is unknown";

async fn raw() -> (RawUpstream, Forebay) {
    let upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &[]).await;
    (upstream, forebay)
}

/// Sends a request that reaches upstream on a connection which has served another, and gives both ends.
async fn reused(upstream: &mut RawUpstream, forebay: &Forebay, line: &str, rest: &str) -> (RawClient, Raw<TcpStream>) {
    let mut first = RawClient::ask(forebay, "GET /version", "\r\n").await;
    let mut server = upstream.next_of(&mut first).await;
    server.send(OK).await;
    assert_eq!(first.read_head().await, 200);
    loop {
        let mut client = RawClient::ask(forebay, line, rest).await;
        // It may have come before the connection was free again.
        let new = tokio::select! {
            again = server.try_head() => {
                assert!(again, "{line}: the idle connection was closed by forebay");
                None
            }
            new = upstream.next() => Some(new),
        };
        let Some(mut new) = new else { return (client, server) };
        new.send(OK).await;
        assert_eq!(client.read_head().await, 200);
        server = new;
    }
}

#[tokio::test]
async fn a_read_on_a_connection_that_was_closed_for_being_idle_is_sent_again() {
    let (mut upstream, forebay) = raw().await;
    let mut retried = 0.0;
    for (line, rest, again) in [
        ("GET /version", "\r\n", true),
        ("GET /api/v1/pods?watch=1&resourceVersion=1", "\r\n", true),
        ("GET /api/v1/namespaces/x/pods/a/log?follow=true", "\r\n", true),
        ("HEAD /version", "\r\n", true),
        ("GET /version", "content-length: 2\r\n\r\n{}", false),
        ("GET /version", "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", false),
        // A command that is run over a WebSocket.
        (
            "GET /api/v1/namespaces/x/pods/a/exec?command=reboot",
            "connection: upgrade\r\nupgrade: websocket\r\n\r\n",
            false,
        ),
        ("OPTIONS /version", "\r\n", false),
        (WRITE, "content-length: 2\r\n\r\n{}", false),
        (WRITE, "content-length: 0\r\n\r\n", false),
        ("DELETE /api/v1/namespaces/x/configmaps/a", "\r\n", false),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/x/leases/a", "content-length: 2\r\n\r\n{}", false),
    ] {
        for reset in [false, true] {
            let (mut client, server) = reused(&mut upstream, &forebay, line, rest).await;
            let head = server.head.clone();
            server.end(reset);
            if again {
                let mut server = upstream.next_of(&mut client).await;
                assert_eq!(server.head, head, "byte for byte");
                server.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
                assert_eq!(client.read_head().await, 200, "{line}, reset: {reset}");
                retried += 1.0;
            } else {
                assert_eq!(client.read_head().await, 502, "{line} {rest}, reset: {reset}");
                assert_eq!(forebay.metric("forebay_upstream_retries_total", &[]).await, retried, "{line} {rest}");
                assert!(upstream.is_quiet(), "{line} {rest}");
            }
        }
    }
    assert_eq!(
        forebay.metric("forebay_upstream_retries_total", &["reason=\"idle_connection\""]).await,
        retried,
        "each is counted"
    );
}

/// Only where it is certain that upstream was not answering: not on a new connection, not after the first byte, and not a
/// third time.
#[tokio::test]
async fn a_read_is_not_sent_again_for_any_other_reason() {
    let (mut upstream, forebay) = raw().await;
    let line = "GET /version";
    for reset in [false, true] {
        // A connection of its own, because none is idle.
        let mut client = RawClient::ask(&forebay, line, "\r\n").await;
        upstream.next_of(&mut client).await.end(reset);
        assert_eq!(client.read_head().await, 502, "a new connection");

        let (mut client, server) = reused(&mut upstream, &forebay, line, "\r\n").await;
        server.end(reset);
        upstream.next_of(&mut client).await.end(reset);
        assert_eq!(client.read_head().await, 502, "a second time");
    }
    for part in ["H", "HTTP/1.1 200 OK\r\ncontent-le"] {
        let (mut client, mut server) = reused(&mut upstream, &forebay, line, "\r\n").await;
        server.send(part).await;
        server.end(false);
        assert_eq!(client.read_head().await, 502, "after {part:?}");
    }
    assert!(upstream.is_quiet());
}

/// In whatever state its connection dies, a write is sent once, and nobody claims to know what became of it.
#[tokio::test]
async fn a_write_whose_connection_dies_has_an_unknown_outcome() {
    let (mut upstream, forebay) = raw().await;
    for old in [false, true] {
        for (what, sent, seen, answer) in [
            ("the head alone", "", "", ""),
            ("half of the body", "ab", "ab", ""),
            ("all of the body", "abcd", "abcd", ""),
            ("half of the answer's head", "abcd", "abcd", "HTTP/1.1 201 Cre"),
        ] {
            let rest = format!("content-length: 4\r\n\r\n{sent}");
            let (mut client, mut server) = if old {
                reused(&mut upstream, &forebay, WRITE, &rest).await
            } else {
                let mut client = RawClient::ask(&forebay, WRITE, &rest).await;
                let server = upstream.next_of(&mut client).await;
                (client, server)
            };
            assert_eq!(server.read(seen.len()).await, seen.as_bytes());
            server.send(answer).await;
            server.end(false);
            assert_eq!(client.read_head().await, 502, "{what}, a used connection: {old}");
            assert_eq!(client.headers("retry-after"), [""; 0], "clients repeat what has this");
            let length = client.headers("content-length")[0].parse().unwrap();
            let status: serde_json::Value = serde_json::from_slice(&client.read(length).await).unwrap();
            assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &502.into()));
            assert!(status["message"].as_str().unwrap().contains(UNKNOWN), "{what}: {status}");
            assert!(upstream.is_quiet(), "{what}: sent again");
        }
    }
}

/// Reset after upstream has done what was asked: one object, and an honest answer.
#[tokio::test]
async fn a_write_that_was_done_is_not_done_again() {
    use forebay::testing::create;
    let rig = Rig::start(&[]).await;
    rig.upstream.on(create("configmaps")).reset_when_done();
    let body = serde_json::json!({"metadata": {"generateName": "a-"}});
    for written in 1..=5 {
        let made = rig.client().write("POST", "/api/v1/namespaces/x/configmaps", &body).await;
        assert!(made.status_message(502).contains(UNKNOWN), "{made}");
        assert_eq!(rig.upstream.world().len("configmaps"), written);
    }
}

/// An upstream that keeps no connection for a moment, and does not say so: each answer is the last word on it.
struct Abrupt {
    address: std::net::SocketAddr,
    /// Writes done.
    objects: Arc<AtomicUsize>,
}

impl Abrupt {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let objects = Arc::new(AtomicUsize::new(0));
        let counted = objects.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(Self::serve(stream, counted.clone()));
            }
        });
        Self { address, objects }
    }

    async fn serve(mut stream: TcpStream, objects: Arc<AtomicUsize>) {
        let mut request = Vec::new();
        // All of the bodies here are `{}`.
        let complete = |request: &[u8]| {
            let write = request.starts_with(b"POST");
            request.ends_with(if write { b"\r\n\r\n{}" } else { b"\r\n\r\n" })
        };
        while !complete(&request) {
            if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                return;
            }
        }
        if request.starts_with(b"POST") {
            objects.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await;
        } else {
            let _ = stream.write_all(OK.as_bytes()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn against_an_upstream_that_closes_at_once_reads_succeed_and_writes_are_counted_right() {
    let upstream = Abrupt::start().await;
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: 'http://{}'}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{token: t}}}}]\n",
        upstream.address
    );
    let forebay = Forebay::start(&config, &[]).await;
    let client = forebay.client();
    let mut made = 0;
    for n in 0..500 {
        // Discovery of nothing: no resource is known, and nothing is held for long.
        let read = client.get("/version").await;
        assert_eq!(read.status, 200, "read {n}: {read}");
        let write = client.send("POST", "/api/v1/namespaces/x/configmaps", &[], "{}").await;
        match write.status {
            201 => made += 1,
            _ => assert!(write.status_message(502).contains(UNKNOWN), "write {n}: {write}"),
        }
    }
    assert_eq!(upstream.objects.load(Ordering::Relaxed), made, "objects and 201s");
    assert!(made > 0);
}
