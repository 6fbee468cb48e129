//! The one event of each request, emitted when its response ends.
//!
//! Filled with plain values by whoever finishes the request. The path goes in, the query never does: exec commands,
//! label values and tokens of old clients stand there. Served requests are `DEBUG` (`--v=2`), refusals and upstream's
//! failures `INFO`: those a person must see without asking.

use std::time::Duration;

use tracing::Level;

use super::Verb;
use crate::api::gvr::Gvr;

/// Target of the events, for filters.
pub const TARGET: &str = "access";

/// What is known about a finished request.
#[derive(Clone, Debug)]
pub struct AccessEvent<'a> {
    /// HTTP method.
    pub method: &'a str,
    /// What it does.
    pub verb: Verb,
    /// Path, without the query.
    pub path: &'a str,
    /// Resource, if the path names one.
    pub gvr: Option<&'a Gvr>,
    /// Namespace, if the path names one.
    pub ns: Option<&'a str>,
    /// Object, if the path names one.
    pub name: Option<&'a str>,
    /// How it was answered: `hit`, `held`, `forwarded`, `rejected`.
    pub decision: &'static str,
    /// Why so.
    pub reason: &'static str,
    /// HTTP status sent.
    pub status: u16,
    /// Resource version the answer had to reach.
    pub rv_wanted: Option<u64>,
    /// Resource version of the answer.
    pub rv_served: Option<u64>,
    /// Time spent held.
    pub wait: Duration,
    /// From the request's head to the end of the response's body.
    pub duration: Duration,
    /// The client's `User-Agent`.
    pub user_agent: &'a str,
    /// Bytes of the response's body.
    pub bytes: u64,
}

// === impl AccessEvent ===

impl AccessEvent<'_> {
    /// Does anyone listen to an event of this outcome? Cheap; ask before the parts are put together.
    pub fn enabled(decision: &str, status: u16) -> bool {
        if is_trouble(decision, status) {
            tracing::enabled!(target: TARGET, Level::INFO)
        } else {
            tracing::enabled!(target: TARGET, Level::DEBUG)
        }
    }

    /// Emits the event.
    pub fn emit(&self) {
        if is_trouble(self.decision, self.status) {
            tracing::event!(
                target: TARGET, parent: None, Level::INFO,
                method = self.method, verb = self.verb.as_str(), path = self.path,
                gvr = self.gvr.map(tracing::field::display), ns = self.ns, name = self.name,
                decision = self.decision, reason = self.reason, status = self.status,
                rv.wanted = self.rv_wanted, rv.served = self.rv_served,
                wait_ms = millis(self.wait), duration_ms = millis(self.duration),
                user_agent = self.user_agent, bytes = self.bytes,
            );
        } else {
            tracing::event!(
                target: TARGET, parent: None, Level::DEBUG,
                method = self.method, verb = self.verb.as_str(), path = self.path,
                gvr = self.gvr.map(tracing::field::display), ns = self.ns, name = self.name,
                decision = self.decision, reason = self.reason, status = self.status,
                rv.wanted = self.rv_wanted, rv.served = self.rv_served,
                wait_ms = millis(self.wait), duration_ms = millis(self.duration),
                user_agent = self.user_agent, bytes = self.bytes,
            );
        }
    }
}

/// What a person must see without asking.
fn is_trouble(decision: &str, status: u16) -> bool {
    decision == "rejected" || status >= 500
}

/// Milliseconds with three decimals: a cached answer takes a fraction of one.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}
