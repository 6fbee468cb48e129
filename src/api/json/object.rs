//! What the store needs to know of an object, found in its text without decoding it.
//!
//! One pass from the start that stops once `kind`, `apiVersion` and `metadata` have been read ([`scan`]), or goes on to
//! the end to prove the text complete ([`scan_whole`]). Keys may come in any order: built-in types have `kind` and
//! `apiVersion` first, custom resources have all keys sorted. Values that are not asked for are skipped unread.
//!
//! It does NOT check an object against its type: an object without a name is for the caller to refuse.

use std::{borrow::Cow, ops::Range};

use super::cursor::{Cursor, ScanError};

/// The annotation that marks the bookmark at the end of a streamed initial list (api-semantics 8).
const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

/// What an object's text says of itself. A field that is absent or `null` is `None`; strings are borrowed from the text
/// unless they have escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Top-level `kind`. LIST items of built-in types have none.
    pub kind: Option<Cow<'a, str>>,
    /// Top-level `apiVersion`. LIST items of built-in types have none.
    pub api_version: Option<Cow<'a, str>>,
    /// Where the third member starts if the first two are `kind` and `apiVersion`, in this order, else 0: what a list of
    /// a built-in type leaves out of each item is the text between the opening brace and here.
    pub prefix_len: usize,
    /// `metadata.name`.
    pub name: Option<Cow<'a, str>>,
    /// `metadata.namespace`; absent in cluster-scoped objects.
    pub namespace: Option<Cow<'a, str>>,
    /// `metadata.uid`.
    pub uid: Option<Cow<'a, str>>,
    /// `metadata.resourceVersion`, as it stands: it may not be a number.
    pub resource_version: Option<Cow<'a, str>>,
    /// Where the object `metadata.labels` is in the text, for [`labels`] and [`label`].
    pub labels: Option<Range<usize>>,
    /// Whether `metadata.annotations` marks the end of the initial events of a watch.
    pub initial_events_end: bool,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deletion_timestamp: bool,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Whether `metadata.finalizers` has at least one entry.
    pub finalizers: bool,
}

/// Members of a flat object of strings, in the order of the text. Made by [`labels`].
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    cursor: Cursor<'a>,
    first: bool,
    done: bool,
}

/// Reads the facts of the object in `text` and stops as soon as they are known: the rest of the text goes unread.
pub fn scan(text: &[u8]) -> Result<Facts<'_>, ScanError> {
    Scan::run(text, false)
}

/// As [`scan`], but reads on to the end: the text is one complete object, with nothing but white space after it.
pub fn scan_whole(text: &[u8]) -> Result<Facts<'_>, ScanError> {
    Scan::run(text, true)
}

/// The labels in `text`, which is an object of strings (the range [`Facts::labels`]). Ends early where it is not.
pub fn labels(text: &[u8]) -> Labels<'_> {
    let mut cursor = Cursor::new(text);
    let done = cursor.take(b'{', "an object").is_err();
    Labels { cursor, first: true, done }
}

/// The value of the label `key` in `text` (the range [`Facts::labels`]).
pub fn label<'a>(text: &'a [u8], key: &str) -> Option<Cow<'a, str>> {
    labels(text).find(|(found, _)| found == key).map(|(_, value)| value)
}

/// The text of the value at `path`, a list of object keys: `["spec", "nodeName"]`. `None` if there is none, or if
/// something on the way is not an object. A string comes with its quotes: read it with [`string`].
pub fn value<'a>(text: &'a [u8], path: &[&str]) -> Result<Option<&'a [u8]>, ScanError> {
    let mut cursor = Cursor::new(text);
    'path: for name in path {
        if cursor.peek()? != b'{' {
            return Ok(None);
        }
        cursor.take(b'{', "an object")?;
        let mut first = true;
        while let Some(key) = cursor.key(std::mem::take(&mut first))? {
            if *key.bytes() == *name.as_bytes() {
                continue 'path;
            }
            cursor.skip()?;
        }
        return Ok(None);
    }
    cursor.skip().map(Some)
}

