//! HTTP/1.1 Upgrade (exec, attach, port-forward; SPDY or WebSocket): after upstream's 101 the bytes are opaque and go
//! both ways until either side ends.
//!
//! Only a checked 101 opens a tunnel (CVE-2018-1002105: an error answered to an upgrade left a raw tunnel open); anything
//! else is relayed as the ordinary response it is.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tracing::debug;

use crate::lifecycle::{drain::DrainToken, tasks::Tasks};

/// Joins the two halves once both sides have switched.
pub(super) fn join(tasks: &Tasks, drain: DrainToken, client: OnUpgrade, upstream: OnUpgrade) {
    tasks.spawn_connection(async move {
        let _in_flight = drain.guard();
        let (client, upstream) = match tokio::try_join!(client, upstream) {
            Ok(both) => both,
            Err(error) => {
                debug!(%error, "upgrade");
                return;
            }
        };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        tokio::select! {
            copied = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {
                if let Err(error) = copied {
                    debug!(%error, "tunnel");
                }
            }
            // A shell that is open when forebay has to go does not end by itself.
            () = drain.aborted() => {}
        }
    });
}
