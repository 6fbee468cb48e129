//! A closed-loop load over connections that are opened beforehand: each sends its next GET when the answer to the last
//! one is complete. Lean enough (HTTP/1.1 is written and read by hand) that on two cores the server is busy.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use memchr::memmem;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::client::TlsStream;

use crate::target::{Protocol, Target};

/// No measurement may hang longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is read at once. Large bodies come in TLS records of 16 KiB.
const BUFFER: usize = 256 << 10;

/// Open connections to one server.
pub(crate) struct Client {
    authority: String,
    bearer: String,
    connections: Vec<Connection>,
}

/// What is asked, and for how long.
#[derive(Clone)]
pub(crate) struct Load {
    /// Paths, asked in an order that jumps about.
    pub(crate) paths: Arc<[String]>,
    /// Ends at the first answer after this time...
    pub(crate) time: Duration,
    /// ... or after so many on each connection.
    pub(crate) most: usize,
    /// A text that the head of each answer has.
    pub(crate) marker: Option<&'static str>,
    /// Fewest bytes of a body.
    pub(crate) at_least: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) requests: usize,
    pub(crate) elapsed: Duration,
    /// One a request, sorted.
    latencies: Vec<Duration>,
}

enum Connection {
    Http1(Box<Http1>),
    /// One of the requests in flight on a connection.
    Http2(http2::SendRequest<Empty<Bytes>>),
}

struct Http1 {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
}

// === impl Target ===

impl Target {
    /// Opens `connections` connections, with `in_flight` requests each at a time where HTTP/2 allows it.
    pub(crate) async fn open(&self, protocol: Protocol, connections: usize, in_flight: usize) -> Result<Client> {
        let mut open = Vec::new();
        for _ in 0..connections {
            let stream = self.connect(protocol).await?;
            match protocol {
                Protocol::Http1 => {
                    open.push(Connection::Http1(Box::new(Http1 { stream, buffer: vec![0; BUFFER] })));
                }
                Protocol::Http2 => {
                    let sender = handshake(stream).await?;
                    open.extend((0..in_flight).map(|_| Connection::Http2(sender.clone())));
                }
            }
        }
        Ok(Client { authority: self.address.to_string(), bearer: self.bearer.clone(), connections: open })
    }

    /// The answer to one GET over a new HTTP/2 connection, as a stream.
    pub(crate) async fn stream(&self, path: &str) -> Result<Incoming> {
        let mut sender = handshake(self.connect(Protocol::Http2).await?).await?;
        let response = sender.send_request(request(&self.address.to_string(), &self.bearer, path)?).await?;
        ensure!(response.status().is_success(), "GET {path}: {}", response.status());
        Ok(response.into_body())
    }

    /// The body of one GET.
    pub(crate) async fn get(&self, path: &str) -> Result<Bytes> {
        let body = timeout(PATIENCE, async { anyhow::Ok(self.stream(path).await?.collect().await?.to_bytes()) });
        body.await.with_context(|| format!("GET {path}: no answer within {PATIENCE:?}"))?
    }
}

async fn handshake(stream: TlsStream<TcpStream>) -> Result<http2::SendRequest<Empty<Bytes>>> {
    // The windows that forebay asks its own upstream for.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(4 << 20).initial_connection_window_size(16 << 20).max_frame_size(256 << 10);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn request(authority: &str, bearer: &str, path: &str) -> Result<Request<Empty<Bytes>>> {
    let uri = Uri::builder().scheme("https").authority(authority).path_and_query(path).build()?;
    Ok(Request::get(uri).header(header::AUTHORIZATION, bearer).header(header::USER_AGENT, AGENT).body(Empty::new())?)
}

const AGENT: &str = "forebay-bench/1";

// === impl Client ===

impl Client {
    /// Keeps every connection busy until `load` ends.
    pub(crate) async fn run(&mut self, load: &Load) -> Result<Done> {
        let begun = Instant::now();
        let mut workers = JoinSet::new();
        for (n, connection) in self.connections.drain(..).enumerate() {
            workers.spawn(worker(connection, n, self.authority.clone(), self.bearer.clone(), load.clone(), begun));
        }
        let mut done = Done::default();
        while let Some(ended) = timeout(PATIENCE, workers.join_next()).await.context("the load hangs")? {
            let (connection, latencies) = ended??;
            self.connections.push(connection);
            done.latencies.extend(latencies);
        }
        done.elapsed = begun.elapsed();
        done.requests = done.latencies.len();
        done.latencies.sort_unstable();
        Ok(done)
    }
}

