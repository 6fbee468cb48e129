//! A real control plane: etcd and one or more kube-apiservers on kernel-chosen loopback ports.
//!
//! TLS by a CA of its own, token users (`users`), RBAC, an audit log at Metadata level (`audit`). No controllers, no
//! kubelet: pods stay pending, deleted namespaces stay terminating. Tests share one, and start their own only to break it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::json;
use tokio::time::Instant;

use crate::audit::{self, Audit};
use crate::build;
use crate::client::{self, HttpClient, Protocol};
use crate::fixtures;
use crate::process::{Process, Scratch};
use crate::users::{self, Role, User, Users};

/// From a start of the processes to a green `/readyz`. A busy two-core machine takes some 10 s.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// What a control plane can differ in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// How often etcd's history is compacted; kube-apiserver's own default is five minutes.
    pub(crate) compaction_interval: Option<Duration>,
    /// API servers on the one etcd; 0 is 1.
    pub(crate) apiservers: usize,
    /// Further flags for kube-apiserver.
    pub(crate) flags: Vec<String>,
}

/// A running control plane. Dropping it stops it; so does any end of the test process.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    servers: Vec<Server>,
    users: Users,
    audit: Audit,
    ca: String,
    names: AtomicUsize,
    // Fields drop in order: the servers above go before etcd, and the folder goes last.
    etcd: Process,
    etcd_command: Command,
    etcd_url: String,
    scratch: Scratch,
}

#[derive(Debug)]
struct Server {
    process: Process,
    url: String,
    command: Command,
}

