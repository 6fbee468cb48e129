//! Where HTTP/1.1 requests begin and end, and which of them could be read in two ways (SEC-06).
//!
//! hyper parses what passes here, and is more lenient than is good where others may stand in front of it: it takes a
//! bare line feed for a line's end, ignores a length beside `chunked`, and takes the same length twice. Those, and all
//! that it refuses itself with an empty answer, are found here first, so that one place decides and the answer says why.
//! What kube-apiserver accepts is accepted: see [`escape`].
//!
//! Pure: bytes in, [`Verdict`] out. A head is looked at once, line by line, however many pieces it comes in; bodies are
//! only counted. Nothing of a head passes before all of it has been judged.

use std::ops::Range;

use http::{StatusCode, uri::PathAndQuery};

/// One connection's position in its requests.
#[derive(Debug)]
pub(super) struct Framing {
    max_head: usize,
    heads: u64,
    state: State,
}

/// What may be done with the bytes that were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Bytes at the front that may pass. What follows is a head that has not ended, or what halts.
    pub(super) pass: usize,
    /// Why it stopped before the end.
    pub(super) halt: Option<Halt>,
}

/// Why not all bytes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// The next so many bytes are a head that passes once its target has been escaped.
    Escape(usize),
    /// A head that is refused. Nothing after it means anything.
    Refused(Fault),
    /// A chunked body that is not one. Its head has passed already.
    BrokenBody,
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// No request line of HTTP/1.
    #[error("malformed request line, expected a method, a target and HTTP/1.1")]
    RequestLine,
    /// No header line.
    #[error("malformed header line, expected a name, a colon and a value without control characters")]
    HeaderLine,
    /// A line that ends in a line feed alone.
    #[error("line without a carriage return, expected each to end in CR LF")]
    BareLineFeed,
    /// Several lengths, or one that is no number.
    #[error("unclear content-length, expected one number")]
    Length,
    /// Any other coding than chunked, in any other spelling.
    #[error("unclear transfer-encoding, expected nothing but \"chunked\", in HTTP/1.1")]
    Coding,
    /// A length and a coding.
    #[error("both content-length and transfer-encoding, expected one of them")]
    Both,
    /// A target that no URI type can hold.
    #[error("request target above {MAX_TARGET} bytes")]
    LongTarget,
    /// Too many bytes, or too many lines.
    #[error("request headers above {MAX_LINES} lines or --max-header-bytes")]
    LargeHead,
    /// Not complete in time.
    #[error("request headers incomplete after --header-timeout")]
    SlowHead,
}

#[derive(Debug)]
enum State {
    Head(Head),
    Body {
        rest: u64,
        then: Then,
    },
    Chunks {
        chunks: Chunks,
        then: Then,
    },
    /// The bytes are no requests any more.
    Open,
}

/// What follows a body.
#[derive(Clone, Copy, Debug)]
enum Then {
    Head,
    /// The request asked for another protocol: what follows is that, or nothing that is answered.
    Open,
}

/// A head as far as it has come.
#[derive(Debug, Default)]
struct Head {
    /// Bytes looked at, of which the last line begins at `line`.
    seen: usize,
    line: usize,
    lines: usize,
    http10: bool,
    length: Option<u64>,
    chunked: bool,
    /// A protocol is named, and `Connection` says that it is asked for: [`crate::request::hop::upgrade_protocol`].
    protocol: bool,
    upgrade: bool,
    odd_target: bool,
}

/// A position in a chunked body.
#[derive(Debug)]
struct Chunks {
    at: At,
    /// Of the chunk that is being read.
    size: u64,
    digits: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    LineStart,
    Line,
    LineLf,
    EndLf,
}

/// Lines of a head: one `Impersonate-Group` header for each group, and tokens of large directories name up to 200.
/// hyper prepares room for all of them for each request, so that 1024 would cost a quarter of a cached GET. HTTP/2, which
/// Go's clients speak, has no such limit.
pub(super) const MAX_LINES: usize = 256;

/// What `http::Uri` holds.
const MAX_TARGET: usize = 65_534;

// === impl Fault ===

