//! The rig itself: it starts, its users have the rights they should, its audit log counts, and nothing outlives it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::build::{ETCD, KUBE_APISERVER};
use crate::client::Protocol;
use crate::control_plane::{ControlPlane, Options};
use crate::fixtures::{self, REGIONS, WIDGETS, in_namespace};
use crate::process::alive;
use crate::programs::{GoClient, kubectl};
use crate::users::{NAMESPACE, Role};

/// Set in the child of `nothing_outlives_a_killed_test_process`: the file for its pids.
const CHILD: &str = "FOREBAY_CLUSTER_CHILD";

#[tokio::test]
async fn server_says_its_version_and_serves_the_custom_resources() {
    let plane = ControlPlane::shared();
    let reader = plane.client(&plane.user(Role::Reader));
    let version = reader.get("/version").await.json();
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.3"), "{version}");
    let widgets = reader.get(&format!("{}?limit=1", in_namespace(WIDGETS, "none"))).await;
    assert!(widgets.body.starts_with(br#"{"apiVersion":"test.forebay.dev/v1","items":[],"kind":"WidgetCollection""#));
    assert_eq!(reader.get(REGIONS).await.status, 200);
    let over_http2 = plane.client_over(&plane.user(Role::Reader), Protocol::Http2).await;
    assert_eq!(over_http2.get("/api/v1/namespaces/default").await.status, 200);
}

#[tokio::test]
async fn users_have_the_rights_of_their_role_and_no_more() {
    let plane = ControlPlane::shared();
    let everywhere = "/api/v1/pods".to_owned();
    let default = in_namespace("/api/v1/configmaps", "default");
    let own = in_namespace("/api/v1/configmaps", NAMESPACE);
    // GET of an object, LIST of everything, LIST in default, LIST in n1, POST in default, POST in n1.
    for (role, allowed) in [
        (Role::Admin, [true, true, true, true, true, true]),
        (Role::Editor, [true, true, true, true, true, true]),
        (Role::Reader, [true, true, true, true, false, false]),
        (Role::Getter, [true, false, false, false, false, false]),
        (Role::Namespaced, [false, false, false, true, false, true]),
    ] {
        let client = plane.client(&plane.user(role));
        let body = fixtures::config_map(&plane.unique("rights"), json!({}), json!({})).to_string();
        let json = [("content-type", "application/json")];
        let seen = [
            client.get("/api/v1/namespaces/kube-system").await,
            client.get(&everywhere).await,
            client.get(&default).await,
            client.get(&own).await,
            client.request(Method::POST, &default, &json, body.clone()).await,
            client.request(Method::POST, &own, &json, body).await,
        ];
        for (answer, allowed) in seen.iter().zip(allowed) {
            assert_eq!(answer.status.is_success(), allowed, "{role:?}: {}", answer.describe());
            assert!(allowed || answer.status == 403, "{role:?}: {}", answer.describe());
        }
    }
    let nobody = plane.client(&plane.user(Role::Reader)).with_token(Some("junk"));
    assert_eq!(nobody.get(&default).await.status, 401);
}

#[tokio::test]
async fn audit_log_counts_a_get_by_user_agent_as_soon_as_it_is_answered() {
    let plane = ControlPlane::shared();
    let user = plane.user(Role::Reader);
    let client = plane.client(&user).with_user_agent("smoke-audit/1");
    let mark = plane.audit().mark();
    for _ in 0..3 {
        assert_eq!(client.get("/api/v1/namespaces/default/configmaps/none").await.status, 404);
    }
    assert_eq!(client.get("/api/v1/namespaces/default/configmaps").await.status, 200);
    let gets = plane.audit().since(mark, |e| e.user_agent.starts_with("smoke-audit/") && e.verb == "get");
    assert_eq!(gets.len(), 3, "{gets:?}");
    assert!(gets.iter().all(|e| (e.resource(), e.name(), e.user()) == ("configmaps", "none", user.name.as_str())));
    assert_eq!(plane.audit().count(|e| e.user_agent == "smoke-audit/1" && e.is_list()), 1);
    // The codes come a moment later.
    fixtures::eventually(Duration::from_secs(5), "codes", async || {
        plane.audit().since(mark, |e| e.user() == user.name && e.code() == 404).len() == 3
    })
    .await;
}

#[tokio::test]
async fn history_can_be_compacted_on_request() {
    let options = Options { compaction_interval: Some(Duration::from_secs(1)), apiservers: 2, ..Options::default() };
    let plane = tokio::task::spawn_blocking(|| ControlPlane::start(options)).await.unwrap().unwrap();
    let admin = plane.client(&plane.user(Role::Admin));
    let list = admin.get("/api/v1/configmaps").await.json();
    let old = list["metadata"]["resourceVersion"].as_str().unwrap();
    // From etcd, past the cache's own history: a limit and an exact version.
    let path = format!("/api/v1/events?resourceVersion={old}&resourceVersionMatch=Exact&limit=1");
    fixtures::eventually(Duration::from_secs(30), "compaction", async || {
        // Two compactions leave what was current at the first; something must have been written in between.
        plane.namespace("compaction").await;
        admin.get(&path).await.status == 410
    })
    .await;
    // The second server shares the store.
    let user = plane.user(Role::Reader);
    let config = plane.kubeconfig_to(&user, plane.url_of(1));
    let second = crate::client::HttpClient::from_kubeconfig(&config, Protocol::Http1).await;
    assert_eq!(second.get("/api/v1/namespaces/n1").await.status, 200);
    let pids = plane.pids();
    assert_eq!(pids.len(), 3);
    let folder = plane.scratch_path().to_owned();
    drop(plane);
    assert!(!pids.iter().any(|pid| alive(*pid)), "still running: {pids:?}");
    assert!(!folder.exists());
}

#[tokio::test]
async fn kubectl_and_the_go_clients_run() {
    let plane = ControlPlane::shared();
    let config = plane.kubeconfig(&plane.user(Role::Editor));
    let output = kubectl(&config, &["get", "namespaces", "-o", "name"]).await;
    assert!(String::from_utf8_lossy(&output.stdout).contains("namespace/n1\n"), "{output:?}");

    let namespace = plane.namespace("clients").await;
    let limit = Duration::from_secs(60);
    let scope = format!("--namespace={namespace}");
    let gate = [("KUBE_FEATURE_WatchListClient", "true")];
    let mut informer =
        GoClient::start("informers", &config, &[&scope, "--kind=typed", "--mode=watchlist"], &gate).await;
    informer.until("synced", limit).await;
    let mut writers = GoClient::start("writers", &config, &[&scope, "--count=40"], &[]).await;
    let writes = writers.until("done", limit).await;
    writers.finish(limit).await;
    assert_eq!(writes.len(), 41, "{writes:?}");
    for _ in 0..40 {
        assert!(informer.next(limit).await.is_some());
    }
    informer.close();
    let rest = informer.until("done", limit).await;
    assert_eq!(rest.last().unwrap()["count"], 40);
    informer.finish(limit).await;
}

/// What a machine without Go shows, and that ready binaries are taken instead.
#[test]
fn without_go_a_test_says_what_to_install_or_takes_ready_binaries() {
    let empty = tempfile::tempdir().unwrap();
    let assets = tempfile::tempdir().unwrap();
    for (name, program) in [("etcd", &ETCD), ("kube-apiserver", &KUBE_APISERVER)] {
        std::os::unix::fs::symlink(program.path().unwrap(), assets.path().join(name)).unwrap();
    }
    // The few tools the rig itself calls.
    for tool in ["sh", "cat", "mv", "rm", "sleep"] {
        let found =
            std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|dir| dir.join(tool)).find(|p| p.exists());
        std::os::unix::fs::symlink(found.unwrap(), empty.path().join(tool)).unwrap();
    }
    let run = |assets: Option<&Path>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "smoke::audit_log_counts_a_get_by_user_agent_as_soon_as_it_is_answered"])
            .env_remove("KUBEBUILDER_ASSETS")
            .envs([("PATH", empty.path()), ("XDG_CACHE_HOME", empty.path())])
            .stdin(Stdio::null());
        if let Some(assets) = assets {
            command.env("KUBEBUILDER_ASSETS", assets);
        }
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (passed, text) = run(None);
    assert!(!passed, "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("install Go")).collect();
    assert!(lines.len() == 1 && lines[0].contains("KUBEBUILDER_ASSETS"), "{text}");
    let (passed, text) = run(Some(assets.path()));
    assert!(passed, "{text}");
}

