//! The clients of the soak. A failing request is part of an outage; a wrong answer ends the run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rand::RngExt as _;
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{target::Target, upstream::COLLECTIONS};

/// Above what a hold may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Streams on one connection.
const STREAMS: usize = 1_000;

/// One connection pool.
#[derive(Clone)]
struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    server: String,
    bearer: String,
}

/// Everybody who is there from beginning to end.
pub(crate) struct Clients {
    running: JoinSet<Result<()>>,
    stop: CancellationToken,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    events: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    lists: AtomicU64,
    failed: AtomicU64,
}

/// Reads that wait.
pub(crate) struct Asked {
    running: JoinSet<Result<u16>>,
    handles: Vec<tokio::task::AbortHandle>,
}

// === impl Client ===

impl Client {
    fn of(target: &Target, http2: bool) -> Self {
        let connector = HttpsConnectorBuilder::new().with_tls_config(target.tls()).https_only();
        let connector = if http2 { connector.enable_http2().build() } else { connector.enable_http1().build() };
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http2_only(http2)
            .http2_initial_stream_window_size(256 << 10)
            .build(connector);
        Self { http, server: format!("https://{}", target.address), bearer: target.bearer.clone() }
    }

    async fn send(&self, method: &str, path: &str, body: &'static str) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.server))
            .header(header::AUTHORIZATION, &self.bearer)
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(Full::from(body))?;
        Ok(timeout(PATIENCE, self.http.request(request)).await??)
    }

    /// The resource version of a list.
    async fn version(&self, collection: &str) -> Result<String> {
        let response = self.send("GET", &format!("{collection}?limit=1"), "").await?;
        ensure!(response.status().is_success(), "{}", response.status());
        let list: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
        Ok(list["metadata"]["resourceVersion"].as_str().context("a list without a version")?.to_owned())
    }
}

/// GET of a page in plain HTTP.
pub(crate) async fn plain(url: &str) -> Result<String> {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let response = timeout(PATIENCE, client.request(Request::get(url).body(Full::default())?)).await??;
    Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?)
}

/// Sends so many reads, which are expected to wait.
pub(crate) fn hold(target: &Target, path: &str, reads: usize) -> Asked {
    let (mut running, mut handles) = (JoinSet::new(), Vec::new());
    for first in (0..reads).step_by(STREAMS) {
        let client = Client::of(target, true);
        for _ in first..reads.min(first + STREAMS) {
            let (client, path) = (client.clone(), path.to_owned());
            handles.push(running.spawn(async move {
                let response = client.send("GET", &path, "").await?;
                let status = response.status().as_u16();
                response.into_body().collect().await?;
                Ok(status)
            }));
        }
    }
    Asked { running, handles }
}

// === impl Asked ===

impl Asked {
    /// Whether all have their answers.
    pub(crate) fn ended(&self) -> bool {
        self.handles.iter().all(tokio::task::AbortHandle::is_finished)
    }

    /// The first `leave` of them leave, then `release` lets the others have their answers; gives how many were answered.
    pub(crate) async fn answered(mut self, leave: usize, release: impl FnOnce()) -> Result<usize> {
        self.handles.iter().take(leave).for_each(tokio::task::AbortHandle::abort);
        release();
        let mut answered = 0;
        while let Some(done) = self.running.join_next().await {
            match done {
                Ok(status) => {
                    let status = status?;
                    ensure!(status == 200, "a held read was answered with {status}");
                    answered += 1;
                }
                Err(left) => ensure!(left.is_cancelled(), "{left}"),
            }
        }
        Ok(answered)
    }
}

// === impl Clients ===

