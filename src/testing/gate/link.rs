//! One connection through the gate, and what may be done to it.
//!
//! Two controls hold for each connection: the gate's, for all of them, and its own. The stronger wins: either may pause,
//! swallow or cut, the longer delay and the smaller throughput hold.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// Size of the pieces data passes in.
const PIECE: usize = 64 * 1024;

/// Pieces on their way per direction, while they are delayed.
const IN_FLIGHT: usize = 256;

/// An open connection. The handle does not keep it open.
pub struct Link {
    state: Arc<State>,
}

/// What goes on; changes apply at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mode {
    pub(super) delay: Duration,
    pub(super) throttle: Option<u32>,
    pub(super) pause: bool,
    pub(super) black_hole: bool,
}

/// Changes a mode, and cuts.
#[derive(Default)]
pub(super) struct Control {
    mode: watch::Sender<Mode>,
    /// Cancelled and replaced by each cut.
    cut: Mutex<CancellationToken>,
}

/// What is known of one connection.
#[derive(Default)]
pub(super) struct State {
    own: Control,
    bytes: [AtomicU64; 2],
}

/// One connection's way: both controls as it sees them.
pub(super) struct Course {
    all: watch::Receiver<Mode>,
    own: watch::Receiver<Mode>,
    cuts: [CancellationToken; 2],
    state: Arc<State>,
    /// The gate's counters.
    total: Arc<[AtomicU64; 2]>,
}

// === impl Link ===

impl Link {
    pub(super) fn new(state: Arc<State>) -> Self {
        Self { state }
    }

    /// As [`super::Gate::delay`], for this connection.
    pub fn delay(&self, by: Duration) {
        self.state.own.change(|mode| mode.delay = by);
    }

    /// As [`super::Gate::throttle`], for this connection.
    pub fn throttle(&self, bytes_per_second: Option<u32>) {
        self.state.own.change(|mode| mode.throttle = bytes_per_second);
    }

    /// As [`super::Gate::pause`], for this connection.
    pub fn pause(&self, on: bool) {
        self.state.own.change(|mode| mode.pause = on);
    }

    /// As [`super::Gate::black_hole`], for this connection.
    pub fn black_hole(&self, on: bool) {
        self.state.own.change(|mode| mode.black_hole = on);
    }

    /// Resets it.
    pub fn cut(&self) {
        self.state.own.cut();
    }

    /// Bytes passed to the target, and bytes passed back.
    pub fn bytes(&self) -> (u64, u64) {
        read(&self.state.bytes)
    }
}

// === impl Mode ===

impl Mode {
    fn and(self, other: Self) -> Self {
        let throttle = match (self.throttle, other.throttle) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            delay: self.delay.max(other.delay),
            throttle,
            pause: self.pause || other.pause,
            black_hole: self.black_hole || other.black_hole,
        }
    }
}

// === impl Control ===

impl Control {
    pub(super) fn change(&self, change: impl FnOnce(&mut Mode)) {
        self.mode.send_modify(change);
    }

    pub(super) fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }
}

// === impl Course ===

impl Course {
    pub(super) fn new(all: &Control, state: &Arc<State>, total: Arc<[AtomicU64; 2]>) -> Self {
        Self {
            all: all.mode.subscribe(),
            own: state.own.mode.subscribe(),
            cuts: [all.cut.lock().clone(), state.own.cut.lock().clone()],
            state: state.clone(),
            total,
        }
    }

    /// Waits until what goes on is as wanted. For ever, once the gate is gone: then the connection ends anyway.
    pub(super) async fn until(&self, wanted: impl Fn(Mode) -> bool) {
        let (mut all, mut own) = (self.all.clone(), self.own.clone());
        loop {
            let mode = all.borrow_and_update().and(*own.borrow_and_update());
            if wanted(mode) {
                return;
            }
            let changed = tokio::select! {
                changed = all.changed() => changed,
                changed = own.changed() => changed,
            };
            if changed.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// `None` if the connection was cut meanwhile.
    pub(super) async fn unless_cut<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let [all, own] = &self.cuts;
        all.run_until_cancelled(own.run_until_cancelled(work)).await.flatten()
    }

    pub(super) async fn copy_both(&self, client: &mut TcpStream, server: &mut TcpStream) {
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        tokio::join!(self.copy(client_read, server_write, 0), self.copy(server_read, client_write, 1));
    }

    fn mode(&self) -> Mode {
        self.all.borrow().and(*self.own.borrow())
    }

    /// Reads and writes apart, so that a delay shifts a stream in time and does not throttle it.
    async fn copy(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, direction: usize) {
        let (tx, mut rx) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
        let reading = async move {
            let mut buffer = vec![0; PIECE];
            loop {
                self.until(|mode| !mode.pause).await;
                let n = from.read(&mut buffer).await.unwrap_or(0);
                let mode = self.mode();
                if mode.black_hole && n > 0 {
                    continue;
                }
                if mode.black_hole {
                    // The end vanishes as well: the other side learns it when the hole closes.
                    self.until(|mode| !mode.black_hole).await;
                }
                if n == 0 || tx.send((Instant::now() + mode.delay, buffer[..n].to_vec())).await.is_err() {
                    return;
                }
            }
        };
        let writing = async move {
            while let Some((due, bytes)) = rx.recv().await {
                sleep_until(due).await;
                if self.deliver(&mut to, &bytes, direction).await.is_err() {
                    return;
                }
            }
            self.until(|mode| !mode.pause).await;
            // The other side may be gone already.
            let _ = to.shutdown().await;
        };
        tokio::join!(reading, writing);
    }

    async fn deliver(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        mut bytes: &[u8],
        direction: usize,
    ) -> std::io::Result<()> {
        while !bytes.is_empty() {
            self.until(|mode| !mode.pause).await;
            let rate = self.mode().throttle.map(|rate| rate.max(1) as usize);
            // A tenth of a second's worth at a time, so that a change of mind is felt.
            let (now, later) = bytes.split_at(rate.map_or(bytes.len(), |rate| rate.div_ceil(10).min(bytes.len())));
            to.write_all(now).await?;
            for count in [&self.state.bytes[direction], &self.total[direction]] {
                count.fetch_add(now.len() as u64, Ordering::Relaxed);
            }
            if let Some(rate) = rate {
                sleep(Duration::from_secs_f64(now.len() as f64 / rate as f64)).await;
            }
            bytes = later;
        }
        Ok(())
    }
}

pub(super) fn read(bytes: &[AtomicU64; 2]) -> (u64, u64) {
    let [up, down] = bytes;
    (up.load(Ordering::Relaxed), down.load(Ordering::Relaxed))
}
