use proptest::prelude::*;

use super::*;

/// `verb group/version resource ns/name sub`, with `*` for what is absent and `!` in front if irregular.
fn show(method: &str, target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let info = parse(&method.parse().unwrap(), path, query);
    let mark = if info.irregular { "!" } else { "" };
    let verb = info.verb.as_str();
    let Some(path) = info.resource() else { return format!("{mark}{verb} -") };
    let or_star = |part: &Option<Arc<str>>| part.as_deref().unwrap_or("*").to_owned();
    let prefix = match path.prefix {
        Some(PathPrefix::Watch) => "watch:",
        Some(PathPrefix::Proxy) => "proxy:",
        None => "",
    };
    format!(
        "{mark}{verb} {prefix}{} {} {}/{} {}",
        path.gvr.api_version(),
        path.gvr.resource,
        or_star(&path.namespace),
        or_star(&path.name),
        or_star(&path.subresource)
    )
}

#[test]
fn regular_paths() {
    for (method, target, want) in [
        ("GET", "/api/v1/pods", "list v1 pods */* *"),
        ("GET", "/api/v1/namespaces/x/pods", "list v1 pods x/* *"),
        ("GET", "/api/v1/namespaces/x/pods/nginx", "get v1 pods x/nginx *"),
        ("GET", "/api/v1/namespaces/x/configmaps/nginx", "get v1 configmaps x/nginx *"),
        ("GET", "/api/v1/namespaces/x/secrets/nginx", "get v1 secrets x/nginx *"),
        ("GET", "/api/v1/namespaces/x/services/nginx", "get v1 services x/nginx *"),
        ("GET", "/api/v1/namespaces/x/serviceaccounts/nginx", "get v1 serviceaccounts x/nginx *"),
        ("GET", "/api/v1/namespaces/x/pods/nginx/status", "get v1 pods x/nginx status"),
        ("GET", "/api/v1/namespaces/x/pods/nginx/log", "get v1 pods x/nginx log"),
        ("GET", "/apis/apps/v1/namespaces/x/deployments/nginx/scale", "get apps/v1 deployments x/nginx scale"),
        ("POST", "/api/v1/namespaces/x/pods/nginx/exec?command=sh", "create v1 pods x/nginx exec"),
        ("GET", "/apis/apps/v1/deployments", "list apps/v1 deployments */* *"),
        ("GET", "/apis/apps/v1/namespaces/x/deployments", "list apps/v1 deployments x/* *"),
        // A name without a namespace is not a route upstream; that is for discovery's scope to tell.
        ("GET", "/api/v1/configmaps/cm-0", "get v1 configmaps */cm-0 *"),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
            "get rbac.authorization.k8s.io/v1 clusterroles */system:node *",
        ),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            "get rbac.authorization.k8s.io/v1 clusterroles */system:node *",
        ),
        ("GET", "/api/v1/namespaces/probe/config%6Daps", "list v1 configmaps probe/* *"),
        // Namespace objects.
        ("GET", "/api/v1/namespaces", "list v1 namespaces */* *"),
        ("GET", "/api/v1/namespaces/x", "get v1 namespaces */x *"),
        ("GET", "/api/v1/namespaces/x/status", "get v1 namespaces */x status"),
        ("PUT", "/api/v1/namespaces/x/finalize", "update v1 namespaces */x finalize"),
        ("GET", "/api/v1/namespaces/x/finalizers", "list v1 finalizers x/* *"),
        ("GET", "/api/v1/namespaces/namespaces/namespaces/n", "get v1 namespaces namespaces/n *"),
        // Verbs.
        ("HEAD", "/api/v1/pods", "head v1 pods */* *"),
        ("HEAD", "/api/v1/namespaces/x/pods/nginx", "head v1 pods x/nginx *"),
        ("HEAD", "/healthz", "head -"),
        ("POST", "/api/v1/namespaces/x/pods", "create v1 pods x/* *"),
        ("PUT", "/api/v1/namespaces/x/pods/nginx", "update v1 pods x/nginx *"),
        ("PATCH", "/api/v1/namespaces/x/pods/nginx", "patch v1 pods x/nginx *"),
        ("DELETE", "/api/v1/namespaces/x/pods/nginx", "delete v1 pods x/nginx *"),
        ("DELETE", "/api/v1/namespaces/x/pods?watch=1", "deletecollection v1 pods x/* *"),
        ("OPTIONS", "/api/v1/pods", "other v1 pods */* *"),
        ("get", "/api/v1/pods", "other v1 pods */* *"),
        // Watch: a boolean parameter, only for collections.
        ("GET", "/api/v1/pods?watch", "watch v1 pods */* *"),
        ("GET", "/api/v1/pods?watch=", "watch v1 pods */* *"),
        ("GET", "/api/v1/pods?watch=no", "watch v1 pods */* *"),
        ("GET", "/api/v1/pods?limit=1&watch=true", "watch v1 pods */* *"),
        ("GET", "/api/v1/pods?w%61tch=1", "watch v1 pods */* *"),
        ("GET", "/api/v1/pods?watch=0", "list v1 pods */* *"),
        ("GET", "/api/v1/pods?watch=False", "list v1 pods */* *"),
        ("GET", "/api/v1/pods?watch=0&watch=1", "list v1 pods */* *"),
        ("GET", "/api/v1/pods?watch=1;a=2", "list v1 pods */* *"),
        ("GET", "/api/v1/pods?Watch=1", "list v1 pods */* *"),
        ("GET", "/api/v1/namespaces/x/pods/nginx?watch=true", "get v1 pods x/nginx *"),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list v1 pods */* *"),
        // The deprecated prefixes.
        ("GET", "/api/v1/watch/pods", "watch watch:v1 pods */* *"),
        ("GET", "/api/v1/watch/namespaces/x/pods/nginx", "watch watch:v1 pods x/nginx *"),
        ("GET", "/apis/apps/v1/watch/deployments?watch=0", "watch watch:apps/v1 deployments */* *"),
        ("GET", "/api/v1/watch/namespaces/x", "watch watch:v1 namespaces */x *"),
        ("HEAD", "/api/v1/watch/pods", "head watch:v1 pods */* *"),
        ("GET", "/api/v1/proxy/namespaces/x/pods/nginx/a/b", "proxy proxy:v1 pods x/nginx *"),
        // Short and other paths.
        ("GET", "/", "get -"),
        ("GET", "/api", "get -"),
        ("GET", "/apis", "get -"),
        ("GET", "/api/v1", "get -"),
        ("GET", "/apis/apps", "get -"),
        ("GET", "/apis/apps/v1", "get -"),
        ("GET", "/version", "get -"),
        ("GET", "/openapi/v2", "get -"),
        ("GET", "/openapi/v3/apis/apps/v1", "get -"),
        ("GET", "/healthz/ping/x", "get -"),
        ("GET", "/.well-known/openid-configuration", "get -"),
        ("GET", "/API/v1/pods", "get -"),
    ] {
        assert_eq!(show(method, target), want, "{method} {target}");
    }
}

