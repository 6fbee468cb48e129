//! Pools of connections to upstream, in kinds that never share one:
//!
//! - `forward`: HTTP/1.1 under forebay's identity, for what clients send. A connection per request in flight: upgrades
//!   work, no stream cap, and a slow reader holds up nobody else.
//! - `verbatim`: the same without our credential, the client certificate included, for callers that bring their own.
//! - `bulk`: HTTP/2 with pings, for our own lists, watches and probes. A few connections, because an API server caps
//!   the streams of one (100 by default) and the pool never opens a second by itself.
//!
//! The pools repeat by themselves what a connection has died under before the first byte of it was written (`hyper` gives
//! such a request back), writes as well: nothing has been sent. They never repeat anything else.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash},
    sync::Arc,
    time::Duration,
};

use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};

use super::{
    body::RequestBody,
    connect::Connector,
    credentials::{Credentials, Showing},
    dial::Dial,
    keyring::Keyring,
    liveness::{Listening, Reach},
};

/// Connections for our own lists and watches. Four hold some 400 watches where upstream allows 100 streams each.
const BULK_CONNECTIONS: usize = 4;

/// A ping is due after a silence of at most this, and ends the connection when it is not answered within the timeout:
/// half-open links are found within 15 s.
const PING_INTERVAL: Duration = Duration::from_secs(3);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(8);

/// Below the 90 s for which a Go server's peers keep idle connections, so that we close first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

const IDLE_CONNECTIONS: usize = 64;

/// Upstream may answer with many `Warning` lines; hyper's default is 100 headers.
const MAX_HEADERS: usize = 1024;

pub(super) type Pool = legacy::Client<Listening<Connector>, RequestBody>;

/// All connections that were made with the same credentials. Requests in flight keep theirs when others take its place.
#[derive(Debug)]
pub(super) struct Lanes {
    /// [`Credentials::connections`].
    pub(super) connections: u64,
    pub(super) forward: Lane,
    pub(super) verbatim: Lane,
    bulk: Vec<Pool>,
}

/// How connections are made.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) dial: Dial,
    /// For each step.
    pub(super) limit: Duration,
    /// A quiet connection is pinged several times within this.
    pub(super) max_staleness: Duration,
    pub(super) reach: Reach,
}

/// One kind of connections for clients' requests.
#[derive(Debug)]
pub(super) struct Lane {
    /// Connections are used again.
    pub(super) pooled: Pool,
    /// Each request has its own, as a repeated one must: among those that are kept the next may be dead as well.
    pub(super) fresh: Pool,
}

// === impl Lanes ===

impl Lanes {
    /// No connection is open yet.
    pub(super) fn new(credentials: &Credentials, keyring: &Arc<Keyring>, making: &Making) -> Self {
        let pool = |showing, idle| {
            let Making { dial, limit, max_staleness, reach } = making;
            let connector = Connector { dial: dial.clone(), keyring: keyring.clone(), showing, limit: *limit };
            pool(Listening::new(connector, reach.clone()), idle, PING_INTERVAL.min(*max_staleness / 3))
        };
        let lane = |showing| Lane { pooled: pool(showing, IDLE_CONNECTIONS), fresh: pool(showing, 0) };
        Self {
            connections: credentials.connections,
            forward: lane(Showing::Own),
            verbatim: lane(Showing::Nobody),
            bulk: (0..BULK_CONNECTIONS).map(|_| pool(Showing::OwnBest, IDLE_CONNECTIONS)).collect(),
        }
    }

    /// The connection that `key` hashes to.
    pub(super) fn bulk(&self, key: &impl Hash) -> &Pool {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key) as usize;
        &self.bulk[hash % self.bulk.len()]
    }
}

fn pool(connector: Listening<Connector>, idle: usize, ping: Duration) -> Pool {
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(idle)
        .retry_canceled_requests(true)
        .set_host(false)
        .http1_max_headers(MAX_HEADERS)
        .http2_initial_stream_window_size(4 << 20)
        .http2_initial_connection_window_size(16 << 20)
        .http2_max_frame_size(256 << 10)
        .http2_max_header_list_size(1 << 20)
        .http2_keep_alive_interval(ping)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector)
}
