//! Protobuf watch streams: frames of a big-endian 32-bit length and a bare `WatchEvent {1 type, 2 object {1 raw}}`, whose
//! `raw` is a whole enveloped object (api-semantics 5.3).

use super::{Error, Message};

/// Decodes one stream, cut anywhere.
#[derive(Debug)]
pub struct WatchFrames {
    pending: Vec<u8>,
    read: usize,
    limit: usize,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchFrame<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub kind: &'a str,
    /// The enveloped object.
    pub object: &'a [u8],
}

/// Why a stream can't be followed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// A frame is larger than allowed.
    #[error("protobuf watch frame of {len} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame is no watch event.
    #[error(transparent)]
    Frame(#[from] Error),
}

// === impl WatchFrames ===

impl WatchFrames {
    /// A decoder of frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { pending: Vec::new(), read: 0, limit }
    }

    /// Takes what came.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.pending.drain(..self.read);
        self.read = 0;
        self.pending.extend_from_slice(chunk);
    }

    /// The next whole event, if there is one. Take all of them after each [`Self::feed`].
    pub fn next_frame(&mut self) -> Result<Option<WatchFrame<'_>>, WatchError> {
        let left = self.pending.get(self.read..).unwrap_or_default();
        let Some((len, rest)) = left.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_be_bytes(*len) as usize;
        if len > self.limit {
            return Err(WatchError::TooLarge { len, limit: self.limit });
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        self.read += 4 + len;
        Ok(Some(event(frame)?))
    }
}

fn event(frame: &[u8]) -> Result<WatchFrame<'_>, Error> {
    let mut event = WatchFrame { kind: "", object: &[] };
    let mut message = Message { body: frame, at: 0, end: frame.len() };
    while let Some(field) = message.next()? {
        match field.number {
            1 => event.kind = field.text("type")?,
            2 => {
                let mut object = field.message("object")?;
                while let Some(field) = object.next()? {
                    if field.number == 1 {
                        event.object = field.message("raw")?.bytes();
                    }
                }
            }
            _ => {}
        }
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: &str, object: &[u8]) -> Vec<u8> {
        let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
        let event = [field(1, kind.as_bytes()), field(2, &field(1, object))].concat();
        [&(event.len() as u32).to_be_bytes()[..], &event].concat()
    }

    #[test]
    fn events_come_out_however_the_stream_is_cut() {
        let stream = [frame("ADDED", b"k8s\0one"), frame("BOOKMARK", b"k8s\0two")].concat();
        for size in 1..=stream.len() {
            let mut frames = WatchFrames::new(1000);
            let mut seen = Vec::new();
            for chunk in stream.chunks(size) {
                frames.feed(chunk);
                while let Some(frame) = frames.next_frame().unwrap() {
                    seen.push((frame.kind.to_owned(), frame.object.to_vec()));
                }
            }
            assert_eq!(seen, [("ADDED".into(), b"k8s\0one".to_vec()), ("BOOKMARK".into(), b"k8s\0two".to_vec())]);
        }
    }

    #[test]
    fn junk_is_an_error() {
        let mut frames = WatchFrames::new(10);
        frames.feed(&[0, 0, 0, 11]);
        assert_eq!(frames.next_frame(), Err(WatchError::TooLarge { len: 11, limit: 10 }));
        let mut frames = WatchFrames::new(10);
        frames.feed(&[0, 0, 0, 2, 0x0a, 9]);
        assert!(matches!(frames.next_frame(), Err(WatchError::Frame(Error::Truncated { .. }))));
    }
}
