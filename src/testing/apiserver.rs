//! The server: a listener, its connections, and the handle tests hold.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    connection::{self, Acceptor, Connection, Connections},
    log::RequestLog,
    matching::Match,
    resource::Resource,
    script::{On, Script},
    service::Shared,
    tls::{ClientCa, Identity, TlsError},
    watch::{Registry, Watches},
    world::World,
};

/// A scripted kube-apiserver on a port of 127.0.0.1. It stops when dropped.
pub struct ApiServer {
    shared: Arc<Shared>,
    addr: SocketAddr,
    /// None without TLS.
    security: Option<Box<Security>>,
    names: Names,
    connections: Connections,
    stop: CancellationToken,
}

/// What makes connections secure.
struct Security {
    ca_pem: RwLock<String>,
    clients: ClientCa,
    alpn: Vec<&'static str>,
    acceptor: Acceptor,
}

/// Options of a server, with the defaults of a real one.
#[must_use]
pub struct Builder {
    resources: Vec<Resource>,
    settings: Settings,
    names: Names,
    token: String,
    tls: bool,
    alpn: Vec<&'static str>,
    history: usize,
    keep_requests: usize,
}

/// The server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No port on 127.0.0.1.
    #[error("cannot listen on 127.0.0.1: {0}")]
    Listen(#[from] io::Error),
    /// No certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What answering needs to know.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) user: String,
    pub(super) watch_list: bool,
    pub(super) aggregated_discovery: bool,
    pub(super) bookmark_every: Duration,
}

#[derive(Clone)]
struct Names {
    context: String,
    cluster: String,
    user: String,
    namespace: Option<String>,
}

// === impl ApiServer ===

impl ApiServer {
    /// A builder with the usual resources, TLS, HTTP/1.1 and HTTP/2, and a random token.
    pub fn builder() -> Builder {
        let token = format!("test-{:032x}", rand::random::<u128>());
        Builder {
            resources: Resource::usual(),
            settings: Settings {
                user: "system:serviceaccount:default:forebay".to_owned(),
                watch_list: true,
                aggregated_discovery: true,
                bookmark_every: Duration::ZERO,
            },
            names: Names {
                context: "scripted".to_owned(),
                cluster: "scripted".to_owned(),
                user: "scripted".to_owned(),
                namespace: None,
            },
            token,
            tls: true,
            alpn: vec!["h2", "http/1.1"],
            history: 4_096,
            keep_requests: 100_000,
        }
    }

    /// The objects behind it.
    pub fn world(&self) -> &World {
        &self.shared.world
    }

    /// Begins a rule for requests that `matches` accepts.
    pub fn on(&self, matches: Match) -> On {
        self.shared.script.on(matches)
    }

    /// Removes every rule. What is already held stays held.
    pub fn clear_rules(&self) {
        self.shared.script.clear();
    }

    /// Every request seen.
    pub fn log(&self) -> &RequestLog {
        &self.shared.log
    }

    /// The open watches of a resource.
    pub fn watches(&self, resource: &str) -> Watches {
        Watches::new(self.shared.watches.clone(), resource)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `https://127.0.0.1:PORT`, or `http://` without TLS.
    pub fn url(&self) -> String {
        let scheme = if self.security.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.addr)
    }

    /// The certificate authority clients must trust; `None` without TLS.
    pub fn ca_pem(&self) -> Option<String> {
        self.security.as_ref().map(|security| security.ca_pem.read().clone())
    }

    /// From the next connection on, the server's certificate is another authority's.
    ///
    /// # Errors
    /// [`TlsError`]: no certificate.
    pub fn replace_ca(&self) -> Result<(), TlsError> {
        if let Some(Security { ca_pem, clients, alpn, acceptor }) = self.security.as_deref() {
            let identity = Identity::new(alpn, clients)?;
            *acceptor.write() = Some(TlsAcceptor::from(identity.config));
            *ca_pem.write() = identity.ca_pem;
        }
        Ok(())
    }

    /// A certificate that names a client, and its key, both PEM. It is let in by [`ApiServer::set_certificates`].
    ///
    /// # Errors
    /// [`TlsError`]: no certificate.
    pub fn client_certificate(&self, name: &str) -> Result<(String, String), TlsError> {
        let Some(security) = &self.security else { return Ok((String::new(), String::new())) };
        let issued = security.clients.issue(name)?;
        self.shared.issued.write().push((issued.der, name.to_owned()));
        Ok((issued.pem, issued.key_pem))
    }

    /// Lets the clients with these certificates in, besides those with a token.
    pub fn set_certificates(&self, names: &[&str]) {
        *self.shared.certificates.write() = names.iter().map(|&name| name.to_owned()).collect();
    }

    /// The newest accepted bearer token; empty if none is required.
    pub fn token(&self) -> String {
        self.shared.tokens.read().last().cloned().unwrap_or_default()
    }

    /// Accepts exactly these tokens from now on; none at all: every request is let in.
    pub fn set_tokens(&self, tokens: &[&str]) {
        *self.shared.tokens.write() = tokens.iter().map(|&t| t.to_owned()).collect();
    }

