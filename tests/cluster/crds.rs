//! Custom resources that come, change and go under the eyes of clients (CRD-01, CRD-05).

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{Answer, HttpClient};
use crate::control_plane::ControlPlane;
use crate::fixtures::{create_all, eventually};
use crate::pair::Pair;
use crate::users::{Role, Users, object};

pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MERGE_PATCH: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];

/// For the API server's own controllers, which take a second or two, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// A deleted type answers as the API server does after this at the latest: 5 s, three times over for a busy machine.
const FOLLOWS: Duration = Duration::from_secs(15);

/// A new type is known after this at the latest: 2 s, on a busy machine.
const KNOWN: Duration = Duration::from_secs(10);

pub(crate) fn version(name: &str, served: bool, storage: bool) -> Value {
    json!({
        "name": name, "served": served, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    })
}

pub(crate) fn definition(group: &str, plural: &str, kind: &str, scope: &str, versions: Value) -> Value {
    let names = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind});
    let spec = json!({"spec": {"group": group, "scope": scope, "names": names, "versions": versions}});
    object("apiextensions.k8s.io/v1", "CustomResourceDefinition", &format!("{plural}.{group}"), spec)
}

pub(crate) fn rig(plane: &ControlPlane) -> HttpClient {
    plane.client(&Users::rig()).with_user_agent("rig")
}

async fn delete(rig: &HttpClient, path: &str) {
    let answer = rig.request(Method::DELETE, path, &[], "").await;
    assert!(answer.status.is_success(), "{path}: {}", answer.describe());
}

pub(crate) async fn patch(rig: &HttpClient, path: &str, patch: Value) {
    let answer = rig.request(Method::PATCH, path, &MERGE_PATCH, patch.to_string()).await;
    assert!(answer.status.is_success(), "{path}: {}", answer.describe());
}

pub(crate) async fn status_becomes(client: &HttpClient, path: &str, status: u16, within: Duration) {
    eventually(within, &format!("{path} answers {status}"), async || client.get(path).await.status == status).await;
}

/// Until the cache answers.
pub(crate) async fn cached(client: &HttpClient, path: &str) -> Answer {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = client.get(path).await;
        if answer.status == 200 && !answer.header("x-forebay").is_empty() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path}: not from the cache within {LIMIT:?}: {}", answer.describe());
        sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn uids(list: &Answer) -> BTreeSet<String> {
    let items = list.json()["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

/// CRD-05: a new group, a new version of a known group, a new resource in a known version; each asked for before it is
/// there. And what is never there costs upstream about one request a second.
#[tokio::test]
async fn unknown_types_are_found_as_they_come() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Reader).await;
    let rig = rig(plane);
    let group = format!("{}.forebay.dev", plane.unique("late"));
    let foos = |versions: Value| definition(&group, "foos", "Foo", "Namespaced", versions);
    let both = json!([version("v1", true, true), version("v2", true, false)]);
    let bars = definition(&group, "bars", "Bar", "Cluster", json!([version("v1", true, true)]));
    for (version, plural) in [("v1", "foos"), ("v2", "foos"), ("v1", "bars")] {
        let path = format!("/apis/{group}/{version}/{plural}");
        let (mark, asked_from) = (plane.audit().mark(), Instant::now());
        for _ in 0..15 {
            pair.same(&path).await;
            assert_eq!(pair.through.get(&path).await.status, 404);
            sleep(Duration::from_millis(200)).await;
        }
        let discovery = plane.audit().since(mark, |entry| {
            let uri = entry.uri.split('?').next().unwrap();
            entry.user() == pair.user.name && ["/api", "/apis"].contains(&uri) | uri.ends_with("/apiservices")
        });
        // One a second, and a complete round of three now and then.
        let allowed = asked_from.elapsed().as_secs() as usize + 5;
        assert!(discovery.len() <= allowed, "{} in {:?}", discovery.len(), asked_from.elapsed());

        match (version, plural) {
            ("v1", "foos") => drop(rig.post(DEFINITIONS, &foos(json!([version_of("v1")]))).await),
            ("v2", _) => {
                patch(&rig, &format!("{DEFINITIONS}/foos.{group}"), json!({"spec": {"versions": both}})).await;
            }
            _ => drop(rig.post(DEFINITIONS, &bars).await),
        }
        status_becomes(&pair.direct, &path, 200, LIMIT).await;
        let served = Instant::now();
        status_becomes(&pair.through, &path, 200, LIMIT).await;
        assert!(served.elapsed() < KNOWN, "{path}: {:?} after the API server", served.elapsed());
        cached(&pair.through, &path).await;
        pair.same(&path).await;
    }
}

fn version_of(name: &str) -> Value {
    version(name, true, true)
}

