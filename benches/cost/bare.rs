//! The floor: hyper over TLS, one ready buffer for every GET and one for every LIST, nothing else.
//!
//! Same runtime, allocator, TLS provider and kind of certificate as forebay.

use std::{convert::Infallible, net::Ipv4Addr, path::Path, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use forebay::{
    app::kubeconfig::{self, ClientKubeconfig},
    server::ServingIdentity,
};
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

#[derive(Clone)]
struct Ready {
    object: Bytes,
    list: Bytes,
}

/// Serves until killed the bodies in `dir/object` and `dir/list`; writes `dir/kubeconfig` once it listens.
pub(crate) async fn serve(dir: &Path) -> Result<()> {
    let ready =
        Ready { object: std::fs::read(dir.join("object"))?.into(), list: std::fs::read(dir.join("list"))?.into() };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let identity = ServingIdentity::generate(vec![Ipv4Addr::LOCALHOST.to_string()])?;
    let server = format!("https://{}", listener.local_addr()?);
    let (context, token) = ("bare", "none");
    let file = ClientKubeconfig {
        context,
        cluster: context,
        user: context,
        namespace: None,
        server: &server,
        ca_pem: identity.ca_pem(),
        token,
    };
    kubeconfig::write(&dir.join("kubeconfig"), &[], &file)?;
    let acceptor = TlsAcceptor::from(identity.server_config());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, acceptor.clone(), ready.clone()));
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, ready: Ready) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&ready, &request))));
    // The client's going is no news here.
    let _ = if h2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_send_buf_size(1 << 20).serve_connection(io, service).await
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(120));
        builder.serve_connection(io, service).await
    };
}

fn answer(ready: &Ready, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let list = request.uri().path().ends_with("/deployments");
    let body = if list { &ready.list } else { &ready.object };
    let mut response = Response::new(Full::new(body.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
