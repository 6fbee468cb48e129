//! What can go wrong between forebay and its upstream. Every variant says whose fault it is by its shape; none carries a
//! credential or a body.

use std::time::Duration;

use kube::client::AuthError;

use super::{body::BoxError, purpose::Purpose};

/// A request of our own to upstream failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer: not connected, TLS refused, connection lost.
    #[error("{what}: {}", chain(source.as_ref()))]
    Transport {
        /// What was tried.
        what: Purpose,
        /// The cause, printed with all its own causes.
        source: BoxError,
    },
    /// Nothing came within the time allowed.
    #[error("{what}: nothing came within {after:?}")]
    Timeout {
        /// What was awaited.
        what: Purpose,
        /// How long.
        after: Duration,
    },
    /// Upstream answered with an error status.
    #[error("{what}: upstream answered {code}: {message}")]
    Status {
        /// What was asked.
        what: Purpose,
        /// HTTP status, or the code of a Status in a watch's ERROR event.
        code: u16,
        /// Upstream's message, shortened.
        message: String,
        /// Upstream's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The answer isn't what was asked for: cut off, another kind, not JSON, too large.
    #[error("{what}: {message}")]
    Junk {
        /// What was read.
        what: Purpose,
        /// What was found.
        message: String,
    },
}

// === impl Error ===

impl Error {
    /// Code of an upstream status, where there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// What upstream asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// A closed word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Transport { .. } => "transport",
            Self::Timeout { .. } => "timeout",
            Self::Status { code: 401 | 403, .. } => "refused",
            Self::Status { code: 410, .. } => "expired",
            Self::Status { code: 429, .. } => "throttled",
            Self::Status { .. } => "status",
            Self::Junk { .. } => "junk",
        }
    }

    pub(crate) fn transport(what: Purpose) -> impl FnOnce(BoxError) -> Self {
        move |source| Self::Transport { what, source }
    }
}

/// The whole chain of causes: hyper-util's own text is only "client error (Connect)".
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(text) = plugin(error) {
        return text;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(plugin) = plugin(error) {
            return plugin;
        }
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// The first cause of this type, the error itself included.
pub(super) fn find<'a, T: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error skips the error that it was made of when it is asked for its source.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// What is told of an exec plugin that failed: kube's own text has its environment, its arguments and all of its output.
fn plugin(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let auth = match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Auth(auth)) => auth,
        Some(_) => return None,
        None => error.downcast_ref::<AuthError>()?,
    };
    match auth {
        AuthError::AuthExecRun { out, .. } => {
            Some(format!("exec plugin failed with {}; run it by hand to see why", out.status))
        }
        AuthError::AuthExecParse(_) => Some("exec plugin printed no ExecCredential".to_owned()),
        _ => None,
    }
}
