//! One client connection, HTTP/1.1 or HTTP/2, to a server that a kubeconfig describes.

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A server at an address.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) bearer: String,
    pub(crate) ca_pem: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// An open connection.
pub(crate) struct Link {
    sender: Sender,
    base: String,
    host: String,
    bearer: String,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

// === impl Target ===

impl Target {
    /// Reads a kubeconfig of one cluster at an IP address, with CA and token inside.
    pub(crate) fn from_kubeconfig(path: &Path) -> Result<Self> {
        let what = || format!("kubeconfig {}", path.display());
        let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).with_context(what)?)?;
        let text = |value: &Value| value.as_str().map(str::to_owned).with_context(what);
        let cluster = &file["clusters"][0]["cluster"];
        let ca = BASE64_STANDARD.decode(text(&cluster["certificate-authority-data"])?)?;
        Ok(Self {
            address: text(&cluster["server"])?.trim_start_matches("https://").parse().with_context(what)?,
            bearer: format!("Bearer {}", text(&file["users"][0]["user"]["token"])?),
            ca_pem: String::from_utf8(ca)?,
        })
    }

    pub(crate) async fn open(&self, protocol: Protocol) -> Result<Link> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes())?)?;
        let mut tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = match protocol {
            Protocol::Http1 => vec![b"http/1.1".to_vec()],
            Protocol::Http2 => vec![b"h2".to_vec()],
        };
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let io = TokioIo::new(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?);
        let sender = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                tokio::spawn(connection);
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                // client-go's windows: 4 MiB for a stream, practically no limit for the connection.
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.initial_stream_window_size(4 << 20).initial_connection_window_size(1 << 30);
                let (sender, connection) = builder.handshake(io).await?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        };
        let base = match protocol {
            Protocol::Http1 => String::new(),
            Protocol::Http2 => format!("https://{}", self.address),
        };
        Ok(Link { sender, base, host: self.address.to_string(), bearer: self.bearer.clone() })
    }
}

// === impl Link ===

impl Link {
    /// Another handle of the same HTTP/2 connection.
    pub(crate) fn shared(&self) -> Result<Self> {
        let Sender::Http2(sender) = &self.sender else { bail!("HTTP/1.1 connections are not shared") };
        let sender = Sender::Http2(sender.clone());
        Ok(Self { sender, base: self.base.clone(), host: self.host.clone(), bearer: self.bearer.clone() })
    }

    /// The head of the answer, which must be a success.
    pub(crate) async fn open(
        &mut self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::AUTHORIZATION, &self.bearer)
            .header(header::USER_AGENT, "forebay-bench/1");
        if self.base.is_empty() {
            request = request.header(header::HOST, &self.host);
        }
        let request = request.body(Full::from(body.into()))?;
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        ensure!(response.status().is_success(), "{method} {path}: {}", response.status());
        Ok(response)
    }

    /// The bytes of the whole answer, thrown away.
    pub(crate) async fn discard(&mut self, method: &str, path: &str, body: impl Into<Bytes>) -> Result<usize> {
        let mut body = self.open(method, path, body).await?.into_body();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(bytes)
    }
}
