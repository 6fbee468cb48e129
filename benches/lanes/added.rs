//! What a proxy adds to a forwarded GET, a PUT and a watch event: its own CPU, and latency.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    figures::{Latencies, ms, spread, us},
    nginx::Nginx,
    process::Scratch,
    servers::{start_forebay, start_upstream},
    target::{Protocol, Target},
    usage::Usage,
};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/bench/leases";

const CONNECTIONS: usize = 16;
const WATCHES: usize = 16;
const ROUND: Duration = Duration::from_millis(1_500);
const WRITES: usize = 300;
const PATIENCE: Duration = Duration::from_secs(30);

/// One kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Put,
    Event,
}

struct Subject {
    name: &'static str,
    target: Target,
    usage: Option<Usage>,
    /// For each kind, one sample a round.
    samples: [Vec<Sample>; 3],
}

struct Sample {
    cpu: f64,
    latencies: Latencies,
}

/// Measures and prints the table.
pub(crate) async fn run(rounds: usize) -> Result<()> {
    let scratch = Scratch::new()?;
    let upstream = start_upstream(scratch.path(), 10).await?;
    let forebay = start_forebay(scratch.path()).await?;
    let nginx = Nginx::start(scratch.path(), &upstream).await;
    let mut link = upstream.target.open(Protocol::Http2).await?;
    for n in 0..CONNECTIONS {
        let lease = json!({"metadata": {"name": format!("l-{n}"), "namespace": "bench"}, "spec": {}}).to_string();
        link.discard("POST", LEASES, lease).await?;
    }
    let mut subjects = vec![Subject::new("directly", &upstream.target, None)];
    match &nginx {
        Ok(nginx) => subjects.push(Subject::new("through nginx", &nginx.target, Some(&nginx.usage))),
        Err(why) => println!("\nnginx is not measured: {why:#}"),
    }
    subjects.push(Subject::new("through forebay", &forebay.target, Some(&forebay.usage)));
    // The first round opens connections and warms up.
    for round in 0..=rounds {
        for subject in &mut subjects {
            for kind in [Kind::Get, Kind::Put, Kind::Event] {
                let sample = subject.measure(kind, &upstream.target).await.context(subject.name)?;
                if round > 0 {
                    subject.samples[kind as usize].push(sample);
                }
            }
        }
    }
    for (heading, of) in
        [("GET of a lease, 16 connections", 0), ("PUT of a lease, 16 connections", 1), ("watch event, 16 watches", 2)]
    {
        println!("\nForwarded {heading}, HTTP/1.1");
        println!(
            "  {:<20} {:>30} {:>10} {:>10} {:>28} {:>28}",
            "", "CPU of the proxy", "p50", "p99", "added p50", "added p99"
        );
        let direct = &subjects[0];
        for subject in &subjects {
            let of_all = |share| subject.samples[of].iter().map(|s| s.latencies.within(share)).collect::<Vec<_>>();
            let added = |share| {
                let pairs = subject.samples[of].iter().zip(&direct.samples[of]);
                pairs.map(|(own, direct)| own.latencies.within(share) - direct.latencies.within(share)).collect()
            };
            let (cpu, p50, p99) = if subject.usage.is_some() {
                let cpu = subject.samples[of].iter().map(|sample| sample.cpu).collect();
                (spread(cpu, us), spread(added(0.5), ms), spread(added(0.99), ms))
            } else {
                Default::default()
            };
            let median = |mut all: Vec<f64>| {
                all.sort_by(f64::total_cmp);
                ms(all[all.len() / 2])
            };
            println!(
                "  {:<20} {cpu:>30} {:>10} {:>10} {p50:>28} {p99:>28}",
                subject.name,
                median(of_all(0.5)),
                median(of_all(0.99))
            );
        }
    }
    println!("\n  aims: CPU below nginx's; added below 0.2 ms (p50) and 1 ms (p99)");
    Ok(())
}

// === impl Subject ===

impl Subject {
    fn new(name: &'static str, target: &Target, usage: Option<&Usage>) -> Self {
        Self { name, target: target.clone(), usage: usage.cloned(), samples: Default::default() }
    }

