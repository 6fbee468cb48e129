//! `forebay demo`: the same controller restart, directly and through forebay, without a cluster.
//!
//! The upstream is the scripted API server of `testing`, made as slow as a real one; the controller is the small one of
//! `testing::controller`. Every figure in the table is counted by that upstream or measured by that controller. This
//! file only sets them up, shows progress and prints the table; how the proxy is started is the caller's business.

use std::{
    env,
    fmt::Write as _,
    future::Future,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    app,
    config::{self, Environment, Flags},
    testing::{
        ApiServer, Resource, Seen, Verb, any,
        controller::{Controller, Progress, Report},
        list, watch as watching,
    },
};

/// How long one read takes upstream.
const LATENCY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(40));

/// How long upstream takes to send all Deployments.
const LIST_TIME: Duration = Duration::from_secs(4);

/// Piece in which the scripted server sends bodies, bytes.
const PIECE: usize = 128 * 1024;

/// Size of a generated Deployment, bytes; only sets the pace of the list.
const DEPLOYMENT: usize = 4_050;

/// Show what forebay saves, on a synthetic cluster: no Kubernetes needed.
///
/// Restarts the same small controller twice against a built-in API server, directly and through forebay, and compares
/// the reads that reached the server.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Deployments in the synthetic cluster
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    pub objects: u32,

    /// Workers of the controller
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub workers: u32,

    /// How long upstream takes to send all Deployments.
    #[arg(skip = LIST_TIME)]
    list_time: Duration,
}

/// A proxy that runs in this process.
pub struct Started {
    /// The kubeconfig its clients use.
    pub kubeconfig: PathBuf,
    /// Ends it; awaited when the demo no longer needs it.
    pub stop: Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>,
}

/// One column of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Column {
    gets: usize,
    lists: usize,
    peak: usize,
    report: Report,
}

/// Where the demo writes: progress to one side, the table to the other.
struct Terminal {
    progress: Box<dyn io::Write + Send>,
    table: Box<dyn io::Write + Send>,
    /// Progress goes to a terminal: one line that changes.
    live: bool,
    /// The table may have colours.
    colour: bool,
}

// === impl DemoArgs ===

impl DemoArgs {
    /// Runs the demo with forebay in this process.
    ///
    /// # Errors
    /// See [`run`].
    pub async fn run(&self) -> anyhow::Result<()> {
        run(self, through_forebay).await
    }
}

/// forebay as it comes, in front of the server of this kubeconfig, on ports of the kernel's choice. The environment has
/// no say, so that the demo is the same everywhere.
async fn through_forebay(upstream: PathBuf) -> anyhow::Result<Started> {
    let kubeconfig = upstream.with_file_name("kubeconfig-forebay");
    let text = |path: &Path| vec![path.to_string_lossy().into_owned()];
    let values = [("kubeconfig", text(&upstream)), ("write-kubeconfig", text(&kubeconfig))].into();
    let presets = [("secure-port", "0"), ("admin-address", "127.0.0.1:0")];
    let config = config::load(&Flags { config: None, values }, &Environment::new(), &presets)?;
    let running = app::start(config).await?;
    Ok(Started { kubeconfig, stop: Box::pin(running.stop()) })
}

/// Runs the demo. `start_proxy` gets the kubeconfig of the synthetic upstream, and starts forebay in front of it.
///
/// # Errors
/// A port, a file or the proxy could not be had, or a run failed; the message says which.
pub async fn run<S, F>(args: &DemoArgs, start_proxy: S) -> anyhow::Result<()>
where
    S: FnOnce(PathBuf) -> F,
    F: Future<Output = anyhow::Result<Started>>,
{
    run_on(Terminal::detect(), args, start_proxy).await
}

