//! WATCH: initial events, the history from a resource version on, bookmarks, and commands to running streams.
//!
//! A stream keeps no queue of its own: it remembers the last revision it has sent and looks into the world's history
//! whenever anything changes. One that falls behind the history ends with 410, as a slow watcher does upstream.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    body::{CHUNK, Closed, Sink},
    collection::Change,
    list,
    log::TimedOut,
    negotiate::{self, Form},
    objects::Object,
    options::WatchOptions,
    resource::Resource,
    script::WatchPlan,
    selector::Selector,
    status::Status,
    world::World,
};

/// A stream with a time limit of a few seconds is told how far the server is, some time before it ends.
const PARTING: Duration = Duration::from_secs(2);

/// How many changes are taken from the history at once.
const BATCH: usize = 256;

/// The open watches of one resource: look at them, or do something to them.
pub struct Watches {
    registry: Registry,
    resource: String,
}

/// All open watches of a server.
#[derive(Clone, Default)]
pub(super) struct Registry {
    shared: Arc<Open>,
}

/// One stream to be run.
pub(super) struct Stream {
    pub(super) world: World,
    pub(super) resource: Arc<Resource>,
    pub(super) namespace: Option<String>,
    pub(super) form: Form,
    pub(super) options: WatchOptions,
    pub(super) plan: WatchPlan,
    /// Interval of unasked bookmarks; none if zero.
    pub(super) bookmark_every: Duration,
}

#[derive(Clone)]
enum Command {
    End,
    Error(Status),
    Inject(Bytes),
    Cut,
    Stall,
}

#[derive(Default)]
struct Open {
    next: AtomicU64,
    streams: Mutex<HashMap<u64, Running>>,
    count: watch::Sender<u64>,
}

type Running = (Arc<Resource>, mpsc::UnboundedSender<Command>);

/// Takes a stream out of the registry when it ends, however it ends.
struct Entry {
    registry: Registry,
    id: u64,
}

/// Where a stream stands.
struct Progress {
    sink: Sink,
    buffer: Vec<u8>,
    /// Everything up to this revision has been sent.
    sent: u64,
    events: usize,
}

// === impl Watches ===

impl Watches {
    pub(super) fn new(registry: Registry, resource: &str) -> Self {
        Self { registry, resource: resource.to_owned() }
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.registry.shared.streams.lock().values().filter(|(r, _)| r.answers_to(&self.resource)).count()
    }

    /// Waits until exactly `n` are open.
    ///
    /// # Errors
    /// [`TimedOut`] after `limit`.
    pub async fn wait_for(&self, n: usize, limit: Duration) -> Result<(), TimedOut> {
        let mut changed = self.registry.shared.count.subscribe();
        let reached = timeout(limit, changed.wait_for(|_| self.count() == n)).await.is_ok_and(|r| r.is_ok());
        if reached { Ok(()) } else { Err(TimedOut { found: self.count(), wanted: n, after: limit }) }
    }

    /// Ends them cleanly, as their timeout would.
    pub fn end(&self) {
        self.tell(&Command::End);
    }

    /// Ends them with the ERROR event of a compacted history.
    pub fn gone(&self) {
        self.error(410);
    }

    /// Ends them with an ERROR event of this code.
    pub fn error(&self, code: u16) {
        self.tell(&Command::Error(Status::for_watch(code)));
    }

    /// Puts raw bytes into them.
    pub fn inject(&self, bytes: impl Into<Bytes>) {
        self.tell(&Command::Inject(bytes.into()));
    }

    /// Breaks their connections (HTTP/2: resets the streams).
    pub fn cut(&self) {
        self.tell(&Command::Cut);
    }

    /// Leaves them open and sends nothing more, ever.
    pub fn stall(&self) {
        self.tell(&Command::Stall);
    }

