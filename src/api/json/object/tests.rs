use std::collections::BTreeMap;

use proptest::{prelude::*, sample::Index};
use serde::Deserialize;

use super::*;
use crate::api::json::strategies::{self, Json, Style};

/// What `serde_json` reads of an object: the oracle.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Oracle {
    kind: Option<String>,
    api_version: Option<String>,
    metadata: Option<Meta>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, serde_json::Value>>,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<serde_json::Value>>,
}

fn agree(text: &[u8], facts: &Facts<'_>, oracle: &Oracle) {
    let nothing = Meta::default();
    let meta = oracle.metadata.as_ref().unwrap_or(&nothing);
    assert_eq!(facts.kind.as_deref(), oracle.kind.as_deref());
    assert_eq!(facts.api_version.as_deref(), oracle.api_version.as_deref());
    assert_eq!(facts.name.as_deref(), meta.name.as_deref());
    assert_eq!(facts.namespace.as_deref(), meta.namespace.as_deref());
    assert_eq!(facts.uid.as_deref(), meta.uid.as_deref());
    assert_eq!(facts.resource_version.as_deref(), meta.resource_version.as_deref());
    assert_eq!(facts.deletion_timestamp, meta.deletion_timestamp.is_some());
    assert_eq!(facts.deletion_grace_period_seconds, meta.deletion_grace_period_seconds);
    assert_eq!(facts.finalizers, meta.finalizers.as_ref().is_some_and(|list| !list.is_empty()));
    let end = meta.annotations.as_ref().and_then(|all| all.get("k8s.io/initial-events-end"));
    assert_eq!(facts.initial_events_end, end.is_some_and(|value| value == "true"));
    assert_eq!(facts.labels.is_some(), meta.labels.is_some());
    if let (Some(range), Some(want)) = (&facts.labels, &meta.labels) {
        let found: BTreeMap<_, _> = labels(&text[range.clone()]).collect();
        assert!(found.iter().map(|(k, v)| (&**k, &**v)).eq(want.iter().map(|(k, v)| (k.as_str(), v.as_str()))));
    }
}

