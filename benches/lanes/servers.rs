//! The processes: a scripted upstream, and forebay in front of it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use forebay::testing::ApiServer;
use tokio::time::{Instant, sleep};

use crate::{link::Target, process::Process, usage::Usage};

/// From the start of a process to the file that says it is ready.
const START: Duration = Duration::from_secs(120);

/// A server in a process of its own. It ends with this value.
pub(crate) struct Server {
    _process: Process,
    pub(crate) usage: Usage,
    pub(crate) target: Target,
    pub(crate) kubeconfig: PathBuf,
}

/// Serves `count` Deployments and as many Pods until killed; writes `dir/upstream.kubeconfig` when it is ready.
pub(crate) async fn upstream(dir: &Path, count: usize) -> Result<()> {
    let server = ApiServer::builder().keep_requests(0).history(16).start().await?;
    let namespaces = (count / 10_000).max(1);
    server.world().fill_deployments(namespaces, count)?;
    server.world().fill_pods(namespaces, count)?;
    // Appears whole: whoever waits for it takes it for ready.
    let written = tempfile::tempdir_in(dir)?;
    fs::rename(server.write_kubeconfig(&written)?, dir.join("upstream.kubeconfig"))?;
    std::future::pending().await
}

pub(crate) async fn start_upstream(dir: &Path, count: usize) -> Result<Server> {
    let args = ["upstream".to_owned(), dir.display().to_string(), count.to_string()];
    let process = Process::start("upstream", dir, &std::env::current_exe()?, &args, &[])?;
    ready("upstream", process, dir.join("upstream.kubeconfig")).await
}

/// Starts forebay; its discovery is complete when this returns.
pub(crate) async fn start_forebay(dir: &Path, upstream: &Server) -> Result<Server> {
    let kubeconfig = dir.join("forebay.kubeconfig");
    let _ = fs::remove_file(&kubeconfig);
    let args = [
        "run".to_owned(),
        format!("--kubeconfig={}", upstream.kubeconfig.display()),
        "--secure-port=0".to_owned(),
        "--admin-address=127.0.0.1:0".to_owned(),
        format!("--write-kubeconfig={}", kubeconfig.display()),
    ];
    let process = Process::start("forebay", dir, Path::new(env!("CARGO_BIN_EXE_forebay")), &args, &[])?;
    let server = ready("forebay", process, kubeconfig).await?;
    server.target.open(crate::link::Protocol::Http2).await?.discard("GET", "/api/v1/nodes", "").await?;
    Ok(server)
}

async fn ready(name: &str, mut process: Process, kubeconfig: PathBuf) -> Result<Server> {
    let deadline = Instant::now() + START;
    while !kubeconfig.is_file() {
        ensure!(process.exited().is_none(), "{name} ended at once:\n{}", process.log_tail(10));
        ensure!(Instant::now() < deadline, "{name} is not ready after {START:?}:\n{}", process.log_tail(10));
        sleep(Duration::from_millis(10)).await;
    }
    let pid = process.pid().with_context(|| format!("{name} has no pid"))?;
    let target = Target::from_kubeconfig(&kubeconfig)?;
    Ok(Server { _process: process, usage: Usage::of(pid), target, kubeconfig })
}
