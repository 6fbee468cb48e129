//! Every response body there is: ready bytes, a cached LIST, or upstream's own frames passing through.
//!
//! A body carries what must live as long as it does: the in-flight guard that a drain waits for, the observer that
//! raises fences, and the access record that is written when it ends or the client goes.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::lifecycle::drain::{DrainToken, Guard};

use super::{
    list_body::{ListBody, Step},
    observe::Observer,
    record::Record,
};

/// A response body.
pub struct Body {
    kind: Kind,
    record: Option<Box<Record>>,
    _in_flight: Option<Guard>,
}

enum Kind {
    Ready(Option<Bytes>),
    List(Box<ListBody>),
    Upstream(Box<Upstream>),
}

/// Upstream's frames on their way.
struct Upstream {
    incoming: Incoming,
    observer: Option<Box<Observer>>,
    /// Watches don't end by themselves: a drain ends them, between two events.
    drain: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    between_events: bool,
    ended: bool,
}

// === impl Body ===

impl Body {
    /// Bytes at hand.
    pub(crate) fn ready(bytes: Bytes) -> Self {
        Self::of(Kind::Ready(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self::of(Kind::Ready(None))
    }

    /// A cached LIST that is written while it is sent.
    pub(crate) fn list(list: ListBody) -> Self {
        Self::of(Kind::List(Box::new(list)))
    }

    /// Upstream's body; with `drain`, a watch that ends when the process drains.
    pub(super) fn upstream(incoming: Incoming, observer: Option<Box<Observer>>, drain: Option<&DrainToken>) -> Self {
        let drain = drain.map(|token| Box::pin(token.draining_owned()));
        Self::of(Kind::Upstream(Box::new(Upstream { incoming, observer, drain, between_events: true, ended: false })))
    }

    /// Keeps the process from ending before this body has.
    pub(crate) fn in_flight(mut self, guard: Guard) -> Self {
        self._in_flight = Some(guard);
        self
    }

    /// Writes this record when the body ends.
    pub(super) fn recorded(mut self, record: Box<Record>) -> Self {
        self.record = Some(record);
        self
    }

    fn of(kind: Kind) -> Self {
        Self { kind, record: None, _in_flight: None }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.kind {
            Kind::Ready(_) => "ready",
            Kind::List(_) => "list",
            Kind::Upstream(_) => "upstream",
        };
        f.debug_tuple("Body").field(&kind).finish()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let frame = match &mut this.kind {
            Kind::Ready(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::List(list) => match list.step() {
                Step::Frame(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Step::Done => Poll::Ready(None),
                Step::Yield => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            },
            Kind::Upstream(upstream) => upstream.poll_frame(cx),
        };
        let frame = ready!(frame);
        if let (Some(record), Some(Ok(frame))) = (&mut this.record, &frame) {
            record.add_bytes(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Ready(bytes) => bytes.is_none(),
            Kind::List(_) => false,
            Kind::Upstream(upstream) => upstream.ended || upstream.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Ready(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::List(_) => SizeHint::default(),
            Kind::Upstream(upstream) => upstream.incoming.size_hint(),
        }
    }
}

// === impl Upstream ===

impl Upstream {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.between_events = data.last().is_none_or(|byte| *byte == b'\n');
                    if let Some(observer) = &mut self.observer {
                        observer.data(data);
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.ended = true;
                if let Some(mut observer) = self.observer.take() {
                    observer.end();
                }
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Pending => {
                if let Some(drain) = &mut self.drain
                    && self.between_events
                    && std::future::Future::poll(drain.as_mut(), cx).is_ready()
                {
                    self.ended = true;
                    return Poll::Ready(None);
                }
                Poll::Pending
            }
        }
    }
}
