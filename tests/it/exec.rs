//! `forebay exec` around a real command, and `forebay wait` for a real proxy.

use std::path::PathBuf;

use forebay::testing::watch;
use nix::sys::signal::Signal;

use crate::{
    child::{Process, Server},
    client::{Access, Client, Protocol},
    rig::{LIMIT, eventually, own, upstream_with_pods},
};

/// A folder with an upstream kubeconfig, in which a shell leaves what it sees.
struct Scene {
    dir: tempfile::TempDir,
}

// === impl Scene ===

impl Scene {
    fn new(upstream_kubeconfig: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("upstream"), upstream_kubeconfig).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `forebay exec -- sh -c script`, with `$1` the folder.
    fn exec(&self, flags: &[&str], script: &str, env: &[(&str, &str)]) -> Process {
        let folder = self.dir.path().display().to_string();
        let kubeconfig = format!("--kubeconfig={}", self.path("upstream").display());
        let args = [&["exec", &kubeconfig], flags, &["--", "sh", "-c", script, "sh", &folder]].concat();
        Process::start(&args, &[env, &[("TMPDIR", folder.as_str())]].concat())
    }

    /// Waits until the script has written this file, and gives its text.
    async fn file(&self, name: &str) -> String {
        let complete = || async { std::fs::read_to_string(self.path(name)).ok().filter(|text| text.ends_with('\n')) };
        eventually(name, complete).await
    }
}

#[tokio::test]
async fn a_command_runs_through_the_cache_and_its_end_is_reported() {
    let upstream = upstream_with_pods(30).await;
    let scene = Scene::new(&upstream.kubeconfig_yaml());
    let script = r#"env > $1/env.new; mv $1/env.new $1/env; stat -c '%a %n' $KUBECONFIG $(dirname $KUBECONFIG) > $1/modes;
                    echo to-stdout; echo to-stderr >&2
                    until [ -e $1/done ]; do sleep 0.02; done; exit 7"#;
    let env = [("NO_PROXY", "corp.example"), ("KUBERNETES_MASTER", "http://elsewhere"), ("KEPT", "as it is")];
    let process = scene.exec(&["--preload=pods"], script, &env);
    let seen = scene.file("modes").await;
    let variables = scene.file("env").await;
    let variable = |name: &str| variables.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    let kubeconfig = PathBuf::from(variable("KUBECONFIG").unwrap());
    assert_eq!(variable("NO_PROXY"), Some("corp.example,127.0.0.1,::1,localhost"));
    assert_eq!(variable("no_proxy"), variable("NO_PROXY"));
    assert_eq!((variable("FOREBAY_ACTIVE"), variable("KUBERNETES_MASTER")), (Some("1"), None));
    assert_eq!(variable("KEPT"), Some("as it is"));
    let folder = kubeconfig.parent().unwrap();
    assert!(folder.starts_with(scene.dir.path()), "{folder:?}");
    assert_eq!(seen, format!("600 {}\n700 {}\n", kubeconfig.display(), folder.display()));

    let client = Client::of(&Access::read(&kubeconfig), Protocol::Http1);
    for _ in 0..1_200 {
        assert_eq!(client.get("/api/v1/namespaces/team-000/pods/app-000000").await.status, 200);
    }
    let made = client.send("POST", "/api/v1/namespaces/x/configmaps", &[], r#"{"metadata":{"name":"a"}}"#).await;
    assert_eq!(made.status, 201);
    std::fs::write(scene.path("done"), "").unwrap();
    let ended = process.end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(7), "to-stdout\n"), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "to-stderr"), "nothing but the report is added: {}", ended.stderr);
    assert!(lines[1].starts_with("forebay: 1,201 requests in "), "{}", lines[1]);
    assert!(
        lines[1].contains(": 1,200 answered from the cache") && lines[1].ends_with(" 1 forwarded."),
        "{}",
        lines[1]
    );
    assert!(lines[2].contains("reads reached the kube-apiserver"), "{}", lines[2]);
    assert!(!folder.exists(), "the folder with the token is gone");
}

#[tokio::test]
async fn signals_reach_the_command_and_its_code_comes_back() {
    let upstream = upstream_with_pods(1).await;
    for (signal, script, code) in [
        (Signal::SIGTERM, "trap 'exit 9' TERM; echo > $1/up; while :; do sleep 0.02; done", 9),
        (Signal::SIGINT, "trap 'exit 10' INT; echo > $1/up; while :; do sleep 0.02; done", 10),
        (Signal::SIGHUP, "trap 'exit 11' HUP; echo > $1/up; while :; do sleep 0.02; done", 11),
        // Not caught: as shells tell it.
        (Signal::SIGTERM, "echo > $1/up; exec sleep 600", 128 + 15),
    ] {
        let scene = Scene::new(&upstream.kubeconfig_yaml());
        let process = scene.exec(&[], script, &[]);
        scene.file("up").await;
        process.signal(signal);
        let ended = process.end().await;
        assert_eq!(ended.code, Some(code), "{signal}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("forebay: no request in "), "{}", ended.stderr);
        let left: Vec<_> = std::fs::read_dir(scene.dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!left.iter().any(|path| path.is_dir()), "{left:?}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_run_or_a_proxy_that_cannot_start_says_so() {
    let upstream = upstream_with_pods(1).await;
    let scene = Scene::new(&upstream.kubeconfig_yaml());
    let kubeconfig = format!("--kubeconfig={}", scene.path("upstream").display());
    let ended = Process::start(&["exec", &kubeconfig, "--", "/none/command"], &[]).end().await;
    assert_eq!(ended.code, Some(127), "{ended:?}");
    assert_eq!(ended.stderr, "error: can't run /none/command: No such file or directory (os error 2)\n");
    let ended = Process::start(&["exec", "--kubeconfig=/none/config", "--", "true"], &[]).end().await;
    assert!(ended.error().contains("/none/config"), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    // Only the command's own words reach stdout, and {kubeconfig} is its own path.
    let script = "printf '%s' \"$2\"; [ \"$2\" = \"--kubeconfig=$KUBECONFIG\" ]";
    let args = ["exec", &kubeconfig, "--", "sh", "-c", script, "sh", "x", "--kubeconfig={kubeconfig}"];
    let ended = Process::start(&args, &[]).end().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("--kubeconfig=/") && ended.stdout.ends_with("/kubeconfig"), "{ended:?}");
}

#[tokio::test]
async fn wait_ends_when_what_is_preloaded_is_there() {
    let upstream = upstream_with_pods(30).await;
    let hold = upstream.on(own(watch("pods").streaming())).hold();
    let server = Server::start(&upstream.kubeconfig_yaml(), &["--preload=pods"]).await;
    hold.wait_for(1, LIMIT).await.unwrap();
    let url = format!("--url={}/readyz", server.admin_url);
    let short = Process::start(&["wait", &url, "--timeout=300ms"], &[]).end().await;
    assert!(short.error().contains("cache-sync/v1/pods"), "{short:?}");
    let mut waiting = Process::start(&["wait", &url], &[]);
    waiting.line("waiting: cache-sync/v1/pods").await;
    assert!(waiting.runs());
    hold.release();
    let ended = waiting.end().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.lines().last().unwrap().starts_with("ready after "), "{ended:?}");
}