impl Clients {
    pub(crate) fn start(target: &Target, watches: usize) -> Self {
        let (stop, counts) = (CancellationToken::new(), Arc::new(Counts::default()));
        let mut running = JoinSet::new();
        let mut join = |work: std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>| {
            let stop = stop.clone();
            running.spawn(async move { stop.run_until_cancelled(work).await.unwrap_or(Ok(())) });
        };
        for first in (0..watches).step_by(STREAMS / 10) {
            let client = Client::of(target, true);
            for n in first..watches.min(first + STREAMS / 10) {
                join(Box::pin(watch(client.clone(), n, counts.clone())));
            }
        }
        for n in 0..4 {
            join(Box::pin(come_and_go(target.clone(), n % 2 == 0, counts.clone())));
            join(Box::pin(read_slowly(Client::of(target, n % 2 == 0), n, counts.clone())));
        }
        Self { running, stop, counts }
    }

    /// What they have done so far.
    pub(crate) fn told(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { events, reads, writes, lists, failed } = &*self.counts;
        format!(
            "{} events, {} reads, {} writes, {} slow lists, {} failed",
            of(events),
            of(reads),
            of(writes),
            of(lists),
            of(failed)
        )
    }

    /// All leave. An error is a wrong answer that one has got.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Keeps a watch open, each from the version of a list.
async fn watch(client: Client, n: usize, counts: Arc<Counts>) -> Result<()> {
    let collection = COLLECTIONS[n % COLLECTIONS.len()].0;
    loop {
        let version = client.version(collection).await.unwrap_or_default();
        let path = format!("{collection}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
        if let Ok(response) = client.send("GET", &path, "").await
            && response.status().is_success()
        {
            let mut body = response.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                let lines = frame.into_data().map_or(0, |data| data.iter().filter(|b| **b == b'\n').count());
                counts.events.fetch_add(lines as u64, Ordering::Relaxed);
            }
        } else {
            counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        let pause = rand::rng().random_range(500..2_000);
        sleep(Duration::from_millis(pause)).await;
    }
}

/// A new connection each time, a few reads and a write; every second time it leaves in the middle of an answer.
async fn come_and_go(target: Target, http2: bool, counts: Arc<Counts>) -> Result<()> {
    for n in 0_u64.. {
        let client = Client::of(&target, http2);
        let (collection, _) = COLLECTIONS[n as usize % COLLECTIONS.len()];
        for _ in 0..4 {
            // Every object lives nearly always; which ones are gone for a moment nobody here knows.
            let namespace = rand::rng().random_range(0..10);
            match client.send("GET", &format!("{}/app-{namespace:06}", namespaced(collection, namespace)), "").await {
                Ok(response) if matches!(response.status().as_u16(), 200 | 404) => {
                    let _ = response.into_body().collect().await;
                    counts.reads.fetch_add(1, Ordering::Relaxed);
                }
                Ok(response) if response.status().is_server_error() => {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                }
                Ok(response) => return Err(anyhow!("GET in {collection}: {}", response.status())),
                Err(_) => {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let path = format!("{}/app-000000", namespaced("/api/v1/configmaps", 0));
        let patched = client.send("PATCH", &path, r#"{"metadata":{"annotations":{"soak":"yes"}}}"#).await;
        let count = if patched.is_ok_and(|p| p.status().is_success()) { &counts.writes } else { &counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        if let Ok(response) = client.send("GET", collection, "").await {
            let mut body = response.into_body();
            let _ = body.frame().await;
            if n % 2 == 0 {
                drop(body);
            } else {
                let _ = body.collect().await;
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Whole lists, a frame now and then.
async fn read_slowly(client: Client, n: usize, counts: Arc<Counts>) -> Result<()> {
    let (collection, _) = COLLECTIONS[n % COLLECTIONS.len()];
    loop {
        if let Ok(response) = client.send("GET", collection, "").await
            && response.status().is_success()
        {
            let mut body = response.into_body();
            while let Some(Ok(_)) = body.frame().await {
                sleep(Duration::from_millis(50)).await;
            }
            counts.lists.fetch_add(1, Ordering::Relaxed);
        } else {
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// `/api/v1/namespaces/team-000/pods` of `/api/v1/pods`.
fn namespaced(collection: &str, namespace: usize) -> String {
    let (group, resource) = collection.rsplit_once('/').unwrap_or((collection, ""));
    format!("{group}/namespaces/team-{namespace:03}/{resource}")
}
