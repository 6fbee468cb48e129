//! The admin port: health, metrics and the effective configuration over plain HTTP, for kubelet, scrapers and people.
//!
//! Nothing here is secret and nothing changes anything, so nobody is authenticated. `/livez` never depends on upstream:
//! a restart would not bring it back. It answers until the drain is aborted, so that probes see a shutdown as "not
//! ready" and not as "dead".

mod health;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use self::health::{Answer, Check};
use crate::{
    config::Config,
    lifecycle::{DrainToken, Readiness, Tasks},
    telemetry::registry::{self, Exposition},
};

/// Probes and scrapers are few; the bound is against a neighbour that forgets to close.
const MAX_CONNECTIONS: usize = 128;

/// Above the usual scrape interval, so that scrapers keep their connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// As for clients: wait for others to give files back.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

const PATHS: &str = "/livez\n/readyz\n/healthz\n/metrics\n/configz\n";

/// The state of one cached resource, asked for at each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceCheck {
    /// `cache-sync/apps/v1/deployments`.
    pub name: String,
    /// Synced?
    pub ready: bool,
    /// Does `/readyz` wait for it? Others are only shown.
    pub required: bool,
    /// Progress for people: `1200/2000 objects, 350/s, 3s left`.
    pub detail: String,
}

/// Source of the states of all cached resources.
pub type Resources = Arc<dyn Fn() -> Vec<ResourceCheck> + Send + Sync>;

/// What the admin port shows. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    readiness: Readiness,
    resources: Resources,
    metrics: Arc<Registry>,
    config: Bytes,
}

// === impl Admin ===

impl Admin {
    /// Everything the answers are made of. `metrics` is complete: nothing can be registered any more.
    pub fn new(readiness: Readiness, resources: Resources, metrics: Arc<Registry>, config: &Config) -> Self {
        let config = serde_json::to_string_pretty(&serde_json::json!({ "forebay": config })).unwrap_or_default();
        Self { readiness, resources, metrics, config: Bytes::from(config + "\n") }
    }

    /// Answers on a bound socket until the drain is aborted.
    pub async fn serve(self, socket: TcpListener, tasks: Tasks, drain: DrainToken) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = async {
                // The semaphore is never closed.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (place, socket.accept().await)
            };
            let (place, accepted) = tokio::select! {
                accepted = accepted => accepted,
                () = drain.aborted() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (admin, drain) = (self.clone(), drain.clone());
                    tasks.spawn_connection(async move {
                        tokio::select! {
                            () = admin.connection(stream) => {}
                            () = drain.aborted() => {}
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "accept on the admin port failed; trying again");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    async fn connection(self, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let response = self.answer(&request);
            async { Ok::<_, Infallible>(response) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
            tracing::trace!(%error, "admin connection ended with an error");
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let query = request.uri().query().unwrap_or_default();
        let path = request.uri().path();
        match path {
            "/livez" => self.health(health::all("livez", &live(), query)),
            "/readyz" => self.health(health::all("readyz", &self.ready(), query)),
            "/healthz" => self.health(health::all("healthz", &self.ready(), query)),
            "/metrics" => self.metrics(request.headers().get(header::ACCEPT)),
            "/configz" => typed(StatusCode::OK, "application/json", self.config.clone()),
            _ => {
                let one = match path.strip_prefix("/livez/") {
                    Some(name) => health::one(&live(), name),
                    None => path
                        .strip_prefix("/readyz/")
                        .or_else(|| path.strip_prefix("/healthz/"))
                        .and_then(|name| health::one(&self.ready(), name)),
                };
                match one {
                    Some(answer) => self.health(answer),
                    None => text(StatusCode::NOT_FOUND, format!("404 page not found; there are:\n{PATHS}")),
                }
            }
        }
    }

    fn ready(&self) -> Vec<Check> {
        let own = self.readiness.checks().into_iter().map(|check| Check::new(check.name, check.ready));
        let resources = (self.resources)().into_iter().map(|resource| {
            let optional = !resource.ready && !resource.required;
            let detail = match resource.detail {
                detail if optional => format!("syncing, not waited for: {detail}"),
                detail => detail,
            };
            let detail = (!detail.is_empty()).then_some(detail);
            Check { name: resource.name, ok: resource.ready || optional, detail }
        });
        live().into_iter().chain(own).chain(resources).collect()
    }

    fn health(&self, answer: Answer) -> Response<Full<Bytes>> {
        if !answer.failed.is_empty() {
            tracing::debug!(checks = %answer.failed.join(","), "health check failed");
        }
        text(answer.status, answer.body)
    }

    fn metrics(&self, accept: Option<&HeaderValue>) -> Response<Full<Bytes>> {
        let exposition = Exposition::for_accept(accept.and_then(|accept| accept.to_str().ok()));
        match registry::encode(&self.metrics, exposition) {
            Ok(body) => typed(StatusCode::OK, exposition.content_type(), body.into()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics can't be encoded: {error}\n")),
        }
    }
}

/// Alive is who answers.
fn live() -> Vec<Check> {
    vec![Check::new("ping", true)]
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body.into())
}

fn typed(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