async fn worker(
    mut connection: Connection,
    seed: usize,
    authority: String,
    bearer: String,
    load: Load,
    begun: Instant,
) -> Result<(Connection, Vec<Duration>)> {
    let mut latencies = Vec::new();
    let mut sent = begun;
    // Both odd multipliers: every path is asked once before any is asked again, where their number is a power of ten.
    for n in 0..load.most {
        let path = &load.paths[(seed * 611_953 + n * 7_919) % load.paths.len()];
        let bytes = match &mut connection {
            Connection::Http1(http1) => http1.get(&authority, &bearer, path, load.marker).await,
            Connection::Http2(sender) => get(sender, &authority, &bearer, path, load.marker).await,
        };
        let bytes = bytes.with_context(|| format!("GET {path}"))?;
        ensure!(bytes >= load.at_least, "GET {path}: {bytes} bytes, expected at least {}", load.at_least);
        let now = Instant::now();
        latencies.push(now - sent);
        sent = now;
        if now - begun > load.time {
            break;
        }
    }
    Ok((connection, latencies))
}

async fn get(
    sender: &mut http2::SendRequest<Empty<Bytes>>,
    authority: &str,
    bearer: &str,
    path: &str,
    marker: Option<&str>,
) -> Result<usize> {
    let response = sender.send_request(request(authority, bearer, path)?).await?;
    ensure!(response.status().is_success(), "status {}", response.status());
    let marked =
        |marker: &str| response.headers().values().any(|value| value.as_bytes().starts_with(marker.as_bytes()));
    ensure!(marker.is_none_or(marked), "no {marker:?} in the head of the answer");
    let (mut body, mut bytes) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        bytes += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(bytes)
}

// === impl Http1 ===

impl Http1 {
    /// One GET. The body's bytes, those of chunked framing included.
    async fn get(&mut self, authority: &str, bearer: &str, path: &str, marker: Option<&str>) -> Result<usize> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: {authority}\r\nauthorization: {bearer}\r\nuser-agent: {AGENT}\r\n\r\n"
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        let mut filled = 0;
        let head = loop {
            filled += self.read(filled).await?;
            if let Some(end) = memmem::find(&self.buffer[..filled], b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = std::str::from_utf8(&self.buffer[..head])?;
        ensure!(text.starts_with("HTTP/1.1 200 "), "answer {:?}", text.lines().next());
        ensure!(marker.is_none_or(|marker| text.contains(marker)), "no {marker:?} in the head of the answer");
        let mut bytes = filled - head;
        if let Some(length) = content_length(text) {
            while bytes < length {
                bytes += self.read(0).await?;
            }
            ensure!(bytes == length, "{bytes} bytes instead of {length}");
            return Ok(bytes);
        }
        // Chunked. JSON has no raw line ends, so this is the end wherever a read stops with it.
        let mut tail = self.buffer[head.max(filled.saturating_sub(5))..filled].to_vec();
        while !tail.ends_with(b"0\r\n\r\n") {
            let read = self.read(0).await?;
            bytes += read;
            tail.extend_from_slice(&self.buffer[read.saturating_sub(5)..read]);
            tail.drain(..tail.len().saturating_sub(5));
        }
        Ok(bytes)
    }

    async fn read(&mut self, from: usize) -> Result<usize> {
        ensure!(from < self.buffer.len(), "the head of the answer is larger than {BUFFER} bytes");
        let read = self.stream.read(&mut self.buffer[from..]).await?;
        ensure!(read > 0, "the server closed the connection in the middle of an answer");
        Ok(read)
    }
}

fn content_length(head: &str) -> Option<usize> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?.1.trim().parse().ok()
}

// === impl Done ===

impl Done {
    /// Answers a second.
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that this share of the requests stayed within.
    pub(crate) fn within(&self, share: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }
}
