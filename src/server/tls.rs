//! The identity forebay serves with: a CA made at start, and a leaf for the names that clients may use for it.
//!
//! Both keys live in memory only; the CA's is dropped once the leaf is signed, so nobody can ever sign another.

use std::{sync::Arc, time::SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// A year, and an hour back for clocks that are behind.
const VALIDITY: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);
const BACKDATE: std::time::Duration = std::time::Duration::from_secs(3600);

/// A serving certificate with its own CA.
#[derive(Clone)]
pub struct ServingIdentity {
    ca_pem: String,
    config: Arc<ServerConfig>,
}

/// The identity can't be made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Making or signing a certificate failed.
    #[error("can't make the serving certificate")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refused the certificate.
    #[error("can't use the serving certificate")]
    Tls(#[from] rustls::Error),
}

// === impl ServingIdentity ===

impl ServingIdentity {
    /// Makes a CA and a leaf, P-256 both. The leaf is valid for `names`: DNS names and addresses.
    ///
    /// # Errors
    ///
    /// When the random source or the TLS library fails.
    pub fn generate(names: Vec<String>) -> Result<Self, IdentityError> {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, format!("forebay {:08x}", rand::random::<u32>()));
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        validity(&mut ca);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name.push(DnType::CommonName, "forebay");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Go finds the issuer by it when a bundle holds several of our CAs.
        leaf.use_authority_key_identifier_extension = true;
        validity(&mut leaf);
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &ca)?;

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { ca_pem: ca.pem(), config: Arc::new(config) })
    }

    /// The CA, for the kubeconfig.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// TLS for the listener; offers `h2` and `http/1.1`.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

impl std::fmt::Debug for ServingIdentity {
    /// Without the configuration, which holds the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingIdentity").finish_non_exhaustive()
    }
}

fn validity(params: &mut CertificateParams) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + VALIDITY).into();
}
