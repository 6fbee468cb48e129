//! The run: starts the servers, measures them in turns, prints the tables.
//!
//! Servers that are compared take turns in short rounds, so that what else happens on the machine hits all of them.

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use http_body_util::BodyExt;
use memchr::memmem;
use tokio::time::{Instant, timeout};

use crate::{
    control_plane::{self, ControlPlane},
    load::{Client, Load},
    process::{Process, Scratch},
    report::{self, Ratio, Series},
    server::Server,
    target::{Protocol, Target},
    upstream::Held,
    usage::Usage,
    users::{Role, Users},
};

/// For a complete sync.
const SYNC: Duration = Duration::from_secs(60);

const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const IN_NAMESPACE: &str = "/apis/apps/v1/namespaces/team-000/deployments";
const STREAMING: &str = "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

/// Objects of the LIST and of the GETs.
const LISTED: usize = 10_000;

/// Time for each measurement of GETs, and for warming up before the first one of a server.
const ROUND: Duration = Duration::from_millis(1_200);
const WARM_UP: Duration = Duration::from_millis(300);

/// LISTs in each measurement.
const LISTS: usize = 12;

const HTTP1: &str = "GET over HTTP/1.1, 16 connections";
const HTTP2: &str = "GET over HTTP/2, 4 connections of 4 requests";

/// What can be chosen.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds of everything.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Deployments at the scripted upstream, a multiple of 10,000.
    #[arg(long, default_value_t = 100_000)]
    objects: usize,
    /// Leave the real kube-apiserver out.
    #[arg(long)]
    without_kube_apiserver: bool,
}

/// The connections to one server, and what was measured over them.
struct Subject {
    name: &'static str,
    usage: Usage,
    paths: Arc<[String]>,
    list: Arc<[String]>,
    list_bytes: usize,
    marker: Option<&'static str>,
    clients: Clients,
    http1: Series,
    http2: Series,
    lists: Series,
}

struct Clients {
    http1: Client,
    http2: Client,
    list: Client,
}

/// Time and CPU of loading everything once.
#[derive(Clone, Copy)]
struct Loading {
    time: Duration,
    cpu: Duration,
}

/// Runs everything.
pub(crate) async fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.objects.is_multiple_of(LISTED) && options.objects > 0, "see --help");
    let scratch = Scratch::new()?;
    let (upstream, held) = scripted(scratch.path(), options.objects).await?;
    let each = held.bytes as f64 / held.objects as f64;
    println!("{} Deployments of {each:.0} bytes at the scripted upstream", held.objects);

    let forebay = sync(scratch.path(), &upstream, &held, options.rounds).await?;
    let (object, list) = (forebay.target.get(&path(0)).await?, forebay.target.get(IN_NAMESPACE).await?);
    fs::write(scratch.path().join("object"), &object)?;
    fs::write(scratch.path().join("list"), &list)?;
    let bare = child(scratch.path(), "bare", &[]).await?;

    let spread: Arc<[String]> = (0..LISTED).map(|n| path(n * (options.objects / LISTED))).collect();
    let mut floor = Subject::new("bare hyper, one ready buffer", &bare, spread.clone(), "", list.len(), None).await?;
    let mut own = Subject::new("forebay", &forebay, spread.clone(), "", list.len(), Some("hit; rv=")).await?;
    for _ in 0..options.rounds {
        floor.round().await?;
        own.round().await?;
    }
    drop(bare);
    let resident = forebay.usage.resident()?;
    drop((forebay, upstream));

    let real = if options.without_kube_apiserver {
        Err(anyhow!("left out by --without-kube-apiserver"))
    } else {
        kube_apiserver(scratch.path(), &list, options.rounds).await
    };
    for (heading, of) in [(HTTP1, 0), (HTTP2, 1), ("LIST of 10,000 over HTTP/1.1", 2)] {
        report::heading(&if of == 2 {
            format!("{heading}, {}", report::mb(list.len() as f64))
        } else {
            heading.to_owned()
        });
        for subject in [&floor, &own].into_iter().chain(real.as_ref().ok()) {
            report::row(subject.name, subject.series(of), floor.series(of));
        }
        if let Err(why) = &real {
            println!("  {:<36} not measured: {why:#}", "kube-apiserver, resourceVersion=0");
        }
        let (what, most) = if of == 2 { ("LIST", 2.0) } else { ("GET", 1.35) };
        report::aim(what, own.series(of).over(floor.series(of)), most);
    }
    println!("\nMemory at the end of the run: {}", report::mb(resident as f64));
    Ok(())
}