#[test]
fn nothing_outlives_a_killed_test_process() {
    if let Some(file) = std::env::var_os(CHILD) {
        let plane = ControlPlane::start(Options::default()).unwrap();
        let pids: Vec<String> = plane.pids().iter().map(u32::to_string).collect();
        let report = format!("{}\n{}", plane.scratch_path().display(), pids.join("\n"));
        let file = Path::new(&file);
        std::fs::write(file.with_extension("new"), report).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
        std::thread::sleep(Duration::from_secs(120));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "smoke::nothing_outlives_a_killed_test_process"])
        .env(CHILD, &file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let wait_for = |what: &str, limit: Duration, condition: &mut dyn FnMut() -> bool| {
        let deadline = tokio::time::Instant::now() + limit;
        while !condition() {
            assert!(tokio::time::Instant::now() < deadline, "{what}: not within {limit:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("control plane of the child", Duration::from_secs(130), &mut || {
        file.exists() || child.try_wait().unwrap().is_some()
    });
    let report = std::fs::read_to_string(&file).expect("the child ended without a control plane");
    let (folder, pids) = report.split_once('\n').unwrap();
    let pids: Vec<u32> = pids.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| alive(*pid)) && Path::new(folder).exists());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("end of etcd and kube-apiserver", Duration::from_secs(10), &mut || !pids.iter().any(|pid| alive(*pid)));
    wait_for("end of the scratch folder", Duration::from_secs(10), &mut || !Path::new(folder).exists());
}
