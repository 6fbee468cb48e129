//! Where a message ends and who sent it (SEC-06): what can be read in two ways is refused, and no client can make its
//! credential, or forebay's, disappear from a request or appear in somebody else's.

use std::time::Duration;

use forebay::testing::{ApiServer, any};
use serde_json::Value;

use crate::{
    h2::Connection,
    raw::{RawClient, RawUpstream},
    rig::{Forebay, Rig, forwarded, upstream_with_pods},
};

const WRITE: &str = "POST /api/v1/namespaces/x/configmaps";

/// Requests that are refused with 400, and after which the connection ends: what follows on it is anybody's guess.
const AMBIGUOUS: &[(&str, &str)] = &[
    ("two lengths", "content-length: 2\r\ncontent-length: 30\r\n\r\n{}"),
    ("the same length twice", "content-length: 2\r\ncontent-length: 2\r\n\r\n{}"),
    ("a length and chunks", "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    ("chunks and a length", "transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    ("chunked twice", "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("chunked with a tab", "transfer-encoding:\tchunked\r\n\r\n0\r\n\r\n"),
    ("a bare line feed", "x-a: b\ncontent-length: 2\r\n\r\n{}"),
    ("bare line feeds at the end", "x-a: b\n\n"),
    ("a list of lengths", "content-length: 2, 30\r\n\r\n{}"),
    ("a signed length", "content-length: +2\r\n\r\n{}"),
    ("a length that is no number", "content-length: two\r\n\r\n{}"),
    ("a huge length", "content-length: 99999999999999999999999\r\n\r\n{}"),
    ("a space before the colon", "content-length : 2\r\n\r\n{}"),
    ("a folded header", "x-a: b\r\n content-length: 2\r\n\r\n{}"),
    ("chunked, but not last", "transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    ("an unknown coding", "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("a header name with a space", "x a: b\r\n\r\n"),
    ("a header name that is none", "x\u{e9}: b\r\n\r\n"),
    ("a header without a colon", "nonsense\r\n\r\n"),
    ("a zero byte in a value", "x-a: b\0c\r\n\r\n"),
    ("a carriage return in a value", "x-a: b\rc\r\n\r\n"),
];

/// Requests that are one message, but two people's, or that would lose a header that says whose.
const REFUSED: &[(&str, &str)] = &[
    ("authorization named as hop-by-hop", "connection: authorization\r\n\r\n"),
    ("... in any case, among others", "connection: keep-alive, AUTHORIZATION\r\n\r\n"),
    ("the length named as hop-by-hop", "connection: content-length\r\ncontent-length: 2\r\n\r\n{}"),
    ("impersonation named as hop-by-hop", "impersonate-user: bob\r\nconnection: impersonate-user\r\n\r\n"),
    ("a second credential", "authorization: Bearer other\r\n\r\n"),
    ("the same credential again", "Authorization: Bearer x\r\n\r\n"),
];

async fn raw() -> (RawUpstream, Forebay) {
    let upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &[]).await;
    (upstream, forebay)
}

/// Nothing has been sent on: a request that follows is the first to arrive.
async fn nothing_passed(upstream: &mut RawUpstream, forebay: &Forebay, what: &str) {
    let mut client = RawClient::ask(forebay, "GET /version", "\r\n").await;
    let mut request = upstream.next().await;
    assert_eq!(request.target(), "/version", "{what}: reached upstream: {}", request.head);
    request.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(client.read_head().await, 200);
    assert!(upstream.is_quiet(), "{what}");
}

#[tokio::test]
async fn ambiguous_framing_is_refused_and_ends_the_connection() {
    let (mut upstream, forebay) = raw().await;
    for (what, rest) in AMBIGUOUS {
        let mut client = RawClient::ask(&forebay, WRITE, rest).await;
        // What would be smuggled in, were the end of the first request misread.
        client.again(&forebay, "DELETE /api/v1/namespaces/x", "\r\n").await;
        assert_eq!(client.read_head().await, 400, "{what}: {}", client.head);
        assert_eq!(client.headers("connection"), ["close"], "{what}: {}", client.head);
        let rest = client.read_to_end().await;
        let status: Value = serde_json::from_str(&rest).unwrap_or_else(|error| panic!("{what}: {error}: {rest}"));
        assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &400.into()), "{what}");
        nothing_passed(&mut upstream, &forebay, what).await;
    }
}

