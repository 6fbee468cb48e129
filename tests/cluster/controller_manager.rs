//! kube-controller-manager, unmodified, with all its requests through forebay: the same story on two fresh control planes,
//! directly and through forebay, comes to the same end, and its log has no error that the direct one does not have.
//!
//! The story: 200 Deployments roll out to 600 pods, are updated while the leader is killed, and are scaled to zero; owners
//! are deleted in each of the three ways; a namespace with everything in it is deleted. `kubelet` plays scheduler and node.

mod managers;
mod story;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::audit::{Entry, peak_per_second};
use crate::client::HttpClient;
use crate::control_plane::{ControlPlane, Options};
use crate::fixtures::{WIDGETS, in_namespace};
use crate::forebay::Forebay;
use crate::kubelet::Kubelet;
use crate::users::{Role, User, Users};

use managers::{Errors, Managers};
use story::{CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, PODS, REPLICA_SETS, items};

/// What a run has come to.
struct Outcome {
    /// Everything that is left, by its path, without what differs between any two runs.
    state: BTreeMap<String, Value>,
    errors: Errors,
    /// Reads by kube-controller-manager, or by forebay for it.
    reads: Vec<Entry>,
    chapters: Vec<(&'static str, Duration)>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_work_comes_to_the_same_end() {
    let direct = {
        let plane = ControlPlane::start(Options::default()).unwrap();
        let user = plane.user(Role::Admin);
        let kubeconfig = plane.kubeconfig(&user);
        run(&plane, &user, &kubeconfig).await
    };
    let plane = ControlPlane::start(Options::default()).unwrap();
    let user = plane.user(Role::Admin);
    let forebay = Forebay::start(&plane.kubeconfig(&user)).await;
    let through = run(&plane, &user, forebay.kubeconfig()).await;
    print_report(&direct, &through);

    for (path, expected) in &direct.state {
        assert_eq!(through.state.get(path), Some(expected), "{path}: left over by the direct run, and through forebay");
    }
    for (path, found) in &through.state {
        assert!(direct.state.contains_key(path), "{path}: left over through forebay only: {found}");
    }
    let known = &direct.errors.kinds;
    let more: Vec<_> = through.errors.kinds.iter().filter(|(kind, _)| !known.contains_key(*kind)).collect();
    assert!(more.is_empty(), "errors that the direct run does not log: {more:#?}");
}

async fn run(plane: &ControlPlane, user: &User, kubeconfig: &Path) -> Outcome {
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let _node = Kubelet::start_scheduling(plane).await;
    let mut managers = Managers::start(plane, kubeconfig).await;
    let mark = plane.audit().mark();
    let mut chapters = Vec::new();
    let mut namespaces = Vec::new();
    for _ in 0..NAMESPACES {
        namespaces.push(plane.namespace("work").await);
    }
    let started = Instant::now();
    let mut done = |what: &'static str, since: Instant| chapters.push((what, since.elapsed()));

    story::roll_out(&rig, &namespaces).await;
    done("200 Deployments roll out to 600 pods", started);
    let since = Instant::now();
    story::update(&rig, &namespaces, &mut managers).await;
    done("they are updated, and the leader is killed", since);
    let since = Instant::now();
    story::scale_to_zero(&rig, &namespaces).await;
    done("they are scaled to zero", since);
    let since = Instant::now();
    let owners = plane.namespace("owners").await;
    story::collect_owners(&rig, &owners).await;
    done("what deleted owners leave behind is collected", since);
    let since = Instant::now();
    story::delete_a_namespace(plane, &rig).await;
    done("a namespace is deleted with everything in it", since);

    namespaces.push(owners);
    let reads =
        plane.audit().since(mark, |e| e.user() == user.name && matches!(e.verb.as_str(), "get" | "list" | "watch"));
    Outcome { state: left_over(&rig, &namespaces).await, errors: managers.errors(), reads, chapters }
}

/// All that is left, without versions, times and UIDs; names with a random end lose it.
async fn left_over(rig: &HttpClient, namespaces: &[String]) -> BTreeMap<String, Value> {
    let mut state = BTreeMap::new();
    for namespace in namespaces {
        for collection in [DEPLOYMENTS, REPLICA_SETS, PODS, CONFIG_MAPS, WIDGETS, "/api/v1/serviceaccounts"] {
            let path = in_namespace(collection, namespace);
            for mut object in items(rig, &path).await {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let name = object["metadata"]["generateName"].as_str().map_or(name, |prefix| format!("{prefix}*"));
                object["metadata"]["name"] = json!(name);
                strip(&mut object);
                state.insert(format!("{path}/{name}"), object);
            }
        }
    }
    let nodes = items(rig, "/api/v1/nodes").await;
    for mut node in nodes {
        strip(&mut node);
        node["status"]["daemonEndpoints"] = Value::Null;
        state.insert(format!("/api/v1/nodes/{}", node["metadata"]["name"].as_str().unwrap()), node);
    }
    state
}

/// Takes out what differs between any two runs, at any depth.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for volatile in [
                "uid",
                "resourceVersion",
                "creationTimestamp",
                "managedFields",
                "lastUpdateTime",
                "lastTransitionTime",
                "startTime",
                "startedAt",
                "finishedAt",
                "podIP",
                "podIPs",
                "lastHeartbeatTime",
                "ca.crt",
            ] {
                fields.remove(volatile);
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

fn print_report(direct: &Outcome, through: &Outcome) {
    let mut lines = vec!["[cluster] kube-controller-manager                       direct   through".to_owned()];
    let mut line = |what: &str, a: String, b: String| lines.push(format!("[cluster]   {what:<48}{a:>10}{b:>10}"));
    for (what, verb) in [("GETs that reached upstream", "get"), ("LISTs", "list"), ("watches", "watch")] {
        let count = |run: &Outcome| run.reads.iter().filter(|e| e.verb == verb).count().to_string();
        line(what, count(direct), count(through));
    }
    let peak = |run: &Outcome| peak_per_second(&run.reads).to_string();
    line("reads, at most in one second", peak(direct), peak(through));
    for ((what, a), (_, b)) in direct.chapters.iter().zip(&through.chapters) {
        line(&format!("{what}, s"), format!("{:.1}", a.as_secs_f64()), format!("{:.1}", b.as_secs_f64()));
    }
    let races = |run: &Outcome| run.errors.races.to_string();
    line("syncs that lost a race and were retried", races(direct), races(through));
    let kinds = |run: &Outcome| run.errors.kinds.len().to_string();
    line("kinds of other errors", kinds(direct), kinds(through));
    let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
}
