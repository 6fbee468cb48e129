//! The processes: a scripted upstream, and forebay in front of it.

use std::{fs, path::Path};

use anyhow::Result;
use forebay::testing::ApiServer;

use crate::{process::Process, server::Server, target::Protocol};

const KUBECONFIG: &str = "upstream.kubeconfig";

/// Serves `count` Deployments and as many Pods until killed; writes `dir/upstream.kubeconfig` when it is ready.
pub(crate) async fn upstream(dir: &Path, count: usize) -> Result<()> {
    let server = ApiServer::builder().keep_requests(0).history(16).start().await?;
    let namespaces = (count / 10_000).max(1);
    server.world().fill_deployments(namespaces, count)?;
    server.world().fill_pods(namespaces, count)?;
    // Appears whole: whoever waits for it takes it for ready.
    let written = tempfile::tempdir_in(dir)?;
    fs::rename(server.write_kubeconfig(&written)?, dir.join(KUBECONFIG))?;
    std::future::pending().await
}

pub(crate) async fn start_upstream(dir: &Path, count: usize) -> Result<Server> {
    let args = ["upstream".to_owned(), dir.display().to_string(), count.to_string()];
    let process = Process::start("upstream", dir, &std::env::current_exe()?, &args, &[])?;
    Server::ready("upstream", process, &dir.join(KUBECONFIG)).await
}

/// Starts forebay in front of it; its discovery is complete when this returns.
pub(crate) async fn start_forebay(dir: &Path) -> Result<Server> {
    let server = Server::forebay(dir, &dir.join(KUBECONFIG), &[]).await?;
    server.target.open(Protocol::Http2).await?.discard("GET", "/api/v1/nodes", "").await?;
    Ok(server)
}
