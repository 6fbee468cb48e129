//! What is forwarded arrives as it was sent, in both directions: targets, headers, bodies, trailers, streams.

use std::time::Duration;

use forebay::testing::{ApiServer, any, named_path, watch};
use http_body_util::BodyExt as _;

use crate::{
    client::{End, Protocol},
    raw::{Raw, RawClient, RawUpstream, UPSTREAM_TOKEN},
    rig::{Forebay, LIMIT, Rig, eventually, forwarded, upstream, within},
};

const OK: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

async fn raw() -> (RawUpstream, Forebay) {
    let upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &[]).await;
    (upstream, forebay)
}

#[tokio::test]
async fn targets_arrive_byte_for_byte() {
    let (mut upstream, forebay) = raw().await;
    let mut client = RawClient::connect(forebay.access()).await;
    for target in [
        "/api/v1/namespaces/x/pods/a%2Fb",
        "/api/v1/namespaces/x/services/a:80/proxy/a%2Fb//c/?x=1",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3anode",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node;v=1",
        "/api/v1/namespaces/%78/pods/%2e%2e/b",
        "/api/v1/namespaces/x/pods/../../y",
        "//api/v1//pods/",
        "/api/v1/pods?labelSelector=a+in+(b%2Cc)&limit=+1;fieldSelector=x",
        "/api/v1/pods?labelSelector=a%20in%20%28b%29&&=&a=b=c&a",
        "/api/v1/pods?",
        "/?a=?b/c",
        "/",
        "/~user!$&'()*,=@-._",
        "/healthz?q={}[]|`^~\\",
        "/openapi/v3/apis/apps/v1?hash=0AF%2B%3D%3D",
    ] {
        client.again(&forebay, &format!("GET {target}"), "\r\n").await;
        let mut request = upstream.next_of(&mut client).await;
        assert_eq!(request.head.lines().next(), Some(&*format!("GET {target} HTTP/1.1")));
        request.send(OK).await;
        assert_eq!(client.read_head().await, 200, "{target}");
    }
    let forebay = Forebay::start(&upstream.kubeconfig_with_prefix("/k8s/clusters/c-1/"), &[]).await;
    let mut client = RawClient::ask(&forebay, "GET /api/v1/a%2Fb/?c=d", "\r\n").await;
    let mut request = upstream.next_of(&mut client).await;
    assert_eq!(request.target(), "/k8s/clusters/c-1/api/v1/a%2Fb/?c=d", "{}", request.head);
    request.send(OK).await;
    assert_eq!(client.read_head().await, 200);
}

#[tokio::test]
async fn hop_by_hop_headers_end_here_and_all_others_go_on() {
    let (mut upstream, forebay) = raw().await;
    let hops = "connection: keep-alive, x-hop\r\nkeep-alive: timeout=5\r\nx-hop: 1\r\nproxy-authorization: Basic x\r\n\
                proxy-connection: keep-alive\r\nte: gzip, trailers\r\nupgrade: h2c\r\n";
    let ends = "x-end: 1\r\nX-End: 2\r\naccept: application/json, */*\r\naccept-encoding: gzip\r\nuser-agent: me/1\r\n\
                cookie: a=b\r\nkubectl-command: kubectl get\r\nx-empty:\r\n";
    let mut client = RawClient::ask(&forebay, "GET /version", &format!("{hops}{ends}\r\n")).await;
    let mut request = upstream.next_of(&mut client).await;
    for name in ["connection", "keep-alive", "x-hop", "proxy-authorization", "proxy-connection", "upgrade"] {
        assert_eq!(request.headers(name), [""; 0], "{name}: {}", request.head);
    }
    assert_eq!(request.headers("te"), ["trailers"]);
    assert_eq!(request.headers("x-end"), ["1", "2"]);
    for (name, value) in [
        ("accept", "application/json, */*"),
        ("accept-encoding", "gzip"),
        ("user-agent", "me/1"),
        ("cookie", "a=b"),
        ("kubectl-command", "kubectl get"),
        ("x-empty", ""),
        ("authorization", &format!("Bearer {UPSTREAM_TOKEN}")),
    ] {
        assert_eq!(request.headers(name), [value], "{name}: {}", request.head);
    }
    let added: Vec<&str> = request.head.lines().filter(|line| line.to_lowercase().contains("forwarded")).collect();
    assert_eq!(added, [""; 0], "nothing is added");
    request
        .send(
            "HTTP/1.1 200 Fine\r\nconnection: x-hop\r\nkeep-alive: 5\r\nx-hop: 1\r\nproxy-authenticate: Basic\r\n\
             warning: 299 - \"a\"\r\nwarning: 299 - \"b\"\r\naudit-id: 7\r\nlocation: /elsewhere\r\n\
             set-cookie: a=b\r\netag: \"x\"\r\ncontent-length: 2\r\n\r\nok",
        )
        .await;
    assert_eq!(client.read_head().await, 200);
    for name in ["connection", "keep-alive", "x-hop", "proxy-authenticate"] {
        assert_eq!(client.headers(name), [""; 0], "{name}: {}", client.head);
    }
    assert_eq!(client.headers("warning"), ["299 - \"a\"", "299 - \"b\""]);
    for (name, value) in [("audit-id", "7"), ("location", "/elsewhere"), ("etag", "\"x\""), ("set-cookie", "a=b")] {
        assert_eq!(client.headers(name), [value], "{name}: {}", client.head);
    }
    assert_eq!(client.read(2).await, b"ok");
}

