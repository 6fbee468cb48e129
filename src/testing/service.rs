//! One request: seen, scripted, authenticated, answered.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use parking_lot::RwLock;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, sleep};

use super::{
    apiserver::Settings,
    body::{Body, Broken},
    call::{Call, Verb},
    connection::Connection,
    discovery,
    list::{self, Page},
    log::{RequestLog, Seen},
    negotiate::{self, Wanted},
    objects,
    options::WatchOptions,
    resource::Resource,
    script::{Before, Plan, Script},
    status::Status,
    tunnel,
    watch::{Registry, Stream},
    world::World,
    write,
};

/// Largest request body taken; upstream's limit is 3 MiB.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// What all connections of a server share.
pub(super) struct Shared {
    pub(super) world: World,
    pub(super) script: Script,
    pub(super) log: RequestLog,
    pub(super) watches: Registry,
    pub(super) settings: Settings,
    pub(super) tokens: RwLock<Vec<String>>,
    /// Names of the client certificates that are let in.
    pub(super) certificates: RwLock<Vec<String>>,
    /// The client certificates issued.
    pub(super) issued: RwLock<Vec<(CertificateDer<'static>, String)>>,
    /// The server's own address, for discovery.
    pub(super) address: String,
}

/// An answer before its headers are complete.
struct Answer {
    status: u16,
    content_type: String,
    retry_after: Option<u32>,
    body: Body,
}

// === impl Shared ===

impl Shared {
    /// Answers one request. An error ends the connection (HTTP/2: the stream).
    pub(super) async fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> Result<Response<Body>, Broken> {
        let seen = Arc::new(self.seen(&request, &connection));
        self.log.record(seen.clone());
        let mut plan = self.script.plan(&seen);
        for step in std::mem::take(&mut plan.before) {
            match step {
                Before::Delay(by) => sleep(by).await,
                Before::Hold(latch) => latch.pass().await,
            }
        }
        if plan.reset {
            connection.reset();
            return Err(Broken);
        }
        if tunnel::is_tunnel(&seen.call) && plan.reply.is_none() && self.is_allowed(&seen) {
            match tunnel::switch(&mut request) {
                Ok(response) => {
                    let _ = seen.answered.set(response.status().as_u16());
                    return Ok(response);
                }
                Err(status) => return Ok(respond(Answer::status(&status, &mut plan), &seen, &plan)),
            }
        }
        let answer = match self.answer(&seen, &mut plan, request).await {
            Ok(answer) => answer,
            Err(status) => Answer::status(&status, &mut plan),
        };
        if plan.reset_answered {
            connection.reset();
            return Err(Broken);
        }
        // Set once, here.
        let _ = seen.answered.set(answer.status);
        Ok(respond(answer, &seen, &plan))
    }

    fn seen(&self, request: &Request<Incoming>, connection: &Connection) -> Seen {
        let query = request.uri().query();
        let user_agent = request.headers().get(header::USER_AGENT).and_then(|v| v.to_str().ok());
        Seen {
            number: self.log.next_number(),
            method: request.method().to_string(),
            call: Call::parse(request.method().as_str(), request.uri().path(), query),
            query: query.unwrap_or_default().to_owned(),
            user_agent: user_agent.unwrap_or_default().to_owned(),
            protocol: if request.version() == http::Version::HTTP_2 { "HTTP/2.0" } else { "HTTP/1.1" },
            connection: connection.id,
            certificate: connection.certificate.get().cloned(),
            headers: request.headers().clone(),
            at: Instant::now(),
            answered: OnceLock::new(),
        }
    }

