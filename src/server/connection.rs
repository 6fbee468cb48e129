//! One client connection: HTTP/1.1 or HTTP/2 as ALPN agreed, until it ends by itself or the drain ends it.
//!
//! The protocol is never sniffed: hyper's sniffing has no timeout. A request's `Expect: 100-continue` is answered by
//! hyper as soon as the body is read.

use std::{convert::Infallible, future::Future, pin::pin, time::Duration};

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{
    body::Incoming,
    rt::{Executor, Read, Write},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Handler, Limits, Peer, framing::MAX_LINES, inspect::Inspected};
use crate::{
    lifecycle::{DrainToken, Tasks},
    request::hop,
};

/// From one request to the next: above the 90 s that Go keeps idle connections, so that the client closes first and no
/// request meets a connection we are closing. Heads that have begun have their own deadline, see [`super::inspect`].
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// What a client may upload unread on one stream: kube-apiserver's own figure.
const STREAM_WINDOW: u32 = 256 << 10;

/// The same for all streams of a connection. Uploads that upstream does not read must not stop the others, so there is
/// room for hundreds of them.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// What hyper may read behind a head that is as large as it may be.
const BESIDE_A_HEAD: usize = 64 << 10;

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
pub(super) async fn http2<S, H>(stream: S, peer: Peer, handler: H, context: Context) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let io = TokioIo::new(Inspected::http2(stream, context.limits.handshake_timeout));
    let mut builder = http2::Builder::new(Spawn(context.tasks));
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(context.limits.max_header_bytes)
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
pub(super) async fn http1<S, H>(stream: S, peer: Peer, handler: H, context: Context) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let max_head = context.limits.max_header_bytes as usize;
    let (stream, refusal) = Inspected::http1(stream, max_head, context.limits.header_timeout);
    let io = TokioIo::new(stream);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_headers(MAX_LINES)
        .max_buf_size(max_head + BESIDE_A_HEAD);
    let service = service_fn(move |request| {
        let fault = refusal.of_this_request();
        let handler = handler.clone();
        async move {
            match fault {
                None => answer_http1(handler, peer, request).await,
                Some(fault) => Ok(closing(handler.refuse(fault.code(), &fault.to_string()))),
            }
        }
    });
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

/// After a request to switch protocols nothing on the connection is inspected any more: if it is not granted, the
/// connection ends with the answer.
async fn answer_http1<H: Handler>(
    handler: H,
    peer: Peer,
    request: Request<Incoming>,
) -> Result<Response<H::Body>, Infallible> {
    let upgrade = hop::upgrade_protocol(request.headers()).is_some();
    let response = answer(handler, peer, request).await?;
    let stays = !upgrade || response.status() == StatusCode::SWITCHING_PROTOCOLS;
    Ok(if stays { response } else { closing(response) })
}

fn closing<B>(mut response: Response<B>) -> Response<B> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
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
