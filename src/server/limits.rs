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
    /// From accept to the end of the TLS handshake, and from there to the first bytes of HTTP/2.
    pub handshake_timeout: Duration,
    /// From the first byte of a request's head to its last.
    pub header_timeout: Duration,
    /// Bytes of a request's head.
    pub max_header_bytes: u32,
}

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
            handshake_timeout: config.handshake_timeout,
            header_timeout: config.header_timeout,
            max_header_bytes: config.max_header_bytes,
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