/// The path of the n-th generated Deployment in the first namespace.
fn path(n: usize) -> String {
    format!("{IN_NAMESPACE}/app-{n:06}")
}

// === impl Subject ===

impl Subject {
    async fn new(
        name: &'static str,
        server: &Server,
        paths: Arc<[String]>,
        query: &str,
        list_bytes: usize,
        marker: Option<&'static str>,
    ) -> Result<Self> {
        Self::with(name, server.usage.clone(), &server.target, paths, query, list_bytes, marker).await
    }

    async fn with(
        name: &'static str,
        usage: Usage,
        target: &Target,
        paths: Arc<[String]>,
        query: &str,
        list_bytes: usize,
        marker: Option<&'static str>,
    ) -> Result<Self> {
        let clients = Clients {
            http1: target.open(Protocol::Http1, 16, 1).await?,
            http2: target.open(Protocol::Http2, 4, 4).await?,
            list: target.open(Protocol::Http1, 1, 1).await?,
        };
        let paths = paths.iter().map(|path| format!("{path}{query}")).collect();
        let list = [format!("{IN_NAMESPACE}{query}")].into();
        let mut subject = Self {
            name,
            usage,
            paths,
            list,
            list_bytes,
            marker,
            clients,
            http1: Series::default(),
            http2: Series::default(),
            lists: Series::default(),
        };
        subject.clients.http1.run(&subject.gets(WARM_UP)).await.with_context(|| name)?;
        subject.clients.http2.run(&subject.gets(WARM_UP)).await.with_context(|| name)?;
        subject.clients.list.run(&subject.lists(1)).await.with_context(|| name)?;
        Ok(subject)
    }

    /// One measurement of each kind.
    async fn round(&mut self) -> Result<()> {
        let (gets, lists) = (self.gets(ROUND), self.lists(LISTS));
        for (client, load, series) in [
            (&mut self.clients.http1, &gets, &mut self.http1),
            (&mut self.clients.http2, &gets, &mut self.http2),
            (&mut self.clients.list, &lists, &mut self.lists),
        ] {
            let before = self.usage.cpu()?;
            let done = client.run(load).await.with_context(|| self.name)?;
            series.add(self.usage.cpu()? - before, done);
        }
        Ok(())
    }

    fn gets(&self, time: Duration) -> Load {
        Load { paths: self.paths.clone(), time, most: usize::MAX, marker: self.marker, at_least: 1_000 }
    }

    fn lists(&self, most: usize) -> Load {
        // Time enough, but not for hundreds of slow ones.
        let time = 3 * ROUND;
        Load { paths: self.list.clone(), time, most, marker: self.marker, at_least: self.list_bytes }
    }

    fn series(&self, of: usize) -> &Series {
        [&self.http1, &self.http2, &self.lists][of]
    }
}

/// Starts the scripted upstream.
async fn scripted(dir: &Path, objects: usize) -> Result<(Server, Held)> {
    let server = child(dir, "upstream", &[(objects / LISTED).to_string(), objects.to_string()]).await?;
    let held = serde_json::from_slice(&fs::read(dir.join("held.json"))?)?;
    Ok((server, held))
}

