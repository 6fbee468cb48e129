//! Connections of the server: TLS, the protocol ALPN chose, and their end by reset or by GOAWAY.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::{Mutex, RwLock};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::service::Shared;

/// One connection, so that it can be killed.
pub(super) struct Connection {
    pub(super) id: u64,
    /// Whom the client's certificate is for.
    pub(super) certificate: OnceLock<String>,
    kill: CancellationToken,
    goaway: CancellationToken,
}

#[derive(Clone, Default)]
pub(super) struct Connections {
    next: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<Arc<Connection>>>>,
}

/// Takes a connection off the list when it ends, however it ends.
pub(super) struct Listed {
    connections: Connections,
    connection: Arc<Connection>,
}

/// A socket that is reset, not closed, once its connection is killed.
struct Socket {
    stream: TcpStream,
    kill: CancellationToken,
}

/// What secures new connections, none if they are plain.
pub(super) type Acceptor = Arc<RwLock<Option<TlsAcceptor>>>;

/// Serves connections until it is dropped; `stop` ends those that are open.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Acceptor,
    shared: Arc<Shared>,
    connections: Connections,
    stop: CancellationToken,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: there will be some again.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Only latency depends on it.
        let _ = stream.set_nodelay(true);
        let listed = connections.enter();
        let acceptor = tls.read().clone();
        let served = serve(stream, acceptor, shared.clone(), listed);
        tokio::spawn(stop.clone().run_until_cancelled_owned(served));
    }
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>, listed: Listed) {
    let connection = listed.connection.clone();
    let socket = Socket { stream, kill: connection.kill.clone() };
    let killed = connection.kill.clone();
    let served = async {
        match tls {
            Some(acceptor) => {
                let Ok(Ok(stream)) = timeout(Duration::from_secs(10), acceptor.accept(socket)).await else { return };
                let session = stream.get_ref().1;
                let h2 = session.alpn_protocol() == Some(b"h2");
                if let Some(name) = session.peer_certificates().and_then(|shown| shared.name_of(shown.first()?)) {
                    // Set once, here.
                    let _ = connection.certificate.set(name);
                }
                speak(stream, h2, shared, connection).await;
            }
            None => speak(socket, false, shared, connection).await,
        }
    };
    killed.run_until_cancelled(served).await;
}

async fn speak<S>(stream: S, h2: bool, shared: Arc<Shared>, connection: Arc<Connection>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let goaway = connection.goaway.clone();
    let service = service_fn(move |request| shared.clone().handle(request, connection.clone()));
    let io = TokioIo::new(stream);
    // A connection that ends with an error has ended: the client sees it, nobody here needs to.
    if h2 {
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.timer(TokioTimer::new()).max_concurrent_streams(1_000).max_header_list_size(1 << 20);
        server.initial_stream_window_size(4 << 20).initial_connection_window_size(4 << 20).max_send_buf_size(1 << 20);
        let mut serving = std::pin::pin!(server.serve_connection(io, service));
        tokio::select! {
            _ = serving.as_mut() => return,
            () = goaway.cancelled() => serving.as_mut().graceful_shutdown(),
        }
        let _ = serving.await;
    } else {
        let mut server = hyper::server::conn::http1::Builder::new();
        server.max_headers(1_024);
        let mut serving = std::pin::pin!(server.serve_connection(io, service).with_upgrades());
        tokio::select! {
            _ = serving.as_mut() => return,
            () = goaway.cancelled() => serving.as_mut().graceful_shutdown(),
        }
        let _ = serving.await;
    }
}

// === impl Connection ===

impl Connection {
    /// Kills it with a reset.
    pub(super) fn reset(&self) {
        self.kill.cancel();
    }

    /// Lets it finish what is in flight, and nothing more.
    pub(super) fn go_away(&self) {
        self.goaway.cancel();
    }
}

// === impl Connections ===

impl Connections {
    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }

    pub(super) fn accepted(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(super) fn each(&self, act: impl Fn(&Connection)) {
        self.open.lock().iter().for_each(|c| act(c));
    }

    fn enter(&self) -> Listed {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            id,
            certificate: OnceLock::new(),
            kill: CancellationToken::new(),
            goaway: CancellationToken::new(),
        });
        self.open.lock().push(connection.clone());
        Listed { connections: self.clone(), connection }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.connections.open.lock().retain(|c| c.id != self.connection.id);
    }
}

// === impl Socket ===

impl Drop for Socket {
    fn drop(&mut self) {
        if self.kill.is_cancelled() {
            // If it fails the connection is closed instead of reset.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
