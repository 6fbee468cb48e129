//! The listener with real sockets, real TLS and hyper's clients.

use std::{
    convert::Infallible,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::*;
use crate::{
    lifecycle::{Class, Drain, DrainToken, Drained, Tasks},
    request::admission::Hosts,
    telemetry::registry::{self, Exposition},
};

/// Far above anything a test waits for when it passes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A handler whose answers depend on the path.
#[derive(Clone)]
struct Scripted {
    drain: DrainToken,
    /// `/slow` requests that have arrived.
    arrived: Arc<Semaphore>,
    /// Releases them.
    release: Arc<Notify>,
}

/// One event, then silence until the drain ends it.
struct Watch {
    sent: bool,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Body for Watch {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !std::mem::replace(&mut self.sent, true) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"event\n")))));
        }
        self.draining.as_mut().poll(cx).map(|()| None)
    }
}

impl Handler for Scripted {
    type Body = BoxBody<Bytes, Infallible>;

    async fn handle(&self, request: Request<Incoming>) -> Response<Self::Body> {
        let text = |text: String| Response::new(Full::from(text).boxed());
        match request.uri().path() {
            "/slow" => {
                let released = self.release.notified();
                self.arrived.add_permits(1);
                released.await;
                text("done".to_owned())
            }
            "/never" => std::future::pending().await,
            "/watch" => {
                let draining = Box::pin(self.drain.draining_owned());
                Response::new(Watch { sent: false, draining }.boxed())
            }
            "/headers" => text(request.headers().len().to_string()),
            _ => {
                let peer = request.extensions().get::<Peer>().map(|peer| peer.address.ip().to_string());
                text(format!("{} {:?}", peer.unwrap_or_default(), request.version()))
            }
        }
    }

    fn refuse(&self, code: StatusCode, why: &str) -> Response<Self::Body> {
        let mut response = Response::new(Full::from(why.to_owned()).boxed());
        *response.status_mut() = code;
        response
    }
}

struct Rig {
    drain: Drain,
    tasks: Tasks,
    address: SocketAddr,
    client_config: ClientConfig,
    handler: Scripted,
    metrics: Registry,
}

impl Rig {
    async fn start() -> Self {
        Self::with(limits()).await
    }

    async fn with(limits: Limits) -> Self {
        let drain = Drain::new();
        let tasks = Tasks::new(drain.token());
        let identity = identity();
        let handler = Scripted { drain: drain.token(), arrived: Arc::new(Semaphore::new(0)), release: Arc::default() };
        let listener = Listener::bind((loopback(), 0).into(), "secure-port").await.expect("bind");
        let address = listener.address();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let serving =
            listener.serve(identity.server_config(), handler.clone(), limits, metrics, tasks.clone(), drain.token());
        tasks.spawn("listener", Class::Critical, serving);
        let client_config = trusting(identity.ca_pem());
        Self { drain, tasks, address, client_config, handler, metrics: registry }
    }

    async fn tls(&self, alpn: &[u8], name: &'static str) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = self.client_config.clone();
        config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(name).expect("name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    async fn http1(&self) -> conn::http1::SendRequest<Empty<Bytes>> {
        let stream = self.tls(b"http/1.1", "127.0.0.1").await.expect("TLS");
        let (sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.expect("http/1.1");
        self.tasks.spawn_connection(async { drop(connection.await) });
        sender
    }

    async fn http2(&self) -> conn::http2::SendRequest<Empty<Bytes>> {
        let stream = self.tls(b"h2", "127.0.0.1").await.expect("TLS");
        let mut builder = conn::http2::Builder::new(TokioExecutor::new());
        builder.max_header_list_size(1 << 20);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.expect("h2");
        self.tasks.spawn_connection(async { drop(connection.await) });
        sender
    }

    async fn slow_request_arrived(&self) {
        timeout(PATIENCE, self.handler.arrived.acquire()).await.expect("arrives").expect("open").forget();
    }
}

fn limits() -> Limits {
    Limits {
        max_connections: 100.try_into().expect("not zero"),
        max_concurrent_streams: 100.try_into().expect("not zero"),
        handshake_timeout: PATIENCE,
        header_timeout: PATIENCE,
        max_header_bytes: 1 << 20,
    }
}

fn loopback() -> IpAddr {
    IpAddr::from([127, 0, 0, 1])
}

fn identity() -> ServingIdentity {
    ServingIdentity::generate(Hosts::of(loopback()).names()).expect("identity")
}

fn trusting(ca_pem: &str) -> ClientConfig {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).expect("pem")).expect("root");
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    let uri = format!("https://localhost{path}");
    Request::get(uri).header(header::HOST, "localhost").body(Empty::new()).expect("request")
}

