//! The configuration: read once, into types that hold only valid values, never changed after.
//!
//! ```text
//! defaults < file (--config) < environment (FOREBAY_*) < flags  --raw-->  text with its origin  --load-->  Config
//! ```
//!
//! All problems are reported together. Nothing here reads the process environment or the command line: both are given,
//! so tests can give their own. A [`Config`] holds paths of secrets, never secrets, and may be logged and served.

mod cgroup;
mod defaults;
mod error;
mod load;
mod parse;
mod raw;
mod resources;
mod settings;
#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, SocketAddr},
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use serde::{Serialize, Serializer};

pub use error::{Errors, Invalid, Problem};
pub use load::load;
pub use raw::{Environment, Flags, Origin};
pub use resources::{NotAResource, ResourceSelector};

/// The effective configuration. Serialises with the keys of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// Upstream's kubeconfig; `None`: `$KUBECONFIG`, `~/.kube/config`, then in-cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Context in it; `None`: its current-context.
    pub context: Option<String>,
    /// Limit for a connection to upstream, TLS included; above zero.
    #[serde(serialize_with = "go_duration")]
    pub connect_timeout: Duration,
    /// Limit for the response head of a forwarded request that is not long-running; above zero.
    #[serde(serialize_with = "go_duration")]
    pub request_timeout: Duration,
    /// `limit` of a page.
    pub list_page_size: NonZeroU32,
    /// Initial lists at the same time.
    pub max_initial_lists: NonZeroUsize,
    /// Largest object or watch frame, in bytes.
    pub max_frame_bytes: usize,
    /// Where clients connect.
    pub bind_address: Loopback,
    /// HTTPS port; 0 is the kernel's choice.
    pub secure_port: u16,
    /// Where the clients' kubeconfig is written.
    pub write_kubeconfig: PathBuf,
    /// Client connections at the same time.
    pub max_connections: NonZeroUsize,
    /// Streams at the same time on one HTTP/2 connection.
    pub max_concurrent_streams: NonZeroU32,
    /// Limit for a client's TLS handshake; above zero.
    #[serde(serialize_with = "go_duration")]
    pub handshake_timeout: Duration,
    /// Limit for a request's head once it has begun; above zero.
    #[serde(serialize_with = "go_duration")]
    pub header_timeout: Duration,
    /// Largest head of a request, in bytes.
    pub max_header_bytes: u32,
    /// Resources cached from the start.
    pub preload: Vec<ResourceSelector>,
    /// Resources never cached. Shares nothing with `preload`.
    pub never: Vec<ResourceSelector>,
    /// How long a read may wait for its store to sync; zero: not at all.
    #[serde(serialize_with = "go_duration")]
    pub hold_timeout: Duration,
    /// What ends a read whose hold timed out.
    pub on_hold_timeout: OnHoldTimeout,
    /// Held reads at the same time; zero: none.
    pub max_holds: usize,
    /// How long a read may wait for a fence.
    #[serde(serialize_with = "go_duration")]
    pub fence_timeout: Duration,
    /// How old an answer from the cache may be while upstream can be reached; above zero.
    #[serde(serialize_with = "go_duration")]
    pub max_staleness: Duration,
    /// Memory all caches may take together, in bytes; `None`: no limit.
    pub memory_budget: Option<u64>,
    /// After how long without a read a cache is dropped; zero: never.
    #[serde(serialize_with = "go_duration")]
    pub idle_timeout: Duration,
    /// Plain HTTP for health and metrics.
    pub admin_address: SocketAddr,
    /// From the start of the drain to its end.
    #[serde(serialize_with = "go_duration")]
    pub shutdown_grace_period: Duration,
    /// From SIGTERM to the start of the drain.
    #[serde(serialize_with = "go_duration")]
    pub shutdown_delay_duration: Duration,
    /// Log verbosity, 0 to 10.
    pub v: u8,
    /// Log format.
    pub logging_format: TextOrJson,
}

/// A loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Loopback(IpAddr);

/// What ends a read whose hold timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnHoldTimeout {
    /// 503 with `Retry-After`.
    Reject,
    /// Ask upstream.
    Forward,
}

/// Log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TextOrJson {
    /// One line an event, klog's shape.
    Text,
    /// One JSON object an event.
    Json,
}

// === impl Config ===

impl Config {
    /// Where the proxy listens.
    pub fn secure_address(&self) -> SocketAddr {
        SocketAddr::new(self.bind_address.ip(), self.secure_port)
    }
}

// === impl Loopback ===

impl Loopback {
    /// `None` if `ip` is not a loopback address.
    pub fn new(ip: IpAddr) -> Option<Self> {
        ip.is_loopback().then_some(Self(ip))
    }

    /// The address.
    pub fn ip(self) -> IpAddr {
        self.0
    }
}

/// Parses Go's duration syntax (`60s`, `1m30s`), for flags that belong to a command and not to the configuration.
///
/// # Errors
///
/// What was expected instead.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    parse::duration(text)
}

/// Prints a duration as Go does: `1m0s`.
pub fn format_duration(duration: Duration) -> String {
    parse::format_duration(duration)
}

fn go_duration<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&parse::format_duration(*duration))
}
