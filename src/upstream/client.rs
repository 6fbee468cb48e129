//! Requests to upstream: clients' own, passed on, and ours. Every one is counted here, and only here.
//!
//! Redirects are never followed, bodies stream both ways. A request is sent a second time in two cases only, and only
//! a GET or HEAD without a body that asks for no upgrade:
//!
//! - The connection had served others before, and died before the first byte of this answer: upstream has closed it for
//!   being idle just then. The second time it has a connection of its own.
//! - Upstream answers 401 to forebay's credential, and there is a newer one (see `keyring`).
//!
//! A write is sent at most once, whatever happens. (The pools begin again where nothing at all had been written, see
//! `lanes`.)

use std::{future::Future, hash::Hash, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, HOST, USER_AGENT},
    uri::{Authority, Scheme},
};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::{self, connect::capture_connection};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    Error, Metrics,
    body::{BoxError, RequestBody},
    connect::Traffic,
    credentials::Credentials,
    dial::Dial,
    failure::{Failure, is_refused_by_tls},
    identity::{self, Identity},
    keyring::{Keyring, Renewal},
    lanes::{Lanes, Making, Pool},
    liveness::Reach,
    purpose::Purpose,
};

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
    /// Longest wait for a TCP connection, and for its TLS handshake.
    pub connect_timeout: Duration,
    /// Longest wait for the head of an answer to a request of our own.
    pub answer_timeout: Duration,
    /// A quiet connection is pinged several times within this.
    pub max_staleness: Duration,
}

/// How a client's request is passed on.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Under forebay's identity, or with what the request has.
    pub own_identity: bool,
    /// It asks to switch protocols: it is never repeated.
    pub upgrade: bool,
    /// Longest wait for the head of the answer; `None` for what may take for ever.
    pub head_timeout: Option<Duration>,
}

struct Inner {
    scheme: Scheme,
    authority: Authority,
    host: HeaderValue,
    /// Path of the server URL, without a trailing slash: `/k8s/clusters/c-1`.
    prefix: String,
    making: Making,
    keyring: Arc<Keyring>,
    lanes: ArcSwap<Lanes>,
    metrics: Metrics,
    answer_timeout: Duration,
}

/// A request without a body, kept to be sent again.
struct Spare {
    method: Method,
    uri: Uri,
    headers: http::HeaderMap,
    extensions: http::Extensions,
}

/// One request that is counted when it has its head, has failed, or is given up.
struct Counted<'a> {
    metrics: &'a Metrics,
    purpose: Purpose,
    begun: Instant,
    code: Option<String>,
}

// === impl Client ===

impl Client {
    /// Resolves the credentials, with an exec plugin if the identity has one. The second half keeps them current, and has
    /// to run.
    pub async fn new(
        identity: Identity,
        options: ClientOptions,
        metrics: Metrics,
    ) -> Result<(Self, Renewal), identity::Error> {
        let config = &identity.config;
        let dial = Dial::new(config.proxy_url.as_ref(), options.connect_timeout)
            .map_err(|message| identity::Error::Proxy { message })?;
        let unusable = || identity::Error::Server { url: config.cluster_url.to_string() };
        let url = config.cluster_url.clone().into_parts();
        let (Some(scheme), Some(authority)) = (url.scheme, url.authority) else { return Err(unusable()) };
        let prefix = url.path_and_query.map_or(String::new(), |path| path.path().trim_end_matches('/').to_owned());
        let host =
            HeaderValue::try_from(authority.as_str().rsplit('@').next().unwrap_or_default()).map_err(|_| unusable())?;
        let (keyring, renewal) = Keyring::new(identity, metrics.clone()).await?;
        let ClientOptions { connect_timeout: limit, answer_timeout, max_staleness } = options;
        let making = Making { dial, limit, max_staleness, reach: Reach::new() };
        let lanes = ArcSwap::from_pointee(Lanes::new(&keyring.current(), &keyring, &making));
        let inner = Inner { scheme, authority, host, prefix, making, keyring, lanes, metrics, answer_timeout };
        Ok((Self { inner: Arc::new(inner) }, renewal))
    }

    /// Whether upstream can be reached.
    pub fn reach(&self) -> &Reach {
        &self.inner.making.reach
    }

    /// Sends a client's request on; the URI's path and query reach upstream byte for byte. With `own_identity` forebay's
    /// credential replaces whatever `Authorization` the request has.
    pub async fn forward(
        &self,
        mut request: Request<RequestBody>,
        manner: Manner,
    ) -> Result<Response<Incoming>, Failure> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = self.uri(path).map_err(Failure::Unsent)?;
        request.headers_mut().insert(HOST, self.inner.host.clone());
        *request.version_mut() = http::Version::HTTP_11;
        let limit = manner.head_timeout.map(|after| Deadline { at: Instant::now() + after, after });

