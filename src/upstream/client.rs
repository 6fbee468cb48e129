//! HTTP to upstream, in three kinds that never share a connection:
//!
//! - `forward`: HTTP/1.1 under forebay's identity, for what clients send. A connection per request in flight: upgrades
//!   work, no stream cap, and a slow reader holds up nobody else.
//! - `verbatim`: the same without our credential, for callers that bring their own.
//! - `bulk`: HTTP/2 with pings, for our own lists, watches and probes. A few connections, because an API server caps
//!   the streams of one (100 by default) and the pool never opens a second by itself.
//!
//! Redirects are never followed, nothing is retried here, bodies stream both ways.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, Uri,
    header::{ACCEPT, USER_AGENT},
    uri::{Authority, Scheme},
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::ConfigExt;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::time::timeout;
use tower::{ServiceExt, util::BoxCloneSyncService};

use super::{
    Error,
    connect::Dial,
    identity::Identity,
    liveness::{Listening, Reach},
};

/// Any error, as bodies and services give it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body: none, or a client's own, streamed.
#[derive(Debug)]
pub enum RequestBody {
    /// Nothing.
    Empty,
    /// What the client sends.
    Stream(Incoming),
}

type Pool = legacy::Client<Listening<HttpsConnector<Dial>>, RequestBody>;
type Lane = BoxCloneSyncService<Request<RequestBody>, Response<Incoming>, BoxError>;

/// Connections for our own lists and watches. Four hold some 400 watches where upstream allows 100 streams each.
const BULK_CONNECTIONS: usize = 4;

/// A ping is due after a silence of at most this, and ends the connection when it is not answered within the timeout:
/// half-open links are found within 15 s.
const PING_INTERVAL: Duration = Duration::from_secs(3);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(8);

/// Below the 90 s for which a Go server's peers keep idle connections, so that we close first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Upstream may answer with many `Warning` lines; hyper's default is 100 headers.
const MAX_HEADERS: usize = 1024;

/// What is read of an answer that should be small (discovery, probes, error statuses).
const SMALL_ANSWER: usize = 32 << 20;

const OWN_USER_AGENT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// Requests to upstream. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// What a client is built with.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Longest wait for a TCP connection.
    pub connect_timeout: Duration,
    /// Longest wait for the head of an answer to a request of our own.
    pub answer_timeout: Duration,
    /// A quiet connection is pinged several times within this.
    pub max_staleness: Duration,
}

struct Inner {
    scheme: Scheme,
    authority: Authority,
    host: HeaderValue,
    /// Path of the server URL, without a trailing slash: `/k8s/clusters/c-1`.
    prefix: String,
    forward: Lane,
    verbatim: Pool,
    bulk: Vec<Lane>,
    answer_timeout: Duration,
    reach: Reach,
}

// === impl Client ===