    /// A kubeconfig for this server, with the names given to the builder.
    pub fn kubeconfig_yaml(&self) -> String {
        self.kubeconfig_yaml_via(&self.url())
    }

    /// The same kubeconfig with another server URL, for instance a gate in front.
    pub fn kubeconfig_yaml_via(&self, url: &str) -> String {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let Names { context, cluster, user, namespace } = &self.names;
        let ca = match &self.ca_pem() {
            Some(pem) => format!("    certificate-authority-data: {}\n", STANDARD.encode(pem)),
            None => String::new(),
        };
        let namespace = namespace.as_ref().map(|ns| format!("    namespace: {ns}\n")).unwrap_or_default();
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {context}\n\
             clusters:\n- name: {cluster}\n  cluster:\n    server: {url}\n{ca}\
             contexts:\n- name: {context}\n  context:\n    cluster: {cluster}\n    user: {user}\n{namespace}\
             users:\n- name: {user}\n  user:\n    token: {}\n",
            self.token()
        )
    }

    /// Writes the kubeconfig to `dir/kubeconfig` and returns the path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig(&self, dir: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = dir.as_ref().join("kubeconfig");
        std::fs::write(&path, self.kubeconfig_yaml())?;
        Ok(path)
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// How many connections were accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.connections.accepted()
    }

    /// Resets every open connection (RST).
    pub fn reset_connections(&self) {
        self.connections.each(Connection::reset);
    }

    /// Asks every open connection to finish: GOAWAY on HTTP/2, `Connection: close` on HTTP/1.1.
    pub fn go_away(&self) {
        self.connections.each(Connection::go_away);
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl Builder ===

impl Builder {
    /// Serves these resources only, instead of the usual ones.
    pub fn resources(mut self, resources: Vec<Resource>) -> Self {
        self.resources = resources;
        self
    }

    /// Serves one more resource.
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resources.push(resource);
        self
    }

    /// Names of context, cluster and user in the kubeconfig.
    pub fn names(mut self, context: &str, cluster: &str, user: &str) -> Self {
        let namespace = self.names.namespace.take();
        self.names =
            Names { context: context.to_owned(), cluster: cluster.to_owned(), user: user.to_owned(), namespace };
        self
    }

    /// Namespace of the context in the kubeconfig.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.names.namespace = Some(namespace.to_owned());
        self
    }

    /// The bearer token clients must send; empty: none is required.
    pub fn token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// The user name in 403 messages.
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.settings.user);
        self
    }

    /// Plain HTTP/1.1 without TLS.
    pub fn plain_http(mut self) -> Self {
        self.tls = false;
        self
    }

    /// TLS with HTTP/1.1 only.
    pub fn http1_only(mut self) -> Self {
        self.alpn = vec!["http/1.1"];
        self
    }

    /// Streaming lists off, as on servers before 1.32: `sendInitialEvents` is answered with 422.
    pub fn without_watch_list(mut self) -> Self {
        self.settings.watch_list = false;
        self
    }

    /// Plain discovery only, as on servers before 1.26.
    pub fn without_aggregated_discovery(mut self) -> Self {
        self.settings.aggregated_discovery = false;
        self
    }

    /// Sends bookmarks at this interval to watches that ask for them. Without it they come on request only
    /// ([`World::bookmark`]), so that tests stay in charge.
    pub fn bookmark_every(mut self, interval: Duration) -> Self {
        self.settings.bookmark_every = interval;
        self
    }

    /// How many changes are kept per resource, for watches and exact reads.
    pub fn history(mut self, changes: usize) -> Self {
        self.history = changes;
        self
    }

    /// How many requests the log keeps; 0 for benches that only need the total.
    pub fn keep_requests(mut self, requests: usize) -> Self {
        self.keep_requests = requests;
        self
    }

    /// Binds a port and starts serving on the current runtime.
    ///
    /// # Errors
    /// [`StartError`]: no port, or no certificate.
    pub async fn start(self) -> Result<ApiServer, StartError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let acceptor = Acceptor::default();
        let mut security = None;
        if self.tls {
            let clients = ClientCa::new()?;
            let identity = Identity::new(&self.alpn, &clients)?;
            *acceptor.write() = Some(TlsAcceptor::from(identity.config));
            let (ca_pem, acceptor) = (RwLock::new(identity.ca_pem), acceptor.clone());
            security = Some(Box::new(Security { ca_pem, clients, alpn: self.alpn, acceptor }));
        }
        let tokens = if self.token.is_empty() { Vec::new() } else { vec![self.token] };
        let shared = Arc::new(Shared {
            world: World::new(self.resources, self.history),
            script: Script::default(),
            log: RequestLog::new(self.keep_requests),
            watches: Registry::default(),
            settings: self.settings,
            tokens: RwLock::new(tokens),
            certificates: RwLock::default(),
            issued: RwLock::default(),
            address: addr.to_string(),
        });
        let (stop, connections) = (CancellationToken::new(), Connections::default());
        let serving = connection::accept(listener, acceptor, shared.clone(), connections.clone(), stop.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(serving));
        Ok(ApiServer { shared, addr, security, names: self.names, connections, stop })
    }
}