    async fn measure(&self, kind: Kind, upstream: &Target) -> Result<Sample> {
        let cpu = || self.usage.as_ref().map_or(Ok(Duration::ZERO), Usage::cpu);
        let (used, latencies) = if kind == Kind::Event {
            // The watches are open before anything is counted.
            let mut watching = self.watches().await?;
            let before = cpu()?;
            let latencies = events(&mut watching, upstream).await?;
            (cpu()? - before, latencies)
        } else {
            let before = cpu()?;
            let latencies = self.requests(kind).await?;
            (cpu()? - before, latencies)
        };
        ensure!(latencies.len() > 100, "only {} of {kind:?}", latencies.len());
        Ok(Sample { cpu: used.as_secs_f64() / latencies.len() as f64, latencies })
    }

    /// A closed loop on each of the connections.
    async fn requests(&self, kind: Kind) -> Result<Latencies> {
        let mut workers = JoinSet::new();
        for n in 0..CONNECTIONS {
            let mut link = self.target.open(Protocol::Http1).await?;
            let (method, path) = (if kind == Kind::Get { "GET" } else { "PUT" }, format!("{LEASES}/l-{n}"));
            workers.spawn(async move {
                let mut latencies = Latencies::default();
                let begun = Instant::now();
                while begun.elapsed() < ROUND {
                    let body = if kind == Kind::Get { String::new() } else { lease(n, latencies.len()) };
                    let sent = Instant::now();
                    link.discard(method, &path, body).await?;
                    latencies.add(sent.elapsed());
                }
                anyhow::Ok(latencies)
            });
        }
        let mut all = Latencies::default();
        while let Some(done) = workers.join_next().await {
            all.extend(done??);
        }
        Ok(all)
    }

    /// Opens the watches; the arrivals of their events come through the channel.
    async fn watches(&self) -> Result<(JoinSet<Result<()>>, mpsc::UnboundedReceiver<Instant>)> {
        let (tx, rx) = mpsc::unbounded_channel();
        let mut watching = JoinSet::new();
        for _ in 0..WATCHES {
            let mut link = self.target.open(Protocol::Http1).await?;
            let path = format!("{LEASES}?watch=true&fieldSelector=metadata.name%3Dl-0&resourceVersion=0");
            let mut body = link.open("GET", &path, "").await?.into_body();
            let tx = tx.clone();
            watching.spawn(async move {
                let _link = link;
                while let Some(frame) = body.frame().await {
                    let lines = frame?.data_ref().map_or(0, |data| data.iter().filter(|b| **b == b'\n').count());
                    for _ in 0..lines {
                        let _ = tx.send(Instant::now());
                    }
                }
                Ok(())
            });
        }
        let mut watches = (watching, rx);
        // At version 0 each begins with the object as it is.
        for _ in 0..WATCHES {
            timeout(PATIENCE, watches.1.recv()).await?.context("the watches ended")?;
        }
        Ok(watches)
    }
}

/// Writes directly, one write after the other; each is seen by all watches.
async fn events(
    (_, arrivals): &mut (JoinSet<Result<()>>, mpsc::UnboundedReceiver<Instant>),
    upstream: &Target,
) -> Result<Latencies> {
    let mut link = upstream.open(Protocol::Http2).await?;
    let mut latencies = Latencies::default();
    for n in 0..WRITES {
        let sent = Instant::now();
        link.discard("PUT", &format!("{LEASES}/l-0"), lease(0, n)).await?;
        for _ in 0..WATCHES {
            let arrived = timeout(PATIENCE, arrivals.recv()).await?.context("the watches ended")?;
            latencies.add(arrived - sent);
        }
    }
    Ok(latencies)
}

fn lease(n: usize, holder: usize) -> String {
    // The time makes every write a change.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let spec = json!({"holderIdentity": format!("{now}-{holder}"), "leaseDurationSeconds": 15});
    json!({"metadata": {"name": format!("l-{n}"), "namespace": "bench"}, "spec": spec}).to_string()
}