/// Starts this binary in another role; it tells by a kubeconfig that it is ready.
async fn child(dir: &Path, role: &str, args: &[String]) -> Result<Server> {
    let mut all = vec![role.to_owned(), dir.display().to_string()];
    all.extend_from_slice(args);
    let kubeconfig = dir.join("kubeconfig");
    let _ = fs::remove_file(&kubeconfig);
    let process = Process::start(role, dir, &std::env::current_exe()?, &all, &[])?;
    let server = Server::ready(role, process, &kubeconfig).await?;
    // The next one writes its own there.
    fs::rename(kubeconfig, dir.join(format!("{role}.kubeconfig")))?;
    Ok(server)
}

/// Starts forebay in front of the server that `dir/<upstream>.kubeconfig` describes.
async fn forebay(dir: &Path, upstream: &str) -> Result<Server> {
    let server = Server::forebay(dir, &dir.join(format!("{upstream}.kubeconfig")), &[]).await?;
    // Discovery, so that it is not part of the sync: any read of another resource waits for it.
    server.target.get("/api/v1/namespaces/default/pods").await?;
    Ok(server)
}

/// Syncs forebay with the scripted upstream, in turns with a client that reads the same and keeps nothing. Gives the last
/// forebay.
async fn sync(dir: &Path, upstream: &Server, held: &Held, rounds: usize) -> Result<Server> {
    let mut last = None;
    let (mut plain, mut synced, mut served) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        drop(last.take());
        let before = upstream.usage.cpu()?;
        plain.push(discard(&upstream.target).await?);
        served.push((upstream.usage.cpu()? - before).as_secs_f64());
        let server = forebay(dir, "upstream").await?;
        synced.push(first_read(&server, &path(0)).await?);
        last = Some(server);
    }
    let server = last.context("no round")?;
    println!("\nSync of {} objects, {}", held.objects, report::mb(held.bytes as f64));
    told_sync(&plain, &synced);
    let served = served.iter().sum::<f64>() / served.len() as f64;
    println!("  {:<36} {:>10} of CPU for each of them", "the upstream", report::time(served));

    let raw = held.bytes as f64;
    let (now, peak) = (server.usage.resident()? as f64, server.usage.peak()? as f64);
    println!("\nMemory with {} objects, {} of JSON", held.objects, report::mb(raw));
    println!("  {:<36} {:>10} {:>20.2} x raw", "forebay, resident after the sync", report::mb(now), now / raw);
    println!("  {:<36} {:>10} {:>20.2} x raw", "forebay, peak", report::mb(peak), peak / raw);
    report::aim("memory", Ratio::of(vec![now / raw]), 1.3);
    Ok(server)
}

