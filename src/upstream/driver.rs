//! Runs one reflector: sends what `reflector::step` asks for, feeds the store's writer, tells how it ended.
//!
//! Readers never see a load in progress: it is gathered beside the live snapshot and published as one step. A chunk from
//! the network is applied as one batch. Dropping the future (shutdown) drops the writer, which ends every waiter.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    api::resource_version::ResourceVersion,
    store::{self, Change, Fences, ListForm, Pulse, Registry, Relist, StoreKey, Writer},
};

use super::{
    Client, Error, Metrics,
    backoff::Backoff,
    decoder::{self, Bookmark, Decoder, Event},
    list::{self, PageError},
    metrics::EventCounters,
    reflector::{Failure, Mode, Next, Outcome, Reflector, Verdict, Wait},
    reflectors::Options,
    residency,
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
    pub(super) writer: Writer,
    pub(super) fences: Fences,
    pub(super) registry: Registry,
    pub(super) options: Options,
    pub(super) metrics: Metrics,
    pub(super) counters: EventCounters,
    /// Bounds how many loads run at once.
    pub(super) loads: Arc<Semaphore>,
    /// The next watch is to tell soon how far upstream has come.
    pub(super) progress_wanted: bool,
}

/// How far one stream has come.
struct Course {
    /// What is gathered until the load is complete.
    relist: Option<Relist>,
    permit: Option<OwnedSemaphorePermit>,
    at: Option<ResourceVersion>,
    /// `Warning` headers of this resource, to be repeated with every cached answer.
    warnings: Vec<String>,
    /// Of the connection it comes on.
    pulse: Arc<Pulse>,
}

// === impl Driver ===

impl Driver {
    /// Keeps the store in step until upstream does not serve the resource any more.
    pub(super) async fn run(&mut self) {
        let mut reflector = Reflector::default();
        let mut backoff = Backoff::new();
        let mut next = reflector.start();
        loop {
            let begun = Instant::now();
            let outcome = match next {
                Next::Load(Mode::Streaming) => self.stream(Start::Initial).await,
                Next::Load(Mode::Pages) => self.pages().await,
                Next::Watch(rv) if std::mem::take(&mut self.progress_wanted) => self.stream(Start::Progress(rv)).await,
                Next::Watch(rv) => self.stream(Start::After(rv)).await,
                Next::Close => return,
            };
            self.writer.life().lose();
            let plan = reflector.step(outcome);
            self.carry_out(plan.verdict);
            if let Some(reason) = plan.relist {
                self.metrics.relisting(&self.key.gvr, reason);
            }
            if let Wait::Backoff(retry_after) = plan.wait {
                let wait = backoff.after(begun.elapsed(), retry_after);
                debug!(store = %self.key, ?wait, next = ?plan.next, "backing off");
                sleep(wait).await;
            }
            next = plan.next;
        }
    }

