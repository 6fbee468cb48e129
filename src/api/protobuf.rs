//! What protobuf bodies of an API server say of themselves, read by a walk over the wire format.
//!
//! Body: `k8s\0`, then `Unknown {1 typeMeta {1 apiVersion, 2 kind}, 2 raw, 3 contentEncoding, 4 contentType}`. `raw` is the
//! object; its field 1 is an ObjectMeta, in lists and Statuses a ListMeta (api-semantics 5.3). Messages that are not asked
//! for are stepped over by their length, so the time does not depend on the size of the object.
//!
//! It knows no schema beyond that and decodes nothing else. A length that reaches out of its message is an error.

pub mod watch;

use std::ops::Range;

/// The first bytes of every enveloped body.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// The annotation that marks the bookmark at the end of a streamed initial list (api-semantics 8).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What an enveloped body says of itself. Go writes absent strings as empty ones: both are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// `apiVersion`.
    pub api_version: &'a str,
    /// `kind`.
    pub kind: &'a str,
    /// Where the object itself is in the body: what a list has as one of its items.
    pub raw: Range<usize>,
    /// `metadata.name`; `None` for lists and Statuses, as all that follow except the resource version.
    pub name: Option<&'a str>,
    /// `metadata.namespace`.
    pub namespace: Option<&'a str>,
    /// `metadata.uid`.
    pub uid: Option<&'a str>,
    /// `metadata.resourceVersion`, of a list too, as it stands.
    pub resource_version: Option<&'a str>,
    /// `metadata.labels`, in the order of the body: sorted by key.
    pub labels: Vec<(&'a str, &'a str)>,
    /// Whether `metadata.annotations` marks the end of the initial events of a watch.
    pub initial_events_end: bool,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deletion_timestamp: bool,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Number of entries in `metadata.finalizers`.
    pub finalizers: usize,
}

/// Why a body could not be read. Offsets are in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The body does not start with the magic bytes.
    #[error("not an enveloped protobuf body: it does not start with \"k8s\\0\"")]
    NotEnveloped,
    /// A message ends inside a field, or a length reaches beyond its message.
    #[error("protobuf field at byte {at} reaches beyond the end of its message, {end}")]
    Truncated {
        /// Where the value should be.
        at: usize,
        /// Where its message ends.
        end: usize,
    },
    /// A number of more than 64 bits.
    #[error("protobuf number at byte {at} does not fit 64 bits")]
    Overflow {
        /// Where the number is.
        at: usize,
    },
    /// A field key that no message can have: number 0, a group, an unknown wire type.
    #[error("invalid protobuf field key {key} at byte {at}")]
    Key {
        /// Where the key is.
        at: usize,
        /// The key: number and wire type.
        key: u64,
    },
    /// A field that is read has another wire type than its schema says.
    #[error("protobuf field {field} has another wire type than expected")]
    WireType {
        /// Name of the field.
        field: &'static str,
    },
    /// A string that is read is not UTF-8.
    #[error("protobuf field {field} is not utf-8")]
    Text {
        /// Name of the field.
        field: &'static str,
    },
    /// The object is compressed or otherwise encoded within its envelope. No API server does that.
    #[error("protobuf envelope has a content encoding")]
    ContentEncoding,
}

/// One field of a message.
struct Field<'a> {
    number: u64,
    value: Value<'a>,
}

enum Value<'a> {
    Number(u64),
    Fixed,
    Message(Message<'a>),
}

/// A part of the body: a message to be walked, or the text of a string.
struct Message<'a> {
    body: &'a [u8],
    at: usize,
    end: usize,
}

/// Reads the facts of an enveloped body: an object, a list or a Status.
pub fn facts(body: &[u8]) -> Result<Facts<'_>, Error> {
    if !body.starts_with(MAGIC) {
        return Err(Error::NotEnveloped);
    }
    let mut facts = Facts::default();
    let mut raw = None;
    let mut envelope = Message { body, at: MAGIC.len(), end: body.len() };
    while let Some(field) = envelope.next()? {
        match field.number {
            1 => facts.read_type(field.message("typeMeta")?)?,
            2 => raw = Some(field.message("raw")?),
            3 if !field.message("contentEncoding")?.is_empty() => return Err(Error::ContentEncoding),
            _ => {}
        }
    }
    if let Some(mut object) = raw {
        facts.raw = object.at..object.end;
        // The kind comes before the object in every body seen, but nothing in the format says so.
        let listed = facts.is_list() || facts.is_status();
        while let Some(field) = object.next()? {
            match (field.number, listed) {
                (1, true) => facts.read_list_meta(field.message("metadata")?)?,
                (1, false) => facts.read_object_meta(field.message("metadata")?)?,
                _ => {}
            }
        }
    }
    Ok(facts)
}

