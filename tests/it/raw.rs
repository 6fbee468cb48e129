//! Both ends of the proxy byte by byte: a client that sends exactly what the test writes, and an upstream that answers
//! exactly what it is told to, over plain HTTP/1.1.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    client::Access,
    rig::{Forebay, LIMIT, within},
};

/// The credential of forebay in [`RawUpstream`]'s kubeconfig.
pub(crate) const UPSTREAM_TOKEN: &str = "upstream-token";

/// Serves discovery of nothing by itself; every other request is the test's to answer, each on a connection of its own: an
/// answer that does not close it leaves it to forebay for the next request, which then comes to [`Raw::read_head`].
pub(crate) struct RawUpstream {
    address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Raw<TcpStream>>,
    accepting: JoinHandle<()>,
}

/// One side of a connection: what has come on it, and the way back.
pub(crate) struct Raw<S> {
    stream: S,
    /// Bytes that have come and have not been taken.
    buffer: Vec<u8>,
    /// Start line and headers, without the empty line, once read.
    pub(crate) head: String,
}

/// A client connection to forebay.
pub(crate) type RawClient = Raw<TlsStream<TcpStream>>;

// === impl RawUpstream ===

impl RawUpstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tx, requests) = mpsc::unbounded_channel();
        let accepting = async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream, tx.clone()));
            }
        };
        Self { address, requests, accepting: tokio::spawn(accepting) }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.kubeconfig_with_prefix("")
    }

    /// With a path after the host, as Rancher has it.
    pub(crate) fn kubeconfig_with_prefix(&self, prefix: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: raw\n\
             clusters:\n- name: raw\n  cluster:\n    server: http://{}{prefix}\n\
             contexts:\n- name: raw\n  context:\n    cluster: raw\n    user: raw\n\
             users:\n- name: raw\n  user:\n    token: {UPSTREAM_TOKEN}\n",
            self.address
        )
    }

    /// The next request that is not for discovery.
    pub(crate) async fn next(&mut self) -> Raw<TcpStream> {
        within("a request upstream", self.requests.recv()).await.expect("the upstream runs")
    }

    /// The next request, which comes while `client` waits: an answer instead of it is a failure.
    pub(crate) async fn next_of(&mut self, client: &mut RawClient) -> Raw<TcpStream> {
        tokio::select! {
            biased;
            request = self.next() => request,
            _ = client.try_head() => panic!("answered without upstream: {}\n{}", client.head, client.text()),
        }
    }

    /// Whether no request has come. Only after something that would have followed it.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.requests.try_recv().is_err()
    }
}

impl Drop for RawUpstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers discovery; hands the connection over at the first other request.
async fn serve(stream: TcpStream, tx: mpsc::UnboundedSender<Raw<TcpStream>>) {
    const NOTHING: &str =
        r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[]}"#;
    let mut raw = Raw { stream, buffer: Vec::new(), head: String::new() };
    while raw.try_head().await {
        let own = raw.head.to_ascii_lowercase().contains("\r\nuser-agent: forebay/");
        if !own {
            let _ = tx.send(raw);
            return;
        }
        let known = matches!(raw.target().trim_end_matches('/').rsplit('/').next(), Some("api" | "apis"));
        let (code, body) = if known { ("200 OK", NOTHING) } else { ("404 Not Found", "{}") };
        let length = body.len();
        raw.send(format!(
            "HTTP/1.1 {code}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    }
}

// === impl Raw ===

impl RawClient {
    /// Connects with HTTP/1.1 agreed on.
    pub(crate) async fn connect(access: &Access) -> Self {
        let mut config = access.tls();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let address = access.server.strip_prefix("https://").unwrap();
        let stream = within("a connection", TcpStream::connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = within("a handshake", connecting).await.unwrap();
        Self { stream, buffer: Vec::new(), head: String::new() }
    }

    /// Sends a request with forebay's own token. `rest` are further header lines, each with its end, an empty line and
    /// a body.
    pub(crate) async fn ask(forebay: &Forebay, line: &str, rest: &str) -> Self {
        let mut client = Self::connect(forebay.access()).await;
        client.again(forebay, line, rest).await;
        client
    }

    /// One more request on the same connection.
    pub(crate) async fn again(&mut self, forebay: &Forebay, line: &str, rest: &str) {
        let token = &forebay.access().token;
        self.send(format!("{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{rest}")).await;
    }
}

impl Raw<TcpStream> {
    /// Ends the connection, with a reset or without.
    pub(crate) fn end(self, reset: bool) {
        if reset {
            self.stream.set_zero_linger().unwrap();
        }
    }
}

impl<S: AsyncRead + tokio::io::AsyncWrite + Unpin> Raw<S> {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may have closed already, which the test sees when it reads.
        let _ = within("sending", self.stream.write_all(bytes.as_ref())).await;
        let _ = self.stream.flush().await;
    }

    /// The connection itself. Whatever has come has been taken.
    pub(crate) fn into_stream(self) -> S {
        assert!(self.buffer.is_empty(), "{}", self.text());
        self.stream
    }

    /// Closes this direction.
    pub(crate) async fn shut(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Reads the next head; the answer's status code where it has one.
    pub(crate) async fn read_head(&mut self) -> u16 {
        assert!(self.try_head().await, "the connection ended before a head: {:?}", self.text());
        self.head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
    }

    /// Whether a head came before the end of the connection.
    pub(crate) async fn try_head(&mut self) -> bool {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..at + 4).collect();
                self.head = String::from_utf8_lossy(&head[..at]).into_owned();
                return true;
            }
            if !self.more().await {
                return false;
            }
        }
    }

    /// Reads exactly so many bytes.
    pub(crate) async fn read(&mut self, bytes: usize) -> Vec<u8> {
        while self.buffer.len() < bytes {
            assert!(self.more().await, "the connection ended after {:?}", self.text());
        }
        self.buffer.drain(..bytes).collect()
    }

    /// Reads a chunked body to its end, raw.
    pub(crate) async fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, end) {
                return self.buffer.drain(..at + end.len()).collect();
            }
            assert!(self.more().await, "the connection ended after {:?}", self.text());
        }
    }

    /// Everything until the other side closes.
    pub(crate) async fn read_to_end(&mut self) -> String {
        while self.more().await {}
        self.text()
    }

    /// Whether nothing comes within `pause`: only for what must not come.
    pub(crate) async fn is_silent(&mut self, pause: Duration) -> bool {
        self.buffer.is_empty() && timeout(pause, self.stream.read(&mut [0])).await.is_err()
    }

    /// The request target.
    pub(crate) fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// All values of a header, in order.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Reads what has come; false at the end of the connection, however it ended.
    async fn more(&mut self) -> bool {
        let mut piece = vec![0; 64 << 10];
        let read = timeout(LIMIT, self.stream.read(&mut piece)).await.expect("bytes in time");
        let read = read.unwrap_or(0);
        self.buffer.extend_from_slice(&piece[..read]);
        read > 0
    }
}
