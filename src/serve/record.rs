//! What became of one request, written as one access event when its body ends or the client leaves.

use std::time::Duration;

use http::{HeaderValue, Method, Uri};
use tokio::time::Instant;

use crate::{
    api::{gvr::Gvr, resource_version::ResourceVersion},
    telemetry::{Verb, access_log::AccessEvent},
};

use super::metrics::{Metrics, Outcome};

/// Gathered while a request is answered; writes itself when dropped.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) begun: Instant,
    pub(super) method: Method,
    pub(super) verb: Verb,
    pub(super) gvr: Option<Gvr>,
    /// Only its path is written.
    pub(super) uri: Uri,
    pub(super) user_agent: Option<HeaderValue>,
    pub(super) outcome: Outcome,
    pub(super) reason: &'static str,
    pub(super) status: u16,
    pub(super) rv: Option<ResourceVersion>,
    pub(super) waited: Duration,
    pub(super) bytes: u64,
    pub(super) metrics: Metrics,
    /// Whether an event of this outcome is wanted at this verbosity.
    pub(super) event: bool,
}

// === impl Record ===

impl Record {
    /// Bytes of the body went out.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if matches!(self.outcome, Outcome::Hit | Outcome::Held) {
            self.metrics.spared(self.bytes);
        }
        if self.event {
            AccessEvent {
                method: self.method.as_str(),
                verb: self.verb,
                gvr: self.gvr.as_ref(),
                ns: None,
                name: None,
                path: self.uri.path(),
                decision: self.outcome.as_str(),
                reason: self.reason,
                status: self.status,
                rv_wanted: None,
                rv_served: self.rv.map(|rv| rv.0),
                user_agent: self.user_agent.as_ref().and_then(|agent| agent.to_str().ok()).unwrap_or_default(),
                wait: self.waited,
                duration: self.begun.elapsed(),
                bytes: self.bytes,
            }
            .emit();
        }
    }
}
