//! How long a lease waits while everything else goes on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use memchr::memmem;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    figures::{Latencies, ms, spread, times},
    link::Link,
    process::Scratch,
    server::Server,
    servers::{start_forebay, start_upstream},
    target::Protocol,
};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/bench/leases";
const LISTED: &str = "/apis/apps/v1/deployments";
const SYNCED: &str = "/api/v1/pods";
const STREAMING: &str = "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

/// Reads that are held.
const HELD: usize = 1_000;

/// Watches that are open, where nothing can be held: the scripted upstream takes 1,000 streams, these included.
const WATCHES: usize = 900;

/// Between two writes of the lease.
const PAUSE: Duration = Duration::from_millis(2);

/// Writes without anything else going on.
const ALONE: usize = 500;

#[derive(Default)]
struct Row {
    p50: Vec<f64>,
    p99: Vec<f64>,
    most: Vec<f64>,
    writes: usize,
    lists: usize,
}

/// Measures and prints the table.
pub(crate) async fn run(rounds: usize, objects: usize) -> Result<()> {
    let scratch = Scratch::new()?;
    let upstream = start_upstream(scratch.path(), objects).await?;
    let (mut direct, mut own, mut alone) = (Row::default(), Row::default(), Row::default());
    for round in 0..rounds {
        let lease = format!("round-{round}");
        direct.add(through(&upstream, &lease, false).await.context("directly")?);
        let forebay = start_forebay(scratch.path()).await?;
        // What the lists are read from is synced before; what the reads are held for is not.
        forebay.target.open(Protocol::Http2).await?.discard("GET", LISTED, "").await?;
        let mut link = forebay.target.open(Protocol::Http2).await?;
        alone.add((write(&mut link, &lease, || false, ALONE).await?, 0));
        own.add(through(&forebay, &lease, true).await.context("through forebay")?);
    }
    println!("\nPUT of a lease, during a sync of {objects} objects, lists of {objects}, and {HELD} held reads");
    println!("  {:<34} {:>26} {:>26} {:>26} {:>7} {:>6}", "", "p50", "p99", "most", "writes", "lists");
    for (name, row) in [("directly", &direct), ("through forebay", &own), ("through forebay, nothing else", &alone)] {
        println!(
            "  {name:<34} {:>26} {:>26} {:>26} {:>7} {:>6}",
            spread(row.p50.clone(), ms),
            spread(row.p99.clone(), ms),
            spread(row.most.clone(), ms),
            row.writes,
            row.lists
        );
    }
    let over = own.p99.iter().zip(&direct.p99).map(|(own, direct)| own / direct).collect();
    println!("  aims: p99 below 50 ms, and at most 2x direct: {}", spread(over, times));
    Ok(())
}

/// Writes the lease for as long as the sync takes, once on a connection that lists and waits; gives also the lists read.
async fn through(server: &Server, lease: &str, held: bool) -> Result<(Latencies, usize)> {
    let mut link = server.target.open(Protocol::Http2).await?;
    let create = json!({"metadata": {"name": lease, "namespace": "bench"}}).to_string();
    // There already, from the round's first measurement.
    let _ = link.open("POST", LEASES, create).await;

    let (lists, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut bulk = JoinSet::new();
    let (mut reader, counted) = (link.shared()?, lists.clone());
    bulk.spawn(async move {
        loop {
            let bytes = reader.discard("GET", LISTED, "").await?;
            ensure!(bytes > 1_000_000, "a list of {bytes} bytes");
            counted.fetch_add(1, Relaxed);
        }
    });
    let mut syncing = JoinSet::new();
    if held {
        for n in 0..HELD {
            // Most by name, and some that look at everything.
            let path = if n % 20 == 0 {
                format!("{SYNCED}?labelSelector=none%3D{n}")
            } else {
                format!("/api/v1/namespaces/team-000/pods/app-{:06}", (n % 100) * 10)
            };
            let mut link = link.shared()?;
            syncing.spawn(async move { link.discard("GET", &path, "").await.map(drop) });
        }
    } else {
        for _ in 0..WATCHES {
            let mut link = link.shared()?;
            bulk.spawn(async move {
                let mut body = link.open("GET", "/api/v1/services?watch=true", "").await?.into_body();
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                Ok(())
            });
        }
        let target = server.target.clone();
        syncing.spawn(async move { initial_events(&mut target.open(Protocol::Http2).await?).await });
    }
    let ended = done.clone();
    let sync = async move {
        while let Some(read) = syncing.join_next().await {
            read??;
        }
        ended.store(true, Relaxed);
        anyhow::Ok(())
    };
    let (latencies, sync) = tokio::join!(write(&mut link, lease, || done.load(Relaxed), usize::MAX), sync);
    sync?;
    Ok((latencies?, lists.load(Relaxed)))
}

/// Writes the lease until it is `done`, or so many times.
async fn write(link: &mut Link, lease: &str, done: impl Fn() -> bool, most: usize) -> Result<Latencies> {
    let path = format!("{LEASES}/{lease}");
    let mut latencies = Latencies::default();
    while !done() && latencies.len() < most {
        let spec = json!({"holderIdentity": latencies.len().to_string(), "leaseDurationSeconds": 15});
        let body = json!({"metadata": {"name": lease, "namespace": "bench"}, "spec": spec}).to_string();
        let sent = Instant::now();
        link.discard("PUT", &path, body).await?;
        latencies.add(sent.elapsed());
        sleep(PAUSE).await;
    }
    Ok(latencies)
}

/// Reads the initial events of a streaming list, and throws them away.
async fn initial_events(link: &mut Link) -> Result<()> {
    const END: &[u8] = b"initial-events-end";
    let mut body = link.open("GET", &format!("{SYNCED}{STREAMING}"), "").await?.into_body();
    let mut tail = Vec::new();
    loop {
        let frame = body.frame().await.context("the stream ended before its initial events did")??;
        let Some(data) = frame.data_ref() else { continue };
        tail.extend_from_slice(data);
        if memmem::find(&tail, END).is_some() {
            return Ok(());
        }
        tail.drain(..tail.len().saturating_sub(END.len()));
    }
}

// === impl Row ===

impl Row {
    fn add(&mut self, (latencies, lists): (Latencies, usize)) {
        self.p50.push(latencies.within(0.5));
        self.p99.push(latencies.within(0.99));
        self.most.push(latencies.within(1.0));
        self.writes += latencies.len();
        self.lists += lists;
    }
}
