//! Cuts the body of a JSON watch, as it arrives, into events.
//!
//! A frame is one line, `{"type":"ADDED","object":{...}}`: JSON strings cannot hold a raw newline, so a search for one
//! finds the end. Bytes are searched once however small the pieces are; a frame is copied once, into the buffer that it is
//! then read from in place.
//!
//! It does NOT read objects: a frame's object is balanced and the only thing in its frame besides the type.

use memchr::memchr;

use super::cursor::{Cursor, ScanError};

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// The object exists; new, or one of the initial ones.
    Added,
    /// The object has changed.
    Modified,
    /// The object is gone; this is its last state, with the resource version of its deletion.
    Deleted,
    /// All events up to this object's resource version have been sent.
    Bookmark,
    /// The object is a Status; nothing follows.
    Error,
}

/// One watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What has happened.
    pub kind: EventType,
    /// The text of the object, a Status for [`EventType::Error`].
    pub object: &'a [u8],
}

/// Why a watch body cannot be read on. All are final.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame is larger than allowed.
    #[error("watch frame is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The body ends inside a frame.
    #[error("watch body ends inside a frame, {bytes} bytes into it")]
    Truncated {
        /// Bytes of the frame that have come.
        bytes: usize,
    },
    /// The type is none of those known.
    #[error("unknown watch event type {found:?}")]
    UnknownType {
        /// The type.
        found: String,
    },
    /// A frame without a type or an object.
    #[error("watch frame has no {field}")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A frame that is not such an object.
    #[error("watch frame is invalid: {0}")]
    Invalid(#[from] ScanError),
}

/// Cuts one watch body. Feed it, then take frames until there are none.
#[derive(Debug)]
pub struct FrameDecoder {
    max_frame_bytes: usize,
    buffer: Vec<u8>,
    /// Where the next frame starts in `buffer`.
    start: usize,
    /// Up to where `buffer` has no newline after `start`.
    searched: usize,
}

// === impl FrameDecoder ===

impl FrameDecoder {
    /// A decoder for one body, whose frames may have up to `max_frame_bytes` each.
    pub fn new(max_frame_bytes: usize) -> Self {
        Self { max_frame_bytes, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// Takes the next piece of the body, cut anywhere.
    pub fn feed(&mut self, chunk: &[u8]) {
        // What has been read goes first. The rest is less than a frame if all frames were taken, and is moved only once.
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// The next complete frame, or `None` until more has been fed. After an error the rest of the body means nothing.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        loop {
            let Some(len) = memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                return match self.pending() > self.max_frame_bytes {
                    true => Err(FrameError::TooLarge { limit: self.max_frame_bytes }),
                    false => Ok(None),
                };
            };
            let line = self.start..self.searched + len;
            self.searched += len + 1;
            self.start = self.searched;
            if line.len() > self.max_frame_bytes {
                return Err(FrameError::TooLarge { limit: self.max_frame_bytes });
            }
            if !self.buffer[line.clone()].trim_ascii().is_empty() {
                return Frame::read(&self.buffer[line]).map(Some);
            }
        }
    }

    /// Bytes of a frame that is not complete yet.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The end of the body, after the last frame has been taken: an error if it ends inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        match self.buffer[self.start..].trim_ascii().len() {
            0 => Ok(()),
            bytes => Err(FrameError::Truncated { bytes }),
        }
    }
}

// === impl Frame ===

impl<'a> Frame<'a> {
    /// Reads one line.
    fn read(line: &'a [u8]) -> Result<Self, FrameError> {
        let mut cursor = Cursor::new(line);
        let (mut kind, mut object, mut first) = (None, None, true);
        cursor.take(b'{', "an object")?;
        while let Some(key) = cursor.key(std::mem::take(&mut first))? {
            match &*key.bytes() {
                b"type" => {
                    let text = cursor.text_of("type")?.ok_or(FrameError::Missing { field: "type" })?;
                    if kind.replace(EventType::read(&text)?).is_some() {
                        return Err(ScanError::Duplicate { field: "type" }.into());
                    }
                }
                b"object" => {
                    if cursor.peek()? != b'{' {
                        return Err(ScanError::WrongType { field: "object", expected: "an object" }.into());
                    }
                    if object.replace(cursor.skip()?).is_some() {
                        return Err(ScanError::Duplicate { field: "object" }.into());
                    }
                }
                _ => {
                    cursor.skip()?;
                }
            }
        }
        cursor.end()?;
        Ok(Self {
            kind: kind.ok_or(FrameError::Missing { field: "type" })?,
            object: object.ok_or(FrameError::Missing { field: "object" })?,
        })
    }
}

// === impl EventType ===

impl EventType {
    fn read(text: &str) -> Result<Self, FrameError> {
        Ok(match text {
            "ADDED" => Self::Added,
            "MODIFIED" => Self::Modified,
            "DELETED" => Self::Deleted,
            "BOOKMARK" => Self::Bookmark,
            "ERROR" => Self::Error,
            _ => return Err(FrameError::UnknownType { found: text.to_owned() }),
        })
    }
}

#[cfg(test)]
mod tests;
