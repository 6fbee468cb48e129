//! A certificate authority for one server, and its certificate for loopback.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// What a listener needs, and what its clients must trust.
pub(super) struct Identity {
    pub(super) ca_pem: String,
    pub(super) config: Arc<ServerConfig>,
}

/// The certificate or the configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// From the certificate generator.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// From the TLS library.
    #[error("cannot use the certificate: {0}")]
    Config(#[from] rustls::Error),
}

// === impl Identity ===

impl Identity {
    /// A new authority and a certificate for 127.0.0.1, ::1 and localhost.
    pub(super) fn new(alpn: &[&str]) -> Result<Self, TlsError> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca.distinguished_name.push(DnType::CommonName, "scripted apiserver ca");
        let ca_pem = ca.self_signed(&ca_key)?.pem();
        let issuer = Issuer::new(ca, ca_key);

        let key = KeyPair::generate()?;
        let names = ["127.0.0.1", "::1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, "scripted apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &issuer)?;

        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)?;
        config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        Ok(Self { ca_pem, config: Arc::new(config) })
    }
}
