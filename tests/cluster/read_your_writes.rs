//! Read your writes: what has been written through forebay is never un-happened by a read through it.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Answer, HttpClient};
use crate::control_plane::ControlPlane;
use crate::fixtures::{WIDGETS, config_map, deployment, in_namespace, widget};
use crate::forebay::Forebay;
use crate::pair::list_rv;
use crate::users::{Role, Users};

const CLIENTS: usize = 8;
const ROUNDS: usize = 1_000;
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const MERGE_PATCH: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];

/// A forebay whose upstream identity may write, and two connections to it: writes and reads do not share one.
async fn start(plane: &ControlPlane) -> (Forebay, HttpClient, HttpClient) {
    let forebay = Forebay::start(&plane.kubeconfig(&plane.user(Role::Editor))).await;
    let (writer, reader) = (forebay.client().await, forebay.client().await);
    (forebay, writer.with_user_agent("ryw/writer"), reader.with_user_agent("ryw/reader"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_shows_the_state_before_the_write() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("ryw").await;
    let (_forebay, writer, reader) = start(plane).await;
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        let (writer, reader, namespace) = (writer.clone(), reader.clone(), namespace.clone());
        clients.spawn(async move { rounds(n, &writer, &reader, &namespace).await });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
}

/// Create, update, patch, delete, and again; a read at once after each.
async fn rounds(n: usize, writer: &HttpClient, reader: &HttpClient, namespace: &str) {
    let label = format!("client-{n}");
    let labels = json!({"client": label});
    let (collection, body): (_, fn(&str, Value, Value) -> Value) = match n % 4 {
        0 | 1 => ("/api/v1/configmaps", config_map),
        2 => (WIDGETS, widget),
        _ => ("/apis/apps/v1/deployments", |name, labels, _| {
            let mut deployment = deployment(name);
            deployment["metadata"]["labels"] = labels;
            deployment
        }),
    };
    let collection = in_namespace(collection, namespace);
    let name = format!("{}-{n}", collection.rsplit('/').next().unwrap());
    let path = format!("{collection}/{name}");
    let list = format!("{collection}?labelSelector=client%3D{label}");
    let mut known = Value::Null;
    for round in 0..ROUNDS {
        let what = format!("{path}, round {round}");
        let mut desired = body(&name, labels.clone(), json!({"round": round.to_string()}));
        desired["metadata"]["annotations"] = json!({"round": round.to_string()});
        if round % 4 == 1 {
            // Custom resources insist on it; and it makes the update fail if anything else has written.
            desired["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
        }
        let write = match round % 4 {
            0 => writer.request(Method::POST, &collection, &JSON, desired.to_string()).await,
            1 => writer.request(Method::PUT, &path, &JSON, desired.to_string()).await,
            2 => {
                let patch = json!({"metadata": {"annotations": {"round": round.to_string()}}});
                writer.request(Method::PATCH, &path, &MERGE_PATCH, patch.to_string()).await
            }
            _ => writer.request(Method::DELETE, &path, &[], "").await,
        };
        assert!(write.status.is_success(), "{what}: {}", write.describe());
        // The first few rounds LIST, so that every kind of write is followed by one; later mostly GETs.
        let by_list = round < 16 || round % 10 == 0;
        if round % 4 == 3 {
            let read = reader.get(&path).await;
            assert_eq!(read.status, 404, "{what}: deleted, and yet {}", read.describe());
            if by_list {
                assert_eq!(items(&reader.get(&list).await, &what).len(), 0, "{what}: deleted, and yet in the list");
            }
            known = Value::Null;
            continue;
        }
        let written = write.json();
        assert!(known.is_null() || known["metadata"]["uid"] == written["metadata"]["uid"], "{what}");
        let read = reader.get(&path).await;
        assert_eq!(read.status, 200, "{what}: {}", read.describe());
        assert_shows(&read.json(), &written, &what);
        if by_list {
            let answer = reader.get(&list).await;
            let listed = items(&answer, &what);
            assert_eq!(listed.len(), 1, "{what}: {}", answer.describe());
            assert_shows(&listed[0], &written, &what);
            assert!(list_rv(&answer.body) >= rv(&written), "{what}: the list is older than the write");
        }
        known = written;
    }
}

/// Nobody else writes the object, so the read is the written state or a later one of the same life.
fn assert_shows(read: &Value, written: &Value, what: &str) {
    assert_eq!(read["metadata"]["uid"], written["metadata"]["uid"], "{what}: another life of the object");
    assert!(rv(read) >= rv(written), "{what}: read {} after a write of {}", rv(read), rv(written));
    assert_eq!(read["metadata"]["annotations"], written["metadata"]["annotations"], "{what}");
}

/// The writes whose answers do not say what has happened (traps 4 to 11 of the API's semantics).
#[tokio::test]
async fn writes_of_every_shape() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("shapes").await;
    let admin = plane.client(&Users::rig()).with_user_agent("rig");
    let (_forebay, writer, reader) = start(plane).await;
    let config_maps = in_namespace("/api/v1/configmaps", &namespace);
    let deployments = in_namespace("/apis/apps/v1/deployments", &namespace);
    let pods = in_namespace("/api/v1/pods", &namespace);
    for collection in [&config_maps, &deployments, &pods] {
        assert_eq!(reader.get(collection).await.status, 200);
    }
    let body = |name: &str| config_map(name, json!({}), json!({"k": "v"}));

    // AlreadyExists is news: what exists must be found.
    for n in 0..20 {
        let name = format!("taken-{n}");
        admin.post(&config_maps, &body(&name)).await;
        let answer = writer.request(Method::POST, &config_maps, &JSON, body(&name).to_string()).await;
        assert_eq!(answer.status, 409);
        assert_eq!(reader.get(&format!("{config_maps}/{name}")).await.status, 200, "{name} exists");
    }

    // The PUT or PATCH that removes the last finalizer answers with the old version of an object that is gone.
    for n in 0..10 {
        let path = format!("{config_maps}/final-{n}");
        let mut with_finalizer = body(&format!("final-{n}"));
        with_finalizer["metadata"]["finalizers"] = json!(["forebay.dev/test"]);
        writer.post(&config_maps, &with_finalizer).await;
        assert_eq!(writer.request(Method::DELETE, &path, &[], "").await.status, 200);
        let marked = reader.get(&path).await.json();
        assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
        let patch = json!({"metadata": {"finalizers": null}}).to_string();
        assert_eq!(writer.request(Method::PATCH, &path, &MERGE_PATCH, patch).await.status, 200);
        assert_eq!(reader.get(&path).await.status, 404, "the last finalizer is gone");
    }

    // A Status answers the DELETE; the same name lives again at once.
    for n in 0..20 {
        let path = format!("{config_maps}/again");
        let first = writer.post(&config_maps, &body("again")).await;
        assert_eq!(writer.request(Method::DELETE, &path, &[], "").await.status, 200);
        let second = writer.post(&config_maps, &body("again")).await;
        assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
        assert_eq!(reader.get(&path).await.json()["metadata"]["uid"], second["metadata"]["uid"], "life {n}");
        assert_eq!(writer.request(Method::DELETE, &path, &[], "").await.status, 200);
    }

    // deletecollection answers with the objects as they were.
    for n in 0..5 {
        writer.post(&config_maps, &config_map(&format!("many-{n}"), json!({"many": "yes"}), json!({}))).await;
    }
    let many = format!("{config_maps}?labelSelector=many");
    assert_eq!(items(&reader.get(&many).await, "before").len(), 5);
    assert_eq!(writer.request(Method::DELETE, &many, &[], "").await.status, 200);
    assert_eq!(items(&reader.get(&many).await, "after deletecollection").len(), 0);

    // A Scale carries the version of its parent.
    writer.post(&deployments, &deployment("scaled")).await;
    for replicas in 2..12 {
        let patch = json!({"spec": {"replicas": replicas}}).to_string();
        let scale = format!("{deployments}/scaled/scale");
        assert_eq!(writer.request(Method::PATCH, &scale, &MERGE_PATCH, patch).await.status, 200);
        let read = reader.get(&format!("{deployments}/scaled")).await.json();
        assert_eq!(read["spec"]["replicas"], replicas, "scaled, and yet {read}");
        let status = json!({"status": {"replicas": replicas}}).to_string();
        let path = format!("{deployments}/scaled/status");
        assert_eq!(writer.request(Method::PATCH, &path, &MERGE_PATCH, status).await.status, 200);
        assert_eq!(reader.get(&format!("{deployments}/scaled")).await.json()["status"]["replicas"], replicas);
    }

    // Eviction and binding answer with a bare Status.
    for n in 0..5 {
        let name = format!("pod-{n}");
        writer.post(&pods, &crate::fixtures::pod(&name, json!({}))).await;
        if n % 2 == 0 {
            let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": "node-1"}});
            writer.post(&format!("{pods}/{name}/binding"), &binding).await;
            assert_eq!(reader.get(&format!("{pods}/{name}")).await.json()["spec"]["nodeName"], "node-1");
        }
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        writer.post(&format!("{pods}/{name}/eviction"), &eviction).await;
        let read = reader.get(&format!("{pods}/{name}")).await;
        assert!(
            read.status == 404 || read.json()["metadata"]["deletionTimestamp"].is_string(),
            "evicted, and yet {}",
            read.describe()
        );
    }
}

/// Neither a write that changes nothing nor a dry run may make the next read wait for an event that never comes.
#[tokio::test]
async fn writes_without_an_event_do_not_delay_reads() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("quiet").await;
    let (_forebay, writer, reader) = start(plane).await;
    let collection = in_namespace("/api/v1/configmaps", &namespace);
    let path = format!("{collection}/same");
    let first = writer.post(&collection, &config_map("same", json!({}), json!({"k": "v"}))).await;
    assert_eq!(reader.get(&path).await.json()["metadata"]["uid"], first["metadata"]["uid"]);
    let started = Instant::now();
    for _ in 0..20 {
        let again = writer.request(Method::PUT, &path, &JSON, first.to_string()).await.json();
        assert_eq!(again["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        assert_eq!(reader.get(&path).await.json(), first);
        let dry = config_map("dry", json!({}), json!({})).to_string();
        let create = writer.request(Method::POST, &format!("{collection}?dryRun=All"), &JSON, dry).await;
        assert_eq!(create.status, 201);
        assert_eq!(reader.get(&format!("{collection}/dry")).await.status, 404, "a dry run has created nothing");
        let delete = writer.request(Method::DELETE, &format!("{path}?dryRun=All"), &[], "").await;
        assert_eq!(delete.status, 200);
        assert_eq!(reader.get(&path).await.json(), first, "a dry run has deleted nothing");
    }
    // 60 reads; one that waits for a fence takes 3 s.
    assert!(started.elapsed() < Duration::from_secs(15), "60 reads took {:?}", started.elapsed());
}

/// A conflict is news: the next read of the key is never the version that the client has just lost with.
#[tokio::test]
async fn a_conflict_is_followed_by_a_newer_read() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("conflict").await;
    let admin = plane.client(&Users::rig()).with_user_agent("rig");
    let (_forebay, writer, reader) = start(plane).await;
    let collection = in_namespace("/api/v1/configmaps", &namespace);
    let path = format!("{collection}/hot");
    let mut mine = writer.post(&collection, &config_map("hot", json!({}), json!({"k": "start"}))).await;
    for round in 0..100 {
        let patch = json!({"data": {"k": round.to_string()}}).to_string();
        let theirs = admin.request(Method::PATCH, &path, &MERGE_PATCH, patch).await.json();
        mine["data"]["k"] = json!("mine");
        let lost = writer.request(Method::PUT, &path, &JSON, mine.to_string()).await;
        assert_eq!(lost.status, 409, "round {round}: {}", lost.describe());
        let read = reader.get(&path).await.json();
        assert!(rv(&read) >= rv(&theirs), "round {round}: lost with {}, and read {} again", rv(&mine), rv(&read));
        mine = read;
    }
}

fn items(answer: &Answer, what: &str) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{what}: {}", answer.describe());
    answer.json()["items"].as_array().unwrap().clone()
}

fn rv(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}
