//! What must stay small and what must stay secret, whatever clients and upstream send: series (OPS-04), and markers in
//! credentials and bodies (SEC-07).

use std::collections::BTreeSet;

use forebay::testing::{ApiServer, any, update, watch};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    child::Server,
    client::{Client, Protocol},
    raw::RawClient,
    rig::{LIMIT, Rig, eventually, forwarded, own, upstream, upstream_with_pods, within},
};

/// One request of a client that never asks for the same thing twice.
fn unique(n: usize) -> (String, String) {
    let resource = ["pods", "configmaps", "secrets", "services", "leases"][n % 5];
    match n % 10 {
        0..5 => ("GET".into(), format!("/api/v1/namespaces/ns-{n}/{resource}/name-{n}")),
        5 => ("GET".into(), format!("/apis/group-{n}.example.com/v{n}/things-{n}/name-{n}")),
        6 => (format!("FOO{n}"), format!("/api/v1/namespaces/ns-{n}/pods")),
        7 => ("GET".into(), format!("/random/{n}/path?q={n}")),
        8 => ("PATCH".into(), format!("/apis/apps/v1/namespaces/ns-{n}/deployments/d-{n}/sub-{n}")),
        _ => ("GET".into(), format!("/api/v1/namespaces/ns-{n}/pods?labelSelector=l-{n}%3Dx&watch=0&p-{n}=1")),
    }
}

/// OPS-04: names, paths, methods and user agents make no series.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_stay_few() {
    const REQUESTS: usize = 4_000;
    let rig = Rig::with(upstream_with_pods(5).await, &[]).await;
    let client = rig.forebay.client_over(Protocol::Http2);
    let mut sending = JoinSet::new();
    for worker in 0..20 {
        let client = client.clone();
        sending.spawn(async move {
            for n in (worker..REQUESTS).step_by(20) {
                let (method, path) = unique(n);
                let agent = format!("agent-{n}");
                let reply = client.send(&method, &path, &[("user-agent", &agent)], "").await;
                assert!(reply.status < 500, "{method} {path}: {reply}");
            }
        });
    }
    within("all requests", sending.join_all()).await;
    let text = rig.forebay.admin("/metrics").await.text();
    assert!(text.lines().count() < 2_000, "{} lines", text.lines().count());
    assert_is_exposition(&text);
    for made_up in ["name-", "ns-", "things-", "agent-", "FOO", "random", "sub-", "group-"] {
        assert!(!text.contains(made_up), "{made_up} is in {text}");
    }
    assert!(rig.forebay.metric("forebay_requests_total", &[]).await >= REQUESTS as f64);
}

/// The text format: each line a comment or a sample, each sample's labels well-formed, and no series twice.
fn assert_is_exposition(text: &str) {
    let mut series = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(series.insert(name), "twice: {name}");
        let (name, labels) = name.split_once('{').map_or((name, ""), |(name, labels)| (name, labels));
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':'), "{line}");
        if !labels.is_empty() {
            let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}"));
            for pair in labels.split("\",") {
                let (key, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                assert!(!key.is_empty() && !value.trim_end_matches('"').contains('"'), "{line}");
            }
        }
    }
    assert!(series.len() > 20, "{text}");
}

/// SEC-07: whatever goes through, none of it is told in the log at its most talkative, in metrics, in the configuration.
#[tokio::test]
async fn secrets_are_told_nowhere() {
    for (format, plugin) in [("text", false), ("json", false), ("text", true)] {
        let upstream = upstream(ApiServer::builder().token("MARK-upstream-token")).await;
        let secret = json!({"metadata": {"name": "s", "namespace": "x"}, "data": {"k": "MARK-secret-data"}});
        upstream.world().create("secrets", secret).unwrap();
        upstream.world().create("configmaps", json!({"metadata": {"name": "c", "namespace": "x"}})).unwrap();
        // The plugin is run at the start; after that it fails, and says too much.
        let dir = tempfile::tempdir().unwrap();
        let ran = dir.path().join("ran");
        let script = format!(
            "echo MARK-plugin-stderr >&2; echo >> {0}; test $(wc -l < {0}) -gt 1 && echo MARK-plugin-stdout && exit 1; \
             printf \"%s\" \"$CREDENTIAL\"",
            ran.display()
        );
        let past = "2020-01-01T00:00:00Z";
        let credential = format!(
            r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{{"token":"MARK-upstream-token","expirationTimestamp":"{past}"}}}}"#
        );
        let exec = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh",
            "args": ["-c", script, "MARK-plugin-argument"],
            "env": [{"name": "CREDENTIAL", "value": credential}, {"name": "SECRET", "value": "MARK-plugin-env"}],
        }});
        let with_token = upstream.kubeconfig_yaml();
        let without = with_token.replace("    token: MARK-upstream-token\n", "");
        let with_plugin = without.replace("  user:\n", &format!("  user: {exec}\n"));
        let format = format!("--logging-format={format}");
        let flags = ["--v=10", &format, "--max-frame-bytes=100Ki", "--hold-timeout=500ms"];
        let server = Server::start(if plugin { &with_plugin } else { &with_token }, &flags).await;
        talk(&server, &upstream, plugin).await;
        if plugin {
            // What it gave has expired, so it is run again.
            let told = || async { server.process.stderr().contains("exec plugin failed").then_some(()) };
            eventually("the plugin is run again", told).await;
        }
        let mut told = server.process.stderr();
        for path in ["/metrics", "/configz", "/readyz?verbose", "/livez?verbose", "/nothing"] {
            told += &server.admin(path).await.text();
        }
        for line in told.lines() {
            assert!(!line.contains("MARK"), "{line}");
            assert!(!line.contains(&server.access().token), "forebay's own token: {line}");
            assert!(!line.contains("panicked"), "{line}");
        }
        assert!(told.contains("access"), "the log is on:\n{told}");
        assert_eq!(told.contains("exec plugin failed with exit status: 1"), plugin, "{told}");
    }
}

