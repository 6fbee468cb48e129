//! Runs one reflector: sends what `reflector::step` asks for, feeds the store's writer, tells how it ended.
//!
//! Readers never see a load in progress: it is gathered beside the live snapshot and published as one step. A chunk from
//! the network is applied as one batch. Dropping the future (shutdown) drops the writer, which ends every waiter.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::{
    api::{gvr::Scope, resource_version::ResourceVersion},
    store::{self, Change, ListForm, Pulse, Registry, Relist, StoreKey, Writer},
};

use super::{
    Client, Error, Metrics,
    backoff::Backoff,
    decoder::{self, Bookmark, Decoder, Event},
    list::{self, PageError, Walk},
    metrics::EventCounters,
    probe,
    reflector::{Failure, Mode, Next, Outcome, Reflector, Verdict, Wait},
    reflectors::Options,
    residency,
    turns::{Turn, Turns},
    watch::{self, Start, Stream},
};

/// A load that takes longer is worth one small request for the total, so that people can be told the time left.
const COUNT_AFTER: Duration = Duration::from_secs(5);

/// Everything one reflector works with.
pub(super) struct Driver {
    pub(super) client: Client,
    pub(super) key: StoreKey,
    /// Kind of the objects, from discovery: items of built-in lists don't name it.
    pub(super) kind: Arc<str>,
    /// Objects live in namespaces.
    pub(super) namespaced: bool,
    pub(super) writer: Writer,
    pub(super) registry: Registry,
    pub(super) options: Options,
    pub(super) metrics: Metrics,
    pub(super) counters: EventCounters,
    /// Bounds how many loads run at once.
    pub(super) loads: Turns,
    /// The same for what begins a lost watch anew.
    pub(super) resumes: Turns,
    pub(super) state: State,
}

/// What one request leaves to the next.
#[derive(Default)]
pub(super) struct State {
    /// A read waits for the first load.
    demanded: bool,
    /// The next watch is to tell soon how far upstream has come.
    progress_wanted: bool,
    /// After a loss: the store's life is proven when it has reached this version.
    target: Option<ResourceVersion>,
    /// When upstream began to answer the request under way.
    answered: Option<Instant>,
    /// The latest request failed.
    troubled: bool,
}

/// How far one stream has come.
struct Course {
    /// What is gathered until the load is complete.
    relist: Option<Relist>,
    turn: Option<Turn>,
    at: Option<ResourceVersion>,
    /// `Warning` headers of this resource, to be repeated with every cached answer.
    warnings: Vec<String>,
    /// Of the connection it comes on.
    pulse: Arc<Pulse>,
}

// === impl State ===

impl State {
    /// Of a reflector that begins. `demanded`: a read waits for it.
    pub(super) fn new(demanded: bool) -> Self {
        Self { demanded, ..Self::default() }
    }
}

// === impl Driver ===

impl Driver {
    /// Keeps the store in step until upstream does not serve the resource any more.
    pub(super) async fn run(&mut self) {
        let mut reflector = Reflector::default();
        let mut backoff = Backoff::new();
        let mut next = reflector.start();
        // Held until the watch that it was taken for is open.
        let mut turn = None;
        self.state = State::new(self.state.demanded);
        while next != Next::Close {
            let distrusted = self.writer.distrusted();
            let outcome = tokio::select! {
                biased;
                () = distrusted => failed(None, Failure::WentBack, None),
                outcome = self.request(next, &mut turn) => outcome,
            };
            self.writer.life().lose();
            let lived = self.state.answered.take().map_or(Duration::ZERO, |answered| answered.elapsed());
            if next == Next::Load(Mode::Streaming) && outcome.at().is_some() {
                reflector.streamed();
            }
            let plan = reflector.step(outcome, lived);
            self.carry_out(plan.verdict);
            if let Some(reason) = plan.relist {
                self.metrics.relisting(&self.key.gvr, reason);
            }
            next = plan.next;
            let pause = match plan.wait {
                Wait::No => continue,
                Wait::Backoff(retry_after) => backoff.after(lived, retry_after),
                Wait::Slowly(retry_after) => backoff.slowly_after(lived, retry_after),
            };
            debug!(store = %self.key, wait = ?pause.wait, ?next, "backing off");
            self.state.troubled = true;
            let distrusted = self.writer.distrusted();
            tokio::select! {
                () = pause.rest(self.client.reach()) => {}
                () = distrusted => {
                    self.carry_out(Verdict::Reset);
                    self.metrics.relisting(&self.key.gvr, "went_back");
                    next = reflector.start();
                }
            }
        }
    }