async fn run_on<S, F>(mut terminal: Terminal, args: &DemoArgs, start_proxy: S) -> anyhow::Result<()>
where
    S: FnOnce(PathBuf) -> F,
    F: Future<Output = anyhow::Result<Started>>,
{
    let objects = args.objects as usize;
    let upstream = ApiServer::builder()
        .resource(Resource::resource_bindings())
        .names("demo", "demo", "demo")
        .keep_requests(objects * 4 + 10_000)
        .bookmark_every(Duration::from_secs(10))
        .start()
        .await
        .context("cannot start the synthetic API server")?;
    let namespaces = objects.div_ceil(100);
    upstream.world().fill_deployments(namespaces, objects)?;
    upstream.world().fill_custom("resourcebindings", namespaces, objects)?;
    let pieces = u32::try_from(objects * DEPLOYMENT / PIECE + 1).unwrap_or(u32::MAX);
    upstream.on(any()).delay_between(LATENCY.0, LATENCY.1);
    upstream.on(list("deployments")).pace(args.list_time / pieces);
    upstream.on(watching("deployments").streaming()).pace(args.list_time / pieces);
    let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
    let direct = upstream.write_kubeconfig(dir.path()).context("cannot write the kubeconfig of the demo")?;

    let controller = Controller { workers: args.workers as usize, ..Controller::default() };
    terminal.say(&setup(&controller, objects, args.list_time));

    let without = restart(&upstream, &controller, &direct, "1/2 direct ", &mut terminal).await?;
    let proxy = start_proxy(direct).await.context("cannot start forebay in front of the synthetic API server")?;
    let controller = Controller { generation: controller.generation + 1, ..controller };
    let with = restart(&upstream, &controller, &proxy.kubeconfig, "2/2 forebay", &mut terminal).await;
    let stopped = proxy.stop.await.context("forebay did not stop in order");
    let with = with?;
    stopped?;

    let text = table(&without, &with, terminal.colour) + &closing(&without, &with);
    terminal.table.write_all(text.as_bytes()).and_then(|()| terminal.table.flush()).context("cannot write the table")
}

fn setup(controller: &Controller, objects: usize, list_time: Duration) -> String {
    format!(
        "A controller restarts with {} bindings in its queue and looks up\n\
         the Deployment of each: {} workers, client limit {} requests/s. On a lister\n\
         miss it asks the API server, here a synthetic one that answers in {}-{} ms\n\
         and takes {} to send all Deployments.\n\n",
        grouped(objects),
        controller.workers,
        controller.qps,
        LATENCY.0.as_millis(),
        LATENCY.1.as_millis(),
        seconds(list_time),
    )
}

/// One restart, with its progress on standard error, and what upstream saw of it.
async fn restart(
    upstream: &ApiServer,
    controller: &Controller,
    kubeconfig: &Path,
    label: &str,
    terminal: &mut Terminal,
) -> anyhow::Result<Column> {
    upstream.log().clear();
    let (progress, seen) = watch::channel(Progress::default());
    let running = controller.run(kubeconfig, progress);
    let mut running = std::pin::pin!(running);
    let mut ticks = interval(if terminal.live { Duration::from_millis(100) } else { Duration::from_secs(1) });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    let begin = Instant::now();
    let result = loop {
        tokio::select! {
            result = &mut running => break result,
            _ = ticks.tick() => {
                let line = progress_line(label, *seen.borrow(), reads(upstream).len(), begin.elapsed());
                terminal.progress(&line, false);
            }
        }
    };
    let report = result.with_context(|| format!("the controller failed in run {}", label.trim_end()))?;
    let reads = reads(upstream);
    terminal.progress(&progress_line(label, *seen.borrow(), reads.len(), report.empty.max(report.synced)), true);
    let gets = reads.iter().filter(|(_, get)| *get).count();
    let times: Vec<Instant> = reads.iter().map(|(at, _)| *at).collect();
    Ok(Column { gets, lists: reads.len() - gets, peak: peak(&times), report })
}

/// When upstream was asked for objects, in order, and whether for a single one. Streaming lists count, watches do not.
fn reads(upstream: &ApiServer) -> Vec<(Instant, bool)> {
    let is_read = |s: &Seen| match s.verb() {
        Verb::Get | Verb::List => true,
        Verb::Watch => s.call.flag("sendInitialEvents"),
        _ => false,
    };
    let mut reads: Vec<_> = upstream.log().matching(is_read).iter().map(|s| (s.at, s.verb() == Verb::Get)).collect();
    reads.sort_unstable();
    reads
}

