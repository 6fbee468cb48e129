//! Cuts the body of a LIST, as it arrives, into its items.
//!
//! Each item is handed out once, as a slice, to be copied by the consumer into its own allocation: the network buffer is
//! never pinned. An item cut by the end of a chunk is carried over. Memory: one item, whatever the size of the list.
//! What is not an item (a few hundred bytes) is kept, without the items a complete little JSON text, and read by
//! `serde_json` at the end: with custom resources most of it comes after the items.
//!
//! It does NOT look into items: they are balanced, nothing more. A list that does not end properly is an error, so that a
//! cut connection never passes for a short list; the consumer must not publish items before [`Splitter::finish`].

pub use super::envelope::ListEnvelope;
use super::skip::Nesting;

/// The most bytes a body may have around its items. Real ones have some hundreds; a Status some thousands.
const MAX_ENVELOPE_BYTES: usize = 1 << 20;

/// How much of a foreign body is quoted in an error.
const QUOTED_BYTES: usize = 64;

/// Why a body is not a complete list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The body does not start with a JSON object, for example a web page of some proxy.
    #[error("list body is not a json object, it starts with {found:?}")]
    NotAnObject {
        /// The first bytes of the piece in which it was seen.
        found: String,
    },
    /// The body ends early.
    #[error("list body ends early, after {bytes} bytes and {items} items")]
    Truncated {
        /// Bytes seen.
        bytes: u64,
        /// Complete items seen.
        items: usize,
    },
    /// There is text after the list.
    #[error("list body goes on after its end with {found:?}")]
    TrailingBytes {
        /// The first bytes of it.
        found: String,
    },
    /// An item is larger than allowed.
    #[error("list item {index} is larger than the limit of {limit} bytes")]
    ItemTooLarge {
        /// Its position in this body, from 0.
        index: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// An element of `items` is not an object, or no comma stands between two.
    #[error("unexpected {found:?} at list item {index}, expected {expected}")]
    Unexpected {
        /// Position in this body, from 0.
        index: usize,
        /// The byte found, as a Latin-1 character.
        found: char,
        /// What should have stood there.
        expected: &'static str,
    },
    /// What surrounds the items is larger than any list's: this is something else.
    #[error("no list: more than {limit} bytes outside its items")]
    EnvelopeTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// What surrounds the items is not that of a list.
    #[error("list envelope is invalid: {0}")]
    Envelope(String),
    /// A list must name its kind and version.
    #[error("list has no {field}")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// An object without `items` is not an empty list.
    #[error("body is a {kind} without items, not a list")]
    NoItems {
        /// Its kind.
        kind: String,
    },
    /// The splitter has failed before.
    #[error("list body was given up")]
    GivenUp,
}

/// Cuts one list body. See the module's documentation.
#[derive(Debug)]
pub struct Splitter {
    max_item_bytes: usize,
    state: State,
    envelope: Envelope,
    /// The part of an item that came in earlier chunks.
    carry: Vec<u8>,
    items: usize,
    bytes: u64,
}

#[derive(Debug)]
enum State {
    /// Outside `items`.
    Envelope,
    /// Inside `items`, before an item or the end.
    Items(Expect),
    /// Inside an item.
    Item(Nesting),
    /// After the last brace.
    Done,
    /// After an error.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    ItemOrEnd,
    Item,
    CommaOrEnd,
}

/// The text around the items, and the state of the byte-wise machine that watches for the key `items`.
#[derive(Debug, Default)]
struct Envelope {
    text: Vec<u8>,
    depth: usize,
    string: bool,
    escaped: bool,
    /// Where the latest string of the outermost object starts in `text`, and how long it is.
    name: (usize, usize),
    /// Whether the value comes next that belongs to `items`.
    at_items: bool,
    /// Whether the first key is `apiVersion`: the keys are sorted.
    custom: Option<bool>,
}

/// What the byte just read was.
#[derive(PartialEq, Eq)]
enum Seen {
    Nothing,
    Items,
    End,
}

// === impl Splitter ===

impl Splitter {
    /// A splitter for one body, whose items may have up to `max_item_bytes` each.
    pub fn new(max_item_bytes: usize) -> Self {
        Self {
            max_item_bytes,
            state: State::Envelope,
            envelope: Envelope::default(),
            carry: Vec::new(),
            items: 0,
            bytes: 0,
        }
    }

    /// Complete items handed out so far.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Takes the next piece of the body, cut anywhere, and gives each item that is now complete to `on_item`: its text
    /// without anything around it. An error, of the body or of `on_item`, ends the splitter.
    pub fn feed<E: From<ListError>>(
        &mut self,
        chunk: &[u8],
        mut on_item: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bytes += chunk.len() as u64;
        let mut rest = chunk;
        while !rest.is_empty() {
            let state = std::mem::replace(&mut self.state, State::GivenUp);
            (self.state, rest) = match state {
                State::Envelope => self.in_envelope(rest)?,
                State::Items(expect) => self.between_items(rest, expect)?,
                State::Item(nesting) => self.in_item(rest, nesting, &mut on_item)?,
                State::Done => match rest.trim_ascii_start() {
                    [] => (State::Done, &[][..]),
                    found => return Err(ListError::TrailingBytes { found: quote(found) }.into()),
                },
                State::GivenUp => return Err(ListError::GivenUp.into()),
            };
        }
        Ok(())
    }