impl Fault {
    /// The status code that says so.
    pub(super) fn code(self) -> StatusCode {
        match self {
            Self::LongTarget => StatusCode::URI_TOO_LONG,
            Self::LargeHead => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::SlowHead => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

// === impl Framing ===

impl Framing {
    /// At the start of a connection whose heads have at most so many bytes.
    pub(super) fn new(max_head: usize) -> Self {
        Self { max_head, heads: 0, state: State::Head(Head::default()) }
    }

    /// Heads that were complete and clear, so far.
    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    /// Whether nothing is looked at any more.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Looks at all bytes that have come and have not passed: what was left over last time, then what is new.
    pub(super) fn judge(&mut self, bytes: &[u8]) -> Verdict {
        let mut pass = 0;
        loop {
            let rest = &bytes[pass..];
            if rest.is_empty() {
                return Verdict { pass, halt: None };
            }
            let halt = match &mut self.state {
                State::Head(head) => match head.read(rest, self.max_head) {
                    Ok(None) => return Verdict { pass, halt: None },
                    Ok(Some(length)) => {
                        self.heads += 1;
                        let odd = head.odd_target;
                        self.state = head.after();
                        if !odd {
                            pass += length;
                            continue;
                        }
                        Halt::Escape(length)
                    }
                    Err(fault) => Halt::Refused(fault),
                },
                State::Body { rest: left, then } => {
                    let taken = (rest.len() as u64).min(*left);
                    *left -= taken;
                    if *left == 0 {
                        self.state = then.state();
                    }
                    pass += taken as usize;
                    continue;
                }
                State::Chunks { chunks, then } => match chunks.read(rest) {
                    Ok((taken, ended)) => {
                        if ended {
                            self.state = then.state();
                        }
                        pass += taken;
                        continue;
                    }
                    Err(BrokenChunks) => Halt::BrokenBody,
                },
                State::Open => return Verdict { pass: bytes.len(), halt: None },
            };
            return Verdict { pass, halt: Some(halt) };
        }
    }
}

/// A head with those bytes of its target escaped that Go's URLs hold and `http::Uri` does not: a raw `"`, `<` or `>`,
/// bytes that are no UTF-8, and `#`, which is no fragment in a request.
pub(super) fn escape(head: &[u8]) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let target = target_of(head).unwrap_or(0..0);
    let mut out = Vec::with_capacity(head.len() + 64);
    out.extend_from_slice(&head[..target.start]);
    for &byte in &head[target.clone()] {
        if is_odd(byte) {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        } else {
            out.push(byte);
        }
    }
    out.extend_from_slice(&head[target.end..]);
    out
}

fn is_odd(byte: u8) -> bool {
    matches!(byte, b'"' | b'#' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x80..)
}

/// Between the two spaces of the request line.
fn target_of(line: &[u8]) -> Option<Range<usize>> {
    let start = memchr::memchr(b' ', line)? + 1;
    let length = memchr::memchr(b' ', &line[start..])?;
    Some(start..start + length)
}

// === impl Then ===

impl Then {
    fn state(self) -> State {
        match self {
            Self::Head => State::Head(Head::default()),
            Self::Open => State::Open,
        }
    }
}

// === impl Head ===

impl Head {
    /// Reads on; the length of the head once it is complete. `bytes` begin where the head does.
    fn read(&mut self, bytes: &[u8], max: usize) -> Result<Option<usize>, Fault> {
        while let Some(at) = memchr::memchr(b'\n', &bytes[self.seen..]) {
            let end = self.seen + at;
            self.seen = end + 1;
            let line = bytes[self.line..end].strip_suffix(b"\r").ok_or(Fault::BareLineFeed)?;
            self.line = self.seen;
            let empty = line.is_empty();
            // Empty lines before a request are skipped, as hyper does (RFC 9112 section 2.2).
            match self.lines {
                _ if empty => {}
                0 => self.request_line(line)?,
                _ => self.header_line(line)?,
            }
            if self.seen > max {
                return Err(Fault::LargeHead);
            }
            if empty && self.lines > 0 {
                return Ok(Some(self.seen));
            }
            self.lines += usize::from(!empty);
        }
        self.seen = bytes.len();
        if self.seen > max {
            // A target that is too long by itself is told as such, although the line has not ended.
            let long = self.lines == 0 && memchr::memchr(b' ', bytes).is_some_and(|at| bytes.len() - at > MAX_TARGET);
            return Err(if long { Fault::LongTarget } else { Fault::LargeHead });
        }
        Ok(None)
    }

    fn request_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        let target = target_of(line).ok_or(Fault::RequestLine)?;
        self.http10 = match &line[target.end..] {
            b" HTTP/1.1" => false,
            b" HTTP/1.0" => true,
            _ => return Err(Fault::RequestLine),
        };
        if !is_token(&line[..target.start - 1]) || target.is_empty() || line.iter().any(|&b| is_control(b)) {
            return Err(Fault::RequestLine);
        }
        if target.len() > MAX_TARGET {
            return Err(Fault::LongTarget);
        }
        let target = &line[target];
        self.odd_target = target[0] == b'/'
            && target.iter().fold(false, |odd, &b| odd | is_odd(b))
            && (target.contains(&b'#') || PathAndQuery::try_from(target).is_err());
        Ok(())
    }

    fn header_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        if self.lines > MAX_LINES {
            return Err(Fault::LargeHead);
        }
        let colon = memchr::memchr(b':', line).ok_or(Fault::HeaderLine)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        // A folded line begins with white space, which is in no name.
        if !is_token(name) || value.iter().fold(false, |control, &b| control | (is_control(b) && b != b'\t')) {
            return Err(Fault::HeaderLine);
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = value.trim_ascii();
            let number = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            let number = number.and_then(|text| text.parse().ok()).ok_or(Fault::Length)?;
            if self.length.replace(number).is_some() {
                return Err(Fault::Length);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            // No tab either: that is where others have differed.
            let coding = value.strip_prefix(b" ").unwrap_or(value);
            if self.http10 || self.chunked || !coding.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Coding);
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.protocol = true;
        } else if name.eq_ignore_ascii_case(b"connection") {
            let mut options = value.split(|&b| b == b',').map(<[u8]>::trim_ascii);
            self.upgrade |= options.any(|option| option.eq_ignore_ascii_case(b"upgrade"));
        }
        if self.chunked && self.length.is_some() { Err(Fault::Both) } else { Ok(()) }
    }