/// The most that fell into any one second. `times` are sorted.
fn peak(times: &[Instant]) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, at) in times.iter().enumerate() {
        while at.duration_since(times[first]) >= Duration::from_secs(1) {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most
}

fn progress_line(label: &str, progress: Progress, reads: usize, elapsed: Duration) -> String {
    let informer = if progress.synced { "synced" } else { "syncing" };
    format!(
        "{label}  {}  {}/{}  reads upstream {}  informer {informer}",
        seconds(elapsed),
        grouped(progress.done),
        grouped(progress.bindings),
        grouped(reads),
    )
}

fn table(without: &Column, with: &Column, colour: bool) -> String {
    let (bold, good, plain) = if colour { ("\x1b[1m", "\x1b[32m", "\x1b[0m") } else { ("", "", "") };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "\n{bold}{:<40}{:>14}{:>18}{plain}", "", "direct", "through forebay");
    let reads = |c: &Column| grouped(c.gets + c.lists);
    for (strong, name, left, right) in [
        (true, "reads that reached upstream", reads(without), reads(with)),
        (false, "  of single objects", grouped(without.gets), grouped(with.gets)),
        (false, "  lists and streaming lists", grouped(without.lists), grouped(with.lists)),
        (true, "peak, reads per second", grouped(without.peak), grouped(with.peak)),
        (true, "time until the queue is empty", seconds(without.report.empty), seconds(with.report.empty)),
        (false, "slowest status write", seconds(without.report.slowest_write), seconds(with.report.slowest_write)),
    ] {
        let (on, off) = if strong { (good, plain) } else { ("", "") };
        let _ = writeln!(out, "{name:<40}{left:>14}{on}{right:>18}{off}");
    }
    let retried = without.report.retried + with.report.retried;
    if retried > 0 {
        let (left, right) = (grouped(without.report.retried), grouped(with.report.retried));
        let _ = writeln!(out, "{:<40}{left:>14}{right:>18}", "requests tried again");
    }
    out
}

/// What was shown, as far as it was, and what to do next.
fn closing(without: &Column, with: &Column) -> String {
    let same = if without.report.written == with.report.written {
        format!("Both runs wrote the same {} statuses.", grouped(with.report.written))
    } else {
        format!(
            "The runs differ: {} statuses written directly, {} through forebay.",
            grouped(without.report.written),
            grouped(with.report.written)
        )
    };
    format!(
        "\n{same}\nNext, on your own cluster: `forebay exec -- CMD` runs any client behind forebay\n\
         and reports at its end what the API server was spared.\n"
    )
}

fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// `12345` as `12,345`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

// === impl Terminal ===

