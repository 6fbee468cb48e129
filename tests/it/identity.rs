//! Who asks: forebay's own token alone is answered from the cache and goes upstream as forebay; anybody else's
//! credential goes on as it is and is judged there; nobody in particular is refused.

use forebay::testing::{ApiServer, any, get, read};

use crate::{
    client::{Client, Protocol},
    rig::{Forebay, Rig, forwarded, upstream_with_pods},
};

const PODS: &str = "/api/v1/pods";
const POD: &str = "/api/v1/namespaces/team-000/pods/app-000000";

async fn cached() -> Rig {
    let rig = Rig::with(upstream_with_pods(5).await, &[]).await;
    let own = rig.upstream.token();
    rig.upstream.set_tokens(&["somebody-else", &own]);
    rig.forebay.wait_cached(PODS).await;
    assert_eq!(rig.client().get(POD).await.answered(), "hit");
    rig.upstream.log().clear();
    rig
}

#[tokio::test]
async fn another_credential_goes_on_untouched_and_never_sees_the_cache() {
    let rig = cached().await;
    let own = rig.forebay.access().token.clone();
    for (credential, code) in [
        ("Bearer somebody-else", 200),
        ("Bearer somebody", 401),
        ("Basic dXNlcjpwYXNz", 401),
        ("Negotiate abc", 401),
        ("Bearer", 401),
        (&*own, 401),
        (&*format!("Bearer {own}x"), 401),
        (&*format!("Basic {own}"), 401),
        (&*format!("Bearer {own} {own}"), 401),
    ] {
        for path in [PODS, POD, "/version"] {
            let reply = rig.client().with_credential(Some(credential)).get(path).await;
            assert_eq!((reply.status, reply.answered()), (code, ""), "{credential} {path}: {reply}");
            let seen = rig.upstream.log().matching(forwarded(any())).pop().unwrap();
            assert_eq!((seen.header("authorization"), seen.path()), (credential, path));
        }
    }
    assert_eq!(rig.client().get(PODS).await.answered(), "hit");
}

#[tokio::test]
async fn without_a_credential_nothing_reaches_upstream() {
    let rig = cached().await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let nobody = rig.forebay.client_over(protocol).with_credential(None);
        for path in [PODS, POD, "/version", "/healthz", "/", "/api/v1/pods?watch=1"] {
            let reply = nobody.get(path).await;
            assert_eq!(reply.status_message(401), "Unauthorized", "{path}");
            assert!(reply.header("www-authenticate").starts_with("Bearer"), "{reply}");
        }
        let reply = nobody.write("POST", "/api/v1/namespaces/x/configmaps", &serde_json::json!({})).await;
        reply.status_message(401);
    }
    assert_eq!(rig.upstream.log().count(any()), 0);
}

#[tokio::test]
async fn impersonation_bypasses_the_cache_and_goes_on() {
    let rig = cached().await;
    for header in ["Impersonate-User", "impersonate-group", "Impersonate-Uid", "Impersonate-Extra-scopes"] {
        for path in [PODS, POD] {
            let reply = rig.client().send("GET", path, &[(header, "bob")], "").await;
            assert_eq!((reply.status, reply.answered()), (200, ""), "{header}: {reply}");
            let seen = rig.upstream.log().matching(forwarded(read("pods"))).pop().unwrap();
            assert_eq!(seen.header(header), "bob");
            assert_eq!(seen.header("authorization"), format!("Bearer {}", rig.upstream.token()));
        }
    }
    assert!(rig.forebay.metric("forebay_requests_total", &["reason=\"impersonation\""]).await >= 8.0);
}

/// A browser that cannot set headers sends its token as a WebSocket subprotocol: that is a credential too.
#[tokio::test]
async fn a_token_among_subprotocols_is_upstreams_to_judge() {
    let rig = cached().await;
    let token = "base64url.bearer.authorization.k8s.io.c29tZWJvZHktZWxzZQ, v4.channel.k8s.io";
    let nobody = rig.client().with_credential(None);
    let reply = nobody.send("GET", POD, &[("sec-websocket-protocol", token)], "").await;
    assert_eq!((reply.status, reply.answered()), (401, ""), "the scripted server knows no such tokens: {reply}");
    let seen = rig.upstream.log().matching(forwarded(get("pods"))).pop().unwrap();
    assert_eq!((seen.header("sec-websocket-protocol"), seen.header("authorization")), (token, ""));
}

/// What the kubeconfig for clients holds: its own CA, its own token, the names of upstream's, and nobody else's eyes.
#[tokio::test]
async fn the_clients_kubeconfig_is_private_and_keeps_the_names() {
    use std::os::unix::fs::PermissionsExt as _;
    let builder = ApiServer::builder().names("prod", "cluster-1", "alice").namespace("team-a");
    let rig = Rig::with(builder.start().await.unwrap(), &[]).await;
    let path = rig.forebay.folder().join("kubeconfig");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&path).unwrap();
    let config: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(config["current-context"], "prod");
    let context = &config["contexts"][0];
    assert_eq!((&context["name"], &context["context"]["cluster"]), (&"prod".into(), &"cluster-1".into()));
    assert_eq!((&context["context"]["user"], &context["context"]["namespace"]), (&"alice".into(), &"team-a".into()));
    assert!(!text.contains(&rig.upstream.token()), "upstream's credential is not for clients");
    assert_eq!(config["clusters"][0]["cluster"]["server"], rig.forebay.running().url);
    let other = Rig::start(&[]).await;
    assert_ne!(other.forebay.access().token, rig.forebay.access().token, "every start has its own");
    let stranger = Client::of(other.forebay.access(), Protocol::Http1);
    let mistaken = stranger.with_credential(Some(&format!("Bearer {}", rig.forebay.access().token)));
    assert_eq!(mistaken.get("/version").await.status, 401, "a foreign token, judged upstream");
}

/// A request's own wish replaces the kubeconfig's as a whole, as in client-go: alice is none of bob's admins.
#[tokio::test]
async fn whom_a_request_acts_as_is_not_mixed_with_whom_the_kubeconfig_does() {
    let upstream = upstream_with_pods(5).await;
    let yaml = upstream.kubeconfig_yaml()
        + "    as: bob\n    as-groups: [\"admins\"]\n    as-user-extra: {\"scopes\": [\"all\"]}\n";
    let forebay = Forebay::start(&yaml, &[]).await;
    let all = |name: &str| {
        let seen = upstream.log().matching(forwarded(read("pods"))).pop().unwrap();
        seen.headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (header, user, groups) in
        [("impersonate-user", vec!["alice"], Vec::<&str>::new()), ("x-other", vec!["bob"], vec!["admins"])]
    {
        let read = forebay.client().send("GET", &format!("{PODS}?limit=1&continue=x"), &[(header, "alice")], "").await;
        assert_eq!(read.answered(), "", "{read}");
        assert!(all("impersonate-user") == user && all("impersonate-group") == groups, "{header}");
    }
}
