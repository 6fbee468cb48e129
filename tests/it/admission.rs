//! Requests that are not looked at: for another host, from a web page, without a path. With or without a credential, over
//! either protocol, for the cache or for upstream: they are refused before anything else, and what clients outside of
//! browsers send is not.

use forebay::testing::any;
use http::{HeaderValue, Request, header};

use crate::{
    h2::Connection,
    raw::RawClient,
    rig::{Rig, forwarded, upstream_with_pods},
};

const PODS: &str = "/api/v1/pods";

/// Host, further header lines, code.
const CASES: &[(&str, &str, u16)] = &[
    ("example.com", "", 421),
    ("127.0.0.1.example.com:6480", "", 421),
    ("kubernetes.default.svc.example.com", "", 421),
    ("127.0.0.1:6480", "origin: https://example.com\r\n", 403),
    ("127.0.0.1:6480", "origin: null\r\n", 403),
    ("127.0.0.1:6480", "origin: http://localhost:3000\r\n", 403),
    ("127.0.0.1:6480", "sec-fetch-site: cross-site\r\n", 403),
    ("localhost", "", 200),
    ("kubernetes.default.svc:443", "", 200),
    // Python's WebSocket client, and Node's fetch.
    ("127.0.0.1:6480", "origin: https://127.0.0.1:6480\r\n", 200),
    ("127.0.0.1:6480", "sec-fetch-mode: cors\r\n", 200),
];

async fn rig() -> Rig {
    let rig = Rig::with(upstream_with_pods(3).await, &[]).await;
    rig.forebay.wait_cached(PODS).await;
    rig.upstream.log().clear();
    rig
}

#[tokio::test]
async fn foreign_hosts_and_web_pages_are_refused_over_http1() {
    let rig = rig().await;
    let token = &rig.forebay.access().token;
    for (host, lines, code) in CASES {
        for (path, credential) in [(PODS, &**token), ("/version", &**token), (PODS, "somebody-else"), (PODS, "")] {
            let credential =
                if credential.is_empty() { String::new() } else { format!("authorization: Bearer {credential}\r\n") };
            let mut client = RawClient::connect(rig.forebay.access()).await;
            let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{credential}{lines}connection: close\r\n\r\n");
            client.send(&head).await;
            let got = client.read_head().await;
            let allowed = credential.contains(&**token);
            let want = if *code == 200 && !allowed { 401 } else { *code };
            assert_eq!(got, want, "{head}{}", client.head);
            let body = client.read_to_end().await;
            assert_eq!(body.contains(&format!(r#""code":{want}}}"#)), want != 200, "{head}{body}");
            assert!(client.headers("access-control-allow-origin").is_empty(), "{}", client.head);
        }
    }
    // One for each allowed `/version` and each foreign credential.
    let passed = CASES.iter().filter(|case| case.2 == 200).count();
    assert_eq!(rig.upstream.log().count(forwarded(any())), 2 * passed);
    assert!(rig.forebay.metric("forebay_requests_total", &["reason=\"host\""]).await >= 12.0);
    assert!(rig.forebay.metric("forebay_requests_total", &["reason=\"browser\""]).await >= 16.0);
}

#[tokio::test]
async fn foreign_hosts_and_web_pages_are_refused_over_http2() {
    let rig = rig().await;
    let connection = Connection::open(rig.forebay.access()).await;
    for (host, lines, code) in CASES {
        let mut request = connection.request("GET", PODS, "");
        *request.uri_mut() = format!("https://{host}{PODS}").parse().unwrap();
        for line in lines.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        let reply = connection.send(request).await;
        assert_eq!(reply.status, *code, "{host} {lines}: {reply}");
        if *code != 200 {
            reply.status_message(*code);
        }
    }
    let with_host = |host: &'static str| {
        let mut request: Request<_> = connection.request("GET", PODS, "");
        request.headers_mut().insert(header::HOST, HeaderValue::from_static(host));
        request
    };
    connection.send(with_host("example.com")).await.status_message(400);
    assert!(connection.is_open().await, "a refusal ends no other stream");
    assert_eq!(rig.upstream.log().count(forwarded(any())), 0);
}
