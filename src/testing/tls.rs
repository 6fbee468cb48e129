//! A certificate authority for one server, and its certificate for loopback.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};

/// What a listener needs, and what its clients must trust.
pub(super) struct Identity {
    pub(super) ca_pem: String,
    pub(super) config: Arc<ServerConfig>,
}

/// An authority for clients' certificates, another one than the server's own.
pub(super) struct ClientCa {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate of a client, and its key.
pub(super) struct ClientCertificate {
    pub(super) pem: String,
    pub(super) key_pem: String,
    pub(super) der: CertificateDer<'static>,
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
    /// The authority for clients can't be used.
    #[error("cannot verify clients: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

// === impl Identity ===

impl Identity {
    /// A new authority and a certificate for 127.0.0.1, ::1 and localhost. Clients may show a certificate of theirs, and
    /// need not, as with kube-apiserver.
    pub(super) fn new(alpn: &[&str], clients: &ClientCa) -> Result<Self, TlsError> {
        let ca_key = KeyPair::generate()?;
        let ca = authority("scripted apiserver ca")?;
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
        let mut roots = RootCertStore::empty();
        roots.add(clients.certificate.clone())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = verifier.allow_unauthenticated().build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], private)?;
        config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        Ok(Self { ca_pem, config: Arc::new(config) })
    }
}

// === impl ClientCa ===

impl ClientCa {
    pub(super) fn new() -> Result<Self, TlsError> {
        let key = KeyPair::generate()?;
        let ca = authority("scripted apiserver client ca")?;
        let certificate = ca.self_signed(&key)?.der().clone();
        Ok(Self { issuer: Issuer::new(ca, key), certificate })
    }

    /// A new certificate for `name`.
    pub(super) fn issue(&self, name: &str) -> Result<ClientCertificate, TlsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Ok(ClientCertificate { pem, key_pem: key.serialize_pem(), der })
    }
}

fn authority(name: &str) -> Result<CertificateParams, TlsError> {
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name.push(DnType::CommonName, name);
    Ok(ca)
}