/// What an API server was started with.
#[derive(Debug)]
struct Command {
    name: String,
    dir: PathBuf,
    program: PathBuf,
    args: Vec<String>,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// The control plane of this test binary, started by the first test that wants it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
        // A failure is kept as well: the other tests need not wait for it again.
        match SHARED.get_or_init(|| Self::start(Options::default())) {
            Ok(shared) => shared,
            Err(why) => panic!("{why}"),
        }
    }

    /// Starts one for a single test and blocks until it is ready.
    pub(crate) fn start(options: Options) -> Result<Self, String> {
        // On a thread of its own, because the caller may be inside an async runtime.
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
            runtime.block_on(Self::start_all(&options))
        })
        .join()
        .unwrap_or_else(|_| Err("the control plane did not start, see the panic above".to_owned()))
    }

    async fn start_all(options: &Options) -> Result<Self, String> {
        let (etcd, kube_apiserver) = (build::ETCD.path()?, build::KUBE_APISERVER.path()?);
        let scratch = Scratch::new().map_err(|e| format!("cannot make a scratch folder: {e}"))?;
        let dir = scratch.path();
        let ca = write_keys(dir);
        let (etcd, etcd_command, etcd_url) = start_etcd(&etcd, dir)?;
        let mut servers = Vec::new();
        for n in 0..options.apiservers.max(1) {
            servers.push(start_apiserver(&kube_apiserver, dir, n, &etcd_url, options, &ca).await?);
        }
        let audit = Audit::new((0..servers.len()).map(|n| audit_log(dir, n)).collect());
        let plane = Self {
            servers,
            users: Users::default(),
            audit,
            ca,
            names: AtomicUsize::new(0),
            etcd,
            etcd_command,
            etcd_url,
            scratch,
        };
        let rig = plane.client(&Users::rig()).with_user_agent("rig");
        users::install(&rig).await;
        fixtures::install_custom_resources(&rig).await;
        Ok(plane)
    }

    /// A user that no other test has.
    pub(crate) fn user(&self, role: Role) -> User {
        self.users.take(role)
    }

    /// `https://127.0.0.1:PORT` of the first API server.
    pub(crate) fn url(&self) -> &str {
        &self.servers[0].url
    }

    /// `https://127.0.0.1:PORT` of the n-th API server.
    pub(crate) fn url_of(&self, n: usize) -> &str {
        &self.servers[n].url
    }

    /// The CA of the API servers, in PEM.
    pub(crate) fn ca(&self) -> &str {
        &self.ca
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// A folder for the test's own files, which goes with the control plane.
    pub(crate) fn dir(&self) -> PathBuf {
        let dir = self.scratch.path().join(self.unique("dir"));
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    /// A client that talks straight to the first API server.
    pub(crate) fn client(&self, user: &User) -> HttpClient {
        HttpClient::tls(self.url(), &self.ca, Some(&user.token))
    }

    /// As `client`, offering this protocol only.
    pub(crate) async fn client_over(&self, user: &User, protocol: Protocol) -> HttpClient {
        HttpClient::from_kubeconfig(&self.kubeconfig(user), protocol).await
    }

    /// A kubeconfig file for the user and the first API server.
    pub(crate) fn kubeconfig(&self, user: &User) -> PathBuf {
        self.kubeconfig_to(user, self.url())
    }

    /// A kubeconfig file for the user and another address of the API server, such as a gate in front of it.
    pub(crate) fn kubeconfig_to(&self, user: &User, url: &str) -> PathBuf {
        let path = self.scratch.path().join(format!("{}.kubeconfig", self.unique(&user.name)));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "real", "cluster": {"server": url, "certificate-authority-data": client::base64(&self.ca)}}],
            "contexts": [{"name": "test", "context": {"cluster": "real", "user": user.name, "namespace": "default"}}],
            "users": [{"name": user.name, "user": {"token": user.token}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Creates a namespace of the test's own. (They are never deleted: nothing here would empty them.)
    pub(crate) async fn namespace(&self, prefix: &str) -> String {
        let name = self.unique(prefix);
        let admin = self.client(&Users::rig()).with_user_agent("rig");
        admin.post("/api/v1/namespaces", &users::object("v1", "Namespace", &name, json!({}))).await;
        name
    }

    /// A name that no other test has.
    pub(crate) fn unique(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Kills the first API server and starts it again at the same address; returns once it is ready.
    pub(crate) async fn restart_apiserver(&mut self) {
        let server = &mut self.servers[0];
        server.process.kill();
        server.process = server.command.start().unwrap();
        assert!(server.ready(&self.ca).await.unwrap(), "the port of kube-apiserver was taken while it was away");
    }

    /// Kills the first API server and starts it again after a while.
    pub(crate) async fn lose_apiserver(&mut self, away: Duration) {
        self.servers[0].process.kill();
        tokio::time::sleep(away).await;
        self.restart_apiserver().await;
    }

    /// Kills etcd and starts it again after a while. What it has confirmed it keeps.
    pub(crate) async fn lose_etcd(&mut self, away: Duration) {
        self.etcd.kill();
        tokio::time::sleep(away).await;
        self.etcd = self.etcd_command.start().unwrap();
    }

    /// Where the n-th API server listens.
    pub(crate) fn address_of(&self, n: usize) -> SocketAddr {
        address(&self.servers[n].url)
    }

    /// Where etcd listens for API servers.
    pub(crate) fn etcd_address(&self) -> SocketAddr {
        address(&self.etcd_url)
    }

    /// One more API server, on an etcd address of the caller's choice, such as a gate.
    pub(crate) async fn add_apiserver(&mut self, etcd: &str) {
        let (program, n) = (build::KUBE_APISERVER.path().unwrap(), self.servers.len());
        let started = start_apiserver(&program, self.scratch.path(), n, etcd, &Options::default(), &self.ca).await;
        self.servers.push(started.unwrap());
    }

    /// Pids of etcd and of the API servers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        std::iter::once(&self.etcd).chain(self.servers.iter().map(|s| &s.process)).filter_map(Process::pid).collect()
    }

    pub(crate) fn scratch_path(&self) -> &Path {
        self.scratch.path()
    }
}

/// From a URL with an address and a port.
fn address(url: &str) -> SocketAddr {
    url.rsplit('/').next().unwrap().parse().unwrap()
}

fn audit_log(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("audit-{n}.log"))
}

/// Writes CA, serving certificate, service account key, token file and audit policy; returns the CA in PEM.
fn write_keys(dir: &Path) -> String {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    ca.distinguished_name.push(DnType::CommonName, "forebay test CA");
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let tokens = KeyPair::generate().unwrap();
    let names = ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(str::to_owned);
    let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &Issuer::from_params(&ca, &ca_key)).unwrap();
    for (file, text) in [
        ("tls.crt", leaf.pem()),
        ("tls.key", key.serialize_pem()),
        ("sa.key", tokens.serialize_pem()),
        ("sa.pub", tokens.public_key_pem()),
        ("tokens.csv", Users::token_file()),
        ("audit-policy.yaml", audit::POLICY.to_owned()),
    ] {
        std::fs::write(dir.join(file), text).unwrap();
    }
    ca_pem
}

