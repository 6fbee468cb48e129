//! Sockets, TLS and HTTP for clients; no Kubernetes meaning.
//!
//! ```text
//! listener (permit, accept) -> tls (handshake, ALPN) -> inspect (framing) -> connection (HTTP/1.1 or HTTP/2) -> Handler
//! ```
//!
//! Every connection ends by itself when the drain starts: idle ones at once, others after the requests in flight.
//! Bodies that never end (watches) must watch the drain themselves; so must tunnels, which outlive their connection.

pub mod connection;
mod framing;
mod inspect;
pub mod limits;
pub mod listener;
mod metrics;
mod service;
pub mod tls;

use std::{future::Future, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;

pub use limits::Limits;
pub use listener::{BindError, Listener};
pub use metrics::Metrics;
pub use tls::{IdentityError, ServingIdentity};

/// Answers requests. One clone for each connection; [`Handler::handle`] runs concurrently.
///
/// Every request carries a [`Peer`] in its extensions.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Body of the answers.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;

    /// Answers one request. Dropped when the client goes away before the answer's head is sent; after that its body is.
    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Response<Self::Body>> + Send;

    /// The answer to what is no readable request: with this code, for this reason.
    fn refuse(&self, code: StatusCode, why: &str) -> Response<Self::Body>;
}

/// Who is at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of the client's socket.
    pub address: SocketAddr,
}

#[cfg(test)]
mod tests;
