//! One HTTP/2 connection to a server, with everything that a pooling client hides: which connection a request is on, its
//! authority, and what is read of an answer and when.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{
    client::{Access, Reply},
    rig::within,
};

/// What a client may receive unread on one stream: client-go's own figure.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;

/// One connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: String,
    credential: String,
}

// === impl Connection ===

impl Connection {
    pub(crate) async fn open(access: &Access) -> Self {
        let mut config = access.tls();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let authority = access.server.strip_prefix("https://").unwrap().trim_end_matches('/').to_owned();
        let stream = within("a connection", TcpStream::connect(&authority)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = within("a handshake", connecting).await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(1 << 20)
            .initial_stream_window_size(STREAM_WINDOW)
            // As Go has it: practically none.
            .initial_connection_window_size(1 << 30);
        let (sender, connection) = within("HTTP/2", builder.handshake(TokioIo::new(stream))).await.unwrap();
        tokio::spawn(connection);
        Self { sender, authority, credential: format!("Bearer {}", access.token) }
    }

    /// A request to this server with its credential.
    pub(crate) fn request(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.authority))
            .header("authorization", &self.credential)
            .body(Full::from(body.into()))
            .unwrap()
    }

    /// The head of the answer; nothing of its body is read before the caller does.
    pub(crate) async fn open_answer(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
        within("an answer", self.sender.clone().send_request(request)).await
    }

    /// The whole answer.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        let (parts, body) = self.open_answer(request).await.unwrap().into_parts();
        let body = within("a body", body.collect()).await.unwrap().to_bytes();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Waits until the connection can take a request, or has ended.
    pub(crate) async fn is_open(&self) -> bool {
        within("readiness", self.sender.clone().ready()).await.is_ok()
    }
}
