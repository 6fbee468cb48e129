use http::HeaderValue;
use proptest::prelude::*;

use super::*;

fn with_accept(accept: &str, protobuf_served: bool) -> Negotiated {
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_bytes(accept.as_bytes()).unwrap());
    negotiate(&headers, None, protobuf_served)
}

/// Outcome for a built-in kind and for a custom resource.
#[test]
fn accept_lists() {
    let pb = "application/vnd.kubernetes.protobuf";
    let pb_json = format!("{pb},application/json");
    let json_pb = format!("application/json,{pb}");
    let pb_low = format!("{pb};q=0.5, application/json");
    let metadata = format!("{pb};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json");
    for (accept, builtin, custom) in [
        ("", "json", "json"),
        (" ", "json", "json"),
        ("application/json", "json", "json"),
        ("*/*", "json", "json"),
        ("application/json, */*", "json", "json"),
        ("*/*, application/json", "json", "json"),
        ("application/json;q=0", "json", "json"),
        ("application/json;charset=utf-8", "json", "json"),
        ("application/json;drop=metadata.managedFields", "json", "json"),
        ("application/json; q=0.9 ,text/html", "json", "json"),
        ("application/json; q=0.9,text/html", "json", "json"),
        ("text/html, */*;q=0.1", "json", "json"),
        ("foo/bar,,application/json", "json", "json"),
        ("json, application/json", "json", "json"),
        ("application/json;pretty=0", "json", "json"),
        ("application/json;pretty=true", "json", "json"),
        ("application/json;pretty", "json", "json"),
        ("application/json;pretty=1", "pretty", "pretty"),
        ("application/json;pretty=1;pretty=0", "json", "json"),
        ("application/json, application/yaml", "json", "json"),
        ("application/yaml, application/json", "yaml", "yaml"),
        // A concrete type goes before a wildcard.
        ("*/*,application/yaml", "yaml", "yaml"),
        ("*/*;q=1,application/yaml;q=0.1", "yaml", "yaml"),
        ("application/yaml;q=0.5,application/json;q=0.6", "json", "json"),
        ("application/yaml;q=0.5,application/json;q=0.5", "yaml", "yaml"),
        ("application/json;q=0.3,application/yaml", "yaml", "yaml"),
        ("application/yaml", "yaml", "yaml"),
        ("application/cbor, application/json", "cbor", "cbor"),
        ("application/*", "wildcard", "json"),
        ("application/*, application/json", "json", "json"),
        ("*", "wildcard", "wildcard"),
        (pb, "protobuf", "not-acceptable"),
        (&pb_json, "protobuf", "json/protobuf"),
        (&json_pb, "json", "json"),
        (&pb_low, "json", "json"),
        (&metadata, "accept-parameter", "accept-parameter"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "accept-parameter", "accept-parameter"),
        ("application/json,application/json;as=Table;v=v1;g=meta.k8s.io", "json", "json"),
        ("application/json;as=Foo;g=meta.k8s.io;v=v1", "accept-parameter", "accept-parameter"),
        ("application/json;stream=watch", "accept-parameter", "accept-parameter"),
        ("application/json;v=v1", "accept-parameter", "accept-parameter"),
        ("foo/bar", "not-acceptable", "not-acceptable"),
        ("Application/JSON", "not-acceptable", "not-acceptable"),
        ("*/json", "not-acceptable", "not-acceptable"),
        ("application/json/x", "accept", "accept"),
        ("application/json/", "accept", "accept"),
        ("application/json;as==", "accept", "accept"),
        ("application /json", "accept", "accept"),
        ("application/json;q=1e-1", "accept", "accept"),
        ("application/json;q=inf", "accept", "accept"),
        ("application/json;q=.", "accept", "accept"),
        ("application/json;q= 1", "accept", "accept"),
        ("a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,application/json", "json", "json"),
        ("a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,a/b,application/json", "accept", "accept"),
    ] {
        let show = |n: Negotiated| match (n.format, n.error_format) {
            (Format::Json, Format::Json) => "json".to_owned(),
            (Format::Json, Format::Other(error)) => format!("json/{error}"),
            (Format::Other(reason), error) => {
                assert_eq!(error, Format::Other(reason));
                reason.to_owned()
            }
        };
        assert_eq!(show(with_accept(accept, true)), builtin, "built-in, {accept:?}");
        assert_eq!(show(with_accept(accept, false)), custom, "custom, {accept:?}");
    }
}

#[test]
fn people_get_indented_json() {
    for (agent, pretty, indented) in [
        ("", None, false),
        ("curl/8.0", None, true),
        ("Wget/1.21", None, true),
        ("Mozilla/5.0 (X)", None, true),
        ("Mozilla/4.0 (X)", None, false),
        ("CURL/8.0", None, false),
        ("kubectl/v1.37.1 (linux/amd64) kubernetes/abc", None, false),
        ("", Some("1"), true),
        ("", Some("True"), true),
        ("", Some("tRue"), false),
        ("curl/8.0", Some("x"), false),
        ("curl/8.0", Some("false"), false),
        ("curl/8.0", Some(""), true),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_str(agent).unwrap());
        let want = if indented { PRETTY } else { Format::Json };
        assert_eq!(negotiate(&headers, pretty, true), want.throughout(), "{agent:?} {pretty:?}");
    }
    // The Accept parameter beats the query.
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json;pretty=1"));
    assert_eq!(negotiate(&headers, Some("0"), true), PRETTY.throughout());
}

#[test]
fn only_the_first_accept_line_counts() {
    let mut headers = HeaderMap::new();
    headers.append(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.append(header::ACCEPT, HeaderValue::from_static("application/yaml"));
    assert_eq!(negotiate(&headers, None, true), Format::Json.throughout());
}

#[test]
fn bytes_that_are_not_text_are_not_understood() {
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_bytes(b"application/json, \xff/x").unwrap());
    assert_eq!(negotiate(&headers, None, true), NOT_UNDERSTOOD.throughout());
}

proptest! {
    #[test]
    fn nothing_panics_and_json_was_asked_for(accept in "([a-z*]{0,3}|application|/|json|;|=|,| |q|0\\.5|as|\\*/\\*){0,24}") {
        let trimmed = accept.trim_matches(' ');
        if with_accept(&accept, true).format == Format::Json {
            prop_assert!(trimmed.is_empty() || trimmed.contains("application/json") || trimmed.contains("*/*"));
        }
    }
}
