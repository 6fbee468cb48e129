//! A small controller with the habit forebay was made for: on a lister miss it asks the API server directly.
//!
//! It restarts as karmada-controller-manager does: its bindings are synced first, then the workers start in the same
//! instant as the informer of the Deployments they look up. Until that informer has synced every lookup misses, and
//! each miss is a GET, paid from the same client-side budget as the status writes:
//!
//! ```text
//! bindings (streaming list) -> queue -> N workers: lister -> miss: GET -> now and then: PUT status
//!                                                    ^
//! Deployments (streaming list) --- whole, at its end bookmark
//! ```
//!
//! It talks to whatever server its kubeconfig names, and knows nothing of forebay.

use std::{
    collections::{HashSet, VecDeque},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::{
    Client,
    client::Body,
    config::{Config, KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::json::Node;
use crate::api::gvr::{Gvr, Scope};

/// How the controller is set up; the defaults are karmada-controller-manager's.
#[derive(Clone, Debug)]
pub struct Controller {
    /// Workers that take bindings from the queue.
    pub workers: usize,
    /// Client-side limit, requests per second (`--kube-api-qps`).
    pub qps: u32,
    /// Client-side burst (`--kube-api-burst`).
    pub burst: u32,
    /// Every n-th binding gets its status written; 0 for none.
    pub write_every: usize,
    /// What the written statuses say, so that a second restart has something to write again.
    pub generation: u64,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bindings found.
    pub bindings: usize,
    /// Bindings done with.
    pub done: usize,
    /// Lookups that missed the lister and became direct GETs.
    pub missed: usize,
    /// Whether the Deployment informer has synced.
    pub synced: bool,
}

/// What a run has come to. Times count from its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Bindings reconciled.
    pub bindings: usize,
    /// Lookups answered by the lister.
    pub found: usize,
    /// Lookups that became direct GETs, retries included.
    pub missed: usize,
    /// Direct GETs that were answered with 404.
    pub absent: usize,
    /// Statuses written.
    pub written: usize,
    /// Requests that failed and were tried again.
    pub retried: usize,
    /// When the Deployment informer had synced.
    pub synced: Duration,
    /// When the queue was empty.
    pub empty: Duration,
    /// Longest time from wanting a status write, client-side limiter included, to its answer.
    pub slowest_write: Duration,
}

/// The controller could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The kubeconfig cannot be used.
    #[error("cannot use kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A request failed.
    #[error("request failed: {0}")]
    Request(#[source] Box<kube::Error>),
    /// A request could not be put together.
    #[error("bad request: {0}")]
    Http(#[from] http::Error),
    /// An informer got something else than a streaming list.
    #[error("informer of {resource} got {got}, expected a streaming list")]
    Informer {
        /// What it wanted to sync.
        resource: String,
        /// What it got instead.
        got: String,
    },
    /// A binding was tried too often.
    #[error("gave up on {key} after {tries} tries, last answer {status}")]
    GaveUp {
        /// `namespace/name`.
        key: String,
        /// How often it was tried.
        tries: usize,
        /// The last status code.
        status: u16,
    },
}

/// One binding in the queue: the Deployment of the same namespace and name belongs to it.
struct Item {
    key: String,
    number: usize,
    text: Vec<u8>,
    tries: usize,
}

/// What workers share.
struct Run {
    client: Client,
    controller: Controller,
    limiter: Limiter,
    queue: Mutex<VecDeque<Item>>,
    /// Empty until the informer has synced, as a lister over an unsynced store is.
    lister: Mutex<HashSet<String>>,
    outstanding: AtomicUsize,
    report: Mutex<Report>,
    progress: watch::Sender<Progress>,
    begin: Instant,
}

/// client-go's token bucket: `qps` a second, `burst` at once.
struct Limiter {
    interval: Duration,
    tolerance: Duration,
    next: Mutex<Instant>,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(Deserialize)]
struct Object {
    metadata: Meta,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

const STREAMING_LIST: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
const USER_AGENT: &str = "toy-controller-manager/v1 (linux/amd64)";
const MAX_TRIES: usize = 20;

impl Default for Controller {
    fn default() -> Self {
        Self { workers: 16, qps: 600, burst: 100, write_every: 10, generation: 1 }
    }
}

// === impl Controller ===

impl Controller {
    /// Restarts once: runs until the queue is empty.
    ///
    /// # Errors
    /// The kubeconfig, an informer, or a binding that failed too often.
    pub async fn run(&self, kubeconfig: &Path, progress: watch::Sender<Progress>) -> Result<Report, ControllerError> {
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &options).await?;
        // Retries are this controller's own business: they are paid from its budget, and counted.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(request_error)?;
        let run = Arc::new(Run {
            client,
            controller: self.clone(),
            limiter: Limiter::new(self.qps, self.burst),
            queue: Mutex::default(),
            lister: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            report: Mutex::default(),
            progress,
            begin: Instant::now(),
        });
        run.restart().await
    }
}

// === impl Run ===

impl Run {
    async fn restart(self: Arc<Self>) -> Result<Report, ControllerError> {
        let mut queue = VecDeque::new();
        self.sync(&bindings(), |key, text| {
            queue.push_back(Item { key, number: queue.len(), text, tries: 0 });
        })
        .await?;
        let count = queue.len();
        self.outstanding.store(count, Ordering::Relaxed);
        self.report.lock().bindings = count;
        self.progress.send_modify(|p| p.bindings = count);
        *self.queue.lock() = queue;

        let mut tasks = JoinSet::new();
        let run = self.clone();
        tasks.spawn(async move {
            let mut seen = HashSet::new();
            run.sync(&deployments(), |key, _| {
                seen.insert(key);
            })
            .await?;
            *run.lister.lock() = seen;
            run.report.lock().synced = run.begin.elapsed();
            run.progress.send_modify(|p| p.synced = true);
            Ok(())
        });
        for _ in 0..self.controller.workers.max(1) {
            let run = self.clone();
            tasks.spawn(async move { run.work().await });
        }
        while let Some(done) = tasks.join_next().await {
            // A task that panicked has printed why; the others end with the set.
            if let Ok(result) = done {
                result?;
            }
        }
        Ok(*self.report.lock())
    }

    async fn work(&self) -> Result<(), ControllerError> {
        while self.outstanding.load(Ordering::Acquire) > 0 {
            let item = self.queue.lock().pop_front();
            let Some(mut item) = item else {
                // The rest is in other hands, and may come back.
                sleep(Duration::from_millis(5)).await;
                continue;
            };
            let status = self.reconcile(&item).await?;
            if status.is_success() || status == StatusCode::NOT_FOUND {
                let left = self.outstanding.fetch_sub(1, Ordering::AcqRel) - 1;
                if left == 0 {
                    self.report.lock().empty = self.begin.elapsed();
                }
                self.progress.send_modify(|p| p.done += 1);
                continue;
            }
            item.tries += 1;
            if item.tries >= MAX_TRIES {
                return Err(ControllerError::GaveUp { key: item.key, tries: item.tries, status: status.as_u16() });
            }
            self.report.lock().retried += 1;
            sleep(Duration::from_millis(5 << item.tries.min(8))).await;
            self.queue.lock().push_back(item);
        }
        Ok(())
    }

    /// One binding: the lookup, and perhaps the write. The worst status code met.
    async fn reconcile(&self, item: &Item) -> Result<StatusCode, ControllerError> {
        let found = self.lister.lock().contains(&item.key);
        let Some((namespace, name)) = item.key.split_once('/') else { return Ok(StatusCode::OK) };
        let scope = Scope::Namespace(namespace.into());
        if found {
            self.report.lock().found += 1;
        } else {
            // "Fall back to call api server": the miss is taken for "not known", not for "not there".
            self.report.lock().missed += 1;
            self.progress.send_modify(|p| p.missed += 1);
            let path = format!("{}/{name}", deployments().path(&scope));
            let status = self.ask(Method::GET, &path, Vec::new()).await?;
            if status == StatusCode::NOT_FOUND {
                self.report.lock().absent += 1;
            }
            if !status.is_success() {
                return Ok(status);
            }
        }
        let every = self.controller.write_every;
        if every == 0 || !item.number.is_multiple_of(every) {
            return Ok(StatusCode::OK);
        }
        let mut binding = Node::parse(&item.text).unwrap_or(Node::Null);
        binding
            .object_mut("status")
            .set("schedulerObservedGeneration", Node::Number(self.controller.generation.to_string()));
        let path = format!("{}/{name}/status", bindings().path(&scope));
        let wanted = Instant::now();
        let status = self.ask(Method::PUT, &path, binding.text().into_bytes()).await?;
        let mut report = self.report.lock();
        report.slowest_write = report.slowest_write.max(wanted.elapsed());
        report.written += usize::from(status.is_success());
        Ok(status)
    }

    async fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<StatusCode, ControllerError> {
        self.limiter.pass().await;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .header("user-agent", USER_AGENT)
            .body(Body::from(body))?;
        let response = self.client.send(request).await.map_err(request_error)?;
        let status = response.status();
        // Read to the end, as a client that decodes the object does; a broken body is a failed read.
        match response.into_body().collect().await {
            Ok(_) => Ok(status),
            Err(_) => Ok(StatusCode::BAD_GATEWAY),
        }
    }

    /// Syncs as client-go's informers do since 1.35: a streaming list, complete at its end bookmark.
    async fn sync(&self, gvr: &Gvr, mut found: impl FnMut(String, Vec<u8>)) -> Result<(), ControllerError> {
        self.limiter.pass().await;
        let wrong = |got: String| ControllerError::Informer { resource: gvr.to_string(), got };
        let request = Request::get(format!("{}?{STREAMING_LIST}", gvr.path(&Scope::All)))
            .header("accept", "application/json")
            .header("user-agent", USER_AGENT)
            .body(Body::empty())?;
        let response = self.client.send(request).await.map_err(request_error)?;
        if !response.status().is_success() {
            return Err(wrong(format!("status {}", response.status())));
        }
        let mut body = response.into_body();
        let mut buffer: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| wrong(e.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            buffer.extend_from_slice(&data);
            let mut start = 0;
            while let Some(end) = memchr::memchr(b'\n', &buffer[start..]).map(|at| start + at) {
                let line = &buffer[start..end];
                start = end + 1;
                let event: Event<'_> = serde_json::from_slice(line).map_err(|e| wrong(e.to_string()))?;
                match event.r#type {
                    "ADDED" => {
                        let text = event.object.get();
                        let Object { metadata: Meta { namespace, name } } =
                            serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
                        found(format!("{namespace}/{name}"), text.as_bytes().to_vec());
                    }
                    // Nothing else sends bookmarks before the initial events are complete.
                    "BOOKMARK" => return Ok(()),
                    other => return Err(wrong(format!("an event of type {other}"))),
                }
            }
            buffer.drain(..start);
        }
        Err(wrong("the end of the stream".to_owned()))
    }
}

fn request_error(error: kube::Error) -> ControllerError {
    ControllerError::Request(Box::new(error))
}

fn bindings() -> Gvr {
    Gvr::new("work.karmada.io", "v1alpha2", "resourcebindings")
}

fn deployments() -> Gvr {
    Gvr::new("apps", "v1", "deployments")
}

// === impl Limiter ===

impl Limiter {
    fn new(qps: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / qps.max(1);
        let (tolerance, now) = (interval * burst.max(1), Instant::now());
        // It starts full.
        Self { interval, tolerance, next: Mutex::new(now.checked_sub(tolerance).unwrap_or(now)) }
    }

    async fn pass(&self) {
        let at = {
            let mut next = self.next.lock();
            let now = Instant::now();
            // The bucket is full when nothing was asked for as long as filling it takes.
            let floor = now.checked_sub(self.tolerance).unwrap_or(now);
            *next = (*next).max(floor) + self.interval;
            *next
        };
        sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ApiServer, Resource, any, get, list, update, watch as watching};

    #[tokio::test(start_paused = true)]
    async fn the_limiter_lets_a_burst_through_and_then_the_rate() {
        let limiter = Limiter::new(100, 10);
        let begin = Instant::now();
        for _ in 0..10 {
            limiter.pass().await;
        }
        assert!(begin.elapsed() <= Duration::from_millis(10), "{:?}", begin.elapsed());
        for _ in 0..100 {
            limiter.pass().await;
        }
        let took = begin.elapsed();
        assert!((Duration::from_millis(990)..Duration::from_millis(1_120)).contains(&took), "{took:?}");
    }

    #[tokio::test]
    async fn misses_go_upstream_until_the_informer_has_synced() {
        let server = ApiServer::builder().resource(Resource::resource_bindings()).start().await.unwrap();
        server.world().fill_deployments(3, 50).unwrap();
        server.world().fill_custom("resourcebindings", 3, 50).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = server.write_kubeconfig(dir.path()).unwrap();
        let hold = server.on(watching("deployments")).hold();
        // The first 20 lookups are let through, then the informer syncs.
        let gate = server.on(get("deployments")).after(20).hold();
        let (progress, seen) = watch::channel(Progress::default());
        let controller = Controller { workers: 4, ..Controller::default() };
        let running = tokio::spawn(async move { controller.run(&path, progress).await });
        let limit = Duration::from_secs(10);
        gate.wait_for(4, limit).await.unwrap();
        assert!(!seen.borrow().synced);
        hold.release();
        let mut synced = seen.clone();
        tokio::time::timeout(limit, synced.wait_for(|p| p.synced)).await.unwrap().unwrap();
        gate.release();
        let report = tokio::time::timeout(limit, running).await.unwrap().unwrap().unwrap();
        assert_eq!((report.bindings, report.missed, report.found), (50, 24, 26));
        assert_eq!((report.written, report.retried, report.absent), (5, 0, 0));
        assert_eq!((seen.borrow().done, seen.borrow().missed), (50, 24));
        let log = server.log();
        assert_eq!((log.count(get("deployments")), log.count(update("resourcebindings"))), (24, 5));
        assert_eq!((log.count(list("deployments")), log.count(any().user_agent("toy-controller"))), (0, 31));
    }

    #[tokio::test]
    async fn failed_lookups_are_tried_again() {
        let server = ApiServer::builder().resource(Resource::resource_bindings()).start().await.unwrap();
        server.world().fill_custom("resourcebindings", 1, 3).unwrap();
        server.world().fill_deployments(1, 2).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = server.write_kubeconfig(dir.path()).unwrap();
        let hold = server.on(watching("deployments")).hold();
        server.on(get("deployments")).times(2).reply_status(503);
        let controller = Controller { workers: 1, write_every: 0, ..Controller::default() };
        let (progress, mut seen) = watch::channel(Progress::default());
        let running = tokio::spawn(async move { controller.run(&path, progress).await });
        let limit = Duration::from_secs(10);
        tokio::time::timeout(limit, seen.wait_for(|p| p.done == 3)).await.unwrap().unwrap();
        hold.release();
        let report = tokio::time::timeout(limit, running).await.unwrap().unwrap().unwrap();
        assert_eq!((report.missed, report.retried, report.absent, report.written), (5, 2, 1, 0));
    }
}
