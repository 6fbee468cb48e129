//! The stream between TLS and HTTP, which shows HTTP's parser only whole requests that mean one thing.
//!
//! HTTP/1.1: bytes are read straight into the parser's buffer and judged there; only a head that has not ended is kept
//! here, for `--header-timeout` at most. That is a deadline for a head that has begun, not for a connection that idles.
//! In place of a head that is refused the parser gets [`STAND_IN`], so that the refusal is answered in its turn, after
//! the requests that came before it, by [`Refusal::of_this_request`]; what follows is thrown away.
//!
//! HTTP/2 frames requests unmistakably, and hyper's server has no deadline for the first of its bytes: only those are
//! waited for.

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

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::framing::{self, Fault, Framing, Halt};

/// A client's stream, inspected.
#[derive(Debug)]
pub(super) struct Inspected<S> {
    stream: S,
    kind: Kind,
    /// Deadline of what has begun to come.
    deadline: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum Kind {
    Http1(Box<Http1>),
    /// Bytes of the HTTP/2 preface that are still to come.
    Preface(usize),
    Open,
}

#[derive(Debug)]
struct Http1 {
    framing: Framing,
    head_timeout: Duration,
    /// A head that has not ended.
    held: BytesMut,
    /// What may pass and has found no room yet.
    ready: BytesMut,
    refused: bool,
    refusal: Arc<Refusal>,
}

/// What the stream tells the service of its connection.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    /// The request, counted from 1, that is to be refused.
    what: OnceLock<(u64, Fault)>,
    answered: AtomicU64,
}

/// Parsed where a refused head was.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// `PRI * HTTP/2.0` and so on.
const PREFACE: usize = 24;

// === impl Refusal ===

impl Refusal {
    /// Called once for each request, in order.
    pub(super) fn of_this_request(&self) -> Option<Fault> {
        let number = 1 + self.answered.fetch_add(1, Ordering::Relaxed);
        self.what.get().filter(|(refused, _)| *refused == number).map(|(_, fault)| *fault)
    }
}

// === impl Inspected ===

impl<S> Inspected<S> {
    /// Inspects HTTP/1.1 requests, whose heads have at most so many bytes, and come within so much time once begun.
    pub(super) fn http1(stream: S, max_head: usize, head_timeout: Duration) -> (Self, Arc<Refusal>) {
        let refusal = Arc::new(Refusal::default());
        let http1 = Http1 {
            framing: Framing::new(max_head),
            head_timeout,
            held: BytesMut::new(),
            ready: BytesMut::new(),
            refused: false,
            refusal: refusal.clone(),
        };
        (Self { stream, kind: Kind::Http1(Box::new(http1)), deadline: None }, refusal)
    }

    /// Waits for the HTTP/2 preface for so long.
    pub(super) fn http2(stream: S, preface_timeout: Duration) -> Self {
        Self { stream, kind: Kind::Preface(PREFACE), deadline: Some(Box::pin(sleep(preface_timeout))) }
    }
}

/// Whether there is a deadline, and it has passed.
fn is_late(deadline: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> bool {
    let late = deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
    if late {
        *deadline = None;
    }
    late
}

impl<S: AsyncRead + Unpin> Inspected<S> {
    fn poll_preface(&mut self, left: usize, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf)? {
            Poll::Ready(()) => {
                let left = left.saturating_sub(buf.filled().len() - before);
                self.kind = if left == 0 { Kind::Open } else { Kind::Preface(left) };
                if left == 0 {
                    self.deadline = None;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending if is_late(&mut self.deadline, cx) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// `None` once nothing is inspected any more.
    fn poll_http1(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Option<Poll<io::Result<()>>> {
        let Kind::Http1(http1) = &mut self.kind else { return None };
        loop {
            if http1.give(buf) {
                return Some(Poll::Ready(Ok(())));
            }
            if http1.framing.is_open() {
                self.kind = Kind::Open;
                return None;
            }
            let before = buf.filled().len();
            match Pin::new(&mut self.stream).poll_read(cx, buf) {
                // Read and forgotten: a close with bytes unread would reset the connection before the refusal is seen. The
                // end is not told either, or hyper would answer nothing any more; it closes after the answer.
                Poll::Ready(Ok(())) if http1.refused => {
                    let ended = buf.filled().len() == before;
                    buf.set_filled(before);
                    if ended {
                        return Some(Poll::Pending);
                    }
                    continue;
                }
                Poll::Ready(Ok(())) if buf.filled().len() > before => {}
                // The end, perhaps in the middle of a head: the parser sees that something is missing, or nothing.
                Poll::Ready(end) => return Some(Poll::Ready(end)),
                Poll::Pending if is_late(&mut self.deadline, cx) => {
                    http1.refuse(Fault::SlowHead);
                    continue;
                }
                Poll::Pending => return Some(Poll::Pending),
            }
            if let Err(broken) = http1.judge(buf, before) {
                return Some(Poll::Ready(Err(broken)));
            }
            if http1.held.is_empty() {
                self.deadline = None;
            } else if self.deadline.is_none() {
                self.deadline = Some(Box::pin(sleep(http1.head_timeout)));
            }
            if buf.filled().len() > before {
                return Some(Poll::Ready(Ok(())));
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Inspected<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match this.kind {
            Kind::Preface(left) => return this.poll_preface(left, cx, buf),
            Kind::Http1(_) => {
                if let Some(polled) = this.poll_http1(cx, buf) {
                    return polled;
                }
            }
            Kind::Open => {}
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Inspected<S> {
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
        self.stream.is_write_vectored()
    }
}

// === impl Http1 ===

impl Http1 {
    /// Fills `buf` with what may pass; whether there was anything.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let some = self.ready.len().min(buf.remaining());
        if self.ready.is_empty() {
            return false;
        }
        buf.put_slice(&self.ready[..some]);
        self.ready.advance(some);
        true
    }

    /// Judges what `buf` has from `before` on, and leaves there only what may pass.
    fn judge(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let mut halt = None;
        if self.held.is_empty() {
            let new = &buf.filled()[before..];
            let verdict = self.framing.judge(new);
            self.held.extend_from_slice(&new[verdict.pass..]);
            buf.set_filled(before + verdict.pass);
            halt = verdict.halt;
        } else {
            self.held.extend_from_slice(&buf.filled()[before..]);
            buf.set_filled(before);
        }
        loop {
            match halt {
                Some(Halt::Escape(length)) => {
                    let head = self.held.split_to(length.min(self.held.len()));
                    self.ready.extend_from_slice(&framing::escape(&head));
                }
                Some(Halt::Refused(fault)) => self.refuse(fault),
                Some(Halt::BrokenBody) => return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed chunk")),
                None => {}
            }
            if self.held.is_empty() {
                return Ok(());
            }
            let verdict = self.framing.judge(&self.held);
            self.ready.unsplit(self.held.split_to(verdict.pass));
            halt = verdict.halt;
            if halt.is_none() {
                return Ok(());
            }
        }
    }

    fn refuse(&mut self, fault: Fault) {
        let _ = self.refusal.what.set((self.framing.heads() + 1, fault));
        self.ready.extend_from_slice(STAND_IN);
        self.held.clear();
        self.refused = true;
    }
}
