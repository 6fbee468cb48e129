use http::Method;

use crate::request::info;

use super::*;

const POD: &str = "/api/v1/namespaces/a/pods/x";
const PODS: &str = "/api/v1/namespaces/a/pods";

fn entry(namespaced: bool) -> Entry {
    Entry { kind: "Pod".into(), namespaced, cacheable: true, gets: true }
}

/// What is decided about `method` on `target`, after `change` to otherwise ordinary facts.
fn decided(method: &Method, target: &str, entry: Option<&Entry>, change: impl FnOnce(&mut Facts<'_>)) -> Decision {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let info = info::parse(method, path, query);
    let options = ReadOptions::parse(query);
    let mut facts = Facts {
        info: &info,
        options: &options,
        format: Format::Json,
        local: true,
        impersonates: false,
        no_cache: false,
        upgrade: false,
        has_body: false,
    };
    change(&mut facts);
    decide(&facts, entry, &|gvr| &*gvr.resource == "leases")
}

fn forwarded(decision: &Decision) -> Option<Reason> {
    match decision {
        Decision::Forward(reason) => Some(*reason),
        Decision::Cache(_) => None,
    }
}

#[test]
fn reads_that_are_understood_completely_may_be_answered() {
    let pods = entry(true);
    for target in [
        POD,
        PODS,
        "/api/v1/pods",
        "/api/v1/pods?resourceVersion=0",
        "/api/v1/pods?resourceVersion=&labelSelector=&fieldSelector=",
        "/api/v1/pods?limit=500&resourceVersion=0",
        "/api/v1/pods?limit=500",
        "/api/v1/pods?labelSelector=a%3Db,c&timeout=30s",
        "/api/v1/pods?fieldSelector=metadata.name%3Dx,metadata.namespace!%3Dy",
        "/api/v1/namespaces/a/pods/x?resourceVersion=0",
    ] {
        assert_eq!(forwarded(&decided(&Method::GET, target, Some(&pods), |_| {})), None, "{target}");
    }
    let Decision::Cache(read) = decided(&Method::GET, POD, Some(&pods), |_| {}) else { panic!("{POD}") };
    assert_eq!((read.gvr, read.scope), (Gvr::new("", "v1", "pods"), Scope::Namespace("a".into())));
    assert!(matches!(read.want, Want::Object { ref key, .. } if key == "a/x"), "{:?}", read.want);
}

#[test]
fn everything_else_is_forwarded_with_its_reason() {
    let pods = entry(true);
    for (method, target, want) in [
        (Method::POST, PODS, Reason::Write),
        (Method::PUT, POD, Reason::Write),
        (Method::PATCH, POD, Reason::Write),
        (Method::DELETE, POD, Reason::Write),
        (Method::DELETE, PODS, Reason::Write),
        (Method::HEAD, POD, Reason::Verb),
        (Method::OPTIONS, POD, Reason::Verb),
        (Method::GET, "/api/v1/pods?watch=true", Reason::Watch),
        (Method::GET, "/api/v1/pods?watch", Reason::Watch),
        (Method::GET, "/api/v1/watch/pods", Reason::Watch),
        (Method::GET, "/api/v1/namespaces/a/pods/x/status", Reason::Subresource),
        (Method::GET, "/api/v1/namespaces/a/pods/x/log", Reason::Subresource),
        (Method::GET, "/healthz", Reason::NonResource),
        (Method::GET, "/apis", Reason::NonResource),
        (Method::GET, "/api/v1", Reason::NonResource),
        (Method::GET, "/version", Reason::NonResource),
        (Method::GET, "/api/v1/namespaces//pods", Reason::Path),
        (Method::GET, "/api/v1/namespaces/a/pods/x/", Reason::Path),
        (Method::GET, "//api/v1/pods", Reason::Path),
        (Method::GET, "/api/v1/namespaces/a/pods/a%2Fb", Reason::Path),
        (Method::GET, "/api/v1/namespaces/a/pods/a%25b", Reason::Path),
        (Method::GET, "/api/v1/pods?resourceVersion=7", Reason::ResourceVersion),
        (Method::GET, "/api/v1/pods?resourceVersion=abc", Reason::ResourceVersion),
        (Method::GET, "/api/v1/pods?resourceVersion=0&resourceVersionMatch=NotOlderThan", Reason::ResourceVersion),
        (Method::GET, "/api/v1/pods?continue=abc", Reason::Paging),
        (Method::GET, "/api/v1/pods?limit=x", Reason::Parameter),
        (Method::GET, "/api/v1/pods?foo=bar", Reason::Parameter),
        (Method::GET, "/api/v1/pods?sendInitialEvents=true", Reason::Parameter),
        (Method::GET, "/api/v1/pods?labelSelector=a&labelSelector=b", Reason::Parameter),
        (Method::GET, "/api/v1/pods?fieldSelector=spec.nodeName%3Dx", Reason::FieldSelector),
        (Method::GET, "/apis/coordination.k8s.io/v1/leases", Reason::Never),
        (Method::GET, "/api/v1/pods/x", Reason::Unknown),
    ] {
        let got = forwarded(&decided(&method, target, Some(&pods), |_| {}));
        assert_eq!(got, Some(want), "{method} {target}");
    }
    for (want, change) in [
        (Reason::Credential, (|facts| facts.local = false) as fn(&mut Facts<'_>)),
        (Reason::Impersonation, |facts| facts.impersonates = true),
        (Reason::NoCache, |facts| facts.no_cache = true),
        (Reason::Upgrade, |facts| facts.upgrade = true),
        (Reason::Verb, |facts| facts.has_body = true),
        (Reason::Encoding, |facts| facts.format = Format::Other("protobuf")),
    ] {
        assert_eq!(forwarded(&decided(&Method::GET, POD, Some(&pods), change)), Some(want));
    }
}

#[test]
fn what_discovery_says_of_a_resource_decides() {
    let cluster = entry(false);
    let virtual_kind = Entry { cacheable: false, ..entry(true) };
    let no_get = Entry { gets: false, ..entry(true) };
    for (target, entry, want) in [
        (POD, None, Some(Reason::Unknown)),
        (POD, Some(&virtual_kind), Some(Reason::Uncacheable)),
        (POD, Some(&no_get), Some(Reason::Uncacheable)),
        (PODS, Some(&no_get), None),
        (POD, Some(&cluster), Some(Reason::Unknown)),
        ("/api/v1/nodes/x", Some(&cluster), None),
        ("/api/v1/nodes?fieldSelector=metadata.namespace%3D", Some(&cluster), Some(Reason::FieldSelector)),
        ("/api/v1/nodes?fieldSelector=metadata.name%3Dx", Some(&cluster), None),
    ] {
        assert_eq!(forwarded(&decided(&Method::GET, target, entry, |_| {})), want, "{target} {entry:?}");
    }
}

#[test]
fn a_bad_selector_is_refused_in_upstreams_words_or_left_to_upstream() {
    let pods = entry(true);
    let refusal = |query: &str| match decided(&Method::GET, &format!("{PODS}?{query}"), Some(&pods), |_| {}) {
        Decision::Cache(Read { want: Want::Refusal(status), .. }) => Some((status.code, status.message)),
        _ => None,
    };
    let (code, message) = refusal("fieldSelector=nonsense").unwrap();
    assert_eq!((code, message.as_str()), (400, "invalid selector: 'nonsense'; can't understand 'nonsense'"));
    assert_eq!(refusal("labelSelector=a,").map(|(code, _)| code), Some(400));
    // Two errors at once: which one is told is upstream's business.
    assert_eq!(refusal("labelSelector=a,&fieldSelector=nonsense"), None);
}
