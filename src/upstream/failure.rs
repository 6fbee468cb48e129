//! Why a forwarded request got no answer, and whether upstream may have seen it.
//!
//! "Nothing was sent" is said only where it is certain. hyper gives a request back, or calls it cancelled, only as long
//! as it has not begun to write it; an error that names no connection comes from before one was had; and a server that
//! refuses our certificate does so before it reads what follows the handshake (RFC 8446 section 4.4.2.4), even where
//! the client learns it later.

use std::time::Duration;

use hyper_util::client::legacy;
use rustls::AlertDescription;

use super::{
    body::BoxError,
    connect::{ConnectError, Traffic},
    error::{chain, find},
};

/// A forwarded request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nothing was sent.
    #[error("{}", chain(.0.as_ref()))]
    Unsent(BoxError),
    /// The connection was lost, or spoke no HTTP, after something had been sent: the outcome is unknown.
    #[error("{}", chain(.0.as_ref()))]
    Broken(BoxError),
    /// No head of an answer in time.
    #[error("no answer within {after:?}")]
    Slow {
        /// How long.
        after: Duration,
        /// There was a connection to send it on.
        sent: bool,
    },
}

// === impl Failure ===

impl Failure {
    /// What an error of the HTTP client means.
    pub(super) fn of(error: legacy::Error) -> Self {
        let unsent = error.connect_info().is_none()
            || find::<hyper::Error>(&error).is_some_and(hyper::Error::is_canceled)
            || is_refused_by_tls(&error);
        if unsent { Self::Unsent(error.into()) } else { Self::Broken(error.into()) }
    }

    /// Where making the connection failed, if that is what did.
    pub fn connect(&self) -> Option<&ConnectError> {
        match self {
            Self::Unsent(error) => find(&**error),
            _ => None,
        }
    }

    /// The label, in place of a status code.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Unsent(_) => "unreachable",
            Self::Broken(_) => "broken",
            Self::Slow { .. } => "timeout",
        }
    }
}

/// Upstream ended the handshake over our certificate, and we learnt it when the request was on its way.
pub(super) fn is_refused_by_tls(error: &legacy::Error) -> bool {
    use AlertDescription as Alert;
    let Some(rustls::Error::AlertReceived(alert)) = find(error) else { return false };
    let over_a_certificate = matches!(
        alert,
        Alert::HandshakeFailure
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::CertificateRequired
    );
    over_a_certificate && Traffic::of(error).is_some_and(|traffic| traffic.was_silent())
}