    fn carry_out(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Keep => {}
            Verdict::Refuse(code) => self.writer.refuse(code),
            Verdict::Unservable(reason) => self.writer.unservable(reason),
            Verdict::Reset => {
                warn!(store = %self.key, "upstream's history went back; forgetting what was held");
                self.writer.reset();
                self.fences.forget();
            }
        }
    }

    async fn pages(&mut self) -> Outcome {
        let _permit = self.loads.clone().acquire_owned().await.ok();
        let mut relist = self.writer.begin_relist();
        self.metrics.reading();
        let (client, key, progress) = (&self.client, &self.key, self.writer.progress());
        let loaded = list::pages(client, key, &self.kind, self.options, &self.registry, &mut relist, progress).await;
        match loaded {
            Ok((form, rv)) => match self.commit(relist, form, rv) {
                Ok(()) => {
                    self.writer.life().prove();
                    Outcome::Loaded(rv)
                }
                Err(why) => failed(None, why, None),
            },
            Err(PageError::Upstream(error)) => self.failed(&error, None, false),
            Err(PageError::Object(error)) => self.undecodable(error, None),
        }
    }

    async fn stream(&mut self, start: Start) -> Outcome {
        let mut course = match start {
            Start::Initial => {
                let permit = self.loads.clone().acquire_owned().await.ok();
                Course {
                    relist: Some(self.writer.begin_relist()),
                    permit,
                    at: None,
                    warnings: Vec::new(),
                    pulse: Arc::default(),
                }
            }
            Start::After(rv) | Start::Progress(rv) => {
                Course { relist: None, permit: None, at: Some(rv), warnings: Vec::new(), pulse: Arc::default() }
            }
        };
        self.metrics.reading();
        let Stream { response, idle } = match watch::open(&self.client, &self.key, start).await {
            Ok(stream) => stream,
            Err(error) => return self.failed(&error, course.at, start == Start::Initial),
        };
        course.warnings = list::warnings(response.headers());
        course.pulse = response.extensions().get::<Arc<Pulse>>().cloned().unwrap_or_default();
        if course.relist.is_none() {
            self.writer.life().follow(course.pulse.clone());
        }
        let mut body = response.into_body();
        let mut decoder = Decoder::new(self.options.max_frame);
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
        let distrusted = self.writer.distrusted();
        tokio::pin!(distrusted);
        let may_hurry = matches!(start, Start::Initial | Start::After(_));
        let mut counted = course.relist.is_none();
        loop {
            let loading = course.relist.is_some();
            let limit = if loading { watch::INITIAL_IDLE } else { idle };
            let frame = tokio::select! {
                frame = timeout(limit, body.frame()) => frame,
                () = &mut distrusted, if !loading => return failed(None, Failure::WentBack, None),
                () = &mut claimed, if !loading => {
                    claimed.set(self.writer.claimed());
                    // Not loaded is the only error, and this is.
                    let _ = self.writer.check_claim();
                    continue;
                }
                () = &mut wanted, if may_hurry && !loading => {
                    self.progress_wanted = true;
                    return Outcome::Ended(course.at);
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
                    return failed(None, Failure::NoStreaming, None);
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

    /// Applies one chunk from the network as one batch.
    async fn take(&mut self, course: &mut Course, decoder: &mut Decoder, chunk: &Bytes) -> Result<(), Outcome> {
        decoder.feed(chunk);
        let mut batch = Vec::new();
        let mut loaded = 0;
        let before = course.at;
        loop {
            let event = match decoder.next() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => return Err(self.undecodable(error, course.at)),
            };
            match (event, course.relist.as_mut()) {
                (Event::Change { change, .. }, Some(relist)) => {
                    loaded += 1;
                    match change {
                        Change::Put(key, object) => relist.stage(&key, object),
                        Change::Remove(key) => relist.unstage(&key),
                    }
                }
                (Event::Change { change, rv }, None) => {
                    if course.at.is_some_and(|at| rv < at) {
                        let message = format!("an event of version {rv} came after {:?}", course.at);
                        return Err(self.undecodable(decoder::Error::Junk(message), course.at));
                    }
                    self.counters.changes.inc();
                    batch.push(change);
                    course.at = Some(rv);
                }
                (Event::Bookmark(bookmark), Some(_)) if bookmark.initial_events_end => {
                    self.complete(course, bookmark).await?;
                }
                (Event::Bookmark(_), Some(_)) => {}
                (Event::Bookmark(bookmark), None) => {
                    self.counters.bookmarks.inc();
                    course.at = course.at.max(Some(bookmark.rv));
                }
                (Event::Error { code, message, retry_after }, relist) => {
                    let error = Error::Status { what: watch::WATCH, code, message, retry_after };
                    let streaming = relist.is_some();
                    return Err(self.failed(&error, course.at, streaming));
                }
            }
        }
        self.writer.progress().add_loaded(loaded);
        if let (None, Some(at)) = (&course.relist, course.at)
            && (!batch.is_empty() || course.at > before)
        {
            self.writer.apply(batch, at).map_err(|error| {
                warn!(store = %self.key, %error, "store refused a batch");
                failed(None, Failure::Junk, None)
            })?;
        }
        residency::admitted(&self.registry, &self.key).await;
        Ok(())
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
        self.writer.life().follow(course.pulse.clone());
        course.at = Some(bookmark.rv);
        course.permit = None;
        Ok(())
    }

    fn commit(&mut self, relist: Relist, form: ListForm, rv: ResourceVersion) -> Result<(), Failure> {
        let objects = relist.len();
        match self.writer.commit(relist, form, rv) {
            Ok(()) => {
                info!(store = %self.key, objects, %rv, "synced");
                Ok(())
            }
            Err(error @ store::Error::WentBack { .. }) => {
                warn!(store = %self.key, %error, "relist");
                Err(Failure::WentBack)
            }
            Err(_) => Err(Failure::Junk),
        }
    }

    fn failed(&self, error: &Error, at: Option<ResourceVersion>, streaming: bool) -> Outcome {
        let why = watch::failure(error, streaming);
        match why {
            // Part of a healthy life.
            Failure::Expired | Failure::NoStreaming => info!(store = %self.key, %error, ?why, "reflector"),
            _ => warn!(store = %self.key, %error, ?why, "reflector"),
        }
        failed(at, why, error.retry_after())
    }

    fn undecodable(&self, error: decoder::Error, at: Option<ResourceVersion>) -> Outcome {
        let why = match error {
            decoder::Error::NotNumbers(_) => Failure::NotNumbers,
            decoder::Error::TooLarge { .. } => Failure::TooLarge,
            decoder::Error::Junk(_) => Failure::Junk,
        };
        self.failed_as(&error.into_upstream(), why, at)
    }

    fn failed_as(&self, error: &Error, why: Failure, at: Option<ResourceVersion>) -> Outcome {
        warn!(store = %self.key, %error, ?why, "reflector");
        failed(at, why, None)
    }
}

fn failed(at: Option<ResourceVersion>, why: Failure, retry_after: Option<Duration>) -> Outcome {
    Outcome::Failed { at, why, retry_after }
}
