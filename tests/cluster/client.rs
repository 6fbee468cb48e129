//! A small HTTP client for raw requests, the same for an API server and for forebay: any method, path, headers and body in,
//! status, headers and body bytes out. Nothing is retried, decoded or decompressed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

/// No request of a test may hang longer than this, unless it says so itself.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(70);

/// Which HTTP the client offers in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A client of one server, with one credential or none. Clones share the connections.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    bearer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    protocol: Protocol,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

// === impl HttpClient ===

impl HttpClient {
    /// A client for the current context of a kubeconfig that has a server, a CA and a token.
    pub(crate) async fn from_kubeconfig(path: &Path, protocol: Protocol) -> Self {
        let read = Kubeconfig::read_from(path).unwrap_or_else(|e| panic!("kubeconfig {}: {e}", path.display()));
        let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        // The type hides the token from logs; its serde form is the way back.
        let auth = serde_json::to_value(&config.auth_info).unwrap();
        let token = auth["token"].as_str().map(str::to_owned);
        let mut roots = rustls::RootCertStore::empty();
        for der in config.root_cert.unwrap_or_default() {
            roots.add(CertificateDer::from(der)).unwrap();
        }
        let base = config.cluster_url.to_string();
        Self::new(base.trim_end_matches('/'), Some(roots), token.as_deref(), protocol)
    }

    /// A client for a plain-HTTP server, such as forebay's admin port.
    pub(crate) fn plain(base: &str) -> Self {
        Self::new(base, None, None, Protocol::Http1)
    }

    /// A client for `https://` with the CA in PEM.
    pub(crate) fn tls(base: &str, ca_pem: &str, token: Option<&str>) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()).unwrap();
        Self::new(base, Some(roots), token, Protocol::Http1)
    }

    fn new(base: &str, roots: Option<rustls::RootCertStore>, token: Option<&str>, protocol: Protocol) -> Self {
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots.unwrap_or_else(rustls::RootCertStore::empty))
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let connector = match protocol {
            Protocol::Http1 => connector.enable_http1().build(),
            Protocol::Http2 => connector.enable_http2().build(),
        };
        let client = Client::builder(TokioExecutor::new()).http2_only(protocol == Protocol::Http2).build(connector);
        let bearer = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
        Self { client, base: base.to_owned(), bearer, user_agent: None, protocol }
    }

    /// The same client under a user agent, by which the audit log tells its requests apart.
    pub(crate) fn with_user_agent(mut self, user_agent: &str) -> Self {
        self.user_agent = Some(HeaderValue::from_str(user_agent).unwrap());
        self
    }

    /// The same client with another bearer token, or with none.
    pub(crate) fn with_token(mut self, token: Option<&str>) -> Self {
        self.bearer = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
        self
    }

    /// The token it sends, "" for none.
    pub(crate) fn bearer(&self) -> String {
        let value = self.bearer.as_ref().and_then(|value| value.to_str().ok());
        value.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path, &[], "").await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.request(Method::GET, path, headers, "").await
    }

    /// Sends JSON; panics unless the answer is a success.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.request(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await;
        assert!(answer.status.is_success(), "POST {path}: {}", answer.describe());
        answer.json()
    }

    /// One request with a complete body each way.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let what = format!("{method} {path}");
        self.try_request(method, path, headers, body).await.unwrap_or_else(|e| panic!("{what}: {e}"))
    }

    /// As `request`, where a failing connection is an outcome and not a mistake.
    pub(crate) async fn try_request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, String> {
        let body = body.into();
        let whole = async {
            let (head, body) = self.open(method, path, headers, body).await?.into_parts();
            let body = body.collect().await.map_err(|e| format!("while reading the body: {e}"))?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(REQUEST_TIMEOUT, whole)
            .await
            .unwrap_or_else(|_| Err(format!("no complete answer within {REQUEST_TIMEOUT:?}")))
    }

    /// Sends a request and returns as soon as the head of the answer is there: for watches.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<http::Response<Incoming>, String> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.base).parse().map_err(|e| format!("bad path {path}: {e}"))?;
        if self.protocol == Protocol::Http2 {
            *request.version_mut() = Version::HTTP_2;
        }
        let to = request.headers_mut();
        if let Some(bearer) = &self.bearer {
            to.insert(AUTHORIZATION, bearer.clone());
        }
        if let Some(user_agent) = &self.user_agent {
            to.insert(http::header::USER_AGENT, user_agent.clone());
        }
        for (name, value) in headers {
            let name: HeaderName = name.parse().map_err(|e| format!("bad header {name}: {e}"))?;
            let value = HeaderValue::from_str(value).map_err(|e| format!("bad value of {name}: {e}"))?;
            if name == HOST {
                to.insert(name, value)
            } else {
                to.append(name, value);
                None
            };
        }
        self.client.request(request).await.map_err(|e| match std::error::Error::source(&e) {
            Some(source) => format!("{e}: {source}"),
            None => e.to_string(),
        })
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.describe()))
    }

    pub(crate) fn content_type(&self) -> &str {
        self.header(CONTENT_TYPE.as_str())
    }

    /// The header's first value, or "".
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Status and the start of the body, for a failure message.
    pub(crate) fn describe(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        format!("{} {}", self.status, body.chars().take(400).collect::<String>())
    }
}

/// PEM in the form kubeconfigs hold it.
pub(crate) fn base64(text: &str) -> String {
    STANDARD.encode(text)
}