/// The string that `text` is, quotes included; `None` if it is no string.
pub fn string(text: &[u8]) -> Option<Cow<'_, str>> {
    Cursor::new(text).string().ok()?.read()
}

/// The fields that are read, as bits of [`Scan::seen`]: each may stand there once.
#[derive(Clone, Copy)]
enum Field {
    Kind,
    ApiVersion,
    Metadata,
    Name,
    Namespace,
    Uid,
    ResourceVersion,
    Labels,
    Annotations,
    DeletionTimestamp,
    DeletionGracePeriodSeconds,
    Finalizers,
}

struct Scan<'a> {
    cursor: Cursor<'a>,
    facts: Facts<'a>,
    seen: u16,
}

// === impl Scan ===

impl<'a> Scan<'a> {
    fn run(text: &'a [u8], whole: bool) -> Result<Facts<'a>, ScanError> {
        let mut scan = Self { cursor: Cursor::new(text), facts: Facts::default(), seen: 0 };
        scan.object(whole)?;
        Ok(scan.facts)
    }

    fn object(&mut self, whole: bool) -> Result<(), ScanError> {
        self.cursor.take(b'{', "an object")?;
        let mut in_order = true;
        for nth in 0_usize.. {
            if nth == 2 && in_order {
                self.facts.prefix_len = self.member_start()?;
            }
            let Some(key) = self.cursor.key(nth == 0)? else { break };
            match &*key.bytes() {
                b"kind" => {
                    self.once(Field::Kind)?;
                    self.facts.kind = self.cursor.text_of("kind")?;
                    in_order &= nth == 0;
                }
                b"apiVersion" => {
                    self.once(Field::ApiVersion)?;
                    self.facts.api_version = self.cursor.text_of("apiVersion")?;
                    in_order &= nth == 1;
                }
                b"metadata" => {
                    self.once(Field::Metadata)?;
                    self.metadata()?;
                    in_order &= nth > 1;
                }
                _ => {
                    self.cursor.skip()?;
                    in_order &= nth > 1;
                }
            }
            let known = [Field::Kind, Field::ApiVersion, Field::Metadata].iter().all(|f| self.seen & f.bit() != 0);
            if known && !whole {
                return Ok(());
            }
        }
        self.cursor.end()
    }

    /// Where the next member's key starts, or the closing brace.
    fn member_start(&mut self) -> Result<usize, ScanError> {
        let mut ahead = self.cursor.clone();
        if ahead.peek()? == b',' {
            ahead.take(b',', "a comma")?;
            ahead.peek()?;
        }
        Ok(ahead.at())
    }

    fn metadata(&mut self) -> Result<(), ScanError> {
        if self.cursor.peek()? != b'{' {
            return self.null("metadata", "an object");
        }
        self.cursor.take(b'{', "an object")?;
        let mut first = true;
        while let Some(key) = self.cursor.key(std::mem::take(&mut first))? {
            match &*key.bytes() {
                b"name" => {
                    self.once(Field::Name)?;
                    self.facts.name = self.cursor.text_of("metadata.name")?;
                }
                b"namespace" => {
                    self.once(Field::Namespace)?;
                    self.facts.namespace = self.cursor.text_of("metadata.namespace")?;
                }
                b"uid" => {
                    self.once(Field::Uid)?;
                    self.facts.uid = self.cursor.text_of("metadata.uid")?;
                }
                b"resourceVersion" => {
                    self.once(Field::ResourceVersion)?;
                    self.facts.resource_version = self.cursor.text_of("metadata.resourceVersion")?;
                }
                b"labels" => {
                    self.once(Field::Labels)?;
                    self.labels()?;
                }
                b"annotations" => {
                    self.once(Field::Annotations)?;
                    self.annotations()?;
                }
                b"deletionTimestamp" => {
                    self.once(Field::DeletionTimestamp)?;
                    self.facts.deletion_timestamp = self.cursor.text_of("metadata.deletionTimestamp")?.is_some();
                }
                b"deletionGracePeriodSeconds" => {
                    self.once(Field::DeletionGracePeriodSeconds)?;
                    self.facts.deletion_grace_period_seconds = self.seconds()?;
                }
                b"finalizers" => {
                    self.once(Field::Finalizers)?;
                    self.facts.finalizers = self.finalizers()?;
                }
                _ => {
                    self.cursor.skip()?;
                }
            }
        }
        Ok(())
    }

    fn labels(&mut self) -> Result<(), ScanError> {
        if self.cursor.peek()? != b'{' {
            return self.null("metadata.labels", "an object");
        }
        let start = self.cursor.at();
        self.cursor.skip()?;
        self.facts.labels = Some(start..self.cursor.at());
        Ok(())
    }

    fn annotations(&mut self) -> Result<(), ScanError> {
        if self.cursor.peek()? != b'{' {
            return self.null("metadata.annotations", "an object");
        }
        self.cursor.take(b'{', "an object")?;
        let mut first = true;
        while let Some(key) = self.cursor.key(std::mem::take(&mut first))? {
            let value = self.cursor.skip()?;
            if *key.bytes() == *INITIAL_EVENTS_END {
                self.facts.initial_events_end = string(value).as_deref() == Some("true");
            }
        }
        Ok(())
    }

    fn finalizers(&mut self) -> Result<bool, ScanError> {
        if self.cursor.peek()? != b'[' {
            return self.null("metadata.finalizers", "an array").map(|()| false);
        }
        let array = self.cursor.skip()?;
        Ok(!array[1..array.len() - 1].trim_ascii().is_empty())
    }

    fn seconds(&mut self) -> Result<Option<i64>, ScanError> {
        let wrong = ScanError::WrongType { field: "metadata.deletionGracePeriodSeconds", expected: "an integer" };
        match self.cursor.skip()? {
            b"null" => Ok(None),
            text => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).map(Some).ok_or(wrong),
        }
    }

