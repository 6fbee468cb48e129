//! `forebay wait`: polls `/readyz` of a running forebay and shows what it waits for.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::Exit;
use crate::config::{Environment, Flags, format_duration, parse_duration};

const PERIOD: Duration = Duration::from_millis(250);

/// For one poll: a healthy admin port answers in a millisecond.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// A line a check; a thousand resources fit many times.
const MAX_BODY_BYTES: usize = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  forebay wait --timeout=2m && ./my-controller
  forebay wait --url=http://10.0.0.7:6481/readyz";

/// Arguments of `wait`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Wait {
    /// How long to wait at most.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
    /// What to ask. Default: /readyz at FOREBAY_ADMIN_ADDRESS, else at 127.0.0.1:6481.
    #[arg(long, value_name = "URL")]
    url: Option<Uri>,
}

/// What one poll saw.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Ready,
    Pending(String),
}

// === impl Wait ===

impl Wait {
    pub(super) async fn run(self, env: &Environment) -> Result<(), Exit> {
        let url = match self.url {
            Some(url) => url,
            None => {
                let admin = crate::config::load(&Flags::default(), env, &[])?.admin_address;
                format!("http://{admin}/readyz").parse().context("admin address").map_err(Exit::Failure)?
            }
        };
        if url.scheme_str() != Some("http") || url.host().is_none() {
            return Err(Exit::Usage(format!("--url {url}: expected an http URL, like http://127.0.0.1:6481/readyz")));
        }
        let started = Instant::now();
        let mut last = String::new();
        loop {
            let seen = match timeout(POLL_TIMEOUT, poll(&url)).await {
                Ok(Ok(seen)) => seen,
                Ok(Err(error)) => Seen::Pending(format!("{error:#}")),
                Err(_) => Seen::Pending(format!("no answer from {url}")),
            };
            let pending = match seen {
                Seen::Ready => {
                    eprintln!("ready after {}", format_duration(Duration::from_secs(started.elapsed().as_secs())));
                    return Ok(());
                }
                Seen::Pending(pending) => pending,
            };
            if pending != last {
                eprintln!("waiting: {pending}");
                last = pending;
            }
            let left = self.timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                let waited = format_duration(self.timeout);
                return Err(Exit::Failure(anyhow::anyhow!("not ready after {waited}: {last}")));
            }
            sleep(PERIOD.min(left)).await;
        }
    }
}

async fn poll(url: &Uri) -> anyhow::Result<Seen> {
    let authority = url.authority().context("no address in the URL")?;
    let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
    let unreachable = || format!("no forebay answers at {address}");
    let stream = TcpStream::connect(&address).await.with_context(unreachable)?;
    let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
    let path = url.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let request = Request::get(path).header(header::HOST, &address).body(Empty::new())?;
    // Owns the sender: when it is done the connection ends too, so the join does.
    let answer = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
        anyhow::Ok((status, body.map_err(|error| anyhow::anyhow!(error))?.to_bytes()))
    };
    // How the connection ended is in the answer already.
    let (answer, _) = tokio::join!(answer, connection);
    let (status, body) = answer.with_context(unreachable)?;
    seen(status, &String::from_utf8_lossy(&body))
}

/// The failed lines of a health answer, without their decoration.
fn seen(status: StatusCode, body: &str) -> anyhow::Result<Seen> {
    if status == StatusCode::OK {
        return Ok(Seen::Ready);
    }
    let failed = body.lines().filter_map(|line| line.strip_prefix("[-]"));
    let failed: Vec<_> = failed.map(|line| line.replace(" failed: reason withheld", "")).collect();
    if failed.is_empty() {
        bail!("status {status}: is this forebay's admin port?");
    }
    Ok(Seen::Pending(failed.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_lines_are_what_is_waited_for() {
        let body = "[+]ping ok\n[-]listeners failed: reason withheld\n\
                    [-]cache-sync/v1/pods failed: reason withheld (3/4 objects)\nreadyz check failed\n";
        let want = Seen::Pending("listeners; cache-sync/v1/pods (3/4 objects)".to_owned());
        assert_eq!(seen(StatusCode::INTERNAL_SERVER_ERROR, body).expect("seen"), want);
        assert_eq!(seen(StatusCode::OK, "ok").expect("seen"), Seen::Ready);
        assert!(seen(StatusCode::NOT_FOUND, "nothing").is_err());
    }
}
