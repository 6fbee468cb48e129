//! A TCP proxy between forebay and an upstream, to cut, delay and silence the way in between.
//!
//! It knows nothing of HTTP or TLS, so it stands in front of the scripted server and of a real kube-apiserver alike.

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
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::log::TimedOut;

/// Size of the pieces data passes in.
const PIECE: usize = 64 * 1024;

/// Pieces on their way per direction, while they are delayed.
const IN_FLIGHT: usize = 256;

/// A gate on a port of 127.0.0.1. It closes, and drops its connections, when dropped.
pub struct Gate {
    shared: Arc<Shared>,
    addr: SocketAddr,
    stop: CancellationToken,
}

/// What goes on at the gate; changes apply to open connections too.
#[derive(Clone, Copy, Debug, Default)]
struct Mode {
    delay: Duration,
    black_hole: bool,
    refuse: bool,
}

struct Shared {
    target: Mutex<SocketAddr>,
    mode: watch::Sender<Mode>,
    /// Cancelled and replaced by each cut.
    cut: Mutex<CancellationToken>,
    open: watch::Sender<usize>,
    attempts: AtomicU64,
    accepted: AtomicU64,
    bytes: [AtomicU64; 2],
}

/// Counts a connection as open while it lives.
struct Open<'a>(&'a watch::Sender<usize>);

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
            mode: watch::Sender::new(Mode::default()),
            cut: Mutex::new(CancellationToken::new()),
            open: watch::Sender::new(0),
            attempts: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            bytes: Default::default(),
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
        self.shared.mode.send_modify(|m| m.delay = by);
    }

    /// Resets all open connections. New ones pass.
    pub fn cut(&self) {
        std::mem::take(&mut *self.shared.cut.lock()).cancel();
    }

    /// While on, connections stay open (new ones too) and whatever is sent, in either direction, vanishes.
    pub fn black_hole(&self, on: bool) {
        self.shared.mode.send_modify(|m| m.black_hole = on);
    }

    /// While on, new connections are reset at once. Open ones go on.
    pub fn refuse(&self, on: bool) {
        self.shared.mode.send_modify(|m| m.refuse = on);
    }

    /// Sends new connections somewhere else: another server at the same address.
    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
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
        let [up, down] = &self.shared.bytes;
        (up.load(Ordering::Relaxed), down.load(Ordering::Relaxed))
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
        if shared.mode.borrow().refuse {
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
    async fn pass(&self, client: TcpStream) {
        self.open.send_modify(|n| *n += 1);
        let _open = Open(&self.open);
        let cut = self.cut.lock().clone();
        let target = *self.target.lock();
        let mut server = None;
        let passing = async {
            // While it swallows everything, it swallows the connection attempt too.
            let mut mode = self.mode.subscribe();
            if mode.wait_for(|m| !m.black_hole).await.is_err() {
                return;
            }
            let Ok(stream) = TcpStream::connect(target).await else { return };
            let stream = server.insert(stream);
            // Only latency depends on it.
            let _ = (client.set_nodelay(true), stream.set_nodelay(true));
        };
        let was_cut = cut.run_until_cancelled(passing).await.is_none();
        let Some(mut server) = server.filter(|_| !was_cut) else {
            let _ = client.set_zero_linger();
            return;
        };
        let mut client = client;
        let [up, down] = &self.bytes;
        let was_cut = {
            let (client_read, client_write) = client.split();
            let (server_read, server_write) = server.split();
            let both = async {
                tokio::join!(self.copy(client_read, server_write, up), self.copy(server_read, client_write, down))
            };
            cut.run_until_cancelled(both).await.is_none()
        };
        if was_cut {
            // If it fails the connections are closed instead of reset.
            let _ = (client.set_zero_linger(), server.set_zero_linger());
        }
    }

    /// Reads and writes apart, so that a delay shifts a stream in time and does not throttle it.
    async fn copy(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, count: &AtomicU64) {
        let (tx, mut rx) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
        let reading = async move {
            let mut buffer = vec![0; PIECE];
            loop {
                let n = from.read(&mut buffer).await.unwrap_or(0);
                let mode = *self.mode.borrow();
                if mode.black_hole && n > 0 {
                    continue;
                }
                if mode.black_hole {
                    // The end vanishes as well: the other side learns it when the hole closes.
                    let _ = self.mode.subscribe().wait_for(|m| !m.black_hole).await;
                }
                if n == 0 || tx.send((Instant::now() + mode.delay, buffer[..n].to_vec())).await.is_err() {
                    return;
                }
            }
        };
        let writing = async move {
            while let Some((due, bytes)) = rx.recv().await {
                sleep_until(due).await;
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
                count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            // The other side may be gone already.
            let _ = to.shutdown().await;
        };
        tokio::join!(reading, writing);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// A server that answers every byte with the byte itself and `mark`.
    async fn echo(mark: u8) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut one = [0];
                    while stream.read_exact(&mut one).await.is_ok() && stream.write_all(&[one[0], mark]).await.is_ok() {
                    }
                });
            }
        });
        addr
    }

    async fn ask(stream: &mut TcpStream) -> io::Result<u8> {
        stream.write_all(b"x").await?;
        let mut two = [0; 2];
        timeout(LIMIT, stream.read_exact(&mut two)).await??;
        assert_eq!(two[0], b'x');
        Ok(two[1])
    }

    #[tokio::test]
    async fn passes_retargets_and_counts() {
        let gate = Gate::start(echo(b'1').await).await.unwrap();
        let mut first = TcpStream::connect(gate.addr()).await.unwrap();
        assert_eq!(ask(&mut first).await.unwrap(), b'1');
        gate.retarget(echo(b'2').await);
        let mut second = TcpStream::connect(gate.addr()).await.unwrap();
        assert_eq!(ask(&mut second).await.unwrap(), b'2');
        assert_eq!(ask(&mut first).await.unwrap(), b'1', "an open connection keeps its target");
        assert_eq!((gate.connections(), gate.attempts(), gate.accepted()), (2, 2, 2));
        assert_eq!(gate.bytes(), (3, 6));
        drop(first);
        gate.wait_for(1, LIMIT).await.unwrap();
    }

    #[tokio::test]
    async fn a_cut_resets_open_connections_only() {
        let gate = Gate::start(echo(b'1').await).await.unwrap();
        let mut stream = TcpStream::connect(gate.addr()).await.unwrap();
        ask(&mut stream).await.unwrap();
        gate.cut();
        let read = timeout(LIMIT, stream.read_u8()).await.unwrap();
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
        gate.wait_for(0, LIMIT).await.unwrap();
        assert_eq!(ask(&mut TcpStream::connect(gate.addr()).await.unwrap()).await.unwrap(), b'1');
    }

    #[tokio::test]
    async fn refused_connections_are_attempts() {
        let gate = Gate::start(echo(b'1').await).await.unwrap();
        gate.refuse(true);
        let asked = match TcpStream::connect(gate.addr()).await {
            Ok(mut stream) => ask(&mut stream).await,
            Err(error) => Err(error),
        };
        asked.unwrap_err();
        assert_eq!((gate.attempts(), gate.accepted()), (1, 0));
        gate.refuse(false);
        ask(&mut TcpStream::connect(gate.addr()).await.unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn a_black_hole_swallows_and_keeps_the_connection() {
        let gate = Gate::start(echo(b'1').await).await.unwrap();
        let mut stream = TcpStream::connect(gate.addr()).await.unwrap();
        ask(&mut stream).await.unwrap();
        gate.black_hole(true);
        stream.write_all(b"x").await.unwrap();
        let silence = timeout(Duration::from_millis(50), stream.read_u8()).await;
        assert!(silence.is_err(), "nothing comes back, and no end either");
        gate.black_hole(false);
        assert_eq!(ask(&mut stream).await.unwrap(), b'1', "what was swallowed stays away, the rest passes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_applies_to_both_directions() {
        let gate = Gate::start(echo(b'1').await).await.unwrap();
        let mut stream = TcpStream::connect(gate.addr()).await.unwrap();
        gate.delay(Duration::from_millis(500));
        let start = tokio::time::Instant::now();
        ask(&mut stream).await.unwrap();
        assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    }
}
