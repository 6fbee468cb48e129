//! TCP to upstream: directly, or through the proxy that the kubeconfig's `proxy-url` names.
//!
//! Proxies are dialled in the clear and asked to tunnel (`http://`, by CONNECT) or to relay (`socks5://`); TLS to upstream
//! runs inside. `https://` proxies aren't supported, and start-up says so.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderValue, Uri};
use hyper_util::{
    client::legacy::connect::{
        HttpConnector,
        proxy::{SocksV5, Tunnel},
    },
    rt::TokioIo,
};
use percent_encoding::percent_decode_str;
use tokio::net::TcpStream;
use tower::Service;

use super::body::BoxError;

/// How a connection to upstream is opened.
#[derive(Clone, Debug)]
pub(super) enum Dial {
    /// Straight to the host of the URL.
    Direct(HttpConnector),
    /// By an HTTP proxy's CONNECT.
    Tunnel(Tunnel<HttpConnector>),
    /// By a SOCKS5 proxy, which resolves the name.
    Socks(SocksV5<HttpConnector>),
}

// === impl Dial ===

impl Dial {
    /// Prepares to dial, through `proxy` if there is one.
    pub(super) fn new(proxy: Option<&Uri>, connect_timeout: Duration) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // HTTP/1.1 has no pings, and a watch or a log may be silent for hours: this ends what has no other side any more
        // within 45 s, which is what client-go's own pings take. The kernel's defaults would take over ten minutes.
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        tcp.set_keepalive_interval(Some(Duration::from_secs(5)));
        tcp.set_keepalive_retries(Some(3));
        tcp.set_connect_timeout(Some(connect_timeout));
        let Some(proxy) = proxy else { return Ok(Self::Direct(tcp)) };
        let login = login(proxy);
        match proxy.scheme_str() {
            Some("http") => {
                let mut tunnel = Tunnel::new(proxy.clone(), tcp);
                if let Some((user, password)) = login {
                    let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")));
                    let mut basic = HeaderValue::try_from(basic).map_err(|e| format!("proxy-url: {e}"))?;
                    basic.set_sensitive(true);
                    tunnel = tunnel.with_auth(basic);
                }
                Ok(Self::Tunnel(tunnel))
            }
            Some("socks5" | "socks5h") => {
                let mut socks = SocksV5::new(proxy.clone(), tcp);
                if let Some((user, password)) = login {
                    socks = socks.with_auth(user, password);
                }
                Ok(Self::Socks(socks))
            }
            scheme => {
                Err(format!("proxy-url has scheme {:?}; http and socks5 are supported", scheme.unwrap_or_default()))
            }
        }
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(dial) => dial.poll_ready(cx).map_err(Into::into),
            Self::Tunnel(dial) => dial.poll_ready(cx).map_err(Into::into),
            Self::Socks(dial) => dial.poll_ready(cx).map_err(Into::into),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        match self {
            Self::Direct(dial) => {
                let dialled = dial.call(uri);
                Box::pin(async { dialled.await.map_err(Into::into) })
            }
            Self::Tunnel(dial) => {
                let dialled = dial.call(uri);
                Box::pin(async { dialled.await.map_err(Into::into) })
            }
            Self::Socks(dial) => {
                let dialled = dial.call(uri);
                Box::pin(async { dialled.await.map_err(Into::into) })
            }
        }
    }
}

/// User and password of `http://user:password@host`.
fn login(proxy: &Uri) -> Option<(String, String)> {
    let (login, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let plain = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((plain(user), plain(password)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_proxies_are_taken() {
        let dial = |url: &str| Dial::new(Some(&url.parse().unwrap()), Duration::from_secs(1));
        assert!(matches!(dial("http://proxy:3128"), Ok(Dial::Tunnel(_))));
        assert!(matches!(dial("socks5://u:p@proxy:1080"), Ok(Dial::Socks(_))));
        let error = dial("https://proxy:3128").unwrap_err();
        assert!(error.contains("https") && error.contains("socks5"), "{error}");
        assert!(matches!(Dial::new(None, Duration::from_secs(1)), Ok(Dial::Direct(_))));
    }

    #[test]
    fn logins_are_decoded() {
        let login = |url: &str| login(&url.parse().unwrap());
        assert_eq!(login("http://a%40b:c%3Ad@proxy:1"), Some(("a@b".into(), "c:d".into())));
        assert_eq!(login("http://proxy:1"), None);
    }
}