/// Everything that can go through, go wrong and be logged, with a marker in each place that is nobody's business.
async fn talk(server: &Server, upstream: &ApiServer, plugin: bool) {
    let client = server.client(Protocol::Http1);
    for path in ["/api/v1/secrets", "/api/v1/namespaces/x/secrets/s", "/api/v1/namespaces/x/configmaps/c?x=MARK-query"]
    {
        client.get(path).await;
    }
    if plugin {
        return;
    }
    let others = ["Bearer MARK-bearer", "Basic MARK-basic", "MARK-nothing"];
    for credential in others {
        client.with_credential(Some(credential)).get("/api/v1/pods").await;
    }
    let nobody = client.with_credential(None);
    let websocket = "base64url.bearer.authorization.k8s.io.MARK-websocket";
    nobody.send("GET", "/api/v1/pods", &[("sec-websocket-protocol", websocket)], "").await;
    nobody.send("GET", "/api/v1/pods", &[("cookie", "MARK-cookie")], "").await;
    let body = r#"{"metadata":{"name":"n"},"data":{"k":"MARK-written"}}"#;
    let secrets = "/api/v1/namespaces/x/secrets";
    client.send("POST", &format!("{secrets}?fieldManager=MARK-query"), &[], body).await;
    client.send("POST", secrets, &[], "{MARK-bad-json").await;
    upstream.on(update("secrets")).reply(500, "application/json", r#"{"kind":"Status","message":"MARK-500"}"#);
    client.send("PUT", &format!("{secrets}/s"), &[("x-secret", "MARK-header")], body).await;
    upstream.on(forwarded(any())).times(1).reset();
    client.send("PATCH", &format!("{secrets}/s"), &[], body).await;
    let exec = "/api/v1/namespaces/x/pods/p/exec?command=MARK-command";
    client.send("POST", exec, &[("connection", "upgrade"), ("upgrade", "SPDY/3.1")], "").await;
    let mut raw = RawClient::connect(&server.access()).await;
    raw.send("GET / HTTP/1.1\r\nauthorization: Bearer MARK-raw\r\nMARK bad header\r\n\r\n").await;
    raw.read_to_end().await;
    let mut raw = RawClient::connect(&server.access()).await;
    raw.send("GET / HTTP/1.1\r\nauthorization: MARK-a\r\nauthorization: MARK-b\r\nconnection: close\r\n\r\n").await;
    raw.read_to_end().await;

    // A watch that brings a secret in ways it should not.
    for (resource, junk) in [
        ("secrets", "{\"type\":\"NEWS\",\"object\":{\"data\":\"MARK-type\"}}\n".to_owned()),
        (
            "configmaps",
            "{\"type\":\"ADDED\",\"object\":{\"data\":\"MARK-rv\",\"metadata\":{\"resourceVersion\":\"x\"}}}\n"
                .to_owned(),
        ),
        ("services", "MARK-no-json\n".to_owned()),
        ("namespaces", format!("{{\"type\":\"ADDED\",\"object\":{{\"a\":\"MARK-{}\"}}}}\n", "x".repeat(200_000))),
        ("nodes", "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":[\"MARK\"]}}\n".to_owned()),
    ] {
        upstream.on(own(watch(resource))).times(1).inject(junk);
        let path = format!("/api/v1/{resource}");
        let client: Client = server.client(Protocol::Http2);
        within("a read of it", client.get(&path)).await;
    }
    upstream.watches("secrets").wait_for(1, LIMIT).await.unwrap();
}
