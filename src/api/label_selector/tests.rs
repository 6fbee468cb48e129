use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Labels<'a> = &'a [(&'a str, &'a str)];

fn matches(selector: &LabelSelector, labels: Labels<'_>) -> bool {
    selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| Cow::Borrowed(*v)))
}

fn message(text: &str) -> String {
    match LabelSelector::parse(text) {
        Ok(selector) => format!("{selector:?}"),
        Err(ParseError::Known(message)) => message,
        Err(ParseError::Unsure) => "unsure".to_owned(),
    }
}

/// Which of six objects are selected, as a bit mask in reading order.
#[test]
fn operators_and_absent_keys() {
    let objects: [Labels<'_>; 6] =
        [&[], &[("a", "")], &[("a", "x")], &[("a", "y"), ("b", "1")], &[("a", "10")], &[("ex.io/a", "x")]];
    for (text, want) in [
        ("", "111111"),
        (" \t\r\n", "111111"),
        ("a", "011110"),
        ("!a", "100001"),
        ("! a", "100001"),
        ("a=", "010000"),
        ("a = x", "001000"),
        ("a==x", "001000"),
        ("a!=x", "110111"),
        ("a!=", "101111"),
        ("a in (x,y)", "001100"),
        ("a in(x , y)", "001100"),
        ("a in ()", "010000"),
        ("a in (x,)", "011000"),
        ("a in (,x)", "011000"),
        ("a in (x,,y)", "011100"),
        ("a in (,)", "010000"),
        ("a notin (x)", "110111"),
        ("a notin ()", "101111"),
        ("a notin (x,y)", "110011"),
        ("a>5", "000010"),
        ("a>10", "000000"),
        ("a<11", "000010"),
        ("a < 5", "000000"),
        ("a=x,b", "000000"),
        ("a=y,b", "000100"),
        ("a=x,a=y", "000000"),
        ("a,!b", "011010"),
        ("a=y , b in (1)", "000100"),
        ("ex.io/a=x", "000001"),
        ("in", "000000"),
        ("in in (in)", "000000"),
        ("!notin", "111111"),
        ("a=in", "000000"),
    ] {
        let selector = LabelSelector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        let got: String = objects.iter().map(|labels| if matches(&selector, labels) { '1' } else { '0' }).collect();
        assert_eq!(got, want, "{text:?}");
        assert_eq!(selector.is_everything(), text.trim().is_empty(), "{text:?}");
    }
    assert!(matches(&LabelSelector::parse("in in (in)").unwrap(), &[("in", "in")]));
}

/// The messages of a live kube-apiserver, but for those under "from source".
#[test]
fn refusals_are_upstreams_texts() {
    let in_term = "unable to parse requirement: ";
    let key = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let value = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    let integer = "for 'Gt', 'Lt' operators, the value must be an integer";
    for (text, want) in [
        // Between terms.
        ("pos=1,", "found '', expected: identifier after ','".to_owned()),
        (",pos=1", "found ',', expected: !, identifier, or 'end of string'".to_owned()),
        ("pos=1 grp=x", "found 'grp', expected: ',' or 'end of string'".to_owned()),
        ("a,,b", "found ',', expected: identifier after ','".to_owned()),
        ("a=x=y", "found '=', expected: ',' or 'end of string'".to_owned()),
        ("!a=b", "found '=', expected: ',' or 'end of string'".to_owned()),
        (")", "found ')', expected: !, identifier, or 'end of string'".to_owned()),
        // Inside a term.
        ("pos>=2", format!("{in_term}found '=', expected: identifier")),
        ("pos>x", format!("{in_term}values[0]: Invalid value: \"x\": {integer}")),
        ("a b", format!("{in_term}found 'b', expected: in, notin, =, ==, !=, gt, lt")),
        ("pos IN (1)", format!("{in_term}found 'IN', expected: in, notin, =, ==, !=, gt, lt")),
        ("-x", format!("{in_term}<nil>: Invalid value: \"-x\": {key}")),
        ("/y=1", format!("{in_term}<nil>: Invalid value: \"/y\": prefix part must be non-empty")),
        ("pos=a_", format!("{in_term}values[0][pos]: Invalid value: \"a_\": {value}")),
        ("pos>-1", format!("{in_term}values[0][pos]: Invalid value: \"-1\": {value}")),
        ("!!", format!("{in_term}found '!', expected: identifier")),
        ("pos in 1", format!("{in_term}found '1' expected: '('")),
        ("pos in (1", format!("{in_term}found '', expected: ',' or ')'")),
        // From source.
        ("!", format!("{in_term}found '', expected: identifier")),
        ("a in", format!("{in_term}found '' expected: '('")),
        ("a in (b c)", format!("{in_term}found 'c', expected: ',' or ')'")),
        ("a in (=)", format!("{in_term}found '=', expected: ',', ')' or identifier")),
        ("a in (", format!("{in_term}found '', expected: ',', ')' or identifier")),
        ("a in (b,", format!("{in_term}found '', expected: ',', or identifier")),
        ("a in (b,,)", format!("{in_term}found ')', expected: ',', or identifier")),
        ("a in (,,)", format!("{in_term}found ')', expected: ',', or identifier")),
        ("a=(b)", format!("{in_term}found '(', expected: identifier")),
        ("a=b,-x", format!("{in_term}<nil>: Invalid value: \"-x\": {key}")),
        ("a b\"", format!("{in_term}found 'b\"', expected: in, notin, =, ==, !=, gt, lt")),
        ("a=b\"", format!("{in_term}values[0][a]: Invalid value: \"b\\\"\": {value}")),
        ("ex.io/a in (z,y_,a)", format!("{in_term}values[1][ex.io/a]: Invalid value: \"y_\": {value}")),
        ("a>", format!("{in_term}values[0]: Invalid value: \"\": {integer}")),
        ("a>99999999999999999999", format!("{in_term}values[0]: Invalid value: \"99999999999999999999\": {integer}")),
    ] {
        assert_eq!(message(text), want, "{text:?}");
    }
}

#[test]
fn what_we_cannot_vouch_for_is_unsure() {
    let long = "x".repeat(64);
    for text in [
        format!("a={long}"),
        format!("{long}=a"),
        format!("{}/a", "x".repeat(254)),
        "b=\u{e9}".into(),
        "\u{e9}=1".into(),
        "a/b/c".into(),
        "a/".into(),
        "/".into(),
        "Ex.io/a".into(),
        "-ex/a".into(),
        "ex..io/a".into(),
        "/-".into(),
        "a in (b_,c_)".into(),
        "a>x_".into(),
        "a=b\0".into(),
        "\0".into(),
    ] {
        assert_eq!(message(&text), "unsure", "{text:?}");
    }
    // As long as it may be.
    let name = "x".repeat(63);
    let prefix = ["p"; 127].join(".");
    assert_eq!(prefix.len(), 253);
    assert!(LabelSelector::parse(&format!("{prefix}/{name}={name}")).is_ok());
}

#[test]
fn a_single_equality_is_recognised() {
    for (text, want) in [
        ("a=b", Some(("a", "b"))),
        ("a==b", Some(("a", "b"))),
        ("a in (b)", Some(("a", "b"))),
        ("a in (b,b)", Some(("a", "b"))),
        ("a=", Some(("a", ""))),
        ("a=b,c", None),
        ("a in (b,c)", None),
        ("a!=b", None),
        ("a", None),
        ("", None),
    ] {
        assert_eq!(LabelSelector::parse(text).unwrap().single_equality(), want, "{text:?}");
    }
    assert_eq!(LabelSelector::parse("b=1,!a,b").unwrap().keys().collect::<Vec<_>>(), ["b", "a", "b"]);
}

#[derive(Clone, Debug)]
enum Term {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Is(String, String),
    IsNot(String, String),
    Above(String, u8),
    Below(String, u8),
}

impl Term {
    fn text(&self) -> String {
        match self {
            Self::Exists(k) => k.clone(),
            Self::Absent(k) => format!("!{k}"),
            Self::In(k, vs) => format!("{k} in ({})", vs.join(",")),
            Self::NotIn(k, vs) => format!("{k} notin ( {} )", vs.join(" , ")),
            Self::Is(k, v) => format!("{k}={v}"),
            Self::IsNot(k, v) => format!("{k} != {v}"),
            Self::Above(k, n) => format!("{k}>{n}"),
            Self::Below(k, n) => format!("{k} < {n}"),
        }
    }

    /// Straight from the documentation, over a plain map.
    fn naive(&self, labels: &BTreeMap<String, String>) -> bool {
        let number = |k: &str| labels.get(k).and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::Exists(k) => labels.contains_key(k),
            Self::Absent(k) => !labels.contains_key(k),
            Self::In(k, vs) => labels.get(k).is_some_and(|v| vs.contains(v)),
            Self::NotIn(k, vs) => !labels.get(k).is_some_and(|v| vs.contains(v)),
            Self::Is(k, v) => labels.get(k) == Some(v),
            Self::IsNot(k, v) => labels.get(k) != Some(v),
            Self::Above(k, n) => number(k).is_some_and(|v| v > i64::from(*n)),
            Self::Below(k, n) => number(k).is_some_and(|v| v < i64::from(*n)),
        }
    }
}