#[tokio::test]
async fn answers_without_a_body_leave_the_connection_usable() {
    let (mut upstream, forebay) = raw().await;
    let mut client = RawClient::connect(forebay.access()).await;
    for (method, code, headers) in [
        ("HEAD", "200 OK", "content-length: 1234\r\n"),
        ("HEAD", "200 OK", "transfer-encoding: chunked\r\n"),
        ("GET", "204 No Content", ""),
        ("GET", "304 Not Modified", "etag: \"x\"\r\n"),
        ("GET", "302 Found", "location: /other\r\ncontent-length: 0\r\n"),
        ("OPTIONS", "200 OK", "allow: GET\r\ncontent-length: 0\r\n"),
        ("FOO", "405 Method Not Allowed", "content-length: 0\r\n"),
    ] {
        client.again(&forebay, &format!("{method} /api/v1/pods"), "\r\n").await;
        let mut request = upstream.next_of(&mut client).await;
        assert!(request.head.starts_with(&format!("{method} /api/v1/pods HTTP/1.1\r\n")), "{}", request.head);
        request.send(format!("HTTP/1.1 {code}\r\n{headers}\r\n")).await;
        let got = client.read_head().await;
        assert!(code.starts_with(&got.to_string()), "{method} {code}: {}", client.head);
        for line in headers.lines().filter(|line| !line.starts_with("transfer-encoding")) {
            let (name, value) = line.split_once(": ").unwrap();
            assert_eq!(client.headers(name), [value], "{method} {code}: {}", client.head);
        }
        assert_eq!(client.text(), "", "{method} {code}: no body");
    }
}

#[tokio::test]
async fn bodies_are_passed_on_as_they_are() {
    let (mut upstream, forebay) = raw().await;
    // No JSON, no gzip, no text: bytes.
    let noise: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let length = noise.len();
    for encoding in ["", "content-encoding: gzip\r\n", "content-encoding: br\r\n"] {
        let line = "PATCH /apis/x/v1/things/a";
        let mut client = RawClient::ask(&forebay, line, &format!("{encoding}content-length: {length}\r\n\r\n")).await;
        client.send(&noise).await;
        let mut request = upstream.next_of(&mut client).await;
        assert_eq!(request.headers("content-length"), [length.to_string()]);
        assert!(request.read(length).await == noise, "{encoding}: the request's body");
        let head = format!("HTTP/1.1 200 OK\r\n{encoding}content-type: x/y\r\ncontent-length: {length}\r\n\r\n");
        request.send([head.as_bytes(), &noise].concat()).await;
        assert_eq!(client.read_head().await, 200);
        assert_eq!(client.headers("content-length"), [length.to_string()]);
        assert_eq!(client.headers("content-encoding").len(), usize::from(!encoding.is_empty()));
        assert!(client.read(length).await == noise, "{encoding}: the answer's body");
    }
    // Chunked both ways.
    let mut client = RawClient::ask(&forebay, "POST /apis/x/v1/things", "transfer-encoding: chunked\r\n\r\n").await;
    client.send("3\r\nabc\r\n").await;
    let mut request = upstream.next_of(&mut client).await;
    assert_eq!(request.read_until(b"abc\r\n").await, b"3\r\nabc\r\n", "before the body is complete");
    client.send("2;ext=1\r\nde\r\n0\r\n\r\n").await;
    assert_eq!(request.read_until(b"0\r\n\r\n").await, b"2\r\nde\r\n0\r\n\r\n");
    request.send("HTTP/1.1 201 Created\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n").await;
    assert_eq!(client.read_head().await, 201);
    assert_eq!(client.read(6).await, b"1\r\nx\r\n", "before the body is complete");
    request.send("0\r\n\r\n").await;
    assert_eq!(client.read_until(b"0\r\n\r\n").await, b"0\r\n\r\n");
    // A body that ends with its connection.
    let mut client = RawClient::ask(&forebay, "GET /logs", "\r\n").await;
    let mut request = upstream.next_of(&mut client).await;
    request.send("HTTP/1.1 200 OK\r\n\r\nline one\nline two\n").await;
    request.shut().await;
    assert_eq!(client.read_head().await, 200);
    let body = client.read_until(b"0\r\n\r\n").await;
    assert!(body.windows(18).any(|part| part == b"line one\nline two\n"), "{}", String::from_utf8_lossy(&body));
}