    /// Takes a `null` where a value of another type may stand.
    fn null(&mut self, field: &'static str, expected: &'static str) -> Result<(), ScanError> {
        match self.cursor.skip()? {
            b"null" => Ok(()),
            _ => Err(ScanError::WrongType { field, expected }),
        }
    }

    fn once(&mut self, field: Field) -> Result<(), ScanError> {
        if self.seen & field.bit() != 0 {
            return Err(ScanError::Duplicate { field: field.name() });
        }
        self.seen |= field.bit();
        Ok(())
    }
}

// === impl Field ===

impl Field {
    fn bit(self) -> u16 {
        1 << self as u16
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::ApiVersion => "apiVersion",
            Self::Metadata => "metadata",
            Self::Name => "metadata.name",
            Self::Namespace => "metadata.namespace",
            Self::Uid => "metadata.uid",
            Self::ResourceVersion => "metadata.resourceVersion",
            Self::Labels => "metadata.labels",
            Self::Annotations => "metadata.annotations",
            Self::DeletionTimestamp => "metadata.deletionTimestamp",
            Self::DeletionGracePeriodSeconds => "metadata.deletionGracePeriodSeconds",
            Self::Finalizers => "metadata.finalizers",
        }
    }
}

// === impl Labels ===

impl<'a> Labels<'a> {
    fn member(&mut self) -> Result<Option<<Self as Iterator>::Item>, ScanError> {
        let Some(key) = self.cursor.key(std::mem::take(&mut self.first))? else { return Ok(None) };
        let value = self.cursor.string()?;
        Ok(key.read().zip(value.read()))
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let member = self.member().ok().flatten();
        self.done = member.is_none();
        member
    }
}

#[cfg(test)]
mod tests;