    async fn answer(&self, seen: &Seen, plan: &mut Plan, request: Request<Incoming>) -> Result<Answer, Status> {
        let call = &seen.call;
        if let Some(reply) = plan.reply.take() {
            let body = std::mem::take(&mut plan.body);
            return Ok(match reply.body {
                Some((content_type, bytes)) => Answer {
                    status: reply.status,
                    content_type,
                    retry_after: reply.retry_after,
                    body: Body::whole(bytes, body),
                },
                None => {
                    let status = Status::for_call(reply.status, call, &self.settings.user, reply.retry_after);
                    Answer::json(reply.status, status.body(), body).retry_after(status.retry_after)
                }
            });
        }
        if !self.is_allowed(seen) {
            return Err(Status::unauthorized());
        }
        if call.resource.is_empty() {
            return Ok(self.non_resource(seen, plan));
        }
        let Some(resource) = self.find(call) else { return Ok(self.unknown(call, plan)) };
        match call.verb {
            _ if seen.method == "HEAD" && !resource.custom => Err(Status::for_call(405, call, "", None)),
            Verb::Get if matches!(call.subresource.as_str(), "" | "status") => {
                let form = negotiate::form(&seen.headers, Wanted::Object, &resource)?;
                let bytes = list::get(&self.world, call, &resource.gvr, form).await?;
                Ok(Answer::json(200, bytes, std::mem::take(&mut plan.body)))
            }
            Verb::Get if call.subresource == "log" && *resource.gvr.resource == *"pods" => {
                let (sink, body) = Body::stream(std::mem::take(&mut plan.body));
                tokio::spawn(tunnel::log(sink, call.flag("follow")));
                Ok(Answer { status: 200, content_type: "text/plain".to_owned(), retry_after: None, body })
            }
            Verb::List => {
                let form = negotiate::form(&seen.headers, Wanted::List, &resource)?;
                let page = Page::new(&self.world, call, &resource, form).await?;
                let (sink, body) = Body::stream(std::mem::take(&mut plan.body));
                tokio::spawn(page.send(sink));
                Ok(Answer { status: 200, content_type: "application/json".to_owned(), retry_after: None, body })
            }
            Verb::Watch => self.watch(seen, plan, resource),
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
                let content_type = seen.header("content-type").to_owned();
                let collected = Limited::new(request.into_body(), MAX_BODY).collect().await;
                let bytes =
                    collected.map_err(|_| Status::new(413, "RequestEntityTooLarge", "limit is 3145728"))?.to_bytes();
                let done = write::handle(&self.world, call, &resource, &content_type, &bytes)?;
                Ok(Answer::json(done.code, done.body, std::mem::take(&mut plan.body)))
            }
            _ => Err(Status::no_such_resource()),
        }
    }

    fn watch(&self, seen: &Seen, plan: &mut Plan, resource: Arc<Resource>) -> Result<Answer, Status> {
        let form = negotiate::form(&seen.headers, Wanted::Watch, &resource)?;
        if !resource.verbs.iter().any(|v| v == "watch") {
            let name = &resource.gvr.resource;
            let message = format!("watch is not supported on resources of kind {name:?}");
            let details = Some(format!(r#"{{"kind":"{name}"}}"#));
            return Err(Status { details, ..Status::new(405, "MethodNotAllowed", message) });
        }
        let options = WatchOptions::parse(&seen.call, &resource, self.settings.watch_list)?;
        let named = (options.selector.name(), seen.call.name.as_deref());
        if matches!(named, (Some(a), Some(b)) if a != b) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        let stream = Stream {
            world: self.world.clone(),
            resource,
            namespace: seen.call.namespace.clone(),
            form,
            options,
            plan: std::mem::take(&mut plan.watch),
            bookmark_every: self.settings.bookmark_every,
        };
        let (sink, body) = Body::stream(std::mem::take(&mut plan.body));
        let watches = self.watches.clone();
        tokio::spawn(async move { stream.run(sink, &watches).await });
        Ok(Answer { status: 200, content_type: "application/json".to_owned(), retry_after: None, body })
    }

    fn is_allowed(&self, seen: &Seen) -> bool {
        let tokens = self.tokens.read();
        let given = seen.header("authorization").strip_prefix("Bearer ").unwrap_or_default();
        let shown = seen.certificate.as_ref().is_some_and(|shown| self.certificates.read().contains(shown));
        tokens.is_empty() || shown || tokens.iter().any(|t| t == given)
    }

    /// Whom a client certificate was issued for.
    pub(super) fn name_of(&self, certificate: &CertificateDer<'_>) -> Option<String> {
        let issued = self.issued.read();
        issued.iter().find(|(der, _)| der == certificate).map(|(_, name)| name.clone())
    }

    fn find(&self, call: &Call) -> Option<Arc<Resource>> {
        let gvr = crate::api::gvr::Gvr::new(&call.group, &call.version, &call.resource);
        let resource = self.world.resource(&gvr)?;
        // A cluster-scoped kind has no namespace, and a namespaced object needs one.
        let fits = match (resource.namespaced, &call.namespace) {
            (false, Some(_)) => false,
            (true, None) => call.name.is_none(),
            _ => true,
        };
        fits.then_some(resource)
    }

    /// Upstream answers for unknown resources of built-in groups with a Status, for everything else with plain text.
    fn unknown(&self, call: &Call, plan: &mut Plan) -> Answer {
        let built_in = self.world.resources().iter().any(|r| !r.custom && *r.gvr.group == *call.group);
        if built_in { Answer::status(&Status::no_such_resource(), plan) } else { Answer::no_page(plan) }
    }

    fn non_resource(&self, seen: &Seen, plan: &mut Plan) -> Answer {
        let body = std::mem::take(&mut plan.body);
        match seen.path() {
            "/healthz" | "/readyz" | "/livez" => Answer::text(200, "ok", body),
            "/version" | "/version/" => Answer::json(200, VERSION.into(), body),
            path => {
                let aggregated = self.settings.aggregated_discovery
                    && discovery::is_aggregated(seen.header("accept"))
                    && matches!(path.trim_end_matches('/'), "/api" | "/apis");
                match discovery::document(path, &self.world.resources(), aggregated, &self.address) {
                    Some(text) => {
                        let mut answer = Answer::json(200, format!("{text}\n").into(), body);
                        if aggregated {
                            discovery::AGGREGATED.clone_into(&mut answer.content_type);
                        }
                        answer
                    }
                    None => {
                        plan.body = body;
                        Answer::no_page(plan)
                    }
                }
            }
        }
    }
}

const VERSION: &str = r#"{
  "major": "1",
  "minor": "37",
  "emulationMajor": "1",
  "emulationMinor": "37",
  "minCompatibilityMajor": "1",
  "minCompatibilityMinor": "36",
  "gitVersion": "v1.37.2",
  "gitCommit": "0000000000000000000000000000000000000000",
  "gitTreeState": "clean",
  "buildDate": "2026-10-20T00:00:00Z",
  "goVersion": "go1.26.6",
  "compiler": "gc",
  "platform": "linux/amd64"
}"#;

// === impl Answer ===

impl Answer {
    fn json(status: u16, bytes: Bytes, plan: super::script::BodyPlan) -> Self {
        let content_type = "application/json".to_owned();
        Self { status, content_type, retry_after: None, body: Body::whole(bytes, plan) }
    }