/// CRD-01: 100 cached objects go with their definition; three with old names come back, in the same scope and in another.
#[tokio::test]
async fn a_definition_goes_and_comes_back_with_other_objects() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Reader).await;
    let rig = rig(plane);
    let group = format!("{}.forebay.dev", plane.unique("again"));
    let own = format!("{DEFINITIONS}/things.{group}");
    let all = format!("/apis/{group}/v1/things");
    let namespaced = format!("/apis/{group}/v1/namespaces/default/things");
    let thing = |n: usize| object(&format!("{group}/v1"), "Thing", &format!("t{n}"), json!({}));
    let create = async |scope: &str, count: usize| {
        rig.post(DEFINITIONS, &definition(&group, "things", "Thing", scope, json!([version_of("v1")]))).await;
        let collection = if scope == "Cluster" { &all } else { &namespaced };
        status_becomes(&rig, collection, 200, LIMIT).await;
        // For a moment after that, objects are still refused.
        eventually(LIMIT, "objects are taken", async || {
            let json = [("content-type", "application/json")];
            let made = rig.request(Method::POST, collection, &json, thing(0).to_string()).await;
            made.status == 201 || made.status == 409
        })
        .await;
        create_all(&rig, (1..count).map(|n| (collection.clone(), thing(n))).collect()).await;
    };
    let remove = async || {
        delete(&rig, &own).await;
        status_becomes(&pair.direct, &all, 404, LIMIT).await;
        let gone = Instant::now();
        status_becomes(&pair.through, &all, 404, FOLLOWS).await;
        for path in [&all, &namespaced, &format!("{namespaced}/t1"), &format!("{all}/t1")] {
            status_becomes(&pair.through, path, 404, FOLLOWS.saturating_sub(gone.elapsed())).await;
            pair.same(path).await;
        }
    };

    create("Namespaced", 100).await;
    let mut seen = BTreeSet::new();
    eventually(LIMIT, "100 objects", async || uids(&pair.through.get(&all).await).len() == 100).await;
    for (scope, count) in [("Namespaced", 3), ("Cluster", 2), ("Namespaced", 1)] {
        seen.extend(uids(&cached(&pair.through, &all).await));
        remove().await;
        create(scope, count).await;
        let current = uids(&rig.get(&all).await);
        assert_eq!(current.len(), count);
        let deadline = Instant::now() + LIMIT;
        loop {
            let answer = pair.through.get(&all).await;
            assert!(uids(&answer).is_disjoint(&seen), "an object of a former life: {}", answer.describe());
            if uids(&answer) == current && !answer.header("x-forebay").is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{}", answer.describe());
            sleep(Duration::from_millis(20)).await;
        }
        for path in [&all, &namespaced, &format!("{namespaced}/t0"), &format!("{all}/t0"), &format!("{all}/t77")] {
            pair.same(path).await;
        }
    }
    let lines = pair.forebay.log().lines().count();
    assert!(lines < 300, "{lines} log lines: an error is being repeated");
}

/// CRD-01: twenty lives in quick succession; nothing of one is seen in another.
#[tokio::test]
async fn fast_cycles() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Reader).await;
    let rig = rig(plane);
    let group = format!("{}.forebay.dev", plane.unique("cycle"));
    let collection = format!("/apis/{group}/v1/things");
    for life in 0..20 {
        rig.post(DEFINITIONS, &definition(&group, "things", "Thing", "Cluster", json!([version_of("v1")]))).await;
        let body = object(&format!("{group}/v1"), "Thing", "one", json!({"life": life})).to_string();
        let json = [("content-type", "application/json")];
        eventually(LIMIT, "the object is taken", async || {
            rig.request(Method::POST, &collection, &json, body.clone()).await.status == 201
        })
        .await;
        let path = format!("{collection}/one");
        let deadline = Instant::now() + LIMIT;
        loop {
            let answer = pair.through.get(&path).await;
            if answer.status == 200 {
                assert_eq!(answer.json()["life"], life, "of a former life: {}", answer.describe());
                break;
            }
            assert_eq!(answer.status, 404, "{}", answer.describe());
            assert!(Instant::now() < deadline, "life {life}: {}", answer.describe());
        }
        delete(&rig, &format!("{DEFINITIONS}/things.{group}")).await;
        // Not asked for meanwhile: the next life may come before anything is noticed.
        eventually(LIMIT, "it can be made again", async || {
            rig.get(&format!("{DEFINITIONS}/things.{group}")).await.status == 404
        })
        .await;
    }
    status_becomes(&pair.through, &collection, 404, FOLLOWS).await;
    let lines = pair.forebay.log().lines().count();
    assert!(lines < 1_000, "{lines} log lines: an error is being repeated");
}

/// CRD-01: one of two versions is no longer served, then no longer there, then there again.
#[tokio::test]
async fn a_version_is_no_longer_served() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Reader).await;
    let rig = rig(plane);
    let group = format!("{}.forebay.dev", plane.unique("versions"));
    let own = format!("{DEFINITIONS}/things.{group}");
    let [v1, v2] = ["v1", "v2"].map(|version| format!("/apis/{group}/{version}/things"));
    let both = json!([version("v1", true, false), version("v2", true, true)]);
    rig.post(DEFINITIONS, &definition(&group, "things", "Thing", "Cluster", both.clone())).await;
    status_becomes(&rig, &v1, 200, LIMIT).await;
    status_becomes(&rig, &v2, 200, LIMIT).await;
    let thing = object(&format!("{group}/v2"), "Thing", "one", json!({}));
    eventually(LIMIT, "an object is taken", async || {
        let json = [("content-type", "application/json")];
        rig.request(Method::POST, &v2, &json, thing.to_string()).await.status == 201
    })
    .await;
    let unserved = json!([version("v1", false, false), version("v2", true, true)]);
    let removed = json!([version("v2", true, true)]);
    for versions in [unserved, removed] {
        assert_eq!(uids(&cached(&pair.through, &v1).await), uids(&cached(&pair.through, &v2).await));
        patch(&rig, &own, json!({"spec": {"versions": versions}})).await;
        status_becomes(&pair.direct, &v1, 404, LIMIT).await;
        status_becomes(&pair.through, &v1, 404, FOLLOWS).await;
        status_becomes(&pair.through, &format!("{v1}/one"), 404, FOLLOWS).await;
        pair.same(&v1).await;
        assert_eq!(uids(&cached(&pair.through, &v2).await).len(), 1, "the other version stays");
        patch(&rig, &own, json!({"spec": {"versions": both}})).await;
        status_becomes(&pair.direct, &v1, 200, LIMIT).await;
        eventually(LIMIT, "it is back", async || pair.through.get(&v1).await.status == 200).await;
        pair.same(&v1).await;
        pair.same(&v2).await;
    }
}
