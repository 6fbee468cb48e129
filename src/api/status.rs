//! `metav1.Status`: the body of every error, as a value, rendered to the bytes upstream would send.
//!
//! Each constructor is one of apimachinery's (`api/errors`), with its reason, its prefix and its details; they were
//! compared with a live server's answers. A [`Status`] is always a failure; successes are upstream's to report. It does
//! not know HTTP: `code` is the status code of the response that carries it, [`Status::retry_after`] its `Retry-After`.

use std::borrow::Cow;

use bytes::Bytes;

use super::{
    go_text::{push_json_string, quoted},
    gvr::Gvr,
};

/// A failed request, told the Kubernetes way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, for example `NotFound`. Empty means unknown, and is not printed.
    pub reason: Cow<'static, str>,
    /// Text for people.
    pub message: String,
    /// What it is about. `Some` of an empty [`Details`] is printed as `{}`, which upstream does in places.
    pub details: Option<Details>,
}

/// `metav1.StatusDetails`. Empty fields are not printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// API group; empty for the core group.
    pub group: String,
    /// The plural resource (that is what upstream puts here), or a kind.
    pub kind: String,
    /// UID of the object.
    pub uid: String,
    /// What exactly is wrong.
    pub causes: Vec<Cause>,
    /// Seconds to wait before trying again; 0 for "not said".
    pub retry_after_seconds: u32,
}

/// `metav1.StatusCause`. Empty fields are not printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable reason, for example `FieldValueForbidden`.
    pub reason: Cow<'static, str>,
    /// Text for people.
    pub message: String,
    /// The field at fault.
    pub field: String,
}

// === impl Status ===

