//! Whether upstream is there: each connection has a pulse, all of them together tell whether it can be reached.
//!
//! ```text
//! Listening (connector) -> Heard (stream) -- any byte read --> Pulse of the connection, in the extensions of its responses
//!                |                        '-----------------> Reach: upstream was heard
//!                '-- no connection -------------------------> Reach: it is away, until it is heard again
//! ```
//!
//! Bytes are counted above TLS, so they are upstream's own. A quiet HTTP/2 connection is pinged, and the answers are bytes;
//! HTTP/1.1 has nothing like it, so its silence proves nothing in either direction.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tower::Service;

use crate::store::Pulse;

use super::{body::BoxError, lanes::PING_TIMEOUT};

/// Whether upstream can be reached. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reach {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    since: Instant,
    /// Microseconds since `since`.
    heard: AtomicU64,
    /// Connections that are open.
    open: AtomicUsize,
    away: AtomicBool,
    left: Notify,
    returned: Notify,
}

/// A connector whose connections are listened to.
#[derive(Clone, Debug)]
pub(super) struct Listening<C> {
    connector: C,
    reach: Reach,
}

/// A connection that is listened to.
#[derive(Debug)]
pub(super) struct Heard<S> {
    stream: S,
    pulse: Arc<Pulse>,
    reach: Reach,
}

// === impl Reach ===

impl Reach {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        let inner = Inner {
            since: Instant::now(),
            heard: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            away: AtomicBool::new(false),
            left: Notify::new(),
            returned: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The latest that is known: upstream could not be reached.
    pub fn is_away(&self) -> bool {
        self.inner.away.load(Ordering::Relaxed)
    }

    /// It could not be reached.
    pub(super) fn leave(&self) {
        if !self.inner.away.swap(true, Ordering::Relaxed) {
            self.inner.left.notify_waiters();
        }
    }

    /// A connection could not be made. One that is open, and was heard of late, tells that upstream is there all the same:
    /// one of its servers is not, or it does not want whoever this was for.
    fn refuse(&self) {
        if self.inner.open.load(Ordering::Relaxed) == 0 || self.heard().elapsed() >= PING_TIMEOUT {
            self.leave();
        }
    }

    /// Resolves when upstream is away: another request has found out, or nothing at all has been heard of it for
    /// `patience` from now on.
    pub async fn lost(&self, patience: Duration) {
        let begun = Instant::now();
        loop {
            let left = self.inner.left.notified();
            if self.is_away() {
                return;
            }
            let deadline = self.heard().max(begun) + patience;
            if Instant::now() >= deadline {
                self.leave();
                return;
            }
            tokio::select! {
                () = left => {}
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// A connection broke. If nothing was heard for long it was a ping without an answer, which no other connection had
    /// an answer for either: upstream is away.
    pub(super) fn broke(&self) {
        if self.heard().elapsed() >= PING_TIMEOUT {
            self.leave();
        }
    }

    /// A request of ours was answered as it should be, after one was not.
    pub(super) fn works(&self) {
        self.inner.returned.notify_waiters();
    }

    /// Resolves when upstream is heard after it was away, or works again.
    pub(super) async fn returned(&self) {
        self.inner.returned.notified().await;
    }

    fn heard(&self) -> Instant {
        self.inner.since + Duration::from_micros(self.inner.heard.load(Ordering::Relaxed))
    }

    fn beat(&self) {
        let inner = &*self.inner;
        let since = u64::try_from(inner.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        inner.heard.store(since, Ordering::Relaxed);
        if inner.away.load(Ordering::Relaxed) {
            inner.away.store(false, Ordering::Relaxed);
            inner.returned.notify_waiters();
        }
    }
}

// === impl Listening ===

impl<C> Listening<C> {
    /// Listens to the connections of `connector`.
    pub(super) fn new(connector: C, reach: Reach) -> Self {
        Self { connector, reach }
    }
}

impl<C> Service<Uri> for Listening<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = Heard<C::Response>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.connector.call(uri);
        let reach = self.reach.clone();
        Box::pin(async move {
            match connecting.await {
                Ok(stream) => {
                    reach.inner.open.fetch_add(1, Ordering::Relaxed);
                    Ok(Heard { stream, pulse: Arc::default(), reach })
                }
                Err(error) => {
                    reach.refuse();
                    Err(error.into())
                }
            }
        })
    }
}

// === impl Heard ===

impl<S: Connection> Connection for Heard<S> {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.pulse.clone())
    }
}

impl<S> Drop for Heard<S> {
    fn drop(&mut self) {
        self.reach.inner.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Read + Unpin> Read for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<Result<(), io::Error>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        // Bytes, or the end, which the other side has sent as well.
        if matches!(read, Poll::Ready(Ok(()))) {
            self.pulse.beat();
            self.reach.beat();
        }
        read
    }
}

impl<S: Write + Unpin> Write for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize, io::Error>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<Result<usize, io::Error>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_is_away_from_a_failure_until_it_is_heard() {
        let reach = Reach::new();
        assert!(!reach.is_away(), "nothing is known yet");
        reach.leave();
        assert!(reach.is_away());
        timeout(SECOND, reach.lost(10 * SECOND)).await.expect("known already");
        reach.beat();
        assert!(!reach.is_away());
        advance(7 * SECOND).await;
        reach.broke();
        assert!(!reach.is_away(), "one connection was closed");
        advance(SECOND).await;
        reach.broke();
        assert!(reach.is_away(), "nobody answered a ping");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_with_silence() {
        let reach = Reach::new();
        // Silence before the question proves nothing: there may have been nothing to say.
        advance(60 * SECOND).await;
        timeout(9 * SECOND, reach.lost(10 * SECOND)).await.unwrap_err();
        assert!(!reach.is_away());
        let (lost, ()) = tokio::join!(timeout(15 * SECOND, reach.lost(10 * SECOND)), async {
            tokio::time::sleep(9 * SECOND).await;
            reach.beat();
        });
        lost.unwrap_err();
        let begun = Instant::now();
        let (lost, ()) = tokio::join!(timeout(SECOND, reach.lost(10 * SECOND)), async { reach.leave() });
        lost.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