#[tokio::test]
async fn an_identity_that_could_get_lost_is_refused() {
    let (mut upstream, forebay) = raw().await;
    for (what, rest) in REFUSED {
        let mut client = RawClient::ask(&forebay, WRITE, rest).await;
        assert_eq!(client.read_head().await, 400, "{what}: {}", client.head);
        let length = client.headers("content-length")[0].parse().unwrap();
        let status: Value = serde_json::from_slice(&client.read(length).await).unwrap();
        assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &400.into()), "{what}");
        assert!(!status.to_string().contains(&forebay.access().token), "{what}");
        nothing_passed(&mut upstream, &forebay, what).await;
    }
}

/// What came before an ambiguous request on its connection is answered, in order; nothing after it is.
#[tokio::test]
async fn requests_before_an_ambiguous_one_are_answered_in_turn() {
    let (mut upstream, forebay) = raw().await;
    let token = &forebay.access().token;
    let good =
        format!("POST /a HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: 2\r\n\r\n");
    let bad = good.replace("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    let mut client = RawClient::connect(forebay.access()).await;
    client.send(format!("{good}{{}}{good}[]{bad}{good}{{}}")).await;
    for body in ["{}", "[]"] {
        let mut request = upstream.next().await;
        assert_eq!(request.read(2).await, body.as_bytes());
        request.send("HTTP/1.1 201 Created\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
        assert_eq!(client.read_head().await, 201);
        assert_eq!(client.read(2).await, b"ok");
    }
    assert_eq!(client.read_head().await, 400);
    assert!(!client.read_to_end().await.contains("HTTP/1.1"));
    assert!(upstream.is_quiet());
}

/// Above the bounds the answer says which; below them everything passes that kube-apiserver takes.
#[tokio::test]
async fn heads_have_bounds_and_say_so() {
    let upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &["--max-header-bytes=128Ki", "--header-timeout=300ms"]).await;
    let long = format!("GET /{}", "x".repeat(65_534));
    for (line, rest, code) in [
        ("GET /a", format!("x-a: {}\r\n\r\n", "x".repeat(128 << 10)), 431),
        ("GET /a", format!("x-a: {}", "x".repeat(140 << 10)), 431),
        ("GET /a", format!("{}\r\n", "x-a: b\r\n".repeat(255)), 431),
        (&long, "\r\n".to_owned(), 414),
        ("GET /a", "x-a: never ends".to_owned(), 408),
    ] {
        let mut client = RawClient::ask(&forebay, line, &rest).await;
        assert_eq!(client.read_head().await, code, "{}", client.head);
        assert_eq!(client.headers("connection"), ["close"], "{}", client.head);
        let status: Value = serde_json::from_str(&client.read_to_end().await).unwrap();
        assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &code.into()));
    }
    let refused = forebay.metric("forebay_requests_total", &["reason=\"unreadable\""]).await;
    assert_eq!(refused, 5.0);
    // The deadline is one for heads that have begun, not for a connection that idles.
    let mut upstream = upstream;
    let mut client = RawClient::connect(forebay.access()).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    for target in ["/version?a=\"b\"&c=<d>", &format!("/version?labelSelector=a+in+({})", "value,".repeat(10_000))] {
        client.again(&forebay, &format!("GET {target}"), "\r\n").await;
        let mut request = upstream.next_of(&mut client).await;
        assert_eq!(request.target(), target.replace('"', "%22").replace('<', "%3C").replace('>', "%3E"));
        request.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        assert_eq!(client.read_head().await, 200);
    }
}

