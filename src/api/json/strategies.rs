//! Random JSON for the property tests: ordered objects, escapes, white space, and bytes that are nearly JSON.

use proptest::{prelude::*, sample::SizeRange};

/// A value whose objects keep their order, and may hold a key twice.
#[derive(Clone, Debug)]
pub(super) enum Json {
    Scalar(&'static str),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// How a value is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    /// As an API server does.
    Compact,
    /// With white space wherever it is allowed.
    Spaced,
    /// Compact, with every character of a string escaped.
    Escaped,
}

impl Json {
    pub(super) fn object<'a>(members: impl IntoIterator<Item = (&'a str, Json)>) -> Self {
        Self::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    pub(super) fn write(&self, style: Style) -> Vec<u8> {
        let mut out = Vec::new();
        self.push(&mut out, style);
        out
    }

    fn push(&self, out: &mut Vec<u8>, style: Style) {
        let space: &[u8] = if matches!(style, Style::Spaced) { b" \n\t\r " } else { b"" };
        let string = |out: &mut Vec<u8>, text: &str| match style {
            Style::Escaped => {
                out.push(b'"');
                out.extend(text.encode_utf16().flat_map(|unit| format!("\\u{unit:04X}").into_bytes()));
                out.push(b'"');
            }
            _ => super::text::push(out, text),
        };
        out.extend(space);
        match self {
            Self::Scalar(text) => out.extend(text.as_bytes()),
            Self::Text(text) => string(out, text),
            Self::Array(values) => {
                out.push(b'[');
                for (n, value) in values.iter().enumerate() {
                    out.extend(if n > 0 { &b","[..] } else { b"" });
                    value.push(out, style);
                }
                out.extend(space);
                out.push(b']');
            }
            Self::Object(members) => {
                out.push(b'{');
                for (n, (key, value)) in members.iter().enumerate() {
                    out.extend(if n > 0 { &b","[..] } else { b"" });
                    out.extend(space);
                    string(out, key);
                    out.extend(space);
                    out.push(b':');
                    value.push(out, style);
                }
                out.extend(space);
                out.push(b'}');
            }
        }
        out.extend(space);
    }
}

pub(super) fn style() -> impl Strategy<Value = Style> {
    prop_oneof![Just(Style::Compact), Just(Style::Spaced), Just(Style::Escaped)]
}

/// Strings with what breaks scanners in them.
pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9-]{0,12}",
        r#"[\\"{}\[\]:,a]{0,40}"#,
        "\\PC{0,8}",
        Just("kind".to_owned()),
        Just("items".to_owned()),
        Just("metadata".to_owned()),
        Just("k8s.io/initial-events-end".to_owned()),
    ]
}

pub(super) fn json() -> impl Strategy<Value = Json> {
    let scalar =
        prop_oneof![Just("null"), Just("true"), Just("false"), Just("0"), Just("-12.5e+3"), Just("9007199254740993")];
    let leaf = prop_oneof![scalar.prop_map(Json::Scalar), text().prop_map(Json::Text)];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Json::Array),
            proptest::collection::vec((text(), inner), 0..6).prop_map(Json::Object),
        ]
    })
}

/// An object of any sort.
pub(super) fn json_object(members: impl Into<SizeRange>) -> impl Strategy<Value = Json> {
    proptest::collection::vec((text(), json()), members).prop_map(Json::Object)
}

/// Sizes of the pieces in which a body arrives; the last one repeats.
pub(super) fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(prop_oneof![Just(1_usize), 1_usize..20, 60_usize..70, 1_usize..2000], 1..8)
}

/// `bytes` in pieces of the sizes `cuts`.
pub(super) fn pieces<'a>(bytes: &'a [u8], cuts: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let last = cuts.last().copied().unwrap_or(1);
    let mut sizes = cuts.iter().copied().chain(std::iter::repeat(last));
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let size = sizes.next().unwrap_or(last).min(rest.len());
        let (piece, left) = rest.split_at(size);
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Bytes that look like JSON often enough to get far into a scanner.
pub(super) fn noise() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        8 => proptest::sample::select(vec![
            "{", "}", "[", "]", "\"", ",", ":", "\\", "\n", " ", "null", "12", "\"kind\":", "\"apiVersion\":",
            "\"metadata\":{", "\"items\":[", "\"labels\":{", "\"finalizers\":[", "\"type\":\"ADDED\"", "\"object\":{",
            "{\"", "\"}", "\\\"", "\"annotations\":{", "\"k8s.io/initial-events-end\":", "\"a\":\"b\"",
        ]).prop_map(|token| token.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..80),
    ];
    proptest::collection::vec(token, 0..60).prop_map(|tokens| tokens.concat())
}
