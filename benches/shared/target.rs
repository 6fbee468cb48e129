//! A server as its kubeconfig describes it, and TLS connections to it.

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A server at an address.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// The whole `Authorization`.
    pub(crate) bearer: String,
    roots: Arc<RootCertStore>,
}

// === impl Target ===

impl Target {
    pub(crate) fn new(address: SocketAddr, bearer: String, ca_pem: &[u8]) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca_pem)?)?;
        Ok(Self { address, bearer, roots: Arc::new(roots) })
    }

    /// Reads a kubeconfig of one cluster at an IP address, with CA and token inside.
    pub(crate) fn from_kubeconfig(path: &Path) -> Result<Self> {
        let what = || format!("kubeconfig {}", path.display());
        let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).with_context(what)?)?;
        let text = |value: &Value| value.as_str().map(str::to_owned).with_context(what);
        let cluster = &file["clusters"][0]["cluster"];
        let address = text(&cluster["server"])?.trim_start_matches("https://").parse().with_context(what)?;
        let ca = BASE64_STANDARD.decode(text(&cluster["certificate-authority-data"])?)?;
        Self::new(address, format!("Bearer {}", text(&file["users"][0]["user"]["token"])?), &ca)
    }

    /// What to trust; no protocol is offered yet.
    pub(crate) fn tls(&self) -> ClientConfig {
        ClientConfig::builder().with_root_certificates(self.roots.clone()).with_no_client_auth()
    }

    pub(crate) async fn connect(&self, protocol: Protocol) -> Result<TlsStream<TcpStream>> {
        let mut tls = self.tls();
        tls.alpn_protocols = match protocol {
            Protocol::Http1 => vec![b"http/1.1".to_vec()],
            Protocol::Http2 => vec![b"h2".to_vec()],
        };
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.address.ip().into());
        Ok(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?)
    }
}
