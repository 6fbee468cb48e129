//! Sends a request on to upstream and its answer back, both streamed, and tunnels after a 101.
//!
//! Path and query go as they came. Hop-by-hop headers end here, in both directions (RFC 9110 section 7.6.1). With
//! forebay's identity the client's `Authorization`, which was forebay's own token, is taken off; any other credential
//! goes on untouched. Nothing is buffered, redirects are passed on unfollowed. What is sent a second time, and when, is
//! in `upstream::client`: never a write.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::{
    lifecycle::{drain::DrainToken, tasks::Tasks},
    request::hop,
    store::Fence,
    upstream::{self, Client, Failure, RequestBody},
};

use super::{
    Body,
    observe::{Act, Observer, Subject},
    tunnel,
};

/// What forwarding needs.
#[derive(Clone, Debug)]
pub(super) struct Forwarder {
    pub(super) client: Client,
    pub(super) tasks: Tasks,
    pub(super) drain: DrainToken,
    /// Longest wait for the head of an answer that is no stream.
    pub(super) head_timeout: Duration,
    pub(super) max_frame: usize,
}

/// How one request is forwarded.
#[derive(Debug)]
pub(super) struct Manner {
    /// Under forebay's identity, or with what the request has.
    pub(super) own_identity: bool,
    /// The answer may take for ever: watch, log, exec.
    pub(super) long_running: bool,
    /// What is looked at in the answer.
    pub(super) subject: Option<Subject>,
}

/// While it lives, a write is under way; dropped unanswered, nobody knows what became of it.
struct Unanswered {
    fence: Option<Arc<Fence>>,
}

// === impl Forwarder ===

impl Forwarder {
    /// Forwards a request whose hop-by-hop headers have been taken off; `upgrade` is the protocol it asked to switch to.
    pub(super) async fn forward(
        &self,
        mut request: Request<Incoming>,
        upgrade: Option<HeaderValue>,
        manner: Manner,
    ) -> Result<Response<Body>, Failure> {
        let method = request.method().clone();
        let client_side = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let request = outgoing(request, upgrade, manner.own_identity);
        let write = matches!(&manner.subject, Some(Subject { act: Act::Write { .. }, .. }));
        let mut unanswered =
            Unanswered { fence: manner.subject.as_ref().filter(|_| write).map(|subject| subject.fence.clone()) };

        let streams = manner.long_running || client_side.is_some();
        let sending = upstream::Manner {
            own_identity: manner.own_identity,
            upgrade: client_side.is_some(),
            head_timeout: (!streams).then_some(self.head_timeout),
        };
        let answered = self.client.forward(request, sending).await;
        if !matches!(answered, Err(Failure::Broken(_) | Failure::Slow { sent: true, .. })) {
            unanswered.fence = None;
        }
        let mut response = answered?;

        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client_side) = client_side else {
                return Err(Failure::Broken("upstream switched protocols without having been asked to".into()));
            };
            let upstream_side = hyper::upgrade::on(&mut response);
            tunnel::join(&self.tasks, self.drain.clone(), client_side, upstream_side);
            let (mut parts, _) = response.into_parts();
            let protocol = parts.headers.get(header::UPGRADE).cloned();
            strip(&mut parts.headers);
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            if let Some(protocol) = protocol {
                parts.headers.insert(header::UPGRADE, protocol);
            }
            return Ok(Response::from_parts(parts, Body::empty()));
        }
        Ok(self.incoming(response, &method, manner))
    }

    fn incoming(&self, response: Response<Incoming>, method: &Method, manner: Manner) -> Response<Body> {
        let (mut parts, incoming) = response.into_parts();
        strip(&mut parts.headers);
        let observer = manner
            .subject
            .and_then(|subject| Observer::new(subject, method, parts.status, &parts.headers, self.max_frame));
        let streams = manner.long_running && parts.status == StatusCode::OK;
        let body = Body::upstream(incoming, observer, streams.then_some(&self.drain));
        let body = if streams { body } else { body.in_flight(self.drain.guard()) };
        Response::from_parts(parts, body)
    }
}

// === impl Unanswered ===

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(fence) = self.fence.take() {
            fence.passing().unknown();
        }
    }
}

fn outgoing(request: Request<Incoming>, upgrade: Option<HeaderValue>, own_identity: bool) -> Request<RequestBody> {
    let (mut parts, incoming) = request.into_parts();
    if own_identity {
        parts.headers.remove(header::AUTHORIZATION);
        // Should forebay's certificate be one that upstream trusts to name users, clients must not use it for that.
        let names: Vec<_> =
            parts.headers.keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
        for name in names {
            parts.headers.remove(name);
        }
    }
    // hyper has answered it already.
    parts.headers.remove(header::EXPECT);
    if let Some(protocol) = upgrade {
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
    }
    parts.extensions = http::Extensions::new();
    let body = if incoming.is_end_stream() { RequestBody::Empty } else { RequestBody::Stream(incoming) };
    Request::from_parts(parts, body)
}

/// Takes upstream's hop-by-hop headers off. One that names an end-to-end header in `Connection` keeps that header.
fn strip(headers: &mut HeaderMap) {
    if hop::strip_hop_by_hop(headers).is_err() {
        headers.remove(header::CONNECTION);
    }
}
