//! What a reflector does next: a pure step from how the last request ended to a verdict on the store, a wait and the next
//! request. All I/O is in `driver`.
//!
//! ```text
//! Load (streaming, else pages) --complete--> Watch from its rv --clean end--> Watch from the last rv
//!   ^                                          | expired, junk, rv went back
//!   +------------------------------------------+        401/403 -> refused, 404 -> not served any more
//! ```

use std::time::Duration;

use crate::api::resource_version::ResourceVersion;

/// The next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Load everything.
    Load(Mode),
    /// Go on from this version.
    Watch(ResourceVersion),
    /// Upstream doesn't serve this resource any more: close the store.
    Close,
}

/// How a load is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// `sendInitialEvents`: one request, which goes on as the watch.
    Streaming,
    /// LIST in pages, for servers without it.
    Pages,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Pages: everything is loaded and committed at this version.
    Loaded(ResourceVersion),
    /// The watch ended by itself, as it does every few minutes; this is how far it had come, if it had loaded.
    Ended(Option<ResourceVersion>),
    /// It failed.
    Failed {
        /// How far the store had come on this stream, if it is loaded.
        at: Option<ResourceVersion>,
        /// Why.
        why: Failure,
        /// What upstream asked us to wait.
        retry_after: Option<Duration>,
    },
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// 410, as a status or as an event: the version to start from is compacted.
    Expired,
    /// 401 or 403.
    Refused(u16),
    /// 404: no such resource.
    NotServed,
    /// 405: it can be listed, but not watched.
    Unwatchable,
    /// Upstream does not understand streaming lists.
    NoStreaming,
    /// The complete load is older than what has been served.
    WentBack,
    /// Versions of this resource are no numbers.
    NotNumbers,
    /// An object is larger than the limit.
    TooLarge,
    /// The answer is not what was asked for.
    Junk,
    /// No connection, a lost one, 429, 5xx: nothing is known about the data.
    Unavailable,
}

/// What the store is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It stays as it is.
    Keep,
    /// Upstream refuses us; forward.
    Refuse(u16),
    /// It can't be cached; forward.
    Unservable(&'static str),
    /// Upstream's history is another one: forget everything.
    Reset,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) verdict: Verdict,
    pub(super) wait: Wait,
    pub(super) next: Next,
    /// Why everything is loaded again, for the counter.
    pub(super) relist: Option<&'static str>,
}

/// Whether to pause before the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Go on at once.
    No,
    /// As the backoff says, and no sooner than upstream asked.
    Backoff(Option<Duration>),
}

/// Remembers what upstream can't do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reflector {
    no_streaming: bool,
    expired_in_a_row: u32,
}

// === impl Reflector ===

impl Reflector {
    /// The first request.
    pub(super) fn start(&self) -> Next {
        Next::Load(self.mode())
    }

    /// What follows from how the last request ended.
    pub(super) fn step(&mut self, outcome: Outcome) -> Plan {
        let plan = |verdict, wait, next, relist| Plan { verdict, wait, next, relist };
        let (at, why, retry_after) = match outcome {
            Outcome::Loaded(rv) => return plan(Verdict::Keep, Wait::No, Next::Watch(rv), None),
            Outcome::Ended(Some(rv)) => {
                self.expired_in_a_row = 0;
                return plan(Verdict::Keep, Wait::No, Next::Watch(rv), None);
            }
            // It ended before the load was complete: that is no clean end.
            Outcome::Ended(None) => (None, Failure::Junk, None),
            Outcome::Failed { at, why, retry_after } => (at, why, retry_after),
        };
        let backoff = Wait::Backoff(retry_after);
        let load = Next::Load(self.mode());
        match why {
            Failure::Expired => {
                // Once is what compaction does; twice in a row is a server that can't keep its promise.
                self.expired_in_a_row += 1;
                let wait = if self.expired_in_a_row > 1 { backoff } else { Wait::No };
                plan(Verdict::Keep, wait, load, Some("expired"))
            }
            Failure::Refused(code) => plan(Verdict::Refuse(code), backoff, load, Some("refused")),
            Failure::NotServed => plan(Verdict::Unservable("not served"), Wait::No, Next::Close, None),
            Failure::NoStreaming => {
                let again = self.no_streaming;
                self.no_streaming = true;
                let wait = if again { backoff } else { Wait::No };
                plan(Verdict::Keep, wait, Next::Load(Mode::Pages), None)
            }
            Failure::WentBack => plan(Verdict::Reset, Wait::No, load, Some("went_back")),
            Failure::NotNumbers => {
                plan(Verdict::Unservable("resource versions are no numbers"), backoff, load, Some("not_numbers"))
            }
            Failure::Unwatchable => {
                plan(Verdict::Unservable("it can't be watched"), backoff, load, Some("unwatchable"))
            }
            Failure::TooLarge => {
                plan(Verdict::Unservable("an object is above --max-frame-bytes"), backoff, load, Some("too_large"))
            }
            Failure::Junk => plan(Verdict::Keep, backoff, load, Some("junk")),
            Failure::Unavailable => {
                let next = at.map_or(load, Next::Watch);
                plan(Verdict::Keep, backoff, next, at.is_none().then_some("unavailable"))
            }
        }
    }

