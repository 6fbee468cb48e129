//! Upgrades (exec, attach, port-forward): opaque bytes both ways after upstream's 101, and an ordinary answer otherwise.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{
    raw::{Raw, RawClient, RawUpstream, UPSTREAM_TOKEN},
    rig::{Forebay, within},
};

const EXEC: &str = "POST /api/v1/namespaces/x/pods/a/exec?command=sh&stdin=true";
const SPDY: &str = "connection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\
                        x-stream-protocol-version: v4.channel.k8s.io\r\n\r\n";

async fn raw(flags: &[&str]) -> (RawUpstream, Forebay) {
    let upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), flags).await;
    (upstream, forebay)
}

/// Both ends of a request that asks to upgrade.
async fn upgrading(upstream: &mut RawUpstream, forebay: &Forebay) -> (RawClient, Raw<tokio::net::TcpStream>) {
    let mut client = RawClient::ask(forebay, EXEC, SPDY).await;
    let request = upstream.next_of(&mut client).await;
    (client, request)
}

#[tokio::test]
async fn after_101_bytes_go_both_ways_until_either_side_ends() {
    // No request timeout applies to what runs for hours.
    let (mut upstream, forebay) = raw(&["--request-timeout=200ms"]).await;
    let (mut client, mut server) = upgrading(&mut upstream, &forebay).await;
    assert_eq!(server.target(), "/api/v1/namespaces/x/pods/a/exec?command=sh&stdin=true");
    assert_eq!(server.headers("upgrade"), ["SPDY/3.1"]);
    assert_eq!(server.headers("connection").join(",").to_lowercase(), "upgrade");
    assert_eq!(server.headers("x-stream-protocol-version"), ["v4.channel.k8s.io"]);
    assert_eq!(server.headers("authorization"), [format!("Bearer {UPSTREAM_TOKEN}")]);
    // The first bytes come with the head, as some servers send them.
    server.send(format!("{SWITCHED}hello\x00\u{ff}")).await;
    assert_eq!(client.read_head().await, 101, "{}", client.head);
    assert_eq!(client.headers("upgrade"), ["SPDY/3.1"]);
    assert_eq!(client.headers("connection").join(",").to_lowercase(), "upgrade");
    assert_eq!(client.headers("x-stream-protocol-version"), ["v4.channel.k8s.io"]);
    assert_eq!(client.read(8).await, "hello\x00\u{ff}".as_bytes());
    assert!(client.is_silent(Duration::from_millis(400)).await, "an idle tunnel stays open");

    let up: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    let down: Vec<u8> = up.iter().rev().copied().collect();
    let both = async { tokio::join!(client.send(&up), server.read(up.len())).1 };
    assert!(within("up", both).await == up);
    let both = async { tokio::join!(server.send(&down), client.read(down.len())).1 };
    assert!(within("down", both).await == down);

    // stdin ends, and the output goes on.
    client.shut().await;
    assert_eq!(server.read_to_end().await, "");
    server.send("exit code 7").await;
    server.shut().await;
    assert_eq!(client.read_to_end().await, "exit code 7");

    // The other way round.
    let (mut client, mut server) = upgrading(&mut upstream, &forebay).await;
    server.send(SWITCHED).await;
    assert_eq!(client.read_head().await, 101);
    drop(server);
    assert_eq!(client.read_to_end().await, "");
    let (mut client, mut server) = upgrading(&mut upstream, &forebay).await;
    server.send(SWITCHED).await;
    assert_eq!(client.read_head().await, 101);
    drop(client);
    assert_eq!(server.read_to_end().await, "");
}

