//! forebay's own credentials change under way (SEC-03): token files, client certificates, the CA, the kubeconfig and what
//! plugins give. No restart, no request that fails for it, and a file that is broken for a while changes nothing.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use forebay::testing::{ApiServer, any, create, named_path, watch};
use serde_json::json;
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    client::Client,
    rig::{Forebay, LIMIT, eventually, forwarded, own, upstream, upstream_with_pods},
};

const MAPS: &str = "/api/v1/namespaces/x/configmaps";
const RELOADS: &str = "forebay_upstream_credential_reloads_total";

/// Reads, writes and cached reads, one after the other, until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    running: JoinHandle<Vec<String>>,
}

// === impl Load ===

impl Load {
    fn start(client: Client) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (stop.clone(), done.clone());
        let running = tokio::spawn(async move {
            let mut failures = Vec::new();
            let body = json!({"metadata": {"generateName": "a-"}});
            while !stopped.load(Ordering::Relaxed) {
                for (reply, code) in [
                    (client.get("/version").await, 200),
                    (client.write("POST", MAPS, &body).await, 201),
                    (client.get("/api/v1/pods").await, 200),
                ] {
                    if reply.status != code {
                        failures.push(reply.to_string());
                    }
                }
                counted.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(5)).await;
            }
            failures
        });
        Self { stop, done, running }
    }

    /// Waits for some more rounds.
    async fn go_on(&self) {
        let from = self.done.load(Ordering::Relaxed);
        let more = || async { (self.done.load(Ordering::Relaxed) > from + 5).then_some(()) };
        eventually("some more requests", more).await;
    }

    /// Nothing failed.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let failures = self.running.await.unwrap();
        assert!(failures.is_empty(), "{} failed: {}", failures.len(), failures[0]);
    }
}

/// A kubeconfig for `upstream` whose user has these fields instead of a token.
fn kubeconfig(upstream: &ApiServer, user: &serde_json::Value) -> String {
    let text = upstream.kubeconfig_yaml();
    let (rest, _) = text.split_once("  user:\n    token:").unwrap();
    format!("{rest}  user: {user}\n")
}

/// Waits until what is forwarded comes with this credential.
async fn arrives(upstream: &ApiServer, what: &str, is: impl Fn(&forebay::testing::Seen) -> bool) {
    upstream.log().clear();
    let came = || async {
        let seen = upstream.log().matching(forwarded(named_path("/version")));
        seen.last().is_some_and(|seen| is(seen)).then_some(())
    };
    eventually(what, came).await;
}

async fn token_arrives(upstream: &ApiServer, token: &str) {
    let authorization = format!("Bearer {token}");
    arrives(upstream, token, |seen| seen.header("authorization") == authorization).await;
}

/// What a kubelet mounts: a folder of symlinks through `..data`, which is replaced as a whole.
struct Mount {
    dir: TempDir,
}

// === impl Mount ===

impl Mount {
    fn new(token: &str) -> Self {
        let mount = Self { dir: tempfile::tempdir().unwrap() };
        mount.swap("1", token);
        std::os::unix::fs::symlink("..data/token", mount.token()).unwrap();
        mount
    }

