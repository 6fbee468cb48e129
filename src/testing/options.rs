//! List and watch options: decoding and the checks upstream makes, in upstream's order, with upstream's words.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

use super::{
    call::Call,
    json::quote,
    resource::Resource,
    selector::Selector,
    status::{Cause, Status, bad_revision_text},
};

/// How fresh the answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revision {
    /// Unset: the newest.
    Newest,
    /// `0`: any.
    Any,
    /// At least this.
    NotOlder(u64),
    /// Exactly this.
    Exact(u64),
}

/// Decoded and checked options of a LIST.
#[derive(Clone, Debug)]
pub(super) struct ListOptions {
    pub(super) revision: Revision,
    /// 0: no limit.
    pub(super) limit: usize,
    /// Where to go on: the first key to return is the first at or after this one. Relative to the list's root.
    pub(super) start: Option<String>,
    pub(super) selector: Selector,
}

/// Decoded and checked options of a WATCH.
#[derive(Clone, Debug)]
pub(super) struct WatchOptions {
    pub(super) revision: Revision,
    pub(super) initial: bool,
    pub(super) bookmarks: bool,
    pub(super) timeout_seconds: Option<i64>,
    pub(super) selector: Selector,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

const MATCH: &str = "resourceVersionMatch";

// === impl ListOptions ===

impl ListOptions {
    pub(super) fn parse(call: &Call, resource: &Resource) -> Result<Self, Status> {
        let limit = integer(call, "limit")?.unwrap_or(0);
        integer(call, "timeoutSeconds")?;
        let selectors = (param(call, "labelSelector"), param(call, "fieldSelector"));
        // Label selectors are decoded with the options, field labels only after their validation.
        Selector::parse(resource, selectors.0, "")?;
        let (rv, rv_match, token) = (param(call, "resourceVersion"), param(call, MATCH), param(call, "continue"));
        let mut causes = Vec::new();
        if !rv_match.is_empty() {
            if rv.is_empty() {
                causes.push(forbidden(MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
            }
            if !token.is_empty() {
                causes.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
            }
            if !matches!(rv_match, "Exact" | "NotOlderThan") {
                causes.push(unsupported(rv_match, r#""Exact", "NotOlderThan", """#));
            }
            if rv_match == "Exact" && rv == "0" {
                causes.push(forbidden(MATCH, r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#));
            }
        }
        if call.param("sendInitialEvents").is_some_and(|v| !v.is_empty()) {
            causes.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        if !causes.is_empty() {
            return Err(Status::invalid_options(&causes));
        }
        let selector = Selector::parse(resource, selectors.0, selectors.1)?;
        let number = |rv: &str| {
            let wrong = || Status::bad_request(format!("invalid resource version: {}", bad_revision_text(rv)));
            revision_number(rv).ok_or_else(wrong)
        };
        let limit = usize::try_from(limit).unwrap_or(0);
        let (mut revision, mut start) = (Revision::Newest, None);
        if !token.is_empty() {
            if !matches!(rv, "" | "0") {
                number(rv)?;
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            let (rv, key) = decode_token(token).map_err(|why| {
                Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
            })?;
            revision = rv.map_or(Revision::Newest, Revision::Exact);
            start = Some(key);
        } else if !rv.is_empty() {
            revision = match (number(rv)?, rv_match) {
                (0, _) => Revision::Any,
                (n, "Exact") => Revision::Exact(n),
                // The legacy rule: with a limit and no match, exactly this.
                (n, "") if limit > 0 => Revision::Exact(n),
                (n, _) => Revision::NotOlder(n),
            };
        }
        // Upstream's cache ignores the limit where any state will do.
        let limit = if revision == Revision::Any { 0 } else { limit };
        Ok(Self { revision, limit, start, selector })
    }
}

// === impl WatchOptions ===

impl WatchOptions {
    pub(super) fn parse(call: &Call, resource: &Resource, watch_list: bool) -> Result<Self, Status> {
        let timeout_seconds = integer(call, "timeoutSeconds")?;
        integer(call, "limit")?;
        let selectors = (param(call, "labelSelector"), param(call, "fieldSelector"));
        Selector::parse(resource, selectors.0, "")?;
        let (rv, rv_match, token) = (param(call, "resourceVersion"), param(call, MATCH), param(call, "continue"));
        let given = call.param("sendInitialEvents").is_some_and(|v| !v.is_empty());
        let mut causes = Vec::new();
        if given && !watch_list {
            let text = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            causes.push(forbidden("sendInitialEvents", text));
        } else if given && rv_match != "NotOlderThan" {
            let text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            causes.push(forbidden(MATCH, text));
            if !rv_match.is_empty() {
                causes.push(unsupported(rv_match, r#""NotOlderThan""#));
            }
        } else if !given && !rv_match.is_empty() {
            let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            causes.push(forbidden(MATCH, text));
        }
        if matches!(rv, "" | "0") && !token.is_empty() {
            causes.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !causes.is_empty() {
            return Err(Status::invalid_options(&causes));
        }
        let selector = Selector::parse(resource, selectors.0, selectors.1)?;
        let revision = match rv {
            "" => Revision::Newest,
            _ => match revision_number(rv).ok_or_else(|| Status::bad_revision(rv))? {
                0 => Revision::Any,
                n => Revision::NotOlder(n),
            },
        };
        let initial =
            if given { call.flag("sendInitialEvents") } else { matches!(revision, Revision::Newest | Revision::Any) };
        let bookmarks = call.flag("allowWatchBookmarks");
        Ok(Self { revision, initial, bookmarks, timeout_seconds, selector })
    }
}

/// The token for going on after `key`, with the slash upstream's cache puts in front.
pub(super) fn encode_token(rv: u64, key: &str) -> String {
    token(&rv.to_string(), &format!("/{key}\0"))
}

/// The token of a 410: newest state, same place, no slash.
pub(super) fn encode_restart_token(start: &str) -> String {
    token("-1", start)
}

fn token(rv: &str, start: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!(r#"{{"v":"meta.k8s.io/v1","rv":{rv},"start":{}}}"#, quote(start)))
}

/// The revision (`None` for the newest) and the start key without a leading slash.
fn decode_token(text: &str) -> Result<(Option<u64>, String), String> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|e| {
        let at = match e {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            _ => text.len(),
        };
        format!("illegal base64 data at input byte {at}")
    })?;
    let token: Token = serde_json::from_slice(&bytes).map_err(|_| {
        let first = bytes.first().map_or(' ', |b| char::from(*b));
        format!("invalid character '{first}' looking for beginning of value")
    })?;
    if token.v != "meta.k8s.io/v1" {
        return Err(format!("server does not recognize this encoded version {}", token.v));
    }
    if token.rv == 0 {
        return Err("incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned());
    }
    if token.start.is_empty() {
        return Err("encoded start key empty (version meta.k8s.io/v1)".to_owned());
    }
    let start = token.start.strip_prefix('/').unwrap_or(&token.start);
    if start.split('/').any(|s| matches!(s, "" | "." | "..")) {
        return Err(token.start);
    }
    Ok((u64::try_from(token.rv).ok(), start.to_owned()))
}

fn param<'a>(call: &'a Call, name: &str) -> &'a str {
    call.param(name).unwrap_or_default()
}

fn integer(call: &Call, name: &str) -> Result<Option<i64>, Status> {
    let Some(text) = call.param(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let problem = if number { "value out of range" } else { "invalid syntax" };
        Status::bad_request(format!("strconv.ParseInt: parsing {}: {problem}", super::status::go_quote(text)))
    })
}

pub(super) fn revision_number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn forbidden(field: &'static str, text: &str) -> Cause {
    Cause { field, reason: "FieldValueForbidden", message: format!("Forbidden: {text}") }
}

fn unsupported(value: &str, supported: &str) -> Cause {
    let message = format!("Unsupported value: {value:?}: supported values: {supported}");
    Cause { field: MATCH, reason: "FieldValueNotSupported", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_upstreams_form() {
        let bare = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MTIzNDUsInN0YXJ0IjoiZGVmYXVsdC9mb29cdTAwMDAifQ";
        assert_eq!(token("12345", "default/foo\0"), bare);
        assert_eq!(decode_token(bare), Ok((Some(12345), "default/foo\0".to_owned())));
        assert_eq!(decode_token(&encode_token(7, "x/y")), Ok((Some(7), "x/y\0".to_owned())));
        assert_eq!(decode_token(&encode_restart_token("y\0")), Ok((None, "y\0".to_owned())));
        assert_eq!(decode_token("!!!"), Err("illegal base64 data at input byte 0".to_owned()));
        assert_eq!(decode_token("aGVsbG8"), Err("invalid character 'h' looking for beginning of value".to_owned()));
    }

    #[test]
    fn the_matrix_of_list_options() {
        for (query, want) in [
            ("", Ok((Revision::Newest, 0))),
            ("limit=5", Ok((Revision::Newest, 5))),
            ("resourceVersion=0&limit=5", Ok((Revision::Any, 0))),
            ("resourceVersion=7", Ok((Revision::NotOlder(7), 0))),
            ("resourceVersion=7&limit=5", Ok((Revision::Exact(7), 5))),
            ("resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan", Ok((Revision::NotOlder(7), 5))),
            ("resourceVersion=7&resourceVersionMatch=Exact", Ok((Revision::Exact(7), 0))),
            ("resourceVersion=abc", Err(400)),
            ("resourceVersionMatch=Exact", Err(422)),
            ("resourceVersion=0&resourceVersionMatch=Exact", Err(422)),
            ("sendInitialEvents=true", Err(422)),
            ("limit=x&resourceVersionMatch=foo", Err(400)),
            ("resourceVersion=abc&fieldSelector=zz%3D1", Err(400)),
        ] {
            let call = Call::parse("GET", "/api/v1/configmaps", Some(query));
            let got = ListOptions::parse(&call, &Resource::config_maps());
            assert_eq!(got.map(|o| (o.revision, o.limit)).map_err(|s| s.code), want, "{query}");
        }
    }
}