/// The same over HTTP/2, where a head is framed but may still be large or say what belongs to a connection.
#[tokio::test]
async fn http2_heads_have_bounds_too() {
    let upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &["--max-header-bytes=128Ki"]).await;
    let connection = Connection::open(forebay.access()).await;
    let mut request = connection.request("GET", "/a", "");
    request.headers_mut().insert("x-a", "x".repeat(140 << 10).parse().unwrap());
    assert_eq!(connection.send(request).await.status, 431);
    assert!(connection.is_open().await);
}

#[tokio::test]
async fn targets_that_are_no_path_are_refused() {
    let (mut upstream, forebay) = raw().await;
    for (line, codes) in [
        ("CONNECT example.com:443", &[400, 405][..]),
        ("OPTIONS *", &[400]),
        ("GET api/v1/pods", &[400]),
        ("GET http://localhost/version", &[400]),
        ("GET https://example.com/version?a=b", &[400]),
        ("GET", &[400]),
        ("GET /a b", &[400]),
        ("G\u{e9}T /", &[400]),
    ] {
        let mut client = RawClient::ask(&forebay, line, "\r\n").await;
        let code = client.read_head().await;
        assert!(codes.contains(&code), "{line}: {}", client.head);
        nothing_passed(&mut upstream, &forebay, line).await;
    }
}

/// A body where none belongs does not become the next request.
#[tokio::test]
async fn a_get_with_a_body_and_one_right_behind_it_are_two() {
    let rig = Rig::with(upstream_with_pods(3).await, &[]).await;
    let pods = "GET /api/v1/pods";
    rig.forebay.wait_cached("/api/v1/pods").await;
    let smuggled = "DELETE /api/v1/namespaces/x HTTP/1.1\r\n\r\n";
    let framed = [
        format!("content-length: {}\r\n\r\n{smuggled}", smuggled.len()),
        format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{smuggled}\r\n0\r\n\r\n", smuggled.len()),
    ];
    for rest in framed {
        let mut client = RawClient::ask(&rig.forebay, pods, &rest).await;
        client.again(&rig.forebay, pods, "connection: close\r\n\r\n").await;
        let answers = client.read_to_end().await;
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
        assert_eq!(answers.matches(r#""kind":"PodList""#).count(), 2, "{answers}");
        assert_eq!(answers.matches("x-forebay: hit").count(), 1, "only the one without a body: {answers}");
    }
    assert_eq!(rig.upstream.log().count(any().and("not GET", |seen| seen.method != "GET")), 0);
    assert_eq!(rig.upstream.log().count(forwarded(any())), 2);
}

/// Requests that come in small pieces, in one piece, or in HTTP/1.0, are what they are.
#[tokio::test]
async fn pieces_do_not_matter() {
    let rig = Rig::with(ApiServer::builder().start().await.unwrap(), &[]).await;
    let token = &rig.forebay.access().token;
    let one = format!("GET /version HTTP/1.1\r\nhost: localhost\r\nauthorization: bearer {token}\r\n\r\n");
    let mut client = RawClient::connect(rig.forebay.access()).await;
    for byte in one.as_bytes() {
        client.send([*byte]).await;
    }
    assert_eq!(client.read_head().await, 200);
    let mut client = RawClient::connect(rig.forebay.access()).await;
    client.send(one.repeat(20)).await;
    for n in 0..20 {
        assert_eq!(client.read_head().await, 200, "{n}");
        client.read_until(b"\"platform\": \"linux/amd64\"\n}").await;
        let _ = client.text();
    }
    let mut client = RawClient::connect(rig.forebay.access()).await;
    client.send(one.replace("HTTP/1.1", "HTTP/1.0")).await;
    assert_eq!(client.read_head().await, 200);
    assert!(client.read_to_end().await.ends_with('}'), "closes by itself");
}
