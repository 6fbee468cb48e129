//! The seam to the composition root: what the commands need of a running proxy.

use std::future::Future;

use super::report::Savings;
use crate::config::Config;

/// A proxy that runs in this process.
pub(super) trait Proxy {
    /// What it has spared upstream so far.
    fn savings(&self) -> Savings;

    /// Drains and ends it.
    fn stop(self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Runs until a signal or a failure ends it.
pub(super) async fn run(config: Config) -> anyhow::Result<()> {
    // TO BE WIRED: crate::app::run(config).await
    drop(config);
    anyhow::bail!("the proxy is not wired yet")
}

/// Starts one and returns once its kubeconfig is written to `config.write_kubeconfig`. Signals are the caller's.
pub(super) async fn start(config: Config) -> anyhow::Result<impl Proxy> {
    // TO BE WIRED: crate::app::start(config).await
    drop(config);
    Err::<Unwired, _>(anyhow::anyhow!("the proxy is not wired yet"))
}

struct Unwired;

impl Proxy for Unwired {
    fn savings(&self) -> Savings {
        Savings::default()
    }

    async fn stop(self) -> anyhow::Result<()> {
        Ok(())
    }
}
