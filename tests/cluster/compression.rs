//! Compressed bodies (SEL-08): a forwarded answer is the API server's own, encoding included; a cached one is never
//! compressed; and the header always says what the bytes are.

use std::io::Read as _;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::json;

use crate::client::{Answer, HttpClient, Protocol};
use crate::control_plane::ControlPlane;
use crate::fixtures::{config_map, create_all, in_namespace};
use crate::forebay::Forebay;
use crate::pair::masked;
use crate::users::{Role, Users};

/// The API server compresses above 128 KiB.
const LARGE: usize = 300;

const ACCEPTED: [&str; 7] = ["", "gzip", "identity", "gzip;q=0", "br, gzip", "deflate", "*"];

/// Named in the answer's `Content-Encoding`, and undone.
fn plain(answer: &Answer, what: &str) -> Bytes {
    match answer.header("content-encoding") {
        "" | "identity" => answer.body.clone(),
        "gzip" => {
            let mut out = Vec::new();
            GzDecoder::new(&answer.body[..]).read_to_end(&mut out).unwrap_or_else(|error| panic!("{what}: {error}"));
            out.into()
        }
        other => panic!("{what}: nobody asked for {other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encodings_and_bytes_agree() {
    let plane = ControlPlane::shared();
    let (small, large) = (plane.namespace("gzip").await, plane.namespace("gzip").await);
    let maps = |namespace: &str| in_namespace("/api/v1/configmaps", namespace);
    let text = "a line that repeats itself\n".repeat(40);
    let objects = (0..LARGE).map(|n| (maps(&large), config_map(&format!("m{n}"), json!({}), json!({"text": text}))));
    let few = (0..2).map(|n| (maps(&small), config_map(&format!("m{n}"), json!({}), json!({"text": text}))));
    create_all(&plane.client(&Users::rig()).with_user_agent("rig"), objects.chain(few).collect()).await;
    let user = plane.user(Role::Reader);
    let forebay = Forebay::start(&plane.kubeconfig(&user)).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (direct, through) = (plane.client_over(&user, protocol).await, forebay.client_over(protocol).await);
        // In the order of time: forwarded, then cached.
        for (path, live) in [
            ("/openapi/v3".to_owned(), false),
            (maps(&small), true),
            (maps(&large), true),
            (maps(&small), false),
            (maps(&large), false),
        ] {
            for accepted in ACCEPTED {
                let what = format!("{protocol:?} {path} live={live} Accept-Encoding: {accepted}");
                let mut headers = vec![("accept", "application/json")];
                headers.extend((!accepted.is_empty()).then_some(("accept-encoding", accepted)));
                headers.extend(live.then_some(("cache-control", "no-cache")));
                let want = direct.get_with(&path, &headers).await;
                let got = through.get_with(&path, &headers).await;
                assert_eq!(masked(&plain(&want, &what)), masked(&plain(&got, &what)), "{what}");
                let cached = !got.header("x-forebay").is_empty();
                assert!(!(live && cached), "{what}: {}", got.describe());
                if cached {
                    assert_eq!(got.header("content-encoding"), "", "{what}");
                } else {
                    assert_eq!(want.header("content-encoding"), got.header("content-encoding"), "{what}");
                    assert_eq!(want.header("vary"), got.header("vary"), "{what}");
                }
                let length = got.header("content-length");
                assert!(length.is_empty() || length == got.body.len().to_string(), "{what}: {length}");
            }
        }
        // The server that compresses does so here, so the comparison above has met it.
        let compressed = direct.get_with(&maps(&large), &[("accept-encoding", "gzip")]).await;
        assert_eq!(compressed.header("content-encoding"), "gzip");
    }
}

/// A watch that asks for compression gets each event at once.
#[tokio::test]
async fn streams_are_not_held_back() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("gzip").await;
    let path = in_namespace("/api/v1/configmaps", &namespace);
    let admin = plane.client(&Users::rig()).with_user_agent("rig");
    let forebay = Forebay::start(&plane.kubeconfig(&plane.user(Role::Reader))).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client: HttpClient = forebay.client_over(protocol).await;
        let watch = format!("{path}?watch=true&timeoutSeconds=60");
        let mut body = client.open(Method::GET, &watch, &[("accept-encoding", "gzip")], "").await.unwrap().into_body();
        for n in 0..3 {
            let name = format!("{}-{n}", format!("{protocol:?}").to_lowercase());
            admin.post(&path, &config_map(&name, json!({}), json!({}))).await;
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains(&name) {
                let frame = tokio::time::timeout(Duration::from_secs(30), body.frame()).await;
                let frame = frame.unwrap_or_else(|_| panic!("{protocol:?}: {name} was not told")).unwrap().unwrap();
                seen.extend_from_slice(&frame.into_data().unwrap_or_default());
            }
        }
    }
}
