use proptest::{prelude::*, sample::Index};

use super::*;
use crate::api::json::{
    normal, object,
    strategies::{self, Json, Style},
};

/// Real answers of an API server (masked parts filled in).
const BUILTIN: [&[u8]; 2] =
    [include_bytes!("../samples/builtin-page.json"), include_bytes!("../samples/builtin-list.json")];
const CUSTOM: [&[u8]; 4] = [
    include_bytes!("../samples/custom-page.json"),
    include_bytes!("../samples/custom-list.json"),
    include_bytes!("../samples/custom-cluster-scoped.json"),
    include_bytes!("../samples/custom-empty.json"),
];
const PARTIAL: [&[u8]; 2] =
    [include_bytes!("../samples/partial-list.json"), include_bytes!("../samples/partial-empty.json")];

type Split = Result<(ListEnvelope, Vec<Vec<u8>>), ListError>;

fn split<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, max_item_bytes: usize) -> Split {
    let (mut splitter, mut items) = (Splitter::new(max_item_bytes), Vec::new());
    for piece in pieces {
        splitter.feed(piece, |item| {
            items.push(item.to_vec());
            Ok::<_, ListError>(())
        })?;
        assert_eq!(splitter.items(), items.len());
    }
    Ok((splitter.finish()?, items))
}

fn split_whole(body: &[u8]) -> Split {
    split([body], usize::MAX)
}

/// A list body with the keys in the order of a built-in or of a custom resource.
fn body(items: Vec<Json>, custom: bool, style: Style) -> Vec<u8> {
    let text = |text: &str| Json::Text(text.to_owned());
    let metadata = Json::object([("resourceVersion", text("42")), ("continue", text(""))]);
    let items = ("items", Json::Array(items));
    let (kind, version) = (("kind", text("XList")), ("apiVersion", text("g/v1")));
    let metadata = ("metadata", metadata);
    let members = if custom { [version, items, kind, metadata] } else { [kind, version, metadata, items] };
    Json::object(members).write(style)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn items_are_what_serde_finds_however_the_body_is_cut(
        items in proptest::collection::vec(strategies::json_object(0..5), 0..8),
        custom in any::<bool>(),
        spaced in any::<bool>(),
        cuts in strategies::cuts(),
    ) {
        let body = body(items, custom, if spaced { Style::Spaced } else { Style::Compact });
        let (envelope, found) = split(strategies::pieces(&body, &cuts), usize::MAX).unwrap();

        #[derive(serde::Deserialize)]
        struct Oracle<'a> {
            #[serde(borrow)]
            items: Vec<&'a serde_json::value::RawValue>,
        }
        let oracle: Oracle<'_> = serde_json::from_slice(&body).unwrap();
        let want: Vec<_> = oracle.items.iter().map(|item| item.get().as_bytes().to_vec()).collect();
        prop_assert_eq!(found, want);
        let want = ListEnvelope {
            kind: "XList".to_owned(), api_version: "g/v1".to_owned(), resource_version: "42".to_owned(), custom,
            ..ListEnvelope::default()
        };
        prop_assert_eq!(envelope, want);
    }

    #[test]
    fn a_body_cut_short_is_never_a_list(
        items in proptest::collection::vec(strategies::json_object(0..4), 0..5),
        custom in any::<bool>(),
        at in any::<Index>(),
        cuts in strategies::cuts(),
    ) {
        let body = body(items, custom, Style::Compact);
        let cut = &body[..at.index(body.len())];
        let found = split(strategies::pieces(cut, &cuts), usize::MAX);
        prop_assert!(matches!(found, Err(ListError::Truncated { bytes, .. }) if bytes == cut.len() as u64), "{found:?}");
    }

    #[test]
    fn noise_never_panics_and_never_depends_on_the_cuts(noise in strategies::noise(), cuts in strategies::cuts()) {
        let want = split_whole(&noise);
        let found = split(strategies::pieces(&noise, &cuts), usize::MAX);
        match (&found, &want) {
            // Errors quote what is left of the piece.
            (Err(_), Err(_)) => {}
            _ => prop_assert_eq!(found, want),
        }
    }

    #[test]
    fn what_is_stored_lists_again_to_the_byte(cuts in strategies::cuts()) {
        let all = BUILTIN.iter().map(|body| (body, "ConfigMap", false))
            .chain(CUSTOM.iter().map(|body| (body, "Widget", true)))
            .chain(PARTIAL.iter().map(|body| (body, "PartialObjectMetadata", false)));
        for (body, kind, custom) in all {
            let (envelope, items) = split(strategies::pieces(body, &cuts), 1 << 20).unwrap();
            prop_assert_eq!(envelope.custom, custom);
            let whole = custom || kind == "PartialObjectMetadata";
            let stored: Vec<_> =
                items.iter().map(|item| normal::from_list_item(item, kind, &envelope.api_version, custom)).collect();
            let mut again = envelope.head();
            for (n, stored) in stored.iter().enumerate() {
                let facts = object::scan_whole(stored).unwrap();
                prop_assert!(facts.kind.is_some() && facts.api_version.is_some() && facts.uid.is_some());
                prop_assert_eq!(facts.prefix_len == 0, custom);
                let (open, rest) = normal::list_item(stored, if whole { 0 } else { facts.prefix_len });
                again.extend(if n > 0 { &b","[..] } else { b"" });
                again.extend([open, rest].concat());
            }
            again.extend(envelope.tail());
            if stored.is_empty() {
                again = envelope.empty();
            }
            prop_assert_eq!(String::from_utf8_lossy(&again), String::from_utf8_lossy(body));
        }
    }
}