    fn tell(&self, command: &Command) {
        let streams = self.registry.shared.streams.lock();
        for (_, tx) in streams.values().filter(|(r, _)| r.answers_to(&self.resource)) {
            // A stream that has just ended misses nothing.
            let _ = tx.send(command.clone());
        }
    }
}

// === impl Registry ===

impl Registry {
    fn enter(&self, resource: Arc<Resource>) -> (Entry, mpsc::UnboundedReceiver<Command>) {
        let (tx, rx) = mpsc::unbounded_channel();
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.streams.lock().insert(id, (resource, tx));
        self.shared.count.send_modify(|n| *n += 1);
        (Entry { registry: self.clone(), id }, rx)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.shared.streams.lock().remove(&self.id);
        self.registry.shared.count.send_modify(|n| *n += 1);
    }
}

// === impl Stream ===

impl Stream {
    /// Runs until the client goes, the timeout comes, or the script says so. `Ok` is a clean end of the body.
    pub(super) async fn run(self, sink: Sink, registry: &Registry) -> Result<(), Closed> {
        let (_entry, mut commands) = registry.enter(self.resource.clone());
        let mut progress = Progress { sink, buffer: Vec::with_capacity(CHUNK + 16 * 1024), sent: 0, events: 0 };
        let epoch = self.world.epoch();
        let mut changed = self.world.changed();
        let seconds = self.options.timeout_seconds.unwrap_or(1_800);
        let deadline = Instant::now() + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        if self.options.initial {
            if let Err(status) = list::fresh(&self.world, self.options.revision).await {
                return progress.sink.send(status.event()).await;
            }
            self.initial(&mut progress).await?;
        } else if let super::options::Revision::NotOlder(from) = self.options.revision {
            progress.sent = from;
        }
        for bytes in &self.plan.inject {
            progress.sink.send(bytes.clone()).await?;
        }
        if let Some(status) = &self.plan.error {
            return progress.sink.send(status.event()).await;
        }
        let mut bookmarks = None;
        let mut next_bookmark = Instant::now() + self.bookmark_every;
        // Only if there is anything to tell, and with time enough.
        let start = progress.sent;
        let mut parting = (3..=10).contains(&seconds).then(|| deadline - PARTING);
        loop {
            changed.mark_unchanged();
            let Some(news) = self.world.news(&self.resource.gvr, epoch, progress.sent, BATCH) else { return Ok(()) };
            let news = match news {
                Ok(news) => news,
                Err(gone) => {
                    return progress.sink.send(Status::expired_watch(progress.sent, gone.oldest).event()).await;
                }
            };
            for change in &news.changes {
                if self.plan.end_after.is_some_and(|n| progress.events >= n) {
                    return progress.flush().await;
                }
                self.event(change, &mut progress);
                progress.flush_if_full().await?;
            }
            let more = news.changes.len() == BATCH;
            progress.sent = progress.sent.max(news.revision);
            progress.flush().await?;
            if self.plan.end_after.is_some_and(|n| progress.events >= n) {
                return Ok(());
            }
            if more {
                continue;
            }
            let asked = *bookmarks.get_or_insert(news.bookmarks) < news.bookmarks;
            let due = !self.bookmark_every.is_zero() && Instant::now() >= next_bookmark;
            if asked || due {
                bookmarks = Some(news.bookmarks);
                next_bookmark = Instant::now() + self.bookmark_every;
                self.bookmark(&mut progress, false);
                progress.flush().await?;
            }
            if parting.is_some_and(|parting| Instant::now() >= parting) && progress.sent > start {
                parting = None;
                self.bookmark(&mut progress, false);
                progress.flush().await?;
            }
            let wake = if self.bookmark_every.is_zero() { deadline } else { deadline.min(next_bookmark) };
            let wake = parting.filter(|parting| *parting > Instant::now()).map_or(wake, |parting| wake.min(parting));
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    None | Some(Command::End) => return Ok(()),
                    Some(Command::Error(status)) => return progress.sink.send(status.event()).await,
                    Some(Command::Inject(bytes)) => progress.sink.send(bytes).await?,
                    Some(Command::Cut) => return Err(progress.sink.cut().await),
                    Some(Command::Stall) => return Err(progress.sink.stall().await),
                },
                () = progress.sink.closed() => return Err(Closed),
                result = changed.changed() => if result.is_err() { return Ok(()) },
                () = sleep_until(wake) => if Instant::now() >= deadline { return Ok(()) },
            }
        }
    }

    /// The state so far as ADDED events, and the bookmark that ends them.
    async fn initial(&self, progress: &mut Progress) -> Result<(), Closed> {
        let Some(view) = self.world.view(&self.resource.gvr) else { return Err(Closed) };
        for object in view.objects.values().filter(|o| self.selects(o)) {
            if self.plan.end_after.is_some_and(|n| progress.events >= n) {
                break;
            }
            self.push("ADDED", object, progress);
            progress.flush_if_full().await?;
        }
        progress.sent = view.revision;
        if self.options.bookmarks && !self.plan.drop_end_bookmark {
            self.bookmark(progress, true);
        }
        progress.flush().await
    }

    fn event(&self, change: &Change, progress: &mut Progress) {
        let before = change.previous.as_ref().filter(|o| self.selects(o));
        let after = Some(&change.object).filter(|o| !change.deleted && self.selects(o));
        match (before, after) {
            (None, Some(object)) => self.push("ADDED", object, progress),
            (Some(_), Some(object)) => self.push("MODIFIED", object, progress),
            (Some(_), None) if change.deleted => self.push("DELETED", &change.object, progress),
            // It left the selection: the old state under the revision of the change.
            (Some(old), None) => self.push("DELETED", &old.with_rv(change.rv), progress),
            (None, None) => {}
        }
    }

    fn push(&self, kind: &str, object: &Object, progress: &mut Progress) {
        progress.events += 1;
        let out = &mut progress.buffer;
        out.extend_from_slice(format!(r#"{{"type":"{kind}","object":"#).as_bytes());
        match self.form {
            Form::Whole => out.extend_from_slice(&object.text),
            Form::Metadata => out.extend_from_slice(&negotiate::whole_text(self.form, object)),
        }
        out.extend_from_slice(b"}\n");
    }

    fn bookmark(&self, progress: &mut Progress, ends_initial: bool) {
        if self.options.bookmarks && !self.plan.drop_bookmarks {
            progress
                .buffer
                .extend_from_slice(bookmark_event(&self.resource, self.form, progress.sent, ends_initial).as_bytes());
        }
    }

    fn selects(&self, object: &Object) -> bool {
        let selector: &Selector = &self.options.selector;
        self.namespace.as_deref().is_none_or(|ns| object.namespace_and_name().0 == ns) && selector.matches(object)
    }
}

/// A BOOKMARK event as upstream prints it for this kind.
fn bookmark_event(resource: &Resource, form: Form, rv: u64, ends_initial: bool) -> String {
    let end = if ends_initial { r#""annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    let (kind, api_version) = match form {
        Form::Whole => (resource.kind.clone(), resource.gvr.api_version()),
        Form::Metadata => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
    };
    let object = if resource.custom && form == Form::Whole {
        let comma = if ends_initial { "," } else { "" };
        format!(
            r#"{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{{{end}{comma}"resourceVersion":"{rv}"}}}}"#
        )
    } else {
        let comma = if ends_initial { "," } else { "" };
        let tail = if form == Form::Whole { resource.bookmark_tail.as_str() } else { "" };
        format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{rv}"{comma}{end}}}{tail}}}"#
        )
    };
    format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n")
}

// === impl Progress ===

impl Progress {
    async fn flush_if_full(&mut self) -> Result<(), Closed> {
        if self.buffer.len() >= CHUNK { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), Closed> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::take(&mut self.buffer);
        self.sink.send(full.into()).await
    }
}