    fn after(&self) -> State {
        let then = if self.protocol && self.upgrade { Then::Open } else { Then::Head };
        match self.length {
            _ if self.chunked => State::Chunks { chunks: Chunks { at: At::Size, size: 0, digits: 0 }, then },
            Some(rest) if rest > 0 => State::Body { rest, then },
            _ => then.state(),
        }
    }
}

/// Of RFC 9110, and not empty.
fn is_token(text: &[u8]) -> bool {
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.iter().all(|&b| is_tchar(b))
}

fn is_control(byte: u8) -> bool {
    byte < b' ' || byte == 0x7f
}

// === impl Chunks ===

/// It is no chunked body.
struct BrokenChunks;

impl Chunks {
    /// Reads on; bytes taken, and whether the body ended with the last of them.
    fn read(&mut self, bytes: &[u8]) -> Result<(usize, bool), BrokenChunks> {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            if self.at == At::Data {
                let some = ((bytes.len() - taken) as u64).min(self.size);
                self.size -= some;
                taken += some as usize;
                if self.size == 0 {
                    self.at = At::DataCr;
                }
                continue;
            }
            self.at = match (self.at, byte) {
                (At::Size, b'\r') if self.digits > 0 => At::SizeLf,
                (At::Size, _) if byte.is_ascii_hexdigit() && self.digits < 15 => {
                    let digit = char::from(byte).to_digit(16).unwrap_or_default();
                    self.size = self.size << 4 | u64::from(digit);
                    self.digits += 1;
                    At::Size
                }
                (At::Size, b';' | b' ' | b'\t') if self.digits > 0 => At::Extension,
                (At::Extension, b'\r') => At::SizeLf,
                (At::Extension, _) if byte != b'\n' => At::Extension,
                (At::SizeLf, b'\n') if self.size == 0 => At::LineStart,
                (At::SizeLf, b'\n') => At::Data,
                (At::DataCr, b'\r') => At::DataLf,
                (At::DataLf, b'\n') => {
                    self.digits = 0;
                    At::Size
                }
                (At::LineStart, b'\r') => At::EndLf,
                (At::LineStart | At::Line, _) if byte != b'\n' && byte != b'\r' => At::Line,
                (At::Line, b'\r') => At::LineLf,
                (At::LineLf, b'\n') => At::LineStart,
                (At::EndLf, b'\n') => return Ok((taken + 1, true)),
                _ => return Err(BrokenChunks),
            };
            taken += 1;
        }
        Ok((taken, false))
    }
}

#[cfg(test)]
mod tests;