/// Members in any order, each there or not.
fn some_of(members: Vec<(&'static str, BoxedStrategy<Json>)>) -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let some =
        members.into_iter().map(|(key, value)| proptest::option::weighted(0.8, value.prop_map(move |v| (key, v))));
    some.collect::<Vec<_>>().prop_map(|some| some.into_iter().flatten().collect::<Vec<_>>()).prop_shuffle()
}

fn or_null(value: impl Strategy<Value = Json> + 'static) -> BoxedStrategy<Json> {
    prop_oneof![9 => value, 1 => Just(Json::Scalar("null"))].boxed()
}

fn object() -> impl Strategy<Value = Json> {
    let text = || or_null(strategies::text().prop_map(Json::Text));
    let labels = proptest::collection::btree_map(strategies::text(), strategies::text().prop_map(Json::Text), 0..5);
    let annotations = proptest::collection::btree_map(
        strategies::text(),
        prop_oneof![strategies::text().prop_map(Json::Text), Just(Json::text("true"))],
        0..4,
    );
    let metadata = some_of(vec![
        ("name", text()),
        ("namespace", text()),
        ("uid", text()),
        ("resourceVersion", text()),
        ("deletionTimestamp", text()),
        ("deletionGracePeriodSeconds", or_null(Just(Json::Scalar("30")))),
        ("labels", or_null(labels.prop_map(|all| Json::Object(all.into_iter().collect())))),
        ("annotations", or_null(annotations.prop_map(|all| Json::Object(all.into_iter().collect())))),
        ("finalizers", or_null(proptest::collection::vec(strategies::json(), 0..3).prop_map(Json::Array))),
        ("managedFields", strategies::json().boxed()),
        ("ownerReferences", strategies::json().boxed()),
    ]);
    some_of(vec![
        ("kind", text()),
        ("apiVersion", text()),
        ("metadata", or_null(metadata.prop_map(Json::object))),
        ("spec", strategies::json().boxed()),
        ("status", strategies::json().boxed()),
    ])
    .prop_map(Json::object)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn scan_reads_what_serde_reads(object in object(), style in strategies::style()) {
        let text = object.write(style);
        let oracle = serde_json::from_slice(&text).unwrap();
        agree(&text, &scan(&text).unwrap(), &oracle);
        agree(&text, &scan_whole(&text).unwrap(), &oracle);
    }

    #[test]
    fn an_object_cut_short_is_not_whole(object in object(), style in strategies::style(), at in any::<Index>()) {
        let text = object.write(style).trim_ascii_end().to_vec();
        prop_assert!(scan_whole(&text[..at.index(text.len())]).is_err());
    }

    #[test]
    fn one_wrong_byte_is_refused_or_read_as_serde_reads_it(object in object(), at in any::<Index>(), byte in any::<u8>()) {
        let mut text = object.write(Style::Compact);
        let at = at.index(text.len());
        text[at] = byte;
        let (found, oracle) = (scan_whole(&text), serde_json::from_slice(&text));
        if let (Ok(facts), Ok(oracle)) = (&found, &oracle) {
            agree(&text, facts, oracle);
        } else if serde_json::from_slice::<serde_json::Value>(&text).is_ok() {
            // Valid JSON is refused only where a field is of another type or twice there. Serde refuses these, and values
            // inside labels that the scan does not look at.
            prop_assert!(oracle.is_err(), "{found:?}");
        }
    }

    #[test]
    fn noise_never_panics(noise in strategies::noise(), key in strategies::text()) {
        let _ = scan(&noise);
        let _ = scan_whole(&noise);
        let _ = label(&noise, &key);
        let _ = value(&noise, &["metadata", &key]);
        let _ = string(&noise);
    }

    #[test]
    fn values_are_found_by_path(object in object(), style in strategies::style()) {
        let text = object.write(style);
        let tree: serde_json::Value = serde_json::from_slice(&text).unwrap();
        for path in [&["kind"][..], &["metadata", "name"], &["metadata", "labels", "items"], &["spec", "kind"], &[]] {
            let want = path.iter().try_fold(&tree, |tree, key| tree.get(key));
            let found = value(&text, path).unwrap();
            let read = found.map(|found| serde_json::from_slice::<serde_json::Value>(found).unwrap());
            // Random objects may hold a key twice: then serde has the last and this has the first.
            if !path.contains(&"spec") {
                prop_assert_eq!(read.as_ref(), want);
                let text = found.and_then(string);
                prop_assert_eq!(text.as_deref(), want.and_then(|want| want.as_str()));
            }
        }
    }
}

#[test]
fn a_pod_and_a_widget_are_read_by_the_field() {
    let pod = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b1","namespace":"wr","uid":"u-1","resourceVersion":"77","generation":2,"deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":30,"labels":{"app":"e","tier":""},"managedFields":[{"fieldsV1":{"f:spec":{"k:{\"name\":\"c\"}":{".":{}}}}}]},"spec":{"nodeName":"n-0"}}"#;
    let facts = scan(pod).unwrap();
    let want = Facts {
        kind: Some("Pod".into()),
        api_version: Some("v1".into()),
        prefix_len: br#"{"kind":"Pod","apiVersion":"v1","#.len(),
        name: Some("b1".into()),
        namespace: Some("wr".into()),
        uid: Some("u-1".into()),
        resource_version: Some("77".into()),
        labels: facts.labels.clone(),
        initial_events_end: false,
        deletion_timestamp: true,
        deletion_grace_period_seconds: Some(30),
        finalizers: false,
    };
    assert_eq!(facts, want);
    let range = &pod[facts.labels.unwrap()];
    assert_eq!(range, br#"{"app":"e","tier":""}"#);
    assert_eq!(label(range, "tier").as_deref(), Some(""));
    assert_eq!(label(range, "ap"), None);
    assert_eq!(string(value(pod, &["spec", "nodeName"]).unwrap().unwrap()).as_deref(), Some("n-0"));
    assert_eq!(value(pod, &["spec", "nodeName", "x"]), Ok(None));

    let widget = br#"{"apiVersion":"g/v1","kind":"Widget","metadata":{"finalizers":["x"],"name":"w"},"spec":{}}"#;
    let facts = scan(widget).unwrap();
    assert_eq!((facts.prefix_len, facts.finalizers, facts.name.as_deref()), (0, true, Some("w")));
}