#[test]
fn irregular_paths_are_marked() {
    for (target, want) in [
        ("/api/", "!get -"),
        ("/api/v1/namespaces/probe/configmaps/", "!list v1 configmaps probe/* *"),
        ("/api/v1/namespaces/probe/configmaps/cm-0///", "!get v1 configmaps probe/cm-0 *"),
        ("//api/v1/pods", "!list v1 pods */* *"),
        ("/api//v1/pods", "!get  v1 */pods *"),
        // Upstream lists all namespaces.
        ("/api/v1/namespaces//configmaps", "!list v1 configmaps */* *"),
        ("/api/v1/namespaces/probe//configmaps/cm-0", "!get v1  probe/configmaps cm-0"),
        ("/api/v1/namespaces/probe/configmaps//cm-0", "!list v1 configmaps probe/* cm-0"),
        ("/api/v1/namespaces/../pods", "!list v1 pods ../* *"),
        ("/api/v1/%2e%2e/pods", "!get v1 .. */pods *"),
        ("/api/v1/namespaces/x/pods/.", "!get v1 pods x/. *"),
        ("/api/v1/namespaces/x/pods/a%2Fb", "!get v1 pods x/a b"),
        ("/api/v1/namespaces/x/pods/nginx/proxy/a%2Fb//c/", "!get v1 pods x/nginx proxy"),
        ("/api/v1/namespaces/x/pods/a%25b", "!get v1 pods x/a%b *"),
        ("/api/v1/namespaces/x/pods/%", "!get v1 pods x/% *"),
        ("/api/v1/namespaces/x/pods/%zz", "!get v1 pods x/%zz *"),
        ("/api/v1/namespaces/x/pods/%ff", "!get v1 pods x/\u{fffd} *"),
        ("/api/v1/namespaces/x/pods/%C3%A9", "!get v1 pods x/é *"),
        ("/api/v1/namespaces/x/pods/a%00b", "!get v1 pods x/a\0b *"),
        ("/api/v1/watch", "!get -"),
        ("/apis/apps/v1/proxy", "!get -"),
        ("/apis/apps/v1/watch/", "!get -"),
        ("*", "!get -"),
        ("", "!get -"),
        ("api/v1/pods", "!list v1 pods */* *"),
    ] {
        assert_eq!(show("GET", target), want, "{target}");
    }
}

