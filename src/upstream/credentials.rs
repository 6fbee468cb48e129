//! What forebay shows upstream, and what it trusts there, ready to use: headers, and TLS with its client certificate or,
//! for callers with a credential of their own, without it.
//!
//! Every file that the identity names is read here, each time, so that what is compared is what is used. kube makes the
//! headers and the TLS configuration of what was read.

use std::{
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::AUTHORIZATION};
use http_body_util::Empty;
use kube::{Config, client::ConfigExt};
use rustls::{ClientConfig, pki_types::ServerName};
use tower::ServiceExt;

use super::{
    exec,
    identity::{Error, Identity},
};

/// Credentials of providers that kube runs (`auth-provider`) are taken anew this often: when they expire it does not tell.
const PROVIDER_LIFETIME: Duration = Duration::from_secs(300);

/// Who a connection is to be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Showing {
    /// forebay, over HTTP/1.1.
    Own,
    /// forebay, over the best protocol that upstream speaks.
    OwnBest,
    /// Nobody: the requests on it bring their own credentials. A client certificate would make upstream take the caller
    /// for forebay, whatever credential the request has.
    Nobody,
}

/// What is shown, and what is trusted. No `Debug` of what is in it: it is secret.
pub(super) struct Credentials {
    /// Counts every change.
    pub(super) generation: u64,
    /// Counts the changes that connections are made anew for.
    pub(super) connections: u64,
    /// How long they are good, where that is known; asked for anew after it.
    pub(super) lifetime: Option<Duration>,
    authorization: Option<HeaderValue>,
    /// Impersonation that the kubeconfig itself asks for (`as`).
    extra: HeaderMap,
    own: Arc<ClientConfig>,
    own_best: Arc<ClientConfig>,
    nobody: Arc<ClientConfig>,
    server_name: ServerName<'static>,
    prints: Prints,
}

/// Tell one set from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Prints {
    headers: u64,
    connections: u64,
}

// === impl Credentials ===

