//! The credentials in force, and how they are replaced: token files, certificates and keys, the CA, the kubeconfig
//! itself and what an exec plugin gives, without a restart and without a request that fails for it.
//!
//! ```text
//! every few seconds: a file has another content ─┐
//! a plugin's credential is about to expire ──────┼─> everything is read anew -> the same: nothing happens
//! upstream answered 401 or refused a handshake ──┘                            -> others: in force from the next request on
//!                                                                            -> unreadable: the old ones stay
//! ```
//!
//! Files are compared by content: a kubelet swaps symlinks, editors write anew, and times lie. The server, the proxy to
//! it and the context are those of the start: another server would be another cluster, whose objects are not the ones that
//! are held. Nothing read here reaches a log.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use super::{
    Metrics,
    credentials::Credentials,
    identity::{Error, Identity},
};

/// Files are looked at this often: a token is in use within seconds of its arrival.
const LOOK: Duration = Duration::from_secs(2);

/// Nothing is read more often than this, however short-lived it is and however many requests are refused.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// A plugin costs more, and may bother somebody.
const MIN_PLUGIN_INTERVAL: Duration = Duration::from_secs(10);

/// After failures, a plugin is given this much rest at most.
const MAX_PLUGIN_INTERVAL: Duration = Duration::from_secs(60);

/// Nobody is there to answer what a plugin may ask.
const PLUGIN_LIMIT: Duration = Duration::from_secs(60);

/// How long a request that was refused waits for other credentials.
const PATIENCE: Duration = Duration::from_secs(10);

/// The credentials in force.
#[derive(Debug)]
pub(super) struct Keyring {
    current: ArcSwap<Credentials>,
    /// Upstream has refused what is in force.
    doubted: Notify,
    /// Counts the answers to that.
    answered: watch::Sender<u64>,
}

/// Keeps them current.
#[derive(Debug)]
pub struct Renewal {
    keyring: Arc<Keyring>,
    identity: Identity,
    metrics: Metrics,
    /// The files whose contents are in force, and what tells those from others.
    files: Vec<PathBuf>,
    print: u64,
    /// What is in force expires about now.
    due: Option<Instant>,
    /// When upstream's refusals last made us read.
    doubted_at: Option<Instant>,
    /// The last failure, which is told once, and how many of them there were.
    failure: Option<String>,
    failures: u32,
}

// === impl Keyring ===

impl Keyring {
    /// Reads them for the first time. A plugin may take its time: it may ask somebody.
    pub(super) async fn new(identity: Identity, metrics: Metrics) -> Result<(Arc<Self>, Renewal), Error> {
        let print = print(&identity.files);
        let credentials = Credentials::resolve(&identity, None).await?;
        let due = due(credentials.lifetime);
        let (current, answered) = (ArcSwap::from_pointee(credentials), watch::Sender::new(0));
        let keyring = Arc::new(Self { current, doubted: Notify::new(), answered });
        let renewal = Renewal {
            keyring: keyring.clone(),
            files: identity.files.clone(),
            identity,
            metrics,
            print,
            due,
            doubted_at: None,
            failure: None,
            failures: 0,
        };
        Ok((keyring, renewal))
    }

    /// The credentials in force.
    pub(super) fn current(&self) -> Arc<Credentials> {
        self.current.load_full()
    }

    /// Waits for others than those of this generation, which upstream has refused. False: there are none, for now.
    pub(super) async fn renew(&self, generation: u64) -> bool {
        let mut answered = self.answered.subscribe();
        if self.current.load().generation == generation {
            self.doubt();
            // Too late is as good as no.
            let _ = timeout(PATIENCE, answered.changed()).await;
        }
        self.current.load().generation != generation
    }

    /// Upstream has refused what is in force, and whoever was refused can't wait.
    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }
}

// === impl Renewal ===

impl Renewal {
    /// Runs for ever.
    pub async fn run(mut self) {
        loop {
            let look = Instant::now() + LOOK;
            let keyring = self.keyring.clone();
            tokio::select! {
                () = sleep_until(self.due.map_or(look, |due| due.min(look))) => {
                    let expiring = self.due.is_some_and(|due| due <= Instant::now());
                    if expiring || print(&self.files) != self.print {
                        self.read().await;
                    }
                }
                () = keyring.doubted.notified() => {
                    let least = if self.identity.has_plugin() { MIN_PLUGIN_INTERVAL } else { MIN_INTERVAL };
                    // Files that have changed are looked at however lately somebody else was refused.
                    if self.doubted_at.is_none_or(|at| at.elapsed() >= least) || print(&self.files) != self.print {
                        self.read().await;
                        self.doubted_at = Some(Instant::now());
                    }
                    keyring.answered.send_modify(|answers| *answers += 1);
                }
            }
        }
    }

    /// Reads everything anew.
    async fn read(&mut self) {
        // Taken first: what changes in between is seen the next time.
        let print = print(&self.files);
        let outcome = match self.resolve().await {
            Ok((identity, credentials)) => {
                // Other files have not been looked at yet: once more.
                self.print = if identity.files == self.files { print } else { 0 };
                self.files.clone_from(&identity.files);
                self.identity = identity;
                self.due = due(credentials.lifetime);
                (self.failure, self.failures) = (None, 0);
                match credentials.after(&self.keyring.current.load()) {
                    Some(credentials) => {
                        info!("upstream credentials have changed");
                        self.keyring.current.store(Arc::new(credentials));
                        "changed"
                    }
                    None => "unchanged",
                }
            }
            Err(error) => {
                let error = error.to_string();
                if self.failure.as_ref() != Some(&error) {
                    warn!(%error, "upstream credentials can't be read anew; those in force are kept");
                    self.failure = Some(error);
                }
                self.failures += 1;
                let rest = MIN_PLUGIN_INTERVAL.saturating_mul(self.failures).min(MAX_PLUGIN_INTERVAL);
                self.due = self.due.map(|_| Instant::now() + rest);
                "failed"
            }
        };
        self.metrics.reloaded(outcome);
    }

    async fn resolve(&self) -> Result<(Identity, Credentials), Error> {
        let identity = self.identity.reload().await?;
        let credentials = Credentials::resolve(&identity, Some(PLUGIN_LIMIT)).await?;
        Ok((identity, credentials))
    }
}

fn due(lifetime: Option<Duration>) -> Option<Instant> {
    lifetime.map(|lifetime| Instant::now() + lifetime.max(MIN_INTERVAL))
}

/// Of all files, whatever state they are in.
fn print(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).ok().hash(&mut hasher);
    }
    hasher.finish()
}