impl Status {
    /// Any status without details.
    pub fn new(code: u16, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), message: message.into(), details: None }
    }

    /// 404 `NotFound`: the object `name` of `gvr` does not exist. Byte for byte upstream's text for names of printable
    /// ASCII, which all legal names are (`request::info` marks the others as irregular).
    pub fn not_found(gvr: &Gvr, name: &str) -> Self {
        let quoted = quoted(name).unwrap_or_else(|| format!("{name:?}"));
        let message = if gvr.group.is_empty() {
            format!("{} {quoted} not found", gvr.resource)
        } else {
            format!("{}.{} {quoted} not found", gvr.resource, gvr.group)
        };
        Self::new(404, "NotFound", message).with_details(Details {
            name: name.to_owned(),
            group: gvr.group.as_ref().to_owned(),
            kind: gvr.resource.as_ref().to_owned(),
            ..Details::default()
        })
    }

    /// 401 `Unauthorized`, with upstream's one text for it.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 `Forbidden`. Upstream's own 403s name the user and the verb; this is for our refusals.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// 400 `BadRequest`.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 410 `Expired`: the wanted history is gone.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413 `RequestEntityTooLarge`; the message gets upstream's prefix.
    pub fn request_entity_too_large(message: &str) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: {message}"))
    }

    /// 421, for a `Host` that is not ours. Apimachinery has no reason for it, so none is given.
    pub fn misdirected(message: impl Into<String>) -> Self {
        Self::new(421, "", message)
    }

    /// 429 `TooManyRequests`: try again after so many seconds.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message).with_details(Details { retry_after_seconds, ..Details::default() })
    }

    /// 500 `InternalError`, with upstream's prefix and the bare message as the cause.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let text = format!("Internal error occurred: {message}");
        let causes = vec![Cause { message, ..Cause::default() }];
        Self::new(500, "InternalError", text).with_details(Details { causes, ..Details::default() })
    }

    /// 502: upstream could not be reached or did not speak HTTP. Apimachinery knows no reason of its own for 502; its
    /// clients read any 5xx it does not name as `InternalError`, so that is what is sent.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(502, "InternalError", message)
    }

    /// 503 `ServiceUnavailable`, with seconds to wait if known. Upstream's constructor has no such number; client-go
    /// retries a 503 only when it is there.
    pub fn service_unavailable(message: impl Into<String>, retry_after_seconds: Option<u32>) -> Self {
        let mut status = Self::new(503, "ServiceUnavailable", message);
        status.details =
            retry_after_seconds.map(|seconds| Details { retry_after_seconds: seconds, ..Details::default() });
        status
    }

    /// 504 `Timeout`; the message gets upstream's prefix `Timeout: `.
    pub fn gateway_timeout(message: &str) -> Self {
        Self::new(504, "Timeout", format!("Timeout: {message}")).with_details(Details::default())
    }

    /// 504: the client asked for state at or after `wanted`, and `current` is as far as it goes. Upstream sends a
    /// `retry_after_seconds` of 1 from its cache and none from etcd.
    pub fn too_large_resource_version(wanted: u64, current: u64, retry_after_seconds: u32) -> Self {
        let mut status = Self::gateway_timeout(&format!("Too large resource version: {wanted}, current: {current}"));
        status.details = Some(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".into(),
                message: "Too large resource version".into(),
                field: String::new(),
            }],
            retry_after_seconds,
            ..Details::default()
        });
        status
    }

    /// Sets the details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(details);
        self
    }

    /// Seconds for the `Retry-After` header, which upstream sends whenever the details carry a number above 0.
    pub fn retry_after(&self) -> Option<u32> {
        self.details.as_ref().map(|d| d.retry_after_seconds).filter(|&s| s > 0)
    }

    /// Compact JSON in upstream's key order and escaping, with the final newline: the whole body.
    pub fn to_json(&self) -> Bytes {
        let mut out = Vec::with_capacity(160 + 2 * self.message.len());
        out.extend_from_slice(br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure""#);
        push_member(&mut out, "message", &self.message);
        push_member(&mut out, "reason", &self.reason);
        if let Some(details) = &self.details {
            out.extend_from_slice(br#","details":"#);
            details.push_json(&mut out);
        }
        if self.code != 0 {
            push_number(&mut out, "code", self.code.into());
        }
        out.extend_from_slice(b"}\n");
        Bytes::from(out)
    }
}

// === impl Details ===

impl Details {
    fn push_json(&self, out: &mut Vec<u8>) {
        let open = out.len();
        push_member(out, "name", &self.name);
        push_member(out, "group", &self.group);
        push_member(out, "kind", &self.kind);
        push_member(out, "uid", &self.uid);
        if !self.causes.is_empty() {
            out.extend_from_slice(br#","causes":["#);
            for (i, cause) in self.causes.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                cause.push_json(out);
            }
            out.push(b']');
        }
        if self.retry_after_seconds > 0 {
            push_number(out, "retryAfterSeconds", self.retry_after_seconds);
        }
        close_object(out, open);
    }
}

// === impl Cause ===

impl Cause {
    fn push_json(&self, out: &mut Vec<u8>) {
        let open = out.len();
        push_member(out, "reason", &self.reason);
        push_member(out, "message", &self.message);
        push_member(out, "field", &self.field);
        close_object(out, open);
    }
}

/// Appends `,"key":"value"`, or nothing for an empty value (Go's `omitempty`).
fn push_member(out: &mut Vec<u8>, key: &str, value: &str) {
    if !value.is_empty() {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(b"\":");
        push_json_string(out, value);
    }
}

fn push_number(out: &mut Vec<u8>, key: &str, value: u32) {
    out.extend_from_slice(format!(",\"{key}\":{value}").as_bytes());
}

/// Ends an object whose members, each led by a comma, begin at `open`: the first comma becomes the brace.
fn close_object(out: &mut Vec<u8>, open: usize) {
    match out.get_mut(open) {
        Some(comma) => *comma = b'{',
        None => out.push(b'{'),
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bodies are a live kube-apiserver's, except where the third column says otherwise.
    #[test]
    fn bodies_are_upstreams_bytes() {
        let head = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#;
        for (status, want) in [
            (
                Status::not_found(&Gvr::new("", "v1", "configmaps"), "nosuch"),
                r#""message":"configmaps \"nosuch\" not found","reason":"NotFound","details":{"name":"nosuch","kind":"configmaps"},"code":404}"#,
            ),
            (
                Status::not_found(&Gvr::new("verify.example.com", "v2", "convs"), "zz"),
                r#""message":"convs.verify.example.com \"zz\" not found","reason":"NotFound","details":{"name":"zz","group":"verify.example.com","kind":"convs"},"code":404}"#,
            ),
            (Status::unauthorized(), r#""message":"Unauthorized","reason":"Unauthorized","code":401}"#),
            (
                Status::bad_request(r#"unable to parse requirement: <nil>: Invalid value: "/y": prefix part must be non-empty"#),
                r#""message":"unable to parse requirement: \u003cnil\u003e: Invalid value: \"/y\": prefix part must be non-empty","reason":"BadRequest","code":400}"#,
            ),
            (
                Status::new(500, "", r#"resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax"#),
                r#""message":"resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax","code":500}"#,
            ),
            (
                Status::new(404, "NotFound", "the server could not find the requested resource").with_details(Details::default()),
                r#""message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#,
            ),
            (
                Status::too_large_resource_version(1 << 62, 5, 1),
                r#""message":"Timeout: Too large resource version: 4611686018427387904, current: 5","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}"#,
            ),
            (
                Status::too_large_resource_version(1 << 62, 5, 0),
                r#""message":"Timeout: Too large resource version: 4611686018427387904, current: 5","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}]},"code":504}"#,
            ),
            (
                Status::expired("The resourceVersion for the provided list is too old."),
                r#""message":"The resourceVersion for the provided list is too old.","reason":"Expired","code":410}"#,
            ),
            (
                Status::new(422, "Invalid", r#"ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"#).with_details(Details {
                    group: "meta.k8s.io".into(),
                    kind: "ListOptions".into(),
                    causes: vec![Cause {
                        reason: "FieldValueForbidden".into(),
                        message: "Forbidden: sendInitialEvents is forbidden for list".into(),
                        field: "sendInitialEvents".into(),
                    }],
                    ..Details::default()
                }),
                r#""message":"ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list","reason":"Invalid","details":{"group":"meta.k8s.io","kind":"ListOptions","causes":[{"reason":"FieldValueForbidden","message":"Forbidden: sendInitialEvents is forbidden for list","field":"sendInitialEvents"}]},"code":422}"#,
            ),
        ] {
            assert_eq!(String::from_utf8(status.to_json().to_vec()).unwrap(), format!("{head}{want}\n"));
        }
    }

    #[test]
    fn our_own_refusals_follow_apimachinery() {
        for (status, code, reason, message, retry) in [
            (
                Status::too_many_requests("storage is (re)initializing", 1),
                429,
                "TooManyRequests",
                "storage is (re)initializing",
                Some(1),
            ),
            (Status::service_unavailable("not yet", Some(3)), 503, "ServiceUnavailable", "not yet", Some(3)),
            (Status::service_unavailable("not yet", None), 503, "ServiceUnavailable", "not yet", None),
            (Status::bad_gateway("no"), 502, "InternalError", "no", None),
            (Status::gateway_timeout("no"), 504, "Timeout", "Timeout: no", None),
            (Status::internal("no"), 500, "InternalError", "Internal error occurred: no", None),
            (Status::forbidden("no"), 403, "Forbidden", "no", None),
            (Status::misdirected("no"), 421, "", "no", None),
            (
                Status::request_entity_too_large("no"),
                413,
                "RequestEntityTooLarge",
                "Request entity too large: no",
                None,
            ),
        ] {
            assert_eq!(status.retry_after(), retry, "{message}");
            let value: serde_json::Value = serde_json::from_slice(&status.to_json()).unwrap();
            assert_eq!(value["code"], code);
            assert_eq!(value["reason"].as_str().unwrap_or_default(), reason);
            assert_eq!(value["message"], message);
            assert_eq!(value["details"]["retryAfterSeconds"].as_u64(), retry.map(u64::from));
        }
    }
}
