//! Text as Go prints it: JSON strings (`encoding/json`) and quoted strings (the `%q` verb).
//!
//! Clients and tests compare upstream's messages byte for byte, and these two spellings are where a message written in
//! Rust would differ. This is for our own short texts; object bytes come from upstream and are never re-encoded.

/// Appends `text` as a JSON string with Go's default escaping: besides what JSON demands, `<`, `>`, `&`, U+2028 and
/// U+2029 are written as `\u....`. DEL and everything else beyond ASCII stand as they are.
pub(crate) fn push_json_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    out.push(b'"');
    let mut copied = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0x08 => b"\\b",
            0x0c => b"\\f",
            0..=0x1f | b'<' | b'>' | b'&' => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                &[b'\\', b'u', b'0', b'0', high, low]
            }
            // U+2028 and U+2029 are e2 80 a8 and e2 80 a9.
            0xe2 if bytes[at..].starts_with(&[0xe2, 0x80, 0xa8]) => b"\\u2028",
            0xe2 if bytes[at..].starts_with(&[0xe2, 0x80, 0xa9]) => b"\\u2029",
            _ => continue,
        };
        out.extend_from_slice(&bytes[copied..at]);
        out.extend_from_slice(escape);
        copied = at + if byte == 0xe2 { 3 } else { 1 };
    }
    out.extend_from_slice(&bytes[copied..]);
    out.push(b'"');
}

/// `text` in double quotes as Go's `%q` prints it, or `None` where that depends on Go's Unicode tables: for anything
/// but printable ASCII.
pub(crate) fn quoted(text: &str) -> Option<String> {
    if !text.bytes().all(|b| matches!(b, b' '..=b'~')) {
        return None;
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(text: &str) -> String {
        let mut out = Vec::new();
        push_json_string(&mut out, text);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_strings_are_escaped_as_go_does() {
        for (text, want) in [
            ("", r#""""#),
            ("plain/é😀\u{7f}", "\"plain/é😀\u{7f}\""),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("<nil> & </x>", r#""\u003cnil\u003e \u0026 \u003c/x\u003e""#),
            ("\u{8}\u{c}\n\r\t\u{1}\u{1f}\0", r#""\b\f\n\r\t\u0001\u001f\u0000""#),
            ("a\u{2028}b\u{2029}\u{2030}", "\"a\\u2028b\\u2029\u{2030}\""),
        ] {
            assert_eq!(json(text), want);
        }
    }

    #[test]
    fn only_printable_ascii_is_quoted() {
        assert_eq!(quoted("a b").as_deref(), Some(r#""a b""#));
        assert_eq!(quoted("a\"\\").as_deref(), Some(r#""a\"\\""#));
        for unsure in ["\n", "\u{7f}", "é"] {
            assert_eq!(quoted(unsure), None, "{unsure:?}");
        }
    }

    proptest! {
        #[test]
        fn json_strings_read_back(text in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&json(&text)).unwrap(), text);
        }
    }
}
