//! A long run in front of a lively, unreliable upstream: is forebay's size the same at the end?
//!
//! ```text
//! cargo bench --profile quick-release --bench soak -- --minutes=60
//! ```
//!
//! The real binary runs in front of a scripted upstream behind a gate. From beginning to end:
//!
//! - 1,000 watches stay open, and are opened again whenever they end;
//! - clients come and go: a connection of their own, a few reads and a write, half of them leaving in the middle;
//! - slow readers take whole lists a little at a time;
//! - objects change, come and go, ten a second, which a thousand watches hear of;
//! - each minute upstream is away for some seconds, and every third time its history is compacted meanwhile;
//! - each minute 10,000 reads of a resource that was never read before are held, a tenth of them is given up, the rest is
//!   answered; then the resource is gone for good.
//!
//! Each minute prints a line of forebay's memory, descriptors and tasks. At the end all clients leave, and the program
//! fails unless the figures are again what they were after the third minute, when all had happened once.

#![allow(missing_docs, reason = "a program, not an interface")]
#![allow(clippy::disallowed_methods, reason = "the tasks of a bench need no supervisor")]

mod clients;
mod figures;
mod upstream;

#[path = "../../tests/cluster/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../shared/server.rs"]
#[allow(dead_code)]
mod server;
#[path = "../shared/target.rs"]
#[allow(dead_code)]
mod target;
#[path = "../shared/usage.rs"]
#[allow(dead_code)]
mod usage;

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tokio::time::{Instant, sleep, sleep_until};

use clients::Clients;
use figures::Figures;
use process::Scratch;
use server::Server;
use upstream::Upstream;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Parser)]
struct Options {
    /// How long; at least 4, because the figures after the third minute are the measure.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..))]
    minutes: u32,
    /// Watches that are open all the time.
    #[arg(long, default_value_t = 1_000)]
    watches: usize,
    /// Reads held each minute.
    #[arg(long, default_value_t = 10_000)]
    holds: usize,
    /// Objects of each of three resources.
    #[arg(long, default_value_t = 2_000)]
    objects: usize,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A running forebay.
struct Forebay {
    server: Server,
    admin: String,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&options))
}

async fn run(options: &Options) -> Result<()> {
    let scratch = Scratch::new()?;
    let upstream = Upstream::start(options.objects).await?;
    let mut forebay = Forebay::start(scratch.path(), &upstream).await?;
    let clients = Clients::start(&forebay.server.target, options.watches);
    println!("{}", Figures::HEADING);
    let mut measure = None;
    let begun = Instant::now();
    for minute in 1..=options.minutes {
        upstream.lively(MINUTE / 4).await?;
        upstream.outage(minute % 3 == 0).await;
        let held = hold(&forebay, &upstream, minute, options.holds).await?;
        let until = begun + MINUTE * minute;
        upstream.lively(until.saturating_duration_since(Instant::now())).await?;
        sleep_until(until).await;
        let figures = forebay.figures().await?;
        println!("{}", figures.line(&minute.to_string(), &format!("{}, {held} held", clients.told())));
        ensure!(
            forebay.server.process.exited().is_none(),
            "forebay has ended:\n{}",
            forebay.server.process.log_tail(20)
        );
        if minute == 3 {
            measure = Some(figures);
        }
    }
    clients.stop().await?;
    let quiet = forebay.quiet().await?;
    println!("{}", quiet.line("end", "all clients have left"));
    let measure = measure.context("no figures of the third minute")?;
    let grown = quiet.grown_over(&measure);
    if grown.is_empty() {
        println!("flat: after {} minutes nothing is larger than after the third", options.minutes);
        return Ok(());
    }
    bail!("not flat: {}", grown.join("; "))
}

/// Lets many reads wait for a resource that nobody has read before; gives how many were answered.
async fn hold(forebay: &Forebay, upstream: &Upstream, minute: u32, reads: usize) -> Result<usize> {
    let (resource, hold) = upstream.new_resource(minute)?;
    let deadline = Instant::now() + MINUTE;
    // Forebay has to learn of it first: what it does not know is forwarded, not held.
    let mut first = clients::hold(&forebay.server.target, &resource.path, 1);
    while !forebay.metrics().await?.contains(&resource.label) {
        ensure!(Instant::now() < deadline, "no read of {} is held", resource.path);
        sleep(Duration::from_millis(100)).await;
        if first.ended() {
            first = clients::hold(&forebay.server.target, &resource.path, 1);
        }
    }
    drop(first);
    let asked = clients::hold(&forebay.server.target, &resource.path, reads);
    while forebay.metric("forebay_held_requests").await? < reads as f64 {
        if Instant::now() > deadline {
            bail!("only {} of {reads} reads are held", forebay.metric("forebay_held_requests").await?);
        }
        sleep(Duration::from_millis(100)).await;
    }
    let answered = asked.answered(reads / 10, || hold.release()).await?;
    upstream.remove(&resource);
    Ok(answered)
}

// === impl Forebay ===

impl Forebay {
    async fn start(dir: &Path, upstream: &Upstream) -> Result<Self> {
        let theirs = dir.join("upstream.kubeconfig");
        std::fs::write(&theirs, upstream.kubeconfig())?;
        let flags = ["--max-holds=20000", "--max-concurrent-streams=4000"];
        let server = Server::forebay(dir, &theirs, &flags).await?;
        let log = server.process.log();
        let admin = log.lines().find_map(|line| line.split_once("admin listening addr=")?.1.split_whitespace().next());
        let admin = format!("http://{}", admin.context("forebay does not say where its admin port is")?);
        Ok(Self { server, admin })
    }

    async fn metrics(&self) -> Result<String> {
        clients::plain(&format!("{}/metrics", self.admin)).await
    }

    async fn metric(&self, name: &str) -> Result<f64> {
        figures::metric(&self.metrics().await?, name)
    }

    async fn figures(&self) -> Result<Figures> {
        Figures::of(&self.metrics().await?)
    }

    /// The figures once nothing changes any more: connections end and memory is given back with some delay.
    async fn quiet(&self) -> Result<Figures> {
        let mut last = self.figures().await?;
        for _ in 0..12 {
            sleep(Duration::from_secs(5)).await;
            let now = self.figures().await?;
            if now.tasks >= last.tasks && now.memory >= last.memory * 0.99 {
                return Ok(now);
            }
            last = now;
        }
        Ok(last)
    }
}