impl Terminal {
    fn detect() -> Self {
        // https://no-color.org: set and not empty.
        let no_colour = env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|t| t == "dumb");
        Self {
            progress: Box::new(io::stderr()),
            table: Box::new(io::stdout()),
            live: io::stderr().is_terminal() && !dumb,
            colour: io::stdout().is_terminal() && !no_colour && !dumb,
        }
    }

    /// Replaces the progress line of a terminal, or adds one line elsewhere. `last` leaves it standing.
    fn progress(&mut self, line: &str, last: bool) {
        let before = if self.live { "\r\x1b[2K" } else { "" };
        let after = if self.live && !last { "" } else { "\n" };
        self.say(&format!("{before}{line}{after}"));
    }

    /// Progress that cannot be shown is no reason to stop.
    fn say(&mut self, text: &str) {
        let _ = self.progress.write_all(text.as_bytes()).and_then(|()| self.progress.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> (Column, Column) {
        let report = Report { written: 500, empty: Duration::from_millis(61_234), ..Report::default() };
        let without = Column { gets: 102_103, lists: 2, peak: 12_378, report };
        let with =
            Column { gets: 0, lists: 2, peak: 1, report: Report { empty: Duration::from_millis(431), ..report } };
        (without, with)
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let (without, with) = columns();
        let text = table(&without, &with, false) + &closing(&without, &with);
        for line in text.lines() {
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
        }
        assert!(text.contains("reads that reached upstream                    102,105                 2\n"), "{text}");
        assert!(text.contains("time until the queue is empty                   61.2 s            431 ms\n"), "{text}");
        assert!(!text.contains('\x1b') && table(&without, &with, true).contains("\x1b[32m"));
        assert!(text.contains("same 500 statuses"));
    }

    #[test]
    fn the_setup_fits_a_terminal() {
        let controller = Controller { workers: 1_000, ..Controller::default() };
        for line in setup(&controller, 200_000, LIST_TIME).lines() {
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
        }
    }

    #[test]
    fn progress_fits_a_terminal() {
        let progress = Progress { bindings: 200_000, done: 199_999, missed: 0, synced: false };
        let line = progress_line("2/2 forebay", progress, 200_002, Duration::from_secs(1_234));
        assert!(line.len() <= 80, "{} columns: {line}", line.len());
    }

    #[test]
    fn the_peak_is_the_fullest_second() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(peak(&[]), 0);
        assert_eq!(peak(&[at(0), at(999), at(1_000), at(1_001), at(1_998), at(5_000)]), 4);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    /// Both sides of a terminal that is none, for a test to read.
    #[derive(Clone, Default)]
    struct Paper(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A small demo, with `start` in place of forebay: what it wrote as progress, and the table.
    async fn small<S, F>(start: S) -> (String, String)
    where
        S: FnOnce(PathBuf) -> F,
        F: Future<Output = anyhow::Result<Started>>,
    {
        let args = DemoArgs { objects: 200, workers: 8, list_time: Duration::from_millis(300) };
        let (progress, written) = (Paper::default(), Paper::default());
        let (err, out) = (Box::new(progress.clone()), Box::new(written.clone()));
        let terminal = Terminal { progress: err, table: out, live: false, colour: false };
        let demo = run_on(terminal, &args, start);
        tokio::time::timeout(Duration::from_secs(60), demo).await.unwrap().unwrap();
        let text = |paper: Paper| String::from_utf8(paper.0.lock().clone()).unwrap();
        (text(progress), text(written))
    }

    /// The figures of a row.
    fn row(table: &str, name: &str) -> (usize, usize) {
        let line =
            table.lines().find(|l| l.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"));
        let mut figures =
            line.trim_start()[name.len()..].split_whitespace().map(|w| w.replace(',', "").parse().unwrap());
        (figures.next().unwrap(), figures.next().unwrap())
    }

    #[tokio::test]
    async fn without_a_proxy_both_runs_read_the_same_way() {
        let nothing = async |kubeconfig: PathBuf| Ok(Started { kubeconfig, stop: Box::pin(async { Ok(()) }) });
        let (progress, table) = small(nothing).await;
        assert!(progress.contains("1/2 direct ") && progress.contains("2/2 forebay  "), "{progress}");
        assert!(progress.contains("  200/200  reads upstream ") && !progress.contains('\x1b'), "{progress}");
        assert_eq!(row(&table, "lists and streaming lists"), (2, 2));
        let (direct, through) = row(&table, "of single objects");
        assert!(direct > 16 && through > 16, "{table}");
        assert!(table.contains("Both runs wrote the same 20 statuses."), "{table}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn through_forebay_no_single_object_is_read() {
        let (_, table) = small(through_forebay).await;
        let (direct, through) = row(&table, "of single objects");
        assert!(direct > 16 && through == 0, "{table}");
        assert!(table.contains("Both runs wrote the same 20 statuses."), "{table}");
    }

    /// `cargo test --lib -- --ignored --nocapture the_whole_demo`
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "for people"]
    async fn the_whole_demo() {
        DemoArgs { objects: 5_000, workers: 16, list_time: LIST_TIME }.run().await.unwrap();
    }
}
