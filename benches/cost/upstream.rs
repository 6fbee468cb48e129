//! The scripted upstream as a process of its own, full of Deployments.

use std::path::Path;

use anyhow::Result;
use forebay::testing::ApiServer;
use serde::{Deserialize, Serialize};

/// What the upstream holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Deployments.
    pub(crate) objects: usize,
    /// Their JSON, in bytes.
    pub(crate) bytes: usize,
}

/// Serves `count` Deployments in `namespaces` namespaces until killed; writes `dir/held.json` and, last,
/// `dir/kubeconfig`.
pub(crate) async fn serve(dir: &Path, namespaces: usize, count: usize) -> Result<()> {
    let server = ApiServer::builder().keep_requests(0).history(16).start().await?;
    let world = server.world();
    let objects = world.fill_deployments(namespaces, count)?;
    let keys = world.keys("deployments.apps");
    let bytes =
        keys.iter().filter_map(|key| world.object("deployments.apps", key)).map(|object| object.text.len()).sum();
    std::fs::write(dir.join("held.json"), serde_json::to_vec(&Held { objects, bytes })?)?;
    // Appears whole: whoever waits for it takes it for ready.
    let written = tempfile::tempdir_in(dir)?;
    std::fs::rename(server.write_kubeconfig(&written)?, dir.join("kubeconfig"))?;
    std::future::pending().await
}
