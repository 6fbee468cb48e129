//! Bodies of answers: whole, or streamed by a task through a sink that may cut, stall, pace and hold them.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use super::script::BodyPlan;

/// Size of the pieces bodies are sent in.
pub(super) const CHUNK: usize = 128 * 1024;

/// Upstream sends a length only up to this many bytes, and chunks what is longer.
const SIZED: usize = 2_048;

/// A response body.
pub(super) enum Body {
    Whole(Option<Bytes>),
    Stream(mpsc::Receiver<Result<Bytes, Broken>>),
}

/// The body ends here on purpose, in the middle.
#[derive(Debug, thiserror::Error)]
#[error("body cut by the script")]
pub(super) struct Broken;

/// The reader is gone, or the script has ended the body.
#[derive(Debug)]
pub(super) struct Closed;

/// Where a streaming answer writes.
pub(super) struct Sink {
    tx: mpsc::Sender<Result<Bytes, Broken>>,
    plan: BodyPlan,
    sent: usize,
}

// === impl Body ===

impl Body {
    pub(super) fn stream(plan: BodyPlan) -> (Sink, Self) {
        let (tx, rx) = mpsc::channel(1);
        (Sink { tx, plan, sent: 0 }, Self::Stream(rx))
    }

    /// A whole body, sent through a sink where the plan wants something done to it.
    pub(super) fn whole(bytes: Bytes, plan: BodyPlan) -> Self {
        let BodyPlan { pace, holds, piece, cut, stall } = &plan;
        if pace.is_zero() && holds.is_empty() && piece.is_none() && cut.is_none() && stall.is_none() {
            return Self::Whole(Some(bytes));
        }
        let (mut sink, body) = Self::stream(plan);
        tokio::spawn(async move { sink.send(bytes).await });
        body
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b)))),
            Self::Stream(rx) => rx.poll_recv(cx).map(|next| next.map(|r| r.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(None) => SizeHint::with_exact(0),
            Self::Whole(Some(bytes)) if bytes.len() <= SIZED => SizeHint::with_exact(bytes.len() as u64),
            _ => SizeHint::default(),
        }
    }
}

// === impl Sink ===

impl Sink {
    /// Sends a piece, in several if it is large.
    pub(super) async fn send(&mut self, mut bytes: Bytes) -> Result<(), Closed> {
        let (size, most) = self.plan.piece.map_or((CHUNK, CHUNK + CHUNK / 2), |size| (size, size));
        while bytes.len() > most {
            self.piece(bytes.split_to(size)).await?;
        }
        self.piece(bytes).await
    }

    /// Resolves when the reader has gone.
    pub(super) async fn closed(&self) {
        self.tx.closed().await;
    }

    /// Breaks the body off here.
    pub(super) async fn cut(&mut self) -> Closed {
        self.drained().await;
        let _ = self.tx.send(Err(Broken)).await;
        Closed
    }

    /// Sends nothing more until the reader goes.
    pub(super) async fn stall(&mut self) -> Closed {
        self.closed().await;
        Closed
    }

    async fn piece(&mut self, mut bytes: Bytes) -> Result<(), Closed> {
        for latch in &self.plan.holds {
            tokio::select! {
                () = latch.pass() => {}
                () = self.tx.closed() => return Err(Closed),
            }
        }
        if !self.plan.pace.is_zero() {
            tokio::time::sleep(self.plan.pace).await;
        }
        let end = [self.plan.cut, self.plan.stall].into_iter().flatten().min();
        let room = end.map_or(usize::MAX, |end| end.saturating_sub(self.sent));
        let over = bytes.len() > room;
        bytes.truncate(room);
        self.sent += bytes.len();
        if !bytes.is_empty() {
            self.tx.send(Ok(bytes)).await.map_err(|_| Closed)?;
        }
        if !over {
            return Ok(());
        }
        Err(if self.plan.cut == end { self.cut().await } else { self.stall().await })
    }

    /// Lets hyper take and write out what was sent: an error right behind it would overtake the bytes.
    async fn drained(&self) {
        let _ = self.tx.reserve().await.map(drop);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl From<Infallible> for Broken {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