    fn token(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    fn swap(&self, version: &str, token: &str) {
        let data = format!("..{version}");
        std::fs::create_dir(self.dir.path().join(&data)).unwrap();
        std::fs::write(self.dir.path().join(&data).join("token"), token).unwrap();
        let (new, now) = (self.dir.path().join("..data_tmp"), self.dir.path().join("..data"));
        std::os::unix::fs::symlink(data, &new).unwrap();
        std::fs::rename(new, now).unwrap();
    }
}

#[tokio::test]
async fn token_files_are_read_anew_and_broken_ones_are_not() {
    let server = upstream_with_pods(3).await;
    server.set_tokens(&["one"]);
    let mount = Mount::new("one\n");
    let forebay = Forebay::start(&kubeconfig(&server, &json!({"tokenFile": mount.token()})), &[]).await;
    forebay.wait_cached("/api/v1/pods").await;
    let load = Load::start(forebay.client());
    load.go_on().await;

    server.set_tokens(&["one", "two"]);
    mount.swap("2", "two");
    token_arrives(&server, "two").await;
    server.set_tokens(&["two"]);
    load.go_on().await;

    for (n, broken) in [Some(""), Some("\n"), Some("no\u{0}header"), None].into_iter().enumerate() {
        let failed = forebay.metric(RELOADS, &["failed"]).await;
        mount.swap(&format!("broken-{n}"), broken.unwrap_or_default());
        if broken.is_none() {
            std::fs::remove_file(mount.dir.path().join("..data")).unwrap();
        }
        eventually("the broken file is looked at", || async {
            (forebay.metric(RELOADS, &["failed"]).await > failed).then_some(())
        })
        .await;
        load.go_on().await;
    }
    server.set_tokens(&["two", "three"]);
    mount.swap("3", "three\n");
    token_arrives(&server, "three").await;
    server.set_tokens(&["three"]);
    load.go_on().await;
    load.end().await;
}

/// Upstream refuses the old token from one moment to the next, and the new one is in its place: reads don't notice, and
/// a write is refused once at most.
#[tokio::test]
async fn a_refused_token_is_read_anew_at_once() {
    let server = upstream_with_pods(3).await;
    server.set_tokens(&["one"]);
    let mount = Mount::new("one");
    let forebay = Forebay::start(&kubeconfig(&server, &json!({"tokenFile": mount.token()})), &[]).await;
    forebay.wait_cached("/api/v1/pods").await;
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    let client = forebay.client();
    assert_eq!(client.get("/version").await.status, 200);

    // Nobody else's 401 is a reason, nor is there one while the file has no other token.
    let stranger = client.with_credential(Some("Bearer stranger"));
    assert_eq!(stranger.get("/version").await.status, 401);
    assert_eq!(stranger.get("/version").await.status, 401);
    assert_eq!(forebay.metric(RELOADS, &[]).await, 0.0);
    server.set_tokens(&["two"]);
    server.log().clear();
    assert_eq!(client.get("/version").await.status, 401, "the old token is refused, and there is no other");
    assert_eq!(server.log().count(forwarded(any())), 1, "it is not sent again");
    assert!(forebay.metric(RELOADS, &["unchanged"]).await >= 1.0);

    // However lately somebody was refused, a file that has changed is looked at.
    mount.swap("2", "two");
    let (read, log) = (client.get("/version").await, "/api/v1/namespaces/x/pods/a/log");
    assert_eq!(read.status, 200, "{read}");
    assert_eq!(forebay.metric("forebay_upstream_retries_total", &["credential"]).await, 1.0);
    assert_eq!(client.get(log).await.status, 200);

    // A write is passed on as it is answered.
    server.set_tokens(&["three"]);
    let body = json!({"metadata": {"generateName": "a-"}});
    let first = client.write("POST", MAPS, &body).await;
    assert_eq!((first.status, server.log().count(create("configmaps"))), (401, 1), "{first}");
    mount.swap("3", "three");
    eventually("the next write", || async { (client.write("POST", MAPS, &body).await.status == 201).then_some(()) })
        .await;

    // Our own requests take it up as well: no store stops being read.
    server.set_tokens(&["four"]);
    mount.swap("4", "four");
    let watches = server.log().count(own(watch("pods")));
    server.watches("pods").end();
    server.log().wait_count(own(watch("pods")), watches + 1, LIMIT).await.unwrap();
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    server.world().touch("pods", "team-000/app-000000").unwrap();
    assert_eq!(forebay.wait_cached("/api/v1/pods").await.names().len(), 3);
    let ready = forebay.admin("/readyz?verbose").await.text();
    assert!(!ready.contains("refuse"), "{ready}");
}

/// A pair of files that is written one after the other, as certificates are.
fn write_pair(dir: &Path, (certificate, key): &(String, String)) {
    std::fs::write(dir.join("crt"), certificate).unwrap();
    std::fs::write(dir.join("key"), key).unwrap();
}

fn certificate_of(seen: &forebay::testing::Seen) -> &str {
    seen.certificate.as_deref().unwrap_or_default()
}

#[tokio::test]
async fn client_certificates_are_read_anew_and_are_for_nobody_else() {
    let server = upstream_with_pods(3).await;
    let pairs: Vec<_> = ["one", "two", "three"].map(|name| server.client_certificate(name).unwrap()).into();
    server.set_tokens(&["a-token"]);
    server.set_certificates(&["one"]);
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path(), &pairs[0]);
    let user = json!({"client-certificate": dir.path().join("crt"), "client-key": dir.path().join("key")});
    let forebay = Forebay::start(&kubeconfig(&server, &user), &[]).await;
    forebay.wait_cached("/api/v1/pods").await;
    assert!(server.log().matching(own(watch("pods"))).iter().all(|seen| certificate_of(seen) == "one"));

