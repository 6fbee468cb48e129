//! What a reflector does next: a pure step from how the last request ended to a verdict on the store, a wait and the next
//! request. All I/O is in `driver`.
//!
//! ```text
//! Load (streaming, else pages) --complete--> Watch from its rv --clean end--> Watch from the last rv
//!   ^                                          | lost: Resume (ask how far upstream is), then Watch
//!   |                                          | expired, contradictory, rv went back
//!   +------------------------------------------+        401/403 -> refused, 404 -> not served any more
//! ```
//!
//! A lost connection may lead to another server when it is opened again: one that has been restored from a backup, or one
//! that is behind. A consistent read tells the first apart before anything is taken from it; for the second it tells the
//! version that the store has to reach before its life is proven again.

use std::time::Duration;

use crate::api::resource_version::ResourceVersion;

/// A stream that lived this long was in order: what was wrong before it counts no more.
const STEADY: Duration = Duration::from_secs(60);

/// Upstream may send so much nonsense in a row before its resource is given up for a while.
const STRIKES: u32 = 3;

/// A watch that ended sooner was none: to open it again at once, and again, would be a storm.
const SHORT: Duration = Duration::from_secs(1);

/// How many loads are done in pages before streaming is tried again, at most.
const MAX_PAGED: u32 = 8;

/// The next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Load everything.
    Load(Mode),
    /// Go on from this version.
    Watch(ResourceVersion),
    /// The same after a loss: ask first how far upstream has come.
    Resume(ResourceVersion),
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
    /// LIST at once, where pages took so long that their version was compacted.
    Whole,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Pages: everything is loaded and committed at this version.
    Loaded(ResourceVersion),
    /// The store is complete up to `at`, and upstream was at `now` when it was asked.
    Told {
        /// The store's version.
        at: ResourceVersion,
        /// Upstream's.
        now: ResourceVersion,
    },
    /// The watch ended by itself, as it does every few minutes; this is how far it had come, if it had loaded.
    Ended(Option<ResourceVersion>),
    /// We left the watch, to open another at once.
    Left(Option<ResourceVersion>),
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
    /// 410 in the middle of a list in pages.
    Torn,
    /// 401 or 403.
    Refused(u16),
    /// 404: no such resource.
    NotServed,
    /// 405: it can be listed, but not watched.
    Unwatchable,
    /// Upstream does not understand streaming lists.
    NoStreaming,
    /// It may understand them, but did not give this one.
    StreamingFailed,
    /// Upstream's state is older than what has been served.
    WentBack,
    /// Versions of this resource are no numbers.
    NotNumbers,
    /// An object is larger than the limit.
    TooLarge,
    /// The answer is not what was asked for.
    Junk,
    /// The stream says what can't be true of the state that it goes on from.
    Contradiction,
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
    /// The same, up to minutes: it costs a complete load to find out that nothing has changed.
    Slowly(Option<Duration>),
}

/// Remembers what upstream can't do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reflector {
    /// Loads that are still to be done in pages.
    paged: u32,
    /// Streaming lists that failed in a row.
    streaming_failed: u32,
    expired_in_a_row: u32,
    strikes: u32,
}

// === impl Outcome ===

impl Outcome {
    /// How far the store had come on a stream that was loaded.
    pub(super) fn at(&self) -> Option<ResourceVersion> {
        match *self {
            Self::Loaded(at) | Self::Told { at, .. } => Some(at),
            Self::Ended(at) | Self::Left(at) | Self::Failed { at, .. } => at,
        }
    }
}

// === impl Reflector ===

impl Reflector {
    /// The first request.
    pub(super) fn start(&self) -> Next {
        Next::Load(self.mode())
    }