    async fn request(&mut self, next: Next, turn: &mut Option<Turn>) -> Outcome {
        let taken = turn.take();
        match next {
            Next::Load(Mode::Streaming) => self.stream(Start::Initial, None).await,
            Next::Load(Mode::Pages) => self.pages(Some(self.options.page_size)).await,
            Next::Load(Mode::Whole) => self.pages(None).await,
            Next::Watch(rv) if std::mem::take(&mut self.state.progress_wanted) => {
                self.stream(Start::Progress(rv), taken).await
            }
            Next::Watch(rv) => self.stream(Start::After(rv), taken).await,
            Next::Resume(rv) => self.resume(rv, turn).await,
            Next::Close => Outcome::Ended(None),
        }
    }

    /// Upstream answers a request of ours.
    fn answered(&mut self) {
        self.state.answered.get_or_insert_with(Instant::now);
        if std::mem::take(&mut self.state.troubled) {
            self.client.reach().works();
        }
    }

    async fn turn(&self, turns: &Turns) -> Option<Turn> {
        let (demanded, is_awaited) = (self.state.demanded, self.writer.is_awaited());
        turns.take(move || demanded || is_awaited(), || self.writer.awaited()).await
    }

    /// Before a lost watch goes on: whether upstream still has the history that the store is of, and how far it is.
    async fn resume(&mut self, at: ResourceVersion, turn: &mut Option<Turn>) -> Outcome {
        let taken = self.turn(&self.resumes).await;
        // Any namespace will do, and in one of them it costs upstream the read of one key.
        let scope = match &self.key.scope {
            Scope::All if self.namespaced => Scope::Namespace("default".into()),
            scope => scope.clone(),
        };
        match probe::consistent_rv(&self.client, &self.key.gvr, &scope).await {
            Ok(now) => {
                self.answered();
                if now < at {
                    warn!(store = %self.key, %at, %now, "upstream is behind what it has shown before");
                    self.registry.distrust();
                }
                *turn = taken;
                self.state.target = Some(now).filter(|now| *now > at);
                self.state.progress_wanted = self.state.target.is_some();
                Outcome::Told { at, now }
            }
            Err(error @ Error::Junk { .. }) => self.failed_as(&error, Failure::Unavailable, Some(at)),
            Err(error) => self.failed(&error, Some(at), false),
        }
    }

