//! The stored form of an object: exactly the body of a GET of it, that is its full text and a newline.
//!
//! Watch events hold that text. LIST items of custom resources do, too. LIST items of built-in types lack the first two
//! keys, `{"kind":"Pod","apiVersion":"v1",` (api-semantics 5.2): stored with them, listed without them.

use super::text;

/// The stored form of a LIST item. Without `kind` and `apiVersion` the item is of a built-in type and gets them; with
/// `custom`, or if it has them already (PartialObjectMetadata), it is kept as it is.
pub fn from_list_item(item: &[u8], kind: &str, api_version: &str, custom: bool) -> Box<[u8]> {
    if custom || is_typed(item) {
        return from_event_object(item);
    }
    let prefix = prefix(kind, api_version);
    let rest = item.get(1..).unwrap_or_default();
    // An item without any member needs no comma. No API server sends one.
    let prefix = if rest.trim_ascii_start().starts_with(b"}") { &prefix[..prefix.len() - 1] } else { &prefix[..] };
    concat(&[prefix, rest, b"\n"])
}

/// The stored form of the object of a watch event, or of any other full text without its newline.
pub fn from_event_object(object: &[u8]) -> Box<[u8]> {
    concat(&[object, b"\n"])
}

/// What a list has for a stored object, in two pieces to be written one after the other. `prefix_len` is
/// [`Facts::prefix_len`](super::object::Facts::prefix_len) for built-in types, and 0 where items are listed whole: custom
/// resources and PartialObjectMetadata.
pub fn list_item(stored: &[u8], prefix_len: usize) -> (&'static [u8], &[u8]) {
    let text = stored.strip_suffix(b"\n").unwrap_or(stored);
    match prefix_len {
        0 => (b"", text),
        _ => (b"{", text.get(prefix_len..).unwrap_or(b"}")),
    }
}

/// Whether a LIST item carries `kind` or `apiVersion`, as its first key.
pub fn is_typed(item: &[u8]) -> bool {
    let first = item.get(1..).unwrap_or_default().trim_ascii_start();
    first.starts_with(b"\"kind\"") || first.starts_with(b"\"apiVersion\"")
}

/// What a LIST of a built-in type leaves out, with the brace before and the comma after it.
pub fn prefix(kind: &str, api_version: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(27 + kind.len() + api_version.len());
    out.extend(b"{\"kind\":");
    text::push(&mut out, kind);
    out.extend(b",\"apiVersion\":");
    text::push(&mut out, api_version);
    out.push(b',');
    out
}

/// One allocation of exactly the size needed.
fn concat(parts: &[&[u8]]) -> Box<[u8]> {
    parts.concat().into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::json::{list::ListError, list::Splitter, object};

    const BUILTIN: (&[u8], &[u8]) =
        (include_bytes!("samples/builtin-page.json"), include_bytes!("samples/builtin-get.json"));
    const CUSTOM: (&[u8], &[u8]) =
        (include_bytes!("samples/custom-list.json"), include_bytes!("samples/custom-get.json"));

    fn first_item(body: &[u8]) -> Vec<u8> {
        let mut items = Vec::new();
        let keep = |item: &[u8]| {
            items.push(item.to_vec());
            Ok::<_, ListError>(())
        };
        Splitter::new(1 << 20).feed(body, keep).unwrap();
        items.swap_remove(0)
    }

    #[test]
    fn the_stored_form_is_the_body_of_a_get() {
        for ((list, get), kind, version, custom) in
            [(BUILTIN, "ConfigMap", "v1", false), (CUSTOM, "Widget", "verify.example.com/v1", true)]
        {
            let stored = from_list_item(&first_item(list), kind, version, custom);
            // Both were recorded at other versions, of which only this may show.
            let facts = object::scan_whole(&stored).unwrap();
            let want = object::scan_whole(get).unwrap();
            assert_eq!(
                (facts.kind, facts.api_version, facts.prefix_len),
                (want.kind, want.api_version, want.prefix_len)
            );
            assert!(stored.ends_with(b"}\n") && get.ends_with(b"}\n"));

            let text = get.strip_suffix(b"\n").unwrap();
            assert_eq!(*from_event_object(text), *get);
            let (open, rest) = list_item(get, want.prefix_len);
            assert_eq!(*from_list_item(&[open, rest].concat(), kind, version, custom), *get);
        }
    }

    #[test]
    fn items_that_say_what_they_are_stay_as_they_are() {
        let item = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}"#;
        let stored = from_list_item(item, "PartialObjectMetadata", "meta.k8s.io/v1", false);
        assert_eq!(stored.strip_suffix(b"\n"), Some(&item[..]));
        assert_eq!(list_item(&stored, 0), (&b""[..], &item[..]));
    }

    #[test]
    fn an_item_without_members_survives() {
        let stored = from_list_item(b"{}", "A<B", "v1", false);
        assert_eq!(*stored, *b"{\"kind\":\"A\\u003cB\",\"apiVersion\":\"v1\"}\n");
        let facts = object::scan_whole(&stored).unwrap();
        assert_eq!(list_item(&stored, facts.prefix_len), (&b"{"[..], &b"}"[..]));
        // Nonsense in, nonsense out, but no panic.
        assert_eq!(list_item(b"", 30), (&b"{"[..], &b"}"[..]));
        assert_eq!(from_list_item(b"", "A", "v1", false).last(), Some(&b'\n'));
    }
}