    /// What follows from how the last request ended, which had worked for `lived`.
    pub(super) fn step(&mut self, outcome: Outcome, lived: Duration) -> Plan {
        let plan = |verdict, wait, next, relist| Plan { verdict, wait, next, relist };
        if lived >= STEADY {
            (self.strikes, self.expired_in_a_row) = (0, 0);
        }
        let (at, why, retry_after) = match outcome {
            Outcome::Loaded(rv) => {
                self.paged = self.paged.saturating_sub(1);
                return plan(Verdict::Keep, Wait::No, Next::Watch(rv), None);
            }
            Outcome::Told { at, now } if now >= at => return plan(Verdict::Keep, Wait::No, Next::Watch(at), None),
            Outcome::Told { .. } => (None, Failure::WentBack, None),
            Outcome::Ended(Some(rv)) => {
                let wait = if lived < SHORT { Wait::Backoff(None) } else { Wait::No };
                return plan(Verdict::Keep, wait, Next::Watch(rv), None);
            }
            Outcome::Left(Some(rv)) => return plan(Verdict::Keep, Wait::No, Next::Watch(rv), None),
            // It ended before the load was complete: that is no clean end.
            Outcome::Ended(None) | Outcome::Left(None) => (None, Failure::Junk, None),
            Outcome::Failed { at, why, retry_after } => (at, why, retry_after),
        };
        let backoff = Wait::Backoff(retry_after);
        let slowly = Wait::Slowly(retry_after);
        let load = Next::Load(self.mode());
        match why {
            Failure::Expired => {
                // Once is what compaction does; twice in a row is a server that can't keep its promise.
                self.expired_in_a_row += 1;
                let wait = if self.expired_in_a_row > 1 { backoff } else { Wait::No };
                plan(Verdict::Keep, wait, load, Some("expired"))
            }
            Failure::Torn => plan(Verdict::Keep, Wait::No, Next::Load(Mode::Whole), Some("torn")),
            Failure::Refused(code) => plan(Verdict::Refuse(code), backoff, load, Some("refused")),
            Failure::NotServed => plan(Verdict::Unservable("not served"), Wait::No, Next::Close, None),
            Failure::NoStreaming => {
                // It may after an upgrade; finding out costs one request.
                self.paged = MAX_PAGED;
                plan(Verdict::Keep, Wait::No, Next::Load(Mode::Pages), None)
            }
            Failure::StreamingFailed => {
                self.streaming_failed += 1;
                self.paged = (1 << (self.streaming_failed - 1).min(8)).min(MAX_PAGED);
                plan(Verdict::Keep, Wait::No, Next::Load(Mode::Pages), None)
            }
            Failure::WentBack => plan(Verdict::Reset, Wait::No, load, Some("went_back")),
            Failure::NotNumbers => {
                plan(Verdict::Unservable("resource versions are no numbers"), slowly, load, Some("not_numbers"))
            }
            Failure::Unwatchable => plan(Verdict::Unservable("it can't be watched"), slowly, load, Some("unwatchable")),
            Failure::TooLarge => {
                plan(Verdict::Unservable("an object is above --max-frame-bytes"), slowly, load, Some("too_large"))
            }
            Failure::Junk | Failure::Contradiction => {
                self.strikes += 1;
                let relist = Some(if why == Failure::Junk { "junk" } else { "contradiction" });
                match at {
                    _ if self.strikes >= STRIKES => {
                        plan(Verdict::Unservable("upstream's stream makes no sense"), slowly, load, relist)
                    }
                    // What came before it is good, and whatever comes after that version is asked for again.
                    Some(rv) if why == Failure::Junk && self.strikes == 1 => {
                        plan(Verdict::Keep, backoff, Next::Resume(rv), None)
                    }
                    _ => plan(Verdict::Keep, backoff, load, relist),
                }
            }
            Failure::Unavailable => {
                let next = at.map_or(load, Next::Resume);
                plan(Verdict::Keep, backoff, next, at.is_none().then_some("unavailable"))
            }
        }
    }

    /// A streaming list came to its end.
    pub(super) fn streamed(&mut self) {
        self.streaming_failed = 0;
    }