    // Upstream would take the bearer of a certificate for forebay, whatever token comes with it.
    let stranger = forebay.client().with_credential(Some("Bearer stranger"));
    assert_eq!(stranger.get("/api/v1/namespaces/x/secrets").await.status, 401);
    let seen = server.log().matching(forwarded(any())).pop().unwrap();
    assert_eq!((certificate_of(&seen), seen.header("authorization")), ("", "Bearer stranger"));

    let load = Load::start(forebay.client());
    load.go_on().await;
    server.set_certificates(&["one", "two"]);
    write_pair(dir.path(), &pairs[1]);
    arrives(&server, "two", |seen| certificate_of(seen) == "two").await;
    server.set_certificates(&["two"]);
    load.go_on().await;
    // Half of a pair is none.
    let failed = forebay.metric(RELOADS, &["failed"]).await;
    std::fs::write(dir.path().join("crt"), &pairs[2].0).unwrap();
    eventually("half a pair", || async { (forebay.metric(RELOADS, &["failed"]).await > failed).then_some(()) }).await;
    load.go_on().await;
    load.end().await;
}

/// The kubeconfig itself is written anew, as `kubeadm` and cloud tools do; a change of what is none of ours is ignored, and
/// another server in it is another cluster.
#[tokio::test]
async fn a_rewritten_kubeconfig_is_taken_up_unless_it_names_another_server() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let (server, other) = (upstream_with_pods(3).await, upstream(ApiServer::builder()).await);
    let data = |(certificate, key): (String, String)| json!({"client-certificate-data": STANDARD.encode(certificate), "client-key-data": STANDARD.encode(key)});
    let [one, two] = ["one", "two"].map(|name| kubeconfig(&server, &data(server.client_certificate(name).unwrap())));
    server.set_tokens(&["a-token"]);
    server.set_certificates(&["one", "two"]);
    let forebay = Forebay::start(&one, &[]).await;
    let path = forebay.folder().join("upstream");
    forebay.wait_cached("/api/v1/pods").await;
    let load = Load::start(forebay.client());
    load.go_on().await;
    // Someone looks at another context, in between somebody else writes half a file.
    std::fs::write(&path, &two[..two.len() / 2]).unwrap();
    load.go_on().await;
    std::fs::write(&path, two.replace("current-context: scripted", "current-context: elsewhere")).unwrap();
    arrives(&server, "two", |seen| certificate_of(seen) == "two").await;
    server.set_certificates(&["two"]);
    load.go_on().await;
    let failed = forebay.metric(RELOADS, &["failed"]).await;
    std::fs::write(&path, two.replace(&server.url(), &other.url())).unwrap();
    eventually("the other server", || async { (forebay.metric(RELOADS, &["failed"]).await > failed).then_some(()) })
        .await;
    load.go_on().await;
    load.end().await;
    assert_eq!(other.log().total(), 0);
}