#[test]
fn the_prefix_ends_where_the_third_member_starts() {
    for (text, want) in [
        (r#"{"kind":"P","apiVersion":"v1","metadata":{}}"#, 30),
        (r#"{ "kind":"P", "apiVersion":"v1", "metadata":{}}"#, 33),
        (r#"{"kind":"P","apiVersion":"v1"}"#, 29),
        (r#"{"apiVersion":"v1","kind":"P","metadata":{}}"#, 0),
        (r#"{"kind":"P","metadata":{},"apiVersion":"v1"}"#, 0),
        (r#"{"kind":"P","spec":1,"apiVersion":"v1","metadata":{}}"#, 0),
        (r#"{"metadata":{}}"#, 0),
        (r#"{"kind":"P"}"#, 0),
    ] {
        assert_eq!(scan_whole(text.as_bytes()).unwrap().prefix_len, want, "{text}");
    }
}

#[test]
fn the_rest_is_read_only_when_asked() {
    let text = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"#;
    assert_eq!(scan(text).unwrap().name.as_deref(), Some("a"));
    assert_eq!(scan_whole(text), Err(ScanError::Truncated { len: text.len() }));
    assert!(scan_whole(b"{\"kind\":\"Pod\"}\n").is_ok());
    let unexpected = ScanError::Unexpected { at: 3, found: 'x', expected: "the end of the text" };
    assert_eq!(scan_whole(b"{} x"), Err(unexpected));
}

#[test]
fn what_cannot_be_trusted_is_refused() {
    use ScanError::{Duplicate, InvalidString, Unexpected, WrongType};
    for (text, want) in [
        (&br#"{"kind":"A","kind":"B"}"#[..], Duplicate { field: "kind" }),
        (br#"{"kind":null,"k\u0069nd":"B"}"#, Duplicate { field: "kind" }),
        (br#"{"metadata":{"uid":"1","uid":"2"}}"#, Duplicate { field: "metadata.uid" }),
        (br#"{"metadata":{"uid":"1"},"metadata":{}}"#, Duplicate { field: "metadata" }),
        (br#"{"kind":1}"#, WrongType { field: "kind", expected: "a string" }),
        (br#"{"metadata":[]}"#, WrongType { field: "metadata", expected: "an object" }),
        (br#"{"metadata":{"labels":"x"}}"#, WrongType { field: "metadata.labels", expected: "an object" }),
        (br#"{"metadata":{"finalizers":{}}}"#, WrongType { field: "metadata.finalizers", expected: "an array" }),
        (
            br#"{"metadata":{"deletionGracePeriodSeconds":1.5}}"#,
            WrongType { field: "metadata.deletionGracePeriodSeconds", expected: "an integer" },
        ),
        (b"{\"kind\":\"\xff\"}", InvalidString { at: 8 }),
        (br#"{"kind":"\q"}"#, InvalidString { at: 8 }),
        (br#"[]"#, Unexpected { at: 0, found: '[', expected: "an object" }),
        (br#"{"kind":"A",}"#, Unexpected { at: 12, found: '}', expected: "a string" }),
        (br#"{"kind":"A" "x":1}"#, Unexpected { at: 12, found: '"', expected: "a comma or the end of the object" }),
        (br#"{"kind" "A"}"#, Unexpected { at: 8, found: '"', expected: "a colon" }),
        (br#"{"spec":}"#, Unexpected { at: 8, found: '}', expected: "a value" }),
    ] {
        assert_eq!(scan(text), Err(want), "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn bookmarks_that_end_the_initial_events_are_known() {
    for (annotations, want) in [
        (r#"{"k8s.io/initial-events-end":"true"}"#, true),
        (r#"{"a":"{\"k8s.io/initial-events-end\":\"true\"}","k8s.io\u002finitial-events-end":"true"}"#, true),
        (r#"{"k8s.io/initial-events-end":"false"}"#, false),
        (r#"{"a":"k8s.io/initial-events-end","b":"true"}"#, false),
        ("null", false),
    ] {
        let text = format!(r#"{{"kind":"Pod","metadata":{{"annotations":{annotations}}}}}"#);
        assert_eq!(scan(text.as_bytes()).unwrap().initial_events_end, want, "{annotations}");
    }
}

#[test]
fn labels_end_where_they_are_not_strings() {
    assert_eq!(labels(br#"{"a":"1","b":2,"c":"3"}"#).count(), 1);
    assert_eq!(labels(b"[]").count(), 0);
    assert_eq!(labels(br#"{"a":"1""#).count(), 1);
    assert_eq!(label(br#"{"\u0061":"\n"}"#, "a").as_deref(), Some("\n"));
}

#[test]
fn depth_costs_no_stack() {
    let deep = [&b"{\"spec\":"[..], &[b'['; 1 << 20], &[b']'; 1 << 20], b"}"].concat();
    assert!(scan_whole(&deep).is_ok());
}