async fn body(response: Response<Incoming>) -> String {
    let bytes = timeout(PATIENCE, response.into_body().collect()).await.expect("in time").expect("body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("utf-8")
}

#[tokio::test]
async fn both_protocols_answer_and_know_the_peer() {
    let rig = Rig::start().await;
    let response = rig.http1().await.send_request(get("/")).await.expect("answer");
    assert_eq!((response.version(), body(response).await.as_str()), (Version::HTTP_11, "127.0.0.1 HTTP/1.1"));
    let response = rig.http2().await.send_request(get("/")).await.expect("answer");
    assert_eq!((response.version(), body(response).await.as_str()), (Version::HTTP_2, "127.0.0.1 HTTP/2.0"));
}

#[tokio::test]
async fn the_leaf_is_valid_for_every_loopback_name_and_no_other() {
    let rig = Rig::start().await;
    for name in ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc", "kubernetes.default"] {
        rig.tls(b"h2", name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for name in ["example.com", "127.0.0.2", "10.0.0.1"] {
        assert!(rig.tls(b"h2", name).await.is_err(), "{name}");
    }
    let stranger = Rig { client_config: trusting(identity().ca_pem()), ..rig };
    assert!(stranger.tls(b"h2", "localhost").await.is_err());
}

#[tokio::test]
async fn requests_with_hundreds_of_headers_and_huge_tokens_pass() {
    let rig = Rig::start().await;
    let mut many = get("/headers");
    for i in 0..240_u16 {
        many.headers_mut().append("impersonate-group", i.into());
    }
    let mut h1 = rig.http1().await;
    assert_eq!(body(h1.send_request(many).await.expect("answer")).await, "241");

    let mut huge = get("/headers");
    huge.headers_mut().append(header::AUTHORIZATION, "x".repeat(300_000).parse().expect("value"));
    let response = rig.http2().await.send_request(huge).await.expect("answer");
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn draining_http1_finishes_requests_closes_idle_connections_and_ends_watches() {
    let rig = Rig::start().await;
    let (mut slow, mut watch, mut idle, unused) =
        (rig.http1().await, rig.http1().await, rig.http1().await, rig.http1().await);
    body(idle.send_request(get("/")).await.expect("answer")).await;
    let watching = watch.send_request(get("/watch")).await.expect("watch");
    let slow = slow.send_request(get("/slow"));
    let client = async {
        rig.drain.token().draining().await;
        let closed = async {
            while !idle.is_closed() {
                tokio::task::yield_now().await
            }
        };
        timeout(PATIENCE, closed).await.expect("the idle connection is closed");
        assert_eq!(body(watching).await, "event\n");
        // The socket is closed before anything else happens, but not before the listener's task has run.
        timeout(PATIENCE, async { while TcpStream::connect(rig.address).await.is_ok() {} }).await.expect("refuses");
        rig.handler.release.notify_waiters();
    };
    let drained = async {
        // Not earlier, or the drain would close the connection that is to carry the request.
        rig.slow_request_arrived().await;
        tokio::join!(rig.drain.shutdown(PATIENCE), client).0
    };
    let (response, drained) = timeout(PATIENCE, async { tokio::join!(slow, drained) }).await.expect("drains");
    assert_eq!(drained, Drained::Clean);
    let response = response.expect("the request in flight is answered");
    assert_eq!(response.headers()[header::CONNECTION], "close");
    assert_eq!(body(response).await, "done");
    drop(unused);
}

#[tokio::test]
async fn draining_http2_says_goaway_finishes_streams_and_ends_watches() {
    let rig = Rig::start().await;
    let mut sender = rig.http2().await;
    let watching = sender.send_request(get("/watch")).await.expect("watch");
    let slow = sender.clone().send_request(get("/slow"));
    let client = async {
        rig.drain.token().draining().await;
        assert_eq!(body(watching).await, "event\n");
        // After GOAWAY has arrived hyper's client takes no more.
        timeout(PATIENCE, async {
            while sender.ready().await.is_ok() && sender.send_request(get("/")).await.is_ok() {}
        })
        .await
        .expect("GOAWAY");
        rig.handler.release.notify_waiters();
    };
    let drained = async {
        // Not earlier, or the drain would close the connection that is to carry the request.
        rig.slow_request_arrived().await;
        tokio::join!(rig.drain.shutdown(PATIENCE), client).0
    };
    let (response, drained) = timeout(PATIENCE, async { tokio::join!(slow, drained) }).await.expect("drains");
    assert_eq!(drained, Drained::Clean);
    assert_eq!(body(response.expect("the stream in flight is answered")).await, "done");
}

#[tokio::test]
async fn the_deadline_drops_what_never_ends() {
    let rig = Rig::start().await;
    let (mut h1, mut h2) = (rig.http1().await, rig.http2().await);
    let never = (h1.send_request(get("/never")), h2.send_request(get("/never")));
    let mut never = pin!(async { tokio::join!(never.0, never.1) });
    // Both have been sent once an answer on a third connection has come back after them.
    tokio::select! {
        _ = &mut never => panic!("/never answers"),
        _ = async { body(rig.http1().await.send_request(get("/")).await.expect("answer")).await } => {}
    }
    let drained = rig.drain.shutdown(Duration::from_millis(50)).await;
    assert!(matches!(drained, Drained::Aborted { left: 1.. }), "{drained:?}");
    let (first, second) = timeout(PATIENCE, never).await.expect("dropped");
    assert!(first.is_err() && second.is_err());
    timeout(PATIENCE, rig.tasks.ended()).await.expect("no task is left");
}

#[tokio::test]
async fn a_silent_client_is_dropped_and_delays_nobody() {
    let rig = Rig::with(Limits { handshake_timeout: Duration::from_millis(200), ..limits() }).await;
    let mut silent = TcpStream::connect(rig.address).await.expect("connect");
    assert_eq!(rig.http1().await.send_request(get("/")).await.expect("answer").status(), StatusCode::OK);
    let read = timeout(PATIENCE, silent.read(&mut [0; 16])).await.expect("closed in time");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let text = registry::encode(&rig.metrics, Exposition::Text).expect("metrics");
    assert!(text.contains("tls_handshake_failures_total{reason=\"timeout\"} 1"), "{text}");
}

/// After the handshake too: an HTTP/2 client that never says a word costs a place for no longer.
#[tokio::test]
async fn a_client_that_agrees_on_http2_and_then_says_nothing_is_dropped() {
    let rig = Rig::with(Limits { handshake_timeout: Duration::from_secs(1), ..limits() }).await;
    for said in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
        let mut silent = rig.tls(b"h2", "127.0.0.1").await.expect("TLS");
        silent.write_all(said).await.expect("sent");
        let closed = timeout(PATIENCE, async { while silent.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {} });
        closed.await.expect("closed in time");
    }
    // A connection that has begun may be silent for as long as it likes.
    let mut sender = rig.http2().await;
    assert_eq!(sender.send_request(get("/")).await.expect("answer").status(), StatusCode::OK);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(sender.send_request(get("/")).await.expect("answer").status(), StatusCode::OK);
}

#[tokio::test]
async fn idle_connections_outlive_the_clients_patience() {
    let rig = Rig::with(Limits { header_timeout: Duration::from_secs(1), ..limits() }).await;
    for idle in [31, 61, 95] {
        let mut sender = rig.http1().await;
        assert_eq!(sender.send_request(get("/")).await.expect("answer").status(), StatusCode::OK);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(idle)).await;
        tokio::time::resume();
        assert_eq!(sender.send_request(get("/")).await.expect("answer").status(), StatusCode::OK, "after {idle} s");
    }
}

#[tokio::test]
async fn above_the_limit_streams_wait_at_the_client() {
    let rig = Rig::with(Limits { max_concurrent_streams: 2.try_into().expect("not zero"), ..limits() }).await;
    let mut sender = rig.http2().await;
    // The first answer comes after the server's settings, which carry the limit.
    assert_eq!(body(sender.send_request(get("/")).await.expect("answer")).await, "127.0.0.1 HTTP/2.0");
    let (mut one, mut two) = (sender.clone(), sender.clone());
    let mut slow = pin!(async { tokio::join!(one.send_request(get("/slow")), two.send_request(get("/slow"))) });
    let arrived = async {
        rig.slow_request_arrived().await;
        rig.slow_request_arrived().await;
    };
    tokio::select! {
        _ = &mut slow => panic!("/slow answers"),
        () = arrived => {}
    }
    let mut third = pin!(sender.send_request(get("/")));
    let (waited, _) =
        tokio::join!(timeout(Duration::from_millis(100), &mut third), timeout(Duration::from_millis(100), &mut slow),);
    assert!(waited.is_err(), "there were two streams");
    rig.handler.release.notify_waiters();
    let (third, _) = timeout(PATIENCE, async { tokio::join!(third, slow) }).await.expect("a stream");
    assert_eq!(third.expect("answer").status(), StatusCode::OK);
}

#[tokio::test]
async fn above_the_limit_clients_wait_for_a_place() {
    let rig = Rig::with(Limits { max_connections: 1.try_into().expect("not zero"), ..limits() }).await;
    let mut first = rig.http1().await;
    assert_eq!(first.send_request(get("/")).await.expect("answer").status(), StatusCode::OK);
    let mut second = pin!(rig.http1());
    assert!(timeout(Duration::from_millis(100), &mut second).await.is_err(), "there was only one place");
    drop(first);
    let mut second = timeout(PATIENCE, second).await.expect("a place");
    assert_eq!(second.send_request(get("/")).await.expect("answer").status(), StatusCode::OK);
}

#[tokio::test]
async fn a_taken_port_is_named_with_the_way_out() {
    let taken = Listener::bind((loopback(), 0).into(), "secure-port").await.expect("bind");
    let error = Listener::bind(taken.address(), "secure-port").await.expect_err("taken").to_string();
    let want = format!(
        "can't listen on {}: another program, perhaps another forebay, has this port; choose another with --secure-port",
        taken.address()
    );
    assert_eq!(error, want);
    let error = Listener::bind("192.0.2.1:0".parse().expect("address"), "bind-address").await.expect_err("foreign");
    assert!(error.to_string().contains("no such address"), "{error}");
}