    fn text(status: u16, text: &'static str, plan: super::script::BodyPlan) -> Self {
        let content_type = "text/plain; charset=utf-8".to_owned();
        Self { status, content_type, retry_after: None, body: Body::whole(text.into(), plan) }
    }

    fn status(status: &Status, plan: &mut Plan) -> Self {
        Self::json(status.code, status.body(), std::mem::take(&mut plan.body)).retry_after(status.retry_after)
    }

    fn no_page(plan: &mut Plan) -> Self {
        Self::text(404, "404 page not found\n", std::mem::take(&mut plan.body))
    }

    fn retry_after(mut self, seconds: Option<u32>) -> Self {
        self.retry_after = seconds;
        self
    }
}

fn respond(answer: Answer, seen: &Seen, plan: &Plan) -> Response<Body> {
    let plain = answer.content_type.starts_with("text/plain");
    let mut response = Response::new(answer.body);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let audit = seen.header("audit-id");
    let audit = if audit.is_empty() { objects::uid() } else { audit.to_owned() };
    let mut headers = vec![
        ("audit-id".to_owned(), audit),
        ("cache-control".to_owned(), "no-cache, private".to_owned()),
        ("content-type".to_owned(), plan.content_type.clone().unwrap_or(answer.content_type)),
    ];
    if answer.status != 401 {
        headers.push(("x-kubernetes-pf-flowschema-uid".to_owned(), FLOW_SCHEMA.to_owned()));
        headers.push(("x-kubernetes-pf-prioritylevel-uid".to_owned(), PRIORITY_LEVEL.to_owned()));
    }
    if (plain && answer.status != 200) || answer.status == 403 || (plain && seen.call.resource.is_empty()) {
        headers.push(("x-content-type-options".to_owned(), "nosniff".to_owned()));
    }
    if let Some(seconds) = answer.retry_after {
        headers.push(("retry-after".to_owned(), seconds.to_string()));
    }
    headers.extend(plan.headers.iter().cloned());
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

const FLOW_SCHEMA: &str = "5f2b3b0c-6f0a-4a55-9c3e-0d5c0f6f3a01";
const PRIORITY_LEVEL: &str = "8c1d7f5e-2f44-4c0e-b1a7-3f1e9a0b7c02";
