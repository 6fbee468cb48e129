//! JSON strings: reading them without a copy where nothing is escaped, writing them the way Go does.

use std::borrow::Cow;

/// A string as it stands in a text, its quotes included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted<'a> {
    text: &'a [u8],
    escapes: bool,
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `text` as a JSON string, quotes included, escaped as Go's encoder does it: `<`, `>` and `&` too, and the two
/// line separators that JavaScript does not allow (api-semantics 5.2).
pub(super) fn push(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend([b'\\', c as u8]),
            '\u{8}' => out.extend(b"\\b"),
            '\u{c}' => out.extend(b"\\f"),
            '\n' => out.extend(b"\\n"),
            '\r' => out.extend(b"\\r"),
            '\t' => out.extend(b"\\t"),
            '\u{0}'..'\u{20}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.extend(b"\\u");
                out.extend([12, 8, 4, 0].map(|shift| HEX[(c as usize >> shift) & 0xf]));
            }
            _ => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

// === impl Quoted ===

impl<'a> Quoted<'a> {
    /// `text` starts and ends with a quote; `escapes` tells whether a backslash is in it.
    pub(super) fn new(text: &'a [u8], escapes: bool) -> Self {
        Self { text, escapes }
    }

    /// The text meant; `None` if it is not UTF-8 or has an escape that does not exist.
    pub(super) fn read(&self) -> Option<Cow<'a, str>> {
        if self.escapes {
            return serde_json::from_slice(self.text).ok().map(Cow::Owned);
        }
        let inner = self.text.get(1..self.text.len().checked_sub(1)?)?;
        std::str::from_utf8(inner).ok().map(Cow::Borrowed)
    }

    /// The bytes meant, for comparing keys. An invalid string equals no key: it comes out as it stands, quotes and all.
    pub(super) fn bytes(&self) -> Cow<'a, [u8]> {
        if self.escapes {
            return match serde_json::from_slice::<String>(self.text) {
                Ok(text) => Cow::Owned(text.into_bytes()),
                Err(_) => Cow::Borrowed(self.text),
            };
        }
        Cow::Borrowed(self.text.get(1..self.text.len().saturating_sub(1)).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strings_are_written_as_go_writes_them() {
        // The escapes are those of the recorded answer `json-esc` of a real API server.
        for (text, want) in [
            ("v1", r#""v1""#),
            ("\u{8}\u{c}\n\r\t\u{1}", r#""\b\f\n\r\t\u0001""#),
            ("😀 é", r#""😀 é""#),
            ("<a href=\"x\">&</a>", r#""\u003ca href=\"x\"\u003e\u0026\u003c/a\u003e""#),
            ("a/b\\c", r#""a/b\\c""#),
            ("a\u{2028}b\u{2029}\u{7f}", "\"a\\u2028b\\u2029\u{7f}\""),
        ] {
            let mut out = Vec::new();
            push(&mut out, text);
            assert_eq!(String::from_utf8_lossy(&out), want);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(text in any::<String>()) {
            let mut out = Vec::new();
            push(&mut out, &text);
            let quoted = Quoted::new(&out, out.contains(&b'\\'));
            prop_assert_eq!(quoted.read(), Some(Cow::Borrowed(text.as_str())));
            prop_assert_eq!(&*quoted.bytes(), text.as_bytes());
        }
    }
}
