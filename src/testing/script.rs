//! What goes wrong, and when: rules that tests add and remove while the server runs.
//!
//! A rule is a [`Match`] and an action. Every rule that matches a request applies, in the order in which they were
//! added: delays add up, holds follow one another, the first scripted reply wins. A rule may be limited to some
//! requests (`after`, `times`), so scripts read like the story they tell:
//!
//! ```text
//! let hold = server.on(list("pods")).hold();                 // every list of pods waits
//! server.on(watch("pods")).times(1).reply_status(410);       // the next watch is refused
//! server.on(list("pods").continued()).after(2).reset();      // the third page never arrives
//! hold.wait_for(1, SECOND).await?; hold.release();
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

use super::{
    log::{Seen, TimedOut},
    matching::Match,
    status::Status,
};

/// The rules of one server; clones share them.
#[derive(Clone, Default)]
pub(super) struct Script {
    rules: Arc<Mutex<Vec<Arc<RuleState>>>>,
}

/// A rule being written: limits first, then what happens.
#[must_use = "a rule does nothing until an action is chosen"]
pub struct On {
    script: Script,
    matches: Match,
    skip: u64,
    times: u64,
}

/// A rule in force. Dropping the handle leaves the rule alone.
#[derive(Clone)]
pub struct Rule {
    script: Script,
    state: Arc<RuleState>,
}

/// Requests held by a rule, to be let go by the test. Dropping it leaves them held.
#[derive(Clone)]
pub struct Hold {
    latch: Arc<Latch>,
    rule: Rule,
}

/// What is to happen to one request: the matching rules, merged.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) before: Vec<Before>,
    pub(super) reply: Option<Reply>,
    pub(super) reset: bool,
    pub(super) reset_answered: bool,
    pub(super) content_type: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: BodyPlan,
    pub(super) watch: WatchPlan,
}

/// What happens before the head of the answer.
pub(super) enum Before {
    Delay(Duration),
    Hold(Arc<Latch>),
}

/// What happens to the bytes of a body.
#[derive(Clone, Default)]
pub(super) struct BodyPlan {
    pub(super) pace: Duration,
    pub(super) holds: Vec<Arc<Latch>>,
    pub(super) piece: Option<usize>,
    pub(super) cut: Option<usize>,
    pub(super) stall: Option<usize>,
}

/// What happens to a watch stream.
#[derive(Clone, Default)]
pub(super) struct WatchPlan {
    pub(super) inject: Vec<Bytes>,
    pub(super) error: Option<Status>,
    pub(super) end_after: Option<usize>,
    pub(super) drop_bookmarks: bool,
    pub(super) drop_end_bookmark: bool,
}

/// A whole answer, made up by the test.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// `None`: the Status upstream would send with this code.
    pub(super) body: Option<(String, Bytes)>,
    pub(super) retry_after: Option<u32>,
}

/// Something to wait at.
pub(super) struct Latch {
    gate: Semaphore,
    waiting: watch::Sender<usize>,
}

#[derive(Clone)]
enum Action {
    Delay(Duration),
    DelayBetween(Duration, Duration),
    Hold(Arc<Latch>),
    Reply(Reply),
    Reset,
    ResetAnswered,
    ContentType(String),
    Header(String, String),
    Pace(Duration),
    HoldFrames(Arc<Latch>),
    Dribble(usize),
    Cut(usize),
    Stall(usize),
    Inject(Bytes),
    WatchError(Status),
    EndAfter(usize),
    DropBookmarks,
    DropEndBookmark,
}

struct RuleState {
    matches: Match,
    skip: u64,
    times: u64,
    hits: AtomicU64,
    action: Action,
}

struct Waiting<'a>(&'a watch::Sender<usize>);

// === impl Script ===

impl Script {
    pub(super) fn on(&self, matches: Match) -> On {
        On { script: self.clone(), matches, skip: 0, times: u64::MAX }
    }

    pub(super) fn clear(&self) {
        self.rules.lock().clear();
    }

    /// Merges the rules that apply to this request, and counts it against their limits.
    pub(super) fn plan(&self, seen: &Seen) -> Plan {
        let rules = self.rules.lock().clone();
        let mut plan = Plan::default();
        for rule in rules.iter().filter(|r| r.matches.matches(seen)) {
            let hit = rule.hits.fetch_add(1, Ordering::Relaxed);
            if hit < rule.skip || hit - rule.skip >= rule.times {
                continue;
            }
            plan.add(rule.action.clone());
        }
        plan
    }
}