fn term() -> impl Strategy<Value = Term> {
    let key = || prop::sample::select(vec!["a", "b", "in", "ex.io/a"]).prop_map(String::from);
    let value = || prop::sample::select(vec!["", "x", "y", "notin", "3", "7"]).prop_map(String::from);
    // A list of nothing but empty values is written differently; `()` has its own test.
    let values = || prop::collection::vec(prop::sample::select(vec!["x", "y", "in", "3"]).prop_map(String::from), 1..4);
    prop_oneof![
        key().prop_map(Term::Exists),
        key().prop_map(Term::Absent),
        (key(), values()).prop_map(|(k, v)| Term::In(k, v)),
        (key(), values()).prop_map(|(k, v)| Term::NotIn(k, v)),
        (key(), value()).prop_map(|(k, v)| Term::Is(k, v)),
        (key(), value()).prop_map(|(k, v)| Term::IsNot(k, v)),
        (key(), 0..9u8).prop_map(|(k, n)| Term::Above(k, n)),
        (key(), 0..9u8).prop_map(|(k, n)| Term::Below(k, n)),
    ]
}

proptest! {
    #[test]
    fn matching_agrees_with_a_naive_evaluator(
        terms in prop::collection::vec(term(), 0..4),
        labels in prop::collection::btree_map(
            prop::sample::select(vec!["a", "b", "in", "ex.io/a"]).prop_map(String::from),
            prop::sample::select(vec!["", "x", "y", "in", "notin", "3", "7", "007"]).prop_map(String::from),
            0..4,
        ),
    ) {
        let text: Vec<String> = terms.iter().map(Term::text).collect();
        let text = text.join(" ,");
        let selector = LabelSelector::parse(&text).unwrap();
        let got = selector.matches(|key| labels.get(key).map(|v| Cow::Borrowed(v.as_str())));
        prop_assert_eq!(got, terms.iter().all(|term| term.naive(&labels)), "{}", text);
    }

    #[test]
    fn nothing_panics(text in "\\PC*|([a-z]| |,|\\(|\\)|=|!|<|>|in|notin|/|_|-|\\.|\0){0,24}") {
        // A message never talks about a text that was accepted, and a prefix is never doubled.
        if let Err(ParseError::Known(message)) = LabelSelector::parse(&text) {
            prop_assert!(message.matches("unable to parse requirement").count() <= 1);
        }
    }
}