impl Credentials {
    /// Reads all files, and runs the plugin. `limit`: for the plugin.
    pub(super) async fn resolve(identity: &Identity, limit: Option<Duration>) -> Result<Self, Error> {
        let mut config = identity.config.clone();
        let lifetime = inline(&mut config, limit).await?;
        let (config, mut headers) = headers(config).await?;
        let authorization = headers.remove(AUTHORIZATION);
        let prints = Prints { headers: header_print(authorization.as_ref(), &headers), connections: print(&config) };

        let own = config.rustls_client_config().map_err(|error| Error::tls(&error))?;
        let mut without = config.clone();
        without.auth_info.client_certificate_data = None;
        without.auth_info.client_key_data = None;
        let nobody = without.rustls_client_config().map_err(|error| Error::tls(&error))?;
        let speaking = |config: &ClientConfig, protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self {
            generation: 0,
            connections: 0,
            lifetime,
            authorization,
            extra: headers,
            own: speaking(&own, &[b"http/1.1"]),
            own_best: speaking(&own, &[b"h2", b"http/1.1"]),
            nobody: speaking(&nobody, &[b"http/1.1"]),
            server_name: server_name(&config)?,
            prints,
        })
    }

    /// Numbers these, which come after `old`; `None` if they are the same.
    pub(super) fn after(mut self, old: &Self) -> Option<Self> {
        self.generation = old.generation + 1;
        self.connections = old.connections + u64::from(self.prints.connections != old.prints.connections);
        (self.prints != old.prints).then_some(self)
    }

    /// Puts the credential, and whom it is to act as, on a request.
    pub(super) fn authorize(&self, headers: &mut HeaderMap) {
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        // Whom the request itself asks to act as stands for all of it, as it does in client-go: a mixture would be a third.
        let impersonates = |name: &HeaderName| name.as_str().starts_with("impersonate-");
        let named = headers.keys().any(impersonates);
        for (name, value) in self.extra.iter().filter(|(name, _)| !named || !impersonates(name)) {
            headers.append(name, value.clone());
        }
    }

    pub(super) fn tls(&self, showing: Showing) -> (Arc<ClientConfig>, ServerName<'static>) {
        let config = match showing {
            Showing::Own => &self.own,
            Showing::OwnBest => &self.own_best,
            Showing::Nobody => &self.nobody,
        };
        (config.clone(), self.server_name.clone())
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Puts the contents of files and what a plugin gives in their places, in kube's order of precedence.
async fn inline(config: &mut Config, limit: Option<Duration>) -> Result<Option<Duration>, Error> {
    // The identity is read anew to get new ones, and has checked that there are some.
    config.root_cert_file = None;
    let auth = &mut config.auth_info;
    if let (Some(path), None) = (auth.client_certificate.take(), &auth.client_certificate_data) {
        auth.client_certificate_data = Some(BASE64_STANDARD.encode(read(&path)?));
    }
    if let (Some(path), None) = (auth.client_key.take(), &auth.client_key_data) {
        auth.client_key_data = Some(BASE64_STANDARD.encode(read(&path)?).into());
    }
    let (exec, token_file) = (auth.exec.take(), auth.token_file.take());
    if auth.auth_provider.is_some() {
        return Ok(Some(PROVIDER_LIFETIME));
    }
    if (auth.username.is_some() && auth.password.is_some()) || auth.token.is_some() {
        return Ok(None);
    }
    if let Some(path) = token_file {
        let token = String::from_utf8(read(&path)?).unwrap_or_default();
        // A trailing newline is no part of it, and an empty file is being written.
        let token = token.trim();
        if token.is_empty() {
            return Err(Error::Credentials { message: format!("token file {path} has no token") });
        }
        check(token)?;
        auth.token = Some(token.to_owned().into());
        return Ok(None);
    }
    let Some(exec) = exec else { return Ok(None) };
    let given = exec::run(&exec, limit).await.map_err(|error| Error::Credentials { message: error.to_string() })?;
    let lifetime = given.lifetime();
    if let (Some(certificate), Some(key)) = (given.client_certificate_data, given.client_key_data) {
        auth.client_certificate_data = Some(BASE64_STANDARD.encode(certificate));
        auth.client_key_data = Some(BASE64_STANDARD.encode(key).into());
    }
    if let Some(token) = given.token {
        check(&token)?;
        auth.token = Some(token.into());
    }
    Ok(lifetime)
}

/// kube takes for granted that a token can stand in a header.
fn check(token: &str) -> Result<(), Error> {
    let fits = HeaderValue::try_from(token).is_ok();
    fits.then_some(()).ok_or_else(|| Error::Credentials { message: "the token has characters of no token".to_owned() })
}

fn read(path: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(Path::new(path))
        .map_err(|error| Error::Credentials { message: format!("can't read {path}: {error}") })
}

/// The headers that kube's layers would put on every request.
async fn headers(config: Config) -> Result<(Config, HeaderMap), Error> {
    // An auth-provider may be a command, which blocks.
    let made = tokio::task::spawn_blocking(move || {
        let layers = config.auth_layer().and_then(|auth| Ok((auth, config.extra_headers_layer()?)));
        (config, layers)
    });
    let (config, layers) = made.await.map_err(|error| Error::Credentials { message: error.to_string() })?;
    let (auth, extra) = layers.map_err(|error| Error::credentials(&error))?;
    let echo = tower::service_fn(|request: Request<Empty<Bytes>>| async move {
        let mut response = Response::new(());
        *response.headers_mut() = request.into_parts().0.headers;
        Ok::<_, tower::BoxError>(response)
    });
    let service = tower::ServiceBuilder::new()
        .layer(&extra)
        .option_layer(auth.as_ref())
        .map_err(|error: tower::BoxError| error)
        .service(echo);
    // Boxed, or its type is too deep for the compiler to see that it is `Send`.
    let echoed: Pin<Box<dyn Future<Output = Result<Response<()>, tower::BoxError>> + Send>> =
        Box::pin(service.oneshot(Request::new(Empty::new())));
    let response = echoed.await;
    let response = response.map_err(|_| Error::Credentials { message: "the token is no header value".to_owned() })?;
    Ok((config, response.into_parts().0.headers))
}

/// The name upstream's certificate must be for: `tls-server-name`, else the host of the URL.
fn server_name(config: &Config) -> Result<ServerName<'static>, Error> {
    let host = config.cluster_url.host().unwrap_or_default();
    let name = match &config.tls_server_name {
        Some(name) => name.clone(),
        // IPv6 addresses stand in brackets there.
        None => host.trim_matches(|c| c == '[' || c == ']').to_owned(),
    };
    ServerName::try_from(name.clone()).map_err(|_| Error::ServerName { name })
}

fn header_print(authorization: Option<&HeaderValue>, extra: &HeaderMap) -> u64 {
    let mut hasher = DefaultHasher::new();
    authorization.map(HeaderValue::as_bytes).hash(&mut hasher);
    for (name, value) in extra {
        (name.as_str(), value.as_bytes()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Of all that TLS depends on.
fn print(config: &Config) -> u64 {
    let mut auth = config.auth_info.clone();
    auth.token = None;
    let mut hasher = DefaultHasher::new();
    (&config.root_cert, config.accept_invalid_certs, &config.tls_server_name).hash(&mut hasher);
    auth.client_certificate_data.hash(&mut hasher);
    // The key is readable only as it is written to a file.
    let key = kube::config::AuthInfo { client_key_data: auth.client_key_data.take(), ..Default::default() };
    serde_json::to_vec(&key).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
