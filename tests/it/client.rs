//! A plain HTTP client for forebay, its admin port and anything else: any method, path, headers and body in; status,
//! headers and body bytes out. Nothing is retried, decoded or decompressed, and every wait is bounded.

use std::{path::Path, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use serde_json::Value;
use tokio::time::timeout;

use crate::rig::LIMIT;

/// Which HTTP the client offers in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A client of one server, with one credential or none. Clones share the connections.
#[derive(Clone)]
pub(crate) struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    credential: Option<String>,
    protocol: Protocol,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A streamed answer.
pub(crate) struct Stream {
    body: Incoming,
    buffer: Vec<u8>,
}

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Clean,
    Broken,
}

/// What a kubeconfig's current context says.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) server: String,
    pub(crate) token: String,
    pub(crate) ca_pem: Vec<u8>,
}

// === impl Access ===

impl Access {
    /// Reads a kubeconfig with one cluster and one user, as forebay writes it.
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let cluster = &value["clusters"][0]["cluster"];
        let ca = text(&cluster["certificate-authority-data"]);
        Self {
            server: text(&cluster["server"]),
            token: text(&value["users"][0]["user"]["token"]),
            ca_pem: STANDARD.decode(ca).unwrap(),
        }
    }

    /// TLS with trust in the kubeconfig's CA alone.
    pub(crate) fn tls(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        if !self.ca_pem.is_empty() {
            roots.add(CertificateDer::from_pem_slice(&self.ca_pem).unwrap()).unwrap();
        }
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

// === impl Client ===

impl Client {
    /// A client with what a kubeconfig gives.
    pub(crate) fn of(access: &Access, protocol: Protocol) -> Self {
        let connector = HttpsConnectorBuilder::new().with_tls_config(access.tls()).https_or_http();
        let connector = match protocol {
            Protocol::Http1 => connector.enable_http1().build(),
            Protocol::Http2 => connector.enable_http2().build(),
        };
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http2_only(protocol == Protocol::Http2)
            .http2_max_header_list_size(1 << 20)
            .http2_initial_stream_window_size(1 << 20)
            .http2_initial_connection_window_size(16 << 20)
            .http1_max_headers(1024)
            .retry_canceled_requests(false)
            .build(connector);
        let credential = Some(format!("Bearer {}", access.token)).filter(|_| !access.token.is_empty());
        Self { http, base: access.server.trim_end_matches('/').to_owned(), credential, protocol }
    }

    /// A client for plain HTTP without credentials, such as for the admin port.
    pub(crate) fn plain(base: &str) -> Self {
        let access = Access { server: base.to_owned(), token: String::new(), ca_pem: Vec::new() };
        Self::of(&access, Protocol::Http1)
    }

    /// The same with another `Authorization`, or with none.
    pub(crate) fn with_credential(&self, credential: Option<&str>) -> Self {
        Self { credential: credential.map(str::to_owned), ..self.clone() }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "").await
    }

    /// A write with a JSON body.
    pub(crate) async fn write(&self, method: &str, path: &str, body: &Value) -> Reply {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        self.send(method, path, &[("content-type", kind)], body.to_string()).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let sent = self.try_send(method, path, headers, body).await;
        sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// As [`Self::send`], where a failing connection is an outcome.
    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Reply, String> {
        let (head, body) = self.open(method, path, headers, body).await?.into_parts();
        let body = timeout(LIMIT, body.collect()).await.map_err(|_| "no complete body in time".to_owned())?;
        let body = body.map_err(|error| format!("while reading the body: {error}"))?.to_bytes();
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Returns as soon as the head of the answer is there.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if self.protocol == Protocol::Http2 {
            request = request.version(http::Version::HTTP_2);
        }
        if let Some(credential) = &self.credential {
            request = request.header(header::AUTHORIZATION, credential);
        }
        for (name, value) in headers {
            let name: HeaderName = name.parse().map_err(|error| format!("{name}: {error}"))?;
            request = request.header(name, HeaderValue::from_str(value).map_err(|error| format!("{value}: {error}"))?);
        }
        let request = request.body(Full::from(body.into())).map_err(|error| error.to_string())?;
        let sent = timeout(LIMIT, self.http.request(request)).await.map_err(|_| "no answer in time".to_owned())?;
        sent.map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
    }

    /// Opens a stream; the answer must be 200.
    pub(crate) async fn stream(&self, path: &str) -> Stream {
        let response = self.open("GET", path, &[], "").await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(response.status(), 200, "{path}");
        Stream { body: response.into_body(), buffer: Vec::new() }
    }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header's first value, "" if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap_or("?")).unwrap_or_default()
    }

    /// The first word of `X-Forebay`: who answered. "" for what upstream answered.
    pub(crate) fn answered(&self) -> &str {
        self.header("x-forebay").split(';').next().unwrap_or_default()
    }

    /// Names of the items of a list.
    pub(crate) fn names(&self) -> Vec<String> {
        #[derive(serde::Deserialize)]
        struct List {
            items: Vec<Item>,
        }
        #[derive(serde::Deserialize)]
        struct Item {
            metadata: Meta,
        }
        #[derive(serde::Deserialize)]
        struct Meta {
            name: String,
        }
        let list: List = serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no list, {error}: {self}"));
        list.items.into_iter().map(|item| item.metadata.name).collect()
    }

    /// Whether it is a list.
    pub(crate) fn is_list(&self) -> bool {
        memchr::memmem::find(&self.body, b"\"items\":[").is_some()
    }

    /// Asserts that this is a complete Status of this code, and gives its message.
    pub(crate) fn status_message(&self, code: u16) -> String {
        assert_eq!(self.status, code, "{self}");
        assert_eq!(self.header("content-type"), "application/json", "{self}");
        let status = self.json();
        let told = (status["kind"].as_str(), status["status"].as_str(), status["code"].as_u64());
        assert_eq!(told, (Some("Status"), Some("Failure"), Some(code.into())), "{self}");
        status["message"].as_str().unwrap_or_default().to_owned()
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, self.text().chars().take(600).collect::<String>())
    }
}

// === impl Stream ===

impl Stream {
    /// The next line without its newline, or how the stream ended.
    pub(crate) async fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer) {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            match timeout(LIMIT, self.body.frame()).await.expect("a frame in time") {
                None => return Err(End::Clean),
                Some(Err(_)) => return Err(End::Broken),
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        }
    }

    /// The next event: type, name and resource version.
    pub(crate) async fn event(&mut self) -> (String, String, u64) {
        let line = self.line().await.unwrap();
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let meta = &event["object"]["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&meta["name"]), text(&meta["resourceVersion"]).parse().unwrap_or_default())
    }

    /// Whether nothing comes within `pause`: only for what must not come.
    pub(crate) async fn is_silent(&mut self, pause: std::time::Duration) -> bool {
        self.buffer.is_empty() && timeout(pause, self.body.frame()).await.is_err()
    }

    /// Everything until the end of the body, and how it ended.
    pub(crate) async fn rest(mut self) -> (Vec<u8>, End) {
        loop {
            match timeout(LIMIT, self.body.frame()).await.expect("a frame in time") {
                None => return (self.buffer, End::Clean),
                Some(Err(_)) => return (self.buffer, End::Broken),
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        }
    }
}
