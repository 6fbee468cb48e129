//! What one client, or all together, may take before anyone has been authenticated.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Config;

/// Bounds of the listener and of its connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at the same time, handshakes included.
    pub max_connections: NonZeroUsize,
    /// Streams at the same time on one HTTP/2 connection.
    pub max_concurrent_streams: NonZeroU32,
    /// From accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
}

/// Go's client takes three round trips and no thought for a handshake; a peer that takes longer is not one.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Counts connections.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    semaphore: Arc<Semaphore>,
}

/// One connection's place; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

// === impl Limits ===

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        Self {
            max_connections: config.max_connections,
            max_concurrent_streams: config.max_concurrent_streams,
            handshake_timeout: HANDSHAKE_TIMEOUT,
        }
    }
}

// === impl Connections ===

impl Connections {
    pub(super) fn new(limits: &Limits) -> Self {
        let places = limits.max_connections.get().min(Semaphore::MAX_PERMITS);
        Self { semaphore: Arc::new(Semaphore::new(places)) }
    }

    /// Is there no place left?
    pub(super) fn is_full(&self) -> bool {
        self.semaphore.available_permits() == 0
    }

    /// Waits for a place. Cancel safe.
    pub(super) async fn place(&self) -> Place {
        // The semaphore is never closed; were it, an unlimited connection would be better than none.
        Place { _permit: Arc::clone(&self.semaphore).acquire_owned().await.ok() }
    }
}
