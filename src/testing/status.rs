//! Status bodies, as kube-apiserver words them.

use bytes::Bytes;

use super::{
    call::{Call, Verb},
    json::quote,
};

/// A Status to be printed.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) message: String,
    pub(super) reason: &'static str,
    /// JSON of `details`, if any.
    pub(super) details: Option<String>,
    /// `metadata.continue`, for expired tokens.
    pub(super) continue_token: Option<String>,
    pub(super) retry_after: Option<u32>,
}

/// One entry of `details.causes` of an invalid-options answer.
pub(super) struct Cause {
    pub(super) field: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

// === impl Status ===

impl Status {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), reason, ..Self::default() }
    }

    fn details(mut self, details: String) -> Self {
        self.details = Some(details);
        self
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(super) fn not_found(group_resource: &str, name: &str) -> Self {
        let message = format!("{group_resource} {} not found", go_quote(name));
        Self::new(404, "NotFound", message).details(object_details(group_resource, name, ""))
    }

    pub(super) fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").details("{}".into())
    }

    pub(super) fn already_exists(group_resource: &str, name: &str) -> Self {
        let message = format!("{group_resource} {} already exists", go_quote(name));
        Self::new(409, "AlreadyExists", message).details(object_details(group_resource, name, ""))
    }

    pub(super) fn conflict(group_resource: &str, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {group_resource} {}: the object has been modified; please apply your changes to the latest version and try again",
            go_quote(name)
        );
        Self::new(409, "Conflict", message).details(object_details(group_resource, name, ""))
    }

    pub(super) fn precondition(kind: &str, name: &str, what: &str, given: &str, stored: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {kind} {}: the {what} in the precondition ({given}) does not match the {what} in record ({stored}). The object might have been modified",
            go_quote(name)
        );
        Self::new(409, "Conflict", message).details(object_details(kind, name, ""))
    }

    pub(super) fn invalid_options(causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let text = if let [one] = &texts[..] { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let causes: Vec<String> = causes
            .iter()
            .map(|c| {
                let message = quote(&c.message);
                format!(r#"{{"reason":"{}","message":{message},"field":"{}"}}"#, c.reason, c.field)
            })
            .collect();
        Self::new(422, "Invalid", format!("ListOptions.meta.k8s.io \"\" is invalid: {text}"))
            .details(format!(r#"{{"group":"meta.k8s.io","kind":"ListOptions","causes":[{}]}}"#, causes.join(",")))
    }

    pub(super) fn bad_revision(text: &str) -> Self {
        Self::new(500, "", bad_revision_text(text))
    }

    pub(super) fn too_large(wanted: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
        let cause = r#"{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}"#;
        let mut status =
            Self::new(504, "Timeout", message).details(format!(r#"{{"causes":[{cause}],"retryAfterSeconds":1}}"#));
        status.retry_after = Some(1);
        status
    }

    pub(super) fn expired_list() -> Self {
        Self::new(410, "Expired", "The resourceVersion for the provided list is too old.")
    }

    pub(super) fn expired_token(token: String) -> Self {
        let message = concat!(
            "The provided continue parameter is too old to display a consistent list result. ",
            "You can start a new list without the continue parameter, or use the continue token in this response to ",
            "retrieve the remainder of the results. Continuing with the provided token results in an inconsistent ",
            "list - objects that were created, modified, or deleted between the time the first chunk was returned ",
            "and now may show up in the list."
        );
        Self { continue_token: Some(token), ..Self::new(410, "Expired", message) }
    }

    pub(super) fn expired_watch(from: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {from} ({oldest})"))
    }

    /// The Status upstream would answer this request with, under this code.
    pub(super) fn for_call(code: u16, call: &Call, user: &str, retry_after: Option<u32>) -> Self {
        let name = call.name.as_deref().unwrap_or_default();
        let mut status = match code {
            400 => Self::bad_request("the request is malformed"),
            401 => Self::unauthorized(),
            403 => Self::forbidden(call, user),
            404 if call.name.is_some() => Self::not_found(&call.group_resource(), name),
            404 => Self::no_such_resource(),
            405 => {
                Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
                    .details("{}".into())
            }
            409 if call.verb == Verb::Create => Self::already_exists(&call.group_resource(), name),
            409 => Self::conflict(&call.group_resource(), name),
            410 if call.verb == Verb::Watch => {
                Self::expired_watch(call.param("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(1), 2)
            }
            410 => Self::expired_list(),
            429 => Self::new(429, "TooManyRequests", "storage is (re)initializing"),
            500 => Self::new(500, "InternalError", "Internal error occurred: etcdserver: request timed out")
                .details(r#"{"causes":[{"message":"etcdserver: request timed out"}]}"#.into()),
            503 => Self::new(503, "ServiceUnavailable", "apiserver is shutting down"),
            504 => Self::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
                .details("{}".into()),
            _ => Self::new(code, "", format!("scripted answer {code}")),
        };
        if let Some(seconds) = retry_after {
            status.retry_after = Some(seconds);
            status.details.get_or_insert_with(|| format!(r#"{{"retryAfterSeconds":{seconds}}}"#));
        }
        status
    }

    /// The Status of an ERROR event.
    pub(super) fn for_watch(code: u16) -> Self {
        match code {
            410 => Self::expired_watch(1, 2),
            500 => Self::new(500, "InternalError", "etcd event received with PrevKv=nil"),
            504 => Self::too_large(u64::MAX >> 1, 1),
            _ => Self::new(code, "", format!("scripted error {code}")),
        }
    }

    fn forbidden(call: &Call, user: &str) -> Self {
        if call.resource.is_empty() {
            let message = format!("forbidden: User {} cannot get path {}", go_quote(user), go_quote(&call.path));
            return Self::new(403, "Forbidden", message).details("{}".into());
        }
        let name = call.name.as_deref().unwrap_or_default();
        let group_resource = call.group_resource();
        let subject =
            if name.is_empty() { group_resource.clone() } else { format!("{group_resource} {}", go_quote(name)) };
        let place = match &call.namespace {
            Some(ns) => format!("in the namespace {}", go_quote(ns)),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{subject} is forbidden: User {} cannot {} resource {} in API group {} {place}",
            go_quote(user),
            call.verb.as_str(),
            go_quote(&call.resource),
            go_quote(&call.group),
        );
        Self::new(403, "Forbidden", message).details(object_details(&group_resource, name, ""))
    }

    /// The JSON text without a newline, in the order of Go's struct.
    pub(super) fn json(&self) -> String {
        let metadata = self.continue_token.as_ref().map(|t| format!(r#""continue":"{t}""#)).unwrap_or_default();
        let reason = if self.reason.is_empty() { String::new() } else { format!(r#""reason":"{}","#, self.reason) };
        let details = self.details.as_ref().map(|d| format!(r#""details":{d},"#)).unwrap_or_default();
        format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{{metadata}}},"status":"Failure","message":{},{reason}{details}"code":{}}}"#,
            quote(&self.message),
            self.code
        )
    }

    /// The body of an answer: the text and a newline.
    pub(super) fn body(&self) -> Bytes {
        format!("{}\n", self.json()).into()
    }

    /// The ERROR event of a watch.
    pub(super) fn event(&self) -> Bytes {
        format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", self.json()).into()
    }
}

/// The Status of a successful deletion.
pub(super) fn deleted(group_resource: &str, name: &str, uid: &str) -> Bytes {
    let details = object_details(group_resource, name, uid);
    let head = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success""#;
    format!("{head},\"details\":{details}}}\n").into()
}

/// `details` of an object: `kind` is the plural resource.
fn object_details(group_resource: &str, name: &str, uid: &str) -> String {
    let (kind, group) = group_resource.split_once('.').unwrap_or((group_resource, ""));
    let members: Vec<String> = [("name", name), ("group", group), ("kind", kind), ("uid", uid)]
        .iter()
        .filter(|(_, v)| !v.is_empty())
        .map(|(k, v)| format!(r#""{k}":{}"#, quote(v)))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// What Go says of a resource version that is not a number.
pub(super) fn bad_revision_text(text: &str) -> String {
    let problem = if text.bytes().all(|b| b.is_ascii_digit()) { "value out of range" } else { "invalid syntax" };
    let text = go_quote(text);
    format!("resourceVersion: Invalid value: {text}: strconv.ParseUint: parsing {text}: {problem}")
}

/// Go's `%q` for the strings that occur here.
pub(super) fn go_quote(text: &str) -> String {
    format!("{text:?}")
}