    /// The end of the body: what it says around its items, if it is complete.
    pub fn finish(self) -> Result<ListEnvelope, ListError> {
        match self.state {
            State::Done => ListEnvelope::read(&self.envelope.text, self.envelope.custom == Some(true)),
            State::GivenUp => Err(ListError::GivenUp),
            _ => Err(ListError::Truncated { bytes: self.bytes, items: self.items }),
        }
    }

    fn in_envelope<'c>(&mut self, chunk: &'c [u8]) -> Result<(State, &'c [u8]), ListError> {
        for (at, &b) in chunk.iter().enumerate() {
            if self.envelope.depth == 0 && b != b'{' {
                if b.is_ascii_whitespace() {
                    continue;
                }
                return Err(ListError::NotAnObject { found: quote(&chunk[at..]) });
            }
            if self.envelope.text.len() == MAX_ENVELOPE_BYTES {
                return Err(ListError::EnvelopeTooLarge { limit: MAX_ENVELOPE_BYTES });
            }
            match self.envelope.push(b) {
                Seen::Nothing => {}
                Seen::Items => return Ok((State::Items(Expect::ItemOrEnd), &chunk[at + 1..])),
                Seen::End => return Ok((State::Done, &chunk[at + 1..])),
            }
        }
        Ok((State::Envelope, &[]))
    }

    fn between_items<'c>(&mut self, chunk: &'c [u8], expect: Expect) -> Result<(State, &'c [u8]), ListError> {
        let rest = chunk.trim_ascii_start();
        let Some(&found) = rest.first() else { return Ok((State::Items(expect), rest)) };
        let state = match (found, expect) {
            // The brace stays: it is the first byte of the item.
            (b'{', Expect::ItemOrEnd | Expect::Item) => return Ok((State::Item(Nesting::opened()), rest)),
            (b',', Expect::CommaOrEnd) => State::Items(Expect::Item),
            (b']', Expect::ItemOrEnd | Expect::CommaOrEnd) => {
                self.envelope.push(b']');
                State::Envelope
            }
            _ => {
                let expected =
                    if expect == Expect::CommaOrEnd { "a comma or the end of the items" } else { "an object" };
                return Err(ListError::Unexpected { index: self.items, found: char::from(found), expected });
            }
        };
        Ok((state, &rest[1..]))
    }

    fn in_item<'c, E: From<ListError>>(
        &mut self,
        chunk: &'c [u8],
        mut nesting: Nesting,
        on_item: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(State, &'c [u8]), E> {
        // The nesting starts after the item's brace, which is the first byte of it and not in the carry yet.
        let brace = usize::from(self.carry.is_empty());
        let end = nesting.close(&chunk[brace..]).map(|end| end + brace);
        let (item, rest) = chunk.split_at(end.unwrap_or(chunk.len()));
        if self.carry.len() + item.len() > self.max_item_bytes {
            return Err(ListError::ItemTooLarge { index: self.items, limit: self.max_item_bytes }.into());
        }
        if end.is_none() {
            self.carry.extend_from_slice(item);
            return Ok((State::Item(nesting), rest));
        }
        if self.carry.is_empty() {
            on_item(item)?;
        } else {
            self.carry.extend_from_slice(item);
            on_item(&self.carry)?;
            self.carry.clear();
        }
        self.items += 1;
        Ok((State::Items(Expect::CommaOrEnd), rest))
    }
}

// === impl Envelope ===

impl Envelope {
    fn push(&mut self, b: u8) -> Seen {
        self.text.push(b);
        if self.string {
            match b {
                _ if std::mem::take(&mut self.escaped) => {}
                b'\\' => self.escaped = true,
                b'"' => {
                    self.string = false;
                    if self.depth == 1 {
                        self.name.1 = self.text.len() - 1 - self.name.0;
                    }
                }
                _ => {}
            }
            return Seen::Nothing;
        }
        match b {
            b'"' => {
                self.string = true;
                if self.depth == 1 {
                    self.name = (self.text.len(), 0);
                }
            }
            b':' if self.depth == 1 => {
                let name = self.text.get(self.name.0..self.name.0 + self.name.1);
                self.at_items = name == Some(b"items");
                self.custom.get_or_insert(name == Some(b"apiVersion"));
            }
            b',' if self.depth == 1 => self.at_items = false,
            b'[' if self.depth == 1 && self.at_items => {
                self.depth += 1;
                return Seen::Items;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Seen::End;
                }
            }
            _ => {}
        }
        Seen::Nothing
    }
}

fn quote(found: &[u8]) -> String {
    String::from_utf8_lossy(&found[..found.len().min(QUOTED_BYTES)]).into_owned()
}

#[cfg(test)]
mod tests;
