//! The gate in front of an echoing server.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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
                while stream.read_exact(&mut one).await.is_ok() && stream.write_all(&[one[0], mark]).await.is_ok() {}
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

#[tokio::test]
async fn a_pause_keeps_what_is_sent() {
    let gate = Gate::start(echo(b'1').await).await.unwrap();
    let mut stream = TcpStream::connect(gate.addr()).await.unwrap();
    assert_eq!(ask(&mut stream).await.unwrap(), b'1');
    gate.pause(true);
    stream.write_all(b"x").await.unwrap();
    let silence = timeout(Duration::from_millis(50), stream.read_u8()).await;
    assert!(silence.is_err(), "nothing comes back");
    gate.pause(false);
    let mut two = [0; 2];
    timeout(LIMIT, stream.read_exact(&mut two)).await.unwrap().unwrap();
    assert_eq!(&two, b"x1", "it was only late");
}

#[tokio::test(start_paused = true)]
async fn a_throttle_lets_so_much_pass_in_a_second() {
    let gate = Gate::start(echo(b'1').await).await.unwrap();
    gate.throttle(Some(10));
    let mut stream = TcpStream::connect(gate.addr()).await.unwrap();
    let start = tokio::time::Instant::now();
    for _ in 0..20 {
        ask(&mut stream).await.unwrap();
    }
    // 20 bytes there and, overlapping with them, 40 back.
    assert!(start.elapsed() >= Duration::from_secs(3), "{:?}", start.elapsed());
    gate.throttle(None);
    ask(&mut stream).await.unwrap();
}

#[tokio::test]
async fn one_connection_is_treated_apart() {
    let gate = Gate::start(echo(b'1').await).await.unwrap();
    let mut streams = Vec::new();
    for n in 1..=3 {
        let mut stream = TcpStream::connect(gate.addr()).await.unwrap();
        ask(&mut stream).await.unwrap();
        gate.wait_for(n, LIMIT).await.unwrap();
        streams.push(stream);
    }
    let links = gate.links();
    assert_eq!((links.len(), links[1].bytes()), (3, (1, 2)));
    links[1].black_hole(true);
    streams[1].write_all(b"x").await.unwrap();
    links[2].cut();
    assert_eq!(ask(&mut streams[0]).await.unwrap(), b'1');
    assert_eq!(streams[2].read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let silence = timeout(Duration::from_millis(50), streams[1].read_u8()).await;
    assert!(silence.is_err(), "swallowed");
    links[1].black_hole(false);
    assert_eq!(ask(&mut streams[1]).await.unwrap(), b'1');
    gate.wait_for(2, LIMIT).await.unwrap();
    assert_eq!(gate.links().len(), 2);
}