    fn mode(&self) -> Mode {
        if self.paged > 0 { Mode::Pages } else { Mode::Streaming }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RV: ResourceVersion = ResourceVersion(7);
    const LOAD: Next = Next::Load(Mode::Streaming);
    const BACKOFF: Wait = Wait::Backoff(None);
    const SLOWLY: Wait = Wait::Slowly(None);
    const MOMENT: Duration = Duration::ZERO;

    fn failed(at: Option<ResourceVersion>, why: Failure) -> Outcome {
        Outcome::Failed { at, why, retry_after: None }
    }

    #[test]
    fn each_ending_has_its_consequence() {
        let told = |now| Outcome::Told { at: RV, now: ResourceVersion(now) };
        let (keep, uncacheable) = (Verdict::Keep, Verdict::Unservable);
        for (outcome, verdict, wait, next) in [
            (Outcome::Loaded(RV), keep, Wait::No, Next::Watch(RV)),
            (Outcome::Ended(Some(RV)), keep, BACKOFF, Next::Watch(RV)),
            (Outcome::Left(Some(RV)), keep, Wait::No, Next::Watch(RV)),
            (Outcome::Ended(None), keep, BACKOFF, LOAD),
            (told(7), keep, Wait::No, Next::Watch(RV)),
            (told(99), keep, Wait::No, Next::Watch(RV)),
            (told(6), Verdict::Reset, Wait::No, LOAD),
            (failed(Some(RV), Failure::Expired), keep, Wait::No, LOAD),
            (failed(None, Failure::Torn), keep, Wait::No, Next::Load(Mode::Whole)),
            (failed(Some(RV), Failure::Unavailable), keep, BACKOFF, Next::Resume(RV)),
            (failed(None, Failure::Unavailable), keep, BACKOFF, LOAD),
            (failed(Some(RV), Failure::Junk), keep, BACKOFF, Next::Resume(RV)),
            (failed(None, Failure::Junk), keep, BACKOFF, LOAD),
            (failed(Some(RV), Failure::Contradiction), keep, BACKOFF, LOAD),
            (failed(None, Failure::Refused(403)), Verdict::Refuse(403), BACKOFF, LOAD),
            (failed(None, Failure::NotServed), uncacheable("not served"), Wait::No, Next::Close),
            (failed(None, Failure::WentBack), Verdict::Reset, Wait::No, LOAD),
            (failed(None, Failure::NoStreaming), keep, Wait::No, Next::Load(Mode::Pages)),
            (failed(None, Failure::StreamingFailed), keep, Wait::No, Next::Load(Mode::Pages)),
            (failed(None, Failure::TooLarge), uncacheable("an object is above --max-frame-bytes"), SLOWLY, LOAD),
            (failed(None, Failure::NotNumbers), uncacheable("resource versions are no numbers"), SLOWLY, LOAD),
            (failed(None, Failure::Unwatchable), uncacheable("it can't be watched"), SLOWLY, LOAD),
        ] {
            let plan = Reflector::default().step(outcome, MOMENT);
            assert_eq!((plan.verdict, plan.wait, plan.next), (verdict, wait, next), "{outcome:?}");
        }
    }

    #[test]
    fn a_server_without_streaming_is_asked_for_it_now_and_then() {
        let mut reflector = Reflector::default();
        reflector.step(failed(None, Failure::NoStreaming), MOMENT);
        for _ in 0..MAX_PAGED {
            let plan = reflector.step(failed(Some(RV), Failure::Expired), MOMENT);
            assert_eq!(plan.next, Next::Load(Mode::Pages));
            reflector.step(Outcome::Loaded(RV), MOMENT);
        }
        assert_eq!(reflector.step(failed(Some(RV), Failure::Expired), MOMENT).next, LOAD);
    }

    #[test]
    fn trouble_with_streaming_is_no_lack_of_it() {
        let mut reflector = Reflector::default();
        let mut paged = Vec::new();
        for round in 0..6 {
            if round == 5 {
                reflector.streamed();
            }
            reflector.step(failed(None, Failure::StreamingFailed), MOMENT);
            let mut loads = 0;
            while reflector.step(failed(None, Failure::Unavailable), MOMENT).next == Next::Load(Mode::Pages) {
                reflector.step(Outcome::Loaded(RV), MOMENT);
                loads += 1;
            }
            paged.push(loads);
        }
        assert_eq!(paged, [1, 2, 4, 8, 8, 1]);
    }

    #[test]
    fn expiry_after_expiry_backs_off_and_asks_no_sooner_than_upstream_wants() {
        let mut reflector = Reflector::default();
        assert_eq!(reflector.step(failed(Some(RV), Failure::Expired), MOMENT).wait, Wait::No);
        let wait = Some(Duration::from_secs(5));
        let again = Outcome::Failed { at: Some(RV), why: Failure::Expired, retry_after: wait };
        assert_eq!(reflector.step(again, MOMENT).wait, Wait::Backoff(wait));
        // A clean end is no proof of health when it comes at once.
        assert_eq!(reflector.step(Outcome::Ended(Some(RV)), MOMENT).wait, BACKOFF);
        assert_eq!(reflector.step(failed(Some(RV), Failure::Expired), MOMENT).wait, BACKOFF);
        assert_eq!(reflector.step(Outcome::Ended(Some(RV)), SHORT).wait, Wait::No);
        // A watch that has lived was well, however it ended.
        assert_eq!(reflector.step(failed(Some(RV), Failure::Expired), STEADY).wait, Wait::No);
    }

    /// Once may be a proxy's whim; a stream that goes on making no sense is no base for answers.
    #[test]
    fn nonsense_is_resumed_then_loaded_anew_then_given_up() {
        for (why, first) in [(Failure::Junk, Next::Resume(RV)), (Failure::Contradiction, LOAD)] {
            let mut reflector = Reflector::default();
            for _ in 0..2 {
                let plan = reflector.step(failed(Some(RV), why), STEADY);
                assert_eq!((plan.verdict, plan.wait, plan.next), (Verdict::Keep, BACKOFF, first), "{why:?}");
            }
            let plan = reflector.step(failed(Some(RV), why), MOMENT);
            assert_eq!((plan.verdict, plan.wait, plan.next), (Verdict::Keep, BACKOFF, LOAD), "{why:?}");
            for _ in 0..3 {
                let plan = reflector.step(failed(Some(RV), why), MOMENT);
                assert!(matches!(plan.verdict, Verdict::Unservable(_)), "{plan:?}");
                assert_eq!((plan.wait, plan.next), (SLOWLY, LOAD), "{why:?}");
            }
        }
    }
}
