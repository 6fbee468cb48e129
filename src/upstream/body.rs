//! What a request to upstream carries.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// Any error, as bodies and services give it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body: none, or a client's own, streamed.
#[derive(Debug)]
pub enum RequestBody {
    /// Nothing.
    Empty,
    /// What the client sends.
    Stream(Incoming),
}

// === impl RequestBody ===

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Stream(incoming) => Pin::new(incoming).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Stream(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Stream(incoming) => incoming.size_hint(),
        }
    }
}
