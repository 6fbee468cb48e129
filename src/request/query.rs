//! Percent-decoding and query strings exactly as Go's `net/url` reads them, which is how upstream reads them.
//!
//! Not a general URL library: it keeps what Go would drop visible, because a request that contains such a thing is not
//! for us to interpret.

use std::borrow::Cow;

/// One `key=value` of a query string, decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair<'a> {
    pub(super) key: Cow<'a, str>,
    pub(super) value: Cow<'a, str>,
    /// The key is spelled without escapes and both halves are UTF-8, so `key` and `value` are all there is to know.
    pub(super) plain: bool,
}

/// The pair contains a `;` or a bad escape: Go reports an error and goes on without it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dropped;

/// A `%` without two hexadecimal digits behind it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadEscape;

/// Iterates over the pairs of a raw query string (without the `?`) in order. Empty pairs (`a=1&&b=2`) are skipped.
pub(super) fn pairs(query: &str) -> impl Iterator<Item = Result<Pair<'_>, Dropped>> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        if pair.contains(';') {
            return Err(Dropped);
        }
        let (raw_key, raw_value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, key_is_text) = unescape(raw_key, true).map_err(|BadEscape| Dropped)?;
        let (value, value_is_text) = unescape(raw_value, true).map_err(|BadEscape| Dropped)?;
        let plain = matches!(key, Cow::Borrowed(_)) && key_is_text && value_is_text;
        Ok(Pair { key, value, plain })
    })
}

/// Go's boolean parameters: `0` and `false` in any letter case are false, everything else, also nothing, is true.
pub(super) fn is_true(value: &str) -> bool {
    // Go folds case by Unicode: a long s is an s.
    let folded = value.chars().map(|c| if c == '\u{17f}' { 's' } else { c.to_ascii_lowercase() });
    value != "0" && !folded.eq("false".chars())
}

/// Decodes percent escapes, and `+` to a blank where `plus` says so. Borrows if there was nothing to decode. The flag
/// tells whether the result is UTF-8; if not, the text is an approximation.
pub(super) fn unescape(raw: &str, plus: bool) -> Result<(Cow<'_, str>, bool), BadEscape> {
    let Some(first) = raw.bytes().position(|b| b == b'%' || (plus && b == b'+')) else {
        return Ok((Cow::Borrowed(raw), true));
    };
    let bytes = raw.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    out.extend_from_slice(&bytes[..first]);
    let mut rest = bytes[first..].iter();
    while let Some(&byte) = rest.next() {
        out.push(match byte {
            b'%' => {
                let high = rest.next().copied().and_then(hex).ok_or(BadEscape)?;
                let low = rest.next().copied().and_then(hex).ok_or(BadEscape)?;
                high << 4 | low
            }
            b'+' if plus => b' ',
            other => other,
        });
    }
    Ok(match String::from_utf8(out) {
        Ok(text) => (Cow::Owned(text), true),
        Err(error) => (Cow::Owned(String::from_utf8_lossy(error.as_bytes()).into_owned()), false),
    })
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_and_decoded_as_go_does() {
        let read = |query| -> Vec<Option<(String, String, bool)>> {
            pairs(query).map(|p| p.ok().map(|p| (p.key.into_owned(), p.value.into_owned(), p.plain))).collect()
        };
        let pair = |key: &str, value: &str, plain| Some((key.to_owned(), value.to_owned(), plain));
        assert_eq!(read(""), []);
        assert_eq!(read("&&"), []);
        assert_eq!(read("a=1&b"), [pair("a", "1", true), pair("b", "", true)]);
        assert_eq!(read("a=b=c&=x&="), [pair("a", "b=c", true), pair("", "x", true), pair("", "", true)]);
        assert_eq!(read("a=1+2%2B3%2c"), [pair("a", "1 2+3,", true)]);
        assert_eq!(read("w%61tch=1&a+b=1"), [pair("watch", "1", false), pair("a b", "1", false)]);
        assert_eq!(read("a=%ff"), [pair("a", "\u{fffd}", false)]);
        assert_eq!(read("a=1;b=2&c=3&d=%2&e=%zz&f=%"), [None, pair("c", "3", true), None, None, None]);
    }

    #[test]
    fn a_plus_is_a_blank_only_in_queries() {
        assert_eq!(unescape("a+b", true), Ok((Cow::Borrowed("a b"), true)));
        assert_eq!(unescape("a+b", false), Ok((Cow::Borrowed("a+b"), true)));
    }

    #[test]
    fn truth_is_everything_but_zero_and_false() {
        for no in ["0", "false", "False", "FALSE", "fal\u{17f}e"] {
            assert!(!is_true(no), "{no:?}");
        }
        for yes in ["", "1", "true", "no", "00", " false", "falsey"] {
            assert!(is_true(yes), "{yes:?}");
        }
    }
}