impl Client {
    /// Builds the pools. Runs exec plugins and reads token files, so it may block: call it off the runtime's workers.
    pub fn new(identity: &Identity, options: ClientOptions) -> Result<Self, super::identity::Error> {
        let config = &identity.config;
        let dial = Dial::new(config.proxy_url.as_ref(), options.connect_timeout)
            .map_err(|message| super::identity::Error::Proxy { message })?;
        let url = config.cluster_url.clone().into_parts();
        let (Some(scheme), Some(authority)) = (url.scheme, url.authority) else {
            return Err(super::identity::Error::Server { url: config.cluster_url.to_string() });
        };
        let prefix = url.path_and_query.map_or(String::new(), |path| path.path().trim_end_matches('/').to_owned());
        let host = HeaderValue::try_from(authority.as_str().rsplit('@').next().unwrap_or_default())
            .map_err(|_| super::identity::Error::Server { url: config.cluster_url.to_string() })?;
        // Each of these may run an exec plugin, which may take a second or ask a person: once for all lanes.
        let unusable = |error| super::identity::Error::credentials(config, &error);
        let tls = config.rustls_client_config().map_err(|error| super::identity::Error::tls(config, &error))?;
        let auth = config.auth_layer().map_err(unusable)?;
        // Impersonation that the kubeconfig itself asks for (`as`).
        let extra = config.extra_headers_layer().map_err(unusable)?;
        let server_name = server_name(config)?;
        let reach = Reach::new();
        let ping = PING_INTERVAL.min(options.max_staleness / 3);
        let one = |protocols| pool(tls.clone(), server_name.clone(), &dial, protocols, &reach, ping);
        let own = |pool: Pool| -> Lane {
            let service = tower::ServiceBuilder::new()
                .layer(&extra)
                .option_layer(auth.as_ref())
                .map_err(|error: tower::BoxError| error)
                .service(pool.map_err(BoxError::from));
            BoxCloneSyncService::new(service)
        };
        // Plain text upstreams speak HTTP/1.1 only: there is no ALPN to ask.
        let bulk = if scheme == Scheme::HTTP { Protocols::Http1 } else { Protocols::Best };
        let inner = Inner {
            host,
            prefix,
            forward: own(one(Protocols::Http1)),
            verbatim: one(Protocols::Http1),
            bulk: (0..BULK_CONNECTIONS).map(|_| own(one(bulk))).collect(),
            answer_timeout: options.answer_timeout,
            scheme,
            authority,
            reach: reach.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether upstream can be reached.
    pub fn reach(&self) -> &Reach {
        &self.inner.reach
    }

    /// Sends a client's request on; the URI's path and query reach upstream byte for byte. With `own_identity` forebay's
    /// credential replaces whatever `Authorization` the request has.
    pub async fn forward(
        &self,
        mut request: Request<RequestBody>,
        own_identity: bool,
    ) -> Result<Response<Incoming>, BoxError> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = self.uri(path)?;
        request.headers_mut().insert(http::header::HOST, self.inner.host.clone());
        *request.version_mut() = http::Version::HTTP_11;
        if own_identity {
            self.inner.forward.clone().oneshot(request).await
        } else {
            self.inner.verbatim.request(request).await.map_err(Into::into)
        }
    }

    /// Asks upstream for something of our own, on the connection that `lane` hashes to, and gives the answer once its
    /// head is a success; error statuses become [`Error::Status`].
    pub(crate) async fn get(
        &self,
        what: &'static str,
        lane: &impl std::hash::Hash,
        path: &str,
        accept: &'static str,
    ) -> Result<Response<Incoming>, Error> {
        let request = Request::get(self.uri(path).map_err(Error::transport(what))?)
            .header(ACCEPT, accept)
            .header(USER_AGENT, OWN_USER_AGENT)
            .body(RequestBody::Empty)
            .map_err(|error| Error::Transport { what, source: error.into() })?;
        let lanes = &self.inner.bulk;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(lane) as usize;
        let service = lanes[hash % lanes.len()].clone();
        let after = self.inner.answer_timeout;
        let response = match timeout(after, service.oneshot(request)).await {
            Ok(answered) => answered.map_err(Error::transport(what))?,
            Err(_) => return Err(Error::Timeout { what, after }),
        };
        if response.status().is_success() { Ok(response) } else { Err(refusal(what, response).await) }
    }

    /// As [`Self::get`], with the whole body, which must be small.
    pub(crate) async fn get_all(
        &self,
        what: &'static str,
        lane: &impl std::hash::Hash,
        path: &str,
        accept: &'static str,
    ) -> Result<(http::response::Parts, Bytes), Error> {
        let (parts, body) = self.get(what, lane, path, accept).await?.into_parts();
        let after = self.inner.answer_timeout;
        match timeout(after, Limited::new(body, SMALL_ANSWER).collect()).await {
            Ok(Ok(body)) => Ok((parts, body.to_bytes())),
            Ok(Err(source)) => Err(Error::Transport { what, source }),
            Err(_) => Err(Error::Timeout { what, after }),
        }
    }

    fn uri(&self, path_and_query: &str) -> Result<Uri, BoxError> {
        let path = if self.inner.prefix.is_empty() {
            path_and_query.try_into()?
        } else {
            format!("{}{path_and_query}", self.inner.prefix).try_into()?
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.inner.scheme.clone());
        parts.authority = Some(self.inner.authority.clone());
        parts.path_and_query = Some(path);
        Ok(Uri::from_parts(parts)?)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("authority", &self.inner.authority).finish_non_exhaustive()
    }
}

// === impl RequestBody ===

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Stream(incoming) => Pin::new(incoming).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Stream(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Stream(incoming) => incoming.size_hint(),
        }
    }
}

#[derive(Clone, Copy)]
enum Protocols {
    Http1,
    Best,
}

/// The name upstream's certificate must be for, where it is not that of the URL.
fn server_name(config: &kube::Config) -> Result<Option<ServerName<'static>>, super::identity::Error> {
    let Some(name) = config.tls_server_name.clone() else { return Ok(None) };
    ServerName::try_from(name.clone()).map(Some).map_err(|_| super::identity::Error::ServerName { name })
}

fn pool(
    tls: ClientConfig,
    server_name: Option<ServerName<'static>>,
    dial: &Dial,
    protocols: Protocols,
    reach: &Reach,
    ping: Duration,
) -> Pool {
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = server_name {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = match protocols {
        Protocols::Http1 => builder.enable_http1().wrap_connector(dial.clone()),
        Protocols::Best => builder.enable_all_versions().wrap_connector(dial.clone()),
    };
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(64)
        .set_host(false)
        .http1_max_headers(MAX_HEADERS)
        .http2_initial_stream_window_size(4 << 20)
        .http2_initial_connection_window_size(16 << 20)
        .http2_max_frame_size(256 << 10)
        .http2_max_header_list_size(1 << 20)
        .http2_keep_alive_interval(ping)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(Listening::new(connector, reach.clone()))
}

/// Turns an error answer into an error: the message of its Status, or the start of whatever else came.
async fn refusal(what: &'static str, response: Response<Incoming>) -> Error {
    #[derive(serde::Deserialize)]
    struct Message {
        message: String,
    }
    let (parts, body) = response.into_parts();
    let retry_after = parts
        .headers
        .get(http::header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let read = timeout(Duration::from_secs(5), Limited::new(body, 64 << 10).collect()).await;
    let body = match read {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    let message = match serde_json::from_slice::<Message>(&body) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
    };
    let message = message.chars().take(300).collect();
    Error::Status { what, code: parts.status.as_u16(), message, retry_after }
}