fn start_etcd(program: &Path, dir: &Path) -> Result<(Process, Command, String), String> {
    let (client, peer) = (format!("http://127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
    let data = dir.join("etcd");
    let args = [
        "--name=test".to_owned(),
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=test={peer}"),
        // The data need not survive a power cut.
        "--unsafe-no-fsync".to_owned(),
        "--quota-backend-bytes=8589934592".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    let (name, dir, program) = ("etcd".to_owned(), dir.to_owned(), program.to_owned());
    let command = Command { name, dir, program, args: args.to_vec() };
    Ok((command.start()?, command, client))
}

async fn start_apiserver(
    program: &Path,
    dir: &Path,
    n: usize,
    etcd: &str,
    options: &Options,
    ca: &str,
) -> Result<Server, String> {
    // A port is free when it is looked up, and may be taken by the time the server binds it: hence the second tries.
    for _ in 0..3 {
        let port = free_port();
        let file = |name: &str| dir.join(name).display().to_string();
        let mut args = vec![
            format!("--etcd-servers={etcd}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
            format!("--tls-cert-file={}", file("tls.crt")),
            format!("--tls-private-key-file={}", file("tls.key")),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            // Pods can be created although no controller makes service accounts.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--audit-policy-file={}", file("audit-policy.yaml")),
            format!("--audit-log-path={}", audit_log(dir, n).display()),
            // Megabytes; the default would rotate the file away under the reader.
            "--audit-log-maxsize=4000".to_owned(),
            "--shutdown-delay-duration=0s".to_owned(),
        ];
        args.extend(
            options.compaction_interval.map(|every| format!("--etcd-compaction-interval={}ms", every.as_millis())),
        );
        args.extend(options.flags.iter().cloned());
        let name = format!("kube-apiserver-{n}");
        let command = Command { name, dir: dir.to_owned(), program: program.to_owned(), args };
        let mut server = Server { process: command.start()?, url: format!("https://127.0.0.1:{port}"), command };
        if server.ready(ca).await? {
            return Ok(server);
        }
    }
    Err("kube-apiserver: three ports in a row were taken by others".to_owned())
}

// === impl Command ===

impl Command {
    fn start(&self) -> Result<Process, String> {
        let Self { name, dir, program, args } = self;
        Process::start(name, dir, program, args, &[]).map_err(|e| format!("cannot start {name}: {e}"))
    }
}

// === impl Server ===

impl Server {
    /// Waits for `/readyz`; false when the port turned out to be taken.
    async fn ready(&mut self, ca: &str) -> Result<bool, String> {
        let client = HttpClient::tls(&self.url, ca, Some(&Users::rig().token)).with_user_agent("rig");
        let deadline = Instant::now() + START_DEADLINE;
        let mut last = String::new();
        while Instant::now() < deadline {
            if self.process.exited().is_some() {
                if self.process.log().contains("address already in use") {
                    return Ok(false);
                }
                return Err(format!("kube-apiserver ended: {}", self.process.log_tail(5)));
            }
            match client.try_request(http::Method::GET, "/readyz?verbose", &[], "").await {
                Ok(answer) if answer.status.is_success() => return Ok(true),
                Ok(answer) => last = String::from_utf8_lossy(&answer.body).into_owned(),
                Err(error) => last = error,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(format!("kube-apiserver is not ready after {START_DEADLINE:?}: {last}\n{}", self.process.log_tail(10)))
    }
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).unwrap().port()
}