/// Upstream's certificate is another authority's from now on. The first to find out is a write, and it is not the worse
/// for it: its handshake is done again.
#[tokio::test]
async fn a_replaced_ca_costs_no_request() {
    let server = upstream_with_pods(3).await;
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, server.ca_pem().unwrap()).unwrap();
    let text = server.kubeconfig_yaml();
    let named: Vec<String> = text
        .lines()
        .map(|line| match line.split_once("certificate-authority-data:") {
            Some((indent, _)) => format!("{indent}certificate-authority: {}", ca.display()),
            None => line.to_owned(),
        })
        .collect();
    let forebay = Forebay::start(&named.join("\n"), &[]).await;
    forebay.wait_cached("/api/v1/pods").await;
    server.replace_ca().unwrap();
    std::fs::write(&ca, server.ca_pem().unwrap()).unwrap();
    let body = json!({"metadata": {"generateName": "a-"}});
    let made = forebay.client().write("POST", MAPS, &body).await;
    assert_eq!((made.status, server.world().len("configmaps")), (201, 1), "{made}");
    assert_eq!(forebay.metric(RELOADS, &["changed"]).await, 1.0);
    // forebay's own connections as well.
    let watches = server.log().count(own(watch("pods")));
    server.reset_connections();
    server.log().wait_count(own(watch("pods")), watches + 1, LIMIT).await.unwrap();

    // A stranger in its place is still one.
    server.replace_ca().unwrap();
    server.reset_connections();
    let refused = || async {
        let made = forebay.client().write("POST", MAPS, &body).await;
        // Until the old connection is known to be gone.
        (made.status == 503).then_some(made)
    };
    let message = eventually("refused", refused).await.status_message(503);
    assert!(message.contains("TLS handshake") && message.contains("nothing was sent"), "{message}");
    assert_eq!(server.world().len("configmaps"), 1);
}

/// A plugin is run again a while before what it gave expires, and when upstream refuses it.
#[tokio::test]
async fn plugins_are_run_again() {
    for expires in [true, false] {
        let server = upstream_with_pods(3).await;
        server.set_tokens(&["one"]);
        let dir = tempfile::tempdir().unwrap();
        let (token, ran) = (dir.path().join("token"), dir.path().join("ran"));
        std::fs::write(&token, "one").unwrap();
        let (ran_file, token_file) = (ran.display(), token.display());
        let script = if expires {
            format!(
                r#"echo >> {ran_file}; until=$(date -u -d '+4 seconds' +%Y-%m-%dT%H:%M:%SZ)
                printf '{{"status":{{"token":"%s","expirationTimestamp":"%s"}}}}' "$(cat {token_file})" "$until""#
            )
        } else {
            format!(r#"echo >> {ran_file}; printf '{{"status":{{"token":"%s"}}}}' "$(cat {token_file})""#)
        };
        let exec = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh",
            "args": ["-c", script],
        }});
        let forebay = Forebay::start(&kubeconfig(&server, &exec), &[]).await;
        forebay.wait_cached("/api/v1/pods").await;
        let runs = || std::fs::read_to_string(&ran).unwrap().lines().count();
        assert_eq!(runs(), 1, "once for everything");
        if expires {
            let load = Load::start(forebay.client());
            server.set_tokens(&["one", "two"]);
            std::fs::write(&token, "two").unwrap();
            token_arrives(&server, "two").await;
            load.end().await;
        } else {
            server.set_tokens(&["two"]);
            std::fs::write(&token, "two").unwrap();
            let read = forebay.client().get("/version").await;
            assert_eq!((read.status, runs()), (200, 2), "{read}");
            // However many are refused, it is left in peace for a while.
            server.set_tokens(&["three"]);
            for _ in 0..20 {
                assert_eq!(forebay.client().get("/version").await.status, 401);
            }
            assert_eq!(runs(), 2);
        }
    }
}