        let mut spare = if manner.upgrade { None } else { Spare::of(&request) };
        let (mut answer, mut shown) = self.pass(request, manner, limit, false).await;
        if matches!(&answer, Err(Sent { idle: true, .. }))
            && let Some(spare) = &spare
        {
            self.inner.metrics.retried("idle_connection");
            (answer, shown) = self.pass(spare.request(), manner, limit, true).await;
        }
        if manner.own_identity && answer.as_ref().is_ok_and(|response| response.status() == StatusCode::UNAUTHORIZED) {
            match spare.take() {
                None => self.inner.keyring.doubt(),
                Some(spare) if before(limit, self.inner.keyring.renew(shown.generation)).await == Some(true) => {
                    self.inner.metrics.retried("credential");
                    answer = self.pass(spare.request(), manner, limit, false).await.0;
                }
                Some(_) => {}
            }
        }
        answer.map_err(|sent| sent.failure)
    }

    /// Asks upstream for something of our own, on the connection that `lane` hashes to, and gives the answer once its
    /// head is a success; error statuses become [`Error::Status`].
    pub(crate) async fn get(
        &self,
        what: Purpose,
        lane: &impl Hash,
        path: &str,
        accept: &'static str,
    ) -> Result<Response<Incoming>, Error> {
        let uri = self.uri(path).map_err(Error::transport(what))?;
        let ask = async || {
            let request = Request::get(uri.clone()).header(ACCEPT, accept).header(USER_AGENT, OWN_USER_AGENT);
            let mut request = request.body(RequestBody::Empty).map_err(|error| Error::transport(what)(error.into()))?;
            let (lanes, shown) = self.lanes();
            shown.authorize(request.headers_mut());
            let after = self.inner.answer_timeout;
            let limit = Some(Deadline { at: Instant::now() + after, after });
            let answer = self.send(what, lanes.bulk(lane), request, limit).await;
            let answer = answer.map_err(|sent| match sent.failure {
                Failure::Slow { after, .. } => Error::Timeout { what, after },
                Failure::Unsent(source) | Failure::Broken(source) => Error::Transport { what, source },
            });
            Ok((answer?, shown.generation))
        };
        let (mut response, generation) = ask().await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.inner.keyring.renew(generation).await {
            self.inner.metrics.retried("credential");
            (response, _) = ask().await?;
        }
        if response.status().is_success() { Ok(response) } else { Err(refusal(what, response).await) }
    }

    /// As [`Self::get`], with the whole body, which must be small.
    pub(crate) async fn get_all(
        &self,
        what: Purpose,
        lane: &impl Hash,
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

    /// Passes a client's request on, once, and tells with which credentials.
    async fn pass(
        &self,
        mut request: Request<RequestBody>,
        manner: Manner,
        limit: Option<Deadline>,
        fresh: bool,
    ) -> (Result<Response<Incoming>, Sent>, Arc<Credentials>) {
        let (lanes, shown) = self.lanes();
        let lane = if manner.own_identity { &lanes.forward } else { &lanes.verbatim };
        if manner.own_identity {
            shown.authorize(request.headers_mut());
        }
        let pool = if fresh { &lane.fresh } else { &lane.pooled };
        (self.send(Purpose::Forward, pool, request, limit).await, shown)
    }

    async fn send(
        &self,
        purpose: Purpose,
        pool: &Pool,
        mut request: Request<RequestBody>,
        limit: Option<Deadline>,
    ) -> Result<Response<Incoming>, Sent> {
        let mut counted = Counted { metrics: &self.inner.metrics, purpose, begun: Instant::now(), code: None };
        let connection = limit.map(|limit| (limit, capture_connection(&mut request)));
        let answered = match connection {
            None => pool.request(request).await,
            Some((Deadline { at, after }, connection)) => match timeout_at(at, pool.request(request)).await {
                Ok(answered) => answered,
                Err(_) => {
                    let failure = Failure::Slow { after, sent: connection.connection_metadata().is_some() };
                    counted.code = Some(failure.as_str().to_owned());
                    return Err(Sent { failure, idle: false });
                }
            },
        };
        match answered {
            Ok(response) => {
                counted.code = Some(response.status().as_str().to_owned());
                Ok(response)
            }
            Err(error) => {
                if is_refused_by_tls(&error) {
                    self.inner.keyring.doubt();
                }
                let sent = Sent::from(error);
                counted.code = Some(sent.failure.as_str().to_owned());
                Err(sent)
            }
        }
    }

    /// The connections for the credentials in force.
    fn lanes(&self) -> (Arc<Lanes>, Arc<Credentials>) {
        let shown = self.inner.keyring.current();
        let mut lanes = self.inner.lanes.load_full();
        if lanes.connections != shown.connections {
            lanes = Arc::new(Lanes::new(&shown, &self.inner.keyring, &self.inner.making));
            // Two that find out at once both make some; one of them is used once.
            self.inner.lanes.store(lanes.clone());
        }
        (lanes, shown)
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

/// When to give up, and after how long that will have been.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    after: Duration,
}

/// How sending failed.
struct Sent {
    failure: Failure,
    /// On a connection that upstream had closed meanwhile.
    idle: bool,
}

impl From<legacy::Error> for Sent {
    fn from(error: legacy::Error) -> Self {
        let idle = Traffic::of(&error).is_some_and(|traffic| traffic.was_idle());
        Self { failure: Failure::of(error), idle }
    }
}

// === impl Spare ===

impl Spare {
    /// A copy of a request that may be repeated.
    fn of(request: &Request<RequestBody>) -> Option<Self> {
        let repeatable =
            matches!(*request.method(), Method::GET | Method::HEAD) && matches!(request.body(), RequestBody::Empty);
        repeatable.then(|| Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
            extensions: request.extensions().clone(),
        })
    }

    fn request(&self) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::Empty);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        *request.extensions_mut() = self.extensions.clone();
        request
    }
}

// === impl Counted ===

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // Without a code, whoever asked has gone.
        let code = self.code.as_deref().unwrap_or("canceled");
        self.metrics.requested(self.purpose, code, self.begun.elapsed());
    }
}

async fn before<T>(limit: Option<Deadline>, future: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(future.await),
        Some(limit) => timeout_at(limit.at, future).await.ok(),
    }
}

/// Turns an error answer into an error: the message of its Status, or the start of whatever else came.
async fn refusal(what: Purpose, response: Response<Incoming>) -> Error {
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