/// Prints what syncs took.
fn told_sync(plain: &[Loading], synced: &[Loading]) {
    for (name, all) in [("reading and discarding", plain), ("forebay, first read to its answer", synced)] {
        let mut times: Vec<f64> = all.iter().map(|loading| loading.time.as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        let cpu = all.iter().map(|loading| loading.cpu.as_secs_f64()).sum::<f64>() / all.len() as f64;
        let median = times[times.len() / 2];
        println!("  {name:<36} {:>10} {:>20} of CPU", report::time(median), report::time(cpu));
    }
    let pairs = synced.iter().zip(plain);
    let ratios = pairs.map(|(own, plain)| own.time.as_secs_f64() / plain.time.as_secs_f64()).collect();
    report::aim("sync", Ratio::of(ratios), 1.1);
}

/// Reads the streaming list to the end of its initial events.
async fn discard(target: &Target) -> Result<Loading> {
    const END: &[u8] = b"initial-events-end";
    let usage = Usage::of(std::process::id());
    let (begun, before) = (Instant::now(), usage.cpu()?);
    let read = async {
        let mut body = target.stream(&format!("{DEPLOYMENTS}{STREAMING}")).await?;
        let mut tail = Vec::new();
        loop {
            let frame = body.frame().await.context("the stream ended before its initial events did")??;
            let Some(data) = frame.data_ref() else { continue };
            tail.extend_from_slice(&data[..data.len().min(END.len())]);
            if memmem::find(data, END).is_some() || memmem::find(&tail, END).is_some() {
                return anyhow::Ok(());
            }
            tail.clear();
            tail.extend_from_slice(&data[data.len().saturating_sub(END.len())..]);
        }
    };
    timeout(SYNC, read).await.context("the streaming list did not end")??;
    Ok(Loading { time: begun.elapsed(), cpu: usage.cpu()? - before })
}

/// The first read of a resource, which is held until it has synced.
async fn first_read(forebay: &Server, path: &str) -> Result<Loading> {
    let (begun, before) = (Instant::now(), forebay.usage.cpu()?);
    forebay.target.get(path).await?;
    Ok(Loading { time: begun.elapsed(), cpu: forebay.usage.cpu()? - before })
}

/// The real kube-apiserver, with the objects of the list, at `resourceVersion=0`; and a sync from it.
async fn kube_apiserver(dir: &Path, list: &[u8], rounds: usize) -> Result<Subject> {
    let options = control_plane::Options {
        // Last ones win: an audit log would be counted as the server's cost.
        flags: vec!["--audit-log-path=".to_owned(), "--audit-policy-file=".to_owned()],
        ..control_plane::Options::default()
    };
    let plane = ControlPlane::start(options).map_err(|why| anyhow!(why))?;
    let paths = fill(&plane, list).await?;
    let user = plane.user(Role::Admin);
    let kubeconfig = plane.kubeconfig(&user);
    fs::copy(&kubeconfig, dir.join("real.kubeconfig"))?;
    let target = Target::from_kubeconfig(&kubeconfig)?;
    let pid = *plane.pids().get(1).context("kube-apiserver has no pid")?;
    let (mut plain, mut synced) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        plain.push(discard(&target).await?);
        synced.push(first_read(&forebay(dir, "real").await?, &paths[0]).await?);
    }
    println!("\nSync of {LISTED} objects from the real kube-apiserver");
    told_sync(&plain, &synced);
    // Its items lack kind and apiVersion and the status is the server's to set: a little less than was sent.
    let expected = list.len() / 2;
    let query = "?resourceVersion=0";
    let name = "kube-apiserver, resourceVersion=0";
    let mut subject = Subject::with(name, Usage::of(pid), &target, paths, query, expected, None).await?;
    for _ in 0..rounds {
        subject.round().await?;
    }
    Ok(subject)
}

/// Creates the objects of `list`; gives their paths.
async fn fill(plane: &ControlPlane, list: &[u8]) -> Result<Arc<[String]>> {
    let list: serde_json::Value = serde_json::from_slice(list)?;
    let items = list["items"].as_array().context("no items")?;
    let admin = plane.client(&Users::rig()).with_user_agent("rig");
    let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-000"}});
    admin.post("/api/v1/namespaces", &namespace).await;
    let mut writers = tokio::task::JoinSet::new();
    for share in items.chunks(items.len().div_ceil(16)) {
        let (admin, share) = (admin.clone(), share.to_vec());
        writers.spawn(async move {
            for mut object in share {
                if let Some(meta) = object["metadata"].as_object_mut() {
                    meta.retain(|field, _| matches!(field.as_str(), "name" | "labels" | "annotations"));
                }
                object["kind"] = "Deployment".into();
                object["apiVersion"] = "apps/v1".into();
                admin.post(IN_NAMESPACE, &object).await;
            }
        });
    }
    while let Some(written) = writers.join_next().await {
        written?;
    }
    let name = |item: &serde_json::Value| Some(format!("{IN_NAMESPACE}/{}", item["metadata"]["name"].as_str()?));
    items.iter().map(name).collect::<Option<_>>().context("an object without a name")
}