/// The version of an enveloped list, from its first bytes: its ListMeta comes before its items. `None` where these bytes
/// don't tell.
pub fn list_version(start: &[u8]) -> Option<&str> {
    if !start.starts_with(MAGIC) {
        return None;
    }
    let mut envelope = Message { body: start, at: MAGIC.len(), end: start.len() };
    loop {
        let key = envelope.varint().ok()?;
        let len = envelope.varint().ok()?;
        if key != 0x12 {
            envelope.take(len).ok()?;
            continue;
        }
        // The list itself, which goes on beyond these bytes.
        let mut list = Message { body: start, at: envelope.at, end: start.len() };
        let first = list.next().ok()??;
        if first.number != 1 {
            return None;
        }
        let mut facts = Facts::default();
        facts.read_list_meta(first.message("metadata").ok()?).ok()?;
        return facts.resource_version;
    }
}

// === impl Facts ===

impl<'a> Facts<'a> {
    /// Whether the body is a list. True of every kind with such a name.
    pub fn is_list(&self) -> bool {
        self.kind.ends_with("List")
    }

    /// Whether the body is a Status: an error, or the answer to a deletion.
    pub fn is_status(&self) -> bool {
        self.kind == "Status"
    }

    fn read_type(&mut self, mut message: Message<'a>) -> Result<(), Error> {
        while let Some(field) = message.next()? {
            match field.number {
                1 => self.api_version = field.text("apiVersion")?,
                2 => self.kind = field.text("kind")?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_list_meta(&mut self, mut message: Message<'a>) -> Result<(), Error> {
        while let Some(field) = message.next()? {
            if field.number == 2 {
                self.resource_version = filled(field.text("metadata.resourceVersion")?);
            }
        }
        Ok(())
    }

    fn read_object_meta(&mut self, mut message: Message<'a>) -> Result<(), Error> {
        while let Some(field) = message.next()? {
            match field.number {
                1 => self.name = filled(field.text("metadata.name")?),
                3 => self.namespace = filled(field.text("metadata.namespace")?),
                5 => self.uid = filled(field.text("metadata.uid")?),
                6 => self.resource_version = filled(field.text("metadata.resourceVersion")?),
                9 => self.deletion_timestamp = field.message("metadata.deletionTimestamp").map(|_| true)?,
                10 => {
                    let seconds = field.number("metadata.deletionGracePeriodSeconds")?;
                    self.deletion_grace_period_seconds = Some(seconds.cast_signed());
                }
                11 => self.labels.push(entry(field.message("metadata.labels")?, "metadata.labels")?),
                12 => {
                    let (key, value) = entry(field.message("metadata.annotations")?, "metadata.annotations")?;
                    if key == INITIAL_EVENTS_END {
                        self.initial_events_end = value == "true";
                    }
                }
                14 => self.finalizers += field.message("metadata.finalizers").map(|_| 1)?,
                _ => {}
            }
        }
        Ok(())
    }
}

// === impl Field ===

impl<'a> Field<'a> {
    fn message(self, field: &'static str) -> Result<Message<'a>, Error> {
        match self.value {
            Value::Message(message) => Ok(message),
            _ => Err(Error::WireType { field }),
        }
    }

    fn text(self, field: &'static str) -> Result<&'a str, Error> {
        std::str::from_utf8(self.message(field)?.bytes()).map_err(|_| Error::Text { field })
    }

    fn number(self, field: &'static str) -> Result<u64, Error> {
        match self.value {
            Value::Number(number) => Ok(number),
            _ => Err(Error::WireType { field }),
        }
    }
}

// === impl Message ===

impl<'a> Message<'a> {
    fn bytes(&self) -> &'a [u8] {
        self.body.get(self.at..self.end).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.at == self.end
    }

    fn next(&mut self) -> Result<Option<Field<'a>>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        let at = self.at;
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let len = self.varint()?;
                Value::Message(self.take(len)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Error::Key { at, key }),
        };
        match key >> 3 {
            0 => Err(Error::Key { at, key }),
            number => Ok(Some(Field { number, value })),
        }
    }

    fn take(&mut self, len: u64) -> Result<Message<'a>, Error> {
        let start = self.at;
        let left = (self.end - start) as u64;
        if len > left {
            return Err(Error::Truncated { at: start, end: self.end });
        }
        self.at += len as usize;
        Ok(Message { body: self.body, at: start, end: self.at })
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let start = self.at;
        let mut number = 0;
        for (nth, &byte) in self.bytes().iter().enumerate() {
            if nth == 9 && byte > 1 {
                return Err(Error::Overflow { at: start });
            }
            number |= u64::from(byte & 0x7f) << (7 * nth);
            if byte < 0x80 {
                self.at += nth + 1;
                return Ok(number);
            }
        }
        Err(Error::Truncated { at: start, end: self.end })
    }
}

fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// A map entry `{1 key, 2 value}`.
fn entry<'a>(mut message: Message<'a>, field: &'static str) -> Result<(&'a str, &'a str), Error> {
    let (mut key, mut value) = ("", "");
    while let Some(part) = message.next()? {
        match part.number {
            1 => key = part.text(field)?,
            2 => value = part.text(field)?,
            _ => {}
        }
    }
    Ok((key, value))
}

#[cfg(test)]
mod tests;