    fn carry_out(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Keep => {}
            Verdict::Refuse(code) => self.writer.refuse(code),
            Verdict::Unservable(reason) => self.writer.unservable(reason),
            Verdict::Reset => {
                self.state.target = None;
                warn!(store = %self.key, "upstream's history went back; forgetting what was held");
                self.writer.reset();
            }
        }
    }

    async fn pages(&mut self, page_size: Option<u32>) -> Outcome {
        let _turn = self.turn(&self.loads).await;
        let mut relist = self.writer.begin_relist();
        self.metrics.reading();
        let walk = Walk {
            client: &self.client,
            key: &self.key,
            item_kind: &self.kind,
            page_size,
            max_frame: self.options.max_frame,
            registry: &self.registry,
            progress: self.writer.progress(),
        };
        let loaded = list::pages(walk, &mut relist).await;
        match loaded {
            Ok((form, rv)) => match self.commit(relist, form, rv) {
                Ok(()) => {
                    self.writer.life().prove();
                    self.answered();
                    Outcome::Loaded(rv)
                }
                Err(why) => failed(None, why, None),
            },
            Err(PageError::Upstream(error)) => self.failed(&error, None, false),
            Err(PageError::Torn(error)) => self.failed_as(&error, Failure::Torn, None),
            Err(PageError::Object(error)) => self.undecodable(error, None),
        }
    }

    async fn stream(&mut self, start: Start, turn: Option<Turn>) -> Outcome {
        let mut course = match start {
            Start::Initial => {
                let turn = self.turn(&self.loads).await;
                Course {
                    relist: Some(self.writer.begin_relist()),
                    turn,
                    at: None,
                    warnings: Vec::new(),
                    pulse: Arc::default(),
                }
            }
            Start::After(rv) | Start::Progress(rv) => {
                Course { relist: None, turn: None, at: Some(rv), warnings: Vec::new(), pulse: Arc::default() }
            }
        };
        self.metrics.reading();
        let Stream { response, idle } = match watch::open(&self.client, &self.key, start).await {
            Ok(stream) => stream,
            Err(error) => return self.failed(&error, course.at, start == Start::Initial),
        };
        course.warnings = list::warnings(response.headers());
        course.pulse = response.extensions().get::<Arc<Pulse>>().cloned().unwrap_or_default();
        self.answered();
        drop(turn);
        if course.relist.is_none() {
            self.prove(&course);
        }
        let mut body = response.into_body();
        let mut decoder = Decoder::new(self.options.max_frame, self.kind.clone(), self.key.gvr.api_version());
        let (client, key) = (self.client.clone(), self.key.clone());
        let count = async {
            sleep(COUNT_AFTER).await;
            list::count(&client, &key).await
        };
        tokio::pin!(count);
        // A watch that is telling progress already is left to do so.
        let wanted = self.writer.progress_wanted();
        tokio::pin!(wanted);
        let claimed = self.writer.claimed();
        tokio::pin!(claimed);
        let may_hurry = matches!(start, Start::Initial | Start::After(_));
        let mut counted = course.relist.is_none();
        loop {
            let loading = course.relist.is_some();
            let limit = if loading { watch::INITIAL_IDLE } else { idle };
            let frame = tokio::select! {
                frame = timeout(limit, body.frame()) => frame,
                () = &mut claimed, if !loading => {
                    claimed.set(self.writer.claimed());
                    // Not loaded is the only error, and this is.
                    let _ = self.writer.check_claim();
                    self.prove(&course);
                    continue;
                }
                () = &mut wanted, if may_hurry && !loading => {
                    self.state.progress_wanted = true;
                    return Outcome::Left(course.at);
                }
                total = &mut count, if loading && !counted => {
                    counted = true;
                    if let Some(total) = total {
                        self.writer.progress().expect(total);
                    }
                    continue;
                }
            };
            let chunk = match frame {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => {
                    self.client.reach().broke();
                    let error = Error::Transport { what: start.what(), source: error.into() };
                    return self.failed(&error, course.at, false);
                }
                Ok(None) => {
                    return match decoder.finish() {
                        Ok(()) => Outcome::Ended(course.at),
                        Err(error) => self.undecodable(error, course.at),
                    };
                }
                Err(_) if loading => {
                    info!(store = %self.key, "no initial events from upstream; listing in pages instead");
                    return failed(None, Failure::StreamingFailed, None);
                }
                Err(_) => {
                    let error = Error::Timeout { what: start.what(), after: limit };
                    return self.failed(&error, course.at, false);
                }
            };
            self.writer.progress().touch();
            if let Err(outcome) = self.take(&mut course, &mut decoder, &chunk).await {
                return outcome;
            }
            // A sync may have megabytes at hand; requests of clients get their turn between two chunks.
            if loading {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Applies one chunk from the network as one batch, as far as it can be read.
    async fn take(&mut self, course: &mut Course, decoder: &mut Decoder, chunk: &Bytes) -> Result<(), Outcome> {
        decoder.feed(chunk);
        let mut batch = Vec::new();
        let before = course.at;
        let read = self.read(course, decoder, &mut batch).await;
        let taken = self.apply(course, before, batch, read);
        residency::admitted(&self.registry, &self.key).await;
        taken
    }

    /// Applies what a chunk has said, `read` being how its reading ended.
    fn apply(
        &mut self,
        course: &Course,
        before: Option<ResourceVersion>,
        batch: Vec<Change>,
        read: Result<(), Outcome>,
    ) -> Result<(), Outcome> {
        let (None, Some(at)) = (&course.relist, course.at) else { return read };
        if !batch.is_empty() || course.at > before {
            let applied = self.writer.apply(batch, at).map_err(|error| {
                warn!(store = %self.key, %error, "store refused a batch");
                failed(None, Failure::Junk, None)
            })?;
            self.prove(course);
            for store::Contradiction { key, what } in &applied {
                warn!(store = %self.key, key, what, "an event contradicts what is held");
                self.metrics.odd(&self.key.gvr, what);
            }
            // What else went wrong matters less: everything is loaded anew.
            if !applied.is_empty() {
                return Err(failed(Some(at), Failure::Contradiction, None));
            }
        }
        read
    }

    /// Gathers what a chunk says. When it ends early, `course.at` is the version of the last change in `batch`.
    async fn read(
        &mut self,
        course: &mut Course,
        decoder: &mut Decoder,
        batch: &mut Vec<Change>,
    ) -> Result<(), Outcome> {
        loop {
            let event = match decoder.next() {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.undecodable(error, course.at)),
            };
            match (event, course.relist.as_mut()) {
                (Event::Change { change, .. }, Some(relist)) => {
                    self.writer.progress().add_loaded(1);
                    match change {
                        Change::Add(key, object) | Change::Put(key, object) => relist.stage(&key, object),
                        Change::Remove(key) => relist.unstage(&key),
                    }
                }
                (Event::Change { change, rv }, None) => {
                    if let Some(after) = course.at.filter(|at| rv < *at) {
                        let what = change.key().to_owned();
                        return Err(self.undecodable(decoder::Error::Back { what, rv, after }, course.at));
                    }
                    self.counters.changes.inc();
                    batch.push(change);
                    course.at = Some(rv);
                }
                (Event::Bookmark(bookmark), Some(_)) if bookmark.initial_events_end => {
                    self.complete(course, bookmark).await?;
                }
                (Event::Bookmark(_), Some(_)) => {}
                (Event::Bookmark(Bookmark { rv, .. }), None) => {
                    if let Some(after) = course.at.filter(|at| rv < *at) {
                        let what = "a bookmark".to_owned();
                        return Err(self.undecodable(decoder::Error::Back { what, rv, after }, course.at));
                    }
                    self.counters.bookmarks.inc();
                    course.at = Some(rv);
                }
                (Event::Error { code, message, retry_after }, relist) => {
                    let error = Error::Status { what: watch::WATCH, code, message, retry_after };
                    let streaming = relist.is_some();
                    return Err(self.failed(&error, course.at, streaming));
                }
            }
        }
    }

    /// The stream of `course` proves the store's life, once the store is as far as upstream was when it began.
    fn prove(&mut self, course: &Course) {
        let rv = course.at.max(Some(self.writer.rv()));
        if self.state.target.is_none_or(|target| rv >= Some(target)) {
            self.state.target = None;
            self.writer.life().follow(course.pulse.clone());
        }
    }

    /// The initial events are complete: publishes them.
    async fn complete(&mut self, course: &mut Course, bookmark: Bookmark) -> Result<(), Outcome> {
        let Some(relist) = course.relist.take() else { return Ok(()) };
        let list_kind = if bookmark.custom {
            let asked = list::list_kind(&self.client, &self.key).await;
            asked.map_err(|error| self.failed(&error, None, false))?
        } else {
            format!("{}List", bookmark.kind)
        };
        let mut form = ListForm::new(list_kind, &bookmark.kind, bookmark.api_version, bookmark.custom);
        form.warnings = std::mem::take(&mut course.warnings);
        self.commit(relist, form, bookmark.rv).map_err(|why| failed(None, why, None))?;
        course.at = Some(bookmark.rv);
        self.prove(course);
        course.turn = None;
        Ok(())
    }

    fn commit(&mut self, relist: Relist, form: ListForm, rv: ResourceVersion) -> Result<(), Failure> {
        let objects = relist.len();
        match self.writer.commit(relist, form, rv) {
            Ok(()) => {
                info!(store = %self.key, objects, %rv, "synced");
                self.state.demanded = false;
                self.state.target = None;
                Ok(())
            }
            Err(error @ store::Error::WentBack { .. }) => {
                warn!(store = %self.key, %error, "relist");
                self.registry.distrust();
                Err(Failure::WentBack)
            }
            Err(_) => Err(Failure::Junk),
        }
    }

    fn failed(&self, error: &Error, at: Option<ResourceVersion>, streaming: bool) -> Outcome {
        let why = watch::failure(error, streaming);
        match why {
            // Part of a healthy life.
            Failure::Expired | Failure::NoStreaming | Failure::StreamingFailed => {
                info!(store = %self.key, %error, ?why, "reflector")
            }
            _ => warn!(store = %self.key, %error, ?why, "reflector"),
        }
        failed(at, why, error.retry_after())
    }

    fn undecodable(&self, error: decoder::Error, at: Option<ResourceVersion>) -> Outcome {
        self.metrics.odd(&self.key.gvr, error.what());
        let why = match error {
            decoder::Error::NotNumbers(_) => Failure::NotNumbers,
            decoder::Error::TooLarge { .. } => Failure::TooLarge,
            // Nothing is wrong with what came before, and the rest comes again.
            decoder::Error::Cut(_) => Failure::Unavailable,
            decoder::Error::Back { .. } => Failure::Contradiction,
            decoder::Error::Kind(_) | decoder::Error::Junk(_) => Failure::Junk,
        };
        self.failed_as(&error.into_upstream(), why, at)
    }

    fn failed_as(&self, error: &Error, why: Failure, at: Option<ResourceVersion>) -> Outcome {
        warn!(store = %self.key, %error, ?why, "reflector");
        failed(at, why, error.retry_after())
    }
}

fn failed(at: Option<ResourceVersion>, why: Failure, retry_after: Option<Duration>) -> Outcome {
    Outcome::Failed { at, why, retry_after }
}