#[test]
fn envelopes_are_read_in_both_orders() {
    let (envelope, items) = split_whole(BUILTIN[0]).unwrap();
    assert_eq!((envelope.kind.as_str(), envelope.api_version.as_str(), items.len()), ("ConfigMapList", "v1", 2));
    assert_eq!((envelope.resource_version.as_str(), envelope.remaining_item_count), ("603", Some(4)));
    assert!(envelope.continue_token.is_some_and(|token| token.starts_with("eyJ2Ijoi")) && !envelope.custom);

    // The kind of a custom list is whatever its definition says.
    let (envelope, items) = split_whole(CUSTOM[3]).unwrap();
    assert_eq!((envelope.kind.as_str(), items.len()), ("WidgetCollection", 0));
    assert_eq!((envelope.continue_token, envelope.custom), (None, true));
}

#[test]
fn a_status_is_recognisable() {
    let body = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Expired","code":410}"#;
    let (envelope, items) = split_whole(body).unwrap();
    assert!(envelope.is_status() && items.is_empty());
}

#[test]
fn what_is_no_complete_list_is_an_error_that_says_so() {
    let list = |items: &str| format!(r#"{{"kind":"XList","apiVersion":"v1","metadata":{{}},"items":{items}}}"#);
    for (body, want) in [
        (
            "<html>\n<body>502 Bad Gateway</body></html>".to_owned(),
            "not a json object, it starts with \"<html>\\n<body>502",
        ),
        ("  [1]".to_owned(), "not a json object, it starts with \"[1]\""),
        (String::new(), "ends early, after 0 bytes and 0 items"),
        (list("[{},{"), "ends early, after 62 bytes and 2 items"),
        (list("[]") + "\n{}", "goes on after its end with \"{}\""),
        (list("[{} {}]"), "unexpected '{' at list item 1, expected a comma or the end of the items"),
        (list("[{},]"), "unexpected ']' at list item 1, expected an object"),
        (list("[,{}]"), "unexpected ',' at list item 0, expected an object"),
        (list("[null]"), "unexpected 'n' at list item 0, expected an object"),
        (list("{}"), "envelope is invalid: invalid type: map, expected a sequence"),
        (list("[],\"items\":[{}]"), "duplicate field `items`"),
        (list("[]").replace("items", r"item\u0073").replace("[]", "[{}]"), "items under an escaped key"),
        (list("[]").replace("kind", "king"), "list has no kind"),
        (list("[]").replace("apiVersion", "version"), "list has no apiVersion"),
        (r#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#.to_owned(), "body is a Pod without items, not a list"),
        (list(&format!("[],\"x\":\"{}\"", "x".repeat(1 << 20))), "more than 1048576 bytes outside its items"),
    ] {
        let error = split_whole(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(want), "{error} <- {}", &body[..body.len().min(200)]);
    }
    for items in ["null", "[]", "[ ]"] {
        assert_eq!(split_whole(list(items).as_bytes()).unwrap().1.len(), 0);
    }
}

#[test]
fn the_limit_holds_for_each_item_however_it_arrives() {
    let body = body(vec![Json::object([]), Json::object([("a", Json::text("12345678"))])], false, Style::Compact);
    let size = r#"{"a":"12345678"}"#.len();
    for cut in [1, 7, 4096] {
        assert!(split(body.chunks(cut), size).is_ok());
        let found = split(body.chunks(cut), size - 1);
        assert_eq!(found, Err(ListError::ItemTooLarge { index: 1, limit: size - 1 }));
    }
    // It is noticed before the item is complete, and nothing of it is kept.
    let mut splitter = Splitter::new(1000);
    let endless = [br#"{"items":[{"a":""#, [b'x'; 2000].as_slice()].concat();
    assert!(splitter.feed(&endless, |_| Ok::<_, ListError>(())).is_err());
    assert!(splitter.carry.is_empty());
}

#[test]
fn an_error_of_the_consumer_ends_the_splitter() {
    let mut splitter = Splitter::new(1000);
    let refuse = |_: &[u8]| Err(ListError::GivenUp);
    assert_eq!(splitter.feed(BUILTIN[0], refuse), Err(ListError::GivenUp));
    assert_eq!(splitter.feed(b"x", |_| Ok::<_, ListError>(())), Err(ListError::GivenUp));
    assert_eq!(splitter.finish(), Err(ListError::GivenUp));
}

#[test]
fn lists_are_written_with_escapes_as_go_does() {
    let mut list = ListEnvelope {
        kind: "X".to_owned(),
        api_version: "v1".to_owned(),
        resource_version: "<1>".to_owned(),
        continue_token: Some("a\"b".to_owned()),
        remaining_item_count: Some(3),
        custom: false,
    };
    let head = r#"{"kind":"X","apiVersion":"v1","metadata":{"resourceVersion":"\u003c1\u003e","continue":"a\"b","remainingItemCount":3},"items":["#;
    assert_eq!((list.head(), list.tail()), (head.as_bytes().to_vec(), b"]}\n".to_vec()));
    list.custom = true;
    let tail = "],\"kind\":\"X\",\"metadata\":{\"continue\":\"a\\\"b\",\"remainingItemCount\":3,\"resourceVersion\":\"\\u003c1\\u003e\"}}\n";
    assert_eq!((list.head(), list.tail()), (br#"{"apiVersion":"v1","items":["#.to_vec(), tail.as_bytes().to_vec()));
}
