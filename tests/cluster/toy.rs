//! A small TLS server inside the test, whose answers the test chooses: an aggregated API, a webhook.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use crate::control_plane::ControlPlane;

/// What a request was.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
}

/// What is answered, as JSON, and how long it takes.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) after: Duration,
    pub(crate) body: String,
}

/// The server. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Toy {
    addr: SocketAddr,
    /// True ends all connections.
    down: watch::Sender<bool>,
    accept: AbortHandle,
}

// === impl Reply ===

impl Reply {
    pub(crate) fn json(body: Value) -> Self {
        Self { code: 200, after: Duration::ZERO, body: body.to_string() }
    }

    pub(crate) fn code(code: u16, body: Value) -> Self {
        Self { code, ..Self::json(body) }
    }

    pub(crate) fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }
}

// === impl Toy ===

impl Toy {
    /// Listens on a loopback port with the control plane's own serving certificate.
    pub(crate) async fn start(plane: &ControlPlane, answer: impl Fn(Asked) -> Reply + Send + Sync + 'static) -> Self {
        let file = |name: &str| std::fs::read(plane.scratch_path().join(name)).unwrap();
        let chain = CertificateDer::pem_slice_iter(&file("tls.crt")).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(&file("tls.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let (tls, answer) = (TlsAcceptor::from(Arc::new(config)), Arc::new(answer));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (down, is_down) = watch::channel(false);
        let accept = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                let (tls, answer, mut is_down) = (tls.clone(), answer.clone(), is_down.clone());
                tokio::spawn(async move {
                    // Dropped when the server is.
                    let serve = async {
                        let Ok(stream) = tls.accept(socket).await else { return };
                        let service = service_fn(|request| respond(request, answer.clone()));
                        let _ = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    };
                    tokio::select! {
                        () = serve => {}
                        _ = is_down.wait_for(|down| *down) => {}
                    }
                });
            }
        });
        Self { addr, down, accept: accept.abort_handle() }
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        self.down.send_replace(true);
        self.accept.abort();
    }
}

async fn respond(
    request: Request<Incoming>,
    answer: Arc<impl Fn(Asked) -> Reply + Send + Sync>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    // Read to its end, so that the connection can be used again.
    body.collect().await?;
    let query = head.uri.query().unwrap_or_default().to_owned();
    let reply = answer(Asked { method: head.method, path: head.uri.path().to_owned(), query });
    tokio::time::sleep(reply.after).await;
    let mut response = Response::new(Full::new(reply.body.into()));
    *response.status_mut() = reply.code.try_into().unwrap();
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(response)
}
