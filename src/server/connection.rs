//! One client connection: HTTP/1.1 or HTTP/2 as ALPN agreed, until it ends by itself or the drain ends it.
//!
//! The protocol is never sniffed: hyper's sniffing has no timeout. A request's `Expect: 100-continue` is answered by
//! hyper as soon as the body is read.

use std::{convert::Infallible, future::Future, pin::pin, time::Duration};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    rt::{Executor, Read, Write},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::TokioTimer;

use super::{Handler, Limits, Peer};
use crate::lifecycle::{DrainToken, Tasks};

/// Also ends idle keep-alive connections: above the 90 s that Go keeps its own, so that the client closes first and no
/// request meets a connection we are closing.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(120);

/// One `Impersonate-Group` header for each group: hyper's 100 is too few, and tokens of large directories name up to 200.
/// hyper prepares room for all of them for each request, so that 1024 would cost a quarter of a cached GET. HTTP/2, which
/// Go's clients speak, has no such limit.
const MAX_HEADERS: usize = 256;

/// Go's own default. Bearer tokens of OIDC providers alone may be larger than hyper's 16 KB.
const MAX_HEADER_LIST_BYTES: u32 = 1 << 20;

/// What a client may upload unread: one stream, and all streams of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// What one response may buffer before its producer is paused: a few of the frames that lists are sent in.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Finds clients that vanished without closing.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// What a connection needs to know besides its socket.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) limits: Limits,
    pub(super) tasks: Tasks,
    pub(super) drain: DrainToken,
}

/// Streams of HTTP/2 run as tasks of the supervised set.
#[derive(Clone, Debug)]
struct Spawn(Tasks);

/// A connection that can be asked to end after the requests in flight.
trait Graceful: Future<Output = hyper::Result<()>> {
    fn graceful_shutdown(self: std::pin::Pin<&mut Self>);
}

/// Serves a connection that agreed on `h2`.
pub(super) async fn http2<I, H>(io: I, peer: Peer, handler: H, context: Context) -> hyper::Result<()>
where
    I: Read + Write + Unpin + Send + 'static,
    H: Handler,
{
    let mut builder = http2::Builder::new(Spawn(context.tasks));
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_concurrent_streams(context.limits.max_concurrent_streams.get())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let service = service_fn(move |request| answer(handler.clone(), peer, request));
    run(builder.serve_connection(io, service), &context.drain).await
}

/// Serves any other connection.
pub(super) async fn http1<I, H>(io: I, peer: Peer, handler: H, context: Context) -> hyper::Result<()>
where
    I: Read + Write + Unpin + Send + 'static,
    H: Handler,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_READ_TIMEOUT).max_headers(MAX_HEADERS);
    let service = service_fn(move |request| answer(handler.clone(), peer, request));
    run(builder.serve_connection(io, service).with_upgrades(), &context.drain).await
}

async fn answer<H: Handler>(
    handler: H,
    peer: Peer,
    mut request: Request<Incoming>,
) -> Result<Response<H::Body>, Infallible> {
    request.extensions_mut().insert(peer);
    Ok(handler.handle(request).await)
}

/// Until the connection ends; told to end when the drain starts, dropped when it is aborted.
async fn run(connection: impl Graceful, drain: &DrainToken) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    tokio::select! {
        ended = &mut connection => return ended,
        () = drain.draining() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        ended = connection => ended,
        () = drain.aborted() => Ok(()),
    }
}

// === impl Spawn ===

impl<F> Executor<F> for Spawn
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn_connection(future);
    }
}

// === impl Graceful ===

impl<I, S, B> Graceful for http1::UpgradeableConnection<I, S>
where
    I: Read + Write + Unpin + Send + 'static,
    S: hyper::service::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + 'static,
{
    fn graceful_shutdown(self: std::pin::Pin<&mut Self>) {
        http1::UpgradeableConnection::graceful_shutdown(self);
    }
}

impl<I, S, B> Graceful for http2::Connection<I, S, Spawn>
where
    I: Read + Write + Unpin + 'static,
    S: hyper::service::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    fn graceful_shutdown(self: std::pin::Pin<&mut Self>) {
        http2::Connection::graceful_shutdown(self);
    }
}
