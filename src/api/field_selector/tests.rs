use proptest::prelude::*;

use super::*;

fn show(text: &str) -> String {
    match FieldSelector::parse(text) {
        Ok(selector) => {
            let terms = selector.requirements().iter().map(|r| {
                let op = if r.op == Op::Equals { "=" } else { "!=" };
                format!("[{}]{op}[{}]", r.field, r.value)
            });
            terms.collect::<Vec<_>>().join(" ")
        }
        Err(ParseError::Known(message)) => message,
        Err(ParseError::Unsure) => "unsure".to_owned(),
    }
}

/// The messages are a live kube-apiserver's, but for those marked.
#[test]
fn grammar() {
    for (text, want) in [
        ("", ""),
        (",,", ""),
        ("=", ""),
        ("==", ""),
        ("!=", ""),
        ("metadata.name=cm-1", "[metadata.name]=[cm-1]"),
        ("metadata.name==cm-1", "[metadata.name]=[cm-1]"),
        ("metadata.name!=a", "[metadata.name]!=[a]"),
        ("metadata.name=", "[metadata.name]=[]"),
        ("=x", "[]=[x]"),
        ("!=x", "[]!=[x]"),
        ("metadata.name = cm-1", "[metadata.name ]=[ cm-1]"),
        ("b=1,,a!=2,", "[a]!=[2] [b]=[1]"),
        (r"metadata.name=a\,b\=c\\", r"[metadata.name]=[a,b=c\]"),
        ("metadata.name=..", "[metadata.name]=[..]"),
        ("a!b=c", "[a!b]=[c]"),
        (r"a\,b=c", r"[a\,b]=[c]"),
        ("é=ü", "[é]=[ü]"),
        ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("a=1,b", "invalid selector: 'a=1,b'; can't understand 'b'"),
        (r"metadata.name=a\x", r"invalid field selector: invalid escape sequence: \x"),
        (r"metadata.name=a\é", r"invalid field selector: invalid escape sequence: \é"),
        ("metadata.name=a=b", "invalid field selector: unescaped character in value: 61"),
        ("metadata.name===x", "invalid field selector: unescaped character in value: 61"),
        // From source.
        (r"metadata.name=a\", r"invalid field selector: invalid escape sequence: \"),
        ("b,a=b=c", "invalid field selector: unescaped character in value: 61"),
        ("a!==b", "invalid field selector: unescaped character in value: 61"),
    ] {
        assert_eq!(show(text), want, "{text:?}");
    }
}

#[test]
fn names_and_namespaces_are_found() {
    for (text, name, namespace, only_metadata) in [
        ("", None, None, true),
        ("metadata.name=x", Some("x"), None, true),
        ("metadata.name!=x", None, None, true),
        ("metadata.namespace=y,metadata.name=x", Some("x"), Some("y"), true),
        ("metadata.name=x,metadata.name=a", Some("a"), None, true),
        ("metadata.name=x,spec.nodeName=n", Some("x"), None, false),
        ("=x", None, None, false),
        ("metadata.name =x", None, None, false),
    ] {
        let selector = FieldSelector::parse(text).unwrap();
        assert_eq!(
            (selector.exact_name(), selector.exact_namespace(), selector.only_metadata()),
            (name, namespace, only_metadata),
            "{text:?}"
        );
        assert_eq!(selector.mentions_namespace(), text.contains("namespace"), "{text:?}");
        assert_eq!(selector.is_everything(), text.is_empty(), "{text:?}");
    }
}

#[test]
fn metadata_is_matched() {
    for (text, namespace, name, want) in [
        ("", "ns", "x", true),
        ("metadata.name=x", "ns", "x", true),
        ("metadata.name=x", "ns", "y", false),
        ("metadata.name!=x", "ns", "y", true),
        ("metadata.name!=x", "ns", "x", false),
        ("metadata.name=x,metadata.name=y", "ns", "x", false),
        ("metadata.namespace=ns,metadata.name!=y", "ns", "x", true),
        ("metadata.namespace=", "", "x", true),
        ("metadata.namespace!=ns", "ns", "x", false),
    ] {
        assert_eq!(FieldSelector::parse(text).unwrap().matches_metadata(namespace, name), want, "{text:?}");
    }
}

proptest! {
    #[test]
    fn escaped_values_read_back(value in "\\PC{0,12}|[a\\\\,=]{0,12}") {
        let escaped = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
        let selector = FieldSelector::parse(&format!("a!=b,metadata.name={escaped}")).unwrap();
        prop_assert_eq!(selector.exact_name(), Some(value.as_str()));
        prop_assert_eq!(selector.requirements().len(), 2);
    }

    #[test]
    fn nothing_panics(text in "\\PC*|[a=!,\\\\é]{0,16}") {
        let _ = FieldSelector::parse(&text);
    }
}
