//! The seam to the composition root: what the commands need of a running proxy.

use super::report::Savings;
use crate::{
    app::{self, Running},
    config::Config,
};

/// A proxy that runs in this process.
pub(super) struct Proxy(Running);

/// Starts one and returns once its kubeconfig is written to `config.write_kubeconfig`. Signals are the caller's.
pub(super) async fn start(config: Config) -> anyhow::Result<Proxy> {
    app::start(config).await.map(Proxy)
}

// === impl Proxy ===

impl Proxy {
    /// What it has spared upstream so far.
    pub(super) fn savings(&self) -> Savings {
        let spared = self.0.spared();
        let requests = spared.requests;
        Savings {
            requests: requests.requests,
            hits: requests.hits,
            held: requests.held,
            forwarded: requests.forwarded,
            upstream_reads: requests.forwarded_reads + spared.own_reads,
            bytes_from_cache: requests.cached_bytes,
            elapsed: spared.elapsed,
        }
    }

    /// Drains and ends it.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.0.stop().await
    }
}
