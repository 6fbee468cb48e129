//! A TCP proxy between forebay and an upstream, to cut, delay, throttle, pause and silence the way in between.
//!
//! It knows nothing of HTTP or TLS, so it stands in front of the scripted server and of a real kube-apiserver alike. What
//! is said to the [`Gate`] holds for all its connections, open and new; a single one is spoken to through its [`Link`].

mod link;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::log::TimedOut;
use link::{Control, Course, Mode};

pub use link::Link;

/// A gate on a port of 127.0.0.1. It closes, and drops its connections, when dropped.
pub struct Gate {
    shared: Arc<Shared>,
    addr: SocketAddr,
    stop: CancellationToken,
}

struct Shared {
    target: Mutex<SocketAddr>,
    /// What holds for all connections.
    all: Control,
    refuse: watch::Sender<bool>,
    links: Mutex<Vec<Arc<link::State>>>,
    open: watch::Sender<usize>,
    attempts: AtomicU64,
    accepted: AtomicU64,
    bytes: Arc<[AtomicU64; 2]>,
}

/// Counts a connection as open, and lists it, while it lives.
struct Open<'a> {
    shared: &'a Shared,
    state: Arc<link::State>,
}

// === impl Gate ===

impl Gate {
    /// Opens a gate in front of `target`.
    ///
    /// # Errors
    /// No port on 127.0.0.1.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            all: Control::default(),
            refuse: watch::Sender::new(false),
            links: Mutex::default(),
            open: watch::Sender::new(0),
            attempts: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            bytes: Arc::default(),
        });
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(accept(listener, shared.clone(), stop.clone())));
        Ok(Self { shared, addr, stop })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Delivers data this much later, in both directions; zero turns it off. Throughput stays as it is.
    pub fn delay(&self, by: Duration) {
        self.shared.all.change(|mode| mode.delay = by);
    }

    /// Lets this many bytes a second pass, in each direction of each connection; `None`: as many as come.
    pub fn throttle(&self, bytes_per_second: Option<u32>) {
        self.shared.all.change(|mode| mode.throttle = bytes_per_second);
    }

    /// While on, connections stay open and nothing is read or delivered; nothing is lost either.
    pub fn pause(&self, on: bool) {
        self.shared.all.change(|mode| mode.pause = on);
    }

    /// While on, connections stay open (new ones too) and whatever is sent, in either direction, vanishes.
    pub fn black_hole(&self, on: bool) {
        self.shared.all.change(|mode| mode.black_hole = on);
    }

    /// Resets all open connections. New ones pass.
    pub fn cut(&self) {
        self.shared.all.cut();
    }

    /// While on, new connections are reset at once. Open ones go on.
    pub fn refuse(&self, on: bool) {
        self.shared.refuse.send_replace(on);
    }

    /// Sends new connections somewhere else: another server at the same address.
    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// The open connections, oldest first.
    pub fn links(&self) -> Vec<Link> {
        self.shared.links.lock().iter().cloned().map(Link::new).collect()
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        *self.shared.open.borrow()
    }

    /// How many connections were ever tried, refused ones included.
    pub fn attempts(&self) -> u64 {
        self.shared.attempts.load(Ordering::Relaxed)
    }

    /// How many connections were ever let in.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Bytes passed to the target, and bytes passed back.
    pub fn bytes(&self) -> (u64, u64) {
        link::read(&self.shared.bytes)
    }

    /// Waits until exactly `n` connections are open.
    ///
    /// # Errors
    /// [`TimedOut`] after `limit`.
    pub async fn wait_for(&self, n: usize, limit: Duration) -> Result<(), TimedOut> {
        let mut open = self.shared.open.subscribe();
        let reached = timeout(limit, open.wait_for(|now| *now == n)).await.is_ok_and(|r| r.is_ok());
        if reached { Ok(()) } else { Err(TimedOut { found: self.connections(), wanted: n, after: limit }) }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors, most likely: there will be some again.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        shared.attempts.fetch_add(1, Ordering::Relaxed);
        if *shared.refuse.borrow() {
            // If it fails the connection is closed instead of reset.
            let _ = client.set_zero_linger();
            continue;
        }
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let shared = shared.clone();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move { shared.pass(client).await }));
    }
}

// === impl Shared ===

impl Shared {
    async fn pass(&self, mut client: TcpStream) {
        let state = Arc::new(link::State::default());
        self.links.lock().push(state.clone());
        self.open.send_modify(|n| *n += 1);
        let course = Course::new(&self.all, &state, self.bytes.clone());
        let _open = Open { shared: self, state };
        let target = *self.target.lock();
        let mut server = None;
        let connecting = async {
            // While it swallows everything, it swallows the connection attempt too.
            course.until(|mode: Mode| !mode.black_hole && !mode.pause).await;
            let Ok(stream) = TcpStream::connect(target).await else { return };
            // Only latency depends on it.
            let _ = (client.set_nodelay(true), stream.set_nodelay(true));
            server = Some(stream);
        };
        let was_cut = course.unless_cut(connecting).await.is_none();
        let Some(mut server) = server.filter(|_| !was_cut) else {
            // If it fails the connection is closed instead of reset, here and below.
            let _ = client.set_zero_linger();
            return;
        };
        if course.unless_cut(course.copy_both(&mut client, &mut server)).await.is_none() {
            let _ = (client.set_zero_linger(), server.set_zero_linger());
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.links.lock().retain(|state| !Arc::ptr_eq(state, &self.state));
        self.shared.open.send_modify(|n| *n -= 1);
    }
}
