//! kubectl behaves the same through forebay as directly: the same output, the same exit code.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::control_plane::ControlPlane;
use crate::fixtures::{WIDGETS, config_map, create_all, deployment, in_namespace, pod, widget};
use crate::forebay::Forebay;
use crate::programs::{kubectl, kubectl_command, kubectl_with_input};
use crate::users::{Role, Users};

const LIMIT: Duration = Duration::from_secs(60);

/// Kubeconfigs of two users with the same rights: one for the API server, one for forebay.
async fn start(plane: &ControlPlane) -> (PathBuf, Forebay) {
    let direct = plane.kubeconfig(&plane.user(Role::Editor));
    let forebay = Forebay::start(&plane.kubeconfig(&plane.user(Role::Editor))).await;
    (direct, forebay)
}

/// What a person sees of a run.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Ages and latencies tick; the namespace of a twin has another name. Column widths follow the ages.
fn seen(output: &Output, namespace: &str) -> Seen {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).replace(namespace, "NAMESPACE");
        let line = |line: &str| {
            line.split_whitespace().map(|word| if is_age(word) { "AGE" } else { word }).collect::<Vec<_>>().join(" ")
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    Seen { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// 5s, 2m, 3m12s, 4h.
fn is_age(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h'])
        && word.chars().all(|c| c.is_ascii_digit() || matches!(c, 's' | 'm' | 'h'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_commands_print_the_same() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("kubectl").await;
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let at = |collection: &str| in_namespace(collection, &namespace);
    let labels = json!({"app": "web"});
    let mut objects = vec![(at("/apis/apps/v1/deployments"), deployment("web"))];
    for n in 0..3 {
        objects.push((at("/api/v1/pods"), pod(&format!("web-{n}"), labels.clone())));
        objects.push((
            at("/api/v1/configmaps"),
            config_map(&format!("config-{n}"), labels.clone(), json!({"k": "<v>&\n"})),
        ));
        objects.push((at(WIDGETS), widget(&format!("widget-{n}"), labels.clone(), json!({"color": "blue"}))));
    }
    create_all(&rig, objects).await;
    let (direct, forebay) = start(plane).await;

    for command in [
        "get pods",
        "get pods -o wide --show-labels",
        "get pods -o json",
        "get pods -o yaml --show-managed-fields",
        "get pods,configmaps,deployments,widgets -o name",
        "get pod web-1 -o yaml",
        "get configmaps -l app=web",
        "get configmaps -l app!=web",
        "get configmaps --field-selector=metadata.name=config-1 -o json",
        "get configmap config-1 config-2 -o json",
        "get configmap config-1 no-such-config",
        "get widgets",
        "get widgets -o json",
        "get widgets.v1.test.forebay.dev widget-0 -o jsonpath={.spec.color}",
        "get deployments -o custom-columns=NAME:.metadata.name,REPLICAS:.spec.replicas",
        "get nosuchthings",
        "get pods --sort-by=.metadata.name --chunk-size=2 -o name",
        "get all",
        "describe pod web-0",
        "describe deployment web",
        "describe configmap config-0",
        "describe widget widget-0",
        "describe pod no-such-pod",
        "get namespaces n1 -o yaml",
        "api-resources",
        "api-versions",
        "explain deployment.spec.template",
        "explain widget.spec",
        "version",
        "auth can-i list pods",
        "diff -f -",
        "get --raw /api/v1/namespaces/n1",
        "get --raw /healthz",
        "rollout history deployment/web",
        "logs web-0",
        "config view --minify -o jsonpath={.contexts[0].context.namespace}",
    ] {
        let mut args: Vec<&str> = command.split(' ').collect();
        let scope = format!("--namespace={namespace}");
        if !command.starts_with("config") {
            args.push(&scope);
        }
        let input = if command.starts_with("diff") { deployment("web").to_string() } else { String::new() };
        // Cold for the first commands, warm later.
        let expected = seen(&kubectl_with_input(&direct, &args, &input).await, &namespace);
        let found = seen(&kubectl_with_input(forebay.kubeconfig(), &args, &input).await, &namespace);
        assert_eq!(found, expected, "kubectl {command}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writing_commands_print_the_same() {
    let plane = ControlPlane::shared();
    let (direct, forebay) = start(plane).await;
    // Twins: the same commands, each in a namespace of its own.
    let mut transcripts = Vec::new();
    for kubeconfig in [direct.as_path(), forebay.kubeconfig()] {
        let namespace = plane.namespace("twin").await;
        transcripts.push(write(kubeconfig, &namespace).await);
    }
    let (through, direct) = (transcripts.pop().unwrap(), transcripts.pop().unwrap());
    assert_eq!(through.len(), direct.len());
    for (through, direct) in through.iter().zip(&direct) {
        assert_eq!(through, direct);
    }
}

async fn write(kubeconfig: &Path, namespace: &str) -> Vec<(String, Seen)> {
    let mut transcript = Vec::new();
    let manifest = |replicas: u32| {
        let mut web = deployment("web");
        web["spec"]["replicas"] = json!(replicas);
        let objects = [
            web,
            config_map("settings", json!({}), json!({"k": "old"})),
            widget("one", json!({}), json!({"color": "red"})),
        ];
        json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
    };
    let edit = "sed -i s/old/edited/";
    for (command, input) in [
        ("apply -f -", manifest(1)),
        ("apply -f -", manifest(1)),
        ("apply -f -", manifest(2)),
        ("get deployment web -o jsonpath={.spec.replicas}", String::new()),
        ("apply --server-side --force-conflicts -f -", manifest(3)),
        ("get deployment web -o jsonpath={.spec.replicas}", String::new()),
        ("patch deployment web --type=merge -p {\"spec\":{\"replicas\":4}}", String::new()),
        ("get deployment web -o jsonpath={.spec.replicas}", String::new()),
        (
            "patch configmap settings --type=json -p [{\"op\":\"add\",\"path\":\"/data/j\",\"value\":\"1\"}]",
            String::new(),
        ),
        ("patch widget one --type=merge --subresource=status -p {\"status\":{\"phase\":\"Ready\"}}", String::new()),
        ("get widget one -o jsonpath={.status.phase}", String::new()),
        ("edit configmap settings", String::new()),
        ("get configmap settings -o jsonpath={.data}", String::new()),
        ("scale deployment web --replicas=5", String::new()),
        ("get deployment web -o jsonpath={.spec.replicas}", String::new()),
        ("label configmap settings tier=gold", String::new()),
        ("annotate configmap settings note=x", String::new()),
        ("get configmaps -l tier=gold -o name", String::new()),
        ("create configmap settings --from-literal=a=b", String::new()),
        ("create -f - --dry-run=server", config_map("dry", json!({}), json!({})).to_string()),
        ("get configmap dry", String::new()),
        ("wait --for=jsonpath={.data.k}=edited configmap/settings --timeout=20s", String::new()),
        ("wait --for=create configmap/settings --timeout=20s", String::new()),
        ("wait --for=jsonpath={.data.k}=never configmap/settings --timeout=1s", String::new()),
        ("delete configmap settings", String::new()),
        ("get configmap settings", String::new()),
        ("delete configmap settings", String::new()),
        ("wait --for=delete configmap/settings --timeout=20s", String::new()),
        ("delete deployment web --wait=true", String::new()),
        ("get deployments -o name", String::new()),
        ("replace -f -", widget("one", json!({}), json!({"color": "green"})).to_string()),
        ("delete widgets --all", String::new()),
        ("get widgets", String::new()),
    ] {
        let mut args: Vec<&str> = command.split(' ').collect();
        let scope = format!("--namespace={namespace}");
        args.push(&scope);
        let output = if command.starts_with("edit") {
            let mut child = kubectl_command(kubeconfig, &args).await;
            let child = child.env("KUBE_EDITOR", edit).stdin(std::process::Stdio::null());
            tokio::time::timeout(LIMIT, child.output()).await.expect("kubectl edit hangs").unwrap()
        } else {
            kubectl_with_input(kubeconfig, &args, &input).await
        };
        transcript.push((command.to_owned(), seen(&output, namespace)));
    }
    transcript
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_prints_the_same() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("watch").await;
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let collection = in_namespace("/api/v1/configmaps", &namespace);
    rig.post(&collection, &config_map("first", json!({}), json!({}))).await;
    let (direct, forebay) = start(plane).await;
    let scope = format!("--namespace={namespace}");
    let columns = "-o=custom-columns=TYPE:.type,NAME:.object.metadata.name,VERSION:.object.metadata.resourceVersion";
    let mut watchers = Vec::new();
    for kubeconfig in [direct.as_path(), forebay.kubeconfig()] {
        let args = ["get", "configmaps", "--watch", "--output-watch-events", "--no-headers", columns, &scope];
        let mut child = kubectl_command(kubeconfig, &args).await.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        watchers.push((child, lines));
    }
    let mut outputs = vec![Vec::new(), Vec::new()];
    // Both are watching once they have printed what is there.
    for ((_, lines), output) in watchers.iter_mut().zip(&mut outputs) {
        output.push(tokio::time::timeout(LIMIT, lines.next_line()).await.expect("no first line").unwrap().unwrap());
    }
    for n in 0..20 {
        let name = format!("config-{n}");
        rig.post(&collection, &config_map(&name, json!({}), json!({}))).await;
        let path = format!("{collection}/{name}");
        let patch = [("content-type", "application/merge-patch+json")];
        rig.request(http::Method::PATCH, &path, &patch, json!({"data": {"n": "1"}}).to_string()).await;
        rig.request(http::Method::DELETE, &path, &[], "").await;
    }
    for ((_, lines), output) in watchers.iter_mut().zip(&mut outputs) {
        for _ in 0..60 {
            output.push(
                tokio::time::timeout(LIMIT, lines.next_line()).await.expect("events are missing").unwrap().unwrap(),
            );
        }
    }
    assert_eq!(outputs[0], outputs[1]);
    assert!(outputs[0].last().unwrap().starts_with("DELETED"), "{:?}", outputs[0].last());
    for (mut child, _) in watchers {
        child.kill().await.unwrap();
    }
}

/// `wait --for=delete` and `delete` both watch; they end when the object goes, not at their timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_ends_with_the_deletion() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("wait").await;
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let collection = in_namespace("/api/v1/configmaps", &namespace);
    rig.post(&collection, &config_map("doomed", json!({}), json!({}))).await;
    let (_, forebay) = start(plane).await;
    let scope = format!("--namespace={namespace}");
    let args = ["wait", "--for=delete", "configmap/doomed", "--timeout=50s", &scope];
    let waiting = kubectl(forebay.kubeconfig(), &args);
    let deleting = async {
        // Once its watch is there.
        let limit = Duration::from_secs(30);
        crate::fixtures::eventually(limit, "kubectl's watch", async || {
            plane
                .audit()
                .count(|e| e.verb == "watch" && e.namespace() == namespace && e.user_agent.starts_with("kubectl"))
                > 0
        })
        .await;
        rig.request(http::Method::DELETE, &format!("{collection}/doomed"), &[], "").await;
    };
    let (output, ()) = tokio::join!(waiting, deleting);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "configmap/doomed condition met\n");
}