impl Plan {
    fn add(&mut self, action: Action) {
        match action {
            Action::Delay(by) => self.before.push(Before::Delay(by)),
            Action::DelayBetween(least, most) => {
                let by = least + most.saturating_sub(least).mul_f64(rand::random());
                self.before.push(Before::Delay(by));
            }
            Action::Hold(latch) => self.before.push(Before::Hold(latch)),
            Action::Reply(reply) => {
                self.reply.get_or_insert(reply);
            }
            Action::Reset => self.reset = true,
            Action::ResetAnswered => self.reset_answered = true,
            Action::ContentType(value) => self.content_type = Some(value),
            Action::Header(name, value) => self.headers.push((name, value)),
            Action::Pace(by) => self.body.pace += by,
            Action::HoldFrames(latch) => self.body.holds.push(latch),
            Action::Dribble(n) => self.body.piece = Some(n),
            Action::Cut(n) => self.body.cut = Some(n),
            Action::Stall(n) => self.body.stall = Some(n),
            Action::Inject(bytes) => self.watch.inject.push(bytes),
            Action::WatchError(status) => self.watch.error = Some(status),
            Action::EndAfter(n) => self.watch.end_after = Some(n),
            Action::DropBookmarks => self.watch.drop_bookmarks = true,
            Action::DropEndBookmark => self.watch.drop_end_bookmark = true,
        }
    }
}

// === impl On ===

impl On {
    /// Applies to this many requests only, then no more.
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Lets this many matching requests pass first.
    pub fn after(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// Waits before answering.
    pub fn delay(self, by: Duration) -> Rule {
        self.rule(Action::Delay(by))
    }

    /// Waits before answering, each time for some time between the two, as a network and a busy server would.
    pub fn delay_between(self, least: Duration, most: Duration) -> Rule {
        self.rule(Action::DelayBetween(least, most))
    }

    /// Holds requests before their answer's head until they are released.
    pub fn hold(self) -> Hold {
        let latch = Arc::new(Latch::new());
        Hold { latch: latch.clone(), rule: self.rule(Action::Hold(latch)) }
    }

    /// Sends the head, then holds before every frame of the body (at most 128 KiB each).
    pub fn hold_body(self) -> Hold {
        let latch = Arc::new(Latch::new());
        Hold { latch: latch.clone(), rule: self.rule(Action::HoldFrames(latch)) }
    }

    /// Waits before every frame of the body (at most 128 KiB each).
    pub fn pace(self, by: Duration) -> Rule {
        self.rule(Action::Pace(by))
    }

    /// Answers with the Status upstream sends for this code: 403, 404, 410, 429 (with `Retry-After: 1`), 500, 503, ...
    pub fn reply_status(self, code: u16) -> Rule {
        let retry_after = (code == 429).then_some(1);
        self.rule(Action::Reply(Reply { status: code, body: None, retry_after }))
    }

    /// As [`On::reply_status`], with a `Retry-After` of this many seconds.
    pub fn reply_retry_after(self, code: u16, seconds: u32) -> Rule {
        self.rule(Action::Reply(Reply { status: code, body: None, retry_after: Some(seconds) }))
    }

    /// Answers with these bytes.
    pub fn reply(self, code: u16, content_type: &str, body: impl Into<Bytes>) -> Rule {
        let body = Some((content_type.to_owned(), body.into()));
        self.rule(Action::Reply(Reply { status: code, body, retry_after: None }))
    }

    /// Answers as a login page or a captive portal would: 200, HTML.
    pub fn reply_html(self) -> Rule {
        self.reply(200, "text/html; charset=utf-8", "<!DOCTYPE html>\n<html><body>Please log in</body></html>\n")
    }

    /// Answers as the apiserver's flow control does: 429, plain text, not a Status.
    pub fn reply_too_many_requests(self) -> Rule {
        let body = ("text/plain; charset=utf-8".to_owned(), "Too many requests, please try again later.\n".into());
        self.rule(Action::Reply(Reply { status: 429, body: Some(body), retry_after: Some(1) }))
    }

    /// Kills the TCP connection (RST) instead of answering.
    pub fn reset(self) -> Rule {
        self.rule(Action::Reset)
    }

    /// Does what is asked, then kills the TCP connection (RST) instead of answering: a write whose outcome the client
    /// can't know.
    pub fn reset_when_done(self) -> Rule {
        self.rule(Action::ResetAnswered)
    }

    /// Sends the body in pieces of at most this many bytes.
    pub fn dribble(self, bytes: usize) -> Rule {
        self.rule(Action::Dribble(bytes.max(1)))
    }

    /// Sends this many bytes of the body, then breaks the connection (HTTP/2: resets the stream).
    pub fn cut_after(self, bytes: usize) -> Rule {
        self.rule(Action::Cut(bytes))
    }

    /// Sends this many bytes of the body, then nothing more, ever.
    pub fn stall_after(self, bytes: usize) -> Rule {
        self.rule(Action::Stall(bytes))
    }

    /// Answers under another Content-Type.
    pub fn content_type(self, value: &str) -> Rule {
        self.rule(Action::ContentType(value.to_owned()))
    }

    /// Adds a header to the answer, for instance a `Warning`.
    pub fn header(self, name: &str, value: &str) -> Rule {
        self.rule(Action::Header(name.to_owned(), value.to_owned()))
    }

    /// Puts these raw bytes into a watch stream after its initial events.
    pub fn inject(self, bytes: impl Into<Bytes>) -> Rule {
        self.rule(Action::Inject(bytes.into()))
    }

    /// Ends a watch after its initial events with an ERROR event: 410 "too old resource version", or another code.
    pub fn watch_error(self, code: u16) -> Rule {
        self.rule(Action::WatchError(Status::for_watch(code)))
    }

    /// Ends a watch cleanly after this many events (initial ones count, bookmarks do not).
    pub fn end_watch_after(self, events: usize) -> Rule {
        self.rule(Action::EndAfter(events))
    }

    /// Sends no bookmark at all, not even the one that ends the initial events.
    pub fn drop_bookmarks(self) -> Rule {
        self.rule(Action::DropBookmarks)
    }

    /// Leaves out only the bookmark that ends the initial events.
    pub fn drop_end_bookmark(self) -> Rule {
        self.rule(Action::DropEndBookmark)
    }

    fn rule(self, action: Action) -> Rule {
        let Self { script, matches, skip, times } = self;
        let state = Arc::new(RuleState { matches, skip, times, hits: AtomicU64::new(0), action });
        script.rules.lock().push(state.clone());
        Rule { script, state }
    }
}

// === impl Rule ===

impl Rule {
    /// Takes the rule out of force. Requests it already holds or paces stay so.
    pub fn remove(&self) {
        self.script.rules.lock().retain(|r| !Arc::ptr_eq(r, &self.state));
    }

