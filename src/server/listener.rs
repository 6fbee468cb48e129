//! The accept loop. It never ends before the drain, and never spins.
//!
//! A place is taken before accept, so above the limit new connections wait in the kernel's queue. Handshakes run in
//! their own tasks under a deadline: a silent client costs a place for ten seconds and delays nobody.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{
    Handler, Limits, Metrics, Peer,
    connection::{self, Context},
    limits::{Connections, Place},
    metrics::{HandshakeFailure, Protocol},
};
use crate::lifecycle::{DrainToken, Tasks};

/// How long to wait when accept fails for want of files or memory: others must give some back first.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// A bound socket that accepts nothing yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

/// The socket can't be bound.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}: {reason}; choose another with --{flag}")]
pub struct BindError {
    /// Where it should have listened.
    pub address: SocketAddr,
    /// Why not, in plain words.
    pub reason: String,
    /// Flag that says where to listen.
    pub flag: &'static str,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

// === impl BindError ===

impl BindError {
    fn new(address: SocketAddr, flag: &'static str, source: io::Error) -> Self {
        let reason = match source.kind() {
            io::ErrorKind::AddrInUse => "another program, perhaps another forebay, has this port".to_owned(),
            io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
            io::ErrorKind::PermissionDenied => "ports below 1024 need more rights".to_owned(),
            _ => source.to_string(),
        };
        Self { address, reason, flag, source }
    }
}

// === impl Listener ===

impl Listener {
    /// Binds `address`; port 0 takes one from the kernel. `flag` is named in the error.
    ///
    /// # Errors
    ///
    /// When the address is taken, not ours, or not allowed.
    pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<Self, BindError> {
        let wrong = |source| BindError::new(address, flag, source);
        let socket = TcpListener::bind(address).await.map_err(wrong)?;
        let address = socket.local_addr().map_err(wrong)?;
        Ok(Self { socket, address })
    }

    /// Where it really listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket itself, for the admin port.
    pub fn into_socket(self) -> TcpListener {
        self.socket
    }

    /// Accepts until the drain starts, then closes the socket. Connections live on as tasks, each under a drain guard.
    pub async fn serve<H: Handler>(
        self,
        tls: Arc<ServerConfig>,
        handler: H,
        limits: Limits,
        metrics: Metrics,
        tasks: Tasks,
        drain: DrainToken,
    ) {
        let acceptor = TlsAcceptor::from(tls);
        let connections = Connections::new(&limits);
        let context = Context { limits, tasks: tasks.clone(), drain: drain.clone() };
        loop {
            if connections.is_full() {
                tracing::warn!(limit = limits.max_connections, "connection limit reached; new clients wait");
            }
            let (place, stream, address) = tokio::select! {
                accepted = accept(&self.socket, &connections, &metrics) => accepted,
                () = drain.draining() => return,
            };
            metrics.accepted();
            let guard = drain.guard();
            let peer = Peer { address };
            let served = serve(stream, acceptor.clone(), peer, handler.clone(), context.clone(), metrics.clone());
            tasks.spawn_connection(async move {
                served.await;
                drop((place, guard));
            });
        }
    }
}

/// The next connection, however long that takes. Cancel safe.
async fn accept(socket: &TcpListener, connections: &Connections, metrics: &Metrics) -> (Place, TcpStream, SocketAddr) {
    let place = connections.place().await;
    loop {
        match socket.accept().await {
            Ok((stream, address)) => return (place, stream, address),
            Err(error) => {
                metrics.accept_error();
                // These are about the one connection, which is gone; all others are about us.
                let gone = [
                    io::ErrorKind::ConnectionAborted,
                    io::ErrorKind::ConnectionReset,
                    io::ErrorKind::ConnectionRefused,
                    io::ErrorKind::Interrupted,
                ];
                if !gone.contains(&error.kind()) {
                    tracing::warn!(%error, "accept failed; trying again");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }
}

/// Handshake, then HTTP.
async fn serve<H: Handler>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    peer: Peer,
    handler: H,
    context: Context,
    metrics: Metrics,
) {
    // Small answers must not wait for the client's delayed ACK. A failure here shows again at the first write.
    let _ = stream.set_nodelay(true);
    let handshake = tokio::time::timeout(context.limits.handshake_timeout, acceptor.accept(stream));
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        // No request yet, so nothing is lost.
        () = context.drain.draining() => return,
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            metrics.handshake_failed(HandshakeFailure::Refused);
            // A health check that connects and closes is no news; a client that does not trust us is.
            tracing::debug!(client = %peer.address, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            metrics.handshake_failed(HandshakeFailure::Timeout);
            tracing::debug!(client = %peer.address, "TLS handshake timed out");
            return;
        }
    };
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    let _open = metrics.open(protocol);
    let ended = match protocol {
        Protocol::Http2 => connection::http2(stream, peer, handler, context).await,
        Protocol::Http1 => connection::http1(stream, peer, handler, context).await,
    };
    if let Err(error) = ended {
        tracing::debug!(client = %peer.address, error = %chain(&error), "connection ended with an error");
    }
}

/// hyper's own text is only the outermost cause.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
