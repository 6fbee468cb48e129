//! What hangs below a pod: upgraded connections that echo, and logs.
//!
//! Proxies must pass both through untouched, so the content is of no interest: `exec`, `attach` and `portforward` switch
//! to the protocol the client names (SPDY or WebSocket, never spoken here) and send every byte back; `log` is three
//! lines of text, and with `follow` stays open after them.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::{copy, split};

use super::{
    body::{Body, Closed, Sink},
    call::Call,
    status::Status,
};

/// The subresources that upgrade.
const UPGRADES: [&str; 3] = ["exec", "attach", "portforward"];

/// Whether the call is for one of the subresources here.
pub(super) fn is_tunnel(call: &Call) -> bool {
    call.resource == "pods" && UPGRADES.contains(&call.subresource.as_str())
}

/// Answers 101 and echoes from then on.
pub(super) fn switch(request: &mut Request<Incoming>) -> Result<Response<Body>, Status> {
    let headers = request.headers();
    let asked = headers.get(header::UPGRADE).cloned();
    let named = headers.get(header::CONNECTION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let (Some(protocol), true) = (asked, named.to_ascii_lowercase().contains("upgrade")) else {
        return Err(Status::bad_request("Upgrade request required"));
    };
    tokio::spawn(echo(hyper::upgrade::on(request)));
    let mut response = Response::new(Body::Whole(None));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(header::UPGRADE, protocol);
    Ok(response)
}

async fn echo(upgrade: OnUpgrade) {
    // A client that goes away before the switch leaves nothing to echo.
    let Ok(upgraded) = upgrade.await else { return };
    let (mut from, mut to) = split(TokioIo::new(upgraded));
    let _ = copy(&mut from, &mut to).await;
    let _ = tokio::io::AsyncWriteExt::shutdown(&mut to).await;
}

/// Writes the log of a pod.
pub(super) async fn log(mut sink: Sink, follow: bool) -> Result<(), Closed> {
    for n in 1..=3 {
        sink.send(Bytes::from(format!("line {n}\n"))).await?;
    }
    if follow { Err(sink.stall().await) } else { Ok(()) }
}