    /// How many requests have matched, those outside its limits included.
    pub fn hits(&self) -> u64 {
        self.state.hits.load(Ordering::Relaxed)
    }
}

// === impl Hold ===

impl Hold {
    /// Lets everything go that waits here, and everything that comes later.
    pub fn release(&self) {
        self.latch.gate.close();
    }

    /// Lets one request (or frame) go: the one that waits longest, or the next to come.
    pub fn release_one(&self) {
        self.latch.gate.add_permits(1);
    }

    /// How many wait right now.
    pub fn waiting(&self) -> usize {
        *self.latch.waiting.borrow()
    }

    /// Waits until at least `n` requests (or frames) are held here.
    ///
    /// # Errors
    /// [`TimedOut`] after `limit`.
    pub async fn wait_for(&self, n: usize, limit: Duration) -> Result<(), TimedOut> {
        let mut waiting = self.latch.waiting.subscribe();
        let reached = timeout(limit, waiting.wait_for(|now| *now >= n)).await.is_ok_and(|r| r.is_ok());
        if reached { Ok(()) } else { Err(TimedOut { found: self.waiting(), wanted: n, after: limit }) }
    }

    /// Waits until nothing is held here any more, for instance because the clients have gone.
    ///
    /// # Errors
    /// [`TimedOut`] after `limit`.
    pub async fn wait_empty(&self, limit: Duration) -> Result<(), TimedOut> {
        let mut waiting = self.latch.waiting.subscribe();
        let reached = timeout(limit, waiting.wait_for(|now| *now == 0)).await.is_ok_and(|r| r.is_ok());
        if reached { Ok(()) } else { Err(TimedOut { found: self.waiting(), wanted: 0, after: limit }) }
    }

    /// The rule behind it.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }
}

// === impl Latch ===

impl Latch {
    fn new() -> Self {
        Self { gate: Semaphore::new(0), waiting: watch::Sender::new(0) }
    }

    pub(super) async fn pass(&self) {
        if self.gate.is_closed() {
            return;
        }
        self.waiting.send_modify(|n| *n += 1);
        // Also when the waiting request is dropped.
        let _waiting = Waiting(&self.waiting);
        if let Ok(permit) = self.gate.acquire().await {
            permit.forget();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}
