//! A plain hyper client for one server.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use serde_json::Value;
use tokio::time::timeout;

use super::{super::ApiServer, LIMIT};

/// Sends requests with the server's token.
#[derive(Clone)]
pub(super) struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: String,
    token: String,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

/// A streamed answer, read line by line.
pub(super) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Clean,
    Broken,
}

impl Client {
    pub(super) fn new(server: &ApiServer, h2: bool) -> Self {
        let mut roots = RootCertStore::empty();
        if let Some(pem) = server.ca_pem() {
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
        let connector = if h2 { connector.enable_http2().build() } else { connector.enable_http1().build() };
        let http = legacy::Client::builder(TokioExecutor::new()).http2_only(h2).build(connector);
        Self { http, url: server.url(), token: server.token() }
    }

    pub(super) fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// The response head, or the error text. `headers` are pairs.
    pub(super) async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{target}", self.url));
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let sent = timeout(LIMIT, self.http.request(request)).await.map_err(|_| "no answer in time".to_owned())?;
        sent.map_err(|e| format!("{e}: {:?}", std::error::Error::source(&e)))
    }

    pub(super) async fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let response = self.send(method, target, headers, body).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = timeout(LIMIT, body.collect()).await.unwrap().unwrap().to_bytes();
        Reply { status: head.status.as_u16(), headers: head.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    pub(super) async fn get(&self, target: &str) -> Reply {
        self.ask("GET", target, &[], "").await
    }

    /// Opens a stream; the answer must be 200.
    pub(super) async fn open(&self, target: &str) -> Lines {
        let response = self.send("GET", target, &[], "").await.unwrap();
        assert_eq!(response.status(), 200, "{target}");
        Lines { body: response.into_body(), buffer: Vec::new() }
    }
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|v| v.to_str().unwrap()).unwrap_or_default()
    }

    /// Names of the items of a list.
    pub(super) fn names(&self) -> Vec<String> {
        let items = self.json()["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Lines {
    /// The next line without its newline, or how the stream ended.
    pub(super) async fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer) {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Ok(String::from_utf8(line[..at].to_vec()).unwrap());
            }
            let frame = timeout(LIMIT, self.body.frame()).await.expect("a frame in time");
            match frame {
                None if self.buffer.is_empty() => return Err(End::Clean),
                None => return Ok(String::from_utf8(std::mem::take(&mut self.buffer)).unwrap()),
                Some(Err(_)) => return Err(End::Broken),
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        }
    }

    /// The next event: type, name of the object (or the annotation that ends initial events), resource version.
    pub(super) async fn event(&mut self) -> (String, String, u64) {
        let line = self.line().await.unwrap();
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let meta = &event["object"]["metadata"];
        let end = meta["annotations"]["k8s.io/initial-events-end"] == "true";
        let name = meta["name"].as_str().unwrap_or(if end { "end" } else { "" });
        let rv = meta["resourceVersion"].as_str().and_then(|rv| rv.parse().ok()).unwrap_or(0);
        (event["type"].as_str().unwrap().to_owned(), name.to_owned(), rv)
    }

    /// Everything until the end of the body, and how it ended.
    pub(super) async fn rest(mut self) -> (Vec<u8>, End) {
        loop {
            match timeout(LIMIT, self.body.frame()).await.expect("a frame in time") {
                None => return (self.buffer, End::Clean),
                Some(Err(_)) => return (self.buffer, End::Broken),
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        }
    }
}
