//! A checking walk over JSON text: reads what it is asked for, skips the rest.
//!
//! Everything it hands out is a slice of the text. It is strict where it reads (punctuation, keys, strings) and lenient
//! where it skips: see [`super::skip`].

use std::borrow::Cow;

use super::{
    skip::{self, Nesting},
    text::Quoted,
};

/// Why a text could not be read. Offsets are in bytes from the start of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The text ends inside a value.
    #[error("json text ends early, after {len} bytes")]
    Truncated {
        /// Length of the text.
        len: usize,
    },
    /// Another byte than JSON allows there, or than this kind of text has there.
    #[error("unexpected {found:?} at byte {at}, expected {expected}")]
    Unexpected {
        /// Where.
        at: usize,
        /// The byte found, as a Latin-1 character.
        found: char,
        /// What should have stood there.
        expected: &'static str,
    },
    /// A field that is read stands there twice. Go lets the last one win, other readers the first: nobody should guess.
    #[error("field {field} appears twice")]
    Duplicate {
        /// Name of the field.
        field: &'static str,
    },
    /// A string that is not UTF-8 or has an impossible escape.
    #[error("invalid string at byte {at}")]
    InvalidString {
        /// Where its opening quote is.
        at: usize,
    },
    /// A field that is read has a value of another type.
    #[error("field {field} is not {expected}")]
    WrongType {
        /// Name of the field.
        field: &'static str,
        /// The type it should have.
        expected: &'static str,
    },
}

/// A place in a text.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

// === impl Cursor ===

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Offset of the next byte to be read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next byte that is not white space, without taking it.
    pub(super) fn peek(&mut self) -> Result<u8, ScanError> {
        while let Some(&b) = self.text.get(self.at) {
            if !matches!(b, b' ' | b'\n' | b'\r' | b'\t') {
                return Ok(b);
            }
            self.at += 1;
        }
        Err(self.truncated())
    }

    /// Takes the byte `want`.
    pub(super) fn take(&mut self, want: u8, expected: &'static str) -> Result<(), ScanError> {
        let found = self.peek()?;
        if found != want {
            return Err(self.unexpected(found, expected));
        }
        self.at += 1;
        Ok(())
    }

    /// Takes the next key of an object and its colon, or the object's end. `first` = nothing was taken since its brace.
    pub(super) fn key(&mut self, first: bool) -> Result<Option<Quoted<'a>>, ScanError> {
        match self.peek()? {
            b'}' => {
                self.at += 1;
                return Ok(None);
            }
            b',' if !first => self.at += 1,
            _ if first => {}
            found => return Err(self.unexpected(found, "a comma or the end of the object")),
        }
        let key = self.string()?;
        self.take(b':', "a colon")?;
        Ok(Some(key))
    }

    /// Takes a string.
    pub(super) fn string(&mut self) -> Result<Quoted<'a>, ScanError> {
        self.take(b'"', "a string")?;
        let start = self.at - 1;
        let (end, escapes) = skip::string_end(self.text, self.at).ok_or_else(|| self.truncated())?;
        self.at = end + 1;
        Ok(Quoted::new(&self.text[start..self.at], escapes))
    }

    /// Takes a string or `null` and reads it.
    pub(super) fn text_of(&mut self, field: &'static str) -> Result<Option<Cow<'a, str>>, ScanError> {
        match self.peek()? {
            b'"' => {
                let at = self.at;
                self.string()?.read().map(Some).ok_or(ScanError::InvalidString { at })
            }
            _ if self.skip()? == b"null" => Ok(None),
            _ => Err(ScanError::WrongType { field, expected: "a string" }),
        }
    }

    /// Takes any value and gives its text.
    pub(super) fn skip(&mut self) -> Result<&'a [u8], ScanError> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => {
                self.string()?;
            }
            b'{' | b'[' => {
                let inside = &self.text[start + 1..];
                let len = Nesting::opened().close(inside).ok_or_else(|| self.truncated())?;
                self.at = start + 1 + len;
            }
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                let ends = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
                let rest = &self.text[start..];
                self.at = start + rest.iter().position(ends).unwrap_or(rest.len());
            }
            found => return Err(self.unexpected(found, "a value")),
        }
        Ok(&self.text[start..self.at])
    }

    /// Checks that only white space is left.
    pub(super) fn end(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            Ok(found) => Err(self.unexpected(found, "the end of the text")),
            Err(_) => Ok(()),
        }
    }

    fn truncated(&self) -> ScanError {
        ScanError::Truncated { len: self.text.len() }
    }

    fn unexpected(&self, found: u8, expected: &'static str) -> ScanError {
        ScanError::Unexpected { at: self.at, found: char::from(found), expected }
    }
}
