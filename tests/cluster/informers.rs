//! client-go's informers through forebay: each kind of client, each way of loading, every change exactly once.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::Value;

use crate::control_plane::ControlPlane;
use crate::fixtures::in_namespace;
use crate::forebay::Forebay;
use crate::programs::GoClient;
use crate::users::Role;

const LIMIT: Duration = Duration::from_secs(90);
const WRITES: usize = 600;

/// client-go's switch between the two ways of loading; it must agree with `--mode`.
const MODES: [(&str, &str); 2] = [("list", "false"), ("watchlist", "true")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_informer_sees_every_change_exactly_once() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("informers").await;
    let forebay = Forebay::start(&plane.kubeconfig(&plane.user(Role::Reader))).await;
    let direct = plane.kubeconfig(&plane.user(Role::Editor));
    let scope = format!("--namespace={namespace}");
    let user_agent = format!("--user-agent={namespace}");

    // Some objects are there before the informers, so that the first list is not empty.
    let mut earlier = GoClient::start("writers", &direct, &[&scope, "--prefix=earlier", "--count=60"], &[]).await;
    earlier.until("done", LIMIT).await;

    let mut informers = Vec::new();
    for kind in ["typed", "dynamic", "metadata"] {
        for (mode, gate) in MODES {
            let args = [scope.clone(), user_agent.clone(), format!("--kind={kind}"), format!("--mode={mode}")];
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let gate = [("KUBE_FEATURE_WatchListClient", gate)];
            let informer = GoClient::start("informers", forebay.kubeconfig(), &args, &gate).await;
            informers.push((format!("{kind}/{mode}"), informer));
        }
    }
    for (what, informer) in &mut informers {
        let initial = informer.until("synced", LIMIT).await;
        let expected =
            plane.client(&plane.user(Role::Reader)).get(&in_namespace("/api/v1/configmaps", &namespace)).await.json();
        assert_eq!(initial.last().unwrap()["count"], expected["items"].as_array().unwrap().len(), "{what}");
    }

    let mut writers =
        GoClient::start("writers", &direct, &[&scope, "--writers=4", "--rate=300", &format!("--count={WRITES}")], &[])
            .await;
    let writes = writers.until("done", LIMIT).await;
    assert_eq!(writes.last().unwrap()["count"], WRITES);

    for (what, mut informer) in informers {
        let mut seen = Vec::new();
        for _ in 0..WRITES {
            seen.push(informer.next(LIMIT).await.unwrap_or_else(|| panic!("{what} ended early")));
        }
        informer.close();
        let rest = informer.until("done", LIMIT).await;
        assert_eq!(rest.last().unwrap()["count"], WRITES, "{what}: more events than writes");
        assert_eq!(changes(&seen), changes(&writes), "{what}");
        assert_eq!(state(&rest), listed(plane, &namespace).await, "{what}: its store at the end");
        informer.finish(LIMIT).await;
    }
    // The informers' own loads went through: WatchList as a watch, byte-exact.
    assert!(plane.audit().count(|e| e.user_agent == namespace && e.is_watch_list()) >= 3);
}

/// An informer that starts in the middle of the writes ends in the same state as everyone else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_that_start_among_the_writes_end_up_right() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("among").await;
    let forebay = Forebay::start(&plane.kubeconfig(&plane.user(Role::Editor))).await;
    let scope = format!("--namespace={namespace}");
    // These writers go through forebay too.
    let args = [scope.as_str(), "--writers=4", "--rate=200", "--count=400"];
    let mut writers = GoClient::start("writers", forebay.kubeconfig(), &args, &[]).await;
    for _ in 0..100 {
        writers.next(LIMIT).await.unwrap();
    }
    let mut informers = Vec::new();
    for kind in ["typed", "dynamic", "metadata"] {
        for (mode, gate) in MODES {
            let args = [scope.clone(), format!("--kind={kind}"), format!("--mode={mode}")];
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let gate = [("KUBE_FEATURE_WatchListClient", gate)];
            informers.push((
                format!("{kind}/{mode}"),
                GoClient::start("informers", forebay.kubeconfig(), &args, &gate).await,
            ));
        }
    }
    writers.until("done", LIMIT).await;
    let expected = listed(plane, &namespace).await;
    for (what, mut informer) in informers {
        // Events come until the state is the expected one; then there must be no more to see.
        let mut now = BTreeMap::new();
        while now != expected {
            let event = informer.next(LIMIT).await.unwrap_or_else(|| panic!("{what} ended early"));
            let key = name_of(&event);
            match event["event"].as_str().unwrap() {
                "add" => {
                    assert!(now.insert(key, version_of(&event)).is_none(), "{what}: added twice: {event}");
                }
                "update" => {
                    let before = now.insert(key, version_of(&event));
                    assert!(before.is_some_and(|rv| rv < version_of(&event)), "{what}: {event} after {before:?}");
                }
                "delete" => assert!(now.remove(&key).is_some(), "{what}: deleted twice: {event}"),
                _ => {}
            }
        }
        informer.close();
        let rest = informer.until("done", LIMIT).await;
        assert_eq!(state(&rest), expected, "{what}");
        informer.finish(LIMIT).await;
    }
}

/// How often each change occurs: (event, uid, version), a delete without its version, which no writer is told.
fn changes(lines: &[Value]) -> HashMap<(String, String, u64), usize> {
    let mut changes = HashMap::new();
    for line in lines {
        let event = line["event"].as_str().unwrap();
        let version = if event == "delete" { 0 } else { version_of(line) };
        if matches!(event, "add" | "update" | "delete") {
            *changes.entry((event.to_owned(), line["uid"].as_str().unwrap().to_owned(), version)).or_default() += 1;
        }
    }
    changes
}

/// The informer's store as it reports it at the end.
fn state(lines: &[Value]) -> BTreeMap<String, u64> {
    lines.iter().filter(|line| line["event"] == "state").map(|line| (name_of(line), version_of(line))).collect()
}

async fn listed(plane: &ControlPlane, namespace: &str) -> BTreeMap<String, u64> {
    let list = plane.client(&plane.user(Role::Reader)).get(&in_namespace("/api/v1/configmaps", namespace)).await.json();
    let rv = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(|object| (name(object), rv(object))).collect()
}

fn name_of(line: &Value) -> String {
    line["name"].as_str().unwrap_or_default().to_owned()
}

fn version_of(line: &Value) -> u64 {
    line["rv"].as_str().and_then(|rv| rv.parse().ok()).unwrap_or(0)
}
