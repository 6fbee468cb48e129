//! A connection to upstream: dialled, then secured, each step within its own time; and what has passed on it, as far as
//! a retry has to know.
//!
//! Whatever fails here fails before anything of a request has been sent. A handshake that fails over a certificate is
//! tried once more when the certificates turn out to have been replaced meanwhile, for writes as well.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Extensions, Uri, uri::Scheme};
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connected, Connection},
    },
    rt::TokioIo,
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::Service;

use super::{
    body::BoxError,
    credentials::Showing,
    dial::Dial,
    error::{chain, find},
    keyring::Keyring,
};

/// No connection could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection: refused, no route, no such name, a proxy that does not help.
    #[error("{}", chain(.0.as_ref()))]
    Tcp(BoxError),
    /// No TCP connection in time.
    #[error("no TCP connection within {0:?}")]
    TcpTimeout(Duration),
    /// The two sides don't agree who upstream is, or who forebay is.
    #[error("TLS handshake: {0}")]
    Tls(io::Error),
    /// A TLS handshake that did not end in time.
    #[error("no TLS handshake within {0:?}")]
    TlsTimeout(Duration),
}

/// Makes connections.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) dial: Dial,
    pub(super) keyring: Arc<Keyring>,
    pub(super) showing: Showing,
    /// For each step.
    pub(super) limit: Duration,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    stream: Stream,
    traffic: Traffic,
}

/// What has passed on a connection, above TLS.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    inner: Arc<Passed>,
}

#[derive(Debug, Default)]
struct Passed {
    /// A request has been answered, and another one sent.
    reused: AtomicBool,
    /// Something has come since the last request was sent.
    answering: AtomicBool,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

// === impl ConnectError ===

impl ConnectError {
    /// Whether other certificates might help.
    fn is_over_a_certificate(&self) -> bool {
        let Self::Tls(error) = self else { return false };
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        matches!(cause, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)))
    }
}

// === impl Connector ===

impl Connector {
    async fn connect(mut self, uri: Uri) -> Result<TokioIo<Link>, ConnectError> {
        let shown = self.keyring.current();
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        match self.once(uri.clone(), secure.then(|| shown.tls(self.showing))).await {
            Err(error) if error.is_over_a_certificate() && self.keyring.renew(shown.generation).await => {
                let shown = self.keyring.current();
                self.once(uri, secure.then(|| shown.tls(self.showing))).await
            }
            other => other,
        }
    }

    async fn once(
        &mut self,
        uri: Uri,
        tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    ) -> Result<TokioIo<Link>, ConnectError> {
        let limit = self.limit;
        let dialled = match timeout(limit, self.dial.call(uri)).await {
            Ok(Ok(dialled)) => dialled.into_inner(),
            Ok(Err(error)) if find::<io::Error>(&*error).is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) => {
                return Err(ConnectError::TcpTimeout(limit));
            }
            Ok(Err(error)) => return Err(ConnectError::Tcp(error)),
            Err(_) => return Err(ConnectError::TcpTimeout(limit)),
        };
        let stream = match tls {
            None => Stream::Plain(dialled),
            Some((config, name)) => match timeout(limit, TlsConnector::from(config).connect(name, dialled)).await {
                Ok(Ok(stream)) => Stream::Tls(Box::new(stream)),
                Ok(Err(error)) => return Err(ConnectError::Tls(error)),
                Err(_) => return Err(ConnectError::TlsTimeout(limit)),
            },
        };
        Ok(TokioIo::new(Link { stream, traffic: Traffic::default() }))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Link>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.dial.poll_ready(cx).map_err(ConnectError::Tcp)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

// === impl Traffic ===

impl Traffic {
    /// Of the connection on which a request failed.
    pub(super) fn of(error: &legacy::Error) -> Option<Self> {
        let mut extras = Extensions::new();
        error.connect_info()?.get_extras(&mut extras);
        extras.remove()
    }

    /// The connection had served a request before, and brought not one byte of an answer to the last: upstream has closed
    /// it for being idle, most likely without having seen that request.
    pub(super) fn was_idle(&self) -> bool {
        self.inner.reused.load(Ordering::Acquire) && !self.inner.answering.load(Ordering::Acquire)
    }

    /// Nothing has ever come on it.
    pub(super) fn was_silent(&self) -> bool {
        !self.inner.reused.load(Ordering::Acquire) && !self.inner.answering.load(Ordering::Acquire)
    }

    fn sends(&self) {
        if self.inner.answering.swap(false, Ordering::AcqRel) {
            self.inner.reused.store(true, Ordering::Release);
        }
    }

    fn receives(&self) {
        if !self.inner.answering.load(Ordering::Relaxed) {
            self.inner.answering.store(true, Ordering::Release);
        }
    }
}

// === impl Link ===

impl Connection for Link {
    fn connected(&self) -> Connected {
        let connected = Connected::new().extra(self.traffic.clone());
        match &self.stream {
            Stream::Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(b"h2") => connected.negotiated_h2(),
            _ => connected,
        }
    }
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if buf.filled().len() > before {
            this.traffic.receives();
        }
        polled
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.traffic.sends();
        match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.traffic.sends();
        match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_was_idle_when_it_died_between_an_answer_and_the_next() {
        let traffic = Traffic::default();
        assert!(traffic.was_silent() && !traffic.was_idle(), "nothing sent");
        traffic.sends();
        assert!(traffic.was_silent() && !traffic.was_idle(), "the first request");
        traffic.receives();
        assert!(!traffic.was_silent() && !traffic.was_idle(), "its answer");
        traffic.sends();
        traffic.sends();
        assert!(!traffic.was_silent() && traffic.was_idle(), "the second request");
        traffic.receives();
        assert!(!traffic.was_silent() && !traffic.was_idle(), "the first byte of its answer");
    }
}