    fn mode(&self) -> Mode {
        if self.no_streaming { Mode::Pages } else { Mode::Streaming }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RV: ResourceVersion = ResourceVersion(7);

    fn failed(at: Option<ResourceVersion>, why: Failure) -> Outcome {
        Outcome::Failed { at, why, retry_after: None }
    }

    #[test]
    fn each_ending_has_its_consequence() {
        let load = Next::Load(Mode::Streaming);
        let backoff = Wait::Backoff(None);
        for (outcome, verdict, wait, next) in [
            (Outcome::Loaded(RV), Verdict::Keep, Wait::No, Next::Watch(RV)),
            (Outcome::Ended(Some(RV)), Verdict::Keep, Wait::No, Next::Watch(RV)),
            (Outcome::Ended(None), Verdict::Keep, backoff, load),
            (failed(Some(RV), Failure::Expired), Verdict::Keep, Wait::No, load),
            (failed(Some(RV), Failure::Unavailable), Verdict::Keep, backoff, Next::Watch(RV)),
            (failed(None, Failure::Unavailable), Verdict::Keep, backoff, load),
            (failed(Some(RV), Failure::Junk), Verdict::Keep, backoff, load),
            (failed(None, Failure::Refused(403)), Verdict::Refuse(403), backoff, load),
            (failed(None, Failure::NotServed), Verdict::Unservable("not served"), Wait::No, Next::Close),
            (failed(None, Failure::Unwatchable), Verdict::Unservable("it can't be watched"), backoff, load),
            (failed(None, Failure::WentBack), Verdict::Reset, Wait::No, load),
            (failed(None, Failure::NoStreaming), Verdict::Keep, Wait::No, Next::Load(Mode::Pages)),
        ] {
            let plan = Reflector::default().step(outcome);
            assert_eq!((plan.verdict, plan.wait, plan.next), (verdict, wait, next), "{outcome:?}");
        }
    }

    #[test]
    fn a_server_without_streaming_is_listed_in_pages_from_then_on() {
        let mut reflector = Reflector::default();
        reflector.step(failed(None, Failure::NoStreaming));
        let plan = reflector.step(failed(Some(RV), Failure::Expired));
        assert_eq!(plan.next, Next::Load(Mode::Pages));
        let plan = reflector.step(failed(None, Failure::NoStreaming));
        assert_eq!((plan.next, plan.wait), (Next::Load(Mode::Pages), Wait::Backoff(None)));
    }

    #[test]
    fn expiry_after_expiry_backs_off_and_asks_no_sooner_than_upstream_wants() {
        let mut reflector = Reflector::default();
        assert_eq!(reflector.step(failed(Some(RV), Failure::Expired)).wait, Wait::No);
        let wait = Some(Duration::from_secs(5));
        let again = Outcome::Failed { at: Some(RV), why: Failure::Expired, retry_after: wait };
        assert_eq!(reflector.step(again).wait, Wait::Backoff(wait));
        reflector.step(Outcome::Ended(Some(RV)));
        assert_eq!(reflector.step(failed(Some(RV), Failure::Expired)).wait, Wait::No);
    }
}