/// CVE-2018-1002105: an error answered to an upgrade must not leave a tunnel behind under forebay's identity.
#[tokio::test]
async fn an_error_opens_no_tunnel() {
    let (mut upstream, forebay) = raw(&[]).await;
    for code in ["403 Forbidden", "400 Bad Request", "500 Internal Server Error", "200 OK", "302 Found"] {
        let (mut client, mut server) = upgrading(&mut upstream, &forebay).await;
        server.send(format!("HTTP/1.1 {code}\r\nupgrade: SPDY/3.1\r\ncontent-length: 5\r\n\r\nsorry")).await;
        let got = client.read_head().await;
        assert!(code.starts_with(&got.to_string()), "{}", client.head);
        assert_eq!(client.headers("upgrade"), [""; 0], "{}", client.head);
        assert_eq!(client.read(5).await, b"sorry");
        // Bytes of the next request do not reach upstream raw: it is a request like any other, and has to be allowed.
        client.send("GET /api/v1/secrets HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
        let answer = client.read_to_end().await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 401"), "{code}: {answer}");
        assert!(
            server.is_silent(Duration::from_millis(20)).await || server.text().is_empty(),
            "{code}: {}",
            server.text()
        );
        assert!(upstream.is_quiet(), "{code}");
    }
}

/// What upstream switches to without having been asked is nothing a client can use.
#[tokio::test]
async fn an_unasked_101_opens_no_tunnel() {
    let (mut upstream, forebay) = raw(&[]).await;
    let mut client = RawClient::ask(&forebay, "GET /version", "\r\n").await;
    let mut server = upstream.next_of(&mut client).await;
    server.send(SWITCHED).await;
    server.send("raw").await;
    if client.try_head().await {
        let head = client.head.clone();
        assert!(head.starts_with("HTTP/1.1 50"), "{head}");
        assert!(!client.text().contains("raw"), "{}", client.text());
    }
}

/// `Upgrade` without `Connection: upgrade` asks for nothing; HTTP/2's own way in (h2c) is not offered.
#[tokio::test]
async fn what_is_no_upgrade_is_a_request() {
    let (mut upstream, forebay) = raw(&[]).await;
    for rest in
        ["upgrade: SPDY/3.1\r\n\r\n", "connection: upgrade\r\n\r\n", "connection: close\r\nupgrade: h2c\r\n\r\n"]
    {
        let mut client = RawClient::ask(&forebay, "GET /version", rest).await;
        let mut server = upstream.next_of(&mut client).await;
        assert_eq!((server.headers("upgrade"), server.headers("connection")), (vec![], vec![]), "{}", server.head);
        server.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(client.read_head().await, 200);
    }
}

/// Each direction ends by itself: upstream's end first, while the client goes on sending.
#[tokio::test]
async fn upstream_may_end_its_direction_first() {
    let (mut upstream, forebay) = raw(&[]).await;
    let (mut client, mut server) = upgrading(&mut upstream, &forebay).await;
    server.send(SWITCHED).await;
    assert_eq!(client.read_head().await, 101);
    server.send("done").await;
    server.shut().await;
    assert_eq!(client.read_to_end().await, "done");
    for piece in ["more ", "and more"] {
        client.send(piece).await;
        assert_eq!(server.read(piece.len()).await, piece.as_bytes());
    }
    client.shut().await;
    assert_eq!(server.read_to_end().await, "");
}

/// Upstream that dies before it has switched is a broken connection, not a tunnel, and the command is not run again.
#[tokio::test]
async fn a_connection_that_dies_before_101_is_502_and_asked_for_once() {
    let (mut upstream, forebay) = raw(&[]).await;
    for part in ["", "HTTP/1.1 101 Switch"] {
        let (mut client, mut server) = upgrading(&mut upstream, &forebay).await;
        server.send(part).await;
        drop(server);
        assert_eq!(client.read_head().await, 502, "{}", client.head);
        assert!(upstream.is_quiet(), "{part}");
    }
}

/// The byte at this position of a stream.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// Writes so many bytes, and counts them as they go.
async fn pour(mut to: impl AsyncWrite + Unpin, bytes: usize, poured: Arc<AtomicUsize>) {
    let mut at = 0;
    while at < bytes {
        let piece: Vec<u8> = (at..bytes.min(at + (64 << 10))).map(byte).collect();
        to.write_all(&piece).await.unwrap();
        at += piece.len();
        poured.store(at, Ordering::Relaxed);
    }
    to.shutdown().await.unwrap();
}

/// Reads to the end, and checks every byte.
async fn drink(mut from: impl AsyncRead + Unpin, bytes: usize) {
    let (mut at, mut piece) = (0, vec![0; 256 << 10]);
    loop {
        let read = from.read(&mut piece).await.unwrap_or_else(|error| panic!("after {at}: {error}"));
        if read == 0 {
            break;
        }
        let wrong = piece[..read].iter().enumerate().find(|(n, found)| **found != byte(at + n));
        assert_eq!(wrong, None, "after {at} bytes");
        at += read;
    }
    assert_eq!(at, bytes);
}

/// 100 MB each way at once. As long as a reader does not read, its writer is stopped by what the sockets hold, and not fed
/// by forebay's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_carries_much_and_holds_little() {
    const BYTES: usize = 100 << 20;
    /// Four sockets' buffers at their largest, and room.
    const HELD: usize = 48 << 20;
    let (mut upstream, forebay) = raw(&[]).await;
    let (mut client, mut server) = upgrading(&mut upstream, &forebay).await;
    server.send(SWITCHED).await;
    assert_eq!(client.read_head().await, 101);
    let (client_read, client_write) = tokio::io::split(client.into_stream());
    let (server_read, server_write) = tokio::io::split(server.into_stream());
    let poured = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let up = tokio::spawn(pour(client_write, BYTES, poured[0].clone()));
    let down = tokio::spawn(pour(server_write, BYTES, poured[1].clone()));
    // Until neither goes on.
    let mut before = [0, 0];
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = [0, 1].map(|n| poured[n].load(Ordering::Relaxed));
        if now == before && now.iter().all(|poured| *poured > 0) {
            break;
        }
        before = now;
    }
    assert!(before.iter().all(|poured| *poured < HELD), "{before:?} bytes went into a tunnel that nobody reads from");
    let both = async { tokio::join!(drink(server_read, BYTES), drink(client_read, BYTES)) };
    within("all of it", both).await;
    within("the writers", async { tokio::try_join!(up, down) }).await.unwrap();
}
