//! One client connection, HTTP/1.1 or HTTP/2, to a server that a kubeconfig describes.

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::target::{Protocol, Target};

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
    pub(crate) async fn open(&self, protocol: Protocol) -> Result<Link> {
        let io = TokioIo::new(self.connect(protocol).await?);
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
