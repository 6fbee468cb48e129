//! Every Status that forebay itself answers with, and nowhere else: what went wrong becomes a code, an outward message
//! that says what to do, and a closed word for metrics. Causes go to the log; the client is told no address and no
//! credential.

use http::{HeaderValue, Response, StatusCode, header};

use crate::{
    api::status::Status,
    request::admission::Inadmissible,
    upstream::{ConnectError, Failure},
};

use super::Body;

/// Why a request was refused or failed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// No credential.
    Anonymous,
    /// A `Connection` header that names a header which must not be lost.
    HopByHop,
    /// No readable request.
    Unreadable,
    /// A request target that is no path.
    Target,
    /// Not addressed to this server.
    Host,
    /// From a web page.
    Browser,
    /// Too many reads are held.
    TooManyHolds,
    /// The hold came to its deadline.
    HoldTimeout,
    /// forebay is shutting down.
    Shutdown,
    /// Upstream can't be reached.
    Unreachable,
    /// The connection to upstream broke.
    Broken,
    /// Upstream was too slow.
    Slow,
}

// === impl Refusal ===

impl Refusal {
    /// The label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::HopByHop => "hop_by_hop",
            Self::Unreadable => "unreadable",
            Self::Target => "target",
            Self::Host => "host",
            Self::Browser => "browser",
            Self::TooManyHolds => "too_many_holds",
            Self::HoldTimeout => "hold_timeout",
            Self::Shutdown => "shutdown",
            Self::Unreachable => "upstream_unreachable",
            Self::Broken => "upstream_broken",
            Self::Slow => "upstream_slow",
        }
    }
}

/// The Status for what is no readable request. The reasons are those that apimachinery has for such codes.
pub(super) fn of_unreadable(code: StatusCode, why: &str) -> Status {
    match code {
        StatusCode::BAD_REQUEST => Status::bad_request(why),
        StatusCode::REQUEST_TIMEOUT => Status::new(code.as_u16(), "Timeout", why),
        StatusCode::URI_TOO_LONG | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            Status::new(code.as_u16(), "RequestEntityTooLarge", why)
        }
        _ => Status::new(code.as_u16(), "", why),
    }
}

/// The Status for a request that is not looked at.
pub(super) fn of_inadmissible(inadmissible: Inadmissible) -> (Refusal, Status) {
    let message = inadmissible.to_string();
    match inadmissible {
        Inadmissible::Target => (Refusal::Target, Status::bad_request(message)),
        Inadmissible::Host => (Refusal::Host, Status::bad_request(message)),
        Inadmissible::ForeignHost => (Refusal::Host, Status::misdirected(message)),
        Inadmissible::Browser => (Refusal::Browser, Status::forbidden(message)),
    }
}

/// The Status for a forwarded request that got no answer. `write`: what upstream did is unknown unless nothing was sent.
///
/// Only the 503 has a `Retry-After`, at which clients repeat a write as well: nothing was sent.
pub(super) fn of_failure(failure: &Failure, write: bool) -> (Refusal, Status) {
    match failure {
        Failure::Unsent(_) => {
            tracing::warn!(error = %failure, "upstream can't be reached");
            let what = match failure.connect() {
                Some(ConnectError::TcpTimeout(after)) => {
                    format!("forebay got no connection to the API server within {after:?} (--connect-timeout)")
                }
                Some(ConnectError::TlsTimeout(after)) => {
                    format!("forebay got no TLS handshake with the API server within {after:?} (--connect-timeout)")
                }
                Some(ConnectError::Tls(_)) => "forebay's TLS handshake with the API server failed".to_owned(),
                Some(ConnectError::Tcp(_)) | None => "forebay can't reach the API server".to_owned(),
            };
            let message = format!("{what}; nothing was sent; see forebay's log for the cause");
            (Refusal::Unreachable, Status::service_unavailable(message, Some(1)))
        }
        Failure::Broken(_) => {
            tracing::warn!(error = %failure, write, "the connection to upstream broke");
            let message = if write {
                "forebay lost its connection to the API server before the answer: the outcome of this write is unknown, \
                 read before writing again"
            } else {
                "forebay lost its connection to the API server before the answer"
            };
            (Refusal::Broken, Status::bad_gateway(message))
        }
        Failure::Slow { after, sent } => {
            let outcome = match (sent, write) {
                (false, _) => "; nothing was sent",
                (true, true) => "; the outcome of this write is unknown",
                (true, false) => "",
            };
            let message = format!("the API server sent no answer within {after:?} (--request-timeout){outcome}");
            (Refusal::Slow, Status::gateway_timeout(&message))
        }
    }
}

/// The Status for a read that upstream is not there to answer, and that what is held does not prove an answer to.
pub(super) fn of_absence() -> (Refusal, Status) {
    let message =
        "forebay can't reach the API server, and its cache may have missed what is asked for (--max-staleness)";
    (Refusal::Unreachable, Status::service_unavailable(message, Some(1)))
}

/// A Status as a response: compact JSON, as upstream writes it.
pub(super) fn response(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::ready(status.to_json()));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = status.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status.code == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"forebay\""));
    }
    response
}