#[test]
fn long_running_requests_have_no_deadline() {
    for (target, want) in [
        ("/api/v1/pods?watch=1", true),
        ("/api/v1/watch/pods", true),
        ("/api/v1/namespaces/x/pods/n/log", true),
        ("/api/v1/namespaces/x/pods/n/exec", true),
        ("/api/v1/namespaces/x/pods/n/status", false),
        ("/api/v1/pods", false),
        ("/healthz", false),
    ] {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        assert_eq!(parse(&Method::GET, path, Some(query)).is_long_running(), want, "{target}");
    }
}

proptest! {
    #[test]
    fn nothing_panics(method in "[A-Z]{1,8}", path in "\\PC*", query in proptest::option::of("\\PC*")) {
        parse(&method.parse().unwrap(), &path, query.as_deref());
    }

    #[test]
    fn paths_made_of_tokens_hold_the_invariants(
        parts in prop::collection::vec(prop::sample::select(vec![
            "api", "apis", "v1", "apps", "namespaces", "watch", "proxy", "status", "pods", "x", "", ".", "..", "%2f", "%25", "%", "a%3Ab", "é",
        ]), 0..12),
        method in prop::sample::select(vec!["GET", "HEAD", "POST", "DELETE"]),
    ) {
        let path = format!("/{}", parts.join("/"));
        let info = parse(&method.parse().unwrap(), &path, None);
        let clean = parts.iter().all(|p| !matches!(*p, "" | "." | ".." | "%2f" | "%25" | "%" | "é"));
        if let Some(resource) = info.resource() {
            if !info.irregular {
                prop_assert!(clean && !resource.gvr.resource.is_empty());
                // What was read is what was written.
                let sub = resource.subresource.as_deref();
                let tail: Vec<&str> = [Some(&*resource.gvr.resource), resource.name.as_deref(), sub].into_iter().flatten().collect();
                let decoded = path.replace("%3A", ":");
                prop_assert!(decoded.contains(&tail.join("/")), "{} {:?}", decoded, tail);
            }
        } else if clean && !parts.is_empty() && !info.irregular {
            prop_assert!(parts.len() < 4 || !matches!(parts[0], "api" | "apis"));
        }
    }
}