/// A body that breaks off upstream does not end well for the client either.
#[tokio::test]
async fn a_body_that_breaks_off_is_not_complete() {
    let rig = Rig::start(&[]).await;
    rig.upstream.world().fill_pods(1, 300).unwrap();
    let whole = rig.direct().get("/api/v1/pods").await.body;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for at in [0, 1, 200_000] {
            rig.upstream.on(forwarded(any())).times(1).cut_after(at);
            let client = rig.forebay.client_over(protocol);
            let (bytes, end) = client.stream("/api/v1/pods?resourceVersion=1").await.rest().await;
            assert_eq!((bytes.len(), end), (at, End::Broken), "{protocol:?}");
            assert!(bytes == whole[..at], "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn expect_continue_is_answered_and_does_not_go_on() {
    let (mut upstream, forebay) = raw().await;
    let body = vec![b'x'; 2 << 20];
    let rest = format!("expect: 100-continue\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut client = RawClient::ask(&forebay, "PUT /apis/x/v1/things/a", &rest).await;
    assert_eq!(client.read_head().await, 100, "{}", client.head);
    let mut request = upstream.next_of(&mut client).await;
    assert_eq!(request.headers("expect"), [""; 0]);
    let (_, received) = tokio::join!(client.send(&body), request.read(body.len()));
    assert!(received == body);
    request.send(OK).await;
    assert_eq!(client.read_head().await, 200);
}

#[tokio::test]
async fn large_heads_pass() {
    let (mut upstream, forebay) = raw().await;
    let token = format!("Bearer {}", "t".repeat(20_000));
    let groups = "impersonate-group: g\r\n".repeat(120);
    let target = format!("/api/v1/pods?labelSelector=a+in+({})", "value,".repeat(10_000));
    let request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: {token}\r\n{groups}\r\n");
    let mut client = RawClient::connect(forebay.access()).await;
    client.send(request).await;
    let mut request = upstream.next_of(&mut client).await;
    assert_eq!(request.target(), target);
    assert_eq!(request.headers("authorization"), [&*token]);
    assert_eq!(request.headers("impersonate-group").len(), 120);
    let warnings = format!("warning: 299 - \"{}\"\r\n", "w".repeat(250)).repeat(120);
    request.send(format!("HTTP/1.1 200 OK\r\n{warnings}connection: close\r\ncontent-length: 0\r\n\r\n")).await;
    assert_eq!(client.read_head().await, 200);
    assert_eq!(client.headers("warning").len(), 120);
    // Over HTTP/2 as well.
    let h2 = forebay.client_over(Protocol::Http2).with_credential(Some(&token));
    let asking = tokio::spawn(async move { h2.get("/version").await });
    let mut request = upstream.next().await;
    assert_eq!(request.headers("authorization"), [&*token]);
    request.send(format!("HTTP/1.1 200 OK\r\n{warnings}content-length: 0\r\n\r\n")).await;
    assert_eq!(within("the answer", asking).await.unwrap().headers.get_all("warning").iter().count(), 120);
}

/// Trailers go both ways: gRPC-like servers behind `proxy` subresources use them.
#[tokio::test]
async fn trailers_pass() {
    let (mut upstream, forebay) = raw().await;
    let mut client = RawClient::ask(
        &forebay,
        "POST /trailers",
        "te: trailers\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n",
    )
    .await;
    client.send("1\r\na\r\n0\r\nx-sum: 1\r\n\r\n").await;
    let mut request = upstream.next_of(&mut client).await;
    let body = request.read_until(b"\r\n\r\n").await;
    assert_eq!(String::from_utf8_lossy(&body), "1\r\na\r\n0\r\nx-sum: 1\r\n\r\n");
    let answer =
        "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n1\r\nb\r\n0\r\nx-sum: 2\r\n\r\n";
    request.send(answer).await;
    assert_eq!(client.read_head().await, 200);
    let body = client.read_until(b"\r\n\r\n").await;
    assert_eq!(String::from_utf8_lossy(&body), "1\r\nb\r\n0\r\nx-sum: 2\r\n\r\n");
}

/// Each piece of a watch is passed on when it comes, the half of an event as well, and nothing is changed in it.
#[tokio::test]
async fn watches_are_unbuffered_and_byte_exact() {
    let (mut upstream, forebay) = raw().await;
    let pieces: [&[u8]; 6] = [
        b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"1\"}}}\n",
        b"{\"type\":\"MOD",
        b"IFIED\"  ,\"object\":{}}\r\n",
        b"\n\n",
        "{\"type\":\"ADDED\",\"object\":{\"x\":\"\u{20ac}".as_bytes(),
        b"\"}}\nnonsense \xff\x00 that is no event\n",
    ];
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = forebay.client_over(protocol);
        let opening =
            tokio::spawn(async move { client.open("GET", "/api/v1/pods?watch=1&resourceVersion=0", &[], "").await });
        let mut request: Raw<_> = upstream.next().await;
        request.send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
        // The head comes at once, before there is anything to tell.
        let mut watching = within("the head", opening).await.unwrap().unwrap().into_body();
        for piece in pieces {
            request.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await;
            let frame = within("the piece", watching.frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), piece, "{protocol:?}");
        }
        request.send("0\r\n\r\n").await;
        let rest = within("the end", watching.collect()).await.unwrap().to_bytes();
        assert!(rest.is_empty(), "{protocol:?}: {rest:?}");
    }
}

/// A watch that says nothing for longer than any request may take is left alone.
#[tokio::test]
async fn quiet_watches_have_no_time_limit() {
    let upstream = upstream(ApiServer::builder()).await;
    upstream.world().fill_pods(1, 1).unwrap();
    let rig = Rig::with(upstream, &["--request-timeout=100ms"]).await;
    let from = rig.upstream.world().revision();
    let mut watching = rig.client().stream(&format!("/api/v1/pods?watch=1&resourceVersion={from}")).await;
    assert!(watching.is_silent(Duration::from_millis(400)).await);
    rig.upstream.world().touch("pods", "team-000/app-000000").unwrap();
    assert_eq!(watching.event().await.0, "MODIFIED");
    assert_eq!(rig.upstream.log().count(forwarded(watch("pods"))), 1);
}

/// A client that leaves takes its request upstream with it.
#[tokio::test]
async fn leaving_cancels_the_request_upstream() {
    let rig = Rig::start(&[]).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let hold = rig.upstream.on(forwarded(named_path("/version"))).hold();
        let client = rig.forebay.client_over(protocol);
        let asking = tokio::spawn(async move { client.get("/version").await });
        hold.wait_for(1, LIMIT).await.unwrap();
        asking.abort();
        hold.wait_empty(LIMIT).await.unwrap();
        hold.rule().remove();

        let watching = rig.forebay.client_over(protocol).stream("/api/v1/pods?watch=1&resourceVersion=1").await;
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        drop(watching);
        rig.upstream.watches("pods").wait_for(0, LIMIT).await.unwrap();
    }
    eventually("all connections upstream but forebay's own are idle or gone", || async {
        (rig.upstream.watches("pods").count() == 0).then_some(())
    })
    .await;
}

/// An upload whose client leaves in the middle must not look complete upstream.
#[tokio::test]
async fn uploads_that_break_off_are_not_complete() {
    let (mut upstream, forebay) = raw().await;
    for (framing, piece) in [("transfer-encoding: chunked", "3\r\nabc\r\n"), ("content-length: 9", "abc")] {
        let mut client = RawClient::ask(&forebay, "POST /upload", &format!("{framing}\r\n\r\n")).await;
        client.send(piece).await;
        let mut request = upstream.next_of(&mut client).await;
        request.read_until(b"abc").await;
        drop(client);
        let rest = request.read_to_end().await;
        assert_eq!(rest.trim(), "", "{framing}");
    }
}
