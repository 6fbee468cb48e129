//! Each way of being given something unusable at the start: one line that says what, where and what to do, exit code 1,
//! and no secret in it.

use std::{net::TcpListener, path::Path};

use crate::child::{Process, unreachable};

/// A folder for one test's files, and the kubeconfig they vary.
struct Files {
    dir: tempfile::TempDir,
    good: String,
}

// === impl Files ===

impl Files {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), good: unreachable() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a kubeconfig and gives its path.
    fn write(&self, text: &str) -> String {
        let path = tempfile::Builder::new().tempfile_in(self.path()).unwrap().into_temp_path().keep().unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The good one with other credentials.
    fn user(&self, user: &str) -> String {
        self.write(&self.good.replace("token: t", user))
    }

    /// The good one with something more about the cluster.
    fn cluster(&self, extra: &str) -> String {
        self.write(&self.good.replace("cluster: {server", &format!("cluster: {{{extra}, server")))
    }

    /// The good one with an exec plugin.
    fn plugin(&self, script: &str) -> String {
        let api = "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never";
        self.user(&format!("exec: {{{api}, command: sh, args: [-c, '{script}']}}"))
    }

    /// Starts with this kubeconfig and these flags; the error line must have all of `wants`.
    async fn fails(&self, kubeconfig: &str, flags: &[&str], wants: &[&str]) {
        let own = self.path().join("own").display().to_string();
        let mut args = vec!["run".to_owned(), format!("--kubeconfig={kubeconfig}")];
        for (name, value) in [("--secure-port", "0"), ("--admin-address", "127.0.0.1:0"), ("--write-kubeconfig", &own)]
        {
            if !flags.iter().any(|flag| flag.starts_with(name)) {
                args.push(format!("{name}={value}"));
            }
        }
        let args: Vec<&str> = args.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let ended = Process::start(&args, &[]).end().await;
        let error = ended.error();
        for want in wants {
            assert!(error.contains(want), "{flags:?} {kubeconfig}: {want:?} is not in {error}");
        }
        assert!(!ended.stderr.contains("s3cret") && ended.stdout.is_empty(), "{ended:?}");
    }
}

#[tokio::test]
async fn kubeconfigs_that_cannot_be_read() {
    let files = Files::new();
    files.fails("/nonexistent/config", &[], &["/nonexistent/config", "No such file"]).await;
    files.fails(&files.path().display().to_string(), &[], &["directory"]).await;
    files.fails(&files.write("clusters: [oops: {token: s3cret"), &[], &["upstream kubeconfig"]).await;
    files.fails(&files.write("just s3cret text"), &[], &["upstream kubeconfig"]).await;
    files.fails(&files.write(""), &[], &["no current-context"]).await;
    files.fails(&files.write(&files.good), &["--context=prod"], &["no context \"prod\"", "[\"c\"]"]).await;
}

#[tokio::test]
async fn clusters_that_cannot_be_used() {
    let files = Files::new();
    files.fails(&files.write(&files.good.replace("https://", "::")), &[], &["upstream kubeconfig"]).await;
    for (extra, want) in [
        ("certificate-authority: /none/ca", "/none/ca"),
        ("certificate-authority-data: bm9wZQ==", "certificate-authority has no certificate"),
        ("certificate-authority-data: '!'", "upstream"),
        ("proxy-url: 'ftp://127.0.0.1:1'", "proxy-url"),
        ("proxy-url: 'https://127.0.0.1:1'", "proxy-url"),
        ("tls-server-name: 'not a name'", "tls-server-name"),
    ] {
        files.fails(&files.cluster(extra), &[], &[want]).await;
    }
}

#[tokio::test]
async fn credentials_that_cannot_be_had() {
    let files = Files::new();
    files.fails(&files.user("tokenFile: /none/token"), &[], &["/none/token", "No such file"]).await;
    files.fails(&files.user("client-certificate: /none/crt, client-key: /none/key"), &[], &["/none/"]).await;
    files.fails(&files.plugin("echo s3cret >&2; exit 3"), &[], &["sh: exec plugin failed with exit status: 3"]).await;
    files.fails(&files.plugin("echo s3cret"), &[], &["exec plugin printed no ExecCredential"]).await;
    let missing = files
        .user("exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /none/plugin}");
    files.fails(&missing, &[], &["/none/plugin"]).await;
}

#[tokio::test]
async fn places_that_are_not_ours() {
    let files = Files::new();
    let good = files.write(&files.good);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (proxy, admin) = (format!("--secure-port={port}"), format!("--admin-address=127.0.0.1:{port}"));
    files.fails(&good, &[&proxy], &[&format!("127.0.0.1:{port}"), "--secure-port"]).await;
    files.fails(&good, &[&admin], &[&format!("127.0.0.1:{port}"), "--admin-address"]).await;
    files.fails(&good, &["--write-kubeconfig=/proc/none/kubeconfig"], &["/proc/none"]).await;
    // That is a mistake in what was asked for: 2.
    let args = ["run", "--kubeconfig", &good, "--write-kubeconfig", &good];
    let ended = Process::start(&args, &[]).end().await;
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{ended:?}");
    assert!(ended.stderr.contains(&good) && ended.stderr.contains("overwrite"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(&good).unwrap(), files.good, "upstream's kubeconfig is left alone");
}
