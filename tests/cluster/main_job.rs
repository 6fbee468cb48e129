//! The main job: a controller with the "lister miss, direct GET" habit restarts in front of 2,000 Deployments, directly
//! and through forebay. Through forebay its reads cost the API server one list and one watch.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::audit::{Entry, peak_per_second};
use crate::control_plane::ControlPlane;
use crate::fixtures::{create_all, deployment, in_namespace};
use crate::forebay::Forebay;
use crate::programs::GoClient;
use crate::users::{Role, User, Users};

const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const NAMESPACES: usize = 20;
const EACH: usize = 100;
const LIMIT: Duration = Duration::from_secs(180);

/// What one restart has done.
struct Run {
    report: Value,
    /// Everything of `deployments` that reached the API server meanwhile, by the identity of this run.
    upstream: Vec<Entry>,
    /// The Deployments afterwards, without what differs between any two runs.
    state: BTreeMap<String, Value>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_costs_upstream_one_list_and_one_watch() {
    let plane = ControlPlane::shared();
    let namespaces = fill(plane).await;
    let keys = plane.dir().join("keys");
    let lines: Vec<String> =
        namespaces.iter().flat_map(|ns| (0..EACH).map(move |n| format!("{ns}/deployment-{n}"))).collect();
    std::fs::write(&keys, lines.join("\n")).unwrap();

    let user = plane.user(Role::Editor);
    let direct = restart(plane, &user, &plane.kubeconfig(&user), &keys, &namespaces, "1").await;
    let user = plane.user(Role::Editor);
    let forebay = Forebay::start(&plane.kubeconfig(&user)).await;
    let through = restart(plane, &user, forebay.kubeconfig(), &keys, &namespaces, "2").await;
    print_report(&direct, &through);

    for (what, run) in [("direct", &direct), ("through", &through)] {
        for (field, expected) in
            [("wrong_answers", 0), ("errors", 0), ("conflicts", 0), ("status_writes", NAMESPACES * EACH)]
        {
            assert_eq!(run.report[field], expected, "{what}: {field} in {}", run.report);
        }
    }
    assert!(!direct_gets(&direct).is_empty(), "the direct run shows the habit: {}", direct.report);

    assert_eq!(direct.state.len(), NAMESPACES * EACH);
    for (key, expected) in &direct.state {
        assert_eq!(through.state.get(key), Some(expected), "{key}: the final states differ");
    }
    assert_eq!(direct.state.len(), through.state.len());

    let gets = direct_gets(&through);
    assert!(gets.is_empty(), "{} GETs of Deployments reached upstream, for one {:?}", gets.len(), gets.first());
    let (own, clients): (Vec<&Entry>, Vec<&Entry>) =
        through.upstream.iter().partition(|e| e.user_agent.starts_with("forebay/"));
    let lists = own.iter().filter(|e| e.is_first_page()).count();
    let watches = own.iter().filter(|e| e.verb == "watch" && !e.is_list()).count();
    assert_eq!(lists, 1, "lists by forebay: {own:?}");
    assert!(watches <= 1, "watches by forebay: {own:?}");
    // What is left of the client's own reads is its informer.
    let selected: Vec<_> = clients.iter().filter(|e| e.verb == "list").collect();
    assert!(selected.is_empty(), "LISTs by selector reached upstream: {selected:?}");
    assert_eq!(clients.iter().filter(|e| e.verb == "watch").count(), 1, "{clients:?}");
}

async fn fill(plane: &ControlPlane) -> Vec<String> {
    let mut namespaces = Vec::new();
    for _ in 0..NAMESPACES {
        namespaces.push(plane.namespace("job").await);
    }
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let objects = namespaces.iter().flat_map(|ns| {
        let path = in_namespace(DEPLOYMENTS, ns);
        (0..EACH).map(move |n| (path.clone(), deployment(&format!("deployment-{n}"))))
    });
    create_all(&rig, objects.collect()).await;
    namespaces
}

/// Starts the detector and waits until its queue is empty. The round is what it writes into each status.
async fn restart(
    plane: &ControlPlane,
    user: &User,
    kubeconfig: &Path,
    keys: &Path,
    namespaces: &[String],
    round: &str,
) -> Run {
    let mark = plane.audit().mark();
    let args = [format!("--keys={}", keys.display()), format!("--round={round}"), format!("--run={}", user.name)];
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--workers=20", "--qps=600", "--burst=1000"]);
    let mut detector = GoClient::start("detector", kubeconfig, &args, &[]).await;
    let lines = detector.until("done", LIMIT).await;
    detector.finish(LIMIT).await;
    for line in lines.iter().take(lines.len() - 1).take(5) {
        let _ = writeln!(std::io::stderr(), "[cluster] detector: {line}");
    }
    let upstream = plane.audit().since(mark, |e| e.user() == user.name && e.resource() == "deployments");
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let mut state = BTreeMap::new();
    for namespace in namespaces {
        for mut object in
            rig.get(&in_namespace(DEPLOYMENTS, namespace)).await.json()["items"].as_array_mut().unwrap().drain(..)
        {
            let key = format!("{namespace}/{}", object["metadata"]["name"].as_str().unwrap());
            assert_eq!(object["status"]["replicas"].to_string(), round, "{key}: {object}");
            object["status"]["replicas"] = Value::Null;
            for volatile in ["resourceVersion", "managedFields"] {
                object["metadata"][volatile] = Value::Null;
            }
            state.insert(key, object);
        }
    }
    Run { report: lines.last().unwrap().clone(), upstream, state }
}

fn direct_gets(run: &Run) -> Vec<&Entry> {
    run.upstream.iter().filter(|e| e.verb == "get" && e.subresource().is_empty()).collect()
}

fn print_report(direct: &Run, through: &Run) {
    let reads = |run: &Run| -> Vec<Entry> {
        run.upstream.iter().filter(|e| matches!(e.verb.as_str(), "get" | "list" | "watch")).cloned().collect()
    };
    let (a, b) = (reads(direct), reads(through));
    let seconds = |run: &Run, field: &str| run.report[field].as_f64().unwrap_or(0.0) / 1000.0;
    let mut lines =
        vec![format!("[cluster] restart in front of {} Deployments     direct   through", NAMESPACES * EACH)];
    let mut line = |what: &str, a: String, b: String| lines.push(format!("[cluster]   {what:<40}{a:>10}{b:>10}"));
    line("reads that reached upstream", a.len().to_string(), b.len().to_string());
    line("  at most in one second", peak_per_second(&a).to_string(), peak_per_second(&b).to_string());
    for (what, field) in [
        ("lister hits", "lister_hits"),
        ("lister misses", "lister_misses"),
        ("GETs before a status write", "status_gets"),
        ("reads by the client, at most in a second", "peak_reads_per_second"),
    ] {
        line(what, direct.report[field].to_string(), through.report[field].to_string());
    }
    for (what, field) in
        [("seconds until the queue is empty", "queue_empty_ms"), ("seconds until its informer has synced", "synced_ms")]
    {
        line(what, format!("{:.1}", seconds(direct, field)), format!("{:.1}", seconds(through, field)));
    }
    for (what, field) in [("read p50, ms", "read_p50_ms"), ("read p99, ms", "read_p99_ms")] {
        line(
            what,
            format!("{:.2}", seconds(direct, field) * 1000.0),
            format!("{:.2}", seconds(through, field) * 1000.0),
        );
    }
    let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
}
