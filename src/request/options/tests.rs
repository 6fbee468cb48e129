use super::*;
use proptest::prelude::*;

fn parse(query: &str) -> ReadOptions {
    ReadOptions::parse(Some(query))
}

#[test]
fn no_query_is_no_options() {
    for query in [None, Some(""), Some("&")] {
        assert_eq!(ReadOptions::parse(query), ReadOptions::default());
    }
    assert!(ReadOptions::default().is_understood());
}

#[test]
fn every_parameter_is_read() {
    let options = parse(
        "resourceVersion=12&resourceVersionMatch=NotOlderThan&limit=500&continue=abc&labelSelector=a%3Db%2Cc+in+%28d%29\
         &fieldSelector=metadata.name%3Dx&watch=1&allowWatchBookmarks=true&sendInitialEvents=false&timeout=1m30s\
         &timeoutSeconds=300&pretty=1",
    );
    assert_eq!(
        options,
        ReadOptions {
            resource_version: RvParam::AtLeast(ResourceVersion(12)),
            resource_version_match: Some(VersionMatch::NotOlderThan),
            limit: Some(500),
            continue_token: Some("abc".into()),
            label_selector: Some("a=b,c in (d)".into()),
            field_selector: Some("metadata.name=x".into()),
            watch: true,
            allow_watch_bookmarks: true,
            send_initial_events: Some(false),
            timeout: Some(Duration::from_secs(90)),
            timeout_seconds: Some(300),
            pretty: Some("1".into()),
            unknown: None,
            irregular: false,
        }
    );
    assert!(options.is_understood());
}

#[test]
fn resource_versions() {
    let any = "99999999999999999999999".to_owned();
    for (value, want) in [
        ("", RvParam::Unset),
        ("0", RvParam::Any),
        ("1", RvParam::AtLeast(ResourceVersion(1))),
        ("007", RvParam::AtLeast(ResourceVersion(7))),
        ("18446744073709551615", RvParam::AtLeast(ResourceVersion(u64::MAX))),
        ("00", RvParam::Invalid("00".into())),
        ("abc", RvParam::Invalid("abc".into())),
        ("-1", RvParam::Invalid("-1".into())),
        ("+1", RvParam::Invalid(" 1".into())),
        ("%2B1", RvParam::Invalid("+1".into())),
        (&any, RvParam::Invalid(any.clone())),
    ] {
        let options = parse(&format!("resourceVersion={value}"));
        assert_eq!(options.resource_version, want, "{value}");
        assert_eq!(options.is_understood(), !matches!(want, RvParam::Invalid(_)), "{value}");
    }
}

#[test]
fn values_that_mean_nothing_are_not_options() {
    for query in [
        "resourceVersion=",
        "resourceVersionMatch",
        "limit=0",
        "limit=-1",
        "limit=%2B0",
        "continue=",
        "labelSelector=",
        "fieldSelector=",
        "watch=false",
        "allowWatchBookmarks=0",
        "timeout=",
        "timeout=0",
        "timeout=0s",
        "timeout=-5s",
        "pretty",
    ] {
        assert_eq!(parse(query), ReadOptions::default(), "{query}");
    }
}

#[test]
fn what_is_not_understood_is_said() {
    for query in [
        "limit=",
        "limit",
        "limit=x",
        "limit=1.5",
        "limit=99999999999999999999",
        "timeoutSeconds=",
        "timeoutSeconds=x",
        "timeout=x",
        "timeout=30",
        "resourceVersion=1&resourceVersion=1",
        "labelSelector=a&labelSelector=b",
        "watch=1;limit=2",
        "limit=%3",
        "labelSelector=%ff",
        "lim%69t=1",
        "p%72etty=1",
    ] {
        let options = parse(query);
        assert!(options.irregular && !options.is_understood(), "{query}");
    }
    for (query, unknown) in [
        ("foo=bar", "foo"),
        ("limit=1&export=true&dryRun=All", "export"),
        ("Limit=1", "Limit"),
        ("=x", ""),
        ("shardSelector", "shardSelector"),
        ("includeObject=None", "includeObject"),
    ] {
        let options = parse(query);
        assert_eq!(options.unknown.as_deref(), Some(unknown), "{query}");
        assert!(!options.irregular && !options.is_understood(), "{query}");
    }
    let options = parse("resourceVersion=5&resourceVersionMatch=foo");
    assert_eq!(options.resource_version_match, Some(VersionMatch::Other("foo".into())));
    assert!(!options.is_understood());
}

#[test]
fn the_first_value_counts() {
    let options = parse("limit=1&limit=2&watch=0&watch=1&resourceVersion=&resourceVersion=5");
    assert_eq!((options.limit, options.watch, options.resource_version), (Some(1), false, RvParam::Unset));
    assert!(options.irregular);
}

proptest! {
    #[test]
    fn nothing_panics_and_other_text_is_never_understood(query in "\\PC*") {
        let options = parse(&query);
        let known = query.split('&').all(|p| p.is_empty() || KNOWN.contains(&p.split('=').next().unwrap_or(p)));
        prop_assert!(known || !options.is_understood(), "{:?}", options);
    }

    #[test]
    fn values_survive_their_encoding(value in "\\PC{1,20}") {
        let encoded: String = value.bytes().map(|b| format!("%{b:02x}")).collect();
        let options = parse(&format!("labelSelector={encoded}&continue={encoded}"));
        prop_assert_eq!(options.label_selector.as_deref(), Some(value.as_str()));
        prop_assert_eq!(options.continue_token.as_deref(), Some(value.as_str()));
        prop_assert!(options.is_understood());
    }
}
